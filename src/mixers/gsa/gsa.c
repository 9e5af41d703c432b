/* gsa.c -- gated slot attention: decaying slots of keys and values, read by a softmax over the slots; optionally short
 * convolutions. q and k pass through feature maps, v through SiLU; the head outputs pass through SiLU and one RMSNorm
 * over all channels. */
#include "mixers/qkv.h"

enum tensor { /* the first four share their input: one product can compute them (hl_joint_row) */
              Q_PROJ,
              K_PROJ,
              V_PROJ,
              F_PROJ, /* raw decay of the slots */
              O_PROJ,
              CONV, /* of q, k, v, with conv_size > 0 */
              NORM = CONV + 3
};
enum part { STATE_K, STATE_V, TAILS, PARTS = TAILS + 3 };
#define NORM_EPS 1e-5 /* as in fla, independent of norm_eps */

struct acts {
    void *row; /* training on a device: one row holds a token's outputs of the first four tensors */
    struct hl_qkv_acts qkv;
    void *gate;    /* raw decay */
    real *f;       /* log decay */
    void *p;       /* softmax over the slots, kept on a device */
    real *hk, *hv; /* slots before each chunk; NULL on a device */
    void *o, *o1;  /* head outputs; after SiLU */
    real *r_o;
    void *y;
};
struct grads {
    void *row;
    struct hl_qkv_grads qkv;
    void *dgate;
    real *df;
    void *dout, *dy;
};

static struct hl_qkv_dims dims_of(const hola_config *c) {
    struct hl_qkv_dims s = hl_qkv_dims(c);
    s.map[2] = HOLA_MAP_SWISH;
    return s;
}

/* ---- config ---- */

static void sizes(hola_config *c) {
    c->num_heads = c->num_kv_heads = 4;
    c->head_dim = c->head_v_dim = c->hidden_size / 4;
}
static void defaults(hola_config *c) {
    sizes(c);
    c->num_hidden_layers = 24;
    c->conv_size = 0;
    c->feature_map = HOLA_MAP_SWISH;
}
/* At 46m the MLP is sized to match the parameter count of gated_deltanet. */
static void preset(hola_config *c) {
    sizes(c);
    if (c->hidden_size == 512) c->intermediate_size = 864;
}

static hola_status check(const hola_config *c, const char *where) {
    if (c->feature_map != HOLA_MAP_SWISH && c->feature_map != HOLA_MAP_RELU)
        return hl_fail(HOLA_EINVAL, "%s: feature_map: gsa has swish or relu", where);
    if (c->num_heads * c->head_v_dim != c->hidden_size)
        return hl_fail(HOLA_EINVAL, "%s: expand_v: %lld heads of %lld channels are not hidden_size, %lld", where,
                       (long long)c->num_heads, (long long)c->head_v_dim, (long long)c->hidden_size);
    return hl_qkv_check(c, where);
}

/* ---- tables ---- */

static int64_t gate_width(const hola_config *c) { return c->num_kv_heads * c->num_slots; }

static void tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct hl_qkv_dims s = dims_of(c);
    hl_qkv_projection_tensors(s.d, s.width, out + Q_PROJ);
    out[F_PROJ] = (struct hl_tensor_spec){.name = "f_proj.weight", .dim = {gate_width(c), s.d}, .unquantised = true};
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {s.d, s.out}};
    hl_qkv_conv_tensors(c, s.width, out + CONV);
    if (c->elementwise_affine)
        out[NORM] =
            (struct hl_tensor_spec){.name = "g_norm.weight", .dim = {s.d}, .init = HL_INIT_CONSTANT, .value = 1};
}

static int state(const hola_config *c, struct hl_state_part *out) {
    const struct hl_qkv_dims s = dims_of(c);
    const int64_t M = c->num_slots;
    out[STATE_K] = (struct hl_state_part){
        .name = "slots.k", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HK * s.K * M};
    out[STATE_V] = (struct hl_state_part){
        .name = "slots.v", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HK * M * s.V};
    hl_qkv_conv_state(c, s.width, out + TAILS);
    return PARTS;
}

