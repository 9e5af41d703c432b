/* pyrandom.h -- foreign random number generators, bit for bit: CPython's random.Random, numpy's legacy RandomState
 * (both a Mersenne Twister, seeded differently) and SplitMix64. They determine the samples of generated benchmarks. */
#ifndef HL_PYRANDOM_H
#define HL_PYRANDOM_H
#include "core/status.h"

struct hl_mt { /* MT19937 */
    uint32_t word[624];
    int next;
};

/* ---- CPython ---- */
void hl_py_seed(struct hl_mt *m, uint64_t seed);                /* random.seed(int), which takes the absolute value */
double hl_py_random(struct hl_mt *m);                           /* [0, 1), 53 bits; numpy's random_sample() too */
uint32_t hl_py_bits(struct hl_mt *m, int k);                    /* getrandbits(k), 1 <= k <= 32 */
int64_t hl_py_below(struct hl_mt *m, int64_t n);                /* _randbelow(n), 1 <= n < 2^63 */
int64_t hl_py_randint(struct hl_mt *m, int64_t lo, int64_t hi); /* both ends included */
/* One of [0, n) each, as choices() takes them: floor(random() * n). */
int64_t hl_py_choices(struct hl_mt *m, int64_t n);
void hl_py_shuffle(struct hl_mt *m, int32_t *x, int64_t n);
/* sample(range(n), k), k <= n; the same indices for any sequence of n. out [k] */
hola_status hl_py_sample(struct hl_mt *m, int64_t n, int64_t k, int64_t *out);
/* str(uuid.UUID(int=getrandbits(128), version=4)) */
void hl_py_uuid4(struct hl_mt *m, char out[37]);

/* ---- numpy, np.random.seed(seed) and what follows ---- */
void hl_np_seed(struct hl_mt *m, uint32_t seed);
uint32_t hl_np_upto(struct hl_mt *m, uint32_t most);               /* 0..most, by mask and rejection */
int64_t hl_np_randint(struct hl_mt *m, int64_t low, int64_t high); /* high is not included */
/* choice(n, size=k, replace=False): the front of a permutation. out has room for n. */
void hl_np_choice(struct hl_mt *m, int32_t *out, int64_t n);
/* choice(n, size=k, replace=False, p=p); p [n] is changed, cdf [n] is scratch, out [k]. At least k of p are
 * above 0. */
void hl_np_choice_p(struct hl_mt *m, double *p, double *cdf, int64_t n, int32_t *out, int64_t k);

/* ---- SplitMix64 ---- */
uint64_t hl_splitmix(uint64_t *state);
int64_t hl_splitmix_below(uint64_t *state, int64_t m); /* the high 64 bits of a product; m < 2^31 */

#endif
