/* gdn_chunk_back_cpu.c -- the backward pass, from the last chunk to the first (docs/math.md, "The delta
 * rule", backward).
 *
 * dh: gradient of the state after the chunk; s = K^{-1/2}; eL = exp(G_last - G); Q, K, V, v_new: its rows.
 *     dv_new = P^T dO + eL (K dh)              X2 = A^T dv_new           dV = beta X2
 *     dS = s tril(dO v_new^T) D                dL = -stril(X2 v_new^T)   N = beta dL D
 *     [Z1; Z2] = [s exp(G) dO; -exp(G) X2]     [Y1; Y2] = [Z1; Z2] h^T   U = (eL v_new) dh^T
 *     dQ = Y1 + dS K                           dK = beta Y2 + U + dS^T Q + N K + N^T K
 *     dbeta = V.X2 + K.Y2 + rowsum(dL M)
 *     dh before the chunk = exp(G_last) dh + Q^T Z1 + K^T (beta Z2)
 * As v_new = A r with r = beta (V - exp(G) K h): dA = dv_new r^T, and dL = -stril(A^T dA A^T) is -stril(X2
 * v_new^T). Neither w nor dA is formed. With F = stril(dO v_new^T P + beta dL M), elementwise,
 *     dg_t = sum_{i>=t>j} F_ij + sum_{i>=t} (Q.Y1 + beta K.Y2)_i + sum_{i<t} (K.U)_i + exp(G_last) h.dh */
#include "ops/gdn/gdn_cpu.h"

/* SPLIT: columns of V per task in the sequential part of a split segment, see run_split() */
enum { C = HL_CHUNK, SPLIT = HL_PANEL };

struct work {
    struct gdn_chunk x;
    const struct hl_gdn *a;
    int64_t ldv;
    real *dh;              /* [K][V]: of the state after the chunk */
    real *Y, *Z;           /* [2n][ldv]: dO over X2; Z1 over Z2 */
    real *v_new, *dv_new;  /* [n][ldv] */
    real *dX, *U;          /* [2n][ldx]: Y1 over Y2, then dQ over dK; [n][ldx] */
    real *W;               /* [2n][C]: dO v_new^T over X2 v_new^T, then dS over N */
    double up[C], down[C]; /* row i's contribution to dg of the rows up to it, and of the rows after it */
    real dbeta[C];
    double hdh;       /* exp(G_last) h.dh */
    bool first, last; /* the first chunk has h = 0, the last one dh = 0 */
};

static struct work carve(const struct hl_gdn *a, real *p) {
    const real *base = p;
    struct work w = {.a = a, .ldv = gdn_ld(a->V)};
    w.x.mm = gdn_take(&p, HL_SMALL_GEMM_SCRATCH);
    w.x.X = gdn_take(&p, 2 * C * gdn_ld(a->K));
    w.x.P = gdn_take(&p, 2 * C * C);
    w.x.D = gdn_take(&p, C * C);
    w.dh = gdn_take(&p, a->K * a->V);
    w.Y = gdn_take(&p, 2 * C * w.ldv);
    w.Z = gdn_take(&p, 2 * C * w.ldv);
    w.v_new = gdn_take(&p, C * w.ldv);
    w.dv_new = gdn_take(&p, C * w.ldv);
    w.dX = gdn_take(&p, 2 * C * gdn_ld(a->K));
    w.U = gdn_take(&p, C * gdn_ld(a->K));
    w.W = gdn_take(&p, 2 * C * C);
    HL_ASSERT(p - base <= gdn_scratch_reals(a->K, a->V));
    return w;
}

static int64_t value_at(const struct work *w) { return (w->x.row * w->a->HV + w->x.hv) * w->a->V; }

/* dv_new = eL (K dh) for `cols` columns of V */
static void key_reads(struct work *w, const real *dh, int64_t cols) {
    const struct gdn_chunk *x = &w->x;
    struct hl_small_gemm p = {.M = x->n, .N = cols, .K = w->a->K, .alpha = 1, .C = w->dv_new, .ldc = w->ldv};
    p.A = x->X + x->n * x->ldx, p.ai = x->ldx, p.ak = 1;
    p.B = dh, p.bk = w->a->V, p.bn = 1;
    HL_OP(small_gemm)(&p, x->mm);
    for (int64_t i = 0; i < x->n; i++) row_scale(w->dv_new + i * w->ldv, w->dv_new + i * w->ldv, x->eL[i], cols);
}

