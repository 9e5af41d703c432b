/* bias_ref.c -- a bias and its gradient, as in bias.h. */
#include "ops/ops.h"

void HL_OP(bias_forward)(struct hl_backend *backend, const struct hl_bias *a) {
    (void)backend;
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t i = 0; i < a->N; i++) ((real *)a->x)[m * a->N + i] += a->b[i];
}

void HL_OP(bias_backward)(struct hl_backend *backend, const struct hl_bias *a) {
    (void)backend;
    for (int64_t i = 0; i < a->N; i++) {
        double sum = 0;
        for (int64_t m = 0; m < a->M; m++) sum += (double)((const real *)a->dx)[m * a->N + i];
        a->db[i] += (real)sum;
    }
}
