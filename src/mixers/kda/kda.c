/* kda.c -- Kimi Delta Attention: the delta rule with per-channel decay, optionally with the exact memory.
 *
 * It shares tensors, state, buffers and the path of q, k, v with Gated DeltaNet (mixers/gdn). Differences: raw decay
 * and output gate come from low-rank projections (f_proj, g_proj), the decay is per channel, the output gate is a
 * sigmoid with a bias. */
#include "mixers/gdn/gdn_layer.h"

/* ---- op arguments, shared by forward and backward ---- */

/* From the low-rank channels to the raw decay or the raw output gate. */
static struct hl_linear widen(const struct gdn_layer *g, enum gdn_tensor which) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const bool decay = which == F_UP;
    struct hl_linear a = {.M = g->l->T, .K = g->s.low, .ldx = g->joint};
    a.x = decay ? g->a->f0 : g->a->g0, a.dx = decay ? d->df0 : d->dg0;
    hl_layer_part(g->l, &a, which, decay ? g->a->a : g->a->z, decay ? d->da : d->dz);
    return a;
}

static struct hl_bias gate_bias(const struct gdn_layer *g) {
    const struct hl_layer_tensor *t = &g->l->tensor[G_BIAS];
    return (struct hl_bias){
        .M = g->l->T, .N = g->s.vv, .b = t->vector, .x = g->a->z, .dx = g->d ? g->d->dz : NULL, .db = t->grad};
}

static struct hl_kda_gate gates(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct hl_layer_tensor *t = g->l->tensor;
    return (struct hl_kda_gate){.T = g->l->T,
                                .HV = g->s.HV,
                                .K = g->s.K,
                                .x = g->a->a,
                                .b = g->a->b,
                                .ld_b = g->joint,
                                .A_log = t[A_LOG].vector,
                                .dt_bias = t[DT_BIAS].vector,
                                .lower_bound = (real)g->l->cfg->lower_bound,
                                .neg_eigval = g->l->cfg->allow_neg_eigval,
                                .g = g->a->g,
                                .beta = g->a->beta,
                                .dg = d->dg,
                                .dbeta = d->dbeta,
                                .dx = d->da,
                                .db = d->db,
                                .dA_log = t[A_LOG].grad,
                                .ddt_bias = t[DT_BIAS].grad};
}

static struct hl_kda delta_rule(const struct gdn_layer *g) {
    const struct gdn_grads none = {0}, *d = g->d ? g->d : &none;
    const struct gdn_acts *a = g->a; /* S, v_new, A and tiles exist only in training */
    return (struct hl_kda){.rows = g->l->rows,
                           .H = g->s.H,
                           .HV = g->s.HV,
                           .K = g->s.K,
                           .V = g->s.V,
                           .q = a->q,
                           .k = a->k,
                           .v = a->v1,
                           .g = a->g,
                           .beta = a->beta,
                           .out = a->o,
                           .m = a->m,
                           .S_off = g->l->state[STATE_S],
                           .h = a->S,
                           .v_new = a->v_new,
                           .A = a->A,
                           .tiles = a->tiles,
                           .dout = d->dout,
                           .dq = d->dq,
                           .dk = d->dk,
                           .dv = d->dv,
                           .dg = d->dg,
                           .dbeta = d->dbeta};
}

/* ---- forward and backward ---- */

static void forward(const struct hl_layer *l) {
    const struct gdn_layer g = hl_gdn_open(l);
    const struct hl_linear in = hl_gdn_projections(&g), decay = widen(&g, F_UP), z = widen(&g, G_UP);
    const struct hl_bias bias = gate_bias(&g);
    const struct hl_kda_gate gate = gates(&g);
    const struct hl_kda rule = delta_rule(&g);
    const struct hl_rmsnorm norm = hl_gdn_output_norm(&g);
    struct hl_backend *b = l->backend;

    b->ops.linear_forward(b, &in);
    b->ops.linear_forward(b, &decay);
    b->ops.linear_forward(b, &z);
    b->ops.bias_forward(b, &bias);
    hl_gdn_convolve_and_norm(&g);
    b->ops.kda_gate_forward(b, &gate);
    b->ops.kda_forward(b, &rule);
    if (g.s.memory) hl_memory_forward(&g.memory);
    b->ops.rmsnorm_forward(b, &norm);
    hl_layer_project(l, O_PROJ, g.a->y, g.s.vv);
}

