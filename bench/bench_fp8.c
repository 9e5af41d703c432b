/* bench_fp8.c -- the products of a linear layer in FP8 and in bf16, and the quantisation of their operands.
 *
 *   bench_fp8 [TOKENSxINPUTSxOUTPUTS ...]      default: those of the 340m and 46m presets
 * Three products for each: out = x W^T, dx = dout W, dW = dout^T x (summed over the tokens, into floats). Medians of 20
 * runs; rates in TFLOP/s, and the quantisation of x or dout in GB/s of what it reads and writes.
 *
 *   bench_fp8 quantise [ROWSxCOLUMNS ...]      default: the matrices of a step of 340m
 * The quantisation alone, in every form, beside a copy of as many bytes. Each byte read or written counts once. Calls
 * follow each other without a gap, over three sets of arrays, so that none finds its numbers in the cache. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"
#include "cuda/device.h"
#include "ops/linear/fp8.h"
#include <string.h>

static void quantise(const void *a) { backend->ops.fp8_quantise(backend, a); }
static void multiply(const void *a) { hl_cuda_gemm(backend->device, a); }

/* Random codes with their scales. */
static struct hl_fp8_quantise operand(int64_t rows, int64_t cols, bool blocks) {
    struct hl_fp8_quantise x = {.rows = rows, .cols = cols, .ld = cols, .blocks = blocks};
    x.x = bench_fill(rows * cols, true, -1, 1);
    x.codes = bench_alloc(rows * cols, 1);
    x.scale = bench_reals(hl_fp8_scales(blocks, rows, cols));
    quantise(&x);
    return x;
}
static void product(const char *name, int64_t M, int64_t N, int64_t K, bool blocks) {
    const struct hl_fp8_quantise a = operand(M, K, false), b = operand(N, K, blocks);
    const double work = 2e-9 * (double)(M * N) * (double)K;
    struct hl_gemm g = {.M = M, .N = N, .K = K, .b_trans = true, .lda = K, .ldb = K, .ldc = N, .alpha = 1};
    g.in = HOLA_BF16, g.out = blocks ? HOLA_BF16 : HOLA_F32;
    g.C = blocks ? bench_acts(M * N) : bench_reals(M * N);
    g.A = a.x, g.B = b.x;
    const double bf16 = bench_median(multiply, &g);
    g.A = a.codes, g.B = b.codes, g.a_scale = a.scale, g.b_scale = b.scale, g.b_blocks = blocks;
    const bool had = hl_cuda_gemm_has(backend->device, &g);
    const double fp8 = had ? bench_median(multiply, &g) : 0, once = bench_median(quantise, &a);
    printf("%-4s %6lld x %5lld x %6lld: bf16 %.3f ms (%.0f)", name, (long long)M, (long long)N, (long long)K, bf16,
           work / bf16);
    if (had) printf(", fp8 %.3f ms (%.0f), %.2f times", fp8, work / fp8, bf16 / fp8);
    else printf(", the library has no fp8 product");
    printf("; quantising one operand %.3f ms (%.0f GB/s)\n", once, 3e-6 * (double)(M * K) / once);
    bench_release();
}
static void layer(int64_t tokens, int64_t in, int64_t out) {
    product("out", tokens, out, in, true);
    product("dx", tokens, in, out, true);
    product("dW", out, in, tokens, false);
}

/* ---- the quantisation ---- */

enum { SETS = 3, CALLS = 12, ROUNDS = 9 };
extern int hl_fp8_design;

struct copy {
    void *to, *from;
    int64_t bytes;
};
static void copy(const void *a) {
    const struct copy *k = a;
    hl_copy(backend, k->to, k->from, k->bytes);
}
/* microseconds of f, over sets of arguments of `size` bytes; median */
static double each(void (*f)(const void *), const void *sets, size_t size) {
    double t[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) {
        hl_cuda_timer_start(backend->device);
        for (int i = 0; i < CALLS; i++) f((const char *)sets + (size_t)(i % SETS) * size);
        const double seconds = hl_cuda_timer_stop(backend->device);
        if (r >= 0) t[r] = seconds * 1e6 / CALLS;
    }
    qsort(t, ROUNDS, sizeof *t, bench_by_value);
    return t[ROUNDS / 2];
}

