/* bench_fp8.c -- the products of a linear layer in FP8 and in bf16, and the quantisation of their operands.
 *
 *   bench_fp8 [TOKENSxINPUTSxOUTPUTS ...]      default: those of the 340m and 46m presets
 * Three products for each: out = x W^T, dx = dout W, dW = dout^T x (summed over the tokens, into floats). Medians of 20
 * runs; rates in TFLOP/s, and the quantisation of x or dout in GB/s of what it reads and writes.
 *
 * Without arguments then the kernels that make codes, in the calls of a training step of 46m and of 340m: quantisation
 * beside a copy of as many bytes, SwiGLU together with the products around it. Calls follow each other without a gap,
 * quantisation over three sets of arrays, so that none finds its numbers in the cache. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"
#include "cuda/device.h"
#include "ops/linear/fp8.h"

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

/* ---- what makes codes ---- */

enum { SETS = 3, CALLS = 12, ROUNDS = 9, SOME = 1 << 22 };

/* microseconds of f, over sets of arguments of `size` bytes; median */
static double each(void (*f)(const void *), const void *sets, size_t size) {
    double t[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) {
        hl_cuda_timer_start(backend->device);
        for (int i = 0; i < CALLS; i++) f((const char *)sets + (size_t)(i % SETS) * size);
        const double seconds = hl_cuda_timer_stop(backend->device);
        if (r >= 0) t[r] = seconds * 1e6 / CALLS;
    }
    if (hl_finish(backend) != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error()), exit(1);
    qsort(t, ROUNDS, sizeof *t, bench_by_value);
    return t[ROUNDS / 2];
}
/* n activations, of which every SOME are the same: the host makes few. */
static char *numbers(int64_t n) {
    static char *some;
    char *x = bench_acts(n);
    if (!some) some = bench_fill(SOME, true, -1, 1), bench_arrays--; /* kept */
    for (int64_t at = 0; at < n; at += SOME) hl_copy(backend, x + 2 * at, some, 2 * (n - at < SOME ? n - at : SOME));
    return x;
}

struct copy {
    void *to;
    const void *from;
    int64_t bytes;
};
static void copy(const void *a) {
    const struct copy *k = a;
    hl_copy(backend, k->to, k->from, k->bytes);
}

enum { ROWS = 1, COLUMNS = 2 }; /* forms */

/* microseconds of the codes of [tokens][cols]; *limit: those of a copy of as many bytes */
static double quantisation(int64_t tokens, int64_t cols, int forms, double *limit) {
    const int64_t n = tokens * cols, scales = 4 * hl_fp8_scales(false, tokens, cols),
                  scales_t = 4 * hl_fp8_scales(false, cols, tokens);
    struct hl_fp8_quantise q[SETS];
    struct copy c[SETS];
    int64_t bytes = 2 * n;
    if (forms & ROWS) bytes += n + scales;
    if (forms & COLUMNS) bytes += n + scales_t;
    for (int i = 0; i < SETS; i++) {
        q[i] = (struct hl_fp8_quantise){.rows = tokens, .cols = cols, .ld = cols, .x = numbers(n)};
        uint8_t *codes = bench_alloc(2 * n, 1);
        if (forms & ROWS) q[i].codes = codes, q[i].scale = bench_alloc(scales, 1);
        if (forms & COLUMNS) q[i].codes_t = codes + n, q[i].scale_t = bench_alloc(scales_t, 1);
        c[i] = (struct copy){codes, q[i].x, bytes / 2 < 2 * n ? bytes / 2 : 2 * n};
    }
    *limit = each(copy, c, sizeof *c);
    const double us = each(quantise, q, sizeof *q);
    bench_release();
    return us;
}

