/* rng.c -- splitmix64 as a counter generator: the seed and the stream are hashed to a key, and element i is the i-th
 * output of splitmix64 from that key. */
#include "core/rng.h"

#define GOLDEN 0x9e3779b97f4a7c15u
#define TWO_PI 6.283185307179586476925

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t seed, uint64_t stream) { return mix(mix(seed + GOLDEN) + stream + GOLDEN); }
static uint64_t bits_at(uint64_t key, uint64_t i) { return mix(key + (i + 1) * GOLDEN); }
static double uniform_of(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

uint64_t hl_rng_bits(uint64_t seed, uint64_t stream, uint64_t i) { return bits_at(key_of(seed, stream), i); }
double hl_rng_uniform(uint64_t seed, uint64_t stream, uint64_t i) { return uniform_of(hl_rng_bits(seed, stream, i)); }

/* Box-Muller: numbers 2j and 2j+1 come from uniforms 2j and 2j+1. */
static void normal_pair(uint64_t key, uint64_t j, double out[2]) {
    double u = 1 - uniform_of(bits_at(key, 2 * j)); /* (0, 1]: the logarithm stays finite */
    double r = sqrt(-2 * log(u)), a = TWO_PI * uniform_of(bits_at(key, 2 * j + 1));
    out[0] = r * cos(a);
    out[1] = r * sin(a);
}

double hl_rng_normal(uint64_t seed, uint64_t stream, uint64_t i) {
    double pair[2];
    normal_pair(key_of(seed, stream), i / 2, pair);
    return pair[i % 2];
}

void hl_rng_normals(uint64_t seed, uint64_t stream, double scale, real *out, int64_t n) {
    uint64_t key = key_of(seed, stream);
    double pair[2];
    for (int64_t i = 0; i < n; i += 2) {
        normal_pair(key, (uint64_t)i / 2, pair);
        out[i] = (real)(scale * pair[0]);
        if (i + 1 < n) out[i + 1] = (real)(scale * pair[1]);
    }
}

uint64_t hl_fnv1a(const char *text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) h = (h ^ *p) * 0x100000001b3u;
    return h;
}
