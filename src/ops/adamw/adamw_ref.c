/* adamw_ref.c -- AdamW and the sum of squares, one number after the other, in double. */
#include "ops/ops.h"

void HL_OP(adamw)(struct hl_backend *backend, const struct hl_adamw *a) {
    (void)backend;
    for (int64_t i = 0; i < a->n; i++) {
        double g = a->grad_scale * (double)a->grad[i];
        double m = a->beta1 * (double)a->m[i] + (1 - a->beta1) * g;
        double v = a->beta2 * (double)a->v[i] + (1 - a->beta2) * g * g;
        double step = m / a->bias1 / (sqrt(v / a->bias2) + a->eps);
        a->m[i] = (real)m;
        a->v[i] = (real)v;
        a->p[i] = (real)((double)a->p[i] - a->lr * (step + a->weight_decay * (double)a->p[i]));
    }
}

void HL_OP(sumsq)(struct hl_backend *backend, const struct hl_sumsq *a) {
    double s = 0;
    (void)backend;
    for (int64_t i = 0; i < a->n; i++) s += (double)a->x[i] * (double)a->x[i];
    *a->out = s;
}
