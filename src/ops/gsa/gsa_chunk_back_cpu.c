/* gsa_chunk_back_cpu.c -- the backward pass, from the last chunk to the first (docs/math.md, "GSA"): through the read
 * of the values, as in gla, which gives dp; then through the softmax, D = p (dp - p.dp); then through the read of the
 * keys, with eF = exp(F), eL = exp(F_last - F):
 *     keys:   sh = eL (K dKt)     ds += sh     dK = (s eL) dKt^T     hdh += exp(F_last) colsum(Kt dKt)
 *     query:  dP = tril(pair(D, s))            Z = pair columns of P = tril(Q K^T), X = D
 *             dQ = (D eF) Kt^T + dP K          ds += Z     dK += dP^T Q     dKt += Q^T (D eF)
 *     decays: up += D z - s Z     down += s sh
 * Finally df -= exp(f) ds, as s = 1 - exp(f). */
#include "ops/gsa/gsa_cpu.h"

enum { C = HL_CHUNK };

struct work {
    const struct hl_gsa *a;
    struct gla_back b;
    struct gsa_slots w;
    const real *Kt;
    real *dKt; /* [K][M] */
    real *D;   /* [C][ld] */
    real *dP;  /* [C][C] */
    real *dk;  /* [C][ldk] */
    int64_t ldk;
};

static void through_keys(struct work *x) {
    struct gla_back *b = &x->b;
    const struct pair *p = &b->c.p;
    const int64_t n = p->n, K = x->w.K, M = x->w.M;
    if (b->last) {
        memset(x->dk, 0, (size_t)(n * x->ldk) * sizeof(real));
        if (!b->first) memset(x->dKt, 0, (size_t)(K * M) * sizeof(real));
        return;
    }
    real *sh = p->Z; /* free between products */
    struct hl_small_gemm m = {.M = n, .N = M, .K = K, .alpha = 1, .C = sh, .ldc = p->ld};
    m.A = x->w.k.x, m.ai = x->w.k.ld, m.ak = 1;
    m.B = x->dKt, m.bk = M, m.bn = 1;
    HL_OP(small_gemm)(&m, x->w.mm);
    for (int64_t i = 0; i < n; i++) {
        real *row = sh + i * p->ld;
        row_times(row, row, p->out + i * p->ld, M);
        row_times(row, row, p->to + i / PAIR * p->ld, M);
        row_add(b->dk + i * p->ld, row, M);
        row_add_times(b->down + i * p->ld, 1, row, x->w.s + i * p->ld, M);
    }
    HL_OP(pair_to_end)(p, b->R); /* R is free until the first query */
    m = (struct hl_small_gemm){.M = n, .N = K, .K = M, .alpha = 1, .C = x->dk, .ldc = x->ldk};
    m.A = b->R, m.ai = p->ld, m.ak = 1;
    m.B = x->dKt, m.bk = 1, m.bn = M;
    HL_OP(small_gemm)(&m, x->w.mm);
    for (int64_t i = 0; i < K && !b->first; i++) {
        row_times(x->dKt + i * M, x->dKt + i * M, p->end, M);
        row_add_times(b->hdh, 1, x->Kt + i * M, x->dKt + i * M, M);
    }
}

/* D from dp, left in R by gla; the decay terms of D z */
static void through_softmax(struct work *x) {
    const struct pair *p = &x->b.c.p;
    const int64_t M = x->w.M;
    for (int64_t i = 0; i < p->n; i++) {
        const real *dp = x->b.R + i * p->ld, *prob = x->w.p + i * p->ld;
        real *D = x->D + i * p->ld;
        const vr mean = v_set(row_dot(prob, dp, M));
        for (int64_t c = 0; c < M; c += VL) {
            const int64_t n = M - c < VL ? M - c : VL;
            put(D + c, get(prob + c, n) * (get(dp + c, n) - mean), n);
        }
        row_add_times(x->b.up + i * p->ld, 1, D, x->w.z + i * p->ld, M);
    }
}

static void through_query(struct work *x, struct gla_rows q, struct gla_rows dq) {
    struct gla_back *b = &x->b;
    struct pair *p = &b->c.p;
    const int64_t n = p->n, K = x->w.K, M = x->w.M;
    HL_OP(pair_set_x)(p, 0, x->D, p->ld);
    HL_OP(pair_scores)(p, x->dP);
    for (int64_t i = 0; i < n; i++) memset(x->dP + i * C + i + 1, 0, (size_t)(C - i - 1) * sizeof(real));
    HL_OP(pair_cols)(p, x->w.P, b->Z);
    for (int64_t i = 0; i < n; i++) {
        row_add(b->dk + i * p->ld, b->Z + i * p->ld, M);
        row_add_times(b->up + i * p->ld, -1, b->Z + i * p->ld, x->w.s + i * p->ld, M);
    }
    if (!b->first) {
        HL_OP(pair_from_start)(p, b->c.E);
        struct hl_small_gemm m = {.M = n, .N = K, .K = M, .alpha = 1, .C = dq.x, .ldc = dq.ld};
        m.A = b->c.E, m.ai = p->ld, m.ak = 1;
        m.B = x->Kt, m.bk = 1, m.bn = M;
        HL_OP(small_gemm)(&m, x->w.mm);
        m = (struct hl_small_gemm){.M = K, .N = M, .K = n, .alpha = 1, .C = x->dKt, .ldc = M, .add = true};
        m.A = q.x, m.ai = 1, m.ak = q.ld;
        m.B = b->c.E, m.bk = p->ld, m.bn = 1;
        HL_OP(small_gemm)(&m, x->w.mm);
    }
    struct gdn_tri t = {.n = n, .N = K, .T = x->dP, .ldt = C, .B = x->w.k.x, .ldb = x->w.k.ld, .add = !b->first};
    t.C = dq.x, t.ldc = dq.ld;
    HL_OP(gdn_tri)(&t, x->w.mm);
    t.B = q.x, t.ldb = q.ld, t.C = x->dk, t.ldc = x->ldk, t.add = true;
    HL_OP(gdn_tri_trans)(&t, x->w.mm);
}