static struct hl_fp8_quantise matrix[SETS];
static void matrices(int64_t rows, int64_t cols, bool blocks) {
    const int64_t n = rows * cols;
    for (int i = 0; i < SETS; i++) {
        matrix[i] = (struct hl_fp8_quantise){.rows = rows, .cols = cols, .ld = cols, .blocks = blocks};
        if (i == 0) matrix[i].x = bench_fill(n, true, -1, 1);
        else {
            void *x = bench_acts(n);
            hl_copy(backend, x, matrix[0].x, 2 * n);
            matrix[i].x = x;
        }
        matrix[i].codes = bench_alloc(2 * n, 1), matrix[i].codes_t = matrix[i].codes + n;
        matrix[i].scale = bench_reals(hl_fp8_scales(blocks, rows, cols));
        matrix[i].scale_t = bench_reals(hl_fp8_scales(blocks, cols, rows));
    }
}
static void forms(int64_t rows, int64_t cols, bool blocks) {
    static const char *const name[] = {"", "rows", "columns", "both"};
    const int64_t n = rows * cols;
    matrices(rows, cols, blocks);
    for (int form = blocks ? 3 : 1; form <= 3; form++) {
        struct hl_fp8_quantise q[SETS];
        struct copy c[SETS];
        int64_t bytes = 2 * n;
        if (form & 1) bytes += n + 4 * hl_fp8_scales(blocks, rows, cols);
        if (form & 2) bytes += n + 4 * hl_fp8_scales(blocks, cols, rows);
        for (int i = 0; i < SETS; i++) {
            q[i] = matrix[i];
            if (!(form & 1)) q[i].codes = NULL, q[i].scale = NULL;
            if (!(form & 2)) q[i].codes_t = NULL, q[i].scale_t = NULL;
            c[i] =
                (struct copy){matrix[i].codes, (void *)(uintptr_t)matrix[i].x, bytes / 2 < 2 * n ? bytes / 2 : 2 * n};
        }
        const double limit = each(copy, c, sizeof *c);
        printf("%-7s %6lld x %5lld, %5.0f MB: copy %6.1f us (%.2f TB/s)", blocks ? "weights" : name[form],
               (long long)rows, (long long)cols, (double)bytes * 1e-6, limit, 2e-6 * (double)c[0].bytes / limit);
        for (hl_fp8_design = 0; hl_fp8_design < (blocks ? 1 : 4); hl_fp8_design++) {
            const double us = each(quantise, q, sizeof *q);
            printf("; %6.1f us (%.2f TB/s, %3.0f%%)", us, 1e-6 * (double)bytes / us, 100 * limit / us);
        }
        hl_fp8_design = 0;
        printf("\n");
    }
    bench_release();
}

/* Rows quantised, then multiplied: what quantisation adds to the product's time, of which the codes may be in the cache
 * and their writes may still be on the way. */
static struct hl_gemm after[SETS];
static void multiply_only(const void *a) {
    hl_cuda_gemm(backend->device, &after[(const struct hl_fp8_quantise *)a - matrix]);
}
static void quantise_and_multiply(const void *a) {
    quantise(a);
    multiply_only(a);
}
static void then_product(int64_t tokens, int64_t in, int64_t out) {
    const struct hl_fp8_quantise w = operand(out, in, true);
    matrices(tokens, in, false);
    void *C = bench_acts(tokens * out);
    for (int i = 0; i < SETS; i++) {
        matrix[i].codes_t = NULL, matrix[i].scale_t = NULL;
        after[i] = (struct hl_gemm){.M = tokens, .N = out, .K = in, .b_trans = true, .lda = in, .ldb = in, .ldc = out};
        after[i].alpha = 1, after[i].in = after[i].out = HOLA_BF16, after[i].C = C;
        after[i].A = matrix[i].codes, after[i].a_scale = matrix[i].scale;
        after[i].B = w.codes, after[i].b_scale = w.scale, after[i].b_blocks = true;
        quantise(&matrix[i]);
    }
    if (hl_cuda_gemm_has(backend->device, &after[0])) {
        const double alone = each(multiply_only, matrix, sizeof *matrix);
        printf("rows, then product %lld x %lld x %lld: %.1f us; with quantisation more by", (long long)tokens,
               (long long)out, (long long)in, alone);
        for (hl_fp8_design = 0; hl_fp8_design < 4; hl_fp8_design++)
            printf(" %.1f", each(quantise_and_multiply, matrix, sizeof *matrix) - alone);
        hl_fp8_design = 0;
        printf(" us\n");
    }
    bench_release();
}

