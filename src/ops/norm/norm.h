/* norm.h -- RMSNorm, gated RMSNorm and L2 norm over the last axis.
 *
 * rmsnorm: r = 1/sqrt(mean(x^2) + eps), y = r x w.
 *          dw += sum dy xh, dx = r (dy w - xh mean(xh dy w)), xh = r x.
 * gnorm:   the same, then y *= silu(z) or sigma(z) if z is given (the layer's output norm).
 * l2norm:  r = 1/sqrt(sum(x^2) + 1e-6), y = r x.   dx = r (dy - y (y.dy)). */
#ifndef HL_NORM_H
#define HL_NORM_H
#include "core/rows.h"

struct hl_rmsnorm {
    int64_t M, D;
    real eps;
    const void *x, *z; /* [M][D]; z NULL: no gate */
    /* a device: z and dz are [M / z_heads] rows of z_heads D numbers, z_ld apart; z_heads 0: as x */
    int64_t z_heads, z_ld;
    bool z_sigmoid; /* the gate is sigma(z), not silu(z) */
    const real *w;  /* [D]; NULL: ones, and dw is NULL too */
    void *y;
    real *r; /* [M], kept for the backward pass; never NULL */
    const void *dy;
    void *dx, *dz; /* dz: laid out like z */
    real *dw;      /* accumulated */
    bool dx_add;   /* dx += */
};
#define HL_L2_EPS 1e-6
struct hl_l2norm {
    int64_t M, D;
    const void *x;
    void *y;
    real *r; /* [M] */
    const void *dy;
    void *dx;
    bool dx_add;
};
/* Both norms of one x in one op: one dx, written. */
struct hl_twonorm {
    const struct hl_l2norm *l2;
    const struct hl_rmsnorm *rms;
};
#endif
