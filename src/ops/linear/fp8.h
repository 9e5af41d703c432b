/* fp8.h -- matrix products of training in FP8: how a matrix becomes codes and scales, and which products take them.
 *
 * x = code * scale with scales that are powers of two (core/fp8.h), of the numbers as they are (current scaling).
 * Activations and gradients have one scale for 128 numbers along the direction that is summed over: along the rows in
 * x W^T and in dout W, along the columns in dout^T x, so that there are two forms of dout, and of x. Weights have one for
 * a block of 128 x 128, so that the transposed form has the same codes and scales.
 * A product multiplies codes, sums over 128 of them, and adds these sums times both scales. Its operands are E4M3, the
 * gradients HL_FP8_GRADIENTS; its result is what it would be without FP8. The tensor cores of Hopper take both operands
 * with the summed dimension innermost: hence the transposed forms.
 *
 * Which products: those of a weight with W.fp8, where hl_fp8_fits. A linear op takes them by itself; the backend's
 * fp8->open (backend/backend.h) turns it on. On the CPU it is a simulation: operands are quantised, turned back into
 * floats, and multiplied as ever (backend/fp8_host.c). */
#ifndef HL_LINEAR_FP8_H
#define HL_LINEAR_FP8_H
#include "core/fp8.h"
#include "core/rows.h"

enum { HL_FP8_BLOCK = 128, HL_FP8_ALIGN = 16 };
#define HL_FP8_GRADIENTS HL_E4M3 /* HL_E5M2 works, too: products take one operand of each */

/* Whether an x of M rows times a W [N][K] can be in FP8, forward and backward: rows of codes begin on 16 bytes. */
static inline bool hl_fp8_fits(int64_t M, int64_t N, int64_t K) {
    return M > 0 && M % HL_FP8_ALIGN == 0 && N % HL_FP8_ALIGN == 0 && K % HL_FP8_ALIGN == 0;
}

/* Op fp8_quantise: both forms of a matrix, or one. A block of numbers has the same scale wherever it is in the matrix,
 * so nothing depends on how rows are cut into calls at multiples of 128.
 * The tables of scales, as cuBLASLt reads them:
 *   codes [rows][cols]    scale [cols/128][rows]     blocks: [rows/128][cols/128], rows of a multiple of 4
 *   codes_t [cols][rows]  scale_t [rows/128][cols]   blocks: [cols/128][rows/128], likewise
 * (quotients rounded up; what fills up a row of blocks is 1). */
struct hl_fp8_quantise {
    int64_t rows, cols; /* multiples of HL_FP8_ALIGN */
    int64_t ld;         /* row stride of x */
    const void *x;      /* activations; on 16 bytes */
    enum hl_fp8 format;
    bool blocks; /* weights */
    uint8_t *codes, *codes_t;
    float *scale, *scale_t; /* NULL where the codes are */
};

/* numbers in a table of scales of a form with `rows` rows */
static inline int64_t hl_fp8_blocks_row(int64_t cols) { return (hl_pieces(cols, HL_FP8_BLOCK) + 3) / 4 * 4; }
static inline int64_t hl_fp8_scales(bool blocks, int64_t rows, int64_t cols) {
    return blocks ? hl_pieces(rows, HL_FP8_BLOCK) * hl_fp8_blocks_row(cols) : rows * hl_pieces(cols, HL_FP8_BLOCK);
}
/* where the scale of number (i, j) of such a form is in its table */
static inline int64_t hl_fp8_scale_at(bool blocks, int64_t rows, int64_t cols, int64_t i, int64_t j) {
    return blocks ? i / HL_FP8_BLOCK * hl_fp8_blocks_row(cols) + j / HL_FP8_BLOCK : j / HL_FP8_BLOCK * rows + i;
}

/* What a run with FP8 needs to know of its largest calls. */
struct hl_fp8_sizes {
    int64_t tokens;           /* rows of x, at most */
    int64_t wide;             /* rows or columns of a weight */
    int64_t weight;           /* numbers of one */
    int64_t weights;          /* of all */
    int64_t taken, left_over; /* how many weights are in FP8; which would be, were their sizes multiples of 16 */
};

#endif
