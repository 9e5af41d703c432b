/* gdn.c -- Gated DeltaNet (paper sec. 2), DeltaNet, and HOLA, which is Gated DeltaNet with an exact memory.
 *
 * In the paper's order: projections, short convolution, norms of q and k, gates, delta rule, exact memory, output norm
 * and gate, projection. Training, prefill and decoding all run this code; they differ in the rows (segments with or
 * without a state) and in which buffers are kept. */
#include "mixers/gdn/gdn_layer.h"

struct gdn_layer hl_gdn_open(const struct hl_layer *l) {
    const struct gdn_dims s = hl_gdn_dims(l->cfg);
    struct gdn_acts *a = l->acts;
    struct gdn_grads *d = l->grads;
    struct gdn_layer g = {.l = l, .s = s, .a = a, .d = d, .joint = hl_gdn_joint_row(&s, l->pass, l->backend->host)};
    if (!s.memory) return g;
    g.memory = (struct hl_exact_memory){.l = l,
                                        .heads = {s.H, s.HV, s.K, s.V},
                                        .tensor = l->tensor + MEMORY,
                                        .state = l->state[STATE_MEMORY],
                                        .a = &a->memory,
                                        .q1 = a->q1,
                                        .k1 = a->k1,
                                        .q = a->q,
                                        .k = a->k,
                                        .v = a->v1,
                                        .m = a->m,
                                        .beta = a->beta,
                                        .r_k = a->r_k,
                                        .S = l->state[STATE_S],
                                        .out = a->o};
    if (!d) return g;
    g.memory.d = &d->memory;
    g.memory.dout = d->dout, g.memory.dv = d->dv;
    g.memory.dq1 = d->dq1, g.memory.dk1 = d->dk1;
    return g;
}

/* ---- op arguments, shared by forward and backward ---- */

/* In the order of the weights; skips those that a model lacks. */
struct hl_linear hl_gdn_projections(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct gdn_acts *a = g->a;
    struct hl_linear in = {.M = g->l->T, .K = g->s.d, .x = g->l->xn, .dx = g->l->dxn, .ld = g->joint};
    in.room = g->joint > 0;
    in.dx_add = hl_memory_gates_tokens(g->l->cfg); /* the memory's projection came first */
    hl_layer_part(g->l, &in, Q_PROJ, a->q0, d->dq0);
    hl_layer_part(g->l, &in, K_PROJ, a->k0, d->dk0);
    hl_layer_part(g->l, &in, V_PROJ, a->v0, d->dv0);
    hl_layer_part(g->l, &in, F_DOWN, a->f0, d->df0);
    hl_layer_part(g->l, &in, G_DOWN, a->g0, d->dg0);
    hl_layer_part(g->l, &in, A_PROJ, a->a, d->da);
    hl_layer_part(g->l, &in, B_PROJ, a->b, d->db);
    hl_layer_part(g->l, &in, G_PROJ, a->z, d->dz);
    return in;
}

static struct hl_conv convolution(const struct gdn_layer *g, enum gdn_tensor which) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct gdn_acts *a = g->a;
    const hola_config *cfg = g->l->cfg;
    struct hl_conv c = {.rows = g->l->rows, .ld = g->joint, .W = cfg->conv_size > 0 ? cfg->conv_size : 1};
    c.w = g->l->tensor[which].vector, c.dw = g->l->tensor[which].grad;
    switch (which) {
    case Q_CONV:
        c.C = g->s.qk, c.x = a->q0, c.y = a->q1, c.dy = d->dq1, c.dx = d->dq0;
        c.tail_off = g->l->state[TAIL_Q];
        return c;
    case K_CONV:
        c.C = g->s.qk, c.x = a->k0, c.y = a->k1, c.dy = d->dk1, c.dx = d->dk0;
        c.tail_off = g->l->state[TAIL_K];
        return c;
    default:
        c.C = g->s.vv, c.x = a->v0, c.y = a->v1, c.dy = d->dv, c.dx = d->dv0;
        c.tail_off = g->l->state[TAIL_V];
        return c;
    }
}

