/* gla.c -- gated linear attention: a state with a decay per key channel, which comes through 16 channels (gk_proj);
 * optionally short convolutions, a feature map of q and k, and an output gate. */
#include "mixers/qkv.h"

enum tensor { /* the first five share their input: one product can make them (hl_joint_row) */
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
#define GATE_NORMALIZER 16 /* what the logarithm of the decay is divided by */

struct acts {
    void *row; /* training on a device: the outputs of the first five tensors of a token are one row */
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

struct dims {
    int64_t d, H, HK, K, V, gate; /* hidden size; query heads, key heads, their sizes; HK K */
    int64_t width[3], out;        /* of q, k, v; of the heads' outputs */
    hola_feature_map map[3];
};
static struct dims dims_of(const hola_config *c) {
    struct dims s = {
        .d = c->hidden_size, .H = c->num_heads, .HK = c->num_kv_heads, .K = c->head_dim, .V = c->head_v_dim};
    s.width[0] = s.H * s.K, s.width[1] = s.gate = s.HK * s.K, s.width[2] = s.HK * s.V;
    s.out = s.H * s.V;
    s.map[0] = s.map[1] = c->feature_map;
    return s;
}

/* ---- config ---- */

static void defaults(hola_config *c) {
    c->num_hidden_layers = 24;
    c->num_heads = c->num_kv_heads = 4;
    c->head_dim = c->hidden_size / 8;
    c->head_v_dim = c->hidden_size / 4;
    c->conv_size = 0;
}
/* Four heads; at 46m an MLP that gives about as many parameters as gated_deltanet has. */
static void preset(hola_config *c) {
    c->num_heads = c->num_kv_heads = 4;
    c->head_dim = c->hidden_size / 8;
    c->head_v_dim = c->hidden_size / 4;
    c->use_gate = true;
    if (c->hidden_size == 512) c->intermediate_size = 928;
}

/* ---- tables ---- */

static void tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct dims s = dims_of(c);
    out[Q_PROJ] = (struct hl_tensor_spec){.name = "q_proj.weight", .dim = {s.width[0], s.d}};
    out[K_PROJ] = (struct hl_tensor_spec){.name = "k_proj.weight", .dim = {s.width[1], s.d}};
    out[V_PROJ] = (struct hl_tensor_spec){.name = "v_proj.weight", .dim = {s.width[2], s.d}};
    if (c->use_gate) out[G_PROJ] = (struct hl_tensor_spec){.name = "g_proj.weight", .dim = {s.out, s.d}};
    out[GK_DOWN] = (struct hl_tensor_spec){.name = "gk_proj.0.weight", .dim = {LOW, s.d}, .unquantised = true};
    out[GK_UP] = (struct hl_tensor_spec){.name = "gk_proj.1.weight", .dim = {s.gate, LOW}, .unquantised = true};
    out[GK_BIAS] = (struct hl_tensor_spec){.name = "gk_proj.1.bias", .dim = {s.gate}, .init = HL_INIT_CONSTANT};
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {s.d, s.out}};
    hl_qkv_tensors(c, s.width, out + CONV);
    if (!c->elementwise_affine) return;
    out[NORM] =
        (struct hl_tensor_spec){.name = c->use_gate && c->fuse_norm ? "g_norm_swish_gate.weight" : "g_norm.weight",
                                .dim = {s.V},
                                .init = HL_INIT_CONSTANT,
                                .value = 1};
}

static int state(const hola_config *c, struct hl_state_part *out) {
    const struct dims s = dims_of(c);
    out[STATE_S] =
        (struct hl_state_part){.name = "S", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HK * s.K * s.V};
    hl_qkv_state(c, s.width, out + TAILS);
    return PARTS;
}

static void row_widths(const hola_config *c, const struct dims *s, int64_t width[5]) {
    for (int i = 0; i < 3; i++) width[i] = s->width[i];
    width[3] = c->use_gate ? s->out : 0;
    width[4] = LOW;
}

static void buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct dims s = dims_of(f->cfg);
    const bool train = f->pass == HL_TRAIN;
    int64_t width[5];
    row_widths(f->cfg, &s, width);
    const int64_t joint = hl_joint_row(f->pass, f->host, 5, width);
#define A(name) offsetof(struct acts, name)
#define G(name) offsetof(struct grads, name)
#define ADD(list, at, numbers, ...) hl_buffer_add(list, (struct hl_buffer){.field = at, .width = numbers, __VA_ARGS__})
#define REAL .element = HL_ELEMENT_REAL
    const size_t in[5] = {A(qkv.projected[0]), A(qkv.projected[1]), A(qkv.projected[2]), A(z), A(low)};
    const size_t din[5] = {G(qkv.dprojected[0]), G(qkv.dprojected[1]), G(qkv.dprojected[2]), G(dz), G(dlow)};
    hl_buffer_add_row(acts, joint, A(row), 5, in, width);
    hl_qkv_buffers(f, s.width, s.map, acts, A(qkv), grads, G(qkv));
    ADD(acts, A(gate), s.gate, .cheap = false);
    ADD(acts, A(g), s.gate, REAL);
    ADD(acts, A(h), train && f->host ? s.HK * s.K * s.V : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(acts, A(o), s.out, .cheap = false);
    ADD(acts, A(r_o), s.H, REAL);
    ADD(acts, A(y), s.out, .cheap = true);
    if (!train) return;
    hl_buffer_add_row(grads, joint, G(row), 5, din, width);
    ADD(grads, G(dgate), s.gate, .cheap = false);
    ADD(grads, G(dg), s.gate, REAL);
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
    struct dims s;
    const struct acts *a;
    struct grads d; /* all NULL in a forward pass */
    int64_t joint;
};
static struct layer open_layer(const struct hl_layer *l) {
    struct layer y = {.l = l, .s = dims_of(l->cfg), .a = l->acts};
    int64_t width[5];
    row_widths(l->cfg, &y.s, width);
    y.joint = hl_joint_row(l->pass, l->backend->host, 5, width);
    if (l->grads) y.d = *(const struct grads *)l->grads;
    return y;
}

