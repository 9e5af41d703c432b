/* layer.c -- one layer, in the paper's order: norm, projections, convolution, gates, delta rule, exact
 * memory, output norm, projection, SwiGLU. Training, prefill and decoding all come through here; what
 * differs is in the rows (segments with or without a state) and in which buffers are kept. */
#include "model/model.h"
#include <string.h>

/* What every step below needs at hand. */
struct layer {
    hola_model *m;
    const struct hl_ops *ops;
    struct hl_pool *pool;
    const hola_config *cfg;
    struct hl_dims s;
    const struct hl_rows *rows;
    const struct hl_layer_params *p;
    struct hl_layer_acts *y;
    struct hl_grads *d;
    enum hl_pass pass;
    int64_t T, state; /* rows; this layer's offset in a session's block */
    real *grads;      /* parameter gradients; NULL in a forward pass */
};

static struct layer open_layer(hola_model *m, struct hl_acts *acts, const struct hl_rows *rows, int64_t l, real *grads) {
    return (struct layer){.m = m,
                          .ops = m->ops,
                          .pool = m->pool,
                          .cfg = &m->cfg,
                          .s = hl_dims(&m->cfg),
                          .rows = rows,
                          .p = &m->params.layer[l],
                          .y = &acts->layer[l],
                          .d = &acts->grad,
                          .pass = acts->pass,
                          .T = rows->T,
                          .state = l * m->state.layer,
                          .grads = grads};
}

static const real *vec(const struct layer *y, int64_t i) { return hl_model_vector(y->m, y->pass, i); }
static real *grad(const struct layer *y, int64_t i) {
    return i < 0 || !y->grads ? NULL : y->grads + y->m->params.tensor[i].offset;
}

/* Adds tensor i to a group of products that share their input; absent tensors are passed over. */
static void part(const struct layer *y, struct hl_linear *a, int64_t i, real *out, const real *dout) {
    if (i < 0) return;
    a->part[a->n++] = (struct hl_linear_part){
        .W = hl_model_weight(y->m, y->pass, i), .out = out, .dout = dout, .dW = grad(y, i)};
}

/* ---- the ops of a layer, as the structs that forward and backward share ---- */

