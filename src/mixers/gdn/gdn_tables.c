/* gdn_tables.c -- tensors, state and buffers of the gated delta rule. */
#include "mixers/gdn/gdn_layer.h"

struct gdn_dims hl_gdn_dims(const hola_config *c) {
    struct gdn_dims s = {.d = c->hidden_size,
                         .H = c->num_heads,
                         .HV = c->num_v_heads,
                         .K = c->head_dim,
                         .V = c->head_v_dim,
                         .decay = hl_mixer_of(c->model_type)->fields & HL_GROUP_GATED,
                         .beta = c->use_beta,
                         .gated = c->use_gate,
                         .memory = hl_has_exact_memory(c),
                         .rms = hl_memory_has_own_norm(c)};
    s.qk = s.H * s.K;
    s.vv = s.HV * s.V;
    return s;
}
static struct hl_memory_heads heads_of(const struct gdn_dims *s) {
    return (struct hl_memory_heads){s->H, s->HV, s->K, s->V};
}

void hl_gdn_tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct gdn_dims s = hl_gdn_dims(c);
    const struct hl_memory_heads heads = heads_of(&s);
    const int64_t d = s.d, W = c->conv_size;
    out[Q_PROJ] = (struct hl_tensor_spec){.name = "q_proj.weight", .dim = {s.qk, d}};
    out[K_PROJ] = (struct hl_tensor_spec){.name = "k_proj.weight", .dim = {s.qk, d}};
    out[V_PROJ] = (struct hl_tensor_spec){.name = "v_proj.weight", .dim = {s.vv, d}};
    if (s.decay) out[A_PROJ] = (struct hl_tensor_spec){.name = "a_proj.weight", .dim = {s.HV, d}, .unquantised = true};
    if (s.beta) out[B_PROJ] = (struct hl_tensor_spec){.name = "b_proj.weight", .dim = {s.HV, d}, .unquantised = true};
    if (s.gated) out[G_PROJ] = (struct hl_tensor_spec){.name = "g_proj.weight", .dim = {s.vv, d}};
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {d, s.vv}};
    if (W > 0) {
        out[Q_CONV] = (struct hl_tensor_spec){.name = "q_conv1d.weight", .dim = {s.qk, 1, W}};
        out[K_CONV] = (struct hl_tensor_spec){.name = "k_conv1d.weight", .dim = {s.qk, 1, W}};
        out[V_CONV] = (struct hl_tensor_spec){.name = "v_conv1d.weight", .dim = {s.vv, 1, W}};
    }
    if (s.decay) {
        out[A_LOG] = (struct hl_tensor_spec){.name = "A_log", .dim = {s.HV}, .init = HL_INIT_A_LOG};
        out[DT_BIAS] = (struct hl_tensor_spec){.name = "dt_bias", .dim = {s.HV}, .init = HL_INIT_DT_BIAS};
    }
    out[O_NORM] = (struct hl_tensor_spec){.name = "o_norm.weight", .dim = {s.V}, .init = HL_INIT_CONSTANT, .value = 1};
    if (hl_mixer_of(c->model_type)->memory) hl_memory_tensors(c, &heads, out + MEMORY);
}

int hl_gdn_state(const hola_config *c, struct hl_state_part *out) {
    const struct gdn_dims s = hl_gdn_dims(c);
    const struct hl_memory_heads heads = heads_of(&s);
    const int64_t tail = c->conv_size > 1 ? c->conv_size - 1 : 0;
    out[STATE_S] =
        (struct hl_state_part){.name = "S", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HV * s.K * s.V};
    out[TAIL_Q] =
        (struct hl_state_part){.name = "conv.q", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = tail * s.qk};
    out[TAIL_K] =
        (struct hl_state_part){.name = "conv.k", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = tail * s.qk};
    out[TAIL_V] =
        (struct hl_state_part){.name = "conv.v", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = tail * s.vv};
    return STATE_MEMORY + hl_memory_state(c, &heads, out + STATE_MEMORY);
}

