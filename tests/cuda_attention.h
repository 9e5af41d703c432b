/* cuda_attention.h -- a batch of attention_case.h on the device, by itself and as sessions in pieces. */
#ifndef HL_CUDA_ATTENTION_H
#define HL_CUDA_ATTENTION_H
#include "cuda.h"
#include "attention_case.h"

/* A case whose activations the device can hold exactly. */
static inline struct attention_case *dev_case(const struct dev *d, const struct attention_shape *f, const int64_t *len,
                                              int64_t n, uint64_t seed) {
    struct attention_case *c = case_new(f, len, n, seed);
    dev_round(d, (real *)c->a.q, c->q);
    dev_round(d, (real *)c->a.k, c->kv);
    dev_round(d, (real *)c->a.v, c->kv);
    dev_round(d, (real *)c->a.dout, c->q);
    return c;
}

/* Inputs and outputs on the device. q, k and v are three arrays, or parts of one with joint rows (ld). */
struct dev_attention {
    struct hl_attention a;
    struct hl_rows rows;
    struct hl_seg seg[CASE_SEGS];
    char *joint, *djoint; /* NULL: three arrays */
};
/* [T][q | k | v], some numbers of nobody behind */
static inline real *joint_rows(const struct attention_case *c, const void *q, const void *k, const void *v,
                               int64_t ld) {
    const int64_t H = c->a.H * c->a.D, HK = c->a.HK * c->a.D;
    real *x = check_new(c->T * ld);
    for (int64_t t = 0; t < c->T; t++) {
        memcpy(x + t * ld, (const real *)q + t * H, (size_t)H * sizeof(real));
        memcpy(x + t * ld + H, (const real *)k + t * HK, (size_t)HK * sizeof(real));
        memcpy(x + t * ld + H + HK, (const real *)v + t * HK, (size_t)HK * sizeof(real));
    }
    return x;
}
static inline int64_t joint_ld(const struct attention_case *c) { return (c->a.H + 2 * c->a.HK) * c->a.D + 8; }

static inline void dev_attention_open(const struct dev *d, struct dev_attention *x, const struct attention_case *c,
                                      bool joint) {
    const int64_t H = c->a.H * c->a.D, HK = c->a.HK * c->a.D, act = d->backend->act_size, ld = joint_ld(c);
    *x = (struct dev_attention){.a = c->a, .rows = c->rows};
    memcpy(x->seg, c->seg, sizeof x->seg);
    x->rows.seg = x->seg, x->rows.tiled = true;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &x->rows, 64));
    x->a.rows = &x->rows;
    x->a.out = dev_act(d, NULL, c->q);
    x->a.lse = dev_real(d, NULL, c->T * c->a.H);
    x->a.dout = dev_act(d, c->a.dout, c->q);
    if (joint) {
        real *all = joint_rows(c, c->a.q, c->a.k, c->a.v, ld);
        x->joint = dev_act(d, all, c->T * ld);
        x->djoint = dev_act(d, NULL, c->T * ld);
        check_free(all, c->T * ld);
        x->a.ld = ld;
        x->a.q = x->joint, x->a.k = x->joint + H * act, x->a.v = x->joint + (H + HK) * act;
        x->a.dq = x->djoint, x->a.dk = x->djoint + H * act, x->a.dv = x->djoint + (H + HK) * act;
        return;
    }
    x->a.q = dev_act(d, c->a.q, c->q), x->a.k = dev_act(d, c->a.k, c->kv), x->a.v = dev_act(d, c->a.v, c->kv);
    x->a.dq = dev_act(d, NULL, c->q), x->a.dk = dev_act(d, NULL, c->kv), x->a.dv = dev_act(d, NULL, c->kv);
}
/* Copies the results to the host and frees everything on the device. */
static inline void dev_attention_close(const struct dev *d, struct dev_attention *x, const struct attention_case *c,
                                       struct attention_result *r) {
    const int64_t H = c->a.H * c->a.D, HK = c->a.HK * c->a.D, ld = joint_ld(c);
    dev_act_take(d, x->a.out, r->out, c->q);
    dev_real_take(d, x->a.lse, r->lse, c->T * c->a.H);
    dev_drop(d, x->a.dout);
    if (x->joint) {
        real *all = check_new(c->T * ld);
        dev_act_take(d, x->djoint, all, c->T * ld);
        dev_drop(d, x->joint);
        for (int64_t t = 0; t < c->T; t++) {
            memcpy(r->dq + t * H, all + t * ld, (size_t)H * sizeof(real));
            memcpy(r->dk + t * HK, all + t * ld + H, (size_t)HK * sizeof(real));
            memcpy(r->dv + t * HK, all + t * ld + H + HK, (size_t)HK * sizeof(real));
        }
        check_free(all, c->T * ld);
        return;
    }
    dev_act_take(d, x->a.dq, r->dq, c->q);
    dev_act_take(d, x->a.dk, r->dk, c->kv);
    dev_act_take(d, x->a.dv, r->dv, c->kv);
    dev_drop(d, x->a.q), dev_drop(d, x->a.k), dev_drop(d, x->a.v);
}
static inline void dev_training(const struct dev *d, const struct attention_case *c, struct attention_result *r,
                                bool joint, bool backward) {
    struct dev_attention x;
    dev_attention_open(d, &x, c, joint);
    d->ops->attention_forward(d->backend, &x.a);
    if (backward) d->ops->attention_backward(d->backend, &x.a);
    dev_attention_close(d, &x, c, r);
}

