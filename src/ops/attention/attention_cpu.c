/* attention_cpu.c -- softmax attention by tiles of rows and keys (attention_cpu.h), for training, prompts and single
 * tokens of sessions.
 *
 * A task owns up to ATTENTION_ROWS rows: consecutive queries of one segment, with all heads that share a key head or
 * ATTENTION_ROWS of them. Per tile of keys: S = q k^T, the running maximum, P = exp(S - max), O = O exp(old - new) + P
 * v. */
#include "ops/attention/attention_cpu.h"
#include "ops/simd.h"

enum {
    FEW = 8,        /* rows up to which v is read in place: a copy would cost more than it saves */
    SMALL = 1 << 15 /* multiply-adds, or numbers to copy, not worth waking another thread */
};
#define NOTHING ((real)-1e30) /* the maximum before any key */

static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }

struct tile {
    const struct hl_attention *a;
    struct hl_attention_work w;
    int64_t n, hk, head; /* segment; key head; first query head */
    int64_t t, heads;    /* position of the first query; heads of each query */
    int64_t rows, last;  /* in all; position of the last query */
};
static int64_t query_of(const struct tile *t, int64_t r) { return t->t + r / t->heads; }

/* ---- locations of keys and values ---- */

/* Key or value at position p in a session's state, all heads. */
static real *state_row(const struct hl_attention *a, int64_t n, int64_t p, int64_t off) {
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t width = a->HK * a->D;
    if (a->window) return (real *)(s->state + off) + p % a->window * width;
    return (real *)(a->rows->pages[n][p / HL_PAGE_TOKENS] + off) + p % HL_PAGE_TOKENS * width;
}

/* Rows [p, end) of this tile's key head: returns the first, row stride HK D, and in *n how many are contiguous. Pages
 * already hold the rows of this call, a ring does not. */
static const real *rows_at(const struct tile *t, const void *x, int64_t off, int64_t p, int64_t end, int64_t *n) {
    const struct hl_attention *a = t->a;
    const struct hl_seg *s = &a->rows->seg[t->n];
    const bool ring = s->state && a->window && p < s->pos;
    *n = end - p;
    if (ring) *n = min(min(s->pos, end) - p, a->window - p % a->window);
    if (ring || (s->state && !a->window)) return state_row(a, t->n, p, off) + t->hk * a->D;
    return (const real *)x + ((s->row + p - s->pos) * a->HK + t->hk) * a->D;
}

/* ---- one tile of keys: [lo, hi), on the grid starting at `base` ---- */

static void scores(const struct tile *t, int64_t base, int64_t lo, int64_t hi) {
    const struct hl_attention *a = t->a;
    struct hl_small_gemm g = {.M = t->rows,
                              .K = a->D,
                              .A = t->w.q,
                              .ai = t->w.ldd,
                              .ak = 1,
                              .bk = 1,
                              .bn = a->HK * a->D,
                              .ldc = t->w.ldk,
                              .alpha = a->scale};
    for (int64_t p = lo; p < hi; p += g.N) {
        g.B = rows_at(t, a->k, a->k_off, p, hi, &g.N);
        g.C = t->w.S + p - base;
        HL_OP(small_gemm)(&g, t->w.mm);
    }
}

static void values(const struct tile *t, int64_t base, int64_t lo, int64_t hi) {
    const struct hl_attention *a = t->a;
    struct hl_small_gemm g = {.M = t->rows,
                              .N = a->D,
                              .K = hi - lo,
                              .A = t->w.S + lo - base,
                              .ai = t->w.ldk,
                              .ak = 1,
                              .bk = a->HK * a->D,
                              .bn = 1,
                              .C = t->w.O,
                              .ldc = t->w.ldd,
                              .alpha = 1,
                              .add = true};
    int64_t n;
    g.B = rows_at(t, a->v, a->v_off, lo, hi, &n);
    if (n < hi - lo || t->rows > FEW) {
        for (int64_t p = lo; p < hi; p += n) {
            const real *v = rows_at(t, a->v, a->v_off, p, hi, &n);
            for (int64_t i = 0; i < n; i++)
                memcpy(t->w.v + (p + i - lo) * t->w.ldd, v + i * g.bk, (size_t)a->D * sizeof(real));
        }
        g.B = t->w.v, g.bk = t->w.ldd;
    }
    HL_OP(small_gemm)(&g, t->w.mm);
}