/* The L2 norm of q or k, for the state. */
static struct hl_l2norm state_norm(const struct gdn_layer *g, bool query) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    return (struct hl_l2norm){.M = g->l->T * g->s.H,
                              .D = g->s.K,
                              .x = query ? g->a->q1 : g->a->k1,
                              .y = query ? g->a->q : g->a->k,
                              .r = query ? g->a->r_q : g->a->r_k,
                              .dy = query ? d->dq : d->dk,
                              .dx = query ? d->dq1 : d->dk1};
}

static struct hl_gate gates(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct hl_layer_tensor *t = g->l->tensor;
    return (struct hl_gate){.T = g->l->T,
                            .H = g->s.HV,
                            .neg_eigval = g->l->cfg->allow_neg_eigval,
                            .a = g->s.decays ? g->a->a : NULL,
                            .b = g->s.beta ? g->a->b : NULL,
                            .ld = g->joint,
                            .A_log = t[A_LOG].vector,
                            .dt_bias = t[DT_BIAS].vector,
                            .g = g->a->g,
                            .beta = g->a->beta,
                            .dg = d->dg,
                            .dbeta = d->dbeta,
                            .da = d->da,
                            .db = d->db,
                            .dA_log = t[A_LOG].grad,
                            .ddt_bias = t[DT_BIAS].grad};
}

static struct hl_gdn delta_rule(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct gdn_acts *a = g->a; /* S, v_new and A exist only in training */
    return (struct hl_gdn){.rows = g->l->rows,
                           .H = g->s.H,
                           .HV = g->s.HV,
                           .K = g->s.K,
                           .V = g->s.V,
                           .q = a->q,
                           .k = a->k,
                           .v = a->v1,
                           .g = g->s.decays ? a->g : NULL,
                           .beta = a->beta,
                           .out = a->o,
                           .m = a->m,
                           .S_off = g->l->state[STATE_S],
                           .block_S = a->memory.block_S,
                           .block = g->l->cfg->cache_chunk,
                           .h = a->S,
                           .v_new = a->v_new,
                           .A = a->A,
                           .dout = d->dout,
                           .dq = d->dq,
                           .dk = d->dk,
                           .dv = d->dv,
                           .dg = g->s.decays ? d->dg : NULL,
                           .dbeta = d->dbeta};
}

struct hl_rmsnorm hl_gdn_output_norm(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const bool kda = g->s.low > 0, in_row = g->joint && !kda; /* kda's z is a separate array */
    return (struct hl_rmsnorm){.M = g->l->T * g->s.HV,
                               .D = g->s.V,
                               .eps = (real)g->l->cfg->norm_eps,
                               .x = g->a->o,
                               .z = g->a->z,
                               .z_heads = in_row ? g->s.HV : 0,
                               .z_ld = in_row ? g->joint : 0,
                               .z_sigmoid = kda,
                               .w = g->l->tensor[O_NORM].vector,
                               .y = g->a->y,
                               .r = g->a->r_o,
                               .dy = d->dy,
                               .dx = d->dout,
                               .dz = g->s.gated ? d->dz : NULL,
                               .dw = g->l->tensor[O_NORM].grad};
}

/* Whether one op does the convolution and norms of q and k. Not if the memory's read shares the state's q and k
 * (cache_norm l2): one norm then has two gradients. */
static bool in_one(const struct gdn_layer *g) {
    return g->l->backend->ops.convnorm_forward && (g->s.rms || !g->s.memory);
}

/* The path of q or k from its projection to the state. */
struct path {
    struct hl_conv conv;
    struct hl_l2norm l2;
    struct hl_rmsnorm rms; /* the memory's norm, if it has one */
};
static struct path path_of(const struct gdn_layer *g, bool query) {
    struct path p = {.conv = convolution(g, query ? Q_CONV : K_CONV), .l2 = state_norm(g, query)};
    if (g->s.rms) p.rms = hl_memory_norm(&g->memory, query);
    return p;
}

