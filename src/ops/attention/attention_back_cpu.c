/* attention_back_cpu.c -- the backward pass of softmax attention by tiles of queries and keys; P is recomputed from
 * lse.
 *
 * A task owns a key head of a segment: it sums dk and dv in a fixed order, head by head of the group, tile by tile of
 * queries, so results depend neither on threads nor on the rest of the batch. */
#include "ops/attention/attention_cpu.h"
#include "ops/linear/kernel.h"

static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }

/* Queries [t, t + m) of head h of a segment. */
struct tile {
    const struct hl_attention *a;
    struct hl_attention_work w;
    const struct hl_seg *s;
    int64_t hk, h, t, m;
};
static int64_t query_row(const struct tile *t, int64_t i) { return (t->s->row + t->t + i) * t->a->H + t->h; }
static int64_t key_row(const struct tile *t, int64_t c) { return (t->s->row + c) * t->a->HK + t->hk; }

static real dot(const real *x, const real *y, int64_t D) {
    vr sum = {0};
    int64_t c = 0;
    for (; c + VL <= D; c += VL) sum += v_load(x + c) * v_load(y + c);
    if (c < D) sum += v_load_n(x + c, D - c) * v_load_n(y + c, D - c);
    return v_sum(sum);
}

/* Rows and transposes of q and dout, and R = dout . out. */
static void load_queries(const struct tile *t) {
    const struct hl_attention *a = t->a;
    const size_t bytes = (size_t)a->D * sizeof(real);
    for (int64_t i = 0; i < t->m; i++) {
        const int64_t at = query_row(t, i) * a->D;
        memcpy(t->w.q + i * t->w.ldd, (const real *)a->q + at, bytes);
        memcpy(t->w.dout + i * t->w.ldd, (const real *)a->dout + at, bytes);
        t->w.R[i] = dot((const real *)a->dout + at, (const real *)a->out + at, a->D);
    }
    for (int64_t c = 0; c < a->D; c += HL_KC) {
        const int64_t n = min(HL_KC, a->D - c);
        HL_OP(pack_transpose)(t->w.qT + c * t->w.ldk, t->w.ldk, t->w.q + c, t->w.ldd, t->m, t->m, n);
        HL_OP(pack_transpose)(t->w.doutT + c * t->w.ldk, t->w.ldk, t->w.dout + c, t->w.ldd, t->m, t->m, n);
    }
}

/* Rows of k, transposes of k and v, of keys [c0, c0 + n). */
static void load_keys(const struct tile *t, int64_t c0, int64_t n) {
    const struct hl_attention *a = t->a;
    const int64_t stride = a->HK * a->D;
    const real *k = (const real *)a->k + key_row(t, c0) * a->D, *v = (const real *)a->v + key_row(t, c0) * a->D;
    for (int64_t i = 0; i < n; i++) memcpy(t->w.k + i * t->w.ldd, k + i * stride, (size_t)a->D * sizeof(real));
    for (int64_t c = 0; c < a->D; c += HL_KC) {
        const int64_t m = min(HL_KC, a->D - c);
        HL_OP(pack_transpose)(t->w.kT + c * t->w.ldk, t->w.ldk, k + c, stride, n, n, m);
        HL_OP(pack_transpose)(t->w.vT + c * t->w.ldk, t->w.ldk, v + c, stride, n, n, m);
    }
}

static const real lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Converts z in S and dout . v in dS to P = exp(z - lse) and P (dout . v - R), zero where not visible. Query i sees
 * columns [from, to) of n. */
static void weights(const struct tile *t, int64_t i, int64_t from, int64_t to, int64_t n) {
    real *P = t->w.S + i * t->w.ldk, *dS = t->w.dS + i * t->w.ldk;
    const real lse = t->a->lse[query_row(t, i)], R = t->w.R[i];
    for (int64_t c = 0; c < n; c += VL) {
        vr p = v_exp(v_load(P + c) - lse), ds = p * (v_load(dS + c) - R);
        if (c < from || c + VL > to) {
            const vi mask = (vi)(v_load(lanes) >= (real)(from - c)) & (vi)(v_load(lanes) < (real)(to - c));
            p = v_select(mask, p, v_set(0));
            ds = v_select(mask, ds, v_set(0));
        }
        v_store(P + c, p);
        v_store(dS + c, ds);
    }
}