static const real lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/* S[c, c + VL), -infinity outside of [from, to). */
static inline vr seen(const real *S, int64_t c, int64_t from, int64_t to) {
    const vr x = v_load(S + c), lane = v_load(lanes);
    if (c >= from && c + VL <= to) return x;
    const vi mask = (vi)(lane >= (real)(from - c)) & (vi)(lane < (real)(to - c));
    return v_select(mask, x, v_set(-(real)INFINITY));
}

/* Row r against columns [from, to) of a tile, where other rows see [lo, hi): computes weights in place, rescales O and
 * sum. */
static void softmax(const struct tile *t, int64_t r, int64_t from, int64_t to, int64_t lo, int64_t hi) {
    real *S = t->w.S + r * t->w.ldk, *O = t->w.O + r * t->w.ldd;
    const int64_t first = from / VL * VL;
    vr most = v_set(t->w.max[r]), sum = {0};
    for (int64_t c = first; c < to; c += VL) most = v_max(seen(S, c, from, to), most);
    const real m = v_hmax(most);
    for (int64_t c = first; c < to; c += VL) {
        const vr e = v_exp(seen(S, c, from, to) - m);
        v_store(S + c, e);
        sum += e;
    }
    for (int64_t c = lo; c < min(first, hi); c++) S[c] = 0;
    for (int64_t c = max(lo, to); c < hi; c++) S[c] = 0;
    if (m != t->w.max[r]) {
        const real shrink = v_exp(v_set(t->w.max[r] - m))[0];
        int64_t c = 0;
        for (; c + VL <= t->a->D; c += VL) v_store(O + c, v_load(O + c) * shrink);
        for (; c < t->a->D; c++) O[c] *= shrink;
        t->w.sum[r] *= shrink;
        t->w.max[r] = m;
    }
    t->w.sum[r] += v_sum(sum);
}

/* A few rows are bound by memory: prefetch the keys and values of the next tile. */
static void prefetch(const struct tile *t, int64_t lo, int64_t hi) {
    const struct hl_attention *a = t->a;
    int64_t nk, nv;
    if (hi <= lo) return;
    const real *k = rows_at(t, a->k, a->k_off, lo, hi, &nk), *v = rows_at(t, a->v, a->v_off, lo, hi, &nv);
    for (int64_t i = 0; i < min(nk, nv); i++)
        for (int64_t c = 0; c < a->D; c += 64 / (int64_t)sizeof(real)) {
            __builtin_prefetch(k + i * a->HK * a->D + c);
            __builtin_prefetch(v + i * a->HK * a->D + c);
        }
}

static void key_tile(const struct tile *t, int64_t base) {
    const struct hl_attention *a = t->a;
    const int64_t lo = max(base, hl_attention_first(a, t->t)), hi = min(base + ATTENTION_KEYS, t->last + 1);
    if (t->rows <= FEW) prefetch(t, hi, min(hi + ATTENTION_KEYS, t->last + 1));
    scores(t, base, lo, hi);
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t p = query_of(t, r), from = max(lo, hl_attention_first(a, p)), to = max(from, min(hi, p + 1));
        softmax(t, r, from - base, to - base, lo - base, hi - base);
    }
    values(t, base, lo, hi);
}

/* ---- one task ---- */

static void finish(const struct tile *t) {
    const struct hl_attention *a = t->a;
    const struct hl_seg *s = &a->rows->seg[t->n];
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t at = (s->row + query_of(t, r) - s->pos) * a->H + t->head + r % t->heads;
        const real *O = t->w.O + r * t->w.ldd, inv = 1 / t->w.sum[r];
        real *out = (real *)a->out + at * a->D;
        for (int64_t c = 0; c < a->D; c++) out[c] = O[c] * inv;
        if (a->lse) a->lse[at] = t->w.max[r] + R_LOG(t->w.sum[r]);
    }
}

