/* gate.h -- write strength and log decay of the delta rule, per token and value head.
 *
 *     beta = sigma(b)  (2 sigma(b) with negative eigenvalues)      g = -exp(A_log) softplus(a + dt_bias)
 * DeltaNet has no decay: a NULL, then g is not written. b NULL: beta = 1.
 * Backward: db = dbeta beta'(b);  da = -exp(A_log) sigma(a + dt_bias) dg;
 *           d dt_bias += sum da;  d A_log += sum dg g. */
#ifndef HL_GATE_H
#define HL_GATE_H
#include "core/rows.h"

struct hl_gate {
    int64_t T, H; /* H: value heads */
    bool neg_eigval;
    const void *a, *b; /* [T][H] */
    int64_t ld;        /* a device: numbers from a row of a, b, da, db to the next; 0: H */
    const real *A_log, *dt_bias;
    real *g, *beta; /* [T][H] */
    const real *dg, *dbeta;
    void *da, *db;
    real *dA_log, *ddt_bias; /* accumulated */
};
#endif
