/* kda_chunk_back_cpu.c -- the backward pass, from the last chunk to the first (docs/math.md, "KDA").
 *
 * dh: gradient of the state after the chunk; s = K^{-1/2}; Q, K, V, v_new: the chunk's rows; eG = exp(G), eL =
 * exp(G_last - G).
 *     dv_new = P^T dO + (K eL) dh           X2 = A^T dv_new              dV = beta X2
 *     dS = s tril(dO v_new^T)               N = -beta stril(X2 v_new^T)  [Y1; Y2] = [dO; X2] h^T    U = v_new dh^T
 *     [Rq; Rk] = pair rows of [dS; N]       Z = pair columns of them     kh = eL U
 *     dQ = Rq + s eG Y1                     dKr = Rk - beta eG Y2        dK = dKr + Z + kh
 *     dbeta = V.X2 - (K eG).Y2 - rowsum(stril(X2 v_new^T) M)
 *     dh before the chunk = diag(exp(G_last)) dh + (Q eG)^T (s dO) - (K eG)^T (beta X2)
 *     dg_t = sum_{i>=t} (Q dQ + K dKr - K Z)_i + sum_{i<t} (K kh)_i + exp(G_last) rowsum(h dh), by channel */
#include "ops/kda/kda_cpu.h"

enum { C = HL_CHUNK };

struct work {
    struct kda_chunk k;
    const struct hl_kda *a;
    int64_t ldv, ldk;
    real *dh;             /* [K][V] */
    real *Y;              /* [2C][ldv]: dO over X2, laid out like the sets of pair */
    real *v_new, *dv_new; /* [C][ldv] */
    real *W, *T;          /* [2C][C]: dO v_new^T over X2 v_new^T; dS over N, laid out like scores */
    real *R, *Z, *U;      /* [2C][ldk], [C][ldk], [C][ldk] */
    real *hdh;            /* [ldk] */
    real dbeta[C];
    bool first, last; /* the first chunk has h = 0, the last one dh = 0 */
};

static struct work carve(const struct hl_kda *a, real *p) {
    const real *base = p;
    struct work w = {.a = a, .ldv = gdn_ld(a->V), .ldk = gdn_ld(a->K), .k = HL_OP(kda_chunk_carve)(a, &p)};
    w.dh = gdn_take(&p, a->K * a->V);
    w.Y = gdn_take(&p, 2 * C * w.ldv);
    w.v_new = gdn_take(&p, C * w.ldv);
    w.dv_new = gdn_take(&p, C * w.ldv);
    w.W = gdn_take(&p, 2 * C * C);
    w.T = gdn_take(&p, 2 * C * C);
    w.R = gdn_take(&p, 2 * C * w.ldk);
    w.Z = gdn_take(&p, C * w.ldk);
    w.U = gdn_take(&p, C * w.ldk);
    w.hdh = gdn_take(&p, w.ldk);
    HL_ASSERT(p - base <= kda_scratch_reals(a->K, a->V));
    return w;
}

static const real *at_row(const struct work *w, const void *x, int64_t i) {
    return (const real *)x + ((w->k.x.row + i) * w->a->HV + w->k.x.hv) * w->a->V;
}

/* dv_new, then X2, dv, and V.X2 into dbeta; dO and v_new are loaded */
static void solve(struct work *w, real *X2) {
    const struct hl_kda *a = w->a;
    struct gdn_chunk *x = &w->k.x;
    const struct pair *p = &w->k.p;
    const int64_t n = x->n, V = a->V, at = x->row * a->HV + x->hv;
    if (!w->last) {
        struct hl_small_gemm m = {.M = n, .N = V, .K = a->K, .alpha = 1, .C = w->dv_new, .ldc = w->ldv};
        HL_OP(pair_to_end)(p, w->U); /* U is free until state_gradients */
        m.A = w->U, m.ai = p->ld, m.ak = 1;
        m.B = w->dh, m.bk = V, m.bn = 1;
        HL_OP(small_gemm)(&m, x->mm);
    }
    struct gdn_tri t = {.n = n, .N = V, .T = x->P, .ldt = C, .ldb = a->HV * V, .ldc = w->ldv, .add = !w->last};
    t.B = at_row(w, a->dout, 0), t.C = w->dv_new;
    HL_OP(gdn_tri_trans)(&t, x->mm);
    t.T = (const real *)a->A + at * C, t.ldt = a->HV * C, t.add = false;
    t.B = w->dv_new, t.ldb = w->ldv, t.C = X2;
    HL_OP(gdn_tri_trans)(&t, x->mm);
    for (int64_t i = 0; i < n; i++) {
        row_copy(w->v_new + i * w->ldv, at_row(w, a->v_new, i), V);
        row_scale((real *)(uintptr_t)at_row(w, a->dv, i), X2 + i * w->ldv, x->beta[i], V);
        w->dbeta[i] = row_dot(at_row(w, a->v, i), X2 + i * w->ldv, V);
    }
}

