/* gla_cpu.h -- a chunk of gated linear attention and its gradients (docs/math.md, "GLA"), for one key head. gla_*_cpu.c
 * run it over segments, and gated slot attention uses it to read and write its values. */
#ifndef HL_GLA_CPU_H
#define HL_GLA_CPU_H
#include "ops/decay/pair_cpu.h"

/* q, k, v, out and their gradients are rows of the batch: a pointer and the row stride. */
struct gla_rows {
    real *x;
    int64_t ld;
};
/* rows from `row` on, for head h of `heads` */
static inline struct gla_rows gla_rows_of(const void *x, int64_t heads, int64_t width, int64_t row, int64_t h) {
    return (struct gla_rows){(real *)(uintptr_t)x + (row * heads + h) * width, heads * width};
}
static inline void gla_put_rows(struct gla_rows to, const real *from, int64_t ld, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n; i++) row_copy(to.x + i * to.ld, from + i * ld, width);
}

struct gla_chunk {
    struct pair p; /* X: q of one head; Y: k */
    int64_t K, V;
    real scale;
    struct gla_rows v;
    real *P; /* [C][C]: scale pair(q, k), 0 above the diagonal */
    real *E; /* [C][p.ld]: q exp(G) */
    real *mm;
};

/* G: cumulative log decays; h: the state before the chunk; dh: the gradient of the state after it. */
struct gla_back {
    struct gla_chunk c;
    const real *h;
    real *dh;         /* [K][V]: becomes the gradient of h */
    bool first, last; /* the first chunk of a segment has h = 0, the last one dh = 0 */
    real *W;          /* [C][C]: scale dO v^T, 0 above the diagonal */
    real *R, *Z;      /* [C][p.ld]: gradients of one head's q, and its contribution to k's */
    real *dk;         /* [C][p.ld]: total gradient of k */
    real *dv;         /* [C][ldv] */
    int64_t ldv;
    /* [C][p.ld], [C][p.ld], [p.ld]: a row's contribution to the log decays of the rows up to it, of those after it, and
     * of all */
    real *up, *down, *hdh;
};

static inline int64_t gla_scratch_reals(int64_t K, int64_t V) {
    return HL_SMALL_GEMM_SCRATCH + pair_reals(K) + K * V + 16 + 7 * HL_CHUNK * gdn_ld(K) + HL_CHUNK * gdn_ld(V) +
           2 * HL_CHUNK * HL_CHUNK;
}

#ifdef HL_ISA
struct gla_chunk HL_OP(gla_chunk_carve)(int64_t K, int64_t V, real scale, real *mm, real **mem);
/* g: n rows of log decays */
void HL_OP(gla_chunk_load)(struct gla_chunk *c, int64_t n, struct gla_rows g, struct gla_rows k, struct gla_rows v);
/* out = scale (q exp(G) h + pair(q, k) v); h NULL: the state is still empty */
void HL_OP(gla_chunk_read)(struct gla_chunk *c, struct gla_rows q, const real *h, struct gla_rows out);
/* next = diag(exp(G_last)) h + (k exp(G_last - G))^T v, the last step of a chunk; next may be h */
void HL_OP(gla_chunk_write)(struct gla_chunk *c, const real *h, real *next);

struct gla_back HL_OP(gla_back_carve)(int64_t K, int64_t V, real scale, real *mm, real **mem);
/* First: the gradient through the state after the chunk. */
void HL_OP(gla_back_keys)(struct gla_back *b);
/* Then each query head of the group; leaves its gradient in R. */
void HL_OP(gla_back_query)(struct gla_back *b, struct gla_rows q, struct gla_rows dout);
/* dg_t = sum_{i>=t} up_i + sum_{i<t} down_i + hdh */
void HL_OP(gla_back_decays)(const struct gla_back *b, struct gla_rows dg);

void HL_OP(gla_step)(struct hl_pool *pool, const struct hl_gla *a);
#endif

#endif
