/* norm_ref.c -- RMSNorm, gated RMSNorm and L2 norm as in norm.h, row by row. Backward reads x and r. */
#include "ops/ops.h"

static real weight(const struct hl_rmsnorm *a, int64_t c) { return a->w ? a->w[c] : 1; }
static real gate(const struct hl_rmsnorm *a, real z) { return (a->z_sigmoid ? 1 : z) * hl_sigmoid(z); }

void HL_OP(rmsnorm_forward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    (void)backend;
    for (int64_t m = 0; m < a->M; m++) {
        const real *x = (const real *)a->x + m * a->D;
        const real *z = a->z ? (const real *)a->z + m * a->D : NULL;
        real *y = (real *)a->y + m * a->D;
        double ss = 0;
        for (int64_t c = 0; c < a->D; c++) ss += (double)x[c] * (double)x[c];
        a->r[m] = 1 / R_SQRT((real)(ss / (double)a->D) + a->eps);
        for (int64_t c = 0; c < a->D; c++) {
            y[c] = a->r[m] * x[c] * weight(a, c);
            if (z) y[c] *= gate(a, z[c]);
        }
    }
}

/* the gradient before the gate */
static real ungated(const struct hl_rmsnorm *a, int64_t i) {
    const real *dy = a->dy, *z = a->z;
    if (!z) return dy[i];
    return (a->z_sigmoid ? dy[i] : dy[i] * z[i]) * hl_sigmoid(z[i]);
}

void HL_OP(rmsnorm_backward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    const real *x = a->x, *z = a->z, *dy = a->dy;
    real *dx = a->dx, *dz = a->dz;
    (void)backend;
    for (int64_t c = 0; a->dw && c < a->D; c++) {
        double dw = 0;
        for (int64_t m = 0; m < a->M; m++) {
            int64_t i = m * a->D + c;
            dw += (double)ungated(a, i) * (double)(a->r[m] * x[i]);
        }
        a->dw[c] += (real)dw;
    }
    for (int64_t m = 0; m < a->M; m++) {
        const real r = a->r[m];
        double mean = 0; /* of xh u w */
        for (int64_t c = 0; c < a->D; c++) {
            int64_t i = m * a->D + c;
            mean += (double)(r * x[i] * ungated(a, i) * weight(a, c)) / (double)a->D;
        }
        for (int64_t c = 0; c < a->D; c++) {
            int64_t i = m * a->D + c;
            real xh = r * x[i], d = r * (ungated(a, i) * weight(a, c) - xh * (real)mean);
            dx[i] = a->dx_add ? dx[i] + d : d;
            if (z) {
                real sg = hl_sigmoid(z[i]);
                dz[i] = dy[i] * xh * weight(a, c) * sg * (a->z_sigmoid ? 1 - sg : 1 + z[i] * (1 - sg));
            }
        }
    }
}

void HL_OP(l2norm_forward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    (void)backend;
    for (int64_t m = 0; m < a->M; m++) {
        const real *x = (const real *)a->x + m * a->D;
        real *y = (real *)a->y + m * a->D;
        double ss = 0;
        for (int64_t c = 0; c < a->D; c++) ss += (double)x[c] * (double)x[c];
        a->r[m] = 1 / R_SQRT((real)(ss + HL_L2_EPS));
        for (int64_t c = 0; c < a->D; c++) y[c] = a->r[m] * x[c];
    }
}

void HL_OP(l2norm_backward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    (void)backend;
    for (int64_t m = 0; m < a->M; m++) {
        const real *x = (const real *)a->x + m * a->D, *dy = (const real *)a->dy + m * a->D;
        real *dx = (real *)a->dx + m * a->D;
        const real r = a->r[m];
        double dot = 0; /* y . dy */
        for (int64_t c = 0; c < a->D; c++) dot += (double)(r * x[c]) * (double)dy[c];
        for (int64_t c = 0; c < a->D; c++) {
            real d = r * (dy[c] - r * x[c] * (real)dot);
            dx[c] = a->dx_add ? dx[c] + d : d;
        }
    }
}
