/* adamw.h -- AdamW (decoupled decay) and the gradient's norm.
 *
 *     g = grad_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     p -= lr (m/bias1 / (sqrt(v/bias2) + eps) + weight_decay p)        bias_i = 1 - b_i^step */
#ifndef HL_ADAMW_H
#define HL_ADAMW_H
#include "core/rows.h"

struct hl_adamw {
    int64_t n;
    real *p, *m, *v;
    void *half; /* a second copy of p in the activations' type, written too; NULL: none */
    const real *grad;
    double lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale;
};
struct hl_sumsq { /* sum of squares in double, over pieces of fixed size in order */
    int64_t n;
    const real *x;
    double *out;
};
#endif
