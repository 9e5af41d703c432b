/* lte_case.h -- a random batch for the learned score, and the op run on it. */
#ifndef HL_LTE_CASE_H
#define HL_LTE_CASE_H
#include "check.h"
#include "backend/backend.h"

struct lte_shape {
    int64_t window, chunk, H, HV, K, V, r;
};
/* Everything the op reads and writes; `a` points into it. */
struct lte_batch {
    struct lte_shape s;
    struct hl_seg seg[8];
    struct hl_rows rows;
    int64_t T, nk, nv, ns, nw, nr; /* counts of k, v, scores, W_in, HV r */
    struct hl_lte a;
    real *k, *v, *weight[7], *grad[7], *u, *score, *dscore, *dk, *dv;
};
enum { LTE_IN, LTE_CONV1, LTE_CONV2, LTE_BIAS1, LTE_BIAS2, LTE_OUT, LTE_BIAS_OUT, LTE_WEIGHTS };
static const char *const lte_names[] = {"in", "conv1", "conv2", "bias1", "bias2", "out", "bias_out"};

static inline int64_t lte_count(const struct lte_batch *b, int i) {
    return i == LTE_IN ? b->nw : i <= LTE_CONV2 ? 3 * b->nr : i == LTE_BIAS_OUT ? b->s.HV : b->nr;
}
static inline void lte_clear(struct lte_batch *b) {
    check_poison(b->score, b->ns);
    check_poison(b->u, b->T * b->nr);
    check_fill(b->dk, b->nk, -1, 1, 81); /* what is added to */
    check_fill(b->dv, b->nv, -1, 1, 82);
    for (int i = 0; i < LTE_WEIGHTS; i++) check_fill(b->grad[i], lte_count(b, i), -1, 1, 83 + (uint64_t)i);
}
static inline struct lte_batch *lte_new(struct lte_shape s, const int64_t *len, int n, uint64_t seed) {
    struct lte_batch *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->s = s;
    for (int i = 0; i < n; i++) {
        b->seg[i] = (struct hl_seg){.row = b->T, .len = len[i]};
        b->T += len[i];
    }
    b->rows = (struct hl_rows){.T = b->T, .n = n, .seg = b->seg};
    b->nk = b->T * s.H * s.K, b->nv = b->T * s.HV * s.V, b->ns = b->T * s.HV;
    b->nw = s.HV * s.r * (s.K + s.V), b->nr = s.HV * s.r;
    b->k = check_random(b->nk, -2, 2, seed + 1), b->v = check_random(b->nv, -2, 2, seed + 2);
    for (int i = 0; i < LTE_WEIGHTS; i++) {
        const double most = i == LTE_IN ? sqrt(3.0 / (double)(s.K + s.V)) : 1;
        b->weight[i] = check_random(lte_count(b, i), -most, most, seed + 3 + (uint64_t)i);
        b->grad[i] = check_new(lte_count(b, i));
    }
    b->u = check_new(b->T * b->nr), b->score = check_new(b->ns), b->dscore = check_random(b->ns, -1, 1, seed + 20);
    b->dk = check_new(b->nk), b->dv = check_new(b->nv);
    b->a = (struct hl_lte){.rows = &b->rows,
                           .H = s.H,
                           .HV = s.HV,
                           .K = s.K,
                           .V = s.V,
                           .r = s.r,
                           .window = s.window,
                           .chunk = s.chunk,
                           .eps = (real)1e-5,
                           .k = b->k,
                           .v = b->v,
                           .w_in = b->weight[LTE_IN],
                           .conv1 = b->weight[LTE_CONV1],
                           .conv2 = b->weight[LTE_CONV2],
                           .bias1 = b->weight[LTE_BIAS1],
                           .bias2 = b->weight[LTE_BIAS2],
                           .w_out = b->weight[LTE_OUT],
                           .b_out = b->weight[LTE_BIAS_OUT],
                           .u = b->u,
                           .score = b->score,
                           .dscore = b->dscore,
                           .dk = b->dk,
                           .dv = b->dv,
                           .dw_in = b->grad[LTE_IN],
                           .dconv1 = b->grad[LTE_CONV1],
                           .dconv2 = b->grad[LTE_CONV2],
                           .dbias1 = b->grad[LTE_BIAS1],
                           .dbias2 = b->grad[LTE_BIAS2],
                           .dw_out = b->grad[LTE_OUT],
                           .db_out = b->grad[LTE_BIAS_OUT]};
    lte_clear(b);
    return b;
}
static inline void lte_free(struct lte_batch *b) {
    check_free(b->k, b->nk), check_free(b->dk, b->nk), check_free(b->v, b->nv), check_free(b->dv, b->nv);
    for (int i = 0; i < LTE_WEIGHTS; i++)
        check_free(b->weight[i], lte_count(b, i)), check_free(b->grad[i], lte_count(b, i));
    check_free(b->u, b->T * b->nr), check_free(b->score, b->ns), check_free(b->dscore, b->ns);
    free(b);
}
static inline void lte_run(struct lte_batch *b, const char *backend, struct hl_backend *pool, bool backward) {
    const struct hl_ops *ops = hl_ops_named(backend);
    CHECK_OK(hl_backend_reserve(pool, hl_lte_scratch(b->s.chunk, b->s.r, b->s.K, b->s.V)));
    ops->lte_forward(pool, &b->a);
    if (backward) ops->lte_backward(pool, &b->a);
}
static inline void lte_near(const struct lte_batch *b, const struct lte_batch *want, double tol, const char *who) {
    const struct lte_shape *s = &b->s;
#define LTE_SAME(x, n, width, what)                                                                                  \
    CHECK_NEAR(b->x, want->x, n, width, tol, "%s C %d heads %d/%d K %d V %d r %d %s", who, (int)s->chunk, (int)s->H, \
               (int)s->HV, (int)s->K, (int)s->V, (int)s->r, what)
    LTE_SAME(score, b->T, s->HV, "score");
    LTE_SAME(dk, b->T, s->H * s->K, "dk");
    LTE_SAME(dv, b->T, s->HV * s->V, "dv");
    for (int i = 0; i < LTE_WEIGHTS; i++) LTE_SAME(grad[i], 1, lte_count(b, i), lte_names[i]);
#undef LTE_SAME
}

#endif