/* to (= or +=) P^T dO for all columns of V */
static void score_reads(struct work *w, const real *dO, int64_t ldb, real *to, int64_t ldc, bool add) {
    struct gdn_tri t = {.n = w->x.n, .N = w->a->V, .T = w->x.P, .ldt = C, .B = dO, .ldb = ldb, .C = to, .ldc = ldc};
    t.add = add;
    HL_OP(gdn_tri_trans)(&t, w->x.mm);
}

/* X2 = A^T dv_new for `cols` columns of V */
static void solve(struct work *w, int64_t cols) {
    const struct hl_gdn *a = w->a;
    struct gdn_tri t = {.n = w->x.n, .N = cols, .ldb = w->ldv, .ldc = w->ldv};
    t.T = (real *)a->A + (w->x.row * a->HV + w->x.hv) * C, t.ldt = a->HV * C;
    t.B = w->dv_new, t.C = w->Y + w->x.n * w->ldv;
    HL_OP(gdn_tri_trans)(&t, w->x.mm);
}

/* the first half of Y, and v_new */
static void load_rows(struct work *w) {
    const struct hl_gdn *a = w->a;
    const int64_t at = value_at(w), ld = a->HV * a->V;
    for (int64_t i = 0; i < w->x.n; i++) {
        row_copy(w->Y + i * w->ldv, (const real *)a->dout + at + i * ld, a->V);
        row_copy(w->v_new + i * w->ldv, (const real *)a->v_new + at + i * ld, a->V);
    }
}

/* dv, and V.X2 into dbeta */
static void value_gradients(struct work *w) {
    const struct hl_gdn *a = w->a;
    const int64_t at = value_at(w), ld = a->HV * a->V;
    const real *X2 = w->Y + w->x.n * w->ldv;
    for (int64_t i = 0; i < w->x.n; i++) {
        row_scale((real *)a->dv + at + i * ld, X2 + i * w->ldv, w->x.beta[i], a->V);
        w->dbeta[i] = row_dot((const real *)a->v + at + i * ld, X2 + i * w->ldv, a->V);
    }
}

/* W = [dO; X2] v_new^T becomes [dS; N]; row sums minus column sums of F go into `up`, whose sum from row t on leaves
 * the block i >= t > j; row sums of dL M go into dbeta. */
static void score_gradients(struct work *w) {
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n;
    real scale = 1 / R_SQRT((real)w->a->K), col[C] = {0};
    HL_OP(gdn_lower)(w->W, w->Y, w->ldv, w->v_new, w->ldv, n, w->a->V, x->mm);
    for (int64_t i = 0; i < n; i++) {
        real *s = w->W + i * C, *l = w->W + (n + i) * C;
        const real *P = x->P + i * C, *M = x->M + i * C, *D = x->D + i * C;
        vr row = v_set(0), lm = v_set(0);
        int64_t j = 0;
        for (; j <= i; j += VL) {
            int64_t low = i - j < VL ? i - j : VL; /* lanes below the diagonal */
            vr below = low < VL ? v_load_n(s + j, low) : v_load(s + j);
            vr ds = j + VL <= i + 1 ? v_load(s + j) : v_load_n(s + j, i + 1 - j);
            vr dL = -(low < VL ? v_load_n(l + j, low) : v_load(l + j));
            vr F = below * v_load(P + j) + x->beta[i] * dL * v_load(M + j);
            v_store(s + j, scale * ds * v_load(D + j));
            v_store(l + j, x->beta[i] * dL * v_load(D + j));
            v_store(col + j, v_load(col + j) + F);
            row += F;
            lm += dL * v_load(M + j);
        }
        for (; j < C; j += VL) {
            v_store(s + j, v_set(0));
            v_store(l + j, v_set(0));
        }
        w->up[i] = (double)v_sum(row);
        w->dbeta[i] += v_sum(lm);
    }
    for (int64_t i = 0; i < n; i++) w->up[i] -= (double)col[i];
}

/* Z = [s exp(G) dO; -exp(G) X2] from Y */
static void load_Z(struct work *w, int64_t cols) {
    const struct gdn_chunk *x = &w->x;
    const real scale = 1 / R_SQRT((real)w->a->K);
    for (int64_t i = 0; i < x->n; i++) {
        row_scale(w->Z + i * w->ldv, w->Y + i * w->ldv, scale * x->eG[i], cols);
        row_scale(w->Z + (x->n + i) * w->ldv, w->Y + (x->n + i) * w->ldv, -x->eG[i], cols);
    }
}