static void backward(const struct hl_layer *l) {
    const struct gdn_layer g = hl_gdn_open(l);
    const struct hl_linear in = hl_gdn_projections(&g), decay = widen(&g, F_UP), z = widen(&g, G_UP);
    const struct hl_bias bias = gate_bias(&g);
    const struct hl_kda_gate gate = gates(&g);
    const struct hl_kda rule = delta_rule(&g);
    const struct hl_rmsnorm norm = hl_gdn_output_norm(&g);
    struct hl_backend *b = l->backend;

    hl_layer_project_backward(l, O_PROJ, g.a->y, g.s.vv, g.d->dy);
    b->ops.rmsnorm_backward(b, &norm);
    b->ops.bias_backward(b, &bias);
    b->ops.linear_backward(b, &z);
    b->ops.kda_backward(b, &rule); /* writes dq, dk, dv; the memory adds to dv */
    if (g.s.memory) hl_memory_backward(&g.memory);
    b->ops.kda_gate_backward(b, &gate);
    b->ops.linear_backward(b, &decay);
    hl_gdn_convolve_and_norm_backward(&g);
    b->ops.linear_backward(b, &in);
}

/* ---- the model ---- */

static int64_t scratch(const hola_config *c) {
    return hl_gdn_layer_scratch(c, hl_kda_scratch(c->head_dim, c->head_v_dim));
}

static void defaults(hola_config *c) {
    hl_gdn_heads_of_128(c);
    c->num_hidden_layers = 24;
    c->cache_evict = HOLA_EVICT_NONE;
}

static hola_status check(const hola_config *c, const char *where) {
    if (c->cache_evict == HOLA_EVICT_LOLA) /* its scores need the state at block ends, which hl_kda does not provide */
        return hl_fail(HOLA_EINVAL, "%s: cache_evict: kda has no lola", where);
    return hl_gdn_check_heads(c, where);
}

static void decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    hl_gdn_decode_sizes(l, out);
    out->rule = HL_DECODE_KDA;
    out->decay = false; /* no per-head decay */
    out->gated = out->beta = true;
    out->low = hl_gdn_dims(l->cfg).low;
    out->lower_bound = (real)l->cfg->lower_bound;
}
static bool decode_layer(const struct hl_layer *l, struct hl_decode_layer *out) {
    const struct hl_layer_tensor *t = l->tensor;
    out->in = hl_layer_adjacent(l, Q_PROJ, V_PROJ);
    out->low = t[F_DOWN].W.data, out->decay = t[F_UP].W.data, out->decay_bias = t[DT_BIAS].vector;
    out->z = t[G_DOWN].W.data, out->z_up = t[G_UP].W.data, out->z_bias = t[G_BIAS].vector;
    out->b = t[B_PROJ].W.data;
    hl_gdn_decode_common(l, out);
    return out->in;
}

extern const struct hl_mixer hl_mixer_kda;
const struct hl_mixer hl_mixer_kda = {.name = "kda",
                                      .architecture = "KDAForCausalLM",
                                      .fields = HL_GROUP_KDA | HL_GROUP_MEMORY,
                                      .defaults = defaults,
                                      .preset = hl_gdn_heads_of_128,
                                      .check = check,
                                      .scratch = scratch,
                                      .tensors = hl_gdn_tensors,
                                      .state = hl_gdn_state,
                                      .acts_size = sizeof(struct gdn_acts),
                                      .grads_size = sizeof(struct gdn_grads),
                                      .buffers = hl_gdn_buffers,
                                      .forward = forward,
                                      .recompute = hl_gdn_recompute,
                                      .backward = backward,
                                      .decode_sizes = decode_sizes,
                                      .decode_layer = decode_layer,
                                      .memory = hl_gdn_memory,
                                      .memory_optional = true};
