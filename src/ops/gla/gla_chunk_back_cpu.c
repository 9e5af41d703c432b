/* gla_chunk_back_cpu.c -- the backward pass, from the last chunk to the first (gla_cpu.h; docs/math.md, "GLA"). eG =
 * exp(G), eL = exp(G_last - G):
 *     keys:   kh = eL (v dh^T)    dk = kh    dv = (k eL) dh    hdh = exp(G_last) rowsum(h dh)    dh = diag(exp(G_last)) dh
 *     query:  W = scale tril(dO v^T)    R = pair rows of W    Z = pair columns of W
 *             dq = R + scale eG (dO h^T)    dk += Z    dv += P^T dO    dh += scale (q eG)^T dO
 *     decays: up = sum over query heads of q dq - k Z    down = k kh */
#include "ops/gla/gla_cpu.h"

enum { C = HL_CHUNK };

struct gla_back HL_OP(gla_back_carve)(int64_t K, int64_t V, real scale, real *mm, real **mem) {
    struct gla_back b = {.ldv = gdn_ld(V), .c = HL_OP(gla_chunk_carve)(K, V, scale, mm, mem)};
    const int64_t ld = b.c.p.ld;
    b.dh = gdn_take(mem, K * V);
    b.W = gdn_take(mem, C * C);
    b.R = gdn_take(mem, C * ld), b.Z = gdn_take(mem, C * ld), b.dk = gdn_take(mem, C * ld);
    b.dv = gdn_take(mem, C * b.ldv);
    b.up = gdn_take(mem, C * ld), b.down = gdn_take(mem, C * ld), b.hdh = gdn_take(mem, ld);
    return b;
}

void HL_OP(gla_back_keys)(struct gla_back *b) {
    const struct gla_chunk *c = &b->c;
    const struct pair *p = &c->p;
    const int64_t n = p->n, K = c->K, V = c->V;
    memset(b->up, 0, (size_t)(n * p->ld) * sizeof(real));
    memset(b->hdh, 0, (size_t)K * sizeof(real));
    if (b->last) {
        memset(b->dk, 0, (size_t)(n * p->ld) * sizeof(real));
        memset(b->down, 0, (size_t)(n * p->ld) * sizeof(real));
        memset(b->dv, 0, (size_t)(n * b->ldv) * sizeof(real));
        if (!b->first) memset(b->dh, 0, (size_t)(K * V) * sizeof(real));
        return;
    }
    struct hl_small_gemm m = {.M = n, .N = K, .K = V, .alpha = 1, .C = b->dk, .ldc = p->ld};
    m.A = c->v.x, m.ai = c->v.ld, m.ak = 1;
    m.B = b->dh, m.bk = 1, m.bn = V;
    HL_OP(small_gemm)(&m, c->mm);
    for (int64_t i = 0; i < n; i++) {
        real *kh = b->dk + i * p->ld;
        row_times(kh, kh, p->out + i * p->ld, K);
        row_times(kh, kh, p->to + i / PAIR * p->ld, K);
        row_times(b->down + i * p->ld, kh, p->y + i * p->ldy, K);
    }
    HL_OP(pair_to_end)(p, b->R); /* R is free until the first query */
    m = (struct hl_small_gemm){.M = n, .N = V, .K = K, .alpha = 1, .C = b->dv, .ldc = b->ldv};
    m.A = b->R, m.ai = p->ld, m.ak = 1;
    m.B = b->dh, m.bk = V, m.bn = 1;
    HL_OP(small_gemm)(&m, c->mm);
    for (int64_t i = 0; i < K && !b->first; i++) {
        b->hdh[i] = p->end[i] * row_dot(b->h + i * V, b->dh + i * V, V);
        row_scale(b->dh + i * V, b->dh + i * V, p->end[i], V);
    }
}

/* R += scale eG (dO h^T); dh += scale (q eG)^T dO */
static void through_state(struct gla_back *b, struct gla_rows dout) {
    const struct gla_chunk *c = &b->c;
    const struct pair *p = &c->p;
    real *G = p->Z; /* free between products */
    struct hl_small_gemm m = {.M = p->n, .N = c->K, .K = c->V, .alpha = c->scale, .C = G, .ldc = p->ld};
    m.A = dout.x, m.ai = dout.ld, m.ak = 1;
    m.B = b->h, m.bk = 1, m.bn = c->V;
    HL_OP(small_gemm)(&m, c->mm);
    for (int64_t i = 0; i < p->n; i++) {
        row_times(G + i * p->ld, G + i * p->ld, p->in + i * p->ld, c->K);
        row_add_times(b->R + i * p->ld, 1, G + i * p->ld, p->from + i / PAIR * p->ld, c->K);
    }
    m = (struct hl_small_gemm){
        .M = c->K, .N = c->V, .K = p->n, .alpha = c->scale, .C = b->dh, .ldc = c->V, .add = true};
    m.A = c->E, m.ai = 1, m.ak = p->ld;
    m.B = dout.x, m.bk = dout.ld, m.bn = 1;
    HL_OP(small_gemm)(&m, c->mm);
}