/* ---- forward ---- */

void hl_gdn_convolve_and_norm(const struct gdn_layer *g) {
    struct hl_backend *b = g->l->backend;
    for (int i = 0; i < 2; i++) {
        const struct path p = path_of(g, i == 0);
        const struct hl_convnorm all = {&p.conv, &p.l2, g->s.rms ? &p.rms : NULL};
        const struct hl_twonorm both = {&p.l2, &p.rms};
        if (in_one(g)) {
            b->ops.convnorm_forward(b, &all);
            continue;
        }
        b->ops.conv_forward(b, &p.conv);
        if (g->s.rms && b->ops.twonorm_forward) {
            b->ops.twonorm_forward(b, &both);
            continue;
        }
        b->ops.l2norm_forward(b, &p.l2);
        if (g->s.rms) b->ops.rmsnorm_forward(b, &p.rms);
    }
    const struct hl_conv v = convolution(g, V_CONV);
    b->ops.conv_forward(b, &v);
}

static void forward(const struct hl_layer *l) {
    const struct gdn_layer g = hl_gdn_open(l);
    const struct hl_linear in = hl_gdn_projections(&g);
    const struct hl_gate gate = gates(&g);
    const struct hl_gdn rule = delta_rule(&g);
    const struct hl_rmsnorm norm = hl_gdn_output_norm(&g);
    struct hl_backend *b = l->backend;

    b->ops.linear_forward(b, &in);
    hl_gdn_convolve_and_norm(&g);
    b->ops.gate_forward(b, &gate);
    b->ops.gdn_forward(b, &rule);
    if (g.s.memory) hl_memory_forward(&g.memory);
    b->ops.rmsnorm_forward(b, &norm);
    hl_layer_project(l, O_PROJ, g.a->y, g.s.vv);
}

void hl_gdn_recompute(const struct hl_layer *l) {
    const struct gdn_layer g = hl_gdn_open(l);
    const struct hl_rmsnorm norm = hl_gdn_output_norm(&g);
    hl_gdn_convolve_and_norm(&g);
    l->backend->ops.rmsnorm_forward(l->backend, &norm);
}

/* ---- backward: the same steps, last to first ---- */

static void norms_backward(const struct gdn_layer *g, struct path *p, bool query) {
    struct hl_backend *b = g->l->backend;
    const struct hl_twonorm both = {&p->l2, &p->rms};
    if (g->s.rms && b->ops.twonorm_backward) {
        b->ops.twonorm_backward(b, &both);
        return;
    }
    b->ops.l2norm_backward(b, &p->l2);
    if (g->s.rms) b->ops.rmsnorm_backward(b, &p->rms);
    if (g->s.rms || !g->s.memory) return;
    p->l2.dy = query ? g->d->memory.dqt : g->d->memory.dkt; /* with cache_norm l2, the read shares the state's q and
                                                             * k */
    p->l2.dx_add = true;
    b->ops.l2norm_backward(b, &p->l2);
}

void hl_gdn_convolve_and_norm_backward(const struct gdn_layer *g) {
    struct hl_backend *b = g->l->backend;
    for (int i = 0; i < 2; i++) {
        struct path p = path_of(g, i == 0);
        const struct hl_convnorm all = {&p.conv, &p.l2, g->s.rms ? &p.rms : NULL};
        if (in_one(g)) {
            b->ops.convnorm_backward(b, &all);
            continue;
        }
        norms_backward(g, &p, i == 0);
        b->ops.conv_backward(b, &p.conv);
    }
    const struct hl_conv v = convolution(g, V_CONV);
    b->ops.conv_backward(b, &v);
}