/* SwiGLU and the layers around it, in two ops and in one; of the layer behind it both passes. */
struct mlp {
    struct hl_gate_up in;
    struct hl_down down;
};
static void gradients_apart(const void *a) {
    const struct mlp *m = a;
    backend->ops.swiglu_backward(backend, &m->in.swiglu);
    backend->ops.linear_backward(backend, &m->in.linear);
}
static void gradients_together(const void *a) { backend->ops.gate_up_backward(backend, &((const struct mlp *)a)->in); }
static void down_apart(const void *a) {
    const struct mlp *m = a;
    backend->ops.swiglu_forward(backend, &m->down.swiglu);
    backend->ops.linear_forward(backend, &m->down.linear);
    backend->ops.linear_backward(backend, &m->down.linear);
}
static void down_together(const void *a) {
    const struct mlp *m = a;
    backend->ops.down_forward(backend, &m->down);
    backend->ops.down_backward(backend, &m->down);
}
static void report(const char *what, const struct mlp *m, void (*two)(const void *), void (*one)(const void *),
                   double bytes) {
    printf("%s: in two ops %.1f us, in one", what, each(two, m, 0));
    for (hl_fp8_design = 0; hl_fp8_design < 2; hl_fp8_design++) printf(" %.1f", each(one, m, 0));
    hl_fp8_design = 0;
    printf("; the bytes saved at 4.27 TB/s: %.1f us\n", bytes / 4.27e6);
}
static struct hl_linear_part fp8_part(const char *W, int64_t rows, int64_t cols, void *out, const void *dout,
                                      real *dW) {
    return (struct hl_linear_part){.W = {.data = (void *)(uintptr_t)W,
                                         .layout = HL_ROWS,
                                         .dtype = HOLA_BF16,
                                         .rows = rows,
                                         .cols = cols,
                                         .precision = HOLA_PRECISION_FP8},
                                   .out = out,
                                   .dout = dout,
                                   .dW = dW};
}
static void swiglu_and_layers(int64_t tokens, int64_t K, int64_t D) {
    const int64_t ld = 2 * D, size = backend->act_size;
    char *pair = bench_fill(tokens * ld, true, -1, 1), *gradient = bench_acts(tokens * ld);
    char *W = bench_fill(ld * K, true, -1, 1);
    void *x = bench_fill(tokens * K, true, -1, 1), *dx = bench_acts(tokens * K), *y = bench_acts(tokens * D);
    void *dy = bench_fill(tokens * D, true, -1, 1);
    real *dW = bench_reals(ld * K);
    struct mlp m = {.in = {.swiglu = {.M = tokens, .D = D, .ld = ld, .gate = pair, .up = pair + D * size, .y = y},
                           .linear = {.M = tokens, .K = K, .x = x, .dx = dx, .ld = ld, .n = 2}}};
    m.down.swiglu = m.in.swiglu;
    m.in.swiglu.dy = dy, m.in.swiglu.dgate = gradient, m.in.swiglu.dup = gradient + D * size;
    for (int p = 0; p < 2; p++)
        m.in.linear.part[p] = fp8_part(W + p * D * K * size, D, K, NULL, gradient + p * D * size, dW + p * D * K);
    m.down.linear = (struct hl_linear){.M = tokens, .K = D, .x = y, .dx = gradient, .n = 1};
    m.down.linear.part[0] = fp8_part(W, K, D, dx, x, dW);
    hl_zero(backend, dW, ld * K * (int64_t)sizeof *dW);
    printf("SwiGLU and its layers, %lld x %lld x %lld\n", (long long)tokens, (long long)K, (long long)D);
    report("  gradients, and those of the layer before it", &m, gradients_apart, gradients_together,
           8.0 * (double)(tokens * D));
    report("  forward, and both passes of the layer behind it", &m, down_apart, down_together,
           6.0 * (double)(tokens * D));
    bench_release();
}

static int all_forms(int argc, char **argv) {
    static const int64_t weights[][2] = {{3072, 1024}, {1024, 1024}, {5632, 1024}, {1024, 2816}};
    static const int64_t usual[] = {1024, 2816, 3072, 5632};
    for (int i = 2; i < argc; i++) {
        long long n[2];
        if (sscanf(argv[i], "%lldx%lld", &n[0], &n[1]) != 2)
            return fprintf(stderr, "%s: '%s' is not like 32768x1024\n", argv[0], argv[i]), 2;
        forms(n[0], n[1], false);
    }
    if (argc > 2) return 0;
    printf("designs: rows: 4 rows, read once, 8 rows, tiles; others: 8 rows, read once, 4 rows, ahead\n");
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) forms(32768, usual[i], false);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) forms(weights[i][0], weights[i][1], true);
    then_product(32768, 1024, 3072);
    then_product(32768, 2816, 1024);
    swiglu_and_layers(32768, 1024, 2816);
    return 0;
}

int main(int argc, char **argv) {
    static const int64_t usual[][3] = {
        {32768, 1024, 3072}, {32768, 1024, 5632}, {32768, 2816, 1024}, {32768, 1024, 1024}, {65536, 512, 1536}};
    if (hl_backend_open(&backend, "cuda", 0) != HOLA_OK || !backend->fp8 ||
        backend->fp8->open(backend, &(struct hl_fp8_sizes){0}) != HOLA_OK)
        return fprintf(stderr, "%s: %s\n", argv[0], hola_last_error()), 1;
    if (argc > 1 && !strcmp(argv[1], "quantise")) return all_forms(argc, argv);
    for (int i = 1; i < argc; i++) {
        long long n[3];
        if (sscanf(argv[i], "%lldx%lldx%lld", &n[0], &n[1], &n[2]) != 3)
            return fprintf(stderr, "%s: '%s' is not like 32768x1024x3072\n", argv[0], argv[i]), 2;
        layer(n[0], n[1], n[2]);
    }
    for (size_t i = 0; argc <= 1 && i < sizeof usual / sizeof *usual; i++) layer(usual[i][0], usual[i][1], usual[i][2]);
    hl_backend_close(backend);
    return 0;
}
