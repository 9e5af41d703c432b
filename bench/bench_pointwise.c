/* bench_pointwise.c -- the norms, the convolution and SwiGLU of a training step, each beside a copy of as many bytes.
 *
 *   bench_pointwise [TOKENSxWIDTHxHEADSxMLP ...]      default: the 46m and 340m presets; heads of 32 to 256
 * A byte read or written counts once, also of the norms' factors. Medians of 20 rounds; in a round calls follow each
 * other without a gap, over sets of arrays of twice the L2 cache at least, so that none finds its numbers there. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"
#include "cuda/device.h"

enum { MOST_SETS = 4, ARRAYS = 6 };
static const int64_t LARGE = 160 << 20; /* bytes that all sets together have at least */

/* One set of arrays: rows of the joint projections and dense ones. */
static struct set {
    void *row[2], *act[ARRAYS];
    real *r;
} set[MOST_SETS];
static int sets;

struct copy {
    void *to, *from;
    int64_t bytes;
};
static void copy(const void *a) {
    const struct copy *k = a;
    hl_copy(backend, k->to, k->from, k->bytes);
}

/* microseconds of f, over `sets` arguments of `size` bytes; median */
static double each(void (*f)(const void *), const void *args, size_t size) {
    double t[BENCH_RUNS];
    const int calls = 2 * sets;
    for (int r = -BENCH_WARM; r < BENCH_RUNS; r++) {
        hl_cuda_timer_start(backend->device);
        for (int i = 0; i < calls; i++) f((const char *)args + (size_t)(i % sets) * size);
        const double seconds = hl_cuda_timer_stop(backend->device);
        if (r >= 0) t[r] = seconds * 1e6 / calls;
    }
    if (hl_finish(backend) != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error()), exit(1);
    qsort(t, BENCH_RUNS, sizeof *t, bench_by_value);
    return t[BENCH_RUNS / 2];
}

static double step[2]; /* milliseconds of a step: of the copies, of the ops */
/* An op that a step calls `calls` times and that moves `bytes`. (No array here is large enough for every copy.) */
static void report(const char *what, int calls, int64_t bytes, void (*f)(const void *), const void *args, size_t size) {
    struct copy c[MOST_SETS];
    const int64_t half = (char *)set[0].act[3] - (char *)set[0].act[0], some = bytes / 2 < half ? bytes / 2 : half;
    for (int i = 0; i < sets; i++) c[i] = (struct copy){set[i].act[0], set[i].act[3], some};
    const double limit = each(copy, c, sizeof *c) * (double)bytes / (2 * (double)some);
    const double us = each(f, args, size);
    printf("%-26s %5.0f MB  %6.1f | %6.1f (%3.0f%%) | x%d\n", what, (double)bytes * 1e-6, limit, us, 100 * limit / us,
           calls);
    step[0] += limit * calls * 1e-3, step[1] += us * calls * 1e-3;
}
static void total(const char *what) {
    printf("%-26s  a step, ms %6.2f | %6.2f\n\n", what, step[0], step[1]);
    step[0] = step[1] = 0;
}

static void norm_forward(const void *a) { backend->ops.rmsnorm_forward(backend, a); }
static void norm_backward(const void *a) { backend->ops.rmsnorm_backward(backend, a); }
static void conv_forward(const void *a) { backend->ops.conv_forward(backend, a); }
static void conv_backward(const void *a) { backend->ops.conv_backward(backend, a); }
static void both_forward(const void *a) { backend->ops.convnorm_forward(backend, a); }
static void both_backward(const void *a) { backend->ops.convnorm_backward(backend, a); }
static void swiglu_forward(const void *a) { backend->ops.swiglu_forward(backend, a); }
static void swiglu_backward(const void *a) { backend->ops.swiglu_backward(backend, a); }

struct model {
    int64_t T, D, H, I; /* tokens, width, heads, width of the MLP */
    int layers;
    bool gate;
};

static void norms(const struct model *m, real *w, real *dw, int64_t ld) {
    const int64_t n = m->T * m->D, K = m->D / m->H, size = backend->act_size;
    struct hl_rmsnorm a[MOST_SETS], o[MOST_SETS];
    for (int i = 0; i < sets; i++) {
        const struct set *s = &set[i];
        a[i] = (struct hl_rmsnorm){.M = m->T, .D = m->D, .eps = (real)1e-6, .x = s->act[0], .w = w, .y = s->act[1]};
        a[i].r = s->r, a[i].dy = s->act[2], a[i].dx = s->act[3], a[i].dw = dw, a[i].dx_add = true;
        o[i] = a[i], o[i].M = m->T * m->H, o[i].D = K, o[i].dx_add = false;
        if (!m->gate) continue;
        o[i].z = (char *)s->row[0] + (ld - m->D) * size, o[i].dz = (char *)s->row[1] + (ld - m->D) * size;
        o[i].z_heads = m->H, o[i].z_ld = ld;
    }
    const int64_t z = m->gate ? 2 * n : 0, r = 4 * m->T;
    report("norm", 2 * m->layers + 1, 4 * n + r, norm_forward, a, sizeof *a);
    report("norm, backward, added", 2 * m->layers + 1, 8 * n + r, norm_backward, a, sizeof *a);
    report(m->gate ? "gated norm" : "norm of heads", m->layers, 4 * n + z + r * m->H, norm_forward, o, sizeof *o);
    report(m->gate ? "gated norm, backward" : "norm of heads, backward", m->layers, 6 * n + 2 * z + r * m->H,
           norm_backward, o, sizeof *o);
    total("norms");
}

