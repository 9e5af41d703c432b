/* bench_kda.c -- KDA by itself, forward (with the score m) and backward, and its steps of one token per session.
 *
 *   bench_kda [backend [SEQUENCESxLENGTHxHEADSxSIZE ...]]      default: cuda, and some usual shapes
 * One line per shape: milliseconds, medians over 20 runs, on numbers that are not zero. A length of 1: sessions that
 * take a step each. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"

static const struct bench_shape usual[] = {{32, 2048, 4, 128}, {16, 2048, 8, 128}, {1, 32768, 4, 128}, {64, 1, 8, 128}};
static void forward_of(const void *a) { backend->ops.kda_forward(backend, a); }
static void backward_of(const void *a) { backend->ops.kda_backward(backend, a); }

static void one(const struct bench_shape *s) {
    const int64_t T = s->n * s->len, d = s->heads * s->size;
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg};
    const int64_t state = s->heads * s->size * s->size * (int64_t)sizeof(real);
    char *states = s->len == 1 ? bench_fill_rows(s->n * state / (int64_t)sizeof(real), false, -0.1f, 0.1f, 0) : NULL;
    for (int64_t i = 0; seg && i < s->n; i++)
        seg[i] = (struct hl_seg){.row = i * s->len, .len = s->len, .state = states ? states + i * state : NULL};
    if (!seg || backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK) exit(1);
    struct hl_kda a = {.rows = &rows, .H = s->heads, .HV = s->heads, .K = s->size, .V = s->size};
    a.q = bench_fill_rows(T * d, true, -1, 1, s->size), a.k = bench_fill_rows(T * d, true, -1, 1, s->size);
    a.v = bench_fill_rows(T * d, true, -1, 1, 0), a.dout = bench_fill_rows(T * d, true, -1, 1, 0);
    a.g = bench_fill_rows(T * d, false, -0.1f, 0, 0), a.beta = bench_fill_rows(T * s->heads, false, 0, 1, 0);
    a.out = bench_acts(T * d), a.m = bench_reals(T * s->heads);
    double forward = bench_median(forward_of, &a);
    printf("%3lld x %6lld, %lld heads x %3lld: forward %.3f ms", (long long)s->n, (long long)s->len,
           (long long)s->heads, (long long)s->size, forward);
    a.v_new = bench_acts(T * d), a.A = bench_acts(T * s->heads * HL_CHUNK);
    if (backend->host) a.h = bench_reals(hl_chunks_before(&rows, s->n) * s->heads * s->size * s->size);
    a.dq = bench_acts(T * d), a.dk = bench_acts(T * d), a.dv = bench_acts(T * d);
    a.dg = bench_reals(T * d), a.dbeta = bench_reals(T * s->heads);
    if (states) printf(", %.0f GB/s of states\n", 2e-6 * (double)(s->n * state) / forward);
    else {
        const int64_t kept = backend->kda_kept ? backend->kda_kept(backend, s->size, s->size) : 0;
        double keeping = bench_median(forward_of, &a), backward = bench_median(backward_of, &a);
        printf(", keeping for backward %.3f ms, backward %.3f ms", keeping, backward);
        if (kept) { /* operands as well, as in training */
            a.tiles = bench_reals(hl_chunks_before(&rows, s->n) * s->heads * kept / (int64_t)sizeof(real));
            keeping = bench_median(forward_of, &a), backward = bench_median(backward_of, &a);
            printf("; keeping operands too %.3f and %.3f ms", keeping, backward);
        }
        printf("\n");
    }
    bench_release();
    free(seg);
}

int main(int argc, char **argv) {
    return bench_main(argc, argv, hl_kda_scratch(256, 256), one, usual, sizeof usual / sizeof *usual);
}
