/* adamw_cpu.c -- both ops read memory once and do little else: plain loops the compiler vectorises, over
 * pieces whose size depends on n alone. */
#include "ops/ops.h"

enum { PIECE = 16384, MOST_PIECES = 4096 };

static void adamw_task(void *ctx, int64_t i, int worker) {
    const struct hl_adamw *a = ctx;
    int64_t from = i * PIECE, n = a->n - from < PIECE ? a->n - from : PIECE;
    real *restrict p = a->p + from, *restrict m = a->m + from, *restrict v = a->v + from;
    const real *restrict grad = a->grad + from;
    const real scale = (real)a->grad_scale, b1 = (real)a->beta1, c1 = (real)(1 - a->beta1), b2 = (real)a->beta2;
    const real c2 = (real)(1 - a->beta2), unbias = (real)(1 / a->bias1), unroot = (real)(1 / sqrt(a->bias2));
    const real eps = (real)a->eps, lr = (real)a->lr, decay = (real)a->weight_decay;
    (void)worker;
    for (int64_t j = 0; j < n; j++) {
        real g = scale * grad[j];
        m[j] = b1 * m[j] + c1 * g;
        v[j] = b2 * v[j] + c2 * (g * g);
        p[j] -= lr * (unbias * m[j] / (R_SQRT(v[j]) * unroot + eps) + decay * p[j]);
    }
}

void HL_OP(adamw)(struct hl_backend *backend, const struct hl_adamw *a) {
    hl_pool_run(hl_backend_pool(backend), hl_pieces(a->n, PIECE), adamw_task, (void *)a);
}

struct sums {
    const struct hl_sumsq *a;
    int64_t size;
    double part[MOST_PIECES];
};

static void sumsq_task(void *ctx, int64_t i, int worker) {
    enum { LANES = 32 };
    struct sums *s = ctx;
    const real *x = s->a->x + i * s->size;
    int64_t n = s->a->n - i * s->size, j = 0;
    double lane[LANES] = {0}, sum = 0;
    (void)worker;
    if (n > s->size) n = s->size;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)x[j + l] * (double)x[j + l];
    for (; j < n; j++) sum += (double)x[j] * (double)x[j];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    s->part[i] = sum;
}

void HL_OP(sumsq)(struct hl_backend *backend, const struct hl_sumsq *a) {
    struct sums s;
    double sum = 0;
    int64_t pieces;
    s.a = a;
    s.size = PIECE * hl_pieces(a->n, (int64_t)PIECE * MOST_PIECES);
    if (a->n == 0) s.size = PIECE;
    pieces = hl_pieces(a->n, s.size);
    hl_pool_run(hl_backend_pool(backend), pieces, sumsq_task, &s);
    for (int64_t i = 0; i < pieces; i++) sum += s.part[i];
    *a->out = sum;
}
