/* kernel.h -- building blocks of all CPU matrix products: the register tile (micro-kernel) and operand packing.
 *
 * B comes in panels of HL_PANEL columns: row k of a panel is 32 contiguous numbers, with row stride `bs`. A comes in
 * strips of up to HL_MR rows: column k of a strip is contiguous, with column stride `as` (HL_AS when packed here).
 * Every element of C is one chain of multiply-adds over k, in order, within a piece of HL_KC; pieces are added to C in
 * order. Tile height, blocking and threads do not affect this order, so a row has the same bits in every batch. */
#ifndef HL_KERNEL_H
#define HL_KERNEL_H
#include "ops/linear/linear.h"
#include "ops/linear/small_gemm.h"
#include "ops/simd.h"

enum { HL_KC = 256 };
/* Scratch of a linear layer, in reals: panels for a block of at most HL_BLOCK columns, which stay in L2, and a few
 * strips. */
enum { HL_BLOCK = HL_LINEAR_COLUMNS, HL_STRIPS = 48, HL_BLOCK_SCRATCH = (HL_BLOCK + HL_STRIPS) * HL_KC };

/* Rows of a tile: as many accumulators as fit the registers next to two vectors of B. A packed strip has space for a
 * multiple of 4 rows, for the 4 x 4 transposes. */
#if defined(__AVX512F__) || defined(HL_NEON)
enum { HL_MR = 12, HL_AS = 12 };
#elif defined(__AVX2__)
enum { HL_MR = 6, HL_AS = 8 };
#else
enum { HL_MR = 4, HL_AS = 4 };
#endif

struct hl_tile {
    const real *A;
    int64_t as, bs, kc;
    const void *B;
    hola_dtype dtype; /* of B; HOLA_F32 means `real` */
    real *C;
    int64_t ldc;
    int mr, n;  /* rows <= HL_MR, columns <= HL_PANEL */
    real alpha; /* C (= or +=) alpha A B */
    bool add;
};
/* One row of x times HL_ROW_PANELS whole panels, `step` bytes apart. Short vectors have enough sums in one panel. */
enum { HL_ROW_PANELS = VL >= 8 ? 2 : 1 };
struct hl_one_row {
    const real *x;
    const void *B;
    hola_dtype dtype;
    int64_t K, step;
    real *C;
    bool add;
};
#ifdef HL_ISA
void HL_OP(one_row)(const struct hl_one_row *r);
void HL_OP(tile)(const struct hl_tile *t);
/* Transposes: dst[k*ds + r] = src[r*ss + k], r < rows <= width, k < n <= HL_KC; zero for rows <= r < width. Writes
 * whole groups of 4 r. */
void HL_OP(pack_transpose)(real *dst, int64_t ds, const real *src, int64_t ss, int64_t rows, int64_t width, int64_t n);
/* Columns [0, cols) of n rows, `width` at a time: group g at dst + g*n*ds holds dst[k*ds + c] =
 * src[k*ss + g*width + c], zero past the end. */
void HL_OP(pack_copy)(real *dst, int64_t ds, const real *src, int64_t ss, int64_t cols, int64_t width, int64_t n);
/* Rows of x as strips, all of K: strip i at dst + i * HL_AS * K. */
void HL_OP(linear_strips)(real *dst, const real *x, int64_t M, int64_t K);
void HL_OP(linear_block)(const struct hl_linear_block *b, real *scratch); /* hl_linear_scratch() bytes */
/* n numbers of a dtype, a multiple of HL_PANEL, as `real` */
void HL_OP(convert)(real *dst, const void *src, hola_dtype dtype, int64_t n);
#endif

#endif
