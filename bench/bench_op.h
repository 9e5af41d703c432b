/* bench_op.h -- what benchmarks of a single op share: arrays of numbers that are not zero, medians, shapes. */
#ifndef HL_BENCH_OP_H
#define HL_BENCH_OP_H
#include "core/clock.h"
#include "core/half.h"
#include "backend/backend.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BENCH_RUNS = 20, BENCH_WARM = 3, BENCH_ARRAYS = 32 };

static struct hl_backend *backend;
static void *bench_array[BENCH_ARRAYS]; /* of the present shape */
static int bench_arrays;

static inline void *bench_alloc(int64_t n, int64_t size) {
    void *p = hl_alloc(backend, n * size);
    if (!p || bench_arrays == BENCH_ARRAYS) fprintf(stderr, "no memory for %lld numbers\n", (long long)n), exit(1);
    return bench_array[bench_arrays++] = p;
}
static inline void *bench_acts(int64_t n) { return bench_alloc(n, backend->act_size); }
static inline real *bench_reals(int64_t n) { return bench_alloc(n, (int64_t)sizeof(real)); }
static inline void bench_release(void) {
    while (bench_arrays > 0) hl_release(backend, bench_array[--bench_arrays]);
}
/* n activations (act) or reals between lo and hi; norm: rows of that many are L2-normalised */
static inline void *bench_fill_rows(int64_t n, bool act, float lo, float hi, int64_t norm) {
    static uint64_t draw = 88172645463325252u;
    const int64_t size = act ? backend->act_size : (int64_t)sizeof(real);
    void *p = bench_alloc(n, size);
    float *x = malloc((size_t)n * sizeof *x);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    if (!x || !half) exit(1);
    for (int64_t i = 0; i < n; i++) {
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
        x[i] = lo + (hi - lo) * (float)(draw >> 40) * 0x1p-24f;
    }
    for (int64_t i = 0; norm && i < n; i += norm) {
        float s = 1e-6f;
        for (int64_t j = i; j < i + norm; j++) s += x[j] * x[j];
        for (int64_t j = i; j < i + norm; j++) x[j] /= sqrtf(s);
    }
    for (int64_t i = 0; i < n; i++) half[i] = hl_to_bf16(x[i]);
    hl_put(backend, p, size == 2 ? (void *)half : (void *)x, n * size);
    hl_finish(backend);
    free(x);
    free(half);
    return p;
}

static inline void *bench_fill(int64_t n, bool act, float lo, float hi) { return bench_fill_rows(n, act, lo, hi, 0); }

static inline int bench_by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* milliseconds of f(a) */
static inline double bench_median(void (*f)(const void *), const void *a) {
    double t[BENCH_RUNS];
    for (int i = -BENCH_WARM; i < BENCH_RUNS; i++) {
        hl_finish(backend);
        const double began = hl_clock();
        f(a);
        if (hl_finish(backend) != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error()), exit(1);
        if (i >= 0) t[i] = (hl_clock() - began) * 1e3;
    }
    qsort(t, BENCH_RUNS, sizeof *t, bench_by_value);
    return t[BENCH_RUNS / 2];
}

/* Opens the backend that argv[1] names (default: cuda) and runs `one` for each shape of the others, NxTxHEADSxSIZE, or
 * for the usual ones. */
struct bench_shape {
    int64_t n, len, heads, size;
};
static inline int bench_main(int argc, char **argv, int64_t scratch, void (*one)(const struct bench_shape *),
                             const struct bench_shape *usual, size_t count) {
    if (hl_backend_open(&backend, argc > 1 ? argv[1] : "cuda", 0) != HOLA_OK ||
        hl_backend_reserve(backend, scratch) != HOLA_OK)
        return fprintf(stderr, "%s: %s\n", argv[0], hola_last_error()), 1;
    for (int i = 2; i < argc; i++) {
        long long n[4];
        if (sscanf(argv[i], "%lldx%lldx%lldx%lld", &n[0], &n[1], &n[2], &n[3]) != 4)
            return fprintf(stderr, "%s: '%s' is not like 16x2048x4x256\n", argv[0], argv[i]), 2;
        const struct bench_shape s = {n[0], n[1], n[2], n[3]};
        one(&s);
    }
    for (size_t i = 0; argc <= 2 && i < count; i++) one(&usual[i]);
    hl_backend_close(backend);
    return 0;
}

#endif
