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

enum { C = HL_CHUNK };

struct work {
    struct gdn_chunk x;
    const struct hl_gdn *a;
    int64_t ldv;
    real *dh;              /* [K][V] */
    real *Y, *Z;           /* [2n][ldv]: dO over X2; Z1 over Z2 */
    real *v_new, *dv_new;  /* [n][ldv] */
    real *dX, *U;          /* [2n][ldx]: Y1 over Y2, then dQ over dK; [n][ldx] */
    real *W;               /* [2n][C]: dO v_new^T over X2 v_new^T, then dS over N */
    double up[C], down[C]; /* what row i adds to dg of the rows up to it, and of the rows after it */
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

/* Y = [dO; X2], dv, and V.X2 into dbeta */
static void solve(struct work *w) {
    const struct hl_gdn *a = w->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, at = x->row * a->HV + x->hv, ld = a->HV * a->V;
    real *X2 = w->Y + n * w->ldv;
    for (int64_t i = 0; i < n; i++) {
        row_copy(w->Y + i * w->ldv, (const real *)a->dout + at * a->V + i * ld, a->V);
        row_copy(w->v_new + i * w->ldv, (const real *)a->v_new + at * a->V + i * ld, a->V);
    }
    if (!w->last) {
        struct hl_small_gemm p = {.M = n, .N = a->V, .K = a->K, .alpha = 1, .C = w->dv_new, .ldc = w->ldv};
        p.A = x->X + n * x->ldx, p.ai = x->ldx, p.ak = 1;
        p.B = w->dh, p.bk = a->V, p.bn = 1;
        HL_OP(small_gemm)(&p, x->mm);
        for (int64_t i = 0; i < n; i++) row_scale(w->dv_new + i * w->ldv, w->dv_new + i * w->ldv, x->eL[i], a->V);
    }
    struct gdn_tri t = {.n = n, .N = a->V, .T = x->P, .ldt = C, .ldb = w->ldv, .ldc = w->ldv, .add = !w->last};
    t.B = w->Y, t.C = w->dv_new;
    HL_OP(gdn_tri_trans)(&t, x->mm);
    t.T = (real *)a->A + at * C, t.ldt = a->HV * C, t.add = false;
    t.B = w->dv_new, t.C = X2;
    HL_OP(gdn_tri_trans)(&t, x->mm);
    for (int64_t i = 0; i < n; i++) {
        const real *v = (const real *)a->v + at * a->V + i * ld;
        row_scale((real *)a->dv + at * a->V + i * ld, X2 + i * w->ldv, x->beta[i], a->V);
        w->dbeta[i] = row_dot(v, X2 + i * w->ldv, a->V);
    }
}

/* W = [dO; X2] v_new^T becomes [dS; N]; row sums less column sums of F go into `up`, which summed from
 * row t on leaves the block i >= t > j; row sums of dL M go into dbeta. */
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
            int64_t low = i - j < VL ? i - j : VL; /* lanes under the diagonal */
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

/* dX = [Y1; beta Y2 + U], and the terms of dbeta and dg that depend on the states */
static void state_gradients(struct work *w, const real *h) {
    const struct hl_gdn *a = w->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, K = a->K, V = a->V;
    real scale = 1 / R_SQRT((real)K), *dK = w->dX + n * x->ldx;
    struct hl_small_gemm p = {.N = K, .K = V, .alpha = 1, .ldc = x->ldx, .ai = w->ldv, .ak = 1, .bk = 1, .bn = V};
    if (!w->first) {
        for (int64_t i = 0; i < n; i++) {
            row_scale(w->Z + i * w->ldv, w->Y + i * w->ldv, scale * x->eG[i], V);
            row_scale(w->Z + (n + i) * w->ldv, w->Y + (n + i) * w->ldv, -x->eG[i], V);
        }
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

/* dh becomes that of the state before the chunk; h.dh is computed first. */
static void step_back(struct work *w, const real *h) {
    const struct hl_gdn *a = w->a;
    struct gdn_chunk *x = &w->x;
    int64_t n = x->n, V = a->V;
    w->hdh = 0;
    if (w->first) return;
    for (int64_t i = 0; i < a->K && !w->last; i++) {
        real *dh = w->dh + i * V;
        if (a->dg) w->hdh += (double)row_dot(h + i * V, dh, V);
        if (a->g) row_scale(dh, dh, x->end, V);
    }
    w->hdh *= (double)x->end;
    for (int64_t i = 0; i < n; i++) row_scale(w->Z + (n + i) * w->ldv, w->Z + (n + i) * w->ldv, x->beta[i], V);
    struct hl_small_gemm p = {.M = a->K, .N = V, .K = 2 * n, .alpha = 1, .C = w->dh, .ldc = V, .add = !w->last};
    p.A = x->X, p.ai = 1, p.ak = x->ldx;
    p.B = w->Z, p.bk = w->ldv, p.bn = 1;
    HL_OP(small_gemm)(&p, x->mm);
}

/* add: dq and dk hold the sum over the value heads of the group before this one */
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

static void scan_reverse(struct work *w, int64_t s, int64_t hv, bool add) {
    const struct hl_gdn *a = w->a;
    const struct hl_seg *seg = &a->rows->seg[s];
    int64_t KV = a->K * a->V, chunks = hl_pieces(seg->len, C), before = hl_chunks_before(a->rows, s);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const real *h = a->h + ((before + c) * a->HV + hv) * KV;
        int64_t left = seg->len - c * C;
        w->first = c == 0;
        w->last = c == chunks - 1;
        HL_OP(gdn_chunk_load)(&w->x, a, seg->row + c * C, left < C ? left : C, hv);
        solve(w);
        score_gradients(w);
        state_gradients(w, h);
        key_gradients(w);
        step_back(w, h);
        finish_rows(w, add);
    }
}

struct job {
    struct hl_pool *pool;
    const struct hl_gdn *a;
};

/* one (segment, key head): its value heads one after another, as they share dq and dk */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    int64_t group = j->a->HV / j->a->H;
    struct work w = carve(j->a, hl_pool_scratch(j->pool, worker, hl_gdn_scratch(j->a->K, j->a->V)));
    for (int64_t r = 0; r < group; r++) scan_reverse(&w, i / j->a->H, i % j->a->H * group + r, r > 0);
}

void HL_OP(gdn_backward)(struct hl_backend *backend, const struct hl_gdn *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->HV % a->H == 0 && a->h && a->v_new && a->A && !a->h0 && !a->dht && !a->dh0);
    hl_pool_run(hl_backend_pool(backend), a->rows->n * a->H, task, &j);
}