/* dX = [Y1; beta Y2 + U], and the terms of dbeta and dg that depend on the states */
static void state_gradients(struct work *w, const real *h) {
    const struct hl_gdn *a = w->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, K = a->K, V = a->V;
    real *dK = w->dX + n * x->ldx;
    struct hl_small_gemm p = {.N = K, .K = V, .alpha = 1, .ldc = x->ldx, .ai = w->ldv, .ak = 1, .bk = 1, .bn = V};
    if (!w->first) {
        load_Z(w, V);
        p.M = 2 * n, p.A = w->Z, p.B = h, p.C = w->dX;
        HL_OP(small_gemm)(&p, x->mm);
    } else memset(w->dX, 0, (size_t)(2 * n * x->ldx) * sizeof *w->dX);
    if (!w->last) {
        for (int64_t i = 0; i < n; i++) row_scale(w->v_new + i * w->ldv, w->v_new + i * w->ldv, x->eL[i], V);
        p.M = n, p.A = w->v_new, p.B = w->dh, p.C = w->U;
        HL_OP(small_gemm)(&p, x->mm);
    }
    for (int64_t i = 0; i < n; i++) {
        const real *q = x->X + i * x->ldx, *k = x->X + (n + i) * x->ldx;
        real ky = row_dot(k, dK + i * x->ldx, K);
        w->up[i] += (double)row_dot(q, w->dX + i * x->ldx, K) + (double)(x->beta[i] * ky);
        w->dbeta[i] += ky;
        w->down[i] = w->last ? 0 : (double)row_dot(k, w->U + i * x->ldx, K);
        row_scale(dK + i * x->ldx, dK + i * x->ldx, x->beta[i], K);
        if (!w->last) row_add(dK + i * x->ldx, w->U + i * x->ldx, K);
    }
}

/* dX += [dS K; dS^T Q + N K + N^T K] */
static void key_gradients(struct work *w) {
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n;
    const real *Q = x->X, *k = x->X + n * x->ldx, *N = w->W + n * C;
    struct gdn_tri t = {.n = n, .N = w->a->K, .T = w->W, .ldt = C, .ldb = x->ldx, .ldc = x->ldx, .add = true};
    t.B = k, t.C = w->dX;
    HL_OP(gdn_tri)(&t, x->mm);
    t.B = Q, t.C = w->dX + n * x->ldx;
    HL_OP(gdn_tri_trans)(&t, x->mm);
    t.B = k, t.T = N;
    HL_OP(gdn_tri)(&t, x->mm);
    HL_OP(gdn_tri_trans)(&t, x->mm);
}

static void state_product(struct work *w, const real *h) {
    w->hdh = 0;
    if (w->first || w->last || !w->a->dg) return;
    for (int64_t i = 0; i < w->a->K; i++) w->hdh += (double)row_dot(h + i * w->a->V, w->dh + i * w->a->V, w->a->V);
    w->hdh *= (double)w->x.end;
}

/* `to` (may be dh): the gradient of the state before the chunk, `cols` columns of V; Z2 is scaled in place. */
static void step_back(struct work *w, const real *dh, real *to, int64_t cols) {
    const struct hl_gdn *a = w->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, V = a->V;
    if (w->first) return;
    for (int64_t i = 0; i < a->K && !w->last; i++) {
        if (a->g) row_scale(to + i * V, dh + i * V, x->end, cols);
        else if (to != dh) row_copy(to + i * V, dh + i * V, cols);
    }
    for (int64_t i = 0; i < n; i++) row_scale(w->Z + (n + i) * w->ldv, w->Z + (n + i) * w->ldv, x->beta[i], cols);
    struct hl_small_gemm p = {.M = a->K, .N = cols, .K = 2 * n, .alpha = 1, .C = to, .ldc = V, .add = !w->last};
    p.A = x->X, p.ai = 1, p.ak = x->ldx;
    p.B = w->Z, p.bk = w->ldv, p.bn = 1;
    HL_OP(small_gemm)(&p, x->mm);
}