static void backward(const struct hl_layer *l) {
    const struct gdn_layer g = hl_gdn_open(l);
    const struct hl_linear in = hl_gdn_projections(&g);
    const struct hl_gate gate = gates(&g);
    const struct hl_gdn rule = delta_rule(&g);
    const struct hl_rmsnorm norm = hl_gdn_output_norm(&g);
    struct hl_backend *b = l->backend;

    hl_layer_project_backward(l, O_PROJ, g.a->y, g.s.vv, g.d->dy);
    b->ops.rmsnorm_backward(b, &norm);
    b->ops.gdn_backward(b, &rule); /* writes dq, dk, dv; the memory adds to dv */
    if (g.s.memory) hl_memory_backward(&g.memory);
    b->ops.gate_backward(b, &gate);
    hl_gdn_convolve_and_norm_backward(&g);
    b->ops.linear_backward(b, &in);
}

/* ---- the three models ---- */

void hl_gdn_memory(const struct hl_layer *l, struct hl_exact_memory *out) { *out = hl_gdn_open(l).memory; }

int64_t hl_gdn_layer_scratch(const hola_config *c, int64_t rule) {
    const struct hl_memory_heads heads = {c->num_heads, c->num_v_heads, c->head_dim, c->head_v_dim};
    const int64_t memory = hl_memory_scratch(c, &heads);
    return rule > memory ? rule : memory;
}
static int64_t scratch(const hola_config *c) {
    return hl_gdn_layer_scratch(c, hl_gdn_scratch(c->head_dim, c->head_v_dim));
}

void hl_gdn_heads_of_128(hola_config *c) {
    c->head_dim = c->head_v_dim = 128;
    c->num_heads = c->num_v_heads = c->hidden_size / 128;
}
/* As in flame. */
static void delta_net_defaults(hola_config *c) {
    hl_gdn_heads_of_128(c);
    c->num_hidden_layers = 24;
    c->use_gate = false;
}

hola_status hl_gdn_check_heads(const hola_config *c, const char *where) {
    if (c->num_v_heads % c->num_heads == 0) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s: num_v_heads: %lld is not a multiple of num_heads, %lld", where,
                   (long long)c->num_v_heads, (long long)c->num_heads);
}
static hola_status check_gated(const hola_config *c, const char *where) {
    if (c->use_beta) return hl_gdn_check_heads(c, where);
    return hl_fail(HOLA_EINVAL, "%s: use_beta: only delta_net may set it to false", where);
}
static hola_status check_delta_net(const hola_config *c, const char *where) {
    if (c->num_v_heads == c->num_heads) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s: num_v_heads: delta_net has as many value heads as heads", where);
}

#define GDN                                                                                                     \
    .scratch = scratch, .tensors = hl_gdn_tensors, .state = hl_gdn_state, .acts_size = sizeof(struct gdn_acts), \
    .grads_size = sizeof(struct gdn_grads), .buffers = hl_gdn_buffers, .forward = forward,                      \
    .recompute = hl_gdn_recompute, .backward = backward, .decode_sizes = hl_gdn_decode_sizes,                   \
    .decode_layer = hl_gdn_decode_layer

extern const struct hl_mixer hl_mixer_hola, hl_mixer_gated_deltanet, hl_mixer_delta_net;
const struct hl_mixer hl_mixer_hola = {.name = "hola",
                                       .architecture = "HolaForCausalLM",
                                       .fields = HL_GROUP_HEADS | HL_GROUP_GATED | HL_GROUP_MEMORY,
                                       .check = check_gated,
                                       .memory = hl_gdn_memory,
                                       GDN};
const struct hl_mixer hl_mixer_gated_deltanet = {.name = "gated_deltanet",
                                                 .architecture = "GatedDeltaNetForCausalLM",
                                                 .fields = HL_GROUP_HEADS | HL_GROUP_GATED,
                                                 .check = check_gated,
                                                 GDN};
const struct hl_mixer hl_mixer_delta_net = {.name = "delta_net",
                                            .architecture = "DeltaNetForCausalLM",
                                            .fields = HL_GROUP_HEADS | HL_GROUP_DELTA_NET,
                                            .defaults = delta_net_defaults,
                                            .preset = hl_gdn_heads_of_128,
                                            .check = check_delta_net,
                                            GDN};
