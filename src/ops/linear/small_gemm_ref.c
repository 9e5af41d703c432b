/* small_gemm_ref.c -- the reference for mm: one plain sum per element, in double. */
#include "ops/linear/small_gemm.h"

void HL_OP(small_gemm)(const struct hl_small_gemm *a, real *scratch) {
    (void)scratch;
    for (int64_t i = 0; i < a->M; i++)
        for (int64_t n = 0; n < a->N; n++) {
            double s = 0;
            real *c = a->C + i * a->ldc + n;
            for (int64_t k = 0; k < a->K; k++)
                s += (double)a->A[i * a->ai + k * a->ak] * (double)a->B[k * a->bk + n * a->bn];
            *c = (real)((a->add ? (double)*c : 0) + (double)a->alpha * s);
        }
}
