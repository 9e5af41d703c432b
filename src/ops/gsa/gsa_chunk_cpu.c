/* gsa_chunk_cpu.c -- the forward pass, 64 rows at a time (gsa_cpu.h), and the choice between it and the step.
 *
 * With F the cumulated log decays, Kt and Vt the slots before the chunk:
 *     z = (Q Kt) exp(F) + pair rows of tril(Q K^T)     p = softmax(z)
 *     out = gla's read with p for q and s for k        Kt_next = Kt exp(F_last), by columns, + K^T (s exp(F_last - F)) */
#include "ops/gsa/gsa_cpu.h"

enum { C = HL_CHUNK };

#ifdef HL_DOUBLE
static vr v_expm1(vr x) {
    real t[VL];
    v_store(t, x);
    for (int i = 0; i < VL; i++) t[i] = expm1(t[i]);
    return v_load(t);
}
#else
/* exp(x) - 1, near 0 by its series, so that s of a gate near 1 keeps its digits */
static inline vr v_expm1(vr x) {
    vr p = v_set(1.0f / 40320);
    p = p * x + 1.0f / 5040;
    p = p * x + 1.0f / 720;
    p = p * x + 1.0f / 120;
    p = p * x + 1.0f / 24;
    p = p * x + 1.0f / 6;
    p = p * x + 0.5f;
    p = p * (x * x) + x;
    return v_select((vi)(x > -0.5f), p, v_exp(x) - 1);
}
#endif

void HL_OP(gsa_strengths)(real *s, const real *f, int64_t n) {
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t lanes = n - i < VL ? n - i : VL;
        put(s + i, -v_expm1(get(f + i, lanes)), lanes);
    }
}

void HL_OP(gsa_softmax)(real *p, const real *z, int64_t n) {
    real most = z[0], sum = 0;
    for (int64_t i = 1; i < n; i++) most = z[i] > most ? z[i] : most;
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t lanes = n - i < VL ? n - i : VL;
        put(p + i, v_exp(get(z + i, lanes) - most), lanes);
    }
    for (int64_t i = 0; i < n; i++) sum += p[i];
    row_scale(p, p, 1 / sum, n);
}

struct gsa_slots HL_OP(gsa_slots_carve)(int64_t K, int64_t M, real *mm, real **mem) {
    struct gsa_slots w = {.K = K, .M = M, .mm = mm};
    w.s = gdn_take(mem, C * gdn_ld(M)), w.z = gdn_take(mem, C * gdn_ld(M)), w.p = gdn_take(mem, C * gdn_ld(M));
    w.P = gdn_take(mem, C * C);
    return w;
}

void HL_OP(gsa_slots_load)(struct gsa_slots *w, int64_t n, int64_t ld, struct gla_rows f, struct gla_rows k) {
    for (int64_t i = 0; i < n; i++) HL_OP(gsa_strengths)(w->s + i * ld, f.x + i * f.ld, w->M);
    w->k = k;
}

void HL_OP(gsa_slots_read)(struct gsa_slots *w, const struct pair *decays, struct gla_rows q, const real *Kt) {
    const int64_t n = decays->n, ld = decays->ld;
    struct hl_small_gemm m = {.M = n, .N = n, .K = w->K, .alpha = 1, .C = w->P, .ldc = C};
    m.A = q.x, m.ai = q.ld, m.ak = 1;
    m.B = w->k.x, m.bk = 1, m.bn = w->k.ld;
    HL_OP(small_gemm)(&m, w->mm);
    for (int64_t i = 0; i < decays->blocks * PAIR; i++) {
        const int64_t used = i < n ? i + 1 : 0;
        memset(w->P + i * C + used, 0, (size_t)(C - used) * sizeof(real));
    }
    HL_OP(pair_rows)(decays, w->P, w->z);
    if (Kt) {
        real *G = decays->Z; /* free between products */
        m = (struct hl_small_gemm){.M = n, .N = w->M, .K = w->K, .alpha = 1, .C = G, .ldc = ld};
        m.A = q.x, m.ai = q.ld, m.ak = 1;
        m.B = Kt, m.bk = w->M, m.bn = 1;
        HL_OP(small_gemm)(&m, w->mm);
        for (int64_t i = 0; i < n; i++) {
            row_times(G + i * ld, G + i * ld, decays->in + i * ld, w->M);
            row_add_times(w->z + i * ld, 1, G + i * ld, decays->from + i / PAIR * ld, w->M);
        }
    }
    for (int64_t i = 0; i < n; i++) HL_OP(gsa_softmax)(w->p + i * ld, w->z + i * ld, w->M);
}

