/* small_gemm.h -- the matrix product used inside other fast ops: one thread, any strides, small operands.
 *
 *     C[M][N] (= or +=) alpha A B      A(i,k) = A[i*ai + k*ak]   B(k,n) = B[k*bk + n*bn]   C(i,n) = C[i*ldc + n]
 * Transposes are strides. Fast where bn = 1 or bk = 1. Every element is summed over k in order, in pieces that depend
 * only on K, so a row's result does not depend on M or N. C must not overlap A or B. */
#ifndef HL_SMALL_GEMM_H
#define HL_SMALL_GEMM_H
#include "ops/ops.h"

enum { HL_SMALL_GEMM_SCRATCH = 96 * 1024 }; /* reals */
struct hl_small_gemm {
    int64_t M, N, K;
    const real *A;
    int64_t ai, ak;
    const real *B;
    int64_t bk, bn;
    real *C;
    int64_t ldc;
    real alpha;
    bool add;
};
/* Leading dimension for rows of n reals: an odd number of cache lines, because rows a power of two apart map to the
 * same cache sets. */
static inline int64_t hl_small_gemm_ld(int64_t n) { return ((n + 15) / 16 | 1) * 16; }
#ifdef HL_ISA
void HL_OP(small_gemm)(const struct hl_small_gemm *a,
                       real *scratch); /* scratch: HL_SMALL_GEMM_SCRATCH reals, 64-byte aligned */
#endif

#endif
