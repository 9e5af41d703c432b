/* gdn_cpu.h -- shared by the fast forms of the delta rule: one chunk of one value head (docs/math.md, "The delta
 * rule"), its scores and inverse, triangular products, and loops over one row. */
#ifndef HL_GDN_CPU_H
#define HL_GDN_CPU_H
#include "ops/linear/small_gemm.h"
#include "ops/simd.h"

enum {
    GDN_TILE = 64,           /* columns of V per task of the step and per partial sum of m */
    GDN_STEP = HL_STEP_ROWS, /* segments up to this length run token by token at inference */
    GDN_SLOTS = 8            /* states after a worker's scratch, for the gradient of a long segment */
};
_Static_assert((int)GDN_STEP <= (int)HL_FEW, "cuts leave more than that");

/* Whether a segment runs in chunks or token by token; keeps: the states before each chunk, for the backward pass. It
 * depends on the segment alone. A short one that starts empty and keeps nothing is cheap in chunked form: it needs no
 * product with a state. */
static inline bool gdn_chunked(bool keeps, const struct hl_seg *seg) {
    return keeps || !seg->state || seg->len > GDN_STEP;
}
static inline int64_t gdn_count_chunked(bool keeps, const struct hl_rows *rows) {
    int64_t n = 0;
    for (int64_t s = 0; s < rows->n; s++) n += gdn_chunked(keeps, &rows->seg[s]);
    return n;
}

/* The location of one head's state from chunk to chunk of a segment. */
struct gdn_states {
    real *session; /* NULL: the segment starts empty, and its final state is not needed */
    real *kept;    /* the state before each chunk, `step` numbers apart; NULL: only the current one, in place */
    real *scratch; /* the current one, if there is neither */
    int64_t step;
};
static inline real *gdn_state_before(const struct gdn_states *s, int64_t chunk) {
    return s->kept ? s->kept + chunk * s->step : s->session ? s->session : s->scratch;
}
/* NULL: nobody reads it */
static inline real *gdn_state_after(const struct gdn_states *s, int64_t chunk, int64_t chunks) {
    return chunk + 1 == chunks ? s->session : gdn_state_before(s, chunk + 1);
}
/* The state before the first chunk, if it is kept: `size` numbers. */
static inline void gdn_state_start(const struct gdn_states *s, int64_t size) {
    if (!s->kept) return;
    if (s->session) memcpy(s->kept, s->session, (size_t)size * sizeof(real));
    else memset(s->kept, 0, (size_t)size * sizeof(real));
}

/* Scratch rows are a cache line longer than K or V, so that they do not all map to one set of the L1 cache. */
static inline int64_t gdn_ld(int64_t n) { return (n + 15) / 16 * 16 + 16; }
/* Takes n reals of the scratch memory; arrays start on cache lines. */
static inline real *gdn_take(real **p, int64_t n) {
    real *taken = *p;
    *p += (n + 15) / 16 * 16;
    return taken;
}
/* reals of scratch, enough for the arrays of forward and of backward */
static inline int64_t gdn_scratch_reals(int64_t K, int64_t V) {
    return HL_SMALL_GEMM_SCRATCH + K * V + 16 + 6 * HL_CHUNK * (gdn_ld(K) + gdn_ld(V)) + 8 * HL_CHUNK * HL_CHUNK;
}

/* The entry of block_S for value head hv after the segment's row t, the last of its block. */
static inline real *gdn_block_state(const struct hl_gdn *a, int64_t segment, int64_t t, int64_t hv) {
    const struct hl_seg *s = &a->rows->seg[segment];
    const int64_t block = hl_blocks_before(a->rows, segment, a->block) + (s->pos + t) / a->block - s->pos / a->block;
    return a->block_S + (block * a->HV + hv) * a->K * a->V;
}

struct gdn_chunk {
    int64_t n, row, hv, ldx;                         /* rows; first row in the batch; value head */
    real *X;                                         /* [2n][ldx]: the rows of q, then those of k */
    real *P, *M, *D;                                 /* [n][HL_CHUNK], zero above the diagonal: D = exp(G_i - G_j),
                                P = K^{-1/2} q_i.k_j D, M = k_i.k_j D below the diagonal (L = beta M) */
    real beta[HL_CHUNK], eG[HL_CHUNK], eL[HL_CHUNK]; /* exp(G_i), exp(G_last - G_i) */
    real end;                                        /* exp(G_last) */
    real *mm;                                        /* scratch of the products */
};