/* next may be Kt; the decays' Y is now s exp(F_last - F) */
static void write_keys(const struct gsa_slots *w, const struct pair *decays, const real *Kt, real *next) {
    for (int64_t i = 0; Kt && i < w->K; i++) row_times(next + i * w->M, Kt + i * w->M, decays->end, w->M);
    struct hl_small_gemm m = {.M = w->K, .N = w->M, .K = decays->n, .alpha = 1, .ldc = w->M, .add = Kt != NULL};
    m.A = w->k.x, m.ai = 1, m.ak = w->k.ld;
    m.B = decays->Y, m.bk = decays->ld, m.bn = 1;
    m.C = next;
    HL_OP(small_gemm)(&m, w->mm);
}

/* ---- segments ---- */

struct job {
    struct hl_pool *pool;
    const struct hl_gsa *a;
};

/* a (segment, key head) */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_gsa *a = j->a;
    const int64_t s = i / a->HK, hk = i % a->HK, group = a->H / a->HK, KM = a->K * a->M, MV = a->M * a->V;
    const struct hl_seg *seg = &a->rows->seg[s];
    const int64_t chunks = hl_pieces(seg->len, C), first = hl_chunks_before(a->rows, s) * a->HK + hk;
    if (!gdn_chunked(a->hk, seg)) return;
    real *mem = hl_pool_scratch(j->pool, worker, hl_gsa_scratch(a->K, a->V, a->M)), *base = mem;
    real *mm = gdn_take(&mem, HL_SMALL_GEMM_SCRATCH);
    struct gla_chunk c = HL_OP(gla_chunk_carve)(a->M, a->V, 1, mm, &mem);
    struct gsa_slots w = HL_OP(gsa_slots_carve)(a->K, a->M, mm, &mem);
    const struct gdn_states keys = {.session = seg->state ? (real *)(seg->state + a->Kt_off) + hk * KM : NULL,
                                    .kept = a->hk ? a->hk + first * KM : NULL,
                                    .scratch = gdn_take(&mem, KM),
                                    .step = a->HK * KM};
    const struct gdn_states values = {.session = seg->state ? (real *)(seg->state + a->Vt_off) + hk * MV : NULL,
                                      .kept = a->hv ? a->hv + first * MV : NULL,
                                      .scratch = gdn_take(&mem, MV),
                                      .step = a->HK * MV};
    HL_ASSERT(mem - base <= gsa_scratch_reals(a->K, a->V, a->M));
    gdn_state_start(&keys, KM), gdn_state_start(&values, MV);
    for (int64_t n = 0; n < chunks; n++) {
        const int64_t row = seg->row + n * C, left = seg->len - n * C, ld = c.p.ld;
        const bool empty = n == 0 && !seg->state;
        const real *Kt = empty ? NULL : gdn_state_before(&keys, n);
        const real *Vt = empty ? NULL : gdn_state_before(&values, n);
        real *next = gdn_state_after(&values, n, chunks);
        const struct gla_rows f = gla_rows_of(a->f, a->HK, a->M, row, hk);
        HL_OP(gsa_slots_load)(&w, left < C ? left : C, ld, f, gla_rows_of(a->k, a->HK, a->K, row, hk));
        HL_OP(gla_chunk_load)
        (&c, left < C ? left : C, f, (struct gla_rows){w.s, ld}, gla_rows_of(a->v, a->HK, a->V, row, hk));
        for (int64_t q = hk * group; q < (hk + 1) * group; q++) {
            HL_OP(gsa_slots_read)(&w, &c.p, gla_rows_of(a->q, a->H, a->K, row, q), Kt);
            if (a->p) gla_put_rows(gla_rows_of(a->p, a->H, a->M, row, q), w.p, ld, c.p.n, a->M);
            HL_OP(gla_chunk_read)(&c, (struct gla_rows){w.p, ld}, Vt, gla_rows_of(a->out, a->H, a->V, row, q));
        }
        if (!next) continue;
        HL_OP(gla_chunk_write)(&c, Vt, next);
        write_keys(&w, &c.p, Kt, gdn_state_after(&keys, n, chunks));
    }
}

void HL_OP(gsa_forward)(struct hl_backend *backend, const struct hl_gsa *a) {
    struct job j = {.pool = hl_backend_pool(backend), .a = a};
    const int64_t chunked = gdn_count_chunked(a->hk, a->rows);
    HL_ASSERT(a->H % a->HK == 0 && !a->hk == !a->hv);
    if (chunked < a->rows->n) HL_OP(gsa_step)(j.pool, a);
    if (chunked > 0) hl_pool_run(j.pool, a->rows->n * a->HK, task, &j);
}
