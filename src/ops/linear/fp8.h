/* fp8.h -- FP8 matrix products in training: how a matrix is quantised, and which products use FP8.
 *
 * x = code * scale with power-of-two scales (core/fp8.h) computed from the current values (current scaling).
 * Activations and gradients have one scale per 128 numbers along the summed dimension: along rows in x W^T and dout W,
 * along columns in dout^T x, so dout and x each have two forms. Weights have one scale per 128 x 128 block, so the
 * transposed form has the same codes and scales.
 * A product sums code products over 128 numbers, and adds these sums times both scales. Its operands are E4M3, the
 * gradients HL_FP8_GRADIENTS; its result has the same type as without FP8. The tensor cores of Hopper need the summed
 * dimension innermost in both operands: hence the transposed forms.
 *
 * FP8 is used for weights whose precision is FP8 if hl_fp8_fits. A linear op decides this itself; the backend's fp8->open
 * (backend/backend.h) enables it. On the CPU it is simulated: operands are quantised, converted back to floats, and
 * multiplied as usual (backend/fp8_host.c). */
#ifndef HL_LINEAR_FP8_H
#define HL_LINEAR_FP8_H
#include "core/fp8.h"
#include "core/rows.h"

enum { HL_FP8_BLOCK = 128, HL_FP8_ALIGN = 16 };
#define HL_FP8_GRADIENTS HL_E4M3 /* HL_E5M2 works too: products accept one operand of each type */

/* Whether an x of M rows times a W [N][K] can be in FP8, forward and backward: rows of codes must be 16-byte
 * aligned. */
static inline bool hl_fp8_fits(int64_t M, int64_t N, int64_t K) {
    return M > 0 && M % HL_FP8_ALIGN == 0 && N % HL_FP8_ALIGN == 0 && K % HL_FP8_ALIGN == 0;
}

/* Op fp8_quantise: both forms of a matrix, or one. The scale of a block does not depend on its position, so results are
 * independent of how rows are split into calls at multiples of 128.
 * The tables of scales, as cuBLASLt reads them:
 *   codes [rows][cols]    scale [cols/128][rows]     blocks: [rows/128][cols/128], rows of a multiple of 4
 *   codes_t [cols][rows]  scale_t [rows/128][cols]   blocks: [cols/128][rows/128], likewise
 * (quotients rounded up; padding of a row of blocks is 1). */
struct hl_fp8_quantise {
    int64_t rows, cols; /* multiples of HL_FP8_ALIGN */
    int64_t ld;         /* row stride of x */
    const void *x;      /* activations; 16-byte aligned */
    enum hl_fp8 format;
    bool blocks; /* weights */
    uint8_t *codes, *codes_t;
    float *scale, *scale_t; /* NULL if the codes are NULL */
};

/* size of a scale table for a form with `rows` rows */
static inline int64_t hl_fp8_blocks_row(int64_t cols) { return (hl_pieces(cols, HL_FP8_BLOCK) + 3) / 4 * 4; }
static inline int64_t hl_fp8_scales(bool blocks, int64_t rows, int64_t cols) {
    return blocks ? hl_pieces(rows, HL_FP8_BLOCK) * hl_fp8_blocks_row(cols) : rows * hl_pieces(cols, HL_FP8_BLOCK);
}
/* index of number (i, j)'s scale in the table of such a form */
static inline int64_t hl_fp8_scale_at(bool blocks, int64_t rows, int64_t cols, int64_t i, int64_t j) {
    return blocks ? i / HL_FP8_BLOCK * hl_fp8_blocks_row(cols) + j / HL_FP8_BLOCK : j / HL_FP8_BLOCK * rows + i;
}

/* What a run with FP8 needs to know about its largest calls. */
struct hl_fp8_sizes {
    int64_t tokens;           /* most rows of x */
    int64_t wide;             /* most rows or columns of a weight */
    int64_t weight;           /* most elements of a weight */
    int64_t weights;          /* elements of all weights */
    int64_t taken, left_over; /* weights in FP8; weights that would be if their sizes were multiples of 16 */
};

#endif
