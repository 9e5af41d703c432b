/* cuda_gdn.h -- a batch of gdn_case.h on the device. */
#ifndef HL_CUDA_GDN_H
#define HL_CUDA_GDN_H
#include "cuda.h"
#include "gdn_case.h"

/* A case whose activations the device can hold exactly. */
static inline struct gdn_case *dev_case(const struct dev *d, const struct gdn_shape *f, const int64_t *len, int64_t n,
                                        uint64_t seed) {
    struct gdn_case *c = case_new(f, len, n, seed);
    dev_round(d, (real *)c->a.q, c->qk);
    dev_round(d, (real *)c->a.k, c->qk);
    dev_round(d, (real *)c->a.v, c->v);
    dev_round(d, (real *)c->a.dout, c->v);
    return c;
}

/* Inputs and outputs on the device; S: the segments' states, NULL where they start empty and are
 * forgotten. */
struct dev_gdn {
    struct hl_gdn a;
    struct hl_rows rows;
    struct hl_seg seg[CASE_SEGS];
    real *S;
};

static inline void dev_gdn_open(const struct dev *d, struct dev_gdn *x, const struct gdn_case *c, const real *S,
                                bool keep) {
    x->a = c->a, x->rows = c->rows;
    x->S = S ? dev_real(d, S, c->rows.n * c->S) : NULL;
    for (int64_t s = 0; s < c->rows.n; s++) {
        x->seg[s] = c->seg[s];
        if (S) x->seg[s].state = (char *)(x->S + s * c->S) - 32; /* S_off is not zero */
    }
    x->rows.seg = x->seg;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &x->rows, 64));
    x->a.rows = &x->rows;
    x->a.S_off = 32;
    x->a.q = dev_act(d, c->a.q, c->qk);
    x->a.k = dev_act(d, c->a.k, c->qk);
    x->a.v = dev_act(d, c->a.v, c->v);
    x->a.g = c->a.g ? dev_real(d, c->a.g, c->b) : NULL;
    x->a.beta = dev_real(d, c->a.beta, c->b);
    x->a.out = dev_act(d, NULL, c->v);
    x->a.m = dev_real(d, NULL, c->b);
    x->a.v_new = keep ? dev_act(d, NULL, c->v) : NULL;
    x->a.A = keep ? dev_act(d, NULL, c->b * HL_CHUNK) : NULL;
}

/* Copies the results to the host and frees everything on the device. */
static inline void dev_gdn_close(const struct dev *d, struct dev_gdn *x, const struct gdn_case *c,
                                 struct gdn_result *r) {
    dev_act_take(d, x->a.out, r->out, c->v);
    dev_real_take(d, x->a.m, r->m, c->b);
    if (x->S) dev_real_take(d, x->S, r->S, c->rows.n * c->S);
    if (x->a.v_new) dev_act_take(d, x->a.v_new, r->v_new, c->v);
    if (x->a.A) dev_act_take(d, x->a.A, r->A, c->b * HL_CHUNK);
    dev_drop(d, x->a.q);
    dev_drop(d, x->a.k);
    dev_drop(d, x->a.v);
    if (x->a.g) dev_drop(d, x->a.g);
    dev_drop(d, x->a.beta);
}

/* The name of the kernels used for these arguments. */
static inline const char *dev_gdn_form(const struct dev *d, const struct hl_gdn *a, bool backward) {
    return (d->f32 ? hl_cuda_f32_gdn_form : hl_cuda_gdn_form)(d->backend, a, backward).name;
}

/* One forward pass. session: states are read from r->S and written there. */
static inline void dev_gdn_forward(const struct dev *d, const struct gdn_case *c, struct gdn_result *r, bool session,
                                   bool keep) {
    struct dev_gdn x;
    dev_gdn_open(d, &x, c, session ? r->S : NULL, keep);
    d->ops->gdn_forward(d->backend, &x.a);
    dev_gdn_close(d, &x, c, r);
}

#endif
