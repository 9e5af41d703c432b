/* cache.h -- the exact memory: top-w selection on the block grid and the sharpened read (paper eq. 7).
 *
 * For the block of C rows that row t stands in, sel = the w rows of earlier blocks that the policy ranks first:
 * those with the largest score (ties: the older one), or the first `sinks` rows of the sequence and the latest of
 * the others. With J = sel + the rows of this block up to t:
 *     z_j = tau q_t.k_j / sqrt(K)   z_sink = sink   p = softmax over J and the sink
 *     read_t = sum_J p_j v_j        out_t += sigma(gate) read_t
 * Per value head; value head h reads the q, k of key head h / (HV/H). q, k come normalised for the read.
 * Policies that move with reads add p to the rows' scores, in stream order. w = 0: the block alone.
 *
 * Sessions carry per value head: the kept rows and the open block, each k, v, score; and the positions
 * of the kept rows. How many of each are filled follows from the position: min(w, C*(pos/C)), pos % C. */
#ifndef HL_CACHE_H
#define HL_CACHE_H
#include "core/rows.h"
#include "ops/cache/policy.h"

struct hl_cache {
    const struct hl_rows *rows;
    int64_t H, HV, K, V, window, chunk;
    struct hl_policy policy;
    const void *q, *k;             /* [T][H][K] */
    const void *v;                 /* [T][HV][V] */
    const real *score;             /* [T][HV]; unused with HL_SCORE_NONE */
    const real *tau, *sink, *gate; /* [HV] */
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
};

/* The state of one value head inside the session's block: byte offsets from its start. Keys and values are
 * activations, `size` bytes each: what they are made from, so that nothing is lost. */
struct hl_cache_layout {
    int64_t k, v;  /* [window + chunk][K], [window + chunk][V]: kept rows, then the open block */
    int64_t score; /* real [window + chunk] */
    int64_t pos;   /* int64 [window]: where the kept rows stood */
    int64_t bytes; /* of one head, a multiple of 64 */
};
struct hl_cache_layout hl_cache_layout(int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size);
int64_t hl_cache_state_bytes(int64_t HV, int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size);
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