/* T = [dS; N]; rowsum(dL M) is added to dbeta. On entry Y holds dO over X2 without gaps, on return in the layout of the
 * sets. */
static void score_gradients(struct work *w) {
    const struct hl_kda *a = w->a;
    struct gdn_chunk *x = &w->k.x;
    const struct pair *p = &w->k.p;
    const int64_t n = x->n;
    const real scale = 1 / R_SQRT((real)a->K);
    real *X2 = w->Y + n * w->ldv;
    for (int64_t i = 0; i < n; i++) row_copy(w->Y + i * w->ldv, at_row(w, a->dout, i), a->V);
    solve(w, X2);
    HL_OP(gdn_lower)(w->W, w->Y, w->ldv, w->v_new, w->ldv, n, a->V, x->mm);
    memset(w->T, 0, (size_t)(p->blocks * 2 * PAIR * C) * sizeof *w->T);
    for (int64_t i = 0; i < n; i++) {
        const real *S = w->W + i * C, *L = w->W + (n + i) * C;
        row_scale(w->T + pair_row(p, 0, i) * C, S, scale, i + 1);
        row_scale(w->T + pair_row(p, 1, i) * C, L, -x->beta[i], i);
        w->dbeta[i] -= row_dot(L, x->M + i * C, i);
    }
}

/* Y = [s dO; -X2] in the layout of the sets, from dO over X2; rows past n are 0 */
static void spread(struct work *w) {
    const struct hl_kda *a = w->a;
    const struct pair *p = &w->k.p;
    const int64_t n = w->k.x.n;
    const real scale = 1 / R_SQRT((real)a->K);
    for (int64_t i = 0; i < p->blocks * PAIR; i++) {
        real *X2 = w->dv_new + i * w->ldv; /* dv_new is free by now */
        if (i < n) row_scale(X2, w->Y + (n + i) * w->ldv, -1, a->V);
        else memset(X2, 0, (size_t)a->V * sizeof *X2);
    }
    for (int64_t i = 0; i < p->blocks * PAIR; i++) {
        real *dO = w->Y + pair_row(p, 0, i) * w->ldv;
        if (i < n) row_scale(dO, at_row(w, a->dout, i), scale, a->V);
        else memset(dO, 0, (size_t)a->V * sizeof *dO);
        row_copy(w->Y + pair_row(p, 1, i) * w->ldv, w->dv_new + i * w->ldv, a->V);
    }
}

/* R += the part through the states: [s eG (dO h^T); -beta eG (X2 h^T)]; U = eL (v_new dh^T) */
static void state_gradients(struct work *w, const real *h) {
    const struct hl_kda *a = w->a;
    const struct pair *p = &w->k.p;
    const int64_t n = w->k.x.n, K = a->K, V = a->V;
    struct hl_small_gemm m = {.N = K, .K = V, .alpha = 1, .ldc = w->ldk, .ai = w->ldv, .ak = 1, .bk = 1, .bn = V};
    spread(w);
    if (!w->first) {
        real *G = w->k.p.Z; /* [2C][ld], free between products */
        m.M = p->blocks * 2 * PAIR, m.A = w->Y, m.B = h, m.C = G;
        HL_OP(small_gemm)(&m, w->k.x.mm);
        for (int64_t s = 0; s < 2; s++)
            for (int64_t i = 0; i < n; i++) {
                const int64_t row = pair_row(p, s, i);
                const real *in = p->in + i * p->ld, *from = p->from + i / PAIR * p->ld;
                real *g = G + row * p->ld;
                row_times(g, g, in, K);
                row_times(g, g, from, K);
                if (s == 1) {
                    w->dbeta[i] += row_dot(p->x[1] + i * p->ldx[1], g, K);
                    row_scale(g, g, w->k.x.beta[i], K);
                }
                row_add(w->R + row * w->ldk, g, K);
            }
    }
    if (w->last) return;
    m.M = n, m.A = w->v_new, m.B = w->dh, m.C = w->U;
    HL_OP(small_gemm)(&m, w->k.x.mm);
    for (int64_t i = 0; i < n; i++) {
        real *u = w->U + i * w->ldk;
        row_times(u, u, p->out + i * p->ld, K);
        row_times(u, u, p->to + i / PAIR * p->ld, K);
    }
}

