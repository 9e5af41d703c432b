/* xent_ref.c -- cross-entropy of a linear head, one row of logits at a time, in double. */
#include "ops/linear/weight.h"
#include "ops/ops.h"
#include <stdlib.h>

/* logits z[v] = x . W_v; returns their log-sum-exp */
static double row_logits(const struct hl_xent *a, const real *x, double *z) {
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < a->W.rows; v++) {
        z[v] = 0;
        for (int64_t k = 0; k < a->D; k++)
            z[v] += hl_operand(&a->W, x[k]) * hl_operand(&a->W, hl_weight_at(&a->W, v, k));
        max = fmax(max, z[v]);
    }
    for (int64_t v = 0; v < a->W.rows; v++) sum += exp(z[v] - max);
    return max + log(sum);
}

static int64_t first_of_largest(const double *z, int64_t n) {
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        if (z[v] > z[best]) best = v;
    return best;
}

void HL_OP(xent)(struct hl_backend *backend, const struct hl_xent *a) {
    double *z = malloc((size_t)a->W.rows * sizeof *z), *d = malloc((size_t)a->D * sizeof *d);
    (void)backend;
    HL_ASSERT(z && d);
    for (int64_t t = 0; t < a->M; t++) {
        const real *x = (const real *)a->x + t * a->D;
        double lse = 0;
        bool counts = a->target[t] >= 0;
        a->nll[t] = 0;
        for (int64_t k = 0; k < a->D; k++) d[k] = 0;
        if (counts) {
            lse = row_logits(a, x, z);
            a->nll[t] = lse - z[a->target[t]];
        }
        if (a->correct) a->correct[t] = counts && first_of_largest(z, a->W.rows) == a->target[t];
        for (int64_t v = 0; v < a->W.rows && a->dx && counts; v++) {
            const double g = hl_operand(&a->W, (real)((double)a->scale * (exp(z[v] - lse) - (v == a->target[t]))));
            for (int64_t k = 0; k < a->D; k++) {
                d[k] += g * hl_operand(&a->W, hl_weight_at(&a->W, v, k));
                a->dW[v * a->D + k] += (real)(g * hl_operand(&a->W, x[k]));
            }
        }
        for (int64_t k = 0; k < a->D && a->dx; k++) ((real *)a->dx)[t * a->D + k] = (real)d[k];
    }
    free(z);
    free(d);
}
