/* simd.h -- vectors of `real` for the fast CPU ops, in GCC/Clang vector extensions.
 *
 * Every fast source (*_cpu.c) is compiled once per instruction set (see HL_OP in ops.h) and, for the
 * tests, once in double. The width changes the grouping of sums, so results differ in the last bits between
 * instruction sets, but never with the number of threads or with where a row stands in a batch:
 * tails go through the same vector code (v_load_n, v_store_n). */
#ifndef HL_SIMD_H
#define HL_SIMD_H
#include "core/real.h"
#include <string.h>
#if defined(__x86_64__) && !defined(HL_DOUBLE)
#include <immintrin.h>
#endif
#ifdef HL_NEON /* 64-bit ARM, all of which has these vectors (Makefile) */
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define HL_VBYTES 64
#elif defined(__AVX2__) || defined(HL_DOUBLE)
#define HL_VBYTES 32
#else
#define HL_VBYTES 16
#endif

typedef real vr __attribute__((vector_size(HL_VBYTES)));
typedef real vr_mem __attribute__((vector_size(HL_VBYTES), aligned(4), may_alias));
#ifdef HL_DOUBLE
typedef int64_t vi __attribute__((vector_size(HL_VBYTES)));
#else
typedef int32_t vi __attribute__((vector_size(HL_VBYTES)));
#endif
enum { VL = (int)(HL_VBYTES / sizeof(real)) };

static inline vr v_load(const real *p) { return *(const vr_mem *)p; }
static inline void v_store(real *p, vr x) { *(vr_mem *)p = x; }
static inline vr v_set(real x) { return x - (vr){0}; } /* not 0 + x: that would turn -0 into 0 */

/* The first n < VL lanes; the others read as 0 and are not written. */
static inline vr v_load_n(const real *p, int64_t n) {
    real t[VL] = {0};
    memcpy(t, p, (size_t)n * sizeof(real));
    return v_load(t);
}
static inline void v_store_n(real *p, vr x, int64_t n) {
    real t[VL];
    v_store(t, x);
    memcpy(p, t, (size_t)n * sizeof(real));
}

/* lane-wise mask ? a : b, where mask is the result of a vector comparison */
static inline vr v_select(vi mask, vr a, vr b) {
#ifdef HL_NEON
    return (vr)vbslq_f32((uint32x4_t)mask, a, b);
#else
    return (vr)(((vi)a & mask) | ((vi)b & ~mask));
#endif
}

/* Compilers do not recognise minimum, maximum and sums of lanes in plain vector code, and exp and the
 * norms live on them; so x86 and ARM get them by name. The results are the same: NaN in either operand
 * gives b, and sums are always taken in the same pairwise order. */
#if defined(__x86_64__) && !defined(HL_DOUBLE)
#if HL_VBYTES == 64
#define V_MM(op) _mm512_##op
#elif HL_VBYTES == 32
#define V_MM(op) _mm256_##op
#else
#define V_MM(op) _mm_##op
#endif
static inline vr v_max(vr a, vr b) { return (vr)V_MM(max_ps)(a, b); }
static inline vr v_min(vr a, vr b) { return (vr)V_MM(min_ps)(a, b); }
#if HL_VBYTES == 64
#define V_HALF(op, x) _mm256_##op##_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1))
#else
#define V_HALF(op, x) (x)
#endif
#if HL_VBYTES >= 32
#define V_QUARTER(op, x) _mm_##op##_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1))
#else
#define V_QUARTER(op, x) (x)
#endif
/* All lanes to one number, the upper half onto the lower each time. */
#define V_FOLD(name, op)                                                                 \
    static inline real name(vr x) {                                                      \
        const __auto_type half = V_HALF(op, x);                                          \
        const __m128 q = V_QUARTER(op, half), p = _mm_##op##_ps(q, _mm_movehl_ps(q, q)); \
        return _mm_cvtss_f32(_mm_##op##_ss(p, _mm_shuffle_ps(p, p, 1)));                 \
    }
V_FOLD(v_sum, add)
V_FOLD(v_hmax, max)
#undef V_FOLD
#undef V_QUARTER
#undef V_HALF
#undef V_MM
#elif defined(HL_NEON)
/* not vmaxq_f32, which gives NaN where either operand is one */
static inline vr v_max(vr a, vr b) { return (vr)vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vr v_min(vr a, vr b) { return (vr)vbslq_f32(vcltq_f32(a, b), a, b); }
static inline real v_sum(vr x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }
static inline real v_hmax(vr x) {
    const vr y = v_max(x, (vr)vextq_f32(x, x, 2));
    return v_max(y, (vr)vrev64q_f32(y))[0];
}
#else
static inline vr v_max(vr a, vr b) { return v_select((vi)(a > b), a, b); }
static inline vr v_min(vr a, vr b) { return v_select((vi)(a < b), a, b); }
static inline real v_sum(vr x) {
    real t[VL];
    v_store(t, x);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}
static inline real v_hmax(vr x) {
    real t[VL], m;
    v_store(t, x);
    m = t[0];
    for (int i = 1; i < VL; i++) m = t[i] > m ? t[i] : m;
    return m;
}
#endif

#ifdef HL_DOUBLE
static inline vr v_exp(vr x) {
    real t[VL];
    v_store(t, x);
    for (int i = 0; i < VL; i++) t[i] = exp(t[i]);
    return v_load(t);
}
#else
/* exp to about 1 ulp: x = n ln 2 + r, a polynomial in r, n put into the exponent. Below -87.3 it is 0. */
static inline vr v_exp(vr x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vr c = v_min(v_max(x, v_set(-87.3f)), v_set(88.3f));
    vr t = c * 1.44269504f + magic;
    vr n = t - magic;
    vr r = c - n * 0.693359375f;
    vr p;
    r = r + n * 2.12194440e-4f;
    p = v_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vi e = ((vi)t - (vi)v_set(magic)) << 23;
    vr y = (vr)((vi)p + e);
    y = v_select((vi)(x < -87.3f), v_set(0), y);
    return v_select((vi)(x <= 88.3f), y, x + INFINITY); /* NaN stays NaN */
}
#endif
static inline vr v_sigmoid(vr x) { return 1 / (1 + v_exp(-x)); }

#ifdef HL_DOUBLE
static inline vr v_log1p(vr y) {
    real t[VL];
    v_store(t, y);
    for (int i = 0; i < VL; i++) t[i] = log1p(t[i]);
    return v_load(t);
}
#else
/* log(1+y) for y in [0, 1], as 2 atanh(s), s = y / (2+y) <= 1/3: no cancellation however small y is. */
static inline vr v_log1p(vr y) {
    vr s = y / (2 + y), z = s * s, s2 = s + s, p = v_set(1.0f / 13);
    p = p * z + 1.0f / 11;
    p = p * z + 1.0f / 9;
    p = p * z + 1.0f / 7;
    p = p * z + 1.0f / 5;
    p = p * z + 1.0f / 3;
    return s2 + s2 * z * p;
}
#endif

/* log(1+exp(x)) = max(x, 0) + log(1+exp(-|x|)), so that exp never overflows */
static inline vr v_softplus(vr x) {
    vr y = v_max(x, v_set(0)) + v_log1p(v_exp(v_min(x, -x)));
    return v_select((vi)(x > 20), x, y);
}

#endif
