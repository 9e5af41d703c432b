/* gdn_chunk_cpu.c -- the forward pass, 64 rows at a time (docs/math.md, "The delta rule", in chunks), and the choice
 * between chunks and steps.
 *
 * With X = [q; k] of the chunk, h the state before it, G the cumulated log-decay inside it, s = K^{-1/2}:
 *     [qh; kh] = X h
 *     v_new    = A r,  r = beta (v - exp(G) kh)          = beta e, row by row; no w is ever formed
 *     out      = s exp(G) qh + P v_new
 *     h_next   = exp(G_last) h + k^T (exp(G_last - G) v_new)
 * The columns of V are independent, so a long sequence can be split into column tiles as well. */
#include "ops/gdn/gdn_cpu.h"

enum { C = HL_CHUNK, SUMS = 4096 /* partial sums of m held on the stack */ };

/* Chunks [first, end) of a segment for columns [col, col + cols) of one value head. */
struct span {
    const struct hl_gdn *a;
    int64_t s, hv, col, cols, first, end;
    real *sums; /* |v_new|^2 of the rows from chunk `first` on; NULL: m is written */
};

struct work {
    struct gdn_chunk x;
    int64_t ldv;
    real *A, *Y, *v_new, *S; /* [C][C], [2n][ldv], [n][ldv], [K][V] */
};

static struct work carve(const struct hl_gdn *a, real *p) {
    const real *base = p;
    struct work w = {.ldv = gdn_ld(a->V)};
    w.x.mm = gdn_take(&p, HL_SMALL_GEMM_SCRATCH);
    w.x.X = gdn_take(&p, 2 * C * gdn_ld(a->K));
    w.x.P = gdn_take(&p, 2 * C * C);
    w.x.D = gdn_take(&p, C * C);
    w.A = gdn_take(&p, C * C);
    w.Y = gdn_take(&p, 2 * C * w.ldv);
    w.v_new = gdn_take(&p, C * w.ldv);
    w.S = gdn_take(&p, a->K * a->V);
    HL_ASSERT(p - base <= gdn_scratch_reals(a->K, a->V));
    return w;
}

/* v_new and out for the span's columns; h NULL: the state is still empty */
static void read_state(const struct span *p, struct work *w, const real *h) {
    const struct hl_gdn *a = p->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, ld = a->HV * a->V, at = (x->row * a->HV + x->hv) * a->V + p->col;
    const real *v = (const real *)a->v + at;
    real *out = (real *)a->out + at, *r = w->Y + n * w->ldv, scale = 1 / R_SQRT((real)a->K);
    if (h) {
        struct hl_small_gemm mm = {.M = 2 * n, .N = p->cols, .K = a->K, .alpha = 1, .ldc = w->ldv};
        mm.A = x->X, mm.ai = x->ldx, mm.ak = 1;
        mm.B = h, mm.bk = a->V, mm.bn = 1;
        mm.C = w->Y;
        HL_OP(small_gemm)(&mm, x->mm);
    }
    for (int64_t i = 0; i < n; i++) {
        if (h) row_residual(r + i * w->ldv, v + i * ld, x->beta[i], x->eG[i], p->cols);
        else row_scale(r + i * w->ldv, v + i * ld, x->beta[i], p->cols);
        if (h) row_scale(out + i * ld, w->Y + i * w->ldv, scale * x->eG[i], p->cols);
    }
    struct gdn_tri t = {.n = n, .N = p->cols, .T = w->A, .ldt = C, .B = r, .ldb = w->ldv, .C = w->v_new, .ldc = w->ldv};
    HL_OP(gdn_tri)(&t, x->mm);
    t = (struct gdn_tri){.n = n, .N = p->cols, .T = x->P, .ldt = C, .B = w->v_new, .ldb = w->ldv, .C = out, .ldc = ld};
    t.add = h != NULL;
    HL_OP(gdn_tri)(&t, x->mm);
}

