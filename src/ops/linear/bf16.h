/* bf16.h -- products with BF16 operands and float sums, for weights whose precision is HOLA_PRECISION_BF16.
 *
 * Both operands are rounded to BF16, to the nearest, ties to even; infinities stay, NaN stays NaN, and what is
 * subnormal as a float counts as 0, as in the processors' instructions. The product of two such numbers is exact in a
 * float. Numbers of K go in pairs, and the second of a pair is added first:
 *     c = c + a[k + 1] b[k + 1];  c = c + a[k] b[k]
 * with one rounding each, which is what VDPBF16PS computes. So a product has the same bits with and without that
 * instruction and for any vector width, up to sums below 2^-126, which the instruction takes as 0, and stored weights
 * that are subnormal, which a few rows without the instruction multiply as they are. Pieces of HL_BF16_KC are added to
 * C in order, as in kernel.h: neither threads nor other rows change a bit.
 *
 * A pair is one 32-bit word, the first number in its low half; an odd last number is paired with 0. A strip of A is
 * [pairs][HL_AS] words, a panel of B [pairs][HL_PANEL] words. */
#ifndef HL_BF16_H
#define HL_BF16_H
#include "ops/linear/kernel.h"

/* numbers in a piece: as many bytes as HL_KC floats */
enum { HL_BF16_KC = 2 * HL_KC };

/* Columns [n0, n0 + n) of m rows; operands as in linear_cpu.c. n0 a multiple of HL_PANEL, n at most HL_BLOCK. */
struct hl_bf16_block {
    const real *A; /* A(i, k) = A[i*ai + k*ak], one of them 1 */
    int64_t ai, ak;
    const void *B;
    enum hl_bf16_form_of_B {
        HL_BF16_ROWS,
        HL_BF16_COLUMNS,
        HL_BF16_PANELS
    } form;           /* B(k, n) = B[n*bs + k], B[k*bs + n] */
    hola_dtype dtype; /* of panels */
    int64_t bs, K, n0, n, m;
    real *C; /* row 0, column n0 */
    int64_t ldc;
    bool add;
};

/* What differs with the instruction. */
struct hl_bf16_dot {
    /* A: words; B: words, or if dtype is HOLA_BF16 a stored panel. kc: numbers */
    void (*tile)(const struct hl_tile *t);
    /* n numbers as n BF16 numbers */
    void (*narrow)(uint16_t *to, const real *from, int64_t n);
    /* Words of rows k and k + 1: to[k/2*ts + c] for c < width, a multiple of 16, of n rows of `dtype` from[k*fs + c]; 0
     * where c >= cols */
    void (*pair)(uint32_t *to, int64_t ts, const void *from, hola_dtype dtype, int64_t fs, int64_t cols, int64_t width,
                 int64_t n);
};
#ifdef HL_ISA
extern const struct hl_bf16_dot HL_OP(bf16_dot);
void HL_OP(bf16_block)(const struct hl_bf16_block *b, real *scratch); /* hl_linear_scratch() bytes */
#endif
/* the same with AVX512-BF16, if the processor has it */
extern const struct hl_bf16_dot hl_avx512bf16_bf16_dot;

#endif