/* df, including ds through s = 1 - exp(f) */
static void finish(const struct work *x, struct gla_rows f, struct gla_rows df) {
    const struct pair *p = &x->b.c.p;
    HL_OP(gla_back_decays)(&x->b, df);
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t c = 0; c < x->w.M; c += VL) {
            const int64_t n = x->w.M - c < VL ? x->w.M - c : VL;
            const vr ds = get(x->b.dk + i * p->ld + c, n), e = v_exp(get(f.x + i * f.ld + c, n));
            put(df.x + i * df.ld + c, get(df.x + i * df.ld + c, n) - e * ds, n);
        }
}

struct job {
    struct hl_pool *pool;
    const struct hl_gsa *a;
};

static void chunk_back(struct work *x, int64_t row, int64_t n, int64_t hk) {
    const struct hl_gsa *a = x->a;
    struct gla_back *b = &x->b;
    const int64_t group = a->H / a->HK, ld = b->c.p.ld;
    const struct gla_rows f = gla_rows_of(a->f, a->HK, a->M, row, hk);
    HL_OP(gsa_slots_load)(&x->w, n, ld, f, gla_rows_of(a->k, a->HK, a->K, row, hk));
    HL_OP(gla_chunk_load)(&b->c, n, f, (struct gla_rows){x->w.s, ld}, gla_rows_of(a->v, a->HK, a->V, row, hk));
    HL_OP(gla_back_keys)(b);
    through_keys(x);
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        const struct gla_rows q = gla_rows_of(a->q, a->H, a->K, row, h);
        HL_OP(gsa_slots_read)(&x->w, &b->c.p, q, b->first ? NULL : x->Kt);
        HL_OP(gla_back_query)(b, (struct gla_rows){x->w.p, ld}, gla_rows_of(a->dout, a->H, a->V, row, h));
        through_softmax(x);
        through_query(x, q, gla_rows_of(a->dq, a->H, a->K, row, h));
    }
    gla_put_rows(gla_rows_of(a->dk, a->HK, a->K, row, hk), x->dk, x->ldk, n, a->K);
    gla_put_rows(gla_rows_of(a->dv, a->HK, a->V, row, hk), b->dv, b->ldv, n, a->V);
    finish(x, f, gla_rows_of(a->df, a->HK, a->M, row, hk));
}

/* a (segment, key head) */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_gsa *a = j->a;
    const int64_t s = i / a->HK, hk = i % a->HK, KM = a->K * a->M, MV = a->M * a->V;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t chunks = hl_pieces(seg->len, C), before = hl_chunks_before(a->rows, s);
    real *mem = hl_pool_scratch(j->pool, worker, hl_gsa_scratch(a->K, a->V, a->M)), *base = mem;
    real *mm = gdn_take(&mem, HL_SMALL_GEMM_SCRATCH);
    struct work x = {.a = a, .ldk = gdn_ld(a->K), .b = HL_OP(gla_back_carve)(a->M, a->V, 1, mm, &mem)};
    x.w = HL_OP(gsa_slots_carve)(a->K, a->M, mm, &mem);
    x.dKt = gdn_take(&mem, KM);
    x.D = gdn_take(&mem, C * gdn_ld(a->M));
    x.dP = gdn_take(&mem, C * C);
    x.dk = gdn_take(&mem, C * x.ldk);
    HL_ASSERT(mem - base <= gsa_scratch_reals(a->K, a->V, a->M));
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const int64_t left = seg->len - c * C, at = (before + c) * a->HK + hk;
        x.b.first = c == 0, x.b.last = c == chunks - 1;
        x.b.h = a->hv + at * MV, x.Kt = a->hk + at * KM;
        chunk_back(&x, seg->row + c * C, left < C ? left : C, hk);
    }
}

void HL_OP(gsa_backward)(struct hl_backend *backend, const struct hl_gsa *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->H % a->HK == 0 && a->hk && a->hv);
    hl_pool_run(j.pool, a->rows->n * a->HK, task, &j);
}
