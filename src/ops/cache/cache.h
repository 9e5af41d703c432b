/* cache.h -- the exact memory: top-w selection by blocks and the sharpened read (paper eq. 7).
 *
 * For the block of C rows that contains row t, sel = the w rows of earlier blocks that the policy ranks highest: those
 * with the largest score (ties: the older one), or the first `sinks` rows of the sequence and the latest of the others.
 * With J = sel + the rows of this block up to t:
 *     z_j = tau q_t.k_j / sqrt(K)   z_sink = sink   p = softmax over J and the sink
 *     read_t = sum_J p_j v_j        out_t += lambda_t read_t, lambda_t = sigma(gate + token_gate_t)
 * Per value head; value head h reads the q, k of key head h / (HV/H). q, k are already normalised for the read.
 * Policies that move with reads add p to the rows' scores, in stream order. w = 0: only the block. policy.redundancy:
 * at the end of a block, the rows of sel and of the block are visited in rank order. A row whose key has a larger
 * cosine with that of a row already taken is deferred, the others are taken until there are w; if there are fewer, the
 * best deferred rows fill the free slots. The rest are evicted for good. So with redundancy, sel is not the result of
 * one ranking of all earlier rows.
 * HL_SCORE_LEARNED: z_j += log sigma(score_j) for j in sel.
 * HL_SCORE_RECALL: at the end of a block, every row of sel and of the block is measured against S, the state after the
 * block's last row: score_j = |v_j - kS_j^T S|. kS_j, the unit key that wrote the state, is recovered from k_j = r_j
 * x_j * weight: kS_j = f_j (k_j / weight), with one scalar f_j per row (hl_cache_factor). Channels whose weight is 0
 * cannot be recovered and are ignored.
 *
 * Sessions store per value head: the kept rows and the open block, each k, v, score, with HL_SCORE_RECALL also f; and
 * the positions of the kept rows. The numbers of filled rows follow from the position: min(w, C*(pos/C)), pos % C.
 *
 * row_dtype HOLA_F16 (inference on a CPU): sessions store k and v in F16. Every k_j and v_j above is then the rounded
 * one, also of rows that are not in the state yet, so that the cuts between segments do not matter. Scores that come
 * with the rows are of the unrounded ones. */
#ifndef HL_CACHE_H
#define HL_CACHE_H
#include "core/half.h"
#include "core/real.h"
#include "core/rows.h"
#include "ops/cache/policy.h"
#include "ops/norm/norm.h"

struct hl_cache {
    const struct hl_rows *rows;
    int64_t H, HV, K, V, window, chunk;
    struct hl_policy policy;
    hola_dtype row_dtype;          /* HOLA_F16, or 0: rows are activations */
    const void *q, *k;             /* [T][H][K] */
    const void *v;                 /* [T][HV][V] */
    const real *score;             /* [T][HV]; unused with HL_SCORE_NONE */
    const real *tau, *sink, *gate; /* [HV] */
    const void *token_gate;        /* [T][HV]: added to gate; NULL: one gate per head for all tokens */
    bool linear_gate;              /* lambda = max(gate, 0) instead of sigma(gate) */
    void *out;                     /* [T][HV][V], added to */
    int64_t state_off;             /* byte offset into seg->state; size hl_cache_state_bytes() */
    /* kept for the backward pass; all NULL at inference */
    void *read;   /* [T][HV][V] */
    real *lse;    /* [T][HV]: log of the softmax denominator, including the sink */
    int64_t *sel; /* [blocks][HV][window]: kept rows as batch row indices, ascending; -1: unused */
    /* backward; segments start empty */
    const void *dout;           /* [T][HV][V] */
    void *dq, *dk;              /* written, not added */
    void *dv;                   /* added to */
    real *dtau, *dsink, *dgate; /* [HV], accumulated; dtau NULL: frozen */
    void *dtoken_gate;          /* [T][HV], written */
    real *dscore;               /* HL_SCORE_LEARNED: [T][HV], written */
    /* HL_SCORE_RECALL */
    real *recall;         /* `score` again, writable: a device stores the measured scores in it */
    const real *r_state;  /* [T][H]: r of the state's L2 norm of keys; NULL: k is the state's key, f = 1 */
    const real *k_weight; /* [K]: weight of the read's norm of keys; NULL if r_state is NULL */
    const real *block_S;  /* as in hl_gdn */
    int64_t S_off;        /* byte offset into seg->state: the state after the segment */
};

