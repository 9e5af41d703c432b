/* gla_chunk_cpu.c -- the forward pass, 64 rows at a time (gla_cpu.h), and the choice between it and the step. */
#include "ops/gla/gla_cpu.h"

enum { C = HL_CHUNK };

struct gla_chunk HL_OP(gla_chunk_carve)(int64_t K, int64_t V, real scale, real *mm, real **mem) {
    struct gla_chunk c = {.K = K, .V = V, .scale = scale, .mm = mm, .p = HL_OP(pair_carve)(K, 1, mm, mem)};
    c.P = gdn_take(mem, C * C);
    c.E = gdn_take(mem, C * c.p.ld);
    return c;
}

void HL_OP(gla_chunk_load)(struct gla_chunk *c, int64_t n, struct gla_rows g, struct gla_rows k, struct gla_rows v) {
    HL_OP(pair_decays)(&c->p, g.x, g.ld, n);
    HL_OP(pair_set_y)(&c->p, k.x, k.ld);
    c->v = v;
}

void HL_OP(gla_chunk_read)(struct gla_chunk *c, struct gla_rows q, const real *h, struct gla_rows out) {
    struct pair *p = &c->p;
    HL_OP(pair_set_x)(p, 0, q.x, q.ld);
    HL_OP(pair_scores)(p, c->P);
    for (int64_t i = 0; i < p->n; i++) {
        row_scale(c->P + i * C, c->P + i * C, c->scale, i + 1);
        memset(c->P + i * C + i + 1, 0, (size_t)(C - i - 1) * sizeof(real));
    }
    HL_OP(pair_from_start)(p, c->E);
    if (!out.x) return;
    if (h) {
        struct hl_small_gemm m = {.M = p->n, .N = c->V, .K = c->K, .alpha = c->scale};
        m.A = c->E, m.ai = p->ld, m.ak = 1;
        m.B = h, m.bk = c->V, m.bn = 1;
        m.C = out.x, m.ldc = out.ld;
        HL_OP(small_gemm)(&m, c->mm);
    }
    struct gdn_tri t = {.n = p->n, .N = c->V, .T = c->P, .ldt = C, .B = c->v.x, .ldb = c->v.ld};
    t.C = out.x, t.ldc = out.ld, t.add = h != NULL;
    HL_OP(gdn_tri)(&t, c->mm);
}

void HL_OP(gla_chunk_write)(struct gla_chunk *c, const real *h, real *next) {
    struct pair *p = &c->p;
    HL_OP(pair_to_end)(p, p->Y);
    for (int64_t i = 0; h && i < c->K; i++) row_scale(next + i * c->V, h + i * c->V, p->end[i], c->V);
    struct hl_small_gemm m = {.M = c->K, .N = c->V, .K = p->n, .alpha = 1, .ldc = c->V, .add = h != NULL};
    m.A = p->Y, m.ai = 1, m.ak = p->ld;
    m.B = c->v.x, m.bk = c->v.ld, m.bn = 1;
    m.C = next;
    HL_OP(small_gemm)(&m, c->mm);
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
    const int64_t chunks = hl_pieces(seg->len, C);
    if (!gdn_chunked(a->h, seg)) return;
    real *mem = hl_pool_scratch(j->pool, worker, hl_gla_scratch(a->K, a->V)),
         *mm = gdn_take(&mem, HL_SMALL_GEMM_SCRATCH);
    struct gla_chunk c = HL_OP(gla_chunk_carve)(a->K, a->V, a->scale, mm, &mem);
    const struct gdn_states S = {.session = seg->state ? (real *)(seg->state + a->S_off) + hk * KV : NULL,
                                 .kept = a->h ? a->h + (hl_chunks_before(a->rows, s) * a->HK + hk) * KV : NULL,
                                 .scratch = gdn_take(&mem, KV),
                                 .step = a->HK * KV};
    gdn_state_start(&S, KV);
    for (int64_t n = 0; n < chunks; n++) {
        const int64_t row = seg->row + n * C, left = seg->len - n * C;
        real *h = gdn_state_before(&S, n), *next = gdn_state_after(&S, n, chunks);
        const bool empty = n == 0 && !S.session;
        HL_OP(gla_chunk_load)
        (&c, left < C ? left : C, gla_rows_of(a->g, a->HK, a->K, row, hk), gla_rows_of(a->k, a->HK, a->K, row, hk),
         gla_rows_of(a->v, a->HK, a->V, row, hk));
        for (int64_t q = hk * group; q < (hk + 1) * group; q++) HL_OP(gla_chunk_read)
        (&c, gla_rows_of(a->q, a->H, a->K, row, q), empty ? NULL : h, gla_rows_of(a->out, a->H, a->V, row, q));
        if (next) HL_OP(gla_chunk_write)(&c, empty ? NULL : h, next);
    }
}

void HL_OP(gla_forward)(struct hl_backend *backend, const struct hl_gla *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    const int64_t chunked = gdn_count_chunked(a->h, a->rows);
    HL_ASSERT(a->H % a->HK == 0);
    if (chunked < a->rows->n) HL_OP(gla_step)(j.pool, a);
    if (chunked > 0) hl_pool_run(j.pool, a->rows->n * a->HK, task, &j);
}
