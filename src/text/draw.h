/* draw.h -- a run of random draws for the generators of synthetic tasks; the same for the same key. */
#ifndef HL_DRAW_H
#define HL_DRAW_H
#include "core/rng.h"

struct hl_draw {
    uint64_t seed, stream, i;
};

/* Uniform in [0, m), m up to 2^31: the high bits of a product; uneven by less than 2^-32. */
static inline int32_t hl_draw_below(struct hl_draw *d, int64_t m) {
    return (int32_t)((hl_rng_bits(d->seed, d->stream, d->i++) >> 32) * (uint64_t)m >> 32);
}
static inline double hl_draw_uniform(struct hl_draw *d) { return hl_rng_uniform(d->seed, d->stream, d->i++); }

/* k distinct numbers of [0, n) in random order, at the front of out, which has room for n. */
static inline void hl_draw_distinct(struct hl_draw *d, int32_t *out, int64_t n, int64_t k) {
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)i;
    for (int64_t i = 0; i < k; i++) {
        int64_t j = i + hl_draw_below(d, n - i);
        int32_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

#endif