/* The projections that share their input; numbers per joint row, 0: separate arrays. */
enum { SHARED = 4 };
static int64_t joint_row(const struct hl_buffers_for *f, const struct hl_qkv_dims *s, int64_t width[SHARED]) {
    for (int i = 0; i < 3; i++) width[i] = s->width[i];
    width[3] = gate_width(f->cfg);
    return hl_joint_row(f->pass, f->host, SHARED, width);
}

static void buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct hl_qkv_dims s = dims_of(f->cfg);
    const bool train = f->pass == HL_TRAIN, keep = train && f->host;
    int64_t width[SHARED];
    const int64_t joint = joint_row(f, &s, width), gate = gate_width(f->cfg), M = f->cfg->num_slots;
#define A(name) offsetof(struct acts, name)
#define G(name) offsetof(struct grads, name)
#define ADD(list, at, numbers, ...) hl_buffer_add(list, (struct hl_buffer){.field = at, .width = numbers, __VA_ARGS__})
#define REAL .element = HL_ELEMENT_REAL
    const size_t in[SHARED] = {A(qkv.projected[0]), A(qkv.projected[1]), A(qkv.projected[2]), A(gate)};
    const size_t din[SHARED] = {G(qkv.dprojected[0]), G(qkv.dprojected[1]), G(qkv.dprojected[2]), G(dgate)};
    hl_buffer_add_row(acts, joint, A(row), SHARED, in, width);
    hl_qkv_buffers(f, &s, acts, A(qkv), grads, G(qkv));
    ADD(acts, A(f), gate, REAL);
    ADD(acts, A(p), train && !f->host ? s.H * M : 0, .cheap = false);
    ADD(acts, A(hk), keep ? s.HK * s.K * M : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(acts, A(hv), keep ? s.HK * M * s.V : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(acts, A(o), s.out, .cheap = false);
    ADD(acts, A(o1), s.out, .cheap = true);
    ADD(acts, A(r_o), 1, REAL);
    ADD(acts, A(y), s.out, .cheap = true);
    if (!train) return;
    hl_buffer_add_row(grads, joint, G(row), SHARED, din, width);
    ADD(grads, G(df), gate, REAL);
    ADD(grads, G(dout), s.out, .cheap = false);
    ADD(grads, G(dy), s.out, .cheap = false);
#undef A
#undef G
#undef ADD
#undef REAL
}

static int64_t scratch(const hola_config *c) { return hl_gsa_scratch(c->head_dim, c->head_v_dim, c->num_slots); }

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
    y.qkv = (struct hl_qkv){.l = l, .s = dims_of(l->cfg), .a = &y.a->qkv, .d = d ? &d->qkv : NULL};
    y.qkv.projection = Q_PROJ, y.qkv.conv_tensor = CONV, y.qkv.conv_state = TAILS;
    y.qkv.joint = joint_row(&f, &y.qkv.s, width);
    return y;
}

static struct hl_linear projections(const struct layer *y) { /* in the order of the weights */
    struct hl_linear in = hl_qkv_projections(&y->qkv);
    hl_layer_part(y->l, &in, F_PROJ, y->a->gate, y->d.dgate);
    return in;
}
static struct hl_logsigmoid decay(const struct layer *y) {
    return (struct hl_logsigmoid){.T = y->l->T,
                                  .C = gate_width(y->l->cfg),
                                  .x = y->a->gate,
                                  .ld = y->qkv.joint,
                                  .normalizer = (real)y->l->cfg->gate_logit_normalizer,
                                  .clamp_min = -(real)INFINITY,
                                  .g = y->a->f,
                                  .dg = y->d.df,
                                  .dx = y->d.dgate};
}
static struct hl_gsa recurrence(const struct layer *y) {
    const struct hl_qkv_dims *s = &y->qkv.s;
    const struct hl_qkv_end q = hl_qkv_end(&y->qkv, 0), k = hl_qkv_end(&y->qkv, 1), v = hl_qkv_end(&y->qkv, 2);
    return (struct hl_gsa){.rows = y->l->rows,
                           .H = s->H,
                           .HK = s->HK,
                           .K = s->K,
                           .V = s->V,
                           .M = y->l->cfg->num_slots,
                           .q = q.x,
                           .k = k.x,
                           .v = v.x,
                           .f = y->a->f,
                           .out = y->a->o,
                           .p = y->a->p,
                           .Kt_off = y->l->state[STATE_K],
                           .Vt_off = y->l->state[STATE_V],
                           .hk = y->a->hk,
                           .hv = y->a->hv,
                           .dout = y->d.dout,
                           .dq = q.dx,
                           .dk = k.dx,
                           .dv = v.dx,
                           .df = y->d.df};
}
static struct hl_feature_map output_silu(const struct layer *y) { /* the gradient is updated in place */
    return (struct hl_feature_map){.M = y->l->T,
                                   .D = y->qkv.s.out,
                                   .kind = HOLA_MAP_SWISH,
                                   .x = y->a->o,
                                   .y = y->a->o1,
                                   .dy = y->d.dout,
                                   .dx = y->d.dout};
}
static struct hl_rmsnorm output_norm(const struct layer *y) {
    return (struct hl_rmsnorm){.M = y->l->T,
                               .D = y->qkv.s.out,
                               .eps = (real)NORM_EPS,
                               .x = y->a->o1,
                               .w = y->l->tensor[NORM].vector,
                               .y = y->a->y,
                               .r = y->a->r_o,
                               .dy = y->d.dy,
                               .dx = y->d.dout,
                               .dw = y->l->tensor[NORM].grad};
}

