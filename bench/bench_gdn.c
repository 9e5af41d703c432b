/* bench_gdn.c -- the gated delta rule by itself, forward (with the score m) and backward.
 *
 *   bench_gdn [backend [SEQUENCESxLENGTHxHEADSxSIZE ...]]      default: cuda, and the shapes of docs/speed.md
 * One line per shape: milliseconds, medians over 20 runs, on numbers that are not zero. On a GPU two more:
 * the kernels that were taken, and when they are the fastest. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"

static const struct bench_shape usual[] = {
    {16, 2048, 4, 256}, {32, 2048, 4, 128}, {1, 32768, 4, 256}, {1, 32768, 16, 128}, {8, 4096, 16, 128}};
static void forward_of(const void *a) { backend->ops.gdn_forward(backend, a); }
static void backward_of(const void *a) { backend->ops.gdn_backward(backend, a); }

/* Not there in a build without CUDA. */
#pragma weak hl_cuda_gdn_form
#pragma weak hl_cuda_f32_gdn_form
static void print_form(const struct hl_gdn *a, bool backward) {
    if (backend->host || !hl_cuda_gdn_form || !hl_cuda_f32_gdn_form) return;
    const struct hl_gdn_form f =
        (backend->act_size == 2 ? hl_cuda_gdn_form : hl_cuda_f32_gdn_form)(backend, a, backward);
    printf("    %s: %s (%s)\n", backward ? "backward" : "forward", f.name, f.when);
}

static void one(const struct bench_shape *s) {
    const int64_t T = s->n * s->len, d = s->heads * s->size;
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg};
    for (int64_t i = 0; seg && i < s->n; i++) seg[i] = (struct hl_seg){.row = i * s->len, .len = s->len};
    if (!seg || backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK) exit(1);
    struct hl_gdn a = {.rows = &rows, .H = s->heads, .HV = s->heads, .K = s->size, .V = s->size};
    a.q = bench_fill_rows(T * d, true, -1, 1, s->size), a.k = bench_fill_rows(T * d, true, -1, 1, s->size);
    a.v = bench_fill_rows(T * d, true, -1, 1, 0), a.dout = bench_fill_rows(T * d, true, -1, 1, 0);
    a.g = bench_fill_rows(T * s->heads, false, -0.1f, 0, 0), a.beta = bench_fill_rows(T * s->heads, false, 0, 1, 0);
    a.out = bench_acts(T * d), a.m = bench_reals(T * s->heads);
    double forward = bench_median(forward_of, &a);
    a.v_new = bench_acts(T * d), a.A = bench_acts(T * s->heads * HL_CHUNK);
    if (backend->host) a.h = bench_reals(hl_chunks_before(&rows, s->n) * s->heads * s->size * s->size);
    a.dq = bench_acts(T * d), a.dk = bench_acts(T * d), a.dv = bench_acts(T * d);
    a.dg = bench_reals(T * s->heads), a.dbeta = bench_reals(T * s->heads);
    double keeping = bench_median(forward_of, &a), backward = bench_median(backward_of, &a);
    printf("%3lld x %6lld, %lld heads x %3lld: forward %.3f ms, keeping for backward %.3f ms, backward %.3f "
           "ms\n",
           (long long)s->n, (long long)s->len, (long long)s->heads, (long long)s->size, forward, keeping, backward);
    print_form(&a, false), print_form(&a, true);
    bench_release();
    free(seg);
}

int main(int argc, char **argv) {
    return bench_main(argc, argv, hl_gdn_scratch(256, 256), one, usual, sizeof usual / sizeof *usual);
}
