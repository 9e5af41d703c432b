/* bench_fp8.c -- the products of a linear layer in FP8 and in bf16, and the quantisation of their operands, alone.
 *
 *   bench_fp8 [TOKENSxINPUTSxOUTPUTS ...]      default: those of the 340m and 46m presets
 * Three products for each: out = x W^T, dx = dout W, dW = dout^T x (summed over the tokens, into floats). Medians of 20
 * runs; rates in TFLOP/s, and the quantisation of x or dout in GB/s of what it reads and writes. */
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

int main(int argc, char **argv) {
    static const int64_t usual[][3] = {
        {32768, 1024, 3072}, {32768, 1024, 5632}, {32768, 2816, 1024}, {32768, 1024, 1024}, {65536, 512, 1536}};
    if (hl_backend_open(&backend, "cuda", 0) != HOLA_OK || !backend->fp8 ||
        backend->fp8->open(backend, &(struct hl_fp8_sizes){0}) != HOLA_OK)
        return fprintf(stderr, "%s: %s\n", argv[0], hola_last_error()), 1;
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