static struct hl_rmsnorm attn_norm(const struct layer *y) {
    return (struct hl_rmsnorm){.M = y->T, .D = y->s.d, .eps = (real)y->cfg->norm_eps, .x = y->y->x,
                               .w = vec(y, y->p->attn_norm), .y = y->y->xn, .r = y->y->r_attn,
                               .dy = y->d->dn, .dx = y->d->dx, .dx_add = true, .dw = grad(y, y->p->attn_norm)};
}
static struct hl_rmsnorm mlp_norm(const struct layer *y) {
    return (struct hl_rmsnorm){.M = y->T, .D = y->s.d, .eps = (real)y->cfg->norm_eps, .x = y->y->h,
                               .w = vec(y, y->p->mlp_norm), .y = y->y->hn, .r = y->y->r_mlp,
                               .dy = y->d->dn, .dx = y->d->dx, .dx_add = true, .dw = grad(y, y->p->mlp_norm)};
}
static struct hl_rmsnorm out_norm(const struct layer *y) {
    return (struct hl_rmsnorm){.M = y->T * y->s.HV, .D = y->s.V, .eps = (real)y->cfg->norm_eps, .x = y->y->o,
                               .z = y->y->z, .w = vec(y, y->p->o_norm), .y = y->y->y, .r = y->y->r_o,
                               .dy = y->d->dy, .dx = y->d->dout, .dz = y->s.gated ? y->d->dz : NULL,
                               .dw = grad(y, y->p->o_norm)};
}
/* the cache's own norm of q or k: RMSNorm with a learned scale, decoupled from the state's L2 norm */
static struct hl_rmsnorm read_norm(const struct layer *y, bool query) {
    int64_t w = query ? y->p->cache_q_norm : y->p->cache_k_norm;
    return (struct hl_rmsnorm){.M = y->T * y->s.H, .D = y->s.K, .eps = (real)1e-6,
                               .x = query ? y->y->q1 : y->y->k1, .w = vec(y, w),
                               .y = query ? y->y->qt : y->y->kt, .r = query ? y->y->r_qt : y->y->r_kt,
                               .dy = query ? y->d->dqt : y->d->dkt, .dx = query ? y->d->dq1 : y->d->dk1,
                               .dx_add = true, .dw = grad(y, w)};
}
static struct hl_l2norm state_norm(const struct layer *y, bool query) {
    return (struct hl_l2norm){.M = y->T * y->s.H, .D = y->s.K, .x = query ? y->y->q1 : y->y->k1,
                              .y = query ? y->y->q : y->y->k, .r = query ? y->y->r_q : y->y->r_k,
                              .dy = query ? y->d->dq : y->d->dk, .dx = query ? y->d->dq1 : y->d->dk1};
}
static struct hl_conv conv(const struct layer *y, char which) {
    const struct hl_layer_acts *a = y->y;
    const struct hl_layer_params *p = y->p;
    const struct hl_state_layout *at = &y->m->state;
    struct hl_conv c = {.rows = y->rows, .W = y->cfg->conv_size > 0 ? y->cfg->conv_size : 1};
    int64_t w = which == 'q' ? p->q_conv : which == 'k' ? p->k_conv : p->v_conv;
    c.C = which == 'v' ? y->s.vv : y->s.qk;
    c.x = which == 'q' ? a->q0 : which == 'k' ? a->k0 : a->v0;
    c.y = which == 'q' ? a->q1 : which == 'k' ? a->k1 : a->v1;
    c.dy = which == 'q' ? y->d->dq1 : which == 'k' ? y->d->dk1 : y->d->dv;
    c.dx = which == 'q' ? y->d->dq0 : which == 'k' ? y->d->dk0 : y->d->dv0;
    c.tail_off = y->state + (which == 'q' ? at->tail_q : which == 'k' ? at->tail_k : at->tail_v);
    c.w = vec(y, w);
    c.dw = grad(y, w);
    return c;
}
static struct hl_gate gates(const struct layer *y) {
    return (struct hl_gate){.T = y->T, .H = y->s.HV, .neg_eigval = y->cfg->allow_neg_eigval,
                            .a = y->s.decay ? y->y->a : NULL, .b = y->p->b_proj >= 0 ? y->y->b : NULL,
                            .A_log = vec(y, y->p->A_log), .dt_bias = vec(y, y->p->dt_bias),
                            .g = y->y->g, .beta = y->y->beta, .dg = y->d->dg, .dbeta = y->d->dbeta,
                            .da = y->d->da, .db = y->d->db, .dA_log = grad(y, y->p->A_log),
                            .ddt_bias = grad(y, y->p->dt_bias)};
}
static struct hl_gdn delta_rule(const struct layer *y) {
    const struct hl_layer_acts *a = y->y;
    const bool keep = y->pass == HL_TRAIN;
    return (struct hl_gdn){.rows = y->rows, .H = y->s.H, .HV = y->s.HV, .K = y->s.K, .V = y->s.V,
                           .q = a->q, .k = a->k, .v = a->v1, .g = y->s.decay ? a->g : NULL, .beta = a->beta,
                           .out = a->o, .m = a->m, .S_off = y->state + y->m->state.S,
                           .h = keep ? a->S : NULL, .v_new = keep ? a->v_new : NULL, .A = keep ? a->A : NULL,
                           .dout = y->d->dout, .dq = y->d->dq, .dk = y->d->dk, .dv = y->d->dv,
                           .dg = y->s.decay ? y->d->dg : NULL, .dbeta = y->d->dbeta};
}
static struct hl_cache exact_memory(const struct layer *y) {
    const struct hl_layer_acts *a = y->y;
    const bool keep = y->pass == HL_TRAIN;
    return (struct hl_cache){.rows = y->rows, .H = y->s.H, .HV = y->s.HV, .K = y->s.K, .V = y->s.V,
                             .window = y->cfg->cache_window, .chunk = y->cfg->cache_chunk,
                             .evict = y->cfg->cache_evict, .q = y->s.rms ? a->qt : a->q,
                             .k = y->s.rms ? a->kt : a->k, .v = a->v1, .score = a->score,
                             .tau = vec(y, y->p->cache_tau), .sink = vec(y, y->p->cache_sink),
                             .gate = vec(y, y->p->cache_gate), .out = a->o,
                             .state_off = y->state + y->m->state.cache, .read = keep ? a->read : NULL,
                             .lse = keep ? a->lse : NULL, .sel = keep ? a->sel : NULL,
                             .dout = y->d->dout, .dq = y->d->dqt, .dk = y->d->dkt, .dv = y->d->dv,
                             .dtau = y->cfg->cache_tau_freeze ? NULL : grad(y, y->p->cache_tau),
                             .dsink = grad(y, y->p->cache_sink), .dgate = grad(y, y->p->cache_gate)};
}
static struct hl_linear projections(const struct layer *y) {
    struct hl_linear a = {.M = y->T, .K = y->s.d, .x = y->y->xn, .dx = y->d->dn};
    part(y, &a, y->p->q_proj, y->y->q0, y->d->dq0);
    part(y, &a, y->p->k_proj, y->y->k0, y->d->dk0);
    part(y, &a, y->p->v_proj, y->y->v0, y->d->dv0);
    part(y, &a, y->p->g_proj, y->y->z, y->d->dz);
    part(y, &a, y->p->a_proj, y->y->a, y->d->da);
    part(y, &a, y->p->b_proj, y->y->b, y->d->db);
    return a;
}
static struct hl_swiglu swiglu(const struct layer *y) { /* gradients may replace what they come from */
    return (struct hl_swiglu){.M = y->T, .D = y->s.I, .gate = y->y->gate, .up = y->y->up, .y = y->y->act,
                              .dy = y->d->dact, .dgate = y->y->gate, .dup = y->y->up};
}
static struct hl_linear mlp_in(const struct layer *y) {
    struct hl_linear a = {.M = y->T, .K = y->s.d, .x = y->y->hn, .dx = y->d->dn};
    part(y, &a, y->p->gate_proj, y->y->gate, y->y->gate);
    part(y, &a, y->p->up_proj, y->y->up, y->y->up);
    return a;
}