void HL_OP(gla_back_query)(struct gla_back *b, struct gla_rows q, struct gla_rows dout) {
    struct gla_chunk *c = &b->c;
    const struct pair *p = &c->p;
    const int64_t n = p->n, rows = p->blocks * PAIR;
    HL_OP(gla_chunk_read)(c, q, NULL, (struct gla_rows){0}); /* P and E */
    struct hl_small_gemm m = {.M = n, .N = n, .K = c->V, .alpha = c->scale, .C = b->W, .ldc = C};
    m.A = dout.x, m.ai = dout.ld, m.ak = 1;
    m.B = c->v.x, m.bk = 1, m.bn = c->v.ld;
    HL_OP(small_gemm)(&m, c->mm);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t used = i < n ? i + 1 : 0;
        memset(b->W + i * C + used, 0, (size_t)(C - used) * sizeof(real));
    }
    HL_OP(pair_rows)(p, b->W, b->R);
    HL_OP(pair_cols)(p, b->W, b->Z);
    if (!b->first) through_state(b, dout);
    struct gdn_tri t = {.n = n, .N = c->V, .T = c->P, .ldt = C, .B = dout.x, .ldb = dout.ld, .add = true};
    t.C = b->dv, t.ldc = b->ldv;
    HL_OP(gdn_tri_trans)(&t, c->mm);
    for (int64_t i = 0; i < n; i++) {
        row_add(b->dk + i * p->ld, b->Z + i * p->ld, c->K);
        row_add_times(b->up + i * p->ld, 1, b->R + i * p->ld, q.x + i * q.ld, c->K);
        row_add_times(b->up + i * p->ld, -1, b->Z + i * p->ld, p->y + i * p->ldy, c->K);
    }
}

void HL_OP(gla_back_decays)(const struct gla_back *b, struct gla_rows dg) {
    const struct pair *p = &b->c.p;
    const int64_t K = b->c.K;
    for (int64_t i = p->n - 2; i >= 0; i--) row_add(b->up + i * p->ld, b->up + (i + 1) * p->ld, K);
    for (int64_t i = 0; i < p->n; i++) {
        row_copy(dg.x + i * dg.ld, b->up + i * p->ld, K);
        row_add(dg.x + i * dg.ld, b->hdh, K);
        row_add(b->hdh, b->down + i * p->ld, K);
    }
}

/* ---- segments ---- */

struct job {
    struct hl_pool *pool;
    const struct hl_gla *a;
};

/* a (segment, key head) */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_gla *a = j->a;
    const int64_t s = i / a->HK, hk = i % a->HK, group = a->H / a->HK, KV = a->K * a->V;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t chunks = hl_pieces(seg->len, C), before = hl_chunks_before(a->rows, s);
    real *mem = hl_pool_scratch(j->pool, worker, hl_gla_scratch(a->K, a->V)), *base = mem;
    real *mm = gdn_take(&mem, HL_SMALL_GEMM_SCRATCH);
    struct gla_back b = HL_OP(gla_back_carve)(a->K, a->V, a->scale, mm, &mem);
    HL_ASSERT(mem - base <= gla_scratch_reals(a->K, a->V));
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const int64_t row = seg->row + c * C, left = seg->len - c * C, n = left < C ? left : C, ld = b.c.p.ld;
        b.first = c == 0, b.last = c == chunks - 1;
        b.h = a->h + ((before + c) * a->HK + hk) * KV;
        HL_OP(gla_chunk_load)
        (&b.c, n, gla_rows_of(a->g, a->HK, a->K, row, hk), gla_rows_of(a->k, a->HK, a->K, row, hk),
         gla_rows_of(a->v, a->HK, a->V, row, hk));
        HL_OP(gla_back_keys)(&b);
        for (int64_t q = hk * group; q < (hk + 1) * group; q++) {
            HL_OP(gla_back_query)(&b, gla_rows_of(a->q, a->H, a->K, row, q), gla_rows_of(a->dout, a->H, a->V, row, q));
            gla_put_rows(gla_rows_of(a->dq, a->H, a->K, row, q), b.R, ld, n, a->K);
        }
        gla_put_rows(gla_rows_of(a->dk, a->HK, a->K, row, hk), b.dk, ld, n, a->K);
        gla_put_rows(gla_rows_of(a->dv, a->HK, a->V, row, hk), b.dv, b.ldv, n, a->V);
        HL_OP(gla_back_decays)(&b, gla_rows_of(a->dg, a->HK, a->K, row, hk));
    }
}

void HL_OP(gla_backward)(struct hl_backend *backend, const struct hl_gla *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->H % a->HK == 0 && a->h);
    hl_pool_run(j.pool, a->rows->n * a->HK, task, &j);
}
