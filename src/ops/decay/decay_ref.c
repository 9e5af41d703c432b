/* decay_ref.c -- the log decays as in decay.h. */
#include "ops/ops.h"

static real logsigmoid_at(const struct hl_logsigmoid *p, int64_t i) {
    return ((const real *)p->x)[i] + (p->bias ? p->bias[i % p->C] : 0);
}

void HL_OP(logsigmoid_forward)(struct hl_backend *backend, const struct hl_logsigmoid *p) {
    (void)backend;
    for (int64_t i = 0; i < p->T * p->C; i++) {
        real g = hl_logsigmoid(logsigmoid_at(p, i)) / p->normalizer;
        p->g[i] = g < p->clamp_min ? p->clamp_min : g;
    }
}

void HL_OP(logsigmoid_backward)(struct hl_backend *backend, const struct hl_logsigmoid *p) {
    real *dx = p->dx;
    (void)backend;
    for (int64_t c = 0; c < p->C; c++) {
        double sum = 0;
        for (int64_t i = c; i < p->T * p->C; i += p->C) {
            real x = logsigmoid_at(p, i);
            dx[i] = hl_logsigmoid(x) / p->normalizer < p->clamp_min ? 0 : p->dg[i] * hl_sigmoid(-x) / p->normalizer;
            sum += (double)dx[i];
        }
        if (p->bias) p->dbias[c] += (real)sum;
    }
}

void HL_OP(kda_gate_forward)(struct hl_backend *backend, const struct hl_kda_gate *p) {
    const real *x = p->x, *b = p->b, lb = p->lower_bound;
    (void)backend;
    for (int64_t i = 0; i < p->T * p->HV; i++) {
        const int64_t h = i % p->HV;
        const real A = R_EXP(p->A_log[h]);
        p->beta[i] = (p->neg_eigval ? 2 : 1) * hl_sigmoid(b[i]);
        for (int64_t c = 0; c < p->K; c++) {
            real a = x[i * p->K + c] + p->dt_bias[h * p->K + c];
            p->g[i * p->K + c] = lb != 0 ? lb * hl_sigmoid(A * a) : -A * hl_softplus(a);
        }
    }
}

void HL_OP(kda_gate_backward)(struct hl_backend *backend, const struct hl_kda_gate *p) {
    const real *x = p->x, *b = p->b, lb = p->lower_bound;
    real *dx = p->dx, *db = p->db;
    (void)backend;
    for (int64_t h = 0; h < p->HV; h++) {
        const real A = R_EXP(p->A_log[h]);
        double dA_log = 0;
        for (int64_t i = h; i < p->T * p->HV; i += p->HV) {
            real s = hl_sigmoid(b[i]);
            db[i] = p->dbeta[i] * (p->neg_eigval ? 2 : 1) * s * (1 - s);
        }
        for (int64_t c = 0; c < p->K; c++) {
            double sum = 0;
            for (int64_t t = 0; t < p->T; t++) {
                const int64_t i = (t * p->HV + h) * p->K + c;
                real a = x[i] + p->dt_bias[h * p->K + c], s = hl_sigmoid(A * a);
                if (lb != 0) { /* g = lb sigma(y), y = A a */
                    dx[i] = p->dg[i] * lb * s * (1 - s) * A;
                    dA_log += (double)dx[i] * (double)a;
                } else {
                    dx[i] = -A * hl_sigmoid(a) * p->dg[i];
                    dA_log += (double)p->dg[i] * (double)p->g[i];
                }
                sum += (double)dx[i];
            }
            p->ddt_bias[h * p->K + c] += (real)sum;
        }
        p->dA_log[h] += (real)dA_log;
    }
}