/* ---- forward ---- */

/* Convolutions and norms: everything between the projections and the two memories. */
static void prepare(const struct layer *y) {
    const struct hl_ops *ops = y->ops;
    const char which[3] = {'q', 'k', 'v'};
    for (int i = 0; i < 3; i++) {
        struct hl_conv c = conv(y, which[i]);
        ops->conv_forward(y->pool, &c);
    }
    for (int i = 0; i < 2; i++) {
        struct hl_l2norm n = state_norm(y, i == 0);
        ops->l2norm_forward(y->pool, &n);
        if (y->s.rms) {
            struct hl_rmsnorm r = read_norm(y, i == 0);
            ops->rmsnorm_forward(y->pool, &r);
        }
    }
}

static void remember(const struct layer *y) {
    struct hl_gate g = gates(y);
    struct hl_gdn r = delta_rule(y);
    y->ops->gate_forward(y->pool, &g);
    y->ops->gdn_forward(y->pool, &r);
    if (y->s.cache) {
        struct hl_score score = {.T = y->T, .HV = y->s.HV, .V = y->s.V, .evict = y->cfg->cache_evict,
                                 .m = y->y->m, .beta = y->y->beta, .v = y->y->v1, .score = y->y->score};
        struct hl_cache c = exact_memory(y);
        y->ops->cache_score(y->pool, &score);
        y->ops->cache_forward(y->pool, &c);
    }
}

/* out = in + x W^T: the branch joins the residual stream */
static void join(const struct layer *y, int64_t w, const real *x, int64_t K, const real *in, real *out) {
    struct hl_linear a = {.M = y->T, .K = K, .x = x, .add = true};
    if (in != out) memcpy(out, in, (size_t)(y->T * y->s.d) * sizeof(real));
    part(y, &a, w, out, NULL);
    y->ops->linear_forward(y->pool, &a);
}