/* run_sessions of attention_case.h on the device. */
static inline void dev_sessions(const struct dev *d, const struct attention_case *c, struct attention_result *r,
                                int64_t first, int64_t each) {
    const int64_t act = d->backend->act_size, width = c->a.HK * c->a.D, off = 32 * act,
                  kept = (c->a.window ? c->a.window : HL_PAGE_TOKENS) * width;
    char *ring[CASE_SEGS], **page[CASE_SEGS];
    int64_t done[CASE_SEGS] = {0};
    struct dev_attention x;
    dev_attention_open(d, &x, c, false);
    for (int64_t s = 0; s < c->rows.n; s++) {
        const int64_t pages = c->a.window ? 0 : hl_pieces(c->seg[s].len, HL_PAGE_TOKENS);
        ring[s] = dev_act(d, NULL, 32 + 2 * kept);
        page[s] = calloc((size_t)pages + 1, sizeof **page);
        for (int64_t i = 0; i < pages; i++) page[s][i] = dev_act(d, NULL, 32 + 2 * kept);
    }
    for (;;) {
        struct hl_seg seg[CASE_SEGS];
        char *const *pages[CASE_SEGS];
        int64_t n = 0;
        for (int64_t s = 0; s < c->rows.n; s++) {
            const int64_t left = c->seg[s].len - done[s], want = done[s] == 0 ? first : each;
            if (left == 0) continue;
            seg[n] = (struct hl_seg){
                .row = c->seg[s].row + done[s], .len = left < want ? left : want, .pos = done[s], .state = ring[s]};
            done[s] += seg[n].len;
            pages[n++] = page[s];
        }
        if (n == 0) break;
        struct hl_rows rows = {.T = c->T, .n = n, .seg = seg, .tiled = true, .pages = pages};
        struct hl_attention a = x.a;
        CHECK_OK(d->backend->storage.cut_rows(d->backend, &rows, 64));
        a.rows = &rows, a.lse = NULL, a.k_off = off, a.v_off = off + kept * act;
        d->ops->attention_forward(d->backend, &a);
        CHECK_OK(hl_finish(d->backend));
    }
    for (int64_t s = 0; s < c->rows.n; s++) {
        dev_drop(d, ring[s]);
        for (char **p = page[s]; *p; p++) dev_drop(d, *p);
        free(page[s]);
    }
    dev_attention_close(d, &x, c, r);
}

#endif
