/* cache.h -- the exact memory: top-w selection on the block grid and the sharpened read (paper eq. 7).
 *
 * For the block of C rows that row t stands in, sel = the w rows of earlier blocks that the policy ranks first:
 * those with the largest score (ties: the older one), or the first `sinks` rows of the sequence and the latest of
 * the others. With J = sel + the rows of this block up to t:
 *     z_j = tau q_t.k_j / sqrt(K)   z_sink = sink   p = softmax over J and the sink
 *     read_t = sum_J p_j v_j        out_t += lambda_t read_t, lambda_t = sigma(gate + token_gate_t)
 * Per value head; value head h reads the q, k of key head h / (HV/H). q, k come normalised for the read.
 * Policies that move with reads add p to the rows' scores, in stream order. w = 0: the block alone.
 * policy.redundancy: at the end of a block, the rows of sel and of the block are gone through from the first in rank on.
 * One whose key has a larger cosine with that of a row already taken is put back, the others are taken until there are
 * w; if there are fewer, the first of those put back fill the places. The rest is gone for good. So unlike without it,
 * sel is not what one ranking of all earlier rows would give.
 * HL_SCORE_LEARNED: z_j += log sigma(score_j) for j in sel.
 * HL_SCORE_RECALL: at the end of a block, every row of sel and of the block is measured against S, the state after
 * the block's last row: score_j = |v_j - kS_j^T S|. kS_j, the unit key that the state was written with, is made from
 * k_j = r_j x_j * weight: kS_j = f_j (k_j / weight), with one number f_j per row (hl_cache_factor). A channel whose
 * weight is 0 has lost its key; it does not take part.
 *
 * Sessions carry per value head: the kept rows and the open block, each k, v, score, with HL_SCORE_RECALL also f;
 * and the positions of the kept rows. How many of each are filled follows from the position: min(w, C*(pos/C)),
 * pos % C. */
#ifndef HL_CACHE_H
#define HL_CACHE_H
#include "core/real.h"
#include "core/rows.h"
#include "ops/cache/policy.h"
#include "ops/norm/norm.h"

struct hl_cache {
    const struct hl_rows *rows;
    int64_t H, HV, K, V, window, chunk;
    struct hl_policy policy;
    const void *q, *k;             /* [T][H][K] */
    const void *v;                 /* [T][HV][V] */
    const real *score;             /* [T][HV]; unused with HL_SCORE_NONE */
    const real *tau, *sink, *gate; /* [HV] */
    const void *token_gate;        /* [T][HV]: added to gate; NULL: a head has one gate for all tokens */
    bool linear_gate;              /* lambda = max(gate, 0) in place of sigma(gate) */
    void *out;                     /* [T][HV][V], added to */
    int64_t state_off;             /* bytes into seg->state, hl_cache_state_bytes() of them */
    /* kept for the backward pass; all NULL at inference */
    void *read;   /* [T][HV][V] */
    real *lse;    /* [T][HV]: log of the softmax's denominator, sink included */
    int64_t *sel; /* [blocks][HV][window]: kept rows as batch row numbers, ascending; -1: unused */
    /* backward; segments start empty */
    const void *dout;           /* [T][HV][V] */
    void *dq, *dk;              /* written, not added */
    void *dv;                   /* added to */
    real *dtau, *dsink, *dgate; /* [HV], accumulated; dtau NULL: frozen */
    void *dtoken_gate;          /* [T][HV], written */
    real *dscore;               /* HL_SCORE_LEARNED: [T][HV], written */
    /* HL_SCORE_RECALL */
    real *recall;         /* `score` itself: a device measures into it */
    const real *r_state;  /* [T][H]: r of the state's L2 norm of keys; NULL: k is the state's own key, f = 1 */
    const real *k_weight; /* [K]: weight of the read's norm of keys; NULL with r_state */
    const real *block_S;  /* as hl_gdn's */
    int64_t S_off;        /* bytes into seg->state: the state after the segment */
};

/* Does the state hold the factors f? */
static inline bool hl_cache_factors(const struct hl_cache *a) {
    return a->policy.score == HL_SCORE_RECALL && a->r_state;
}
/* f of a row from r of its L2 norm: from 1 / r^2 follows |x|^2, and from that r of the read's norm. */
#define HL_CACHE_EPS 1e-6 /* of the read's norm */
static inline real hl_cache_factor(real r, int64_t K) {
    const real sum = 1 / (r * r) - (real)HL_L2_EPS;
    return r * R_SQRT((sum > 0 ? sum : 0) / (real)K + (real)HL_CACHE_EPS);
}

/* k_i / weight_i; 0 where the weight is too small to divide by. */
static inline real hl_cache_unweighted(real k, const real *weight, int64_t i) {
    return !weight ? k : weight[i] * weight[i] > 0 ? k / weight[i] : 0;
}
/* Do new rows come with a score? */
static inline bool hl_cache_scored(const struct hl_policy *p) {
    return p->score != HL_SCORE_NONE && p->score != HL_SCORE_RECALL;
}
/* Are two keys near-duplicates? dot: k.k'; x, y: |k|^2, |k'|^2. A key of zeros is like no other. */
static inline bool hl_cache_alike(real dot, real x, real y, const struct hl_policy *p) {
    return dot > (real)p->redundancy * R_SQRT(x * y);
}
/* lambda of a row and head, and its slope over the gate. A linear gate has the slope 1 below 0 too: a closed one can
 * open. */
static inline real hl_cache_lambda(const struct hl_cache *a, int64_t row, int64_t h) {
    const real gate = a->gate[h] + (a->token_gate ? ((const real *)a->token_gate)[row * a->HV + h] : 0);
    return !a->linear_gate ? hl_sigmoid(gate) : gate > 0 ? gate : 0;
}
static inline real hl_cache_slope(const struct hl_cache *a, real lambda) {
    return a->linear_gate ? 1 : lambda * (1 - lambda);
}

/* The state of one value head inside the session's block: byte offsets from its start. Keys and values are
 * activations, `size` bytes each: what they are made from, so that nothing is lost. */
struct hl_cache_layout {
    int64_t k, v;   /* [window + chunk][K], [window + chunk][V]: kept rows, then the open block */
    int64_t score;  /* real [window + chunk] */
    int64_t pos;    /* int64 [window]: where the kept rows stood */
    int64_t factor; /* real [window + chunk]: f, where there are factors */
    int64_t bytes;  /* of one head, a multiple of 64 */
};
struct hl_cache_layout hl_cache_layout(int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size, bool factors);
int64_t hl_cache_state_bytes(int64_t HV, int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size,
                             bool factors);
int64_t hl_cache_scratch(int64_t K, int64_t V, int64_t window, int64_t chunk); /* bytes per worker */

/* The scores of new rows, by policy.score; HL_SCORE_NONE writes none. */
struct hl_score {
    int64_t T, HV, V;
    struct hl_policy policy;
    const real *m, *beta; /* [T][HV] */
    const void *v;        /* [T][HV][V] */
    real *score;          /* [T][HV] */
};
#endif