void hl_layer_forward(hola_model *m, struct hl_acts *acts, const struct hl_rows *rows, int64_t l, real *out) {
    const struct layer y = open_layer(m, acts, rows, l, NULL);
    struct hl_rmsnorm n1 = attn_norm(&y), n2 = out_norm(&y), n3 = mlp_norm(&y);
    struct hl_linear in = projections(&y), up = mlp_in(&y);
    struct hl_swiglu act = swiglu(&y);

    y.ops->rmsnorm_forward(y.pool, &n1);
    y.ops->linear_forward(y.pool, &in);
    prepare(&y);
    remember(&y);
    y.ops->rmsnorm_forward(y.pool, &n2);
    join(&y, y.p->o_proj, y.y->y, y.s.vv, y.y->x, y.y->h);

    y.ops->rmsnorm_forward(y.pool, &n3);
    y.ops->linear_forward(y.pool, &up);
    y.ops->swiglu_forward(y.pool, &act);
    join(&y, y.p->down_proj, y.y->act, y.s.I, y.y->h, out);
}

/* ---- backward: the same steps, last to first ---- */

/* Fills this layer's CHEAP buffers again from the kept ones. */
static void recompute(const struct layer *y) {
    struct hl_rmsnorm n1 = attn_norm(y), n2 = out_norm(y), n3 = mlp_norm(y);
    struct hl_swiglu act = swiglu(y);
    y->ops->rmsnorm_forward(y->pool, &n1);
    prepare(y);
    y->ops->rmsnorm_forward(y->pool, &n2);
    y->ops->rmsnorm_forward(y->pool, &n3);
    y->ops->swiglu_forward(y->pool, &act);
}

static void join_backward(const struct layer *y, int64_t w, const real *x, int64_t K, real *dx) {
    struct hl_linear a = {.M = y->T, .K = K, .x = x, .dx = dx};
    part(y, &a, w, NULL, y->d->dx);
    y->ops->linear_backward(y->pool, &a);
}

static void mlp_backward(const struct layer *y) {
    struct hl_swiglu act = swiglu(y);
    struct hl_linear up = mlp_in(y);
    struct hl_rmsnorm n = mlp_norm(y);
    join_backward(y, y->p->down_proj, y->y->act, y->s.I, y->d->dact);
    y->ops->swiglu_backward(y->pool, &act);
    y->ops->linear_backward(y->pool, &up);
    y->ops->rmsnorm_backward(y->pool, &n);
}

/* From dout to the gradients after the convolutions: dq1, dk1, dv. */
static void remember_backward(const struct layer *y) {
    struct hl_gdn r = delta_rule(y);
    struct hl_gate g = gates(y);
    y->ops->gdn_backward(y->pool, &r); /* writes dq, dk, dv; the cache adds to dv */
    if (y->s.cache) {
        struct hl_cache c = exact_memory(y);
        y->ops->cache_backward(y->pool, &c);
    }
    y->ops->gate_backward(y->pool, &g);
    for (int i = 0; i < 2; i++) {
        struct hl_l2norm n = state_norm(y, i == 0);
        y->ops->l2norm_backward(y->pool, &n);
        if (y->s.rms) {
            struct hl_rmsnorm c = read_norm(y, i == 0);
            y->ops->rmsnorm_backward(y->pool, &c);
        } else if (y->s.cache) { /* the flat read shares the state's q and k */
            n.dy = i == 0 ? y->d->dqt : y->d->dkt;
            n.dx_add = true;
            y->ops->l2norm_backward(y->pool, &n);
        }
    }
}

void hl_layer_backward(hola_model *m, struct hl_acts *acts, const struct hl_rows *rows, int64_t l, real *grads) {
    const struct layer y = open_layer(m, acts, rows, l, grads);
    const char which[3] = {'q', 'k', 'v'};
    struct hl_rmsnorm n1 = attn_norm(&y), n2 = out_norm(&y);
    struct hl_linear in = projections(&y);

    if (acts->recompute) recompute(&y);
    mlp_backward(&y);
    join_backward(&y, y.p->o_proj, y.y->y, y.s.vv, y.d->dy);
    y.ops->rmsnorm_backward(y.pool, &n2);
    remember_backward(&y);
    for (int i = 0; i < 3; i++) {
        struct hl_conv c = conv(&y, which[i]);
        y.ops->conv_backward(y.pool, &c);
    }
    y.ops->linear_backward(y.pool, &in);
    y.ops->rmsnorm_backward(y.pool, &n1);
}
