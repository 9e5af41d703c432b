/* bench_gla.c -- gated linear attention and gated slot attention by themselves, forward and backward.
 *
 *   bench_gla [backend [SEQUENCESxLENGTHxHEADSxKxV[xSLOTS] ...]]      default: cuda, and the shapes of the presets
 * With slots it is GSA, without GLA. One line per shape: milliseconds, medians over 20 runs. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"

struct shape {
    int64_t n, len, heads, K, V, M;
};
static const struct shape usual[] = {
    {32, 2048, 4, 128, 128, 0},  {32, 2048, 4, 64, 128, 0},   {16, 2048, 4, 128, 256, 0}, {1, 32768, 4, 128, 256, 0},
    {32, 2048, 4, 128, 128, 64}, {16, 2048, 4, 256, 256, 64}, {1, 1, 4, 128, 256, 0},     {64, 1, 4, 128, 256, 0},
    {1, 1, 4, 256, 256, 64},     {64, 1, 4, 256, 256, 64}};

static void gla_forward(const void *a) { backend->ops.gla_forward(backend, a); }
static void gla_backward(const void *a) { backend->ops.gla_backward(backend, a); }
static void gsa_forward(const void *a) { backend->ops.gsa_forward(backend, a); }
static void gsa_backward(const void *a) { backend->ops.gsa_backward(backend, a); }

static void one(const struct shape *s) {
    const int64_t T = s->n * s->len, H = s->heads, K = s->K, V = s->V, M = s->M;
    const bool step = s->len == 1; /* decoding: sessions, and no backward pass */
    struct hl_seg *seg = calloc((size_t)s->n, sizeof *seg);
    struct hl_rows rows = {.T = T, .n = s->n, .seg = seg};
    const int64_t state = H * (M ? (K + V) * M : K * V);
    float *states = step ? bench_fill(s->n * state, false, -0.1f, 0.1f) : NULL;
    for (int64_t i = 0; seg && i < s->n; i++) {
        seg[i] = (struct hl_seg){.row = i * s->len, .len = s->len};
        if (step) seg[i].state = (char *)(states + i * state);
    }
    if (!seg || backend->storage.cut_rows(backend, &rows, 0) != HOLA_OK) exit(1);
    const void *q = bench_fill(T * H * K, true, -1, 1), *k = bench_fill(T * H * K, true, -1, 1);
    const void *v = bench_fill(T * H * V, true, -1, 1), *dout = bench_fill(T * H * V, true, -1, 1);
    const real *g = bench_fill(T * H * (M ? M : K), false, -0.1f, 0);
    void *out = bench_acts(T * H * V), *dq = bench_acts(T * H * K), *dk = bench_acts(T * H * K);
    void *dv = bench_acts(T * H * V);
    real *dg = bench_reals(T * H * (M ? M : K));
    struct hl_gla a = {.rows = &rows, .H = H, .HK = H, .K = K, .V = V, .q = q, .k = k, .v = v, .g = g};
    a.scale = 0.1f, a.out = out, a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv, a.dg = dg;
    struct hl_gsa b = {.rows = &rows, .H = H, .HK = H, .K = K, .V = V, .M = M, .q = q, .k = k, .v = v, .f = g};
    b.out = out, b.dout = dout, b.dq = dq, b.dk = dk, b.dv = dv, b.df = dg;
    b.Vt_off = H * K * M * (int64_t)sizeof(real);
    if (M && !step) b.p = bench_acts(T * H * M);
    const double forward = M ? bench_median(gsa_forward, &b) : bench_median(gla_forward, &a);
    printf("%s %3lld x %6lld, %lld heads x %3lld, %3lld", M ? "gsa" : "gla", (long long)s->n, (long long)s->len,
           (long long)H, (long long)K, (long long)V);
    if (M) printf(", %lld slots", (long long)M);
    printf(": forward %.3f ms", forward);
    if (!step) printf(", backward %.3f ms", M ? bench_median(gsa_backward, &b) : bench_median(gla_backward, &a));
    printf("\n");
    fflush(stdout);
    bench_release();
    free(seg);
}

int main(int argc, char **argv) {
    if (hl_backend_open(&backend, argc > 1 ? argv[1] : "cuda", 0) != HOLA_OK)
        return fprintf(stderr, "bench_gla: %s\n", hola_last_error()), 1;
    if (backend->host && hl_backend_reserve(backend, hl_gsa_scratch(256, 256, 256)) != HOLA_OK)
        return fprintf(stderr, "bench_gla: %s\n", hola_last_error()), 1;
    for (int i = 2; i < argc; i++) {
        long long n[6] = {0};
        const int got = sscanf(argv[i], "%lldx%lldx%lldx%lldx%lldx%lld", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]);
        if (got < 5) return fprintf(stderr, "bench_gla: '%s' is not like 32x2048x4x128x128\n", argv[i]), 2;
        const struct shape s = {n[0], n[1], n[2], n[3], n[4], n[5]};
        one(&s);
    }
    for (size_t i = 0; argc <= 2 && i < sizeof usual / sizeof *usual; i++) one(&usual[i]);
    hl_backend_close(backend);
    return 0;
}