/* SwiGLU and the layers around it; of the layer behind it both passes. */
struct mlp {
    struct hl_gate_up in;
    struct hl_down down;
};
static void gate_up(const void *a) { backend->ops.gate_up_backward(backend, &((const struct mlp *)a)->in); }
static void down(const void *a) {
    const struct mlp *m = a;
    backend->ops.down_forward(backend, &m->down);
    backend->ops.down_backward(backend, &m->down);
}
static struct hl_linear_part fp8_part(const char *W, int64_t rows, int64_t cols, void *out, const void *dout,
                                      real *dW) {
    return (struct hl_linear_part){.W = {.data = W,
                                         .layout = HL_ROWS,
                                         .dtype = HOLA_BF16,
                                         .rows = rows,
                                         .cols = cols,
                                         .precision = HOLA_PRECISION_FP8},
                                   .out = out,
                                   .dout = dout,
                                   .dW = dW};
}
/* microseconds; D: width of SwiGLU */
static double swiglu_and_layers(int64_t tokens, int64_t K, int64_t D, void (*f)(const void *)) {
    const int64_t ld = 2 * D, size = backend->act_size;
    char *pair = numbers(tokens * ld), *gradient = bench_acts(tokens * ld), *W = numbers(ld * K);
    void *x = numbers(tokens * K), *dx = bench_acts(tokens * K), *y = bench_acts(tokens * D), *dy = numbers(tokens * D);
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
    backend->fp8->stale(backend); /* another weight may have been here */
    const double us = each(f, &m, 0);
    bench_release();
    return us;
}

static void step(const char *preset, int64_t tokens) {
    hola_config c;
    if (hola_config_preset(&c, preset, HOLA_TYPE_HOLA) != HOLA_OK) exit(1);
    const int64_t H = c.hidden_size, qkv = 2 * c.num_heads * c.head_dim + c.num_v_heads * c.head_v_dim;
    const struct {
        const char *name;
        int64_t cols;
        int forms, times; /* in a layer */
    } calls[] = {{"rows", H, ROWS, 3},
                 {"columns", H, COLUMNS, 3},
                 {"rows and columns", qkv, ROWS | COLUMNS, 1},
                 {"rows and columns", H, ROWS | COLUMNS, 2}};
    const double layers = 1e-3 * (double)c.num_hidden_layers;
    printf("%s, %lld tokens\n", preset, (long long)tokens);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        double limit;
        const double us = quantisation(tokens, calls[i].cols, calls[i].forms, &limit);
        printf("  %s of %lld: %.1f us, a copy %.1f (%.0f%%); a step %.2f ms\n", calls[i].name, (long long)calls[i].cols,
               us, limit, 100 * limit / us, us * calls[i].times * layers);
    }
    const double output = swiglu_and_layers(tokens, H, c.intermediate_size, down),
                 gradients = swiglu_and_layers(tokens, H, c.intermediate_size, gate_up);
    printf("  SwiGLU's output of %lld, with its products: %.1f us; a step %.2f ms\n", (long long)c.intermediate_size,
           output, output * layers);
    printf("  SwiGLU's gradients, with theirs: %.1f us; a step %.2f ms\n", gradients, gradients * layers);
}

int main(int argc, char **argv) {
    static const int64_t usual[][3] = {
        {32768, 1024, 3072}, {32768, 1024, 5632}, {32768, 2816, 1024}, {32768, 1024, 1024}, {65536, 512, 1536}};
    if (hl_backend_open(&backend, "cuda", 0) != HOLA_OK || !backend->fp8 ||
        backend->fp8->open(backend, &(struct hl_fp8_sizes){0}) != HOLA_OK)
        return fprintf(stderr, "%s: %s\n", argv[0], hola_last_error()), 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        long long n[3];
        if (sscanf(argv[i], "%lldx%lldx%lld", &n[0], &n[1], &n[2]) != 3)
            return fprintf(stderr, "%s: '%s' is not like 32768x1024x3072\n", argv[0], argv[i]), 2;
        layer(n[0], n[1], n[2]);
    }
    for (size_t i = 0; argc <= 1 && i < sizeof usual / sizeof *usual; i++) layer(usual[i][0], usual[i][1], usual[i][2]);
    if (argc <= 1) step("46m", 65536), step("340m", 32768);
    hl_backend_close(backend);
    return 0;
}
