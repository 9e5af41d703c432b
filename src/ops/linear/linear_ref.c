/* linear_ref.c -- linear layers, forward and backward: plain sums, in double, of operands as the weight's precision
 * rounds them. */
#include "ops/linear/weight.h"
#include "ops/ops.h"

void HL_OP(linear_forward)(struct hl_backend *backend, const struct hl_linear *a) {
    const real *x = a->x;
    (void)backend;
    for (int p = 0; p < a->n; p++) {
        const struct hl_weight *W = &a->part[p].W;
        const real *from = a->part[p].from;
        real *out = a->part[p].out;
        for (int64_t i = 0; i < W->rows; i++)
            for (int64_t m = 0; m < a->M; m++) {
                double s = from ? (double)from[m * W->rows + i] : 0;
                for (int64_t k = 0; k < a->K; k++)
                    s += hl_operand(W, x[m * a->K + k]) * hl_operand(W, hl_weight_at(W, i, k));
                out[m * W->rows + i] = (real)s;
            }
    }
}

/* dx[m][k] (= or +=) the sum over parts and their rows */
static void input_gradient(const struct hl_linear *a) {
    real *dx = a->dx;
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t k = 0; k < a->K; k++) {
            double s = a->dx_add ? (double)dx[m * a->K + k] : 0;
            for (int p = 0; p < a->n; p++) {
                const struct hl_weight *W = &a->part[p].W;
                const real *dout = a->part[p].dout;
                for (int64_t i = 0; i < W->rows; i++)
                    s += hl_operand(W, dout[m * W->rows + i]) * hl_operand(W, hl_weight_at(W, i, k));
            }
            dx[m * a->K + k] = (real)s;
        }
}

static void weight_gradient(const struct hl_linear *a, const struct hl_linear_part *part) {
    const real *x = a->x, *dout = part->dout;
    for (int64_t i = 0; i < part->W.rows; i++)
        for (int64_t k = 0; k < a->K; k++) {
            double s = (double)part->dW[i * a->K + k];
            for (int64_t m = 0; m < a->M; m++)
                s += hl_operand(&part->W, dout[m * part->W.rows + i]) * hl_operand(&part->W, x[m * a->K + k]);
            part->dW[i * a->K + k] = (real)s;
        }
}

void HL_OP(linear_backward)(struct hl_backend *backend, const struct hl_linear *a) {
    (void)backend;
    if (a->dx) input_gradient(a);
    for (int p = 0; p < a->n; p++)
        if (a->part[p].dW) weight_gradient(a, &a->part[p]);
}
