/* gdn_step_cpu.c -- the recurrence for segments of a few tokens (docs/math.md, "The delta rule", step).
 *
 * A state is processed in tiles of 64 columns, which stay in the L1 and L2 caches between the two passes of a
 * token: k^T S and q^T S are summed together, then S is decayed and written once. The read after the write
 * needs no third pass:
 *     q^T S_t = alpha q^T S_{t-1} + (q.k) beta e
 * Cost: S read from and written to memory once. The next tile is prefetched in both passes, half in each, so that
 * memory is never idle. */
#include "ops/gdn/gdn_step_cpu.h"

enum {
    SUMS = 4096, /* partial sums of m held on the stack */
    INLINE_FLOPS = 50 * 1000
};
/* One token of the tile of `cols` columns from `col` on: S becomes the next state, out is written; returns
 * the tile's share of |beta e|^2. */
static real step_tile(const void *op, real *S, const real *next, int64_t row, int64_t hv, int64_t col, int64_t cols) {
    const struct hl_gdn *a = op;
    real ks[GDN_TILE + VL], qs[GDN_TILE + VL], r[GDN_TILE + VL]; /* VL: the last vector extends past the tile */
    int64_t b = row * a->HV + hv, qk = (row * a->H + hv / (a->HV / a->H)) * a->K, K = a->K;
    int64_t whole = cols - cols % (GROUP * VL), j; /* whole: columns in whole groups of vectors */
    const struct columns c = {.S = S, .next = next, .ld = a->V, .K = K};
    const real *q = (const real *)a->q + qk, *k = (const real *)a->k + qk;
    const real *v = (const real *)a->v + b * a->V + col;
    real *out = (real *)a->out + b * a->V + col, qk_dot = row_dot(q, k, K);
    real alpha = a->g ? R_EXP(a->g[b]) : 1, beta = a->beta[b], scale = 1 / R_SQRT((real)K);
    for (j = 0; j < whole; j += GROUP * VL) read_columns(GROUP, from(&c, j, VL), k, q, ks + j, qs + j);
    for (; j < cols; j += VL) read_columns(1, from(&c, j, cols - j), k, q, ks + j, qs + j);
    for (j = 0; j < cols; j += VL) {
        vr e = load(v + j, cols - j) - alpha * v_load(ks + j);
        v_store(r + j, beta * e);
        store(out + j, scale * (alpha * v_load(qs + j) + qk_dot * v_load(r + j)), cols - j);
    }
    for (j = 0; j < whole; j += GROUP * VL) write_columns(GROUP, from(&c, j, VL), k, alpha, NULL, r + j);
    for (; j < cols; j += VL) write_columns(1, from(&c, j, cols - j), k, alpha, NULL, r + j);
    return row_sumsq(r, cols);
}

/* ---- tasks: a (segment, value head) or one tile of it, for a window of such pairs at a time ---- */

struct job {
    const struct gdn_steps *a;
    int64_t first;        /* the window's first pair */
    int64_t tiles, tasks; /* tiles and tasks of a pair */
    real *sums;           /* [pair][tile][GDN_STEP] */
};

static bool takes_step(const struct hl_seg *seg) { return seg->state && seg->len <= GDN_STEP; }
/* the state of a pair; NULL: it does not use the step */
static real *state_of(const struct gdn_steps *a, int64_t pair) {
    const struct hl_seg *seg = a->rows->seg + pair / a->HV;
    if (!takes_step(seg)) return NULL;
    return (real *)(seg->state + a->S_off) + pair % a->HV * a->K * a->V;
}

/* Stores a tile of the state in block_S if the segment's row t ends a block and is not the last row. */
static void keep_block_tile(const struct hl_gdn *a, int64_t pair, int64_t t, const real *S, int64_t col, int64_t cols) {
    const struct hl_seg *seg = &a->rows->seg[pair / a->HV];
    if (t + 1 == seg->len || (seg->pos + t + 1) % a->block != 0) return;
    real *to = gdn_block_state(a, pair / a->HV, t, pair % a->HV) + col;
    for (int64_t i = 0; i < a->K; i++) row_copy(to + i * a->V, S + i * a->V, cols);
}

static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct gdn_steps *a = j->a;
    int64_t local = i / j->tasks, pair = j->first + local;
    int64_t tile = i % j->tasks, end = j->tasks == 1 ? j->tiles : tile + 1;
    const struct hl_seg *seg = &a->rows->seg[pair / a->HV];
    real *S = state_of(a, pair);
    (void)worker;
    for (; S && tile < end; tile++) {
        int64_t col = tile * GDN_TILE, cols = a->V - col < GDN_TILE ? a->V - col : GDN_TILE;
        /* not the next pair: another thread may just be writing it */
        const real *next = tile + 1 < end ? S + col + GDN_TILE : NULL;
        for (int64_t t = 0; t < seg->len; t++) {
            bool fetch_next = next && t + 1 == seg->len;
            j->sums[(local * j->tiles + tile) * GDN_STEP + t] =
                a->tile(a->op, S + col, fetch_next ? next : S + col, seg->row + t, pair % a->HV, col, cols);
            if (a->blocks) keep_block_tile(a->blocks, pair, t, S + col, col, cols);
        }
    }
}

/* the tiles' sums, added in order */
static void finish_m(const struct job *j, int64_t pairs) {
    const struct gdn_steps *a = j->a;
    for (int64_t p = 0; p < pairs; p++) {
        const struct hl_seg *seg = &a->rows->seg[(j->first + p) / a->HV];
        for (int64_t t = 0; t < seg->len && takes_step(seg); t++) {
            real sum = 0;
            for (int64_t i = 0; i < j->tiles; i++) sum += j->sums[(p * j->tiles + i) * GDN_STEP + t];
            a->m[(seg->row + t) * a->HV + (j->first + p) % a->HV] = R_SQRT(sum);
        }
    }
}

void HL_OP(gdn_steps)(struct hl_pool *pool, const struct gdn_steps *a) {
    real sums[SUMS];
    struct job j = {.a = a, .tiles = hl_pieces(a->V, GDN_TILE), .sums = sums};
    int64_t pairs = a->rows->n * a->HV, window = SUMS / (j.tiles * GDN_STEP), rows = 0, busy = 0;
    HL_ASSERT(window > 0);
    for (int64_t s = 0; s < a->rows->n; s++)
        if (takes_step(&a->rows->seg[s])) {
            rows += a->rows->seg[s].len;
            busy += a->HV;
        }
    j.tasks = busy < hl_pool_threads(pool) ? j.tiles : 1; /* columns are independent: no bits change */
    for (; j.first < pairs; j.first += window) {
        int64_t now = pairs - j.first < window ? pairs - j.first : window;
        if (8 * rows * a->HV * a->K * a->V < INLINE_FLOPS)
            for (int64_t i = 0; i < now * j.tasks; i++) task(&j, i, 0);
        else hl_pool_run(pool, now * j.tasks, task, &j);
        if (a->m) finish_m(&j, now);
    }
}

void HL_OP(gdn_step)(struct hl_pool *pool, const struct hl_gdn *a) {
    const struct gdn_steps steps = {a, a->rows, a->HV, a->K, a->V, a->S_off, a->m, step_tile, a->block_S ? a : NULL};
    HL_OP(gdn_steps)(pool, &steps);
}
