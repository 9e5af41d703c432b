/* gla.c -- gated linear attention: a state with a per-key-channel decay from a projection of rank 16 (gk_proj);
 * optionally short convolutions, a feature map of q and k, and an output gate. */
#include "mixers/qkv.h"

enum tensor { /* the first five share their input: one product can compute them (hl_joint_row) */
              Q_PROJ,
              K_PROJ,
              V_PROJ,
              G_PROJ, /* output gate, with use_gate */
              GK_DOWN,
              GK_UP,
              GK_BIAS,
              O_PROJ,
              CONV, /* of q, k, v, with conv_size > 0 */
              NORM = CONV + 3
};
enum part { STATE_S, TAILS, PARTS = TAILS + 3 };
enum { LOW = 16 };         /* channels of GK_DOWN */
#define GATE_NORMALIZER 16 /* divides the log decay */

struct acts {
    void *row; /* training on a device: one row holds a token's outputs of the first five tensors */
    struct hl_qkv_acts qkv;
    void *z;    /* output gate */
    void *low;  /* output of GK_DOWN */
    void *gate; /* raw decay */
    real *g;    /* log decay */
    real *h;    /* [chunks][HK][K][V]; NULL on a device */
    void *o;
    real *r_o;
    void *y; /* output norm and gate */
};
struct grads {
    void *row;
    struct hl_qkv_grads qkv;
    void *dz, *dlow, *dgate;
    real *dg;
    void *dout, *dy;
};

/* ---- config ---- */

static void defaults(hola_config *c) {
    c->num_hidden_layers = 24;
    c->num_heads = c->num_kv_heads = 4;
    c->head_dim = c->hidden_size / 8;
    c->head_v_dim = c->hidden_size / 4;
    c->conv_size = 0;
}
/* Four heads; at 46m the MLP is sized to match the parameter count of gated_deltanet. */
static void preset(hola_config *c) {
    c->num_heads = c->num_kv_heads = 4;
    c->head_dim = c->hidden_size / 8;
    c->head_v_dim = c->hidden_size / 4;
    c->use_gate = true;
    if (c->hidden_size == 512) c->intermediate_size = 928;
}

/* ---- tables ---- */

static int64_t gate_width(const struct hl_qkv_dims *s) { return s->HK * s->K; }

static void tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct hl_qkv_dims s = hl_qkv_dims(c);
    const int64_t gate = gate_width(&s);
    hl_qkv_projection_tensors(s.d, s.width, out + Q_PROJ);
    if (c->use_gate) out[G_PROJ] = (struct hl_tensor_spec){.name = "g_proj.weight", .dim = {s.out, s.d}};
    out[GK_DOWN] = (struct hl_tensor_spec){.name = "gk_proj.0.weight", .dim = {LOW, s.d}, .unquantised = true};
    out[GK_UP] = (struct hl_tensor_spec){.name = "gk_proj.1.weight", .dim = {gate, LOW}, .unquantised = true};
    out[GK_BIAS] = (struct hl_tensor_spec){.name = "gk_proj.1.bias", .dim = {gate}, .init = HL_INIT_CONSTANT};
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {s.d, s.out}};
    hl_qkv_conv_tensors(c, s.width, out + CONV);
    if (!c->elementwise_affine) return;
    out[NORM] =
        (struct hl_tensor_spec){.name = c->use_gate && c->fuse_norm ? "g_norm_swish_gate.weight" : "g_norm.weight",
                                .dim = {s.V},
                                .init = HL_INIT_CONSTANT,
                                .value = 1};
}

static int state(const hola_config *c, struct hl_state_part *out) {
    const struct hl_qkv_dims s = hl_qkv_dims(c);
    out[STATE_S] =
        (struct hl_state_part){.name = "S", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HK * s.K * s.V};
    hl_qkv_conv_state(c, s.width, out + TAILS);
    return PARTS;
}

/* The projections that share their input; numbers per joint row, 0: separate arrays. */
enum { SHARED = 5 };
static int64_t joint_row(const struct hl_buffers_for *f, const struct hl_qkv_dims *s, int64_t width[SHARED]) {
    for (int i = 0; i < 3; i++) width[i] = s->width[i];
    width[3] = f->cfg->use_gate ? s->out : 0;
    width[4] = LOW;
    return hl_joint_row(f->pass, f->host, SHARED, width);
}

