/* bench_gdn.c -- the gated delta rule by itself, forward (with the score m) and backward.
 *
 *   bench_gdn [backend [SEQUENCESxLENGTHxHEADSxSIZE ...]]      default: cuda, and the shapes of docs/speed.md
 * One line per shape: milliseconds, medians over 20 runs, on numbers that are not zero. On a GPU two more:
 * the kernels that were taken, and when they are the fastest. */
#define _POSIX_C_SOURCE 200809L
#include "core/half.h"
#include "backend/backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct shape {
    int64_t n, len, heads, size;
};
static const struct shape usual[] = {{16, 2048, 4, 256}, {32, 2048, 4, 128}, {1, 32768, 4, 256}};
enum { RUNS = 20, WARM = 3 };

static const struct hl_ops *ops;
static struct hl_backend *backend;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void *alloc(int64_t n, int64_t size) {
    void *p = hl_alloc(backend, n * size);
    if (!p) fprintf(stderr, "bench_gdn: no memory for %lld numbers\n", (long long)n), exit(1);
    return p;
}
static uint64_t draw = 88172645463325252u;
static float uniform(float lo, float hi) {
    draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
    return lo + (hi - lo) * (float)(draw >> 40) * 0x1p-24f;
}
/* n activations or reals; norm: rows of that many are L2-normalised */
static void *fill(int64_t n, bool act, float lo, float hi, int64_t norm) {
    const int64_t size = act ? backend->act_size : (int64_t)sizeof(real);
    float *x = malloc((size_t)n * sizeof *x);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    void *p = alloc(n, size);
    if (!x || !half) exit(1);
    for (int64_t i = 0; i < n; i++) x[i] = uniform(lo, hi);
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

typedef void (*op)(struct hl_backend *, const struct hl_gdn *);
static double median_ms(op f, const struct hl_gdn *a) {
    double t[RUNS];
    for (int i = -WARM; i < RUNS; i++) {
        hl_finish(backend);
        const double began = now();
        f(backend, a);
        hl_finish(backend);
        if (i >= 0) t[i] = (now() - began) * 1e3;
    }
    qsort(t, RUNS, sizeof *t, by_value);
    return t[RUNS / 2];
}

/* Not there in a build without CUDA. */
#pragma weak hl_cuda_gdn_form
#pragma weak hl_cuda_f32_gdn_form
static void print_form(const struct hl_gdn *a, bool backward) {
    if (backend->host || !hl_cuda_gdn_form || !hl_cuda_f32_gdn_form) return;
    const struct hl_gdn_form f =
        (backend->act_size == 2 ? hl_cuda_gdn_form : hl_cuda_f32_gdn_form)(backend, a, backward);
    printf("    %s: %s (%s)\n", backward ? "backward" : "forward", f.name, f.when);
}

static void one(const struct shape *s) {
    const int64_t T = s->n * s->len, d = s->heads * s->size, act = backend->act_size, real_ = (int64_t)sizeof(real);
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg};
    for (int64_t i = 0; seg && i < s->n; i++) seg[i] = (struct hl_seg){.row = i * s->len, .len = s->len};
    if (!seg || backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK) exit(1);
    struct hl_gdn a = {.rows = &rows, .H = s->heads, .HV = s->heads, .K = s->size, .V = s->size};
    a.q = fill(T * d, true, -1, 1, s->size), a.k = fill(T * d, true, -1, 1, s->size);
    a.v = fill(T * d, true, -1, 1, 0), a.dout = fill(T * d, true, -1, 1, 0);
    a.g = fill(T * s->heads, false, -0.1f, 0, 0), a.beta = fill(T * s->heads, false, 0, 1, 0);
    a.out = alloc(T * d, act), a.m = alloc(T * s->heads, real_);
    double forward = median_ms(ops->gdn_forward, &a);
    a.v_new = alloc(T * d, act), a.A = alloc(T * s->heads * HL_CHUNK, act);
    if (backend->host) a.h = alloc(hl_chunks_before(&rows, s->n) * s->heads * s->size * s->size, real_);
    a.dq = alloc(T * d, act), a.dk = alloc(T * d, act), a.dv = alloc(T * d, act);
    a.dg = alloc(T * s->heads, real_), a.dbeta = alloc(T * s->heads, real_);
    double keeping = median_ms(ops->gdn_forward, &a), backward = median_ms(ops->gdn_backward, &a);
    printf("%3lld x %6lld, %lld heads x %3lld: forward %.3f ms, keeping for backward %.3f ms, backward %.3f "
           "ms\n",
           (long long)s->n, (long long)s->len, (long long)s->heads, (long long)s->size, forward, keeping, backward);
    print_form(&a, false), print_form(&a, true);
    const void *all[] = {a.q,     a.k, a.v, a.dout, a.g,  a.beta, a.out, a.m,
                         a.v_new, a.A, a.h, a.dq,   a.dk, a.dv,   a.dg,  a.dbeta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) hl_release(backend, (void *)all[i]);
    free(seg);
}

int main(int argc, char **argv) {
    if (hl_backend_open(&backend, argc > 1 ? argv[1] : "cuda", 0) != HOLA_OK ||
        hl_backend_reserve(backend, hl_gdn_scratch(256, 256)) != HOLA_OK)
        return fprintf(stderr, "bench_gdn: %s\n", hola_last_error()), 1;
    ops = &backend->ops;
    for (int i = 2; i < argc; i++) {
        struct shape s;
        long long n[4];
        if (sscanf(argv[i], "%lldx%lldx%lldx%lld", &n[0], &n[1], &n[2], &n[3]) != 4)
            return fprintf(stderr, "bench_gdn: '%s' is not like 16x2048x4x256\n", argv[i]), 2;
        s = (struct shape){n[0], n[1], n[2], n[3]};
        one(&s);
    }
    for (size_t i = 0; argc <= 2 && i < sizeof usual / sizeof *usual; i++) one(&usual[i]);
    hl_backend_close(backend);
    return 0;
}
