/* quant_dot_cpu.c -- one strip of rows times one quantised panel. Also compiled as avx512vnni and as dotprod
 * (Makefile). */
#include "ops/linear/quant_dot.h"
#include "ops/linear/convert.h"
#include "ops/linear/unroll.h"
#if defined(__SSE2__)
#include <immintrin.h>
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

#if defined(__AVX512VNNI__)
/* One row of INT4, where taking codes out of their words costs more than the products: byte by byte. x = 256 hi + lo,
 * hi signed and lo not, and the order of a word's codes is given to x instead: the low half bytes of a word are columns
 * 0, 4, 1, 5 and the high ones 2, 6, 3, 7. The sums are the same integers. */
INLINE void sum_row_int4(const struct hl_dot *d, const uint8_t *w, int64_t k, int64_t n, vq acc[NV]) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15));
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i lo[2][NV], hi[2][NV];                  /* sums of the low and high half bytes */
    int32_t x[HL_GROUP_INT4 / HL_CODE_STEP][2][2]; /* [half][lo, hi] */
    _Static_assert(HL_GROUP_INT4 * 2 % 64 == 0 && HL_GROUP_MAX * 2 % 64 == 0, "rows of x have room for whole vectors");
    for (int64_t i = 0; i < n; i += 32)
        _mm512_storeu_si512((char *)x + 2 * i, _mm512_shuffle_epi8(_mm512_loadu_si512(d->x + k + i), order));
    UNROLL
    for (int v = 0; v < NV; v++) {
        lo[0][v] = (__m512i)acc[v];
        lo[1][v] = hi[0][v] = hi[1][v] = _mm512_setzero_si512();
    }
    for (int64_t i = 0; i < n / HL_CODE_STEP + (n % HL_CODE_STEP != 0); i++, w += HL_PANEL * 4) {
        UNROLL
        for (int line = 0; line < HL_PANEL * 4; line += 64) __builtin_prefetch(w + AHEAD + line);
        UNROLL
        for (int half = 0; half < 2; half++) {
            const __m512i xlo = _mm512_set1_epi32(x[i][half][0]), xhi = _mm512_set1_epi32(x[i][half][1]);
            UNROLL
            for (int v = 0; v < NV; v++) {
                const __m512i word = _mm512_loadu_si512(w + v * VL * 4);
                const __m512i code = _mm512_and_si512(half ? _mm512_srli_epi16(word, 4) : word, mask);
                lo[half][v] = _mm512_dpbusd_epi32(lo[half][v], xlo, code);
                hi[half][v] = _mm512_dpbusd_epi32(hi[half][v], code, xhi);
            }
        }
    }
    UNROLL
    for (int v = 0; v < NV; v++)
        acc[v] = (vq)_mm512_add_epi32(_mm512_add_epi32(lo[0][v], lo[1][v]),
                                      _mm512_slli_epi32(_mm512_add_epi32(hi[0][v], hi[1][v]), 8));
}
#endif

/* A single row has too few sums to keep the multipliers busy: it uses two sets. */
INLINE void sum_group(int mr, hola_dtype dtype, const struct hl_dot *d, const uint8_t *w, int64_t k, int64_t n,
                      vq acc[HL_DOT_ROWS][NV]) {
#if defined(__AVX512VNNI__)
    if (mr == 1 && dtype == HOLA_INT4) {
        sum_row_int4(d, w, k, n, acc[0]);
        return;
    }
#endif
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
