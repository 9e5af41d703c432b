/* bench_attention.c -- softmax attention on the CPU: training forward and backward, and one query against a cache in
 * pages, as shares of what the machine does in a plain product and in a read of memory, measured in the same run. */
#define _POSIX_C_SOURCE 200809L
#include "backend/backend.h"
#include "ops/linear/linear.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 5 };
static int threads;

/* One thread is timed by its processor time, which other programs on the machine hardly change. */
static double now(void) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *fill(int64_t n, uint32_t seed) {
    real *x = aligned_alloc(256, (size_t)(n * (int64_t)sizeof *x + 255) / 256 * 256);
    for (int64_t i = 0; i < n; i++) x[i] = (real)((seed = seed * 1664525u + 1013904223u) >> 8) * (real)0x1p-23 - 1;
    return x;
}

#define BEST(seconds, call)                     \
    do {                                        \
        seconds = 1e30;                         \
        for (int i_ = 0; i_ < REPEATS; i_++) {  \
            const double before = now();        \
            call;                               \
            const double took = now() - before; \
            if (took < seconds) seconds = took; \
        }                                       \
    } while (0)

/* Operations per second of a product of the size of a layer's. */
static double product_rate(struct hl_backend *b) {
    enum { M = 1024, N = 1024, K = 1024 };
    struct hl_linear a = {.M = M, .K = K, .x = fill(M * K, 1), .n = 1};
    double s;
    a.part[0].W = (struct hl_weight){.data = fill(N * K, 2), .rows = N, .cols = K};
    a.part[0].out = fill(M * N, 3);
    BEST(s, b->ops.linear_forward(b, &a));
    free((void *)a.x), free((void *)a.part[0].W.data), free(a.part[0].out);
    return 2.0 * M * N * K / s;
}

struct reading {
    const float *x;
    int64_t n, parts;
    float sum[256];
};
static void read_part(void *ctx, int64_t i, int worker) {
    struct reading *r = ctx;
    float s[16] = {0};
    (void)worker;
    for (int64_t j = i * (r->n / r->parts); j + 16 <= (i + 1) * (r->n / r->parts); j += 16)
        for (int k = 0; k < 16; k++) s[k] += r->x[j + k];
    r->sum[i] = s[0] + s[5] + s[15];
}
static double read_rate(struct hl_backend *b) {
    struct reading r = {.n = 1 << 26, .parts = 256};
    double s;
    r.x = fill(r.n, 1);
    BEST(s, hl_pool_run(b->pool, r.parts, read_part, &r));
    free((void *)r.x);
    return (double)r.n * sizeof(float) / s;
}

static void train(struct hl_backend *b, int64_t T, int64_t H, int64_t HK, int64_t D, int64_t window, double rate) {
    struct hl_seg seg = {.len = T};
    struct hl_rows rows = {.T = T, .n = 1, .seg = &seg};
    struct hl_attention a = {.rows = &rows, .H = H, .HK = HK, .D = D, .window = window, .scale = 1 / R_SQRT((real)D)};
    double forward, backward, pairs = 0;
    a.q = fill(T * H * D, 1), a.k = fill(T * HK * D, 2), a.v = fill(T * HK * D, 3), a.dout = fill(T * H * D, 4);
    a.out = fill(T * H * D, 5), a.lse = fill(T * H, 6);
    a.dq = fill(T * H * D, 7), a.dk = fill(T * HK * D, 8), a.dv = fill(T * HK * D, 9);
    BEST(forward, b->ops.attention_forward(b, &a));
    BEST(backward, b->ops.attention_backward(b, &a));
    for (int64_t t = 0; t < T; t++) pairs += (double)(window && t >= window ? window : t + 1) * (double)(H * D);
    printf("train  T %5lld, %2lld/%lld x %3lld, window %5lld: forward %8.2f ms %5.1f%%, backward %8.2f ms %5.1f%%\n",
           (long long)T, (long long)H, (long long)HK, (long long)D, (long long)window, forward * 1e3,
           100 * 4 * pairs / forward / rate, backward * 1e3, 100 * 10 * pairs / backward / rate);
    free((void *)a.q), free((void *)a.k), free((void *)a.v), free((void *)a.dout), free(a.out), free(a.lse);
    free(a.dq), free(a.dk), free(a.dv);
}

static void decode(struct hl_backend *b, int64_t pos, int64_t H, int64_t HK, int64_t D, double rate) {
    const int64_t width = HK * D, n = pos / HL_PAGE_TOKENS + 1;
    char **page = malloc((size_t)n * sizeof *page), state = 0;
    for (int64_t i = 0; i < n; i++) page[i] = fill(2 * HL_PAGE_TOKENS * width, (uint32_t)i);
    char *const *pages[] = {page};
    struct hl_seg seg = {.len = 1, .pos = pos, .state = &state};
    struct hl_rows rows = {.T = 1, .n = 1, .seg = &seg, .pages = pages};
    struct hl_attention a = {.rows = &rows, .H = H, .HK = HK, .D = D, .scale = 1 / R_SQRT((real)D)};
    double s;
    a.q = fill(H * D, 1), a.k = fill(width, 2), a.v = fill(width, 3), a.out = fill(H * D, 5);
    a.v_off = HL_PAGE_TOKENS * width * (int64_t)sizeof(real);
    BEST(s, b->ops.attention_forward(b, &a));
    printf("decode at %6lld, %2lld/%lld x %3lld: %8.3f ms, %5.1f%% of a read\n", (long long)pos, (long long)H,
           (long long)HK, (long long)D, s * 1e3, 100 * 2 * (double)(pos * width) * sizeof(real) / s / rate);
    for (int64_t i = 0; i < n; i++) free(page[i]);
    free(page), free((void *)a.q), free((void *)a.k), free((void *)a.v), free(a.out);
}

int main(int argc, char **argv) {
    struct hl_backend *b;
    const char *name = argc > 1 ? argv[1] : "cpu";
    threads = argc > 2 ? atoi(argv[2]) : 0;
    if (hl_backend_open(&b, name, threads) != HOLA_OK ||
        hl_backend_reserve(b, hl_attention_scratch(1, 1, 256) + hl_linear_scratch()) != HOLA_OK) {
        fprintf(stderr, "%s\n", hola_last_error());
        return 1;
    }
    const double flops = product_rate(b), bytes = read_rate(b);
    printf("%s: product %.1f GFLOP/s, read %.1f GB/s\n", b->ops.name, flops * 1e-9, bytes * 1e-9);
    train(b, 4096, 8, 8, 64, 0, flops);
    train(b, 4096, 4, 4, 128, 0, flops);
    train(b, 4096, 8, 2, 64, 0, flops);
    train(b, 1024, 8, 8, 64, 0, flops);
    train(b, 4096, 8, 8, 64, 512, flops);
    decode(b, 4095, 8, 8, 64, bytes);
    decode(b, 32767, 8, 8, 64, bytes);
    decode(b, 32767, 16, 4, 64, bytes);
    decode(b, 32767, 4, 4, 128, bytes);
    hl_backend_close(b);
    return 0;
}
