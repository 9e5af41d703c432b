/* kda_chunk_cpu.c -- the forward pass, 64 rows at a time (docs/math.md, "KDA"), and the choice between it and the step.
 *
 * With h the state before the chunk, G the cumulative log decays inside it, s = K^{-1/2}:
 *     [qh; kh] = [Q exp(G); K exp(G)] h
 *     v_new    = A r,  r = beta (V - kh),  A = (I + beta M)^-1
 *     out      = s qh + P v_new
 *     h_next   = diag(exp(G_last)) h + (K exp(G_last - G))^T v_new */
#include "ops/kda/kda_cpu.h"

enum { C = HL_CHUNK };

struct kda_chunk HL_OP(kda_chunk_carve)(const struct hl_kda *a, real **mem) {
    struct kda_chunk k = {0};
    k.x.mm = gdn_take(mem, HL_SMALL_GEMM_SCRATCH);
    k.x.P = gdn_take(mem, C * C);
    k.x.M = gdn_take(mem, C * C);
    k.scores = gdn_take(mem, 2 * C * C);
    k.E = gdn_take(mem, 2 * C * gdn_ld(a->K));
    k.p = HL_OP(pair_carve)(a->K, 2, k.x.mm, mem);
    return k;
}

void HL_OP(kda_chunk_load)(struct kda_chunk *k, const struct hl_kda *a, int64_t row, int64_t n, int64_t hv) {
    const int64_t width = a->H * a->K, at = row * width + hv / (a->HV / a->H) * a->K;
    const real *q = (const real *)a->q + at, *key = (const real *)a->k + at, scale = 1 / R_SQRT((real)a->K);
    k->x.row = row, k->x.n = n, k->x.hv = hv;
    HL_OP(pair_decays)(&k->p, a->g + (row * a->HV + hv) * a->K, a->HV * a->K, n);
    HL_OP(pair_set_x)(&k->p, 0, q, width);
    HL_OP(pair_set_x)(&k->p, 1, key, width);
    HL_OP(pair_set_y)(&k->p, key, width);
    HL_OP(pair_scores)(&k->p, k->scores);
    HL_OP(pair_from_start)(&k->p, k->E);
    for (int64_t i = 0; i < n; i++) {
        real *P = k->x.P + i * C, *M = k->x.M + i * C;
        row_scale(P, k->scores + pair_row(&k->p, 0, i) * C, scale, i + 1);
        row_copy(M, k->scores + pair_row(&k->p, 1, i) * C, i);
        memset(P + i + 1, 0, (size_t)(C - i - 1) * sizeof *P);
        memset(M + i, 0, (size_t)(C - i) * sizeof *M);
        k->x.beta[i] = a->beta[(row + i) * a->HV + hv];
    }
}

struct work {
    struct kda_chunk k;
    const struct hl_kda *a;
    int64_t ldv;
    real *A, *Y, *r, *v_new, *S; /* [C][C], [2C][ldv], [C][ldv], [C][ldv], [K][V] */
};

static struct work carve(const struct hl_kda *a, real *p) {
    const real *base = p;
    struct work w = {.a = a, .ldv = gdn_ld(a->V), .k = HL_OP(kda_chunk_carve)(a, &p)};
    w.A = gdn_take(&p, C * C);
    w.Y = gdn_take(&p, 2 * C * w.ldv);
    w.r = gdn_take(&p, C * w.ldv);
    w.v_new = gdn_take(&p, C * w.ldv);
    w.S = gdn_take(&p, a->K * a->V);
    HL_ASSERT(p - base <= kda_scratch_reals(a->K, a->V));
    return w;
}

