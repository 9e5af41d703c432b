/* lte.h -- the learned score of the exact memory's rows (HL_SCORE_LEARNED of ops/cache): a small convolutional network
 * over a whole block, per value head, with r channels.
 *
 *     x_j = [ k_j ; v_j / sqrt(mean(v_j^2) + eps) ]               k as in the read
 *     u_j = W_in x_j
 *     a_j = silu(b1 + sum_i D1_i * u_{j+2i})    c_j = silu(b2 + sum_i D2_i * a_{j+2i})      i = -1, 0, 1
 *     score_j = w_out.c_j + b_out
 * u and a are 0 outside the block. A block is scored by the segment that completes it, which then also stores the
 * scores of a session's earlier rows in the state. Rows of a block that stays open have score 0. Value head h reads the
 * k of key head h / (HV/H). row_dtype as in ops/cache/cache.h: all k and v are the rounded ones. */
#ifndef HL_LTE_H
#define HL_LTE_H
#include "core/rows.h"
#include "hola.h"

struct hl_lte {
    const struct hl_rows *rows;
    int64_t H, HV, K, V, r, window, chunk;
    real eps;
    hola_dtype row_dtype;
    const void *k, *v;         /* [T][H][K], [T][HV][V] */
    const real *w_in;          /* [HV][r][K + V] */
    const real *conv1, *conv2; /* [HV r][3] */
    const real *bias1, *bias2; /* [HV r] */
    const real *w_out, *b_out; /* [HV][r], [HV] */
    int64_t state_off;         /* offset in bytes in seg->state: that of the memory (ops/cache/cache.h) */
    real *u;                   /* [T][HV][r], for rows in complete blocks; kept for the backward pass */
    real *score;               /* [T][HV] */
    /* backward; segments start empty */
    const real *dscore;                                                /* [T][HV] */
    void *dk, *dv;                                                     /* accumulated */
    real *dw_in, *dconv1, *dconv2, *dbias1, *dbias2, *dw_out, *db_out; /* accumulated */
};
int64_t hl_lte_scratch(int64_t chunk, int64_t r, int64_t K, int64_t V); /* bytes per worker */

#endif
