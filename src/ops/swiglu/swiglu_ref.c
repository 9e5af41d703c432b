/* swiglu_ref.c -- y = silu(gate) up and its gradients, as in swiglu.h. */
#include "ops/ops.h"

void HL_OP(swiglu_forward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    const real *gate = a->gate, *up = a->up;
    (void)backend;
    for (int64_t i = 0; i < a->M * a->D; i++) ((real *)a->y)[i] = gate[i] * hl_sigmoid(gate[i]) * up[i];
}

void HL_OP(swiglu_backward)(struct hl_backend *backend, const struct hl_swiglu *a) {
    const real *gate = a->gate, *up = a->up, *dy = a->dy;
    (void)backend;
    for (int64_t i = 0; i < a->M * a->D; i++) {
        real g = gate[i], u = up[i], s = hl_sigmoid(g); /* the gradients may overwrite gate and up */
        ((real *)a->dup)[i] = dy[i] * g * s;
        ((real *)a->dgate)[i] = dy[i] * u * s * (1 + g * (1 - s));
    }
}