/* add: dq and dk hold the sum over the group's earlier value heads */
static void finish_rows(struct work *w, bool add) {
    const struct hl_gdn *a = w->a;
    const struct gdn_chunk *x = &w->x;
    int64_t n = x->n, width = a->H * a->K, at = x->row * width + x->hv / (a->HV / a->H) * a->K;
    void (*put)(real *, const real *, int64_t) = add ? row_add : row_copy;
    double before = w->hdh, after = 0;
    for (int64_t i = 0; i < n; i++) {
        put((real *)a->dq + at + i * width, w->dX + i * x->ldx, a->K);
        put((real *)a->dk + at + i * width, w->dX + (n + i) * x->ldx, a->K);
        a->dbeta[(x->row + i) * a->HV + x->hv] = w->dbeta[i];
    }
    if (!a->dg) return;
    for (int64_t i = n - 1; i >= 0; i--) w->up[i] = after += w->up[i];
    for (int64_t i = 0; i < n; i++) {
        a->dg[(x->row + i) * a->HV + x->hv] = (real)(w->up[i] + before);
        before += w->down[i];
    }
}

/* ---- whole segments ---- */

/* Opens chunk c of value head hv of segment s. */
static const real *open_chunk(struct work *w, int64_t s, int64_t c, int64_t hv) {
    const struct hl_gdn *a = w->a;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t left = seg->len - c * C;
    w->first = c == 0;
    w->last = left <= C;
    HL_OP(gdn_chunk_load)(&w->x, a, seg->row + c * C, left < C ? left : C, hv);
    return a->h + ((hl_chunks_before(a->rows, s) + c) * a->HV + hv) * a->K * a->V;
}

/* Everything after Y, v_new and dh, except the update of dh. */
static void chunk_gradients(struct work *w, const real *h) {
    value_gradients(w);
    score_gradients(w);
    state_gradients(w, h);
    key_gradients(w);
    state_product(w, h);
}

static void scan_reverse(struct work *w, int64_t s, int64_t hv, bool add) {
    for (int64_t c = hl_pieces(w->a->rows->seg[s].len, C) - 1; c >= 0; c--) {
        const real *h = open_chunk(w, s, c, hv);
        load_rows(w);
        if (!w->last) key_reads(w, w->dh, w->a->V);
        score_reads(w, w->Y, w->ldv, w->dv_new, w->ldv, !w->last);
        solve(w, w->a->V);
        chunk_gradients(w, h);
        step_back(w, w->dh, w->dh, w->a->V);
        finish_rows(w, add);
    }
}

struct job {
    struct hl_pool *pool;
    const struct hl_gdn *a;
    /* a split segment: chunks [first, end) of the window, and the number in the next one */
    int64_t s, first, end, next, window;
};

static struct work work_of(const struct job *j, int worker) {
    return carve(j->a, hl_pool_scratch(j->pool, worker, hl_gdn_scratch(j->a->K, j->a->V)));
}

/* one (segment, key head): its value heads in sequence, as they share dq and dk */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    int64_t group = j->a->HV / j->a->H;
    struct work w = work_of(j, worker);
    for (int64_t r = 0; r < group; r++) scan_reverse(&w, i / j->a->H, i % j->a->H * group + r, r > 0);
}

/* ---- one segment on many threads ----
 * Only dh is carried from chunk to chunk, and its columns are independent. A window of chunks takes three steps: P^T dO
 * into dv, for all chunks in parallel; dh and X2 from the last chunk to the first (sequential), in tiles of SPLIT
 * columns, X2 into dv; then all the rest, for all chunks in parallel. The results are bit-identical to
 * scan_reverse(). */

/* dh after chunk `first + i` of the window; i = window: before its first chunk, for the next window */
static real *kept_dh(const struct job *j, int64_t i, int64_t hv) {
    const int64_t KV = j->a->K * j->a->V, slot = i * j->a->HV + hv;
    real *p = hl_pool_scratch(j->pool, (int)(slot / GDN_SLOTS), hl_gdn_scratch(j->a->K, j->a->V));
    return p + gdn_scratch_reals(j->a->K, j->a->V) + slot % GDN_SLOTS * KV;
}

static void score_task(const struct job *j, struct work *w, int64_t c, int64_t hv) {
    const int64_t ld = j->a->HV * j->a->V;
    open_chunk(w, j->s, c, hv);
    score_reads(w, (const real *)j->a->dout + value_at(w), ld, (real *)j->a->dv + value_at(w), ld, false);
}