static void buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct hl_qkv_dims s = hl_qkv_dims(f->cfg);
    const bool train = f->pass == HL_TRAIN;
    int64_t width[SHARED];
    const int64_t joint = joint_row(f, &s, width), gate = gate_width(&s);
#define A(name) offsetof(struct acts, name)
#define G(name) offsetof(struct grads, name)
#define ADD(list, at, numbers, ...) hl_buffer_add(list, (struct hl_buffer){.field = at, .width = numbers, __VA_ARGS__})
#define REAL .element = HL_ELEMENT_REAL
    const size_t in[SHARED] = {A(qkv.projected[0]), A(qkv.projected[1]), A(qkv.projected[2]), A(z), A(low)};
    const size_t din[SHARED] = {G(qkv.dprojected[0]), G(qkv.dprojected[1]), G(qkv.dprojected[2]), G(dz), G(dlow)};
    hl_buffer_add_row(acts, joint, A(row), SHARED, in, width);
    hl_qkv_buffers(f, &s, acts, A(qkv), grads, G(qkv));
    ADD(acts, A(gate), gate, .cheap = false);
    ADD(acts, A(g), gate, REAL);
    ADD(acts, A(h), train && f->host ? s.HK * s.K * s.V : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(acts, A(o), s.out, .cheap = false);
    ADD(acts, A(r_o), s.H, REAL);
    ADD(acts, A(y), s.out, .cheap = true);
    if (!train) return;
    hl_buffer_add_row(grads, joint, G(row), SHARED, din, width);
    ADD(grads, G(dgate), gate, .cheap = false);
    ADD(grads, G(dg), gate, REAL);
    ADD(grads, G(dout), s.out, .cheap = false);
    ADD(grads, G(dy), s.out, .cheap = false);
#undef A
#undef G
#undef ADD
#undef REAL
}

static int64_t scratch(const hola_config *c) { return hl_gla_scratch(c->head_dim, c->head_v_dim); }

/* ---- a layer in a pass ---- */

struct layer {
    const struct hl_layer *l;
    const struct acts *a;
    struct grads d; /* all NULL in a forward pass */
    struct hl_qkv qkv;
};
static struct layer open_layer(const struct hl_layer *l) {
    const struct hl_buffers_for f = {.cfg = l->cfg, .pass = l->pass, .host = l->backend->host};
    const struct grads *d = l->grads;
    struct layer y = {.l = l, .a = l->acts};
    int64_t width[SHARED];
    if (d) y.d = *d;
    y.qkv = (struct hl_qkv){.l = l, .s = hl_qkv_dims(l->cfg), .a = &y.a->qkv, .d = d ? &d->qkv : NULL};
    y.qkv.projection = Q_PROJ, y.qkv.conv_tensor = CONV, y.qkv.conv_state = TAILS;
    y.qkv.joint = joint_row(&f, &y.qkv.s, width);
    return y;
}

static struct hl_linear projections(const struct layer *y) { /* in the order of the weights */
    struct hl_linear in = hl_qkv_projections(&y->qkv);
    hl_layer_part(y->l, &in, G_PROJ, y->a->z, y->d.dz);
    hl_layer_part(y->l, &in, GK_DOWN, y->a->low, y->d.dlow);
    return in;
}
static struct hl_linear widen(const struct layer *y) {
    struct hl_linear up = {.M = y->l->T, .K = LOW, .x = y->a->low, .dx = y->d.dlow, .ldx = y->qkv.joint};
    hl_layer_part(y->l, &up, GK_UP, y->a->gate, y->d.dgate);
    return up;
}
static struct hl_logsigmoid decay(const struct layer *y) {
    const struct hl_layer_tensor *bias = &y->l->tensor[GK_BIAS];
    return (struct hl_logsigmoid){.T = y->l->T,
                                  .C = gate_width(&y->qkv.s),
                                  .x = y->a->gate,
                                  .bias = bias->vector,
                                  .normalizer = GATE_NORMALIZER,
                                  .clamp_min = (real)y->l->cfg->clamp_min,
                                  .g = y->a->g,
                                  .dg = y->d.dg,
                                  .dx = y->d.dgate,
                                  .dbias = bias->grad};
}
static struct hl_gla recurrence(const struct layer *y) {
    const struct hl_qkv_dims *s = &y->qkv.s;
    const struct hl_qkv_end q = hl_qkv_end(&y->qkv, 0), k = hl_qkv_end(&y->qkv, 1), v = hl_qkv_end(&y->qkv, 2);
    return (struct hl_gla){.rows = y->l->rows,
                           .H = s->H,
                           .HK = s->HK,
                           .K = s->K,
                           .V = s->V,
                           .q = q.x,
                           .k = k.x,
                           .v = v.x,
                           .ld_q = q.ld,
                           .ld_k = k.ld,
                           .ld_v = v.ld,
                           .g = y->a->g,
                           .scale = 1 / R_SQRT((real)s->K),
                           .out = y->a->o,
                           .S_off = y->l->state[STATE_S],
                           .h = y->a->h,
                           .dout = y->d.dout,
                           .dq = q.dx,
                           .dk = k.dx,
                           .dv = v.dx,
                           .dg = y->d.dg};
}
static struct hl_rmsnorm output_norm(const struct layer *y) {
    return (struct hl_rmsnorm){.M = y->l->T * y->qkv.s.H,
                               .D = y->qkv.s.V,
                               .eps = (real)y->l->cfg->norm_eps,
                               .x = y->a->o,
                               .z = y->a->z,
                               .z_heads = y->qkv.joint ? y->qkv.s.H : 0,
                               .z_ld = y->qkv.joint,
                               .w = y->l->tensor[NORM].vector,
                               .y = y->a->y,
                               .r = y->a->r_o,
                               .dy = y->d.dy,
                               .dx = y->d.dout,
                               .dz = y->d.dz,
                               .dw = y->l->tensor[NORM].grad};
}

