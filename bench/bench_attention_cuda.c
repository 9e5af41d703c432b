/* bench_attention_cuda.c -- softmax attention and rotary positions by themselves on a device: forward, backward, and
 * one new token.
 *
 *   bench_attention_cuda [backend [SEQUENCESxLENGTHxHEADSxSIZE ...]]      default: cuda, and the shapes of docs/speed.md
 * One line per shape: milliseconds, medians over 20 runs, on numbers that are not zero, and the rate of the products
 * that causal attention needs. Then, for the shapes below, a token of every session: microseconds of one layer, and the
 * bytes of keys and values a second; LAYERS layers in turn, so that none is in the cache. */
#define _POSIX_C_SOURCE 200809L
#include "core/half.h"
#include "backend/backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct shape {
    int64_t n, len, heads, size;
};
static const struct shape usual[] = {{32, 2048, 4, 128}, {32, 2048, 8, 64}, {4, 8192, 8, 128}, {1, 32768, 8, 128}},
                          steps[] = {{1, 2048, 16, 64}, {1, 32768, 16, 64}, {64, 2048, 16, 64}, {8, 8192, 8, 128}};
enum { RUNS = 20, WARM = 3, LAYERS = 12 };

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
static void *alloc(int64_t bytes) {
    void *p = hl_alloc(backend, bytes);
    if (!p) fprintf(stderr, "bench_attention_cuda: no memory for %lld bytes\n", (long long)bytes), exit(1);
    return p;
}
/* activations: a million random ones again and again */
static void *fill(int64_t n) {
    enum { PIECE = 1 << 20 };
    static float x[PIECE];
    static uint16_t half[PIECE];
    static uint64_t draw = 88172645463325252u;
    const int64_t size = backend->act_size;
    char *p = alloc(n * size);
    for (int i = 0; i < PIECE && x[PIECE - 1] == 0; i++) {
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
        x[i] = (float)(draw >> 40) * 0x1p-23f - 1, half[i] = hl_to_bf16(x[i]);
    }
    for (int64_t i = 0; i < n; i += PIECE)
        hl_put(backend, p + i * size, size == 2 ? (void *)half : (void *)x, (n - i < PIECE ? n - i : PIECE) * size);
    hl_finish(backend);
    return p;
}
static double median_ms(void (*f)(const void *), const void *a) {
    double t[RUNS];
    for (int i = -WARM; i < RUNS; i++) {
        hl_finish(backend);
        const double began = now();
        f(a);
        if (hl_finish(backend) != HOLA_OK) fprintf(stderr, "bench_attention_cuda: %s\n", hola_last_error()), exit(1);
        if (i >= 0) t[i] = (now() - began) * 1e3;
    }
    qsort(t, RUNS, sizeof *t, by_value);
    return t[RUNS / 2];
}
static void forward(const void *a) { ops->attention_forward(backend, a); }
static void backward(const void *a) { ops->attention_backward(backend, a); }
static void rope(const void *a) { ops->rope_forward(backend, a); }

static void one(const struct shape *s) {
    const int64_t T = s->n * s->len, d = s->heads * s->size;
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg, .tiled = true};
    for (int64_t i = 0; seg && i < s->n; i++) seg[i] = (struct hl_seg){.row = i * s->len, .len = s->len};
    if (!seg || (backend->storage.cut_rows && backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK)) exit(1);
    struct hl_attention a = {.rows = &rows, .H = s->heads, .HK = s->heads, .D = s->size};
    a.scale = (real)(1 / sqrt((double)s->size));
    a.q = fill(T * d), a.k = fill(T * d), a.v = fill(T * d), a.dout = fill(T * d);
    a.out = alloc(T * d * backend->act_size), a.lse = alloc(T * s->heads * (int64_t)sizeof(real));
    a.dq = fill(T * d), a.dk = fill(T * d), a.dv = fill(T * d);
    struct hl_rope r = {.rows = &rows, .H = s->heads, .D = s->size, .theta = 10000, .x = a.dq, .y = a.dq};
    const double flop = 2.0 * (double)s->n * (double)(s->len * s->len) * (double)d * 1e-9, turn = median_ms(rope, &r),
                 there = median_ms(forward, &a), back = median_ms(backward, &a);
    printf(
        "%3lld x %6lld, %2lld heads x %3lld: forward %.3f ms (%.0f TFLOP/s), backward %.3f ms (%.0f), rope %.3f ms\n",
        (long long)s->n, (long long)s->len, (long long)s->heads, (long long)s->size, there, flop / there, back,
        2.5 * flop / back, turn);
    const void *all[] = {a.q, a.k, a.v, a.dout, a.out, a.lse, a.dq, a.dk, a.dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) hl_release(backend, (void *)all[i]);
    free(seg);
}