static void forward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gsa rule = recurrence(&y);
    const struct hl_feature_map silu = output_silu(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    b->ops.linear_forward(b, &in);
    hl_qkv_forward(&y.qkv);
    b->ops.logsigmoid_forward(b, &gate);
    b->ops.gsa_forward(b, &rule);
    b->ops.feature_map_forward(b, &silu);
    b->ops.rmsnorm_forward(b, &norm);
    hl_layer_project(l, O_PROJ, y.a->y, y.qkv.s.out);
}

static void recompute(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_feature_map silu = output_silu(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    hl_qkv_forward(&y.qkv);
    l->backend->ops.feature_map_forward(l->backend, &silu);
    l->backend->ops.rmsnorm_forward(l->backend, &norm);
}

static void backward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y);
    const struct hl_logsigmoid gate = decay(&y);
    const struct hl_gsa rule = recurrence(&y);
    const struct hl_feature_map silu = output_silu(&y);
    const struct hl_rmsnorm norm = output_norm(&y);
    struct hl_backend *b = l->backend;
    hl_layer_project_backward(l, O_PROJ, y.a->y, y.qkv.s.out, y.d.dy);
    b->ops.rmsnorm_backward(b, &norm);
    b->ops.feature_map_backward(b, &silu);
    b->ops.gsa_backward(b, &rule);
    b->ops.logsigmoid_backward(b, &gate);
    hl_qkv_backward(&y.qkv);
    b->ops.linear_backward(b, &in);
}

/* ---- for the fused decoders ---- */

static void decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    const struct hl_qkv_dims s = dims_of(l->cfg);
    out->rule = HL_DECODE_GSA;
    out->H = s.H, out->HV = s.HK, out->K = s.K, out->V = s.V;
    out->conv = l->cfg->conv_size;
    out->slots = l->cfg->num_slots;
    out->normalizer = (real)l->cfg->gate_logit_normalizer;
    out->S = l->state[STATE_K], out->Vt = l->state[STATE_V];
}
static bool decode_layer(const struct hl_layer *l, struct hl_decode_layer *out) {
    const struct hl_layer_tensor *t = l->tensor;
    out->in = hl_layer_adjacent(l, Q_PROJ, V_PROJ);
    out->low = t[F_PROJ].W.data;
    out->o = t[O_PROJ].W.data;
    out->o_norm = t[NORM].vector;
    return out->in && out->o_norm && l->cfg->feature_map == HOLA_MAP_SWISH && l->cfg->num_kv_heads == l->cfg->num_heads;
}

extern const struct hl_mixer hl_mixer_gsa;
const struct hl_mixer hl_mixer_gsa = {.name = "gsa",
                                      .architecture = "GSAForCausalLM",
                                      .fields = HL_GROUP_GSA,
                                      .defaults = defaults,
                                      .preset = preset,
                                      .check = check,
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
