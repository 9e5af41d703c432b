#define _POSIX_C_SOURCE 200809L
/* bench_gemm.c -- the linear layers against OpenBLAS, and decoding against the memory's bandwidth.
 *
 *   cc -O2 -Iinclude -Isrc bench/bench_gemm.c build/gcc/libhola.a -ljansson -lopenblas -lm -pthread -o bench_gemm
 *   ./bench_gemm [threads [backend]]
 * Each line: GFLOP/s of OpenBLAS, of ours, and their ratio; then of ours with BF16 operands, and its ratio to ours in
 * floats; for out = x W^T, dx = dout W, dW += dout^T x. The three take turns, and the best of the rounds counts.
 * With one thread, in CPU time. */
#include "backend/backend.h"
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void openblas_set_num_threads(int n);

static clockid_t the_clock = CLOCK_MONOTONIC;
static double now(void) {
    struct timespec t;
    clock_gettime(the_clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *fresh(int64_t n) {
    float *p = aligned_alloc(4096, (size_t)(n * 4 + 4095) / 4096 * 4096);
    if (!p) exit(1);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(i * 2654435761u % 1000u) * 1e-3f - 0.5f;
    return p;
}

struct setup {
    const struct hl_ops *ops;
    struct hl_backend *backend;
    int M, N, K;
    float *x, *W, *out;
};

/* form 0: out = x W^T; 1: dx = dout W, into x; 2: dW += dout^T x, into W */
static void ours(const struct setup *s, int form, hola_precision how) {
    struct hl_linear a = {.M = s->M, .K = s->K, .x = s->x, .n = 1};
    a.part[0].W = (struct hl_weight){.data = s->W, .layout = HL_ROWS, .rows = s->N, .cols = s->K, .precision = how};
    a.part[0].out = s->out;
    a.part[0].dout = s->out;
    a.dx = form == 1 ? s->x : NULL;
    a.part[0].dW = form == 2 ? s->W : NULL;
    if (form == 0) s->ops->linear_forward(s->backend, &a);
    else s->ops->linear_backward(s->backend, &a);
}
static void theirs(const struct setup *s, int form) {
    int M = s->M, N = s->N, K = s->K;
    if (form == 0) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, s->x, K, s->W, K, 0, s->out, N);
    else if (form == 1)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, M, K, N, 1, s->out, N, s->W, K, 0, s->x, K);
    else cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, N, K, M, 1, s->out, N, s->x, K, 1, s->W, K);
}

static void compare(struct setup *s) {
    double flops = 2.0 * s->M * s->N * s->K;
    int rounds = 5, turns = (int)(2e10 / flops / 8) + 1;
    s->x = fresh((int64_t)s->M * s->K);
    s->W = fresh((int64_t)s->N * s->K);
    s->out = fresh((int64_t)s->M * s->N);
    printf("M %5d N %5d K %5d", s->M, s->N, s->K);
    for (int form = 0; form < 3; form++) {
        double best[3] = {1e30, 1e30, 1e30};
        for (int r = 0; r < 3 * rounds; r++) {
            double t = now();
            for (int i = 0; i < turns; i++)
                if (r % 3 == 0) theirs(s, form);
                else ours(s, form, r % 3 == 1 ? HOLA_PRECISION_AUTO : HOLA_PRECISION_BF16);
            t = (now() - t) / turns;
            if (t < best[r % 3]) best[r % 3] = t;
        }
        printf("  %s %6.1f %6.1f %5.2f %6.1f %5.2f", (const char *[]){"out", "dx", "dW"}[form], flops / best[0] * 1e-9,
               flops / best[1] * 1e-9, best[0] / best[1], flops / best[2] * 1e-9, best[1] / best[2]);
    }
    printf("\n");
    fflush(stdout);
    free(s->x);
    free(s->W);
    free(s->out);
}

/* ---- decoding ---- */

struct reading {
    const float *x;
    int64_t n;
    float out[64 * 16];
};
static void read_all(void *ctx, int64_t i, int worker) {
    struct reading *r = ctx;
    float s[64] = {0};
    (void)worker;
    for (int64_t k = 0; k < r->n; k += 64)
        for (int j = 0; j < 64; j++) s[j] += r->x[i * r->n + k + j];
    r->out[i * 16] = s[0] + s[7] + s[63];
}

