/* cache_case.h -- a random batch for the exact memory, the op run on it, and docs/math.md's
 * selection written down once more: no stream, no state, every block ranks all rows before it. */
#ifndef HL_CACHE_CASE_H
#define HL_CACHE_CASE_H
#include "check.h"
#include "backend/backend.h"

struct shape {
    int64_t window, chunk, H, HV, K, V;
    hola_evict evict;
};

static inline struct hl_policy policy_of(hola_evict evict) {
    const hola_config cfg = {.cache_evict = evict, .cache_sinks = 2};
    struct hl_policy p;
    assert_true(hl_policy_of(&p, &cfg));
    return p;
}

/* Everything the op reads and writes; `a` points into it. */
struct batch {
    struct shape s;
    struct hl_seg seg[8];
    struct hl_rows rows;
    int64_t T, blocks, nq, nv, ns; /* counts of q, of v, of sel */
    real *q, *k, *v, *score, *tau, *sink, *gate, *dout;
    real *out, *read, *lse, *dq, *dk, *dv, *dtau, *dsink, *dgate;
    int64_t *sel;
    struct hl_cache a;
};

static inline void batch_clear(struct batch *b) {
    check_poison(b->read, b->nv);
    check_poison(b->lse, b->T * b->s.HV);
    check_poison(b->dq, b->nq);
    check_poison(b->dk, b->nq);
    memset(b->sel, 0x5a, (size_t)b->ns * sizeof *b->sel);
    check_fill(b->out, b->nv, -1, 1, 91); /* out, dv and the scalars' gradients are added to */
    check_fill(b->dv, b->nv, -1, 1, 92);
    for (int64_t h = 0; h < b->s.HV; h++) b->dtau[h] = b->dsink[h] = b->dgate[h] = (real)(0.25 * (double)h);
}

/* A batch of n segments, all without a session. */
static inline struct batch *batch_new(struct shape s, const int64_t *len, int n, uint64_t seed) {
    struct batch *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->s = s;
    for (int i = 0; i < n; i++) {
        if (len[i] <= 0) continue;
        b->seg[b->rows.n++] = (struct hl_seg){.row = b->T, .len = len[i]};
        b->T += len[i];
    }
    b->rows.T = b->T;
    b->rows.seg = b->seg;
    b->blocks = hl_blocks_before(&b->rows, b->rows.n, s.chunk);
    b->nq = b->T * s.H * s.K, b->nv = b->T * s.HV * s.V, b->ns = b->blocks * s.HV * s.window;
    b->q = check_random(b->nq, -2, 2, seed + 1);
    b->k = check_random(b->nq, -2, 2, seed + 2);
    b->v = check_random(b->nv, -1, 1, seed + 3);
    b->score = check_random(b->T * s.HV, 0, 1, seed + 4);
    b->tau = check_random(s.HV, 0.5, 2, seed + 5);
    b->sink = check_random(s.HV, -1, 2, seed + 6);
    b->gate = check_random(s.HV, -2, 1, seed + 7);
    b->dout = check_random(b->nv, -1, 1, seed + 8);
    b->out = check_new(b->nv), b->read = check_new(b->nv), b->dv = check_new(b->nv);
    b->dq = check_new(b->nq), b->dk = check_new(b->nq);
    b->lse = check_new(b->T * s.HV);
    b->dtau = check_new(s.HV), b->dsink = check_new(s.HV), b->dgate = check_new(s.HV);
    b->sel = malloc((size_t)(b->ns + 1) * sizeof *b->sel);
    assert_non_null(b->sel);
    b->a = (struct hl_cache){.rows = &b->rows,
                             .H = s.H,
                             .HV = s.HV,
                             .K = s.K,
                             .V = s.V,
                             .window = s.window,
                             .chunk = s.chunk,
                             .policy = policy_of(s.evict),
                             .q = b->q,
                             .k = b->k,
                             .v = b->v,
                             .tau = b->tau,
                             .sink = b->sink,
                             .gate = b->gate,
                             .out = b->out,
                             .read = b->read,
                             .lse = b->lse,
                             .sel = b->sel,
                             .dout = b->dout,
                             .dq = b->dq,
                             .dk = b->dk,
                             .dv = b->dv,
                             .dtau = b->dtau,
                             .dsink = b->dsink,
                             .dgate = b->dgate};
    if (b->a.policy.score != HL_SCORE_NONE) b->a.score = b->score;
    batch_clear(b);
    return b;
}

/* Order by position alone: the first n rows of a segment are kept for ever. */
static inline struct batch *with_sinks(struct batch *b, int64_t n) {
    assert_true(b->a.policy.by_position);
    b->a.policy.sinks = n;
    return b;
}

static inline void batch_free(struct batch *b) {
    real *q[] = {b->q, b->k, b->dq, b->dk}, *v[] = {b->v, b->dout, b->out, b->read, b->dv};
    real *t[] = {b->score, b->lse}, *h[] = {b->tau, b->sink, b->gate, b->dtau, b->dsink, b->dgate};
    for (int i = 0; i < 4; i++) check_free(q[i], b->nq);
    for (int i = 0; i < 5; i++) check_free(v[i], b->nv);
    for (int i = 0; i < 2; i++) check_free(t[i], b->T * b->s.HV);
    for (int i = 0; i < 6; i++) check_free(h[i], b->s.HV);
    free(b->sel);
    free(b);
}

