/* conv.h -- causal depthwise short convolution, then SiLU.
 *
 *     u[t,c] = sum_{i<W} w[c][i] x[t-W+1+i, c]      y = u sigma(u)
 * x is 0 before the start of a sequence; in a session the last W-1 rows come from the state.
 * w NULL: SiLU only (W = 1, weight 1).
 * Backward recomputes u. Sessions are not differentiated. */
#ifndef HL_CONV_H
#define HL_CONV_H
#include "ops/norm/norm.h"

enum { HL_CONV_MAX = 8 };
struct hl_conv {
    const struct hl_rows *rows;
    int64_t C, W;
    const void *x; /* [T][C] */
    int64_t ld;    /* a device: numbers from one row of x and of dx to the next; 0: C */
    const real *w; /* [C][W] */
    void *y;
    int64_t tail_off; /* bytes into seg->state: real [W-1][C], oldest first */
    const void *dy;
    void *dx;
    real *dw; /* accumulated */
};
/* The convolution and the norms of its y in one op; y, dy and r need not be written. */
struct hl_convnorm {
    const struct hl_conv *conv;
    const struct hl_l2norm *l2;
    const struct hl_rmsnorm *rms; /* NULL: L2 norm only */
};
#endif
