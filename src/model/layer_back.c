/* layer_back.c -- the backward pass of a layer: the steps of layer.c, last to first. */
#include "model/layer_ops.h"

static void join_backward(const struct layer *l, int64_t w, const void *x, int64_t K, void *dx) {
    struct hl_linear a = {.M = l->T, .K = K, .x = x, .dx = dx};
    part(l, &a, w, NULL, l->d->dx);
    l->ops->linear_backward(l->pool, &a);
}

static void mlp_backward(const struct layer *l) {
    struct hl_swiglu act = swiglu(l);
    struct hl_linear up = mlp_in(l);
    struct hl_rmsnorm n = mlp_norm(l);
    join_backward(l, l->p->down_proj, l->a->act, l->s.I, l->d->dact);
    l->ops->swiglu_backward(l->pool, &act);
    l->ops->linear_backward(l->pool, &up);
    l->ops->rmsnorm_backward(l->pool, &n);
}

/* From dout to dq, dk, dv and, of the exact memory's read, dqt and dkt. */
static void remember_backward(const struct layer *l) {
    struct hl_gdn r = delta_rule(l);
    struct hl_gate g = gates(l);
    l->ops->gdn_backward(l->pool, &r); /* writes dq, dk, dv; the cache adds to dv */
    if (l->s.cache) {
        struct hl_cache c = exact_memory(l);
        l->ops->cache_backward(l->pool, &c);
    }
    l->ops->gate_backward(l->pool, &g);
}

static void norms_backward(const struct layer *l, bool query) {
    struct hl_l2norm n = state_norm(l, query);
    struct hl_rmsnorm c = read_norm(l, query);
    if (l->s.rms && l->ops->twonorm_backward) {
        l->ops->twonorm_backward(l->pool, &n, &c);
        return;
    }
    l->ops->l2norm_backward(l->pool, &n);
    if (l->s.rms) {
        l->ops->rmsnorm_backward(l->pool, &c);
    } else if (l->s.cache) { /* the flat read shares the state's q and k */
        n.dy = query ? l->d->dqt : l->d->dkt;
        n.dx_add = true;
        l->ops->l2norm_backward(l->pool, &n);
    }
}

static void prepare_backward(const struct layer *l) {
    for (int i = 0; i < 2; i++) {
        struct hl_conv c = conv(l, i == 0 ? 'q' : 'k');
        if (in_one(l)) {
            struct hl_l2norm n = state_norm(l, i == 0);
            struct hl_rmsnorm r = read_norm(l, i == 0);
            l->ops->convnorm_backward(l->pool, &c, &n, l->s.rms ? &r : NULL);
            continue;
        }
        norms_backward(l, i == 0);
        l->ops->conv_backward(l->pool, &c);
    }
    struct hl_conv v = conv(l, 'v');
    l->ops->conv_backward(l->pool, &v);
}

void hl_layer_backward(hola_model *m, struct hl_acts *acts, const struct hl_rows *rows, int64_t index,
                       real *grads) {
    const struct layer l = open_layer(m, acts, rows, index, grads);
    struct hl_rmsnorm n1 = attn_norm(&l), n2 = out_norm(&l);
    struct hl_linear in = projections(&l);

    if (acts->recompute) hl_layer_recompute(&l);
    mlp_backward(&l);
    join_backward(&l, l.p->o_proj, l.a->y, l.s.vv, l.d->dy);
    l.ops->rmsnorm_backward(l.pool, &n2);
    remember_backward(&l);
    prepare_backward(&l);
    l.ops->linear_backward(l.pool, &in);
    l.ops->rmsnorm_backward(l.pool, &n1);
}