/* GFLOP/s of many rows against the first panels */
enum { ROWS = 512 };
static double prefill(const struct setup *s, hola_dtype dtype, const void *panels, int64_t K) {
    enum { N = 1024 };
    float *x = fresh(ROWS * K), *out = fresh(ROWS * N);
    struct hl_linear a = {.M = ROWS, .K = K, .x = x, .n = 1};
    double best = 1e30;
    a.part[0].W = (struct hl_weight){.data = panels, .layout = HL_PANELS, .dtype = dtype, .rows = N, .cols = K};
    a.part[0].out = out;
    for (int r = 0; r < 12; r++) {
        double t = now();
        s->ops->linear_forward(s->backend, &a);
        t = now() - t;
        if (t < best) best = t;
    }
    free(x);
    free(out);
    return 2.0 * ROWS * N * (double)K / best * 1e-9;
}

static void decode(const struct setup *s, hola_dtype dtype, double bandwidth) {
    enum { N = 65536, K = 1024 }; /* 256 MB in f32 */
    float *W = fresh((int64_t)N * K);
    int64_t bytes = hl_panel_bytes(N, K, dtype);
    void *panels = fresh(bytes / 4);
    hl_panel_pack(panels, dtype, W, N, K);
    printf("panels %4s:", hola_dtype_name(dtype));
    for (int M = 1; M <= 16; M *= 2) {
        float *x = fresh(M * K), *out = fresh(M * N);
        struct hl_linear a = {.M = M, .K = K, .x = x, .n = 1};
        double best = 1e30;
        a.part[0].W = (struct hl_weight){.data = panels, .layout = HL_PANELS, .dtype = dtype, .rows = N, .cols = K};
        a.part[0].out = out;
        for (int r = 0; r < 7; r++) {
            double t = now();
            s->ops->linear_forward(s->backend, &a);
            t = now() - t;
            if (t < best) best = t;
        }
        printf("  M %2d %5.1f GB/s (%.2f)", M, (double)bytes / best * 1e-9, (double)bytes / best * 1e-9 / bandwidth);
        free(x);
        free(out);
    }
    printf("  M %d %5.1f GFLOP/s\n", ROWS, prefill(s, dtype, panels, K));
    free(W);
    free(panels);
}

static double bandwidth(struct hl_pool *pool) {
    struct reading r = {.n = 1 << 20};
    double best = 1e30;
    float *x = fresh(64 << 20);
    r.x = x;
    for (int i = 0; i < 7; i++) {
        double t = now();
        hl_pool_run(pool, 64, read_all, &r);
        t = now() - t;
        if (t < best) best = t;
    }
    free(x);
    return (256 << 20) / best * 1e-9;
}

int main(int argc, char **argv) {
    static const int shape[][3] = {{2048, 512, 512},   {2048, 768, 512},   {2048, 512, 768},   {512, 32000, 512},
                                   {2048, 1024, 1024}, {2048, 2816, 1024}, {2048, 1024, 2816}, {2048, 4, 512},
                                   {1024, 512, 512},   {8192, 512, 512}};
    struct setup s = {0};
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (hl_backend_open(&s.backend, argc > 2 ? argv[2] : NULL, threads) != HOLA_OK) return 1;
    if (threads == 1) the_clock = CLOCK_THREAD_CPUTIME_ID;
    s.ops = &s.backend->ops;
    if (hl_backend_reserve(s.backend, hl_linear_scratch()) != HOLA_OK) return 1;
    openblas_set_num_threads(hl_pool_threads(s.backend->pool));
    printf("%s, %d threads: GFLOP/s of OpenBLAS, ours, ratio\n", s.ops->name, hl_pool_threads(s.backend->pool));
    for (size_t i = argc > 3 ? 99 : 0; i < sizeof shape / sizeof *shape; i++) {
        s.M = shape[i][0];
        s.N = shape[i][1];
        s.K = shape[i][2];
        compare(&s);
    }
    double bw = bandwidth(s.backend->pool);
    printf("a plain sum over 256 MB: %.1f GB/s\n", bw);
    for (int t = HOLA_F32; t < HOLA_DTYPE_COUNT; t++) decode(&s, (hola_dtype)t, bw);
    hl_backend_close(s.backend);
    return 0;
}