/* Whether the state stores the factors f. */
static inline bool hl_cache_factors(const struct hl_cache *a) {
    return a->policy.score == HL_SCORE_RECALL && a->r_state;
}
/* f of a row from r of its L2 norm: 1 / r^2 gives |x|^2, which gives r of the read's norm. */
#define HL_CACHE_EPS 1e-6 /* of the read's norm */
static inline real hl_cache_factor(real r, int64_t K) {
    const real sum = 1 / (r * r) - (real)HL_L2_EPS;
    return r * R_SQRT((sum > 0 ? sum : 0) / (real)K + (real)HL_CACHE_EPS);
}

/* k_i / weight_i; 0 where the weight is too small to divide by. */
static inline real hl_cache_unweighted(real k, const real *weight, int64_t i) {
    return !weight ? k : weight[i] * weight[i] > 0 ? k / weight[i] : 0;
}
/* Whether new rows have a score immediately. */
static inline bool hl_cache_scored(const struct hl_policy *p) {
    return p->score != HL_SCORE_NONE && p->score != HL_SCORE_RECALL;
}
/* Whether two keys are near-duplicates. dot: k.k'; x, y: |k|^2, |k'|^2. A zero key duplicates nothing. */
static inline bool hl_cache_alike(real dot, real x, real y, const struct hl_policy *p) {
    return dot > (real)p->redundancy * R_SQRT(x * y);
}
/* lambda of a row and head, and its derivative by the gate. A linear gate has slope 1 also below 0, so that a closed
 * gate can open. */
static inline real hl_cache_lambda(const struct hl_cache *a, int64_t row, int64_t h) {
    const real gate = a->gate[h] + (a->token_gate ? ((const real *)a->token_gate)[row * a->HV + h] : 0);
    return !a->linear_gate ? hl_sigmoid(gate) : gate > 0 ? gate : 0;
}
static inline real hl_cache_slope(const struct hl_cache *a, real lambda) {
    return a->linear_gate ? 1 : lambda * (1 - lambda);
}

/* A number of a row in F16, at most the largest one: no row becomes infinite. NaN stays NaN. */
#define HL_CACHE_MOST 65504
static inline uint16_t hl_cache_to_f16(real x) {
    return hl_to_f16((float)(x > HL_CACHE_MOST ? HL_CACHE_MOST : x < -HL_CACHE_MOST ? -HL_CACHE_MOST : x));
}

/* The state of one value head inside the session's block: byte offsets from its start. Keys and values have `size` bytes
 * each: activations, without loss, or F16. */
struct hl_cache_layout {
    int64_t k, v;   /* [window + chunk][K], [window + chunk][V]: kept rows, then the open block */
    int64_t score;  /* real [window + chunk] */
    int64_t pos;    /* int64 [window]: positions of the kept rows */
    int64_t factor; /* real [window + chunk]: f, if there are factors */
    int64_t bytes;  /* size of one head, a multiple of 64 */
};
static inline int64_t hl_cache_row_size(hola_dtype row_dtype) {
    return row_dtype == HOLA_F16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(real);
}
struct hl_cache_layout hl_cache_layout(int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size, bool factors);
int64_t hl_cache_state_bytes(int64_t HV, int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size,
                             bool factors);
int64_t hl_cache_scratch(int64_t K, int64_t V, int64_t window, int64_t chunk); /* bytes per worker */

/* The scores of new rows, by policy.score; HL_SCORE_NONE writes none. policy.layer_set: a row's scores are then replaced
 * by their norm over the heads. All heads thus rank the same numbers, ties included, and keep the same rows. */
struct hl_score {
    int64_t T, HV, V;
    struct hl_policy policy;
    const real *m, *beta; /* [T][HV] */
    const void *v;        /* [T][HV][V] */
    real *score;          /* [T][HV] */
};
/* Of one row. NaN in one head is NaN in all. */
static inline void hl_score_of_layer(real *score, int64_t HV) {
    real sum = 0;
    for (int64_t h = 0; h < HV; h++) sum += score[h] * score[h];
    for (int64_t h = 0; h < HV; h++) score[h] = R_SQRT(sum);
}
#endif
