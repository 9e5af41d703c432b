/* half.h -- bfloat16 and IEEE half precision as bits, to and from float. Rounding is to the nearest, ties to even;
 * subnormals are exact; overflow becomes infinity; NaN stays NaN. */
#ifndef HL_HALF_H
#define HL_HALF_H
#include <stdint.h>
#include <string.h>

static inline float hl_float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t hl_bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float hl_from_bf16(uint16_t h) { return hl_float_of_bits((uint32_t)h << 16); }
static inline uint16_t hl_to_bf16(float f) {
    uint32_t u = hl_bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* keep NaN from rounding to inf */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float hl_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return hl_float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return hl_float_of_bits(sign | ((rest << 13) + (112u << 23)));
    float f = (float)rest * 0x1p-24f; /* subnormal: an exact product */
    return sign ? -f : f;
}
static inline uint16_t hl_to_f16(float f) {
    uint32_t u = hl_bits_of_float(f), a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up round to infinity */
    if (a >= 0x38800000u) return (uint16_t)(sign | (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13);
    /* Subnormal: adding 0.5 puts the last half bit at the float's last bit, so the addition rounds. */
    return (uint16_t)(sign | (hl_bits_of_float(hl_float_of_bits(a) + 0.5f) - 0x3f000000u));
}

#endif
