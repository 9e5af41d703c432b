/* cache_cpu.h -- what the files of the fast cache share: the rows a block sees, and the scratch memory.
 *
 * A block's keys are numbered as columns: first the kept rows in order of position, then the block's
 * own rows. Where a column's row lies is its id: id >= 0 is the segment's row `id` in the batch, id < 0
 * is slot -1 - id of the session's state. So training, prompts and sessions are one code. */
#ifndef HL_CACHE_FAST_H
#define HL_CACHE_FAST_H
#include "ops/linear/small_gemm.h"

enum {
    CACHE_TILE = 128, /* queries read together */
    CACHE_COLS = 512, /* keys brought together at a time */
    CACHE_STEP = 32,  /* the causal edge is cut in steps of so many rows */
    CACHE_BACK = 256, /* queries of a tile of the backward pass */
    CACHE_BCOLS = 64, /* and its keys */
};
/* Distance of scratch rows of n reals: an odd number of lines, as rows a power of two apart share sets. */
static inline int64_t hl_cache_ld(int64_t n) { return ((n + 15) / 16 | 1) * 16; }

/* One value head of one segment. */
struct hl_cache_head {
    const struct hl_cache *a;
    int64_t h, hk;         /* value head, its key head */
    int64_t row, len, pos; /* as in hl_seg */
    int64_t kept, open;    /* rows in the state: kept ones, those of the open block */
    real *k, *v, *score;   /* the state: slots [0, window) and [window, window + chunk); NULL: none */
    int64_t *at;           /* positions of the kept rows */
};
struct hl_cache_head hl_cache_head(const struct hl_cache *a, const struct hl_seg *s, int64_t h);
static inline int64_t hl_cache_blocks(const struct hl_cache_head *d) {
    return hl_pieces(d->open + d->len, d->a->chunk);
}

/* The columns of the current block: n kept rows, then those hl_cache_columns appended. */
struct hl_cache_pick {
    int64_t n;
    int64_t *id;   /* [window + chunk] */
    real *score;   /* [window + chunk] */
    uint64_t *key; /* [window + chunk]: room for the selection */
};
void hl_cache_start(struct hl_cache_pick *p, const struct hl_cache_head *d);
/* Appends the rows of the segment's block b; returns how many there are. */
int64_t hl_cache_columns(struct hl_cache_pick *p, const struct hl_cache_head *d, int64_t b);
/* The block of m rows is over: kept = top_w(kept + block). */
void hl_cache_merge(struct hl_cache_pick *p, const struct hl_cache_head *d, int64_t m);
/* Brings the state to where the pick stands: its kept rows and the m rows of the open block. */
void hl_cache_store(const struct hl_cache_pick *p, const struct hl_cache_head *d, int64_t m);
/* Keys or values of n columns, *ld apart: where they lie if they follow each other, else a copy in `room`. */
const real *hl_cache_keys(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *room, int64_t *ld);
const real *hl_cache_values(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *room, int64_t *ld);
/* Copied in any case, hl_cache_ld(V) apart. */
void hl_cache_gather_values(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *to);

/* A worker's scratch, cut up. Forward and backward use the same memory. */
struct hl_cache_work {
    struct hl_cache_pick pick;
    int64_t tile, ldk;         /* queries of a forward tile; distance of rows of kT */
    real *rows, *mm;           /* rows of CACHE_BCOLS columns; scratch of mm */
    real *kT, *v, *qT, *S, *O; /* forward: k [K][cols], v [cols][V], q [K][tile], S [keys][tile], O [tile][V] */
    real *max, *sum;           /* [tile] */
    real *bqT, *bdoT;          /* backward: q, dout [K or V][BACK] */
    real *bkT, *bvT, *bk;      /* k, v [K or V][BCOLS]; gathered keys */
    real *P, *dS, *R;          /* [BACK][BCOLS], [BACK][BCOLS], [BACK] */
    int64_t bytes;
};
struct hl_cache_work hl_cache_worker(struct hl_pool *pool, int worker, const struct hl_cache *a);

#ifdef HL_ISA
/* The new rows of block b (m rows in all) read, and at h2o leave what they saw in the pick's scores. */
void HL_OP(cache_read)(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t b, int64_t m);
/* One new token of a session: append, read, merge a full block. */
void HL_OP(cache_step)(const struct hl_cache_head *d, struct hl_cache_work *w);
#endif

#endif
