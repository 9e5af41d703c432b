/* gsa.h -- gated slot attention: M decaying slots of keys and values, read by a softmax over the slots.
 *
 *     s_t = 1 - exp(f_t)
 *     Kt_t = Kt_{t-1} diag(exp(f_t)) + k_t s_t^T  [K][M]      p_t = softmax_M(q_t^T Kt_t)
 *     Vt_t = diag(exp(f_t)) Vt_{t-1} + s_t v_t^T  [M][V]      out_t = p_t^T Vt_t
 * Per key head; query head h reads key head h / (H/HK). Chunked form: docs/math.md; the second half is GLA with
 * (q, k, v, g) = (p, s, v, f). */
#ifndef HL_GSA_H
#define HL_GSA_H
#include "core/rows.h"

struct hl_gsa {
    const struct hl_rows *rows;
    int64_t H, HK, K, V, M;
    const void *q, *k, *v;  /* [T][H][K], [T][HK][K], [T][HK][V] */
    const real *f;          /* [T][HK][M]: log decay of the slots, <= 0 */
    void *out;              /* [T][H][V] */
    void *p;                /* [T][H][M]: the softmax, kept for the backward pass; may be NULL at inference */
    int64_t Kt_off, Vt_off; /* bytes into seg->state: real Kt[HK][K][M], Vt[HK][M][V] */
    real *hk, *hv; /* [chunks][HK][K][M], [chunks][HK][M][V]: states before each chunk, for the backward pass; NULL at
                      inference and on a device */
    /* backward */
    const void *dout;
    void *dq, *dk, *dv; /* written */
    real *df;           /* [T][HK][M], written; includes the path through s */
};
int64_t hl_gsa_scratch(int64_t K, int64_t V, int64_t M); /* bytes per worker */
#endif
