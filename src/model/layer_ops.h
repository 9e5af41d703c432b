/* layer_ops.h -- the ops of a layer, as the structs that forward (layer.c) and backward (layer_back.c) share. */
#ifndef HL_LAYER_OPS_H
#define HL_LAYER_OPS_H
#include "model/model.h"

/* What every step needs at hand. */
struct layer {
    hola_model *m;
    struct hl_backend *backend;
    const hola_config *cfg;
    struct hl_dims s;
    const struct hl_rows *rows;
    const struct hl_layer_params *p;
    struct hl_layer_activations *a;
    struct hl_grads *d;
    enum hl_pass pass;
    int64_t T, state;      /* rows; this layer's offset in a session's block */
    int64_t joint, paired; /* as struct hl_activations has them */
    real *grads;           /* parameter gradients; NULL in a forward pass */
};

static inline struct layer open_layer(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows,
                                      int64_t index, real *grads) {
    return (struct layer){.m = m,
                          .backend = m->backend,
                          .cfg = &m->cfg,
                          .s = hl_dims(&m->cfg),
                          .rows = rows,
                          .p = &m->params.layer[index],
                          .a = &acts->layer[index],
                          .d = &acts->grad,
                          .pass = acts->pass,
                          .T = rows->T,
                          .joint = acts->joint,
                          .paired = acts->paired,
                          .state = index * m->state.layer,
                          .grads = grads};
}

static inline const real *vec(const struct layer *l, int64_t i) { return hl_model_vector(l->m, l->pass, i); }
static inline real *grad(const struct layer *l, int64_t i) {
    return i < 0 || !l->grads ? NULL : l->grads + l->m->params.tensor[i].offset;
}

/* Adds tensor i to a group of products that share their input; absent tensors are passed over. */
static inline void part(const struct layer *l, struct hl_linear *a, int64_t i, void *out, const void *dout) {
    if (i < 0) return;
    a->part[a->n++] = (struct hl_linear_part){
        .W = hl_model_weight(l->m, l->pass, i), .out = out, .dout = dout, .dW = grad(l, i)};
}

