/* xent.h -- cross-entropy of a linear head, a few rows of logits at a time.
 *
 *     nll_t = logsumexp(x_t W^T) - (x_t W^T)[target_t]
 * Rows with target < 0 are ignored (nll 0). With dx: dx_t = scale sum_v (softmax - onehot) W_v and dW += scale (softmax
 * - onehot)^T x, computed in the same pass, so the logits are never stored. Logits exist for HL_XENT_ROWS rows at a
 * time, in the caller's workspace. */
#ifndef HL_XENT_H
#define HL_XENT_H
#include "core/rows.h"

enum { HL_XENT_ROWS = 512, HL_XENT_ROWS_CUDA = 8192 };
struct hl_xent {
    int64_t M, D;
    const void *x;      /* [M][D] */
    struct hl_weight W; /* [vocabulary][D] */
    const int32_t *target;
    double *nll;      /* [M] */
    int32_t *correct; /* NULL, or [M]: 1 if the target is the argmax (ties: lowest id) */
    void *logits;     /* workspace: [min(M, xent_rows of the backend)][vocabulary] activations */
    real scale;
    void *dx; /* NULL: loss only */
    real *dW; /* accumulated */
};
#endif