/* dh becomes the gradient of the state before the chunk; h.dh is computed first. */
static void step_back(struct work *w, const real *h) {
    const struct hl_kda *a = w->a;
    const struct pair *p = &w->k.p;
    const int64_t V = a->V;
    memset(w->hdh, 0, (size_t)a->K * sizeof *w->hdh);
    if (w->first) return;
    for (int64_t i = 0; i < a->K && !w->last; i++) {
        real *dh = w->dh + i * V;
        w->hdh[i] = p->end[i] * row_dot(h + i * V, dh, V);
        row_scale(dh, dh, p->end[i], V);
    }
    for (int64_t i = 0; i < w->k.x.n; i++) {
        real *X2 = w->Y + pair_row(p, 1, i) * w->ldv;
        row_scale(X2, X2, w->k.x.beta[i], V);
    }
    struct hl_small_gemm m = {.M = a->K, .N = V, .alpha = 1, .C = w->dh, .ldc = V, .add = !w->last};
    m.K = p->blocks * 2 * PAIR;
    m.A = w->k.E, m.ai = 1, m.ak = p->ld;
    m.B = w->Y, m.bk = w->ldv, m.bn = 1;
    HL_OP(small_gemm)(&m, w->k.x.mm);
}

/* One row's dq, dk and dg; up: what rows from it on add to dg, carried from row to row. */
static void finish_row(struct work *w, int64_t i, real *dq, real *dk, bool add, real *up) {
    const struct pair *p = &w->k.p;
    const int64_t K = w->a->K;
    const real *q = p->x[0] + i * p->ldx[0], *k = p->x[1] + i * p->ldx[1];
    const real *Rq = w->R + pair_row(p, 0, i) * w->ldk, *Rk = w->R + pair_row(p, 1, i) * w->ldk;
    const real *Z = w->Z + i * w->ldk, *U = w->U + i * w->ldk;
    real *dg = w->a->dg + ((w->k.x.row + i) * w->a->HV + w->k.x.hv) * K;
    for (int64_t c = 0; c < K; c += VL) {
        const int64_t n = K - c < VL ? K - c : VL;
        const vr rk = get(Rk + c, n), z = get(Z + c, n), rq = get(Rq + c, n);
        const vr sum = v_load(up + c) + get(q + c, n) * rq + get(k + c, n) * (rk - z);
        vr dkc = rk + z, dqc = rq;
        v_store(up + c, sum);
        if (!w->last) dkc += get(U + c, n);
        if (add) dkc += get(dk + c, n), dqc += get(dq + c, n);
        put(dq + c, dqc, n);
        put(dk + c, dkc, n);
        put(dg + c, sum, n);
    }
}

/* add: dq and dk already hold the sum over earlier value heads of the group */
static void finish_rows(struct work *w, bool add) {
    const struct hl_kda *a = w->a;
    const struct pair *p = &w->k.p;
    const int64_t width = a->H * a->K, at = w->k.x.row * width + w->k.x.hv / (a->HV / a->H) * a->K;
    real *up = p->Z, *down = p->Z + p->ld; /* free between products */
    memset(up, 0, (size_t)p->ld * sizeof *up);
    row_copy(down, w->hdh, a->K);
    for (int64_t i = w->k.x.n - 1; i >= 0; i--) {
        a->dbeta[(w->k.x.row + i) * a->HV + w->k.x.hv] = w->dbeta[i];
        finish_row(w, i, (real *)a->dq + at + i * width, (real *)a->dk + at + i * width, add, up);
    }
    for (int64_t i = 0; i < w->k.x.n; i++) {
        row_add(a->dg + ((w->k.x.row + i) * a->HV + w->k.x.hv) * a->K, down, a->K);
        if (!w->last) row_add_times(down, 1, p->x[1] + i * p->ldx[1], w->U + i * w->ldk, a->K);
    }
}

static void scan_reverse(struct work *w, int64_t s, int64_t hv, bool add) {
    const struct hl_kda *a = w->a;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t KV = a->K * a->V, chunks = hl_pieces(seg->len, C), before = hl_chunks_before(a->rows, s);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const real *h = a->h + ((before + c) * a->HV + hv) * KV;
        const int64_t left = seg->len - c * C;
        w->first = c == 0;
        w->last = c == chunks - 1;
        HL_OP(kda_chunk_load)(&w->k, a, seg->row + c * C, left < C ? left : C, hv);
        score_gradients(w);
        HL_OP(pair_rows)(&w->k.p, w->T, w->R);
        HL_OP(pair_cols)(&w->k.p, w->T, w->Z);
        state_gradients(w, h);
        step_back(w, h);
        finish_rows(w, add);
    }
}

struct job {
    struct hl_pool *pool;
    const struct hl_kda *a;
};
/* one (segment, key head): its value heads in order, because they share dq and dk */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_kda *a = j->a;
    const int64_t group = a->HV / a->H;
    struct work w = carve(a, hl_pool_scratch(j->pool, worker, hl_kda_scratch(a->K, a->V)));
    for (int64_t r = 0; r < group; r++) scan_reverse(&w, i / a->H, i % a->H * group + r, r > 0);
}

void HL_OP(kda_backward)(struct hl_backend *backend, const struct hl_kda *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->HV % a->H == 0 && a->h && a->v_new && a->A);
    hl_pool_run(j.pool, a->rows->n * a->H, task, &j);
}
