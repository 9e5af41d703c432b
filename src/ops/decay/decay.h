/* decay.h -- log decays per channel: the gates of GLA, GSA (logsigmoid) and KDA.
 *
 *     logsigmoid: g = max(logsigmoid(x + bias) / normalizer, clamp_min);  dx = dg sigma(-(x + bias)) / normalizer where
 *                 the bound is not exceeded;  dbias += sum dx
 *     kda:        a = x + dt_bias;  g = -exp(A_log) softplus(a), or with a lower bound  lb sigma(exp(A_log) a)
 *                 and beta = sigma(b) (2 sigma(b) with negative eigenvalues); gradients: docs/math.md */
#ifndef HL_DECAY_H
#define HL_DECAY_H
#include "core/rows.h"

struct hl_logsigmoid {
    int64_t T, C;     /* tokens, channels */
    const void *x;    /* [T][C] */
    int64_t ld;       /* a device: numbers from one row of x and dx to the next; 0: C */
    const real *bias; /* [C]; NULL: none */
    real normalizer;
    real clamp_min; /* -INFINITY: no bound */
    real *g;        /* [T][C] */
    const real *dg;
    void *dx;
    real *dbias; /* accumulated */
};
struct hl_kda_gate {
    int64_t T, HV, K;            /* value heads, d_k */
    const void *x, *b;           /* [T][HV][K], [T][HV] */
    int64_t ld_x, ld_b;          /* a device: numbers from one row of x, dx (b, db) to the next; 0: dense */
    const real *A_log, *dt_bias; /* [HV], [HV][K] */
    real lower_bound;            /* 0: none */
    bool neg_eigval;
    real *g, *beta; /* [T][HV][K], [T][HV] */
    const real *dg, *dbeta;
    void *dx, *db;
    real *dA_log, *ddt_bias; /* accumulated */
};
#endif
