/* rng.h -- random numbers by counter: (seed, stream, i) -> bits. No hidden state, so any element can be drawn in any
 * order, on any number of threads, with the same result. */
#ifndef HL_RNG_H
#define HL_RNG_H
#include "core/real.h"
#include <stdint.h>

uint64_t hl_rng_bits(uint64_t seed, uint64_t stream, uint64_t i);
double hl_rng_uniform(uint64_t seed, uint64_t stream, uint64_t i); /* [0, 1), 53 bits */
double hl_rng_normal(uint64_t seed, uint64_t stream, uint64_t i);  /* mean 0, variance 1 */
/* out[j] = scale * hl_rng_normal(seed, stream, j), but faster per number */
void hl_rng_normals(uint64_t seed, uint64_t stream, double scale, real *out, int64_t n);

/* FNV-1a, 64 bits: the stream of a tensor is the hash of its name. */
uint64_t hl_fnv1a(const char *text);

#endif