static void convolutions(const struct model *m, const struct hl_rows *rows, real *w, real *dw, int64_t ld) {
    const int64_t n = m->T * m->D, K = m->D / m->H, r = 4 * m->T * m->H;
    struct hl_conv c[MOST_SETS], v[MOST_SETS];
    struct hl_l2norm l2[MOST_SETS];
    struct hl_rmsnorm rms[MOST_SETS];
    struct hl_convnorm both[MOST_SETS];
    for (int i = 0; i < sets; i++) {
        const struct set *s = &set[i];
        c[i] = (struct hl_conv){.rows = rows, .C = m->D, .W = 4, .ld = ld, .x = s->row[0], .dx = s->row[1], .w = w};
        c[i].dw = dw;
        v[i] = c[i], v[i].y = s->act[0], v[i].dy = s->act[1];
        l2[i] = (struct hl_l2norm){.M = m->T * m->H, .D = K, .y = s->act[0], .r = s->r, .dy = s->act[1]};
        rms[i] = (struct hl_rmsnorm){.M = m->T * m->H, .D = K, .eps = (real)1e-6, .w = w, .y = s->act[2]};
        rms[i].r = s->r, rms[i].dy = s->act[3], rms[i].dw = dw + 4 * m->D;
        both[i] = (struct hl_convnorm){&c[i], &l2[i], &rms[i]};
    }
    report("convolution and norms", 2 * m->layers, 6 * n + r, both_forward, both, sizeof *both);
    report("... backward", 2 * m->layers, 8 * n + r, both_backward, both, sizeof *both);
    report("convolution of v", m->layers, 4 * n, conv_forward, v, sizeof *v);
    report("... backward", m->layers, 6 * n, conv_backward, v, sizeof *v);
    total("convolutions");
}

static void mlp(const struct model *m) {
    const int64_t n = m->T * m->I, size = backend->act_size;
    struct hl_swiglu s[MOST_SETS];
    for (int i = 0; i < sets; i++) {
        char *pair = set[i].act[3], *gradient = set[i].act[0];
        s[i] = (struct hl_swiglu){.M = m->T, .D = m->I, .ld = 2 * m->I, .gate = pair, .up = pair + m->I * size};
        s[i].y = gradient, s[i].dgate = gradient, s[i].dup = gradient + m->I * size, s[i].dy = set[i].row[0];
    }
    report("SwiGLU", m->layers, 6 * n, swiglu_forward, s, sizeof *s);
    report("SwiGLU, backward", m->layers, 10 * n, swiglu_backward, s, sizeof *s);
    total("SwiGLU");
}

static void step_of(const struct model *m) {
    enum { DOCUMENT = 2048, MOST = 64 };
    const int64_t row = (m->gate ? 4 : 3) * m->D + 64, wide = row > m->I ? row : m->I, n = m->T * m->D;
    /* three in a row hold both of an MLP; whole 128 bytes, since the kernels move 16 at once */
    const int64_t third = (2 * m->T * m->I / 3 / 64 + 1) * 64, part = n > third ? (n + 63) / 64 * 64 : third;
    struct hl_seg seg[MOST];
    struct hl_rows rows = {.T = m->T, .n = m->T / DOCUMENT, .seg = seg};
    for (int i = 0; i < rows.n; i++) seg[i] = (struct hl_seg){.row = i * DOCUMENT, .len = DOCUMENT};
    if (backend->storage.cut_rows(backend, &rows, 64) != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error()), exit(1);
    real *w = bench_fill(4 * m->D, false, 0.5f, 1.5f), *dw = bench_fill(5 * m->D, false, -1, 1);
    sets = (int)(LARGE / (4 * n)) + 2 < MOST_SETS ? (int)(LARGE / (4 * n)) + 2 : MOST_SETS;
    char *random = bench_fill(m->T * wide, true, -1, 1);
    for (int i = 0; i < sets; i++) {
        struct set *s = &set[i];
        char *all = bench_acts(ARRAYS * part);
        for (int k = 0; k < 2; k++) {
            s->row[k] = bench_acts(m->T * wide);
            hl_copy(backend, s->row[k], random, m->T * wide * backend->act_size);
        }
        for (int k = 0; k < ARRAYS; k++) {
            s->act[k] = all + k * part * backend->act_size;
            hl_copy(backend, s->act[k], random, part * backend->act_size);
        }
        s->r = bench_fill(m->T * m->H, false, 0.5f, 1.5f);
    }
    printf("%lld tokens, width %lld, %lld heads, MLP %lld, %d layers: copy of as many bytes, us | the op | calls a "
           "step\n",
           (long long)m->T, (long long)m->D, (long long)m->H, (long long)m->I, m->layers);
    norms(m, w, dw, row);
    convolutions(m, &rows, w, dw, row);
    mlp(m);
    bench_release();
}

int main(int argc, char **argv) {
    static const struct model usual[] = {{65536, 512, 4, 768, 12, true}, {32768, 1024, 4, 2816, 24, false}};
    if (hl_backend_open(&backend, "cuda", 0) != HOLA_OK || hl_backend_reserve(backend, 64 << 20) != HOLA_OK)
        return fprintf(stderr, "%s: %s\n", argv[0], hola_last_error()), 1;
    for (int i = 1; i < argc; i++) {
        long long n[4];
        if (sscanf(argv[i], "%lldx%lldx%lldx%lld", &n[0], &n[1], &n[2], &n[3]) != 4)
            return fprintf(stderr, "%s: '%s' is not like 65536x512x4x768\n", argv[0], argv[i]), 2;
        const struct model m = {n[0], n[1], n[2], n[3], 1, true};
        step_of(&m);
    }
    for (size_t i = 0; argc <= 1 && i < sizeof usual / sizeof *usual; i++) step_of(&usual[i]);
    hl_backend_close(backend);
    return 0;
}
