/* rng_stream.h -- a sequence of random draws for the synthetic task generators, determined by the key. */
#ifndef HL_DRAW_H
#define HL_DRAW_H
#include "core/rng.h"

struct hl_rng_stream {
    uint64_t seed, stream, i;
};

/* Uniform in [0, m), m up to 2^31: the high bits of a product; biased by less than 2^-32. */
static inline int32_t hl_rng_stream_below(struct hl_rng_stream *d, int64_t m) {
    return (int32_t)((hl_rng_bits(d->seed, d->stream, d->i++) >> 32) * (uint64_t)m >> 32);
}
static inline double hl_rng_stream_uniform(struct hl_rng_stream *d) {
    return hl_rng_uniform(d->seed, d->stream, d->i++);
}

/* k distinct numbers of [0, n) in random order, at the start of out, which must have room for n. */
static inline void hl_rng_stream_distinct(struct hl_rng_stream *d, int32_t *out, int64_t n, int64_t k) {
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)i;
    for (int64_t i = 0; i < k; i++) {
        int64_t j = i + hl_rng_stream_below(d, n - i);
        int32_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

#endif
