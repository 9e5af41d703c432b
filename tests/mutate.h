/* mutate.h -- drives LLVMFuzzerTestOneInput of a fuzz_*.c.
 *
 * Built for libFuzzer (-DHL_LIBFUZZER): its mutations, plus our seeds, so that it needs no corpus. Built plainly: a
 * program that replays the files named on its command line or, without any, runs MUTATE_RUNS mutations of the seeds,
 * the same in every run. */
#ifndef HL_MUTATE_H
#define HL_MUTATE_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MUTATE_RUNS
#define MUTATE_RUNS 20000
#endif

struct seed {
    const char *data;
    size_t size;
};
static struct seed seed_at(size_t i); /* the target defines it; size 0 after the last */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold for every input. */
#define MUST(x)                                                               \
    do {                                                                      \
        if (!(x)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                          \
        }                                                                     \
    } while (0)

static inline size_t seed_count(void) {
    size_t n = 0;
    while (seed_at(n).size > 0) n++;
    return n;
}

#ifdef HL_LIBFUZZER

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned random);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned random) {
    if (size < 8 || random % 256 == 0) {
        struct seed s = seed_at(random / 256 % seed_count());
        size = s.size < max ? s.size : max;
        memcpy(data, s.data, size);
    }
    return LLVMFuzzerMutate(data, size, max);
}

#else

static inline uint64_t mutate_next(uint64_t *r) {
    uint64_t x = *r += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One change; the buffer has room for max. */
static inline size_t mutate(uint8_t *p, size_t n, size_t max, uint64_t *r) {
    static const char *const words[] = {
        "0",        "-1",      "1.5", "9223372036854775807", "1e308", "null", "true", "[]", "{}", "\"", "[", "}", ",",
        "\"BF16\"", "\\u0000", "\xff"};
    uint64_t x = mutate_next(r);
    size_t at = n ? (x >> 8) % n : 0, len = n ? 1 + (x >> 40) % 16 : 0;
    if (len > n - at) len = n - at;
    switch (x % 7) {
    case 0: /* a bit */
        if (n) p[at] ^= (uint8_t)(1u << (x >> 61));
        return n;
    case 1: /* a byte */
        if (n) p[at] = (uint8_t)(x >> 56);
        return n;
    case 2: /* cut out */ memmove(p + at, p + at + len, n - at - len); return n - len;
    case 3: /* cut off */ return x >> 60 == 0 ? at : n;
    case 4: { /* a word, inserted or written over */
        const char *w = words[(x >> 32) % (sizeof words / sizeof *words)];
        size_t l = strlen(w);
        bool insert = x >> 63;
        if (at + l > max || (insert && n + l > max)) return n;
        if (insert) memmove(p + at + l, p + at, n - at);
        memcpy(p + at, w, l);
        return insert ? n + l : at + l > n ? at + l : n;
    }
    case 5: /* copies a piece elsewhere */
        if (n) memmove(p + mutate_next(r) % (n - len + 1), p + at, len);
        return n;
    default: /* a digit */
        for (size_t i = at; i < n; i++)
            if (p[i] >= '0' && p[i] <= '9') {
                p[i] = (uint8_t)('0' + (x >> 60) % 10);
                break;
            }
        return n;
    }
}

static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    size_t n = 0, room = 1 << 26;
    uint8_t *data = malloc(room);
    if (f && data) {
        n = fread(data, 1, room, f);
        LLVMFuzzerTestOneInput(data, n);
    }
    if (!f) perror(path);
    else fclose(f);
    free(data);
    return f ? 0 : 1;
}

int main(int argc, char **argv) {
    enum { RUNS = MUTATE_RUNS, ROOM = 1 << 16 };
    uint64_t r = 1;
    size_t seeds = seed_count();
    uint8_t *work = malloc(ROOM);
    int failed = 0;
    if (!work) return 1;
    for (int i = 1; i < argc; i++) failed |= replay(argv[i]);
    for (int i = 0; i < RUNS && argc < 2; i++) {
        struct seed s = seed_at((size_t)i % seeds);
        size_t n = s.size < ROOM ? s.size : ROOM;
        memcpy(work, s.data, n);
        for (uint64_t k = mutate_next(&r) % 5; i >= (int)seeds && k < 5; k++) n = mutate(work, n, ROOM, &r);
        uint8_t *exact = malloc(n ? n : 1); /* so that ASan detects reads past the end */
        if (!exact) return 1;
        memcpy(exact, work, n);
        LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    }
    free(work);
    return failed;
}

#endif
#endif
