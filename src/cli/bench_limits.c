/* bench_limits.c -- the two reference limits: the fastest matrix product of the installed BLAS, and memory read
 * bandwidth. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench.h"
#include "core/clock.h"
#include "core/process.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HL_HAVE_OPENBLAS
#include <cblas.h>
#endif

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

struct product {
    int64_t M, N, K;
};
static const struct product products[] = {{2048, 2048, 2048}, {4096, 1024, 1024}, {4096, 768, 512}};

static float *operands(int64_t n) {
    float *x = aligned_alloc(64, (size_t)((n * (int64_t)sizeof *x + 63) / 64 * 64));
    for (int64_t i = 0; x && i < n; i++) x[i] = (float)(i % 251) * 0.01f - 1.0f;
    return x;
}

/* best rate over a few runs */
static void time_product(struct bench_limits *l, struct hl_backend *backend, const struct product *p) {
    float *x = operands(p->M * p->K), *W = operands(p->N * p->K), *y = operands(p->M * p->N);
    const double flop = 2.0 * (double)p->M * (double)p->N * (double)p->K;
    struct hl_linear a = {.M = p->M, .K = p->K, .x = x, .n = 1};
    a.part[0].W = (struct hl_weight){.data = W, .layout = HL_ROWS, .rows = p->N, .cols = p->K};
    a.part[0].out = y;
    for (int i = 0; x && W && y && i < 4; i++) {
        double t = hl_clock(), s;
#ifdef HL_HAVE_OPENBLAS
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->M, (int)p->N, (int)p->K, 1, x, (int)p->K, W,
                    (int)p->K, 0, y, (int)p->N);
        s = hl_clock() - t;
        if (flop / s > l->blas) l->blas = flop / s;
        t = hl_clock();
#endif
        backend->ops.linear_forward(backend, &a);
        s = hl_clock() - t;
        if (flop / s > l->own) l->own = flop / s;
    }
    free(x);
    free(W);
    free(y);
}

enum { PIECES = 64, LINES = 16 /* numbers in two cache lines */ };
struct sweep {
    const uint64_t *x;
    int64_t n; /* per piece */
    uint64_t sum[PIECES];
};
static void sweep_piece(void *ctx, int64_t i, int worker) {
    struct sweep *s = ctx;
    const uint64_t *x = s->x + i * s->n;
    uint64_t sum[LINES] = {0}; /* one sum would be bound by additions, below the memory's rate */
    (void)worker;
    for (int64_t j = 0; j < s->n; j += LINES)
        for (int k = 0; k < LINES; k++) sum[k] += x[j + k];
    for (int k = 0; k < LINES; k++) s->sum[i] += sum[k];
}

static void time_reading(struct bench_limits *l, struct hl_pool *pool) {
    const int64_t bytes = (int64_t)512 << 20;
    uint64_t *x = hl_large_alloc(bytes); /* allocated like weights */
    struct sweep s = {.x = x, .n = bytes / 8 / PIECES};
    if (!x) return;
    memset(x, 1, (size_t)bytes);
    for (int i = 0; i < 6; i++) {
        double t = hl_clock();
        hl_pool_run(pool, PIECES, sweep_piece, &s);
        t = hl_clock() - t;
        if ((double)bytes / t > l->bandwidth) l->bandwidth = (double)bytes / t;
    }
    free(x);
}

/* On a device: one large product and one large copy, with non-zero data. */
static void device_limits(struct bench_limits *l, struct hl_backend *backend) {
    enum { N = 8192, TIMES = 10 };
    const int64_t n = (int64_t)N * N, bytes = n * backend->act_size, big = (int64_t)1 << 31;
    char *x = hl_alloc(backend, 3 * bytes), *copy = hl_alloc(backend, 2 * big);
    uint16_t *host = malloc((size_t)(2 * bytes));
    if (x && copy && host) {
        struct hl_linear a = {.M = N, .K = N, .x = x, .n = 1};
        a.part[0].W = (struct hl_weight){
            .data = x + bytes, .dtype = backend->act_size == 2 ? HOLA_BF16 : HOLA_F32, .rows = N, .cols = N};
        a.part[0].out = x + 2 * bytes;
        for (int64_t i = 0; i < bytes; i++) /* 0.5 to 2, both signs, for either type */
            host[i] = (uint16_t)(0x3f00u + (uint32_t)(i * 2654435761u >> 20) % 256 + (i % 3 == 0 ? 0x8000u : 0));
        hl_put(backend, x, host, 2 * bytes);
        hl_zero(backend, copy, big);
        for (int i = 0; i < TIMES; i++) {
            hl_finish(backend);
            double t = hl_clock();
            for (int j = 0; j < 4; j++) backend->ops.linear_forward(backend, &a);
            hl_finish(backend);
            t = (hl_clock() - t) / 4;
            if (2.0 * N * (double)n / t > l->own) l->own = 2.0 * N * (double)n / t;
            t = hl_clock();
            for (int j = 0; j < 4; j++) hl_copy(backend, copy + big, copy, big);
            hl_finish(backend);
            t = (hl_clock() - t) / 4;
            if (2.0 * (double)big / t > l->bandwidth) l->bandwidth = 2.0 * (double)big / t;
        }
    }
    hl_release(backend, x);
    hl_release(backend, copy);
    free(host);
}

void bench_limits_measure(struct bench_limits *l, struct hl_backend *backend) {
    if (!backend->host) {
        device_limits(l, backend);
        return;
    }
#ifdef HL_HAVE_OPENBLAS
    openblas_set_num_threads(hl_pool_threads(backend->pool));
#endif
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) time_product(l, backend, &products[i]);
    time_reading(l, backend->pool);
}
