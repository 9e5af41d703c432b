/* quant_dot.h -- products with quantised panels (quant.h): integer dot products of 16-bit numbers.
 *
 * A row of x is quantised to 16-bit integers, one scale per group of the weight's columns: the group's largest
 * magnitude maps to HL_DOT_MOST, so the rounding error is about 2e-5 of it, far below that of the weights. A group's
 * dot product is then an integer sum, the same in any order; out accumulates (sum * scale of x) * scale of w group by
 * group. So a row has the same bits in every batch. */
#ifndef HL_QUANT_DOT_H
#define HL_QUANT_DOT_H
#include "ops/linear/quant.h"
#include "ops/linear/kernel.h"

/* Rows of a strip: as many as have sums that fit the registers, for a panel's width. */
#if defined(__AVX512F__)
enum { HL_DOT_ROWS = 12 };
#elif defined(__AVX2__) || defined(HL_NEON)
enum { HL_DOT_ROWS = 3 };
#else
enum { HL_DOT_ROWS = 2 };
#endif

#ifdef HL_NEON
enum { HL_DOT_MOST = 127 * 256 + 127 }; /* the largest number made of two signed bytes: quant_dot_neon.h */
#else
enum { HL_DOT_MOST = 32767 };
#endif

struct hl_dot {
    hola_dtype dtype;
    const void *B;      /* a panel, from the start of a group */
    int64_t K;          /* columns from there on */
    const int16_t *x;   /* row i at x + i * xs, rounded up to HL_CODE_STEP with 0 */
    const real *scale;  /* row i's of group g at [i * gs + g] */
    const int32_t *sum; /* sum of the row's numbers in the group: INT4 is stored as code + 8 */
    int64_t xs, gs;
    real *C;
    int64_t ldc;
    int mr, n; /* rows <= HL_DOT_ROWS, columns <= HL_PANEL */
    bool add;  /* C += instead of = */
};

/* C[m][n] (= or +=) x B over K columns, for columns n0, n0 + n of a matrix of panels; n0 a multiple of HL_PANEL. */
struct hl_dot_block {
    hola_dtype dtype;
    const void *panels;
    const real *x;
    int64_t xs;        /* from a row of x to the next */
    const void *strip; /* these rows packed by dot_strip; NULL: each block quantises x itself */
    int64_t K, n0, n, m;
    real *C; /* row 0, column n0 */
    int64_t ldc;
    bool add;
};
#ifdef HL_ISA
void HL_OP(dot)(const struct hl_dot *d);
void HL_OP(dot_block)(const struct hl_dot_block *b, void *scratch, int64_t bytes);
/* Quantises rows of x once for all blocks of a few rows (m <= HL_DOT_ROWS): with one row, quantising in every block
 * took up to a third as long as the block's products. false: `bytes` of 64-byte aligned space are too few. */
bool HL_OP(dot_strip)(void *strip, int64_t bytes, hola_dtype dtype, const real *x, int64_t xs, int64_t m, int64_t K);
#endif
/* the same with AVX512-VNNI or ARM's dot-product instructions, if the processor has them */
void hl_avx512vnni_dot(const struct hl_dot *d);
void hl_dotprod_dot(const struct hl_dot *d);

#endif