static void run_tile(const struct tile *t) {
    const struct hl_attention *a = t->a;
    const struct hl_seg *s = &a->rows->seg[t->n];
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t at = (s->row + query_of(t, r) - s->pos) * a->H + t->head + r % t->heads;
        memcpy(t->w.q + r * t->w.ldd, (const real *)a->q + at * a->D, (size_t)a->D * sizeof(real));
        memset(t->w.O + r * t->w.ldd, 0, (size_t)a->D * sizeof(real));
        t->w.max[r] = NOTHING;
        t->w.sum[r] = 0;
    }
    for (int64_t base = hl_attention_first(a, t->t) / ATTENTION_KEYS * ATTENTION_KEYS; base <= t->last;
         base += ATTENTION_KEYS)
        key_tile(t, base);
    finish(t);
}

struct job {
    const struct hl_attention *a;
    struct hl_pool *pool;
    int64_t heads, pieces; /* heads per tile; tiles per group of heads that share a key head */
};
static int64_t queries_of(const struct job *j) { return ATTENTION_ROWS / j->heads; }
static int64_t tasks_of(const struct job *j, int64_t n) {
    return hl_pieces(j->a->rows->seg[n].len, queries_of(j)) * j->a->HK * j->pieces;
}

/* The last queries of a segment come first, because they see the most keys. */
static void task(void *ctx, int64_t i, int worker) {
    const struct job *j = ctx;
    const struct hl_attention *a = j->a;
    const int64_t group = a->H / a->HK;
    struct tile t = {.a = a, .w = hl_attention_worker(j->pool, worker, a->D)};
    while (i >= tasks_of(j, t.n)) i -= tasks_of(j, t.n++);
    const struct hl_seg *s = &a->rows->seg[t.n];
    const int64_t piece = i % j->pieces, tile = hl_pieces(s->len, queries_of(j)) - 1 - i / j->pieces / a->HK;
    t.hk = i / j->pieces % a->HK;
    t.head = t.hk * group + piece * j->heads;
    t.heads = min(j->heads, group - piece * j->heads);
    t.t = s->pos + tile * queries_of(j);
    t.last = min(t.t + queries_of(j), s->pos + s->len) - 1;
    t.rows = (t.last - t.t + 1) * t.heads;
    run_tile(&t);
}

/* Appends this call's rows to the session; a ring keeps only the last ones. */
static void keep(void *ctx, int64_t n, int worker) {
    const struct hl_attention *a = ((const struct job *)ctx)->a;
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t width = a->HK * a->D, end = s->pos + s->len;
    (void)worker;
    if (!s->state) return;
    for (int64_t p = a->window ? max(s->pos, end - a->window) : s->pos; p < end; p++) {
        const int64_t at = (s->row + p - s->pos) * width;
        memcpy(state_row(a, n, p, a->k_off), (const real *)a->k + at, (size_t)width * sizeof(real));
        memcpy(state_row(a, n, p, a->v_off), (const real *)a->v + at, (size_t)width * sizeof(real));
    }
}

/* Small work is one task, so that no other thread is woken. */
struct all {
    struct job *j;
    hl_task task;
    int64_t n;
};
static void run_all(void *ctx, int64_t i, int worker) {
    const struct all *a = ctx;
    for (i = 0; i < a->n; i++) a->task(a->j, i, worker);
}
static void run(struct job *j, hl_task each, int64_t n, int64_t work) {
    if (work > SMALL) hl_pool_run(j->pool, n, each, j);
    else hl_pool_run(j->pool, 1, run_all, &(struct all){j, each, n});
}

void HL_OP(attention_forward)(struct hl_backend *backend, const struct hl_attention *a) {
    const int64_t group = a->H / a->HK;
    struct job j = {.a = a, .pool = hl_backend_pool(backend), .heads = min(group, ATTENTION_ROWS)};
    int64_t tasks = 0, work = 0;
    HL_ASSERT(a->H % a->HK == 0 && HL_PAGE_TOKENS % ATTENTION_KEYS == 0);
    j.pieces = hl_pieces(group, j.heads);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        const int64_t keys = s->pos + s->len;
        tasks += tasks_of(&j, n);
        work += s->len * (a->window ? min(keys, a->window) : keys) * a->H * a->D;
    }
    const int64_t kept = 2 * a->rows->T * a->HK * a->D;
    if (!a->window) run(&j, keep, a->rows->n, kept);
    run(&j, task, tasks, work);
    if (a->window) run(&j, keep, a->rows->n, kept); /* after the reads of what it overwrites */
}
