/* pyrandom.c -- see pyrandom.h. */
#include "eval/pyrandom.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 624, M = 397 };

static void mt_init(struct hl_mt *m, uint32_t seed) {
    m->word[0] = seed;
    for (int i = 1; i < N; i++) m->word[i] = 1812433253u * (m->word[i - 1] ^ (m->word[i - 1] >> 30)) + (uint32_t)i;
    m->next = N;
}

static void mt_turn(struct hl_mt *m) {
    uint32_t *w = m->word;
    for (int i = 0; i < N; i++) {
        uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % N] & 0x7fffffffu);
        w[i] = w[(i + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    m->next = 0;
}

static uint32_t mt_word(struct hl_mt *m) {
    if (m->next >= N) mt_turn(m);
    uint32_t y = m->word[m->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* ---- CPython ---- */

void hl_py_seed(struct hl_mt *m, uint64_t seed) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const int len = key[1] ? 2 : 1;
    uint32_t *w = m->word;
    int i = 1, j = 0;
    mt_init(m, 19650218u);
    for (int k = 0; k < N; k++) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1664525u)) + key[j] + (uint32_t)j;
        if (++i == N) w[0] = w[N - 1], i = 1;
        if (++j == len) j = 0;
    }
    for (int k = 0; k < N - 1; k++) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
        if (++i == N) w[0] = w[N - 1], i = 1;
    }
    w[0] = 0x80000000u;
}

double hl_py_random(struct hl_mt *m) {
    uint32_t a = mt_word(m) >> 5, b = mt_word(m) >> 6;
    return ((double)a * 67108864.0 + (double)b) / 9007199254740992.0;
}

uint32_t hl_py_bits(struct hl_mt *m, int k) { return mt_word(m) >> (32 - k); }

int64_t hl_py_below(struct hl_mt *m, int64_t n) {
    int k = 0;
    uint64_t r;
    while (n >> k) k++;
    do {
        r = k <= 32 ? hl_py_bits(m, k) : mt_word(m);
        if (k > 32) r |= (uint64_t)hl_py_bits(m, k - 32) << 32;
    } while (r >= (uint64_t)n);
    return (int64_t)r;
}

int64_t hl_py_randint(struct hl_mt *m, int64_t lo, int64_t hi) { return lo + hl_py_below(m, hi - lo + 1); }

int64_t hl_py_choices(struct hl_mt *m, int64_t n) { return (int64_t)floor(hl_py_random(m) * (double)n); }

void hl_py_shuffle(struct hl_mt *m, int32_t *x, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = hl_py_below(m, i + 1);
        int32_t t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* Up to this size, CPython samples from a copy of the population; above it, it redraws duplicates. */
static int64_t pool_limit(int64_t k) {
    int64_t four = 1;
    if (k <= 5) return 21;
    while (four < 3 * k) four *= 4;
    return 21 + four;
}

hola_status hl_py_sample(struct hl_mt *m, int64_t n, int64_t k, int64_t *out) {
    const bool pooled = n <= pool_limit(k);
    int64_t *pool = pooled ? malloc((size_t)(n + 1) * sizeof *pool) : NULL;
    unsigned char *taken = pooled ? NULL : calloc((size_t)n / 8 + 1, 1);
    HL_ASSERT(k >= 0 && k <= n);
    if (!pool && !taken) return hl_fail(HOLA_ENOMEM, "a sample of %lld", (long long)n);
    for (int64_t i = 0; pooled && i < n; i++) pool[i] = i;
    for (int64_t i = 0; i < k; i++) {
        int64_t j = hl_py_below(m, pooled ? n - i : n);
        if (pooled) {
            out[i] = pool[j];
            pool[j] = pool[n - i - 1];
            continue;
        }
        while (taken[j / 8] >> (j % 8) & 1) j = hl_py_below(m, n);
        taken[j / 8] |= (unsigned char)(1 << (j % 8));
        out[i] = j;
    }
    free(pool);
    free(taken);
    return HOLA_OK;
}

void hl_py_uuid4(struct hl_mt *m, char out[37]) {
    uint32_t w[4];
    for (int i = 3; i >= 0; i--) w[i] = mt_word(m); /* the least significant word is drawn first */
    w[1] = (w[1] & 0xffff0fffu) | 0x4000u;
    w[2] = (w[2] & 0x3fffffffu) | 0x80000000u;
    snprintf(out, 37, "%08x-%04x-%04x-%04x-%04x%08x", w[0], w[1] >> 16, w[1] & 0xffff, w[2] >> 16, w[2] & 0xffff, w[3]);
}

/* ---- numpy ---- */

void hl_np_seed(struct hl_mt *m, uint32_t seed) { mt_init(m, seed); }

uint32_t hl_np_upto(struct hl_mt *m, uint32_t most) {
    uint32_t mask = most, r;
    if (most == 0) return 0;
    for (int i = 1; i < 32; i *= 2) mask |= mask >> i;
    do r = mt_word(m) & mask;
    while (r > most);
    return r;
}

int64_t hl_np_randint(struct hl_mt *m, int64_t low, int64_t high) {
    return low + hl_np_upto(m, (uint32_t)(high - 1 - low));
}

void hl_np_choice(struct hl_mt *m, int32_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t j = hl_np_upto(m, (uint32_t)i);
        int32_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

/* The first i with x < cdf[i]. */
static int64_t search_right(const double *cdf, int64_t n, double x) {
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (x < cdf[mid]) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

void hl_np_choice_p(struct hl_mt *m, double *p, double *cdf, int64_t n, int32_t *out, int64_t k) {
    for (int64_t found = 0; found < k;) {
        /* each round draws all missing items with the same weights; duplicates count once */
        const int64_t draws = k - found, before = found;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) cdf[i] = sum += p[i];
        for (int64_t i = 0; i < n; i++) cdf[i] /= sum;
        for (int64_t i = 0; i < draws; i++) {
            int32_t x = (int32_t)search_right(cdf, n, hl_py_random(m));
            bool again = false;
            for (int64_t j = before; j < found; j++) again |= out[j] == x;
            if (!again) out[found++] = x;
        }
        for (int64_t j = before; j < found; j++) p[out[j]] = 0;
    }
}

/* ---- SplitMix64 ---- */

uint64_t hl_splitmix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t hl_splitmix_below(uint64_t *state, int64_t m) {
    uint64_t x = hl_splitmix(state), y = (uint64_t)m;
    uint64_t low = (x & 0xffffffffu) * y, high = (x >> 32) * y; /* m < 2^31 */
    return (int64_t)((high + (low >> 32)) >> 32);
}
