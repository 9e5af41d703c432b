/* bf16_dot_cpu.c -- the register tile of BF16 products, and rounding to BF16 (bf16.h). Also compiled as avx512bf16
 * (Makefile). */
#include "ops/linear/bf16.h"
#ifndef HL_DOUBLE /* products in double are exact */
#include "ops/linear/convert.h"
#include "ops/linear/tile.h"

typedef vu vu_mem __attribute__((aligned(4), may_alias));

/* ---- rounding ---- */

/* In the upper half of each lane; the lower one is 0. */
INLINE vu round_up_half(vr x) {
    const vu u = (vu)x, size = u & 0x7fffffffu;
    const vu nan = (vu)(size > 0x7f800000u), tiny = (vu)(size < 0x00800000u);
    const vu near = u + 0x7fffu + (u >> 16 & 1u);
    return ((near & ~nan & ~tiny) | ((u | 0x00400000u) & nan) | (u & 0x80000000u & tiny)) & 0xffff0000u;
}

/* n <= VL numbers at p; the rest is 0 */
INLINE vr load_some(const void *p, hola_dtype dtype, int64_t n) {
    char some[VL * 4] = {0};
    if (n < VL) memcpy(some, p, (size_t)(n > 0 ? n : 0) * (dtype == HOLA_F32 ? 4 : 2)), p = some;
    if (dtype == HOLA_BF16) return v_load_bf16(p);
    if (dtype == HOLA_F16) return v_load_f16(p);
    return v_load(p);
}

#ifdef __AVX512BF16__
INLINE vu words(vr first, vr second) {
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vu)_mm512_permutexvar_epi16(_mm512_loadu_si512(order),
                                        (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}
#else
INLINE vu words(vr first, vr second) { return round_up_half(first) >> 16 | round_up_half(second); }
#endif

static void narrow(uint16_t *to, const real *from, int64_t n) {
    int64_t i = 0;
#ifdef __AVX512BF16__
    for (; i + 2 * VL <= n; i += 2 * VL)
        _mm512_storeu_si512(to + i,
                            (__m512i)_mm512_cvtne2ps_pbh((__m512)v_load(from + i + VL), (__m512)v_load(from + i)));
#endif
    for (; i < n; i += VL) {
        typedef uint16_t vh __attribute__((vector_size(2 * VL)));
        const vh half = __builtin_convertvector(round_up_half(load_some(from + i, HOLA_F32, n - i)) >> 16, vh);
        memcpy(to + i, &half, (size_t)(n - i < VL ? n - i : VL) * sizeof *to);
    }
}

INLINE void pair_rows(uint32_t *to, const void *first, const void *second, hola_dtype dtype, int64_t cols,
                      int64_t width) {
    const int64_t size = dtype == HOLA_F32 ? 4 : 2;
    for (int64_t c = 0; c < width; c += VL) {
        const vr a = load_some((const char *)first + c * size, dtype, cols - c);
        *(vu_mem *)(to + c) = words(a, second ? load_some((const char *)second + c * size, dtype, cols - c) : (vr){0});
    }
}
static void pair(uint32_t *to, int64_t ts, const void *from, hola_dtype dtype, int64_t fs, int64_t cols, int64_t width,
                 int64_t n) {
    const int64_t step = fs * (dtype == HOLA_F32 ? 4 : 2);
    const char *p = from;
    for (int64_t k = 0; k < n; k += 2, to += ts, p += 2 * step) {
        const char *next = k + 1 < n ? p + step : NULL;
        if (dtype == HOLA_BF16) pair_rows(to, p, next, HOLA_BF16, cols, width);
        else if (dtype == HOLA_F16) pair_rows(to, p, next, HOLA_F16, cols, width);
        else pair_rows(to, p, next, HOLA_F32, cols, width);
    }
}

/* ---- the tile ---- */

INLINE vr dot2(vr acc, vu a, vu b) {
#ifdef __AVX512BF16__
    return (vr)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    acc += (vr)(a & 0xffff0000u) * (vr)(b & 0xffff0000u);
    acc += (vr)(a << 16) * (vr)(b << 16);
    return acc;
#endif
}

/* Words of columns [c, c + VL) of pair k. stored: of a panel of BF16 numbers. last: its first row has no second. */
INLINE vu words_of(const struct hl_tile *t, bool stored, bool last, int64_t k, int64_t c) {
    if (!stored) return *(const vu_mem *)((const uint32_t *)t->B + k * HL_PANEL + c);
    const uint16_t *B = (const uint16_t *)t->B + 2 * k * HL_PANEL + c;
    const vu first = (vu)v_load_bf16(B) >> 16;
    return last ? first : first | (vu)v_load_bf16(B + HL_PANEL);
}

INLINE void step(int mr, int nv, bool stored, bool last, vr acc[HL_MR][FULL], const struct hl_tile *t, int64_t k,
                 int64_t c) {
    const uint32_t *A = (const uint32_t *)t->A + k * t->as;
    vu b[FULL];
    if (mr == 1 && stored) {
        UNROLL
        for (int line = 0; line < 2; line++)
            __builtin_prefetch((const char *)t->B + (2 * k + line) * HL_PANEL * 2 + AHEAD);
    }
    UNROLL
    for (int j = 0; j < nv; j++) b[j] = words_of(t, stored, last, k, c + j * VL);
    UNROLL
    for (int i = 0; i < mr; i++) {
        const vu a = A[i] - (vu){0};
        UNROLL
        for (int j = 0; j < nv; j++) acc[i][j] = dot2(acc[i][j], a, b[j]);
    }
}

INLINE void rows(int mr, bool stored, const struct hl_tile *t) {
    const int nv = mr <= ROWS_FULL ? FULL : PART;
    const int64_t pairs = stored ? t->kc / 2 : hl_pieces(t->kc, 2);
    fetch_sums(mr, t);
    for (int c = 0; c < t->n; c += nv * VL) {
        vr acc[HL_MR][FULL];
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int j = 0; j < nv; j++) acc[i][j] = (vr){0};
        }
        for (int64_t k = 0; k < pairs; k++) step(mr, nv, stored, false, acc, t, k, c);
        if (stored && t->kc % 2) step(mr, nv, true, true, acc, t, pairs, c);
        put(mr, nv, t, c, acc);
    }
}

#define KERNEL(m)                                                        \
    static void rows_##m(const struct hl_tile *t) { rows(m, false, t); } \
    static void rows_stored_##m(const struct hl_tile *t) { rows(m, true, t); }
KERNELS(KERNEL)

static void run(const struct hl_tile *t) {
    static void (*const kernel[2][HL_MR])(const struct hl_tile *) = {{HEIGHTS(rows_)}, {HEIGHTS(rows_stored_)}};
    kernel[t->dtype == HOLA_BF16][t->mr - 1](t);
}
static void tile(const struct hl_tile *t) { run_or_cut(t, run); }

const struct hl_bf16_dot HL_OP(bf16_dot) = {.tile = tile, .narrow = narrow, .pair = pair};
#endif
