/* fp8.h -- 8-bit floats as bits: E4M3 (4 bits of exponent, 3 of mantissa, largest 448, no infinities) and E5M2 (largest
 * 57,344), and the scales that bring numbers into their range. Rounding is to the nearest, ties to even; subnormals are
 * exact; what is too large, infinities too, becomes the largest number; NaN becomes 0x7f. This is what Hopper's cvt
 * does with .satfinite. Kernels include this, too. */
#ifndef HL_FP8_H
#define HL_FP8_H
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HL_FP8_FN static __host__ __device__ inline
#else
#define HL_FP8_FN static inline
#endif

enum hl_fp8 { HL_E4M3, HL_E5M2 };

HL_FP8_FN uint32_t hl_fp8_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
HL_FP8_FN float hl_fp8_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

HL_FP8_FN uint8_t hl_to_fp8(float x, enum hl_fp8 format) {
    const uint32_t m = format == HL_E4M3 ? 3 : 2, bias = format == HL_E4M3 ? 7 : 15, shift = 23 - m;
    const uint32_t most = format == HL_E4M3 ? 0x43e00000u : 0x47600000u; /* the largest as a float */
    const uint32_t u = hl_fp8_bits(x), a = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= most) return (uint8_t)(sign | (format == HL_E4M3 ? 0x7e : 0x7b));
    if (a >= (128 - bias) << 23)
        return (uint8_t)(sign | (((a + (1u << (shift - 1)) - 1 + (a >> shift & 1u)) >> shift) - ((127 - bias) << m)));
    /* Subnormal: beside this the last bit of a float is the last one of the code, so the addition rounds. */
    const uint32_t beside = (127 + 24 - bias - m) << 23;
    return (uint8_t)(sign | (hl_fp8_bits(hl_fp8_float(a) + hl_fp8_float(beside)) - beside));
}

HL_FP8_FN float hl_from_fp8(uint8_t code, enum hl_fp8 format) {
    const uint32_t m = format == HL_E4M3 ? 3 : 2, bias = format == HL_E4M3 ? 7 : 15;
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24, a = code & 0x7fu, e = a >> m, f = a & ((1u << m) - 1);
    if (format == HL_E4M3 ? a == 0x7f : a > 0x7c) return hl_fp8_float(sign | 0x7fc00000u);
    if (format == HL_E5M2 && a == 0x7c) return hl_fp8_float(sign | 0x7f800000u);
    if (e > 0) return hl_fp8_float(sign | (e + 127 - bias) << 23 | f << (23 - m));
    return hl_fp8_float(sign | hl_fp8_bits((float)f * hl_fp8_float((128 - bias - m) << 23)));
}

/* The scale of numbers of which the largest magnitude has these bits: the least power of two by which it can be divided
 * and not exceed the largest code, and not below 2^-126, so that its inverse is a float. Dividing by it is exact but
 * for the rounding of the code. Zeros alone: 1. One that is not finite: NaN, and so are the products. */
HL_FP8_FN float hl_fp8_scale(uint32_t amax, enum hl_fp8 format) {
    if (amax >= 0x7f800000u) return hl_fp8_float(0x7fc00000u);
    if (amax == 0) return 1.0f;
    const int32_t e = (int32_t)((amax + 0x1fffffu) >> 23) - (format == HL_E4M3 ? 8 : 15); /* both end at 1.75 */
    return hl_fp8_float((uint32_t)(e > 1 ? e : 1) << 23);
}
/* 1 / scale, what numbers are multiplied by; 1 for NaN. */
HL_FP8_FN float hl_fp8_inverse(float scale) {
    const uint32_t u = hl_fp8_bits(scale);
    return u > 0x7f800000u ? 1.0f : hl_fp8_float((254u << 23) - u);
}

#endif