/* next = end * h + k^T (eL v_new); v_new is scaled in place. next may be h. */
static void write_state(const struct span *p, struct work *w, const real *h, real *next) {
    const struct hl_gdn *a = p->a;
    struct gdn_chunk *x = &w->x;
    for (int64_t i = 0; i < x->n; i++) row_scale(w->v_new + i * w->ldv, w->v_new + i * w->ldv, x->eL[i], p->cols);
    if (h && (h != next || a->g))
        for (int64_t i = 0; i < a->K; i++) row_scale(next + i * a->V, h + i * a->V, x->end, p->cols);
    struct hl_small_gemm mm = {.M = a->K, .N = p->cols, .K = x->n, .alpha = 1, .ldc = a->V, .add = h != NULL};
    mm.A = x->X + x->n * x->ldx, mm.ai = 1, mm.ak = x->ldx;
    mm.B = w->v_new, mm.bk = w->ldv, mm.bn = 1;
    mm.C = next;
    HL_OP(small_gemm)(&mm, x->mm);
}

/* S after the blocks that end inside the chunk, or at its end if more rows follow: S_r = exp(G_r) h + k^T (exp(G_r - G)
 * v_new) over the rows up to r. Overwrites Y. */
static void write_block_states(const struct span *p, struct work *w, const real *h) {
    const struct hl_gdn *a = p->a;
    const struct hl_seg *seg = &a->rows->seg[p->s];
    struct gdn_chunk *x = &w->x;
    const int64_t first = x->row - seg->row; /* the chunk's first row in the segment */
    for (int64_t r = a->block - 1 - (seg->pos + first) % a->block; r < x->n; r += a->block) {
        if (first + r + 1 == seg->len) return;
        real *S = gdn_block_state(a, p->s, first + r, p->hv) + p->col;
        struct hl_small_gemm mm = {.M = a->K, .N = p->cols, .K = r + 1, .alpha = 1, .ldc = a->V, .add = h != NULL};
        for (int64_t i = 0; i <= r; i++) row_scale(w->Y + i * w->ldv, w->v_new + i * w->ldv, x->D[r * C + i], p->cols);
        for (int64_t i = 0; h && i < a->K; i++) row_scale(S + i * a->V, h + i * a->V, x->eG[r], p->cols);
        mm.A = x->X + x->n * x->ldx, mm.ai = 1, mm.ak = x->ldx;
        mm.B = w->Y, mm.bk = w->ldv, mm.bn = 1;
        mm.C = S;
        HL_OP(small_gemm)(&mm, x->mm);
    }
}

/* m (or its sums) and, for the backward pass, v_new and A */
static void store_results(const struct span *p, struct work *w, real *sums) {
    const struct hl_gdn *a = p->a;
    for (int64_t i = 0; i < w->x.n; i++) {
        int64_t at = (w->x.row + i) * a->HV + p->hv;
        const real *v_new = w->v_new + i * w->ldv;
        real sum = row_sumsq(v_new, p->cols);
        if (sums) sums[i] = sum;
        else a->m[at] = R_SQRT(sum);
        if (!a->h) continue;
        row_copy((real *)a->v_new + at * a->V + p->col, v_new, p->cols);
        if (p->col == 0) row_copy((real *)a->A + at * C, w->A + i * C, C);
    }
}

static void start_state(const struct span *p, real *h, const real *from) {
    for (int64_t i = 0; i < p->a->K; i++) {
        real *to = h + i * p->a->V;
        if (from) row_copy(to, from + i * p->a->V, p->cols);
        else memset(to, 0, (size_t)p->cols * sizeof *to);
    }
}

static void scan_chunks(const struct span *p, real *scratch) {
    const struct hl_gdn *a = p->a;
    const struct hl_seg *seg = &a->rows->seg[p->s];
    struct work w = carve(a, scratch);
    int64_t KV = a->K * a->V, chunks = hl_pieces(seg->len, C), head = p->hv * KV + p->col;
    const struct gdn_states S = {.session = seg->state ? (real *)(seg->state + a->S_off) + head : NULL,
                                 .kept = a->h ? a->h + hl_chunks_before(a->rows, p->s) * a->HV * KV + head : NULL,
                                 .scratch = w.S,
                                 .step = a->HV * KV};
    for (int64_t c = p->first; c < p->end; c++) {
        int64_t left = seg->len - c * C;
        real *h = gdn_state_before(&S, c), *next = gdn_state_after(&S, c, chunks);
        bool empty = c == 0 && !S.session;
        if (S.kept && c == 0) start_state(p, h, S.session);
        HL_OP(gdn_chunk_load)(&w.x, a, seg->row + c * C, left < C ? left : C, p->hv);
        HL_OP(gdn_inverse)(&w.x, w.A);
        read_state(p, &w, empty ? NULL : h);
        store_results(p, &w, p->sums ? p->sums + (c - p->first) * C : NULL);
        if (a->block_S) write_block_states(p, &w, empty ? NULL : h);
        if (next) write_state(p, &w, empty ? NULL : h, next);
    }
}

