/* bias.h -- the bias of a linear layer's output: x += b in every row; backward: db += the column sums of dx. */
#ifndef HL_BIAS_H
#define HL_BIAS_H
#include "core/rows.h"

struct hl_bias {
    int64_t M, N;
    const real *b; /* [N] */
    void *x;       /* [M][N], updated in place */
    int64_t ld;    /* a device: numbers from one row of x and dx to the next; 0: N */
    const void *dx;
    real *db; /* accumulated */
};
#endif
