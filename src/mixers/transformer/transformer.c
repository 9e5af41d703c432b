/* transformer.c -- Transformer++: softmax attention with rotary positions and grouped heads; optionally biases of q, k
 * and v, norms of q and k, and a window.
 *
 * A session keeps the rotated keys and the values of all tokens in pages, or those of the window in a ring buffer. */
#include "mixers/qkv.h"

enum tensor { /* the projections are adjacent, so that one product can compute them (struct acts) */
              Q_PROJ,
              K_PROJ,
              V_PROJ,
              Q_BIAS, /* with qkv_bias */
              K_BIAS,
              V_BIAS,
              Q_NORM, /* with qk_norm */
              K_NORM,
              O_PROJ
};
enum part { KEYS, VALUES, PARTS };
enum { MOST_CHANNELS = 1024 }; /* of a head, on a device */
#define QK_NORM_EPS 1e-5       /* as in fla, independent of norm_eps */

struct acts {
    void *row;     /* training on a device without qk_norm: one row holds a token's q, k, v, another their gradients */
    void *q0, *k0; /* with qk_norm: before the norm */
    void *q, *k, *v; /* q and k are rotated in place */
    real *r_q, *r_k;
    void *o;
    real *lse;
};
struct grads {
    void *row;
    void *dq0, *dk0;
    void *dq, *dk, *dv, *dout;
};

struct dims {
    int64_t d, H, HK, D, q, kv; /* hidden size; query heads, key and value heads, their size; H D, HK D */
    int64_t width[3];           /* of q, k, v */
    bool bias, norm;
};
static struct dims dims_of(const hola_config *c) {
    struct dims s = {.d = c->hidden_size,
                     .H = c->num_heads,
                     .HK = c->num_kv_heads,
                     .D = c->hidden_size / c->num_heads,
                     .bias = c->qkv_bias,
                     .norm = c->qk_norm};
    s.width[0] = s.q = s.H * s.D;
    s.width[1] = s.width[2] = s.kv = s.HK * s.D;
    return s;
}

/* ---- config ---- */

static void defaults(hola_config *c) {
    c->num_hidden_layers = 24;
    c->num_heads = c->num_kv_heads = 32;
    c->rope_theta = 10000;
}
/* Heads of 64; at 46m a larger MLP, since the mixer has fewer parameters than gated_deltanet's. */
static void preset(hola_config *c) {
    c->num_heads = c->num_kv_heads = c->hidden_size / 64;
    if (c->hidden_size == 512) c->intermediate_size = 960;
}

static hola_status check(const hola_config *c, const char *where) {
    if (c->hidden_size % c->num_heads != 0)
        return hl_fail(HOLA_EINVAL, "%s: num_heads: %lld does not divide hidden_size, %lld", where,
                       (long long)c->num_heads, (long long)c->hidden_size);
    const int64_t D = c->hidden_size / c->num_heads;
    if (D % 2 != 0)
        return hl_fail(HOLA_EINVAL, "%s: num_heads: %lld gives an odd head size, %lld", where, (long long)c->num_heads,
                       (long long)D);
    if (D > MOST_CHANNELS)
        return hl_fail(HOLA_EINVAL, "%s: num_heads: %lld gives heads of %lld channels, more than %d", where,
                       (long long)c->num_heads, (long long)D, MOST_CHANNELS);
    return hl_qkv_check(c, where);
}

/* ---- tables ---- */

static void tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct dims s = dims_of(c);
#define VECTOR(text, n, start) \
    (struct hl_tensor_spec){.name = text, .dim = {n}, .init = HL_INIT_CONSTANT, .value = start}
    hl_qkv_projection_tensors(s.d, s.width, out + Q_PROJ);
    if (s.bias) {
        out[Q_BIAS] = VECTOR("q_proj.bias", s.q, 0);
        out[K_BIAS] = VECTOR("k_proj.bias", s.kv, 0);
        out[V_BIAS] = VECTOR("v_proj.bias", s.kv, 0);
    }
    if (s.norm) {
        out[Q_NORM] = VECTOR("q_norm.weight", s.D, 1);
        out[K_NORM] = VECTOR("k_norm.weight", s.D, 1);
    }
#undef VECTOR
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {s.d, s.q}};
}