/* one tile of columns of one value head, through the window */
static void chain_task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_gdn *a = j->a;
    const int64_t tiles = hl_pieces(a->V, SPLIT), hv = i / tiles, col = i % tiles * SPLIT, ld = a->HV * a->V;
    const int64_t cols = a->V - col < SPLIT ? a->V - col : SPLIT;
    struct work w = work_of(j, worker);
    w.x.D = NULL; /* no scores */
    for (int64_t c = j->end - 1; c >= j->first; c--) {
        real *dh = kept_dh(j, c - j->first, hv) + col;
        open_chunk(&w, j->s, c, hv);
        if (c == j->end - 1 && !w.last) {
            const real *from = kept_dh(j, j->window, hv) + col;
            for (int64_t r = 0; r < a->K; r++) row_copy(dh + r * a->V, from + r * a->V, cols);
        }
        const int64_t at = value_at(&w) + col;
        real *dv = (real *)a->dv + at, *X2 = w.Y + w.x.n * w.ldv;
        if (!w.last) key_reads(&w, dh, cols);
        for (int64_t r = 0; r < w.x.n; r++) {
            if (w.last) row_copy(w.dv_new + r * w.ldv, dv + r * ld, cols);
            else row_add(w.dv_new + r * w.ldv, dv + r * ld, cols);
            row_copy(w.Y + r * w.ldv, (const real *)a->dout + at + r * ld, cols);
        }
        solve(&w, cols);
        for (int64_t r = 0; r < w.x.n; r++) row_copy(dv + r * ld, X2 + r * w.ldv, cols);
        load_Z(&w, cols);
        step_back(&w, dh, kept_dh(j, c > j->first ? c - 1 - j->first : j->window, hv) + col, cols);
    }
}

/* the value heads of one key head of one chunk: the rest of its gradients */
static void rest_task(const struct job *j, struct work *w, int64_t c, int64_t hk) {
    const struct hl_gdn *a = j->a;
    const int64_t group = a->HV / a->H, ld = a->HV * a->V;
    for (int64_t hv = hk * group; hv < (hk + 1) * group; hv++) {
        const real *h = open_chunk(w, j->s, c, hv), *X2 = (const real *)a->dv + value_at(w);
        load_rows(w);
        for (int64_t i = 0; i < w->x.n; i++) row_copy(w->Y + (w->x.n + i) * w->ldv, X2 + i * ld, a->V);
        w->dh = kept_dh(j, c - j->first, hv);
        chunk_gradients(w, h);
        finish_rows(w, hv > hk * group);
    }
}

/* the rest of a window, and the first step of the next one */
static void chunk_task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const int64_t rest = (j->end - j->first) * j->a->H;
    struct work w = work_of(j, worker);
    if (i < rest) rest_task(j, &w, j->first + i / j->a->H, i % j->a->H);
    else score_task(j, &w, j->first - j->next + (i - rest) / j->a->HV, (i - rest) % j->a->HV);
}

static void run_split(struct job *j) {
    const struct hl_gdn *a = j->a;
    int64_t left = hl_pieces(a->rows->seg[j->s].len, C);
    j->first = j->end = left;
    for (;;) {
        j->next = left < j->window ? left : j->window;
        hl_pool_run(j->pool, (j->end - j->first) * a->H + j->next * a->HV, chunk_task, j);
        if (left == 0) return;
        j->end = left;
        j->first = left -= j->next;
        hl_pool_run(j->pool, a->HV * hl_pieces(a->V, SPLIT), chain_task, j);
    }
}

/* Splitting costs a third more work (scores computed twice, narrow products; docs/notes/cpu.md), so it is done only if
 * more than that would be idle. */
static bool worth_splitting(const struct job *j) {
    const struct hl_gdn *a = j->a;
    const int64_t threads = hl_pool_threads(j->pool), tasks = a->rows->n * a->H;
    int64_t longest = 0, rounds = hl_pieces(tasks, threads) * (a->rows->T / (a->rows->n ? a->rows->n : 1));
    for (int64_t s = 0; s < a->rows->n; s++)
        if (a->rows->seg[s].len > longest) longest = a->rows->seg[s].len;
    if (longest > rounds) rounds = longest;
    return j->window > 0 && 10 * a->rows->T * a->H < 6 * threads * rounds;
}

void HL_OP(gdn_backward)(struct hl_backend *backend, const struct hl_gdn *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->HV % a->H == 0 && a->h && a->v_new && a->A && !a->h0 && !a->dht && !a->dh0);
    j.window = hl_pool_threads(j.pool) * GDN_SLOTS / a->HV - 1;
    if (!worth_splitting(&j)) {
        hl_pool_run(j.pool, a->rows->n * a->H, task, &j);
        return;
    }
    for (j.s = 0; j.s < a->rows->n; j.s++) run_split(&j);
}
