/* bench_aside.c -- weight gradients on the side stream beside ops that wait for memory.
 *
 *   bench_aside [SMS ...]      multiprocessors for the products of the side stream; default: 0 (all), 16, 33, 66, 99
 * For each number and each product: the product alone, the op alone, and both, as often as makes both sides take about
 * equally long; medians of 20, in microseconds. gain: what of the shorter side's time disappears. */
#define _POSIX_C_SOURCE 200809L
#include "bench_op.h"
#include "cuda/device.h"

static const struct size { /* of a training step */
    const char *what;
    int64_t T, D, N;
} sizes[] = {{"46m, gate and up", 65536, 512, 1536},
             {"340m, gate and up", 32768, 1024, 5632},
             {"340m, q, k, v", 32768, 1024, 3072},
             {"340m, down", 32768, 2816, 1024},
             {"340m, out", 32768, 1024, 1024}};
enum { SIZES = sizeof sizes / sizeof *sizes };

struct both {
    struct hl_linear product; /* dW alone, aside */
    struct hl_rmsnorm norm;
    struct hl_linear dx;
    int products, norms, dxs;
};
static void run(const void *x) {
    const struct both *a = x;
    for (int i = 0; i < a->products; i++) backend->ops.linear_backward(backend, &a->product);
    for (int i = 0; i < a->norms; i++) backend->ops.rmsnorm_backward(backend, &a->norm);
    for (int i = 0; i < a->dxs; i++) backend->ops.linear_backward(backend, &a->dx);
    hl_cuda_join(backend->device);
}
static double us(struct both a, int products, int norms, int dxs) {
    double t[BENCH_RUNS];
    a.products = products, a.norms = norms, a.dxs = dxs;
    for (int r = -BENCH_WARM; r < BENCH_RUNS; r++) {
        hl_cuda_timer_start(backend->device);
        run(&a);
        const double seconds = hl_cuda_timer_stop(backend->device);
        if (r >= 0) t[r] = seconds * 1e6;
    }
    if (hl_finish(backend) != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error()), exit(1);
    qsort(t, BENCH_RUNS, sizeof *t, bench_by_value);
    return t[BENCH_RUNS / 2];
}

static void together(const char *what, double product, double other, double both) {
    const double least = product < other ? product : other;
    printf("   %s %7.1f, both %7.1f (gain %3.0f%%)", what, other, both, 100 * (product + other - both) / least);
}
static void measure(const struct size *s) {
    const int64_t wide = s->N > s->D ? s->N : s->D;
    struct both a = {.products = 0};
    void *x = bench_fill(s->T * wide, true, -1, 1), *dout = bench_fill(s->T * wide, true, -1, 1);
    a.product = (struct hl_linear){.M = s->T, .K = s->D, .x = x, .n = 1, .aside = true};
    a.product.part[0] = (struct hl_linear_part){
        .W = {.data = bench_fill(s->N * s->D, true, -1, 1), .rows = s->N, .cols = s->D}, .dout = dout};
    a.product.part[0].dW = bench_fill(s->N * s->D, false, 0, 0);
    a.dx = a.product;
    a.dx.part[0].dW = NULL, a.dx.aside = false, a.dx.dx = bench_acts(s->T * s->D);
    const int64_t D = 1024, M = 32768;
    a.norm = (struct hl_rmsnorm){.M = M, .D = D, .eps = (real)1e-6, .dx_add = true};
    a.norm.x = bench_fill(M * D, true, -1, 1), a.norm.dy = bench_fill(M * D, true, -1, 1),
    a.norm.dx = bench_acts(M * D);
    a.norm.w = bench_fill(D, false, 0.5f, 1), a.norm.dw = bench_fill(D, false, 0, 0);
    a.norm.r = bench_fill(M, false, 1, 1), a.norm.from = bench_fill(M * D, true, -1, 1);
    const double product = us(a, 4, 0, 0), norm = us(a, 0, 4, 0) / 4, dx = us(a, 0, 0, 4) / 4;
    const int norms = (int)(product / norm + 0.5), dxs = (int)(product / dx + 0.5);
    printf("  %-18s %7.1f", s->what, product / 4);
    if (norms > 0) together("norms", product, norm * norms, us(a, 4, norms, 0));
    if (dxs > 0) together("dx", product, dx * dxs, us(a, 4, 0, dxs));
    printf("\n");
    bench_release();
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"0", "16", "33", "66", "99"};
    const int n = argc > 1 ? argc - 1 : 5;
    for (int i = 0; i < n; i++) {
        const char *sms = argc > 1 ? argv[i + 1] : usual[i];
        setenv("HOLA_SIDE_SMS", sms, 1);
        if (hl_backend_open(&backend, "cuda", 1) != HOLA_OK) return fprintf(stderr, "%s\n", hola_last_error()), 1;
        if (i == 0)
            printf("%s; a product on the side stream, four times, and as many others, us\n",
                   hl_cuda_name(backend->device));
        printf("asked for %s multiprocessors\n", atoi(sms) ? sms : "all");
        for (int k = 0; k < SIZES; k++) measure(&sizes[k]);
        hl_backend_close(backend);
    }
    return 0;
}