static int state(const hola_config *c, struct hl_state_part *out) {
    const struct dims s = dims_of(c);
    const bool ring = c->window_size > 0;
    for (int i = 0; i < PARTS; i++)
        out[i] = (struct hl_state_part){.name = i == KEYS ? "k" : "v",
                                        .kind = HL_STATE_ACT,
                                        .change = ring ? HL_REPLACED : HL_GROWS,
                                        .count = s.kv * (ring ? c->window_size : 1)};
    return PARTS;
}

/* Numbers per joint row of q, k and v; 0: separate arrays, which the norms need. */
static int64_t joint_row(const struct dims *s, enum hl_pass pass, bool host) {
    return s->norm ? 0 : hl_joint_row(pass, host, 3, s->width);
}

static void buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct dims s = dims_of(f->cfg);
    const int64_t joint = joint_row(&s, f->pass, f->host);
    const bool train = f->pass == HL_TRAIN;
#define A(name) offsetof(struct acts, name)
#define G(name) offsetof(struct grads, name)
#define ADD(list, at, numbers, ...) hl_buffer_add(list, (struct hl_buffer){.field = at, .width = numbers, __VA_ARGS__})
#define REAL .element = HL_ELEMENT_REAL
    const size_t in[3] = {s.norm ? A(q0) : A(q), s.norm ? A(k0) : A(k), A(v)};
    const size_t din[3] = {s.norm ? G(dq0) : G(dq), s.norm ? G(dk0) : G(dk), G(dv)};
    hl_buffer_add_row(acts, joint, A(row), 3, in, s.width);
    if (s.norm) {
        ADD(acts, A(q), s.q, .cheap = true);
        ADD(acts, A(k), s.kv, .cheap = true);
        ADD(acts, A(r_q), s.H, REAL);
        ADD(acts, A(r_k), s.HK, REAL);
    }
    ADD(acts, A(o), s.q, .cheap = false);
    ADD(acts, A(lse), train ? s.H : 0, REAL);
    if (!train) return;
    hl_buffer_add_row(grads, joint, G(row), 3, din, s.width);
    if (s.norm) {
        ADD(grads, G(dq), s.q, .cheap = false);
        ADD(grads, G(dk), s.kv, .cheap = false);
    }
    ADD(grads, G(dout), s.q, .cheap = false);
#undef A
#undef G
#undef ADD
#undef REAL
}

static int64_t scratch(const hola_config *c) {
    const struct dims s = dims_of(c);
    return hl_attention_scratch(s.H, s.HK, s.D);
}

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
    if (l->grads) y.d = *(const struct grads *)l->grads;
    y.joint = joint_row(&y.s, l->pass, l->backend->host);
    return y;
}

static struct hl_linear projections(const struct layer *y) {
    struct hl_linear in = {.M = y->l->T, .K = y->s.d, .x = y->l->xn, .dx = y->l->dxn, .ld = y->joint};
    hl_layer_part(y->l, &in, Q_PROJ, y->s.norm ? y->a->q0 : y->a->q, y->s.norm ? y->d.dq0 : y->d.dq);
    hl_layer_part(y->l, &in, K_PROJ, y->s.norm ? y->a->k0 : y->a->k, y->s.norm ? y->d.dk0 : y->d.dk);
    hl_layer_part(y->l, &in, V_PROJ, y->a->v, y->d.dv);
    return in;
}
/* The bias of part i of the projections. */
static struct hl_bias bias(const struct layer *y, const struct hl_linear *in, int i) {
    return (struct hl_bias){.M = y->l->T,
                            .N = in->part[i].W.rows,
                            .ld = y->joint,
                            .b = y->l->tensor[Q_BIAS + i].vector,
                            .x = in->part[i].out,
                            .dx = in->part[i].dout,
                            .db = y->l->tensor[Q_BIAS + i].grad};
}
static struct hl_rmsnorm norm(const struct layer *y, int which) {
    const bool q = which == Q_NORM;
    return (struct hl_rmsnorm){.M = y->l->T * (q ? y->s.H : y->s.HK),
                               .D = y->s.D,
                               .eps = (real)QK_NORM_EPS,
                               .x = q ? y->a->q0 : y->a->k0,
                               .w = y->l->tensor[which].vector,
                               .y = q ? y->a->q : y->a->k,
                               .r = q ? y->a->r_q : y->a->r_k,
                               .dy = q ? y->d.dq : y->d.dk,
                               .dx = q ? y->d.dq0 : y->d.dk0,
                               .dw = y->l->tensor[which].grad};
}
static struct hl_rope rope(const struct layer *y, int which) {
    const bool q = which == Q_PROJ;
    void *x = q ? y->a->q : y->a->k, *dx = q ? y->d.dq : y->d.dk;
    return (struct hl_rope){.rows = y->l->rows,
                            .H = q ? y->s.H : y->s.HK,
                            .D = y->s.D,
                            .theta = y->l->cfg->rope_theta,
                            .ld = y->joint,
                            .x = x,
                            .y = x,
                            .dy = dx,
                            .dx = dx};
}
static struct hl_attention attention(const struct layer *y) {
    return (struct hl_attention){.rows = y->l->rows,
                                 .H = y->s.H,
                                 .HK = y->s.HK,
                                 .D = y->s.D,
                                 .window = y->l->cfg->window_size,
                                 .scale = 1 / R_SQRT((real)y->s.D),
                                 .q = y->a->q,
                                 .k = y->a->k,
                                 .v = y->a->v,
                                 .ld = y->joint,
                                 .out = y->a->o,
                                 .lse = y->a->lse,
                                 .k_off = y->l->state[KEYS],
                                 .v_off = y->l->state[VALUES],
                                 .dout = y->d.dout,
                                 .dq = y->d.dq,
                                 .dk = y->d.dk,
                                 .dv = y->d.dv};
}