/* The row of all projections; 0: their parts would not begin on 16 bytes, or it is not wanted. */
int64_t hl_gdn_joint_row(const struct gdn_dims *s, enum hl_pass pass, bool host) {
    const int64_t few = s->HV * (s->decay + s->beta);
    if (pass != HL_TRAIN || host || s->qk % 8 || s->vv % 8 || few % 8) return 0;
    const int64_t row = 2 * s->qk + s->vv + few + (s->gated ? s->vv : 0);
    return (row + 63) / 64 * 64; /* rows begin on whole lines of memory */
}

/* The projections: arrays of their own, or parts of one row. */
static void add_projections(const struct gdn_dims *s, int64_t joint, struct hl_buffers *list, size_t row,
                            const size_t field[6]) {
    const int64_t width[6] = {s->qk, s->qk, s->vv, s->decay ? s->HV : 0, s->beta ? s->HV : 0, s->gated ? s->vv : 0};
    int64_t offset = 0;
    if (joint) hl_buffer_add(list, (struct hl_buffer){.field = row, .width = joint});
    for (int i = 0; i < 6; i++) {
        hl_buffer_add(list,
                      (struct hl_buffer){.field = field[i], .width = width[i], .inside = joint > 0, .offset = offset});
        offset += width[i];
    }
}

void hl_gdn_buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct gdn_dims s = hl_gdn_dims(f->cfg);
    const struct hl_memory_heads heads = heads_of(&s);
    const int64_t joint = hl_gdn_joint_row(&s, f->pass, f->host);
    const bool train = f->pass == HL_TRAIN;
#define AT(name) offsetof(struct gdn_acts, name)
#define ADD(name, numbers, ...) \
    hl_buffer_add(acts, (struct hl_buffer){.field = AT(name), .width = numbers, __VA_ARGS__})
#define CHEAP .cheap = true
#define REAL .element = HL_ELEMENT_REAL
    add_projections(&s, joint, acts, AT(row), (const size_t[6]){AT(q0), AT(k0), AT(v0), AT(a), AT(b), AT(z)});
    ADD(q1, s.qk, CHEAP);
    ADD(k1, s.qk, CHEAP);
    ADD(v1, s.vv, CHEAP);
    ADD(q, s.qk, CHEAP);
    ADD(k, s.qk, CHEAP);
    ADD(r_q, s.H, CHEAP, REAL);
    ADD(r_k, s.H, CHEAP, REAL);
    ADD(beta, s.HV, REAL);
    ADD(g, s.decay ? s.HV : 0, REAL);
    ADD(m, s.HV, REAL);
    ADD(v_new, train ? s.vv : 0, .cheap = false);
    ADD(A, train ? s.HV * HL_CHUNK : 0, .cheap = false);
    ADD(S, train && f->host ? s.HV * s.K * s.V : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(o, s.vv, .cheap = false);
    ADD(r_o, s.HV, REAL);
    ADD(y, s.vv, CHEAP);
    hl_memory_buffers(f, &heads, acts, AT(memory), grads, offsetof(struct gdn_grads, memory));
#undef AT
#undef ADD
    if (!train) return;
#define AT(name) offsetof(struct gdn_grads, name)
#define ADD(name, numbers, ...) \
    hl_buffer_add(grads, (struct hl_buffer){.field = AT(name), .width = numbers, __VA_ARGS__})
    add_projections(&s, joint, grads, AT(row), (const size_t[6]){AT(dq0), AT(dk0), AT(dv0), AT(da), AT(db), AT(dz)});
    ADD(dy, s.vv, .cheap = false);
    ADD(dout, s.vv, .cheap = false);
    ADD(dq, s.qk, .cheap = false);
    ADD(dk, s.qk, .cheap = false);
    ADD(dv, s.vv, .cheap = false);
    ADD(dq1, s.qk, .cheap = false);
    ADD(dk1, s.qk, .cheap = false);
    ADD(dg, s.HV, REAL);
    ADD(dbeta, s.HV, REAL);
#undef AT
#undef ADD
#undef CHEAP
#undef REAL
}