/* ---- tasks ---- */

struct job {
    struct hl_pool *pool;
    struct span p;
    int64_t tiles, window; /* a split segment: tiles of V, rows per window of chunks */
    real *sums;            /* [HV][tiles][window] */
};

static real *scratch_of(const struct job *j, int worker) {
    return hl_pool_scratch(j->pool, worker, hl_gdn_scratch(j->p.a->K, j->p.a->V));
}

/* a whole (segment, value head) */
static void whole_task(void *ctx, int64_t i, int worker) {
    struct job *j = ctx;
    struct span p = j->p;
    p.s = i / p.a->HV;
    p.hv = i % p.a->HV;
    p.cols = p.a->V;
    p.end = hl_pieces(p.a->rows->seg[p.s].len, C);
    if (gdn_chunked(p.a->h, &p.a->rows->seg[p.s])) scan_chunks(&p, scratch_of(j, worker));
}

/* one tile of V of one value head, inside a window of chunks of one segment */
static void tile_task(void *ctx, int64_t i, int worker) {
    struct job *j = ctx;
    struct span p = j->p;
    p.hv = i / j->tiles;
    p.col = i % j->tiles * GDN_TILE;
    p.cols = p.a->V - p.col < GDN_TILE ? p.a->V - p.col : GDN_TILE;
    p.sums = j->sums + i * j->window;
    scan_chunks(&p, scratch_of(j, worker));
}

/* Splitting V recomputes the scores of a chunk in every tile, about a quarter of the work, so it is done only if
 * threads would be idle. It changes no bits. A state must outlive its window of chunks, so every segment needs one in
 * memory. segs: segments in chunked form. */
static bool worth_splitting(const struct job *j, int64_t segs) {
    const struct hl_gdn *a = j->p.a;
    int64_t threads = hl_pool_threads(j->pool);
    int64_t whole = hl_pieces(segs * a->HV, threads), split = segs * hl_pieces(a->HV * j->tiles, threads);
    if (j->window == 0 || split * (4 + j->tiles) >= whole * 4 * j->tiles) return false;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (gdn_chunked(a->h, &a->rows->seg[s]) && !a->h && !a->rows->seg[s].state) return false;
    return true;
}

static void run_split(struct job *j) {
    const struct hl_gdn *a = j->p.a;
    const struct hl_seg *seg = &a->rows->seg[j->p.s];
    int64_t chunks = hl_pieces(seg->len, C);
    for (int64_t c = 0; c < chunks; c += j->window / C) {
        int64_t left = seg->len - c * C, rows = left < j->window ? left : j->window;
        j->p.first = c;
        j->p.end = c + hl_pieces(rows, C);
        hl_pool_run(j->pool, a->HV * j->tiles, tile_task, j);
        for (int64_t i = 0; i < rows * a->HV; i++) {
            real sum = 0;
            for (int64_t t = 0; t < j->tiles; t++) sum += j->sums[(i % a->HV * j->tiles + t) * j->window + i / a->HV];
            a->m[(seg->row + c * C) * a->HV + i] = R_SQRT(sum);
        }
    }
}

void HL_OP(gdn_forward)(struct hl_backend *backend, const struct hl_gdn *a) {
    real sums[SUMS];
    struct job j = {.pool = hl_backend_pool(backend), .p.a = a, .tiles = hl_pieces(a->V, GDN_TILE), .sums = sums};
    const int64_t segs = gdn_count_chunked(a->h, a->rows);
    HL_ASSERT(a->HV % a->H == 0 && !a->h == !a->v_new && !a->h == !a->A);
    j.window = SUMS / (a->HV * j.tiles) / C * C;
    if (segs < a->rows->n) HL_OP(gdn_step)(hl_backend_pool(backend), a);
    if (segs == 0) return;
    if (!worth_splitting(&j, segs)) {
        hl_pool_run(hl_backend_pool(backend), a->rows->n * a->HV, whole_task, &j);
        return;
    }
    for (j.p.s = 0; j.p.s < a->rows->n; j.p.s++)
        if (gdn_chunked(a->h, &a->rows->seg[j.p.s])) run_split(&j);
}
