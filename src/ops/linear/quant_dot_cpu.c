/* quant_dot_cpu.c -- one strip of rows times one quantised panel. Also compiled as avx512vnni and as dotprod
 * (Makefile). */
#include "ops/linear/quant_dot.h"
#include "ops/linear/convert.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, no_sanitize("undefined")))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef int32_t vq __attribute__((vector_size(4 * VL)));
typedef int32_t vq_mem __attribute__((vector_size(4 * VL), aligned(2), may_alias));
typedef int16_t vw __attribute__((vector_size(4 * VL)));
typedef int8_t vb_mem __attribute__((vector_size(2 * VL), aligned(1), may_alias));
enum { NV = HL_PANEL / VL };
/* Prefetch distance in bytes: further than the hardware prefetcher. */
enum { AHEAD = 2048 };

#ifdef HL_NEON
#include "ops/linear/quant_dot_neon.h"
#else
/* acc + the products of both halves of each lane */
INLINE vq dot2(vq acc, vq a, vq b) {
#if defined(__AVX512VNNI__)
    return (vq)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512F__)
    return acc + (vq)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return acc + (vq)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return acc + (vq)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

INLINE vq widen_bytes(const uint8_t *p) {
#if defined(__AVX512F__)
    return (vq)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vq)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
#else
    return (vq) __builtin_convertvector(*(const vb_mem *)p, vw);
#endif
}

/* two adjacent numbers of a row, in every lane */
INLINE vq spread2(const int16_t *x) {
    int32_t two;
    memcpy(&two, x, 4);
    return two - (vq){0};
}

/* HL_CODE_STEP columns of a panel; p: index of the column pair */
INLINE vq pair(hola_dtype dtype, const uint8_t *w, int v, int p) {
    if (dtype == HOLA_INT8) return widen_bytes(w + (p * HL_PANEL + v * VL) * 2);
    typedef uint16_t vh __attribute__((vector_size(4 * VL)));
    const vh four = (vh) * (const vq_mem *)(w + v * VL * 4);
    return (vq)(p == 3 ? four >> 12 : four >> 4 * p & 15);
}

/* A single row has too few sums to keep the multipliers busy: it uses two sets. */
INLINE void sum_group(int mr, hola_dtype dtype, const struct hl_dot *d, const uint8_t *w, int64_t k, int64_t n,
                      vq acc[HL_DOT_ROWS][NV]) {
    vq more[NV] = {{0}};
    for (int64_t end = k + n; k < end; k += HL_CODE_STEP) {
        const int64_t bytes = HL_PANEL * HL_CODE_STEP / (dtype == HOLA_INT8 ? 1 : 2);
        if (mr <= 2)
            for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(w + AHEAD + line);
        UNROLL
        for (int p = 0; p < HL_CODE_STEP / 2; p++) {
            UNROLL
            for (int v = 0; v < NV; v++) {
                const vq b = pair(dtype, w, v, p);
                UNROLL
                for (int i = 0; i < mr; i++) {
                    vq *to = mr == 1 && p % 2 ? &more[v] : &acc[i][v];
                    *to = dot2(*to, b, spread2(d->x + i * d->xs + k + 2 * p));
                }
            }
        }
        w += bytes;
    }
    UNROLL
    for (int v = 0; v < NV; v++) acc[0][v] += more[v];
}
#endif

INLINE void rows(int mr, hola_dtype dtype, const struct hl_dot *d) {
    const int64_t G = hl_group_size(dtype);
    const uint8_t *w = d->B;
    vr out[HL_DOT_ROWS][NV];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int v = 0; v < NV; v++) out[i][v] = d->add ? v_load(d->C + i * d->ldc + v * VL) : (vr){0};
    }
    for (int64_t g = 0, k = 0; k < d->K; g++, k += G) {
        const int64_t n = d->K - k < G ? d->K - k : G;
        vq acc[HL_DOT_ROWS][NV];
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int v = 0; v < NV; v++) acc[i][v] = (dtype == HOLA_INT4 ? -8 * d->sum[i * d->gs + g] : 0) - (vq){0};
        }
        sum_group(mr, dtype, d, w + HL_PANEL * 2, k, n, acc);
        UNROLL
        for (int v = 0; v < NV; v++) {
            const vr scale = v_load_bf16((const uint16_t *)w + v * VL);
            UNROLL
            for (int i = 0; i < mr; i++)
                out[i][v] += __builtin_convertvector(acc[i][v], vr) * v_set(d->scale[i * d->gs + g]) * scale;
        }
        w += hl_quant_block(dtype, n);
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int v = 0; v < NV; v++) v_store(d->C + i * d->ldc + v * VL, out[i][v]);
    }
}

#define KERNEL(m)                                                           \
    static void int8_##m(const struct hl_dot *d) { rows(m, HOLA_INT8, d); } \
    static void int4_##m(const struct hl_dot *d) { rows(m, HOLA_INT4, d); }
KERNEL(1)
KERNEL(2)
#if defined(__AVX2__) || defined(HL_NEON)
KERNEL(3)
#endif
#if defined(__AVX512F__)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
KERNEL(12)
#define HEIGHTS(r) r##1, r##2, r##3, r##4, r##5, r##6, r##7, r##8, r##9, r##10, r##11, r##12
#elif defined(__AVX2__) || defined(HL_NEON)
#define HEIGHTS(r) r##1, r##2, r##3
#else
#define HEIGHTS(r) r##1, r##2
#endif

static void run(const struct hl_dot *d) {
    static void (*const kernel[2][HL_DOT_ROWS])(const struct hl_dot *) = {{HEIGHTS(int8_)}, {HEIGHTS(int4_)}};
    kernel[d->dtype == HOLA_INT4][d->mr - 1](d);
}

/* A tile cut off on the right runs the same instructions on a buffer outside the matrix. */
static void cut(const struct hl_dot *d) {
    real C[HL_DOT_ROWS * HL_PANEL] = {0};
    struct hl_dot e = *d;
    const size_t bytes = (size_t)d->n * sizeof(real);
    e.C = C;
    e.ldc = HL_PANEL;
    for (int i = 0; d->add && i < d->mr; i++) memcpy(C + i * HL_PANEL, d->C + i * d->ldc, bytes);
    run(&e);
    for (int i = 0; i < d->mr; i++) memcpy(d->C + i * d->ldc, C + i * HL_PANEL, bytes);
}

void HL_OP(dot)(const struct hl_dot *d) {
    if (d->n == HL_PANEL) run(d);
    else cut(d);
}
