/* gate_ref.c -- beta and the log decay as in gate.h. */
#include "ops/ops.h"

void HL_OP(gate_forward)(struct hl_backend *backend, const struct hl_gate *p) {
    const real *a = p->a, *b = p->b, beta_max = p->neg_eigval ? 2 : 1;
    (void)backend;
    for (int64_t t = 0; t < p->T; t++)
        for (int64_t h = 0; h < p->H; h++) {
            int64_t i = t * p->H + h;
            p->beta[i] = b ? beta_max * hl_sigmoid(b[i]) : 1;
            if (a) p->g[i] = -R_EXP(p->A_log[h]) * hl_softplus(a[i] + p->dt_bias[h]);
        }
}

void HL_OP(gate_backward)(struct hl_backend *backend, const struct hl_gate *p) {
    const real *a = p->a, *b = p->b, beta_max = p->neg_eigval ? 2 : 1;
    real *da = p->da, *db = p->db;
    (void)backend;
    for (int64_t h = 0; h < p->H; h++) {
        double dA_log = 0, ddt_bias = 0;
        for (int64_t t = 0; t < p->T; t++) {
            int64_t i = t * p->H + h;
            if (b) {
                real s = hl_sigmoid(b[i]);
                db[i] = p->dbeta[i] * beta_max * s * (1 - s);
            }
            if (a) {
                da[i] = -R_EXP(p->A_log[h]) * hl_sigmoid(a[i] + p->dt_bias[h]) * p->dg[i];
                ddt_bias += (double)da[i];
                dA_log += (double)p->dg[i] * (double)p->g[i];
            }
        }
        if (a) {
            p->dA_log[h] += (real)dA_log;
            p->ddt_bias[h] += (real)ddt_bias;
        }
    }
}
