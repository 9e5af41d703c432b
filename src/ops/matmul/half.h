/* half.h -- bf16 and f16 as bits, both ways, in portable integer code; and one element of a weight. */
#ifndef HL_HALF_H
#define HL_HALF_H
#include "ops/rows.h"
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
/* to nearest, ties to even */
static inline uint16_t hl_to_bf16(float f) {
    uint32_t u = hl_bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* NaN: quiet, sign kept */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* The bits read as a float are 2^112 too small, subnormals included; that factor is exact. */
static inline float hl_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t u = hl_bits_of_float(hl_float_of_bits(rest) * 0x1p112f);
    if (rest >= 0x0f800000u) u = rest | 0x7f800000u; /* infinity, NaN */
    return hl_float_of_bits(sign | u);
}
static inline uint16_t hl_to_f16(float f) {
    uint32_t u = hl_bits_of_float(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu)); /* NaN */
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more: infinity */
    if (a >= 0x38800000u)                                    /* normal: rebias, round */
        return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13));
    /* Subnormal: adding 0.5 lines the bits up so that the addition itself rounds to a multiple of 2^-24. */
    return (uint16_t)(sign | (hl_bits_of_float(hl_float_of_bits(a) + 0.5f) - 0x3f000000u));
}

/* where element (i, j) is in data, counted in elements */
static inline int64_t hl_weight_index(const struct hl_weight *w, int64_t i, int64_t j) {
    return w->layout == HL_ROWS ? i * w->cols + j : (i / HL_PANEL * w->cols + j) * HL_PANEL + i % HL_PANEL;
}
static inline real hl_weight_at(const struct hl_weight *w, int64_t i, int64_t j) {
    int64_t at = hl_weight_index(w, i, j);
    if (w->layout == HL_ROWS) return ((const real *)w->data)[at];
    if (w->dtype == HOLA_BF16) return hl_from_bf16(((const uint16_t *)w->data)[at]);
    if (w->dtype == HOLA_F16) return hl_from_f16(((const uint16_t *)w->data)[at]);
    return ((const float *)w->data)[at];
}

#endif
