/* pack_cpu.c -- packs operands in the order in which the tile reads them: copies, 4 x 4 block transposes, conversions
 * from bf16 and f16. */
#include "ops/linear/kernel.h"
#include "ops/linear/convert.h"

typedef real v4 __attribute__((vector_size(4 * sizeof(real))));
typedef real v4_mem __attribute__((vector_size(4 * sizeof(real)), aligned(4), may_alias));

static inline v4 load4(const real *p) { return *(const v4_mem *)p; }
static inline void store4(real *p, v4 x) { *(v4_mem *)p = x; }

/* dst[k*ds + i] = src[i][k], i < 4, k < 4 */
static inline void transpose4(real *dst, int64_t ds, const real *const src[4], int64_t k) {
    v4 a = load4(src[0] + k), b = load4(src[1] + k), c = load4(src[2] + k), d = load4(src[3] + k);
    v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), AB = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    dst += k * ds;
    store4(dst, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
    store4(dst + ds, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
    store4(dst + 2 * ds, __builtin_shufflevector(AB, CD, 0, 1, 4, 5));
    store4(dst + 3 * ds, __builtin_shufflevector(AB, CD, 2, 3, 6, 7));
}

void HL_OP(pack_transpose)(real *dst, int64_t ds, const real *src, int64_t ss, int64_t rows, int64_t width, int64_t n) {
    static const real zeros[HL_KC];
    for (int64_t r = 0; r < width; r += 4, dst += 4, src += 4 * ss) {
        const real *row[4];
        int64_t k = 0;
        for (int64_t i = 0; i < 4; i++) row[i] = r + i < rows ? src + i * ss : zeros;
        for (; k + 16 <= n; k += 16) {
            /* the next four rows, too far apart for the hardware prefetcher */
            for (int64_t i = 4; i < 8; i++) __builtin_prefetch(src + i * ss + k);
            for (int64_t i = 0; i < 16; i += 4) transpose4(dst, ds, row, k + i);
        }
        for (; k + 4 <= n; k += 4) transpose4(dst, ds, row, k);
        for (; k < n; k++)
            for (int64_t i = 0; i < 4; i++) dst[k * ds + i] = row[i][k];
    }
}

static inline void copy_rows(real *dst, int64_t ds, const real *src, int64_t ss, int64_t have, int64_t n) {
    for (int64_t k = 0; k < n; k++, dst += ds, src += ss) {
        int64_t r = 0;
        for (; r + VL <= have; r += VL) v_store(dst + r, v_load(src + r));
        for (; r + 4 <= have; r += 4) store4(dst + r, load4(src + r));
        for (; r < have; r++) dst[r] = src[r];
    }
}

void HL_OP(pack_copy)(real *dst, int64_t ds, const real *src, int64_t ss, int64_t cols, int64_t width, int64_t n) {
    enum { ROWS = 8 }; /* rows at a time, over all groups: reads and writes are nearly sequential */
    for (int64_t k = 0; k < n; k += ROWS)
        for (int64_t c = 0; c < cols; c += width) {
            real *to = dst + (c / width * n + k) * ds;
            const real *from = src + k * ss + c;
            int64_t have = cols - c, rows = n - k < ROWS ? n - k : ROWS;
            if (have >= width) { /* constants for the usual widths */
                if (width == HL_PANEL) copy_rows(to, ds, from, ss, HL_PANEL, rows);
                else if (width == HL_MR) copy_rows(to, ds, from, ss, HL_MR, rows);
                else copy_rows(to, ds, from, ss, width, rows);
                continue;
            }
            copy_rows(to, ds, from, ss, have, rows);
            for (int64_t i = 0; i < rows; i++) memset(to + i * ds + have, 0, (size_t)(width - have) * sizeof(real));
        }
}

void HL_OP(convert)(real *dst, const void *src, hola_dtype dtype, int64_t n) {
    for (int64_t i = 0; i < n; i += VL)
        if (dtype == HOLA_BF16) v_store(dst + i, v_load_bf16((const uint16_t *)src + i));
        else if (dtype == HOLA_F16) v_store(dst + i, v_load_f16((const uint16_t *)src + i));
        else v_store(dst + i, v_load_f32((const float *)src + i));
}