#ifdef HL_ISA
/* X, P, M, D and mm point to memory for a whole chunk; fills in the rest. D NULL: P and M are not written. */
void HL_OP(gdn_chunk_load)(struct gdn_chunk *x, const struct hl_gdn *a, int64_t row, int64_t n, int64_t hv);
/* A = (I + diag(beta) M)^-1, rows HL_CHUNK apart */
void HL_OP(gdn_inverse)(const struct gdn_chunk *x, real *A);

/* A product with a triangle: C (= or +=) T B or T^T B, where T [n][n] is zero above its diagonal. */
struct gdn_tri {
    int64_t n, N;
    const real *T, *B;
    int64_t ldt, ldb;
    real *C;
    int64_t ldc;
    bool add;
};
void HL_OP(gdn_tri)(const struct gdn_tri *t, real *mm);
void HL_OP(gdn_tri_trans)(const struct gdn_tri *t, real *mm);
/* C [2n][HL_CHUNK] = Y B^T for Y [2n][N], B [n][N]; of each half only what its lower triangle needs */
void HL_OP(gdn_lower)(real *C, const real *Y, int64_t ldy, const real *B, int64_t ldb, int64_t n, int64_t N, real *mm);

void HL_OP(gdn_step)(struct hl_pool *pool, const struct hl_gdn *a);

/* Runs short session segments token by token, for any op with states [HV][K][V] whose columns are independent. */
struct gdn_steps {
    const void *op;
    const struct hl_rows *rows;
    int64_t HV, K, V, S_off;
    real *m; /* [T][HV]: the root of the tiles' sums; NULL: not needed */
    /* one token of `cols` columns from `col` on: S becomes the next state, out is written; next is prefetched */
    real (*tile)(const void *op, real *S, const real *next, int64_t row, int64_t hv, int64_t col, int64_t cols);
    const struct hl_gdn *blocks; /* stores the states at block ends (block_S); NULL: not needed */
};
void HL_OP(gdn_steps)(struct hl_pool *pool, const struct gdn_steps *a);
#endif

/* ---- one row ---- */

static inline void row_scale(real *y, const real *x, real f, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) v_store(y + j, f * v_load(x + j));
    if (j < n) v_store_n(y + j, f * v_load_n(x + j, n - j), n - j);
}
static inline void row_copy(real *y, const real *x, int64_t n) { memcpy(y, x, (size_t)n * sizeof *y); }
static inline void row_add(real *y, const real *x, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) v_store(y + j, v_load(y + j) + v_load(x + j));
    if (j < n) v_store_n(y + j, v_load_n(y + j, n - j) + v_load_n(x + j, n - j), n - j);
}
/* y = f (x - f2 y) */
static inline void row_residual(real *y, const real *x, real f, real f2, int64_t n) {
    int64_t j = 0;
    for (; j + VL <= n; j += VL) v_store(y + j, f * (v_load(x + j) - f2 * v_load(y + j)));
    if (j < n) v_store_n(y + j, f * (v_load_n(x + j, n - j) - f2 * v_load_n(y + j, n - j)), n - j);
}
static inline real row_dot(const real *x, const real *y, int64_t n) {
    vr s = v_set(0), s2 = v_set(0);
    int64_t j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL) {
        s += v_load(x + j) * v_load(y + j);
        s2 += v_load(x + j + VL) * v_load(y + j + VL);
    }
    for (; j + VL <= n; j += VL) s += v_load(x + j) * v_load(y + j);
    if (j < n) s2 += v_load_n(x + j, n - j) * v_load_n(y + j, n - j);
    return v_sum(s + s2);
}
/* sum of squares by tiles of GDN_TILE, added in order: the sum does not depend on how the columns are split between
 * tasks */
static inline real row_sumsq(const real *x, int64_t n) {
    real sum = 0;
    for (int64_t j = 0; j < n; j += GDN_TILE) {
        int64_t width = n - j < GDN_TILE ? n - j : GDN_TILE;
        sum += row_dot(x + j, x + j, width);
    }
    return sum;
}

#endif