static void forward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y), up = widen(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gla rule = recurrence(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    b->ops.linear_forward(b, &in);
    hl_qkv_forward(&y.qkv);
    b->ops.linear_forward(b, &up);
    b->ops.logsigmoid_forward(b, &gate);
    b->ops.gla_forward(b, &rule);
    b->ops.rmsnorm_forward(b, &norm);
    hl_layer_project(l, O_PROJ, y.a->y, y.qkv.s.out);
}

static void recompute(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_rmsnorm norm = output_norm(&y);
    hl_qkv_forward(&y.qkv);
    l->backend->ops.rmsnorm_forward(l->backend, &norm);
}

static void backward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y), up = widen(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gla rule = recurrence(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    hl_layer_project_backward(l, O_PROJ, y.a->y, y.qkv.s.out, y.d.dy);
    b->ops.rmsnorm_backward(b, &norm);
    b->ops.gla_backward(b, &rule);
    b->ops.logsigmoid_backward(b, &gate);
    b->ops.linear_backward(b, &up);
    hl_qkv_backward(&y.qkv);
    b->ops.linear_backward(b, &in);
}

/* ---- for the fused decoders ---- */

static void decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    const struct hl_qkv_dims s = hl_qkv_dims(l->cfg);
    out->rule = HL_DECODE_GLA;
    out->H = s.H, out->HV = s.HK, out->K = s.K, out->V = s.V;
    out->conv = l->cfg->conv_size;
    out->gated = l->cfg->use_gate;
    out->low = LOW;
    out->normalizer = GATE_NORMALIZER, out->clamp_min = (real)l->cfg->clamp_min;
    out->S = l->state[STATE_S];
}
static bool decode_layer(const struct hl_layer *l, struct hl_decode_layer *out) {
    const struct hl_layer_tensor *t = l->tensor;
    out->in = hl_layer_adjacent(l, Q_PROJ, V_PROJ);
    out->low = t[GK_DOWN].W.data, out->decay = t[GK_UP].W.data, out->decay_bias = t[GK_BIAS].vector;
    out->z = t[G_PROJ].W.data;
    out->o = t[O_PROJ].W.data;
    out->o_norm = t[NORM].vector;
    return out->in && out->o_norm && l->cfg->feature_map == HOLA_MAP_NONE && l->cfg->num_kv_heads == l->cfg->num_heads;
}

extern const struct hl_mixer hl_mixer_gla;
const struct hl_mixer hl_mixer_gla = {.name = "gla",
                                      .architecture = "GLAForCausalLM",
                                      .fields = HL_GROUP_GLA,
                                      .defaults = defaults,
                                      .preset = preset,
                                      .check = hl_qkv_check,
                                      .scratch = scratch,
                                      .tensors = tensors,
                                      .state = state,
                                      .acts_size = sizeof(struct acts),
                                      .grads_size = sizeof(struct grads),
                                      .buffers = buffers,
                                      .forward = forward,
                                      .recompute = recompute,
                                      .backward = backward,
                                      .decode_sizes = decode_sizes,
                                      .decode_layer = decode_layer};
