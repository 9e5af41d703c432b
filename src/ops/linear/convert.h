/* convert.h -- loads a vector of `real` from f32, bf16 or f16; stores it as f16. */
#ifndef HL_CONVERT_H
#define HL_CONVERT_H
#include "ops/linear/weight.h"
#include "ops/simd.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifdef HL_DOUBLE
static inline vr v_load_f32(const float *p) {
    vr x;
    for (int i = 0; i < VL; i++) x[i] = p[i];
    return x;
}
static inline vr v_load_bf16(const uint16_t *p) {
    vr x;
    for (int i = 0; i < VL; i++) x[i] = hl_from_bf16(p[i]);
    return x;
}
static inline vr v_load_f16(const uint16_t *p) {
    vr x;
    for (int i = 0; i < VL; i++) x[i] = hl_from_f16(p[i]);
    return x;
}
static inline void v_store_f16(uint16_t *p, vr x) {
    for (int i = 0; i < VL; i++) p[i] = hl_to_f16((float)x[i]);
}
#else
typedef uint32_t vu __attribute__((vector_size(HL_VBYTES)));
typedef uint16_t vh_mem __attribute__((vector_size(HL_VBYTES / 2), aligned(2), may_alias));

static inline vr v_load_f32(const float *p) { return v_load(p); }
/* intrinsics if available: compilers split the conversion in two */
static inline vr v_load_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vr)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
    return (vr)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#elif defined(HL_NEON)
    return (vr)vshll_n_u16(vld1_u16(p), 16);
#else
    return (vr)(__builtin_convertvector(*(const vh_mem *)p, vu) << 16);
#endif
}
static inline vr v_load_f16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vr)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
    return (vr)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(HL_NEON)
    return (vr)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    /* hl_from_f16, lane by lane */
    vu u = __builtin_convertvector(*(const vh_mem *)p, vu);
    vu sign = (u & 0x8000u) << 16, rest = (u & 0x7fffu) << 13;
    vu x = (vu)((vr)rest * 0x1p112f);
    vu special = (vu)(rest >= 0x0f800000u);
    return (vr)(sign | (x & ~special) | ((rest | 0x7f800000u) & special));
#endif
}
/* The bits of hl_to_f16, except for those of a NaN. */
static inline void v_store_f16(uint16_t *p, vr x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(HL_NEON)
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
    for (int i = 0; i < VL; i++) p[i] = hl_to_f16(x[i]);
#endif
}
#endif

#endif
