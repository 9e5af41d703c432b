/* cuda_kda.h -- a batch of recurrence_case.h for KDA on the device. */
#ifndef HL_CUDA_KDA_H
#define HL_CUDA_KDA_H
#include "cuda.h"
#include "recurrence_case.h"

static inline bool kda_is_act(const char *name) {
    static const char *const acts[] = {"q", "k", "v", "out", "v_new", "A", "dout", "dq", "dk", "dv"};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i], name)) return true;
    return false;
}
/* A case whose activations the device can hold exactly. */
static inline struct pw *kda_case(const struct dev *d, const struct rc_shape *f, const int64_t *len, int64_t n,
                                  bool session) {
    struct pw *c = calloc(1, sizeof *c);
    assert_non_null(c);
    rc_rows(c, len, n);
    kda_build(c, f, session);
    for (int i = 0; i < c->n; i++)
        if (kda_is_act(c->v[i].name) && !c->v[i].out) dev_round(d, c->v[i].p, c->v[i].rows * c->v[i].width);
    return c;
}
static inline void kda_drop(struct pw *c) {
    pw_free(c);
    free(c);
}

/* The case on the device: its arguments, and where each of its arrays is. */
struct dev_kda {
    struct hl_kda a;
    struct hl_rows rows;
    struct hl_seg seg[MAX_SEGS];
    void *p[MAX_ARRAYS];
    void *tiles; /* what the forward pass keeps beside its arrays; NULL: nothing */
};
static inline void *kda_at(const struct pw *c, const struct dev_kda *x, const void *host) {
    for (int i = 0; i < c->n; i++)
        if (c->v[i].p == host) return x->p[i];
    return NULL;
}
/* keep: as in training; h stays on the host, a device has none */
static inline void dev_kda_open(const struct dev *d, struct dev_kda *x, const struct pw *c, bool keep) {
    const struct hl_kda *a = &c->op.kda;
    x->a = *a, x->rows = c->rows;
    for (int i = 0; i < c->n; i++) {
        const struct array *v = &c->v[i];
        const real *from = v->out && strcmp(v->name, "S") ? NULL : v->p;
        x->p[i] = kda_is_act(v->name) ? dev_act(d, from, v->rows * v->width) : dev_real(d, from, v->rows * v->width);
        if (!strcmp(v->name, "S"))
            for (int64_t s = 0; s < c->rows.n; s++)
                x->seg[s].state = (char *)((real *)x->p[i] + s * v->width) - a->S_off;
    }
    for (int64_t s = 0; s < c->rows.n; s++) {
        char *state = c->seg[s].state ? x->seg[s].state : NULL;
        x->seg[s] = c->seg[s], x->seg[s].state = state;
    }
    x->rows.seg = x->seg;
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &x->rows, 64));
    x->a.rows = &x->rows, x->a.h = NULL;
    const int64_t kept = keep && d->backend->kda_kept ? d->backend->kda_kept(d->backend, a->K, a->V) : 0;
    x->a.tiles = x->tiles = kept ? hl_alloc(d->backend, x->rows.dev->chunks * a->HV * kept) : NULL;
    x->a.q = kda_at(c, x, a->q), x->a.k = kda_at(c, x, a->k), x->a.v = kda_at(c, x, a->v);
    x->a.g = kda_at(c, x, a->g), x->a.beta = kda_at(c, x, a->beta);
    x->a.out = kda_at(c, x, a->out), x->a.m = kda_at(c, x, a->m);
    x->a.v_new = keep ? kda_at(c, x, a->v_new) : NULL, x->a.A = keep ? kda_at(c, x, a->A) : NULL;
    x->a.dout = kda_at(c, x, a->dout), x->a.dq = kda_at(c, x, a->dq), x->a.dk = kda_at(c, x, a->dk);
    x->a.dv = kda_at(c, x, a->dv), x->a.dg = kda_at(c, x, a->dg), x->a.dbeta = kda_at(c, x, a->dbeta);
}
/* All arrays back to the case's own. */
static inline void dev_kda_close(const struct dev *d, struct dev_kda *x, struct pw *c) {
    hl_release(d->backend, x->tiles);
    for (int i = 0; i < c->n; i++) {
        const int64_t n = c->v[i].rows * c->v[i].width;
        if (kda_is_act(c->v[i].name)) dev_act_take(d, x->p[i], c->v[i].p, n);
        else dev_real_take(d, x->p[i], c->v[i].p, n);
    }
}
static inline const char *dev_kda_form(const struct dev *d, const struct hl_kda *a) {
    return (d->f32 ? hl_cuda_f32_kda_form : hl_cuda_kda_form)(d->backend, a);
}

#endif
