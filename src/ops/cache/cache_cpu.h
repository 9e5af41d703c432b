/* cache_cpu.h -- shared by the CPU files of the exact memory: the rows that a block sees, and scratch memory.
 *
 * The keys that a block sees are numbered as columns: first the kept rows in order of position, then the block's own
 * rows. A column's id tells where its row is: id >= 0 is the segment's row `id` in the batch, id < 0 is slot -1 - id of
 * the session's state. Training, prompts and sessions thus share the code. */
#ifndef HL_CACHE_CPU_H
#define HL_CACHE_CPU_H
#include "ops/linear/small_gemm.h"

enum {
    CACHE_TILE = 128,       /* queries read together */
    CACHE_COLS = 512,       /* keys loaded at a time */
    CACHE_STEP = 32,        /* rows that share a causal limit: queries are masked in steps of this size */
    CACHE_BACK = 256,       /* backward: queries of a tile */
    CACHE_BCOLS = 64,       /* and keys of a tile */
    CACHE_KEPT = 128 * 1024 /* reals of a worker's `kept` */
};
/* Leading dimension of scratch rows of n reals. */
static inline int64_t hl_cache_ld(int64_t n) { return hl_small_gemm_ld(n); }

/* One value head of one segment. */
struct hl_cache_head {
    const struct hl_cache *a;
    int64_t h, hk;         /* value head, its key head */
    int64_t row, len, pos; /* as in hl_seg */
    int64_t kept, open;    /* rows in the state: kept rows, rows of the open block */
    char *k, *v;           /* the state: slots [0, window) and [window, window + chunk), in a->row_dtype; NULL: none */
    real *score;
    int64_t *at; /* positions of the kept rows */
    /* HL_SCORE_RECALL */
    real *factor;  /* of the state's rows; NULL: unused, or no session */
    int64_t block; /* in block_S: the block of the first row */
    const real *S; /* the state after the whole segment */
    bool last;     /* the segment ends with the last row: S is the state after it */
};
struct hl_cache_head hl_cache_head(const struct hl_cache *a, const struct hl_seg *s, int64_t h);
/* The state after block b, which is complete; NULL: training, where no later row reads that block. */
const real *hl_cache_state_after(const struct hl_cache_head *d, int64_t b);
real hl_cache_factor_of(const struct hl_cache_head *d, int64_t id); /* factor f of a row */
static inline int64_t hl_cache_blocks(const struct hl_cache_head *d) {
    return hl_pieces(d->open + d->len, d->a->chunk);
}

/* The columns of the current block: n kept rows, then those appended by hl_cache_select_block. */
struct hl_cache_selection {
    int64_t n;
    int64_t *id;    /* [window + chunk] */
    real *score;    /* [window + chunk] */
    uint64_t *key;  /* [window + chunk]: scratch of the merge */
    int64_t *order; /* [2 (window + chunk)] and */
    real *norm;     /* [window]: if near-duplicates come last */
};
void hl_cache_select_start(struct hl_cache_selection *p, const struct hl_cache_head *d);
/* Appends the rows of the segment's block b; returns their number. */
int64_t hl_cache_select_block(struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t b);
/* Ends a block of m rows: kept = top_w(kept + block). */
void hl_cache_select_merge(struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t m);
/* p->key of n columns: integers ordered like the scores. */
void hl_cache_select_keys(struct hl_cache_selection *p, int64_t n);

/* A worker's scratch arrays. Forward and backward share memory. */
struct hl_cache_work {
    struct hl_cache_selection chosen; /* columns of the current block */
    int64_t tile, ldk;                /* queries of a forward tile; row stride of kT */
    real *rows, *mm;                  /* rows of CACHE_BCOLS columns; scratch of mm */
    real *kT, *v, *qT, *S, *O;        /* forward: k [K][cols], v [cols][V], q [K][tile], S [keys][tile], O [tile][V] */
    real *max, *sum;                  /* [tile] */
    real *bqT, *bdoT;                 /* backward: q, dout [K or V][BACK] */
    real *bkT, *bvT, *bk;             /* k, v [K or V][BCOLS]; gathered keys */
    real *P, *dS, *R, *lam, *bias;    /* [BACK][BCOLS], [BACK][BCOLS], [BACK], [BACK], [BCOLS] */
    real *kept;                       /* [CACHE_KEPT]: kept between tasks, for the gradient of a long segment */
    int64_t bytes;
};
struct hl_cache_work hl_cache_worker(struct hl_pool *pool, int worker, const struct hl_cache *a);

#ifdef HL_ISA
/* Keys or values of n columns with row stride *ld: in place if contiguous and read as they are, else copied to
 * `buffer`. */
const real *HL_OP(cache_keys)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *buffer, int64_t *ld);
const real *HL_OP(cache_values)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *buffer, int64_t *ld);
/* Always copies; the row stride is hl_cache_ld(V). */
void HL_OP(cache_gather_values)(const struct hl_cache_head *d, const int64_t *id, int64_t n, real *to);
/* Writes the kept rows and the m rows of the open block to the session's state. */
void HL_OP(cache_store)(const struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t m);
/* Reads for the new rows of block b (m rows in all); if the policy depends on reads, the columns' scores grow. */
void HL_OP(cache_read)(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t b, int64_t m);
/* hl_cache_select_merge, with near-duplicate keys last if the policy requires it. */
void HL_OP(cache_merge)(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t m);
/* Measures the columns' scores at the end of block b of m rows against the state S. */
void HL_OP(cache_measure)(const struct hl_cache_head *d, struct hl_cache_work *w, const real *S, int64_t m);
/* One new token of a session: append, read, merge a full block. */
void HL_OP(cache_step)(const struct hl_cache_head *d, struct hl_cache_work *w);
#endif

#endif
