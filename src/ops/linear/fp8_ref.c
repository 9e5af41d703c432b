/* fp8_ref.c -- quantises a matrix to FP8 codes and scales (fp8.h), block by block; row blocks run on the pool. */
#include "ops/ops.h"

static uint32_t magnitude(real x) { return hl_fp8_bits((float)x) & 0x7fffffffu; }

/* One block of at most 128 x 128: the scales of its rows, of its columns, and of all of it. */
struct block {
    int64_t i0, i1, j0, j1;
    float row[HL_FP8_BLOCK], col[HL_FP8_BLOCK];
};
static void find_scales(const struct hl_fp8_quantise *a, struct block *b) {
    uint32_t row[HL_FP8_BLOCK] = {0}, col[HL_FP8_BLOCK] = {0}, all = 0;
    const real *x = a->x;
    for (int64_t i = b->i0; i < b->i1; i++)
        for (int64_t j = b->j0; j < b->j1; j++) {
            const uint32_t m = magnitude(x[i * a->ld + j]);
            if (m > row[i - b->i0]) row[i - b->i0] = m;
            if (m > col[j - b->j0]) col[j - b->j0] = m;
            if (m > all) all = m;
        }
    for (int k = 0; k < HL_FP8_BLOCK; k++) {
        b->row[k] = hl_fp8_scale(a->blocks ? all : row[k], a->format);
        b->col[k] = hl_fp8_scale(a->blocks ? all : col[k], a->format);
    }
}

static void put_form(const struct hl_fp8_quantise *a, const struct block *b, bool transposed) {
    const int64_t rows = transposed ? a->cols : a->rows, cols = transposed ? a->rows : a->cols;
    uint8_t *codes = transposed ? a->codes_t : a->codes;
    float *table = transposed ? a->scale_t : a->scale;
    const real *x = a->x;
    if (!codes) return;
    for (int64_t i = b->i0; i < b->i1; i++)
        for (int64_t j = b->j0; j < b->j1; j++) {
            const float scale = transposed ? b->col[j - b->j0] : b->row[i - b->i0];
            const int64_t r = transposed ? j : i, c = transposed ? i : j;
            codes[r * cols + c] = hl_to_fp8((float)x[i * a->ld + j] * hl_fp8_inverse(scale), a->format);
            table[hl_fp8_scale_at(a->blocks, rows, cols, r, c)] = scale;
        }
}

static void row_of_blocks(void *ctx, int64_t i, int worker) {
    const struct hl_fp8_quantise *a = ctx;
    struct block b = {.i0 = i * HL_FP8_BLOCK};
    (void)worker;
    b.i1 = b.i0 + HL_FP8_BLOCK < a->rows ? b.i0 + HL_FP8_BLOCK : a->rows;
    for (b.j0 = 0; b.j0 < a->cols; b.j0 += HL_FP8_BLOCK) {
        b.j1 = b.j0 + HL_FP8_BLOCK < a->cols ? b.j0 + HL_FP8_BLOCK : a->cols;
        find_scales(a, &b);
        put_form(a, &b, false);
        put_form(a, &b, true);
    }
}

void HL_OP(fp8_quantise)(struct hl_backend *backend, const struct hl_fp8_quantise *a) {
    for (int64_t i = 0; a->blocks && a->codes && i < hl_fp8_scales(true, a->rows, a->cols); i++) a->scale[i] = 1;
    for (int64_t i = 0; a->blocks && a->codes_t && i < hl_fp8_scales(true, a->cols, a->rows); i++) a->scale_t[i] = 1;
    hl_pool_run(hl_backend_pool(backend), hl_pieces(a->rows, HL_FP8_BLOCK), row_of_blocks, (void *)(uintptr_t)a);
}
