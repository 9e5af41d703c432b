/* snapshot_numbers.h -- the numbers of a state, in the types of a session's file and back.
 *
 * Most numbers of a session on a device are halves in the state and floats in the file. These loops have no branches, so
 * that the compiler makes vectors of them: number by number they took most of the time of a resume and of a save. */
#ifndef HL_SNAPSHOT_NUMBERS_H
#define HL_SNAPSHOT_NUMBERS_H
#include "core/half.h"
#include "model/state.h"
#include "ops/cache/cache.h"

enum { HL_INFINITE_BITS = 0x7f800000 }; /* those of a float's magnitude, and more: not finite */

/* Each returns whether one of the numbers is not finite, before or after it was rounded. */
static inline bool hl_floats_to_f16(uint16_t *to, const char *file, int64_t n) {
    enum { MOST = 0x477fe000, NORMAL = 0x38800000 }; /* HL_CACHE_MOST; smallest that is no subnormal of F16 */
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, file + i * 4, 4);
        const int32_t a = (int32_t)(bits & 0x7fffffffu), c = a < MOST ? a : MOST;
        const int32_t normal = (c - (112 << 23) + 0xfff + (c >> 13 & 1)) >> 13;
        const int32_t small = (int32_t)hl_bits_of_float(hl_float_of_bits((uint32_t)c) + 0.5f) - 0x3f000000;
        const int32_t subnormal = -(c < NORMAL); /* all its bits: a choice would be a branch around the addition */
        to[i] = (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)((small & subnormal) | (normal & ~subnormal)));
        most = a > most ? a : most;
    }
    return most >= HL_INFINITE_BITS;
}
static inline bool hl_floats_to_bf16(uint16_t *to, const char *file, int64_t n) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, file + i * 4, 4);
        const int32_t a = (int32_t)(bits & 0x7fffffffu), c = a < HL_INFINITE_BITS ? a : HL_INFINITE_BITS;
        const int32_t rounded = c + 0x7fff + (c >> 16 & 1);
        to[i] = (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)(rounded >> 16));
        most = rounded > most ? rounded : most;
    }
    return most >= HL_INFINITE_BITS;
}
static inline bool hl_floats_of_f16(char *file, const uint16_t *from, int64_t n) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t rest = from[i] & 0x7fff;
        const uint32_t small = hl_bits_of_float((float)rest * 0x1p-24f),
                       normal = (uint32_t)((rest << 13) + (112 << 23));
        const uint32_t subnormal = -(uint32_t)(rest < 0x400);
        const uint32_t bits = (uint32_t)(from[i] & 0x8000) << 16 | (small & subnormal) | (normal & ~subnormal);
        memcpy(file + i * 4, &bits, 4);
        most = rest > most ? rest : most;
    }
    return most >= 0x7c00;
}
static inline bool hl_floats_of_bf16(char *file, const uint16_t *from, int64_t n) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        const int32_t a = from[i] & 0x7fff;
        memcpy(file + i * 4, &bits, 4);
        most = a > most ? a : most;
    }
    return most >= HL_INFINITE_BITS >> 16;
}

/* ---- any types; HOLA_F32: reals in a state, floats in a file ---- */

static inline bool hl_number_is_wrong(float x) { return (hl_bits_of_float(x) & HL_INFINITE_BITS) == HL_INFINITE_BITS; }
static inline bool hl_numbers_read_plain(void *at, hola_dtype here, const char *file, int64_t n, hola_dtype type) {
    bool wrong = false;
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = 0;
        uint32_t bits = 0;
        if (type == HOLA_F32) memcpy(&bits, file + i * 4, 4);
        else memcpy(&half, file + i * 2, 2);
        const float y = type == HOLA_BF16  ? hl_from_bf16(half)
                        : type == HOLA_F16 ? hl_from_f16(half)
                                           : hl_float_of_bits(bits);
        if (here == HOLA_F32) ((real *)at)[i] = y;
        else ((uint16_t *)at)[i] = here == HOLA_BF16 ? hl_to_bf16(y) : hl_cache_to_f16(y);
        wrong |= hl_number_is_wrong(y);
        if (here != HOLA_F32) wrong |= hl_number_is_wrong((float)hl_state_number(at, here, i));
    }
    return wrong;
}
static inline bool hl_numbers_write_plain(char *file, hola_dtype type, const void *at, hola_dtype here, int64_t n) {
    bool wrong = false;
    for (int64_t i = 0; i < n; i++) {
        const float y = (float)hl_state_number(at, here, i);
        const uint16_t half = type == HOLA_BF16 ? hl_to_bf16(y) : type == HOLA_F16 ? hl_to_f16(y) : 0;
        const float x = type == HOLA_BF16 ? hl_from_bf16(half) : type == HOLA_F16 ? hl_from_f16(half) : y;
        wrong |= hl_number_is_wrong(x);
        if (type == HOLA_F32) memcpy(file + i * 4, &x, 4);
        else memcpy(file + i * 2, &half, 2);
    }
    return wrong;
}

/* ---- what a snapshot uses: calls with types that are known, so that the loops have no choices in them ---- */

static inline bool hl_numbers_read(void *at, hola_dtype here, const char *file, int64_t n, hola_dtype type) {
    if (type != HOLA_F32) return hl_numbers_read_plain(at, here, file, n, type);
    return here == HOLA_F16    ? hl_floats_to_f16(at, file, n)
           : here == HOLA_BF16 ? hl_floats_to_bf16(at, file, n)
                               : hl_numbers_read_plain(at, HOLA_F32, file, n, HOLA_F32);
}
static inline bool hl_numbers_write(char *file, hola_dtype type, const void *at, hola_dtype here, int64_t n) {
    if (type != HOLA_F32) return hl_numbers_write_plain(file, type, at, here, n);
    return here == HOLA_F16    ? hl_floats_of_f16(file, at, n)
           : here == HOLA_BF16 ? hl_floats_of_bf16(file, at, n)
                               : hl_numbers_write_plain(file, HOLA_F32, at, HOLA_F32, n);
}

#endif
