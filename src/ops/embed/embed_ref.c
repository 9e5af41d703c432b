/* embed_ref.c -- rows of the embedding and their gradient. */
#include "ops/linear/weight.h"
#include "ops/ops.h"

void HL_OP(embed_forward)(struct hl_backend *backend, const struct hl_embed *a) {
    real *out = a->out;
    (void)backend;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t j = 0; j < a->D; j++) out[t * a->D + j] = hl_weight_at(&a->E, a->ids[t], j);
}

void HL_OP(embed_backward)(struct hl_backend *backend, const struct hl_embed *a) {
    const real *dout = a->dout;
    (void)backend;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t j = 0; j < a->D; j++) a->dE[a->ids[t] * a->D + j] += dout[t * a->D + j];
}
