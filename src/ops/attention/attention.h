/* attention.h -- causal softmax attention with grouped heads and an optional window.
 *
 *     z_tj = scale q_t . k_j  for max(0, t - window + 1) <= j <= t      out_t = sum_j softmax_j(z_t) v_j
 * t, j are positions of one sequence; query head h reads key head h / (H/HK). Softmax in float. Backward: p = exp(z -
 * lse), dp = dout . v_j, ds = p (dp - dout . out); dk, dv summed over a group's heads.
 *
 * In a session the keys and values of earlier tokens come from its state, stored as activations [HK][D] per token.
 * Without a window they are in pages of HL_PAGE_TOKENS tokens (rows->pages; k_off, v_off are byte offsets in a page),
 * to which the op also appends this call's rows. With a window they are in a ring of `window` rows in seg->state,
 * position p in row p % window, overwritten after the reads. */
#ifndef HL_ATTENTION_H
#define HL_ATTENTION_H
#include "core/rows.h"

struct hl_attention {
    const struct hl_rows *rows;
    int64_t H, HK, D; /* query heads, key and value heads, head size: at most 1024 */
    int64_t window;   /* keys that a query sees, including its own; 0: all */
    real scale;
    const void *q, *k, *v; /* [T][H][D], [T][HK][D], [T][HK][D]; q and k are rotated already */
    int64_t ld;            /* a device: row stride of q, k, v, dq, dk, dv; 0: dense */
    void *out;             /* [T][H][D], dense */
    real *lse;             /* [T][H]: log-sum-exp of z, kept for the backward pass; NULL at inference */
    int64_t k_off, v_off;
    /* backward; segments start empty */
    const void *dout;
    void *dq, *dk, *dv; /* written, not accumulated */
};
int64_t hl_attention_scratch(int64_t H, int64_t HK, int64_t D); /* bytes per worker, forward and backward */
#endif
