/* gla.h -- gated linear attention: a state with a decay per key channel.
 *
 *     S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T      out_t = scale q_t^T S_t
 * Per key head; query head h reads the state of key head h / (H/HK).
 *
 * Chunked form (docs/math.md): chunks of HL_CHUNK rows from each segment's first row, G = cumulative sum of g in the
 * chunk, blocks of 16 rows so that no exponent is ever positive. */
#ifndef HL_GLA_H
#define HL_GLA_H
#include "core/rows.h"

struct hl_gla {
    const struct hl_rows *rows;
    int64_t H, HK, K, V;      /* query heads, key and value heads, d_k, d_v */
    const void *q, *k, *v;    /* [T][H][K], [T][HK][K], [T][HK][V] */
    int64_t ld_q, ld_k, ld_v; /* a device: row stride of q, dq (k, dk; v, dv); 0: dense */
    const real *g;            /* [T][HK][K]: log decay, <= 0 */
    real scale;
    void *out;     /* [T][H][V] */
    int64_t S_off; /* bytes into seg->state: real S[HK][K][V], read and written */
    real *h; /* [chunks][HK][K][V]: the state before each chunk, kept for the backward pass; NULL at inference, and
                      on a device, which computes it again */
    /* backward. h0: where segments start, NULL: empty; dht: gradients of the final states, NULL: none; dh0: of h0,
     * written, NULL: not wanted; all [n][HK][K][V], for the reference and on a GPU. */
    const void *dout;
    void *dq, *dk, *dv; /* written, not accumulated */
    real *dg;           /* [T][HK][K], written */
    const real *h0, *dht;
    real *dh0;
};
int64_t hl_gla_scratch(int64_t K, int64_t V); /* bytes per worker, enough for forward and backward */
#endif
