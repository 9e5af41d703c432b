/* layer.c -- one layer, in the paper's order: norm, projections, convolution, gates, delta rule, exact
 * memory, output norm, projection, SwiGLU. Training, prefill and decoding all come through here; what
 * differs is in the rows (segments with or without a state) and in which buffers are kept. */
#include "model/layer_ops.h"

/* Convolutions and norms: everything between the projections and the two memories. */
static void prepare(const struct layer *l) {
    const struct hl_ops *ops = &l->backend->ops;
    for (int i = 0; i < 2; i++) {
        struct hl_conv c = conv(l, i == 0 ? 'q' : 'k');
        struct hl_l2norm n = state_norm(l, i == 0);
        struct hl_rmsnorm r = read_norm(l, i == 0);
        if (in_one(l)) {
            {
                const struct hl_convnorm all = {&c, &n, l->s.rms ? &r : NULL};
                ops->convnorm_forward(l->backend, &all);
            }
            continue;
        }
        ops->conv_forward(l->backend, &c);
        if (l->s.rms && ops->twonorm_forward) {
            {
                const struct hl_twonorm both = {&n, &r};
                ops->twonorm_forward(l->backend, &both);
            }
            continue;
        }
        ops->l2norm_forward(l->backend, &n);
        if (l->s.rms) ops->rmsnorm_forward(l->backend, &r);
    }
    struct hl_conv v = conv(l, 'v');
    ops->conv_forward(l->backend, &v);
}

static void remember(const struct layer *l) {
    struct hl_gate g = gates(l);
    struct hl_gdn r = delta_rule(l);
    l->backend->ops.gate_forward(l->backend, &g);
    l->backend->ops.gdn_forward(l->backend, &r);
    if (l->s.cache) {
        struct hl_score score = {.T = l->T,
                                 .HV = l->s.HV,
                                 .V = l->s.V,
                                 .m = l->a->m,
                                 .beta = l->a->beta,
                                 .v = l->a->v1,
                                 .score = l->a->score};
        struct hl_cache c = exact_memory(l);
        score.policy = c.policy;
        if (score.policy.score != HL_SCORE_WRITE)
            l->backend->ops.cache_score(l->backend, &score); /* that is m itself */
        l->backend->ops.cache_forward(l->backend, &c);
    }
}

/* out = in + x W^T: the branch joins the residual stream */
static void join(const struct layer *l, int64_t w, const void *x, int64_t K, const void *in, void *out) {
    struct hl_linear a = {.M = l->T, .K = K, .x = x};
    part(l, &a, w, out, NULL);
    a.part[0].from = in;
    l->backend->ops.linear_forward(l->backend, &a);
}

void hl_layer_forward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, int64_t index,
                      void *out) {
    const struct layer l = open_layer(m, acts, rows, index, NULL);
    struct hl_rmsnorm n1 = attn_norm(&l), n2 = out_norm(&l), n3 = mlp_norm(&l);
    struct hl_linear in = projections(&l), up = mlp_in(&l);
    struct hl_swiglu act = swiglu(&l);

    l.backend->ops.rmsnorm_forward(l.backend, &n1);
    l.backend->ops.linear_forward(l.backend, &in);
    prepare(&l);
    remember(&l);
    l.backend->ops.rmsnorm_forward(l.backend, &n2);
    join(&l, l.p->o_proj, l.a->y, l.s.vv, l.a->x, l.a->h);

    l.backend->ops.rmsnorm_forward(l.backend, &n3);
    l.backend->ops.linear_forward(l.backend, &up);
    l.backend->ops.swiglu_forward(l.backend, &act);
    join(&l, l.p->down_proj, l.a->act, l.s.I, l.a->h, out);
}

void hl_layer_recompute(const struct layer *l) {
    struct hl_rmsnorm n1 = attn_norm(l), n2 = out_norm(l), n3 = mlp_norm(l);
    struct hl_swiglu act = swiglu(l);
    l->backend->ops.rmsnorm_forward(l->backend, &n1);
    prepare(l);
    l->backend->ops.rmsnorm_forward(l->backend, &n2);
    l->backend->ops.rmsnorm_forward(l->backend, &n3);
    l->backend->ops.swiglu_forward(l->backend, &act);
}