/* Keys [c0, c0 + n) against the tile's queries from `first` on. */
static void back_tile(const struct tile *t, int64_t c0, int64_t n, int64_t first) {
    const struct hl_attention *a = t->a;
    const struct hl_attention_work *w = &t->w;
    const int64_t m = t->m - first, wide = a->HK * a->D;
    struct hl_small_gemm S = {
        .M = m, .N = n, .K = a->D, .ai = 1, .ak = w->ldk, .bk = w->ldk, .bn = 1, .ldc = w->ldk, .alpha = a->scale};
    load_keys(t, c0, n);
    S.A = w->qT + first, S.B = w->kT, S.C = w->S + first * w->ldk;
    struct hl_small_gemm dP = S;
    dP.A = w->doutT + first, dP.B = w->vT, dP.C = w->dS + first * w->ldk, dP.alpha = 1;
    HL_OP(small_gemm)(&S, w->mm);
    HL_OP(small_gemm)(&dP, w->mm);
    for (int64_t i = first; i < t->m; i++) {
        const int64_t p = t->t + i, from = max(c0, hl_attention_first(a, p)), to = max(from, min(c0 + n, p + 1));
        weights(t, i, from - c0, to - c0, n);
    }
    struct hl_small_gemm dQ = {.M = m, .N = a->D, .K = n, .A = dP.C, .ai = w->ldk, .ak = 1, .B = w->k, .bk = w->ldd};
    dQ.bn = 1, dQ.C = (real *)a->dq + query_row(t, first) * a->D, dQ.ldc = a->H * a->D;
    dQ.alpha = a->scale, dQ.add = true;
    HL_OP(small_gemm)(&dQ, w->mm);
    struct hl_small_gemm dK = {.M = n, .N = a->D, .K = m, .A = dP.C, .ai = 1, .ak = w->ldk, .bk = w->ldd, .bn = 1};
    dK.B = w->q + first * w->ldd, dK.C = (real *)a->dk + key_row(t, c0) * a->D, dK.ldc = wide;
    dK.alpha = a->scale, dK.add = true;
    struct hl_small_gemm dV = dK;
    dV.A = S.C, dV.B = w->dout + first * w->ldd, dV.C = (real *)a->dv + key_row(t, c0) * a->D, dV.alpha = 1;
    HL_OP(small_gemm)(&dK, w->mm);
    HL_OP(small_gemm)(&dV, w->mm);
}

static void clear(void *x, int64_t row, int64_t n, int64_t stride, int64_t width) {
    for (int64_t i = 0; i < n; i++) memset((real *)x + (row + i) * stride, 0, (size_t)width * sizeof(real));
}

struct job {
    const struct hl_attention *a;
    struct hl_pool *pool;
};
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_attention *a = j->a;
    const int64_t group = a->H / a->HK;
    struct tile t = {.a = a, .w = hl_attention_worker(j->pool, worker, a->D)};
    t.s = &a->rows->seg[i / a->HK];
    t.hk = i % a->HK;
    clear((real *)a->dk + t.hk * a->D, t.s->row, t.s->len, a->HK * a->D, a->D);
    clear((real *)a->dv + t.hk * a->D, t.s->row, t.s->len, a->HK * a->D, a->D);
    clear((real *)a->dq + t.hk * group * a->D, t.s->row, t.s->len, a->H * a->D, group * a->D);
    for (t.h = t.hk * group; t.h < (t.hk + 1) * group; t.h++)
        for (t.t = 0; t.t < t.s->len; t.t += ATTENTION_ROWS) {
            t.m = min(ATTENTION_ROWS, t.s->len - t.t);
            load_queries(&t);
            const int64_t lo = hl_attention_first(a, t.t) / ATTENTION_KEYS * ATTENTION_KEYS, end = t.t + t.m;
            for (int64_t c = lo; c < end; c += ATTENTION_KEYS)
                back_tile(&t, c, min(ATTENTION_KEYS, end - c), max(0, c - t.t));
        }
}

void HL_OP(attention_backward)(struct hl_backend *backend, const struct hl_attention *a) {
    struct job j = {.a = a, .pool = hl_backend_pool(backend)};
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t n = 0; n < a->rows->n; n++) HL_ASSERT(!a->rows->seg[n].state && a->rows->seg[n].pos == 0);
    hl_pool_run(j.pool, a->rows->n * a->HK, task, &j);
}