/* v_new and out; h NULL: the state is still empty */
static void read_state(struct work *w, const real *h) {
    const struct hl_kda *a = w->a;
    struct kda_chunk *k = &w->k;
    const int64_t n = k->x.n, ld = a->HV * a->V, at = (k->x.row * a->HV + k->x.hv) * a->V;
    const real *v = (const real *)a->v + at, scale = 1 / R_SQRT((real)a->K);
    real *out = (real *)a->out + at;
    if (h) {
        struct hl_small_gemm m = {.M = k->p.blocks * 2 * PAIR, .N = a->V, .K = a->K, .alpha = 1};
        m.A = k->E, m.ai = k->p.ld, m.ak = 1;
        m.B = h, m.bk = a->V, m.bn = 1;
        m.C = w->Y, m.ldc = w->ldv;
        HL_OP(small_gemm)(&m, k->x.mm);
    }
    for (int64_t i = 0; i < n; i++) {
        real *r = w->r + i * w->ldv;
        if (!h) {
            row_scale(r, v + i * ld, k->x.beta[i], a->V);
            continue;
        }
        row_copy(r, w->Y + pair_row(&k->p, 1, i) * w->ldv, a->V);
        row_residual(r, v + i * ld, k->x.beta[i], 1, a->V);
        row_scale(out + i * ld, w->Y + pair_row(&k->p, 0, i) * w->ldv, scale, a->V);
    }
    struct gdn_tri t = {.n = n, .N = a->V, .T = w->A, .ldt = C, .B = w->r, .ldb = w->ldv, .C = w->v_new, .ldc = w->ldv};
    HL_OP(gdn_tri)(&t, k->x.mm);
    t = (struct gdn_tri){.n = n, .N = a->V, .T = k->x.P, .ldt = C, .B = w->v_new, .ldb = w->ldv, .C = out, .ldc = ld};
    t.add = h != NULL;
    HL_OP(gdn_tri)(&t, k->x.mm);
}

/* next may be h */
static void write_state(struct work *w, const real *h, real *next) {
    const struct hl_kda *a = w->a;
    struct pair *p = &w->k.p;
    HL_OP(pair_to_end)(p, p->Y);
    for (int64_t i = 0; h && i < a->K; i++) row_scale(next + i * a->V, h + i * a->V, p->end[i], a->V);
    struct hl_small_gemm m = {.M = a->K, .N = a->V, .K = p->n, .alpha = 1, .ldc = a->V, .add = h != NULL};
    m.A = p->Y, m.ai = 1, m.ak = p->ld;
    m.B = w->v_new, m.bk = w->ldv, m.bn = 1;
    m.C = next;
    HL_OP(small_gemm)(&m, w->k.x.mm);
}

/* m and, for the backward pass, v_new and A */
static void store_results(struct work *w) {
    const struct hl_kda *a = w->a;
    for (int64_t i = 0; i < w->k.x.n; i++) {
        const int64_t at = (w->k.x.row + i) * a->HV + w->k.x.hv;
        a->m[at] = R_SQRT(row_sumsq(w->v_new + i * w->ldv, a->V));
        if (!a->h) continue;
        row_copy((real *)a->v_new + at * a->V, w->v_new + i * w->ldv, a->V);
        row_copy((real *)a->A + at * C, w->A + i * C, C);
    }
}

static void scan_chunks(struct work *w, int64_t s, int64_t hv) {
    const struct hl_kda *a = w->a;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t KV = a->K * a->V, chunks = hl_pieces(seg->len, C);
    const struct gdn_states S = {.session = seg->state ? (real *)(seg->state + a->S_off) + hv * KV : NULL,
                                 .kept = a->h ? a->h + (hl_chunks_before(a->rows, s) * a->HV + hv) * KV : NULL,
                                 .scratch = w->S,
                                 .step = a->HV * KV};
    gdn_state_start(&S, KV);
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t left = seg->len - c * C;
        real *h = gdn_state_before(&S, c), *next = gdn_state_after(&S, c, chunks);
        const bool empty = c == 0 && !S.session;
        HL_OP(kda_chunk_load)(&w->k, a, seg->row + c * C, left < C ? left : C, hv);
        HL_OP(gdn_inverse)(&w->k.x, w->A);
        read_state(w, empty ? NULL : h);
        store_results(w);
        if (next) write_state(w, empty ? NULL : h, next);
    }
}

struct job {
    struct hl_pool *pool;
    const struct hl_kda *a;
};
/* a (segment, value head) */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_kda *a = j->a;
    if (!gdn_chunked(a->h, &a->rows->seg[i / a->HV])) return;
    struct work w = carve(a, hl_pool_scratch(j->pool, worker, hl_kda_scratch(a->K, a->V)));
    scan_chunks(&w, i / a->HV, i % a->HV);
}

void HL_OP(kda_forward)(struct hl_backend *backend, const struct hl_kda *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    const int64_t chunked = gdn_count_chunked(a->h, a->rows);
    HL_ASSERT(a->HV % a->H == 0 && !a->h == !a->v_new && !a->h == !a->A);
    if (chunked < a->rows->n) HL_OP(kda_step)(j.pool, a);
    if (chunked > 0) hl_pool_run(j.pool, a->rows->n * a->HV, task, &j);
}
