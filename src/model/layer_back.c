/* layer_back.c -- the backward pass of a layer: the steps of layer.c, last to first. */
#include "model/layer_ops.h"

static void join_backward(const struct layer *l, int64_t w, const void *x, int64_t K, void *dx) {
    struct hl_linear a = {.M = l->T, .K = K, .x = x, .dx = dx};
    part(l, &a, w, NULL, l->d->dx);
    l->backend->ops.linear_backward(l->backend, &a);
}

static void mlp_backward(const struct layer *l) {
    struct hl_swiglu act = swiglu(l);
    struct hl_linear up = mlp_in(l);
    struct hl_rmsnorm n = mlp_norm(l);
    join_backward(l, l->p->down_proj, l->a->act, l->s.I, l->d->dact);
    l->backend->ops.swiglu_backward(l->backend, &act);
    l->backend->ops.linear_backward(l->backend, &up);
    l->backend->ops.rmsnorm_backward(l->backend, &n);
}

/* From dout to dq, dk, dv and, of the exact memory's read, dqt and dkt. */
static void remember_backward(const struct layer *l) {
    struct hl_gdn r = delta_rule(l);
    struct hl_gate g = gates(l);
    l->backend->ops.gdn_backward(l->backend, &r); /* writes dq, dk, dv; the cache adds to dv */
    if (l->s.cache) {
        struct hl_cache c = exact_memory(l);
        l->backend->ops.cache_backward(l->backend, &c);
    }
    l->backend->ops.gate_backward(l->backend, &g);
}

static void norms_backward(const struct layer *l, bool query) {
    struct hl_l2norm n = state_norm(l, query);
    struct hl_rmsnorm c = read_norm(l, query);
    if (l->s.rms && l->backend->ops.twonorm_backward) {
        {
            const struct hl_twonorm both = {&n, &c};
            l->backend->ops.twonorm_backward(l->backend, &both);
        }
        return;
    }
    l->backend->ops.l2norm_backward(l->backend, &n);
    if (l->s.rms) {
        l->backend->ops.rmsnorm_backward(l->backend, &c);
    } else if (l->s.cache) { /* the flat read shares the state's q and k */
        n.dy = query ? l->d->dqt : l->d->dkt;
        n.dx_add = true;
        l->backend->ops.l2norm_backward(l->backend, &n);
    }
}

static void prepare_backward(const struct layer *l) {
    for (int i = 0; i < 2; i++) {
        struct hl_conv c = conv(l, i == 0 ? 'q' : 'k');
        if (in_one(l)) {
            struct hl_l2norm n = state_norm(l, i == 0);
            struct hl_rmsnorm r = read_norm(l, i == 0);
            {
                const struct hl_convnorm all = {&c, &n, l->s.rms ? &r : NULL};
                l->backend->ops.convnorm_backward(l->backend, &all);
            }
            continue;
        }
        norms_backward(l, i == 0);
        l->backend->ops.conv_backward(l->backend, &c);
    }
    struct hl_conv v = conv(l, 'v');
    l->backend->ops.conv_backward(l->backend, &v);
}

void hl_layer_backward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, int64_t index,
                       real *grads) {
    const struct layer l = open_layer(m, acts, rows, index, grads);
    struct hl_rmsnorm n1 = attn_norm(&l), n2 = out_norm(&l);
    struct hl_linear in = projections(&l);

    if (acts->recompute) hl_layer_recompute(&l);
    mlp_backward(&l);
    join_backward(&l, l.p->o_proj, l.a->y, l.s.vv, l.d->dy);
    l.backend->ops.rmsnorm_backward(l.backend, &n2);
    remember_backward(&l);
    prepare_backward(&l);
    l.backend->ops.linear_backward(l.backend, &in);
    l.backend->ops.rmsnorm_backward(l.backend, &n1);
}