static inline struct hl_rmsnorm attn_norm(const struct layer *l) {
    return (struct hl_rmsnorm){.M = l->T,
                               .D = l->s.d,
                               .eps = (real)l->cfg->norm_eps,
                               .x = l->a->x,
                               .w = vec(l, l->p->attn_norm),
                               .y = l->a->xn,
                               .r = l->a->r_attn,
                               .dy = l->d->dn,
                               .dx = l->d->dx,
                               .dx_add = true,
                               .dw = grad(l, l->p->attn_norm)};
}
static inline struct hl_rmsnorm mlp_norm(const struct layer *l) {
    return (struct hl_rmsnorm){.M = l->T,
                               .D = l->s.d,
                               .eps = (real)l->cfg->norm_eps,
                               .x = l->a->h,
                               .w = vec(l, l->p->mlp_norm),
                               .y = l->a->hn,
                               .r = l->a->r_mlp,
                               .dy = l->d->dn,
                               .dx = l->d->dx,
                               .dx_add = true,
                               .dw = grad(l, l->p->mlp_norm)};
}
static inline struct hl_rmsnorm out_norm(const struct layer *l) {
    return (struct hl_rmsnorm){.M = l->T * l->s.HV,
                               .D = l->s.V,
                               .eps = (real)l->cfg->norm_eps,
                               .x = l->a->o,
                               .z = l->a->z,
                               .z_heads = l->joint ? l->s.HV : 0,
                               .z_ld = l->joint,
                               .w = vec(l, l->p->o_norm),
                               .y = l->a->y,
                               .r = l->a->r_o,
                               .dy = l->d->dy,
                               .dx = l->d->dout,
                               .dz = l->s.gated ? l->d->dz : NULL,
                               .dw = grad(l, l->p->o_norm)};
}
/* the cache's own norm of q or k: RMSNorm with a learned scale, decoupled from the state's L2 norm */
static inline struct hl_rmsnorm read_norm(const struct layer *l, bool query) {
    int64_t w = query ? l->p->cache_q_norm : l->p->cache_k_norm;
    return (struct hl_rmsnorm){.M = l->T * l->s.H,
                               .D = l->s.K,
                               .eps = (real)1e-6,
                               .x = query ? l->a->q1 : l->a->k1,
                               .w = vec(l, w),
                               .y = query ? l->a->qt : l->a->kt,
                               .r = query ? l->a->r_qt : l->a->r_kt,
                               .dy = query ? l->d->dqt : l->d->dkt,
                               .dx = query ? l->d->dq1 : l->d->dk1,
                               .dx_add = true,
                               .dw = grad(l, w)};
}
static inline struct hl_l2norm state_norm(const struct layer *l, bool query) {
    return (struct hl_l2norm){.M = l->T * l->s.H,
                              .D = l->s.K,
                              .x = query ? l->a->q1 : l->a->k1,
                              .y = query ? l->a->q : l->a->k,
                              .r = query ? l->a->r_q : l->a->r_k,
                              .dy = query ? l->d->dq : l->d->dk,
                              .dx = query ? l->d->dq1 : l->d->dk1};
}
static inline struct hl_conv conv(const struct layer *l, char which) {
    const struct hl_layer_activations *a = l->a;
    const struct hl_layer_params *p = l->p;
    const struct hl_state_layout *at = &l->m->state;
    struct hl_conv c = {.rows = l->rows, .ld = l->joint, .W = l->cfg->conv_size > 0 ? l->cfg->conv_size : 1};
    int64_t w = which == 'q' ? p->q_conv : which == 'k' ? p->k_conv : p->v_conv;
    c.C = which == 'v' ? l->s.vv : l->s.qk;
    c.x = which == 'q' ? a->q0 : which == 'k' ? a->k0 : a->v0;
    c.y = which == 'q' ? a->q1 : which == 'k' ? a->k1 : a->v1;
    c.dy = which == 'q' ? l->d->dq1 : which == 'k' ? l->d->dk1 : l->d->dv;
    c.dx = which == 'q' ? l->d->dq0 : which == 'k' ? l->d->dk0 : l->d->dv0;
    c.tail_off = l->state + (which == 'q' ? at->tail_q : which == 'k' ? at->tail_k : at->tail_v);
    c.w = vec(l, w);
    c.dw = grad(l, w);
    return c;
}
static inline struct hl_gate gates(const struct layer *l) {
    return (struct hl_gate){.T = l->T,
                            .H = l->s.HV,
                            .neg_eigval = l->cfg->allow_neg_eigval,
                            .a = l->s.decay ? l->a->a : NULL,
                            .b = l->p->b_proj >= 0 ? l->a->b : NULL,
                            .ld = l->joint,
                            .A_log = vec(l, l->p->A_log),
                            .dt_bias = vec(l, l->p->dt_bias),
                            .g = l->a->g,
                            .beta = l->a->beta,
                            .dg = l->d->dg,
                            .dbeta = l->d->dbeta,
                            .da = l->d->da,
                            .db = l->d->db,
                            .dA_log = grad(l, l->p->A_log),
                            .ddt_bias = grad(l, l->p->dt_bias)};
}
static inline struct hl_gdn delta_rule(const struct layer *l) {
    const struct hl_layer_activations *a = l->a;
    const bool keep = l->pass == HL_TRAIN;
    return (struct hl_gdn){.rows = l->rows,
                           .H = l->s.H,
                           .HV = l->s.HV,
                           .K = l->s.K,
                           .V = l->s.V,
                           .q = a->q,
                           .k = a->k,
                           .v = a->v1,
                           .g = l->s.decay ? a->g : NULL,
                           .beta = a->beta,
                           .out = a->o,
                           .m = a->m,
                           .S_off = l->state + l->m->state.S,
                           .h = keep ? a->S : NULL,
                           .v_new = keep ? a->v_new : NULL,
                           .A = keep ? a->A : NULL,
                           .dout = l->d->dout,
                           .dq = l->d->dq,
                           .dk = l->d->dk,
                           .dv = l->d->dv,
                           .dg = l->s.decay ? l->d->dg : NULL,
                           .dbeta = l->d->dbeta};
}
static inline struct hl_cache exact_memory(const struct layer *l) {
    const struct hl_layer_activations *a = l->a;
    const bool keep = l->pass == HL_TRAIN;
    struct hl_policy policy;
    hl_policy_of(&policy, l->cfg);
    return (struct hl_cache){.rows = l->rows,
                             .H = l->s.H,
                             .HV = l->s.HV,
                             .K = l->s.K,
                             .V = l->s.V,
                             .window = l->cfg->cache_window,
                             .chunk = l->cfg->cache_chunk,
                             .policy = policy,
                             .q = l->s.rms ? a->qt : a->q,
                             .k = l->s.rms ? a->kt : a->k,
                             .v = a->v1,
                             .score = policy.score == HL_SCORE_WRITE ? a->m : a->score,
                             .tau = vec(l, l->p->cache_tau),
                             .sink = vec(l, l->p->cache_sink),
                             .gate = vec(l, l->p->cache_gate),
                             .out = a->o,
                             .state_off = l->state + l->m->state.cache,
                             .read = keep ? a->read : NULL,
                             .lse = keep ? a->lse : NULL,
                             .sel = keep ? a->sel : NULL,
                             .dout = l->d->dout,
                             .dq = l->d->dqt,
                             .dk = l->d->dkt,
                             .dv = l->d->dv,
                             .dtau = l->cfg->cache_tau_freeze ? NULL : grad(l, l->p->cache_tau),
                             .dsink = grad(l, l->p->cache_sink),
                             .dgate = grad(l, l->p->cache_gate)};
}
static inline struct hl_linear projections(const struct layer *l) { /* in the order of the weights */
    struct hl_linear a = {.M = l->T, .K = l->s.d, .x = l->a->xn, .dx = l->d->dn, .ld = l->joint};
    part(l, &a, l->p->q_proj, l->a->q0, l->d->dq0);
    part(l, &a, l->p->k_proj, l->a->k0, l->d->dk0);
    part(l, &a, l->p->v_proj, l->a->v0, l->d->dv0);
    part(l, &a, l->p->a_proj, l->a->a, l->d->da);
    part(l, &a, l->p->b_proj, l->a->b, l->d->db);
    part(l, &a, l->p->g_proj, l->a->z, l->d->dz);
    return a;
}
static inline struct hl_swiglu swiglu(const struct layer *l) { /* gradients may replace what they come from */
    return (struct hl_swiglu){.M = l->T,
                              .D = l->s.I,
                              .gate = l->a->gate,
                              .up = l->a->up,
                              .ld = l->paired,
                              .y = l->a->act,
                              .dy = l->d->dact,
                              .dgate = l->a->gate,
                              .dup = l->a->up};
}
static inline struct hl_linear mlp_in(const struct layer *l) {
    struct hl_linear a = {.M = l->T, .K = l->s.d, .x = l->a->hn, .dx = l->d->dn, .ld = l->paired};
    part(l, &a, l->p->gate_proj, l->a->gate, l->a->gate);
    part(l, &a, l->p->up_proj, l->a->up, l->a->up);
    return a;
}
/* Whether queries and keys go through convolution and norms in one op. Not where the flat read shares the state's
 * q and k: there one norm has two gradients. */
static inline bool in_one(const struct layer *l) {
    return l->backend->ops.convnorm_forward && (l->s.rms || !l->s.cache);
}

/* Fills the layer's CHEAP buffers again from the kept ones. */
void hl_layer_recompute(const struct layer *l);

#endif