static struct hl_linear projections(const struct layer *y) { /* in the order of the weights */
    struct hl_linear in = {.M = y->l->T, .K = y->s.d, .x = y->l->xn, .dx = y->l->dxn, .ld = y->joint};
    for (int i = 0; i < 3; i++) hl_layer_part(y->l, &in, Q_PROJ + i, y->a->qkv.projected[i], y->d.qkv.dprojected[i]);
    hl_layer_part(y->l, &in, G_PROJ, y->a->z, y->d.dz);
    hl_layer_part(y->l, &in, GK_DOWN, y->a->low, y->d.dlow);
    return in;
}
static struct hl_qkv qkv(const struct layer *y) {
    struct hl_qkv q = {.l = y->l, .conv_tensor = CONV, .conv_state = TAILS, .joint = y->joint, .a = &y->a->qkv};
    for (int i = 0; i < 3; i++) q.width[i] = y->s.width[i], q.map[i] = y->s.map[i];
    q.d = y->l->grads ? &y->d.qkv : NULL;
    return q;
}
static struct hl_linear widen(const struct layer *y) {
    struct hl_linear up = {.M = y->l->T, .K = LOW, .x = y->a->low, .dx = y->d.dlow, .ldx = y->joint};
    hl_layer_part(y->l, &up, GK_UP, y->a->gate, y->d.dgate);
    return up;
}
static struct hl_logsigmoid decay(const struct layer *y) {
    const struct hl_layer_tensor *bias = &y->l->tensor[GK_BIAS];
    return (struct hl_logsigmoid){.T = y->l->T,
                                  .C = y->s.gate,
                                  .x = y->a->gate,
                                  .bias = bias->vector,
                                  .normalizer = GATE_NORMALIZER,
                                  .clamp_min = (real)y->l->cfg->clamp_min,
                                  .g = y->a->g,
                                  .dg = y->d.dg,
                                  .dx = y->d.dgate,
                                  .dbias = bias->grad};
}
static struct hl_gla recurrence(const struct layer *y, const struct hl_qkv *in) {
    const struct hl_qkv_end q = hl_qkv_end(in, 0), k = hl_qkv_end(in, 1), v = hl_qkv_end(in, 2);
    return (struct hl_gla){.rows = y->l->rows,
                           .H = y->s.H,
                           .HK = y->s.HK,
                           .K = y->s.K,
                           .V = y->s.V,
                           .q = q.x,
                           .k = k.x,
                           .v = v.x,
                           .ld_q = q.ld,
                           .ld_k = k.ld,
                           .ld_v = v.ld,
                           .g = y->a->g,
                           .scale = 1 / R_SQRT((real)y->s.K),
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
    return (struct hl_rmsnorm){.M = y->l->T * y->s.H,
                               .D = y->s.V,
                               .eps = (real)y->l->cfg->norm_eps,
                               .x = y->a->o,
                               .z = y->a->z,
                               .z_heads = y->joint ? y->s.H : 0,
                               .z_ld = y->joint,
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
    const struct hl_qkv path = qkv(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gla rule = recurrence(&y, &path);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    b->ops.linear_forward(b, &in);
    hl_qkv_forward(&path);
    b->ops.linear_forward(b, &up);
    b->ops.logsigmoid_forward(b, &gate);
    b->ops.gla_forward(b, &rule);
    b->ops.rmsnorm_forward(b, &norm);
    hl_layer_project(l, O_PROJ, y.a->y, y.s.out);
}

static void recompute(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_qkv path = qkv(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    hl_qkv_forward(&path);
    l->backend->ops.rmsnorm_forward(l->backend, &norm);
}

static void backward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y), up = widen(&y);
    const struct hl_qkv path = qkv(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gla rule = recurrence(&y, &path);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    hl_layer_project_backward(l, O_PROJ, y.a->y, y.s.out, y.d.dy);
    b->ops.rmsnorm_backward(b, &norm);
    b->ops.gla_backward(b, &rule);
    b->ops.logsigmoid_backward(b, &gate);
    b->ops.linear_backward(b, &up);
    hl_qkv_backward(&path);
    b->ops.linear_backward(b, &in);
}

/* ---- for the fused decoders ---- */

static void decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    const struct dims s = dims_of(l->cfg);
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
