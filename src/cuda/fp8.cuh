/* fp8.cuh -- FP8 codes in kernels: Hopper's instruction, elsewhere core/fp8.h, which has the same bits; and packed pairs
 * of bf16, two numbers in a register, of which it takes the magnitudes, the scales and the multiples. */
#ifndef HL_FP8_CUH
#define HL_FP8_CUH
#include "cuda/common.cuh"
#include "core/fp8.h"

/* One form of a matrix; codes NULL: not wanted. */
struct fp8_form {
    uint8_t *codes;
    float *scale;
};

/* two codes, the first in the low byte */
template <int format> static __device__ __forceinline__ uint32_t fp8_pair(float lo, float hi) {
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint16_t r;
    if (format == HL_E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
#else
    return hl_to_fp8(lo, (enum hl_fp8)format) | (uint32_t)hl_to_fp8(hi, (enum hl_fp8)format) << 8;
#endif
}

/* ---- pairs of bf16 ---- */

enum { FP8_MAGNITUDES = 0x7fff7fff };

/* The larger of two magnitudes, in both halves: as integers, NaN above infinity. Three of them are one instruction. */
static __device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b) {
#ifdef HL_CUDA_EMU
    const uint32_t lo = max(a & 0xffff, b & 0xffff), hi = max(a >> 16, b >> 16);
    return lo | hi << 16;
#else
    return __vmaxu2(a, b);
#endif
}
/* The low halves of two pairs, and the high ones. */
static __device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b) {
#ifdef HL_CUDA_EMU
    return (a & 0xffff) | b << 16;
#else
    return __byte_perm(a, b, 0x5410);
#endif
}
static __device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b) {
#ifdef HL_CUDA_EMU
    return a >> 16 | (b & 0xffff0000u);
#else
    return __byte_perm(a, b, 0x7632);
#endif
}

/* x times y. With a power of two it is exact down to bf16's subnormals, all of whose codes are 0. */
static __device__ __forceinline__ uint32_t times_pair(uint32_t x, uint32_t y) {
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
#else
    return pack2(low(x) * low(y), high(x) * high(y));
#endif
}

/* The scales of two magnitudes, and by what numbers are multiplied: hl_fp8_scale and hl_fp8_inverse of it, as bf16. */
struct fp8_scales {
    uint32_t scale, inverse;
};
template <int format> static __device__ __forceinline__ struct fp8_scales fp8_scale_pair(uint32_t most) {
    const uint32_t both = 0x10001, bias = format == HL_E4M3 ? 8 : 15, one = 0x3f80 * both;
    const uint32_t e = larger_pair((most + 0x1f * both) >> 7 & 0x1ff * both, (bias + 1) * both) - bias * both;
    const uint32_t infinite = ((most + 0x80 * both) >> 15 & both) * 0xffff; /* or NaN; all bits of a half */
    const uint32_t some = ((most + 0x7fff * both) >> 15 & both) * 0xffff;   /* more than 0 */
    struct fp8_scales s;
    s.scale = (((e << 7 & some) | (one & ~some)) & ~infinite) | (0x7fc0 * both & infinite);
    s.inverse = ((254 * both - e) << 7 & ~infinite) | (one & infinite);
    return s;
}
static __device__ __forceinline__ float2 both_halves(uint32_t pair) { return make_float2(low(pair), high(pair)); }

#endif