/* From the projections of q and k to the inputs of the attention. */
static void norm_and_rotate(const struct layer *y) {
    struct hl_backend *b = y->l->backend;
    for (int i = 0; i < 2; i++) {
        const struct hl_rmsnorm n = norm(y, Q_NORM + i);
        const struct hl_rope rotate = rope(y, Q_PROJ + i);
        if (y->s.norm) b->ops.rmsnorm_forward(b, &n);
        b->ops.rope_forward(b, &rotate);
    }
}

static void forward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y);
    const struct hl_attention read = attention(&y);
    struct hl_backend *b = l->backend;
    b->ops.linear_forward(b, &in);
    for (int i = 0; y.s.bias && i < 3; i++) {
        const struct hl_bias add = bias(&y, &in, i);
        b->ops.bias_forward(b, &add);
    }
    norm_and_rotate(&y);
    b->ops.attention_forward(b, &read);
    hl_layer_project(l, O_PROJ, y.a->o, y.s.q);
}

static void recompute(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    if (y.s.norm) norm_and_rotate(&y); /* otherwise q and k were kept */
}

static void backward(const struct hl_layer *l) {
    const struct layer y = open_layer(l);
    const struct hl_linear in = projections(&y);
    const struct hl_attention read = attention(&y);
    struct hl_backend *b = l->backend;
    hl_layer_project_backward(l, O_PROJ, y.a->o, y.s.q, y.d.dout);
    b->ops.attention_backward(b, &read);
    for (int i = 0; i < 2; i++) {
        const struct hl_rmsnorm n = norm(&y, Q_NORM + i);
        const struct hl_rope rotate = rope(&y, Q_PROJ + i);
        b->ops.rope_backward(b, &rotate);
        if (y.s.norm) b->ops.rmsnorm_backward(b, &n);
    }
    for (int i = 0; y.s.bias && i < 3; i++) {
        const struct hl_bias sum = bias(&y, &in, i);
        b->ops.bias_backward(b, &sum);
    }
    b->ops.linear_backward(b, &in);
}

/* ---- for the fused decoder ---- */

static void decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    const struct dims s = dims_of(l->cfg);
    out->rule = HL_DECODE_ATTENTION;
    out->H = out->HV = s.H, out->kv = s.HK, out->K = out->V = s.D;
    out->splits = s.H < 16 ? 128 / s.H / 8 * 8 : 8; /* over all heads about as many as a device has SMs */
    out->k_off = l->state[KEYS], out->v_off = l->state[VALUES];
    out->theta = l->cfg->rope_theta;
}
static bool decode_layer(const struct hl_layer *l, struct hl_decode_layer *out) {
    const hola_config *c = l->cfg;
    out->in = hl_layer_adjacent(l, Q_PROJ, V_PROJ);
    out->o = l->tensor[O_PROJ].W.data;
    return out->in && !c->qkv_bias && !c->qk_norm && c->window_size == 0;
}

extern const struct hl_mixer hl_mixer_transformer;
const struct hl_mixer hl_mixer_transformer = {.name = "transformer",
                                              .architecture = "TransformerForCausalLM",
                                              .fields = HL_GROUP_TRANSFORMER,
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
                                              .decode_layer = decode_layer,
                                              .tiled = true};
