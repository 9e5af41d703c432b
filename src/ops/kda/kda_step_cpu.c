/* kda_step_cpu.c -- the recurrence for segments of a few tokens (docs/math.md, "KDA"), like gdn_step_cpu.c with a decay
 * per row of the state: with k' = exp(g) k and q' = exp(g) q,
 *     e = v - k'^T S_{t-1}      q^T S_t = q'^T S_{t-1} + (q.k) beta e */
#include "ops/gdn/gdn_step_cpu.h"
#include "ops/kda/kda_cpu.h"

enum { MOST_K = 512 };

static real step_tile(const void *op, real *S, const real *next, int64_t row, int64_t hv, int64_t col, int64_t cols) {
    const struct hl_kda *a = op;
    real ks[GDN_TILE + VL], qs[GDN_TILE + VL], r[GDN_TILE + VL]; /* VL: the last vector extends past the tile */
    real alpha[MOST_K], dk[MOST_K], dq[MOST_K];
    const int64_t b = row * a->HV + hv, qk = (row * a->H + hv / (a->HV / a->H)) * a->K, K = a->K;
    const int64_t whole = cols - cols % (GROUP * VL); /* columns in whole groups of vectors */
    const struct columns c = {.S = S, .next = next, .ld = a->V, .K = K};
    const real *q = (const real *)a->q + qk, *k = (const real *)a->k + qk, *g = a->g + b * K;
    const real *v = (const real *)a->v + b * a->V + col, beta = a->beta[b], scale = 1 / R_SQRT((real)K);
    real *out = (real *)a->out + b * a->V + col, qk_dot = row_dot(q, k, K);
    int64_t j;
    for (j = 0; j < K; j += VL) {
        const int64_t n = K - j < VL ? K - j : VL;
        const vr e = v_exp(get(g + j, n));
        put(alpha + j, e, n);
        put(dk + j, e * get(k + j, n), n);
        put(dq + j, e * get(q + j, n), n);
    }
    for (j = 0; j < whole; j += GROUP * VL) read_columns(GROUP, from(&c, j, VL), dk, dq, ks + j, qs + j);
    for (; j < cols; j += VL) read_columns(1, from(&c, j, cols - j), dk, dq, ks + j, qs + j);
    for (j = 0; j < cols; j += VL) {
        const vr e = load(v + j, cols - j) - v_load(ks + j);
        v_store(r + j, beta * e);
        store(out + j, scale * (v_load(qs + j) + qk_dot * v_load(r + j)), cols - j);
    }
    for (j = 0; j < whole; j += GROUP * VL) write_columns(GROUP, from(&c, j, VL), k, 0, alpha, r + j);
    for (; j < cols; j += VL) write_columns(1, from(&c, j, cols - j), k, 0, alpha, r + j);
    return row_sumsq(r, cols);
}

void HL_OP(kda_step)(struct hl_pool *pool, const struct hl_kda *a) {
    const struct gdn_steps steps = {a, a->rows, a->HV, a->K, a->V, a->S_off, a->m, step_tile, NULL};
    HL_ASSERT(a->K <= MOST_K);
    HL_OP(gdn_steps)(pool, &steps);
}