static void token(const void *args) {
    static uint64_t key;
    static const void *last;
    struct hl_attention a = *(const struct hl_attention *)args;
    if (last != a.rows->seg) last = a.rows->seg, key++; /* recorded as a graph, as in a session */
    if (backend->graphs.replay && backend->graphs.replay(backend, key)) return;
    const int64_t part = HL_PAGE_TOKENS * a.HK * a.D * backend->act_size;
    for (int l = 0; l < LAYERS; l++) {
        a.k_off = 2 * l * part, a.v_off = (2 * l + 1) * part;
        ops->attention_forward(backend, &a);
    }
    if (backend->graphs.recorded) backend->graphs.recorded(backend, key);
}
/* The last `each` rows of every session: a token, or a piece of a prompt. */
static void step(const struct shape *s, int64_t each) {
    const int64_t d = s->heads * s->size, T = s->n * each, pages = hl_pieces(s->len, HL_PAGE_TOKENS);
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    char **page = calloc((size_t)(s->n * pages), sizeof *page), ***table = calloc((size_t)s->n, sizeof *table);
    char *state = alloc(64);
    if (!seg || !page || !table) exit(1);
    for (int64_t i = 0; i < s->n * pages; i++) page[i] = fill(LAYERS * 2 * HL_PAGE_TOKENS * d);
    for (int64_t i = 0; i < s->n; i++) {
        seg[i] = (struct hl_seg){.row = i * each, .len = each, .pos = s->len - each, .state = state};
        table[i] = page + i * pages;
    }
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg, .tiled = true, .pages = (char *const *const *)table};
    if (backend->storage.cut_rows && backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK) exit(1);
    struct hl_attention a = {.rows = &rows, .H = s->heads, .HK = s->heads, .D = s->size};
    a.scale = (real)(1 / sqrt((double)s->size));
    a.q = fill(T * d), a.k = fill(T * d), a.v = fill(T * d), a.out = fill(T * d);
    const double ms = median_ms(token, &a) / LAYERS,
                 bytes = 2.0 * (double)(s->n * s->len * d) * (double)backend->act_size;
    if (each == 1)
        printf("a token of %2lld x %6lld, %2lld heads x %3lld: %.2f us a layer, %.0f GB/s\n", (long long)s->n,
               (long long)s->len, (long long)s->heads, (long long)s->size, ms * 1e3, bytes / ms * 1e-6);
    else
        printf("the last %lld of %lld x %lld, %lld heads x %lld: %.3f ms a layer, %.0f TFLOP/s\n", (long long)each,
               (long long)s->n, (long long)s->len, (long long)s->heads, (long long)s->size, ms,
               4.0 * (double)(T * d) * ((double)s->len - (double)each / 2) / ms * 1e-9);
    const void *all[] = {a.q, a.k, a.v, a.out, state};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) hl_release(backend, (void *)all[i]);
    for (int64_t i = 0; i < s->n * pages; i++) hl_release(backend, page[i]);
    free(seg), free(page), free(table);
}

int main(int argc, char **argv) {
    if (hl_backend_open(&backend, argc > 1 ? argv[1] : "cuda", 0) != HOLA_OK)
        return fprintf(stderr, "bench_attention_cuda: %s\n", hola_last_error()), 1;
    ops = &backend->ops;
    for (int i = 2; i < argc; i++) {
        struct shape s;
        long long n[4];
        if (sscanf(argv[i], "%lldx%lldx%lldx%lld", &n[0], &n[1], &n[2], &n[3]) != 4)
            return fprintf(stderr, "bench_attention_cuda: '%s' is not like 32x2048x4x128\n", argv[i]), 2;
        s = (struct shape){n[0], n[1], n[2], n[3]};
        one(&s);
    }
    for (size_t i = 0; argc <= 2 && i < sizeof usual / sizeof *usual; i++) one(&usual[i]);
    for (size_t i = 0; argc <= 2 && i < sizeof steps / sizeof *steps; i++) step(&steps[i], 1);
    if (argc <= 2) step(&(struct shape){1, 32768, 8, 128}, 4096);
    hl_backend_close(backend);
    return 0;
}