static inline void batch_run(struct batch *b, const char *backend, struct hl_backend *pool, bool backward) {
    const struct hl_ops *ops = hl_ops_named(backend);
    CHECK_OK(hl_backend_reserve(pool, hl_cache_scratch(b->s.K, b->s.V, b->s.window, b->s.chunk)));
    ops->cache_forward(pool, &b->a);
    if (backward) ops->cache_backward(pool, &b->a);
}

/* Outputs of two runs: same rows chosen, everything else within tol. */
static inline void batch_near(const struct batch *b, const struct batch *want, double tol, bool backward,
                              const char *who) {
    const struct shape *s = &b->s;
#define SAME(x, n, width, tol)                                                                           \
    CHECK_NEAR(b->x, want->x, n, width, tol, "%s evict %d sinks %d w %d C %d heads %d/%d K %d V %d " #x, \
               who, (int)s->evict, (int)b->a.policy.sinks, (int)s->window, (int)s->chunk, (int)s->H,     \
               (int)s->HV, (int)s->K, (int)s->V)
    assert_memory_equal(b->sel, want->sel, (size_t)b->ns * sizeof *b->sel);
    SAME(out, b->T, s->HV * s->V, tol);
    SAME(read, b->T, s->HV * s->V, tol);
    SAME(lse, b->T, s->HV, tol);
    if (!backward) return;
    SAME(dq, b->T, s->H * s->K, tol);
    SAME(dk, b->T, s->H * s->K, tol);
    SAME(dv, b->T, s->HV * s->V, tol);
    /* sums over all rows of terms of both signs */
    SAME(dtau, 1, s->HV, 10 * tol);
    SAME(dsink, 1, s->HV, 10 * tol);
    SAME(dgate, 1, s->HV, 10 * tol);
#undef SAME
}

/* ---- the definition ---- */

enum wrong { RIGHT, SEES_BLOCK, LATER_TIES, NO_SINK, LATEST, DROPS_KEPT, FORGETS_FIRST, ONE_FIRST_MORE };

/* The rows that the block beginning at row `first` of segment g keeps of those before it. */
static inline int64_t plain_keep(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t first,
                                 int64_t *keep, enum wrong wrong) {
    int64_t n = 0, until = wrong == SEES_BLOCK && first + b->s.chunk < g->len ? first + b->s.chunk : first;
    bool latest = b->a.policy.by_position || wrong == LATEST;
    int64_t sinks = wrong == FORGETS_FIRST ? 0 : b->a.policy.sinks + (wrong == ONE_FIRST_MORE);
    for (int64_t j = 0; j < until; j++) {
        int64_t better = 0;
        for (int64_t i = 0; i < until; i++) {
            real x = b->score[(g->row + i) * b->s.HV + h], y = b->score[(g->row + j) * b->s.HV + h];
            if (latest) x = i < sinks ? INFINITY : (real)i, y = j < sinks ? INFINITY : (real)j;
            better += x > y || (x == y && (wrong == LATER_TIES ? i > j : i < j));
        }
        if (better < b->s.window) keep[n++] = j;
    }
    return n;
}

static inline double plain_score(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t t,
                                 int64_t j) {
    const struct shape *s = &b->s;
    const real *q = b->q + ((g->row + t) * s->H + h * s->H / s->HV) * s->K;
    const real *k = b->k + ((g->row + j) * s->H + h * s->H / s->HV) * s->K;
    double z = 0;
    for (int64_t i = 0; i < s->K; i++) z += (double)q[i] * (double)k[i];
    return (double)b->tau[h] * z / sqrt((double)s->K);
}

/* out and dv of the whole batch (not h2o), added to what they hold. */
static inline void plain_run(const struct batch *b, real *out, real *dv, enum wrong wrong) {
    const struct shape *s = &b->s;
    int64_t *J = malloc((size_t)(b->T + s->window + s->chunk) * sizeof *J);
    double *p = malloc((size_t)(b->T + s->window + s->chunk) * sizeof *p);
    assert_true(J && p);
    for (const struct hl_seg *g = b->seg; g < b->seg + b->rows.n; g++)
        for (int64_t h = 0; h < s->HV; h++) {
            int64_t kept = 0;
            for (int64_t t = 0; t < g->len; t++) {
                int64_t first = t / s->chunk * s->chunk, n, at = (g->row + t) * s->HV + h;
                double sum = wrong == NO_SINK ? 0 : exp((double)b->sink[h]),
                       lam = 1 / (1 + exp(-(double)b->gate[h]));
                if (t == first) kept = plain_keep(b, g, h, first, J, wrong);
                n = kept;
                for (int64_t j = first; j <= t; j++) J[n++] = j;
                for (int64_t j = 0; j < n; j++) sum += p[j] = exp(plain_score(b, g, h, t, J[j]));
                for (int64_t j = 0; j < n; j++)
                    for (int64_t i = 0; i < s->V; i++) {
                        int64_t from = ((g->row + J[j]) * s->HV + h) * s->V + i;
                        out[at * s->V + i] += (real)(lam * p[j] / sum * (double)b->v[from]);
                        if (wrong == DROPS_KEPT && j < kept) continue;
                        if (dv) dv[from] += (real)(lam * p[j] / sum * (double)b->dout[at * s->V + i]);
                    }
            }
        }
    free(J);
    free(p);
}

#endif
