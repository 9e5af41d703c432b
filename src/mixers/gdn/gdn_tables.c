/* gdn_tables.c -- tensors, state and buffers of the delta rule, including kda's. */
#include "mixers/gdn/gdn_layer.h"

struct gdn_dims hl_gdn_dims(const hola_config *c) {
    struct gdn_dims s = {.d = c->hidden_size,
                         .H = c->num_heads,
                         .HV = c->num_v_heads,
                         .K = c->head_dim,
                         .V = c->head_v_dim,
                         .decays = hl_mixer_of(c->model_type)->fields & HL_GROUP_GATED ? 1 : 0,
                         .beta = c->use_beta,
                         .gated = c->use_gate,
                         .memory = hl_has_exact_memory(c),
                         .rms = hl_memory_has_own_norm(c)};
    s.width[0] = s.width[1] = s.qk = s.H * s.K;
    s.width[2] = s.vv = s.HV * s.V;
    if (hl_mixer_of(c->model_type)->fields & HL_GROUP_KDA) s.low = s.V, s.decays = s.K, s.beta = s.gated = true;
    return s;
}
static struct hl_memory_heads heads_of(const struct gdn_dims *s) {
    return (struct hl_memory_heads){s->H, s->HV, s->K, s->V};
}

void hl_gdn_tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const struct gdn_dims s = hl_gdn_dims(c);
    const struct hl_memory_heads heads = heads_of(&s);
    const int64_t d = s.d;
    hl_qkv_projection_tensors(d, s.width, out + Q_PROJ);
    if (s.low) {
        out[F_DOWN] = (struct hl_tensor_spec){.name = "f_proj.0.weight", .dim = {s.low, d}, .unquantised = true};
        out[G_DOWN] = (struct hl_tensor_spec){.name = "g_proj.0.weight", .dim = {s.low, d}};
        out[F_UP] = (struct hl_tensor_spec){.name = "f_proj.1.weight", .dim = {s.HV * s.K, s.low}, .unquantised = true};
        out[G_UP] = (struct hl_tensor_spec){.name = "g_proj.1.weight", .dim = {s.vv, s.low}};
        out[G_BIAS] = (struct hl_tensor_spec){.name = "g_proj.1.bias", .dim = {s.vv}, .init = HL_INIT_CONSTANT};
    } else if (s.decays)
        out[A_PROJ] = (struct hl_tensor_spec){.name = "a_proj.weight", .dim = {s.HV, d}, .unquantised = true};
    if (s.beta) out[B_PROJ] = (struct hl_tensor_spec){.name = "b_proj.weight", .dim = {s.HV, d}, .unquantised = true};
    if (s.gated && !s.low) out[G_PROJ] = (struct hl_tensor_spec){.name = "g_proj.weight", .dim = {s.vv, d}};
    out[O_PROJ] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {d, s.vv}};
    hl_qkv_conv_tensors(c, s.width, out + Q_CONV);
    if (s.decays) {
        out[A_LOG] = (struct hl_tensor_spec){.name = "A_log", .dim = {s.HV}, .init = HL_INIT_A_LOG};
        out[DT_BIAS] = (struct hl_tensor_spec){.name = "dt_bias", .dim = {s.HV * s.decays}, .init = HL_INIT_DT_BIAS};
    }
    if (s.low) out[A_LOG].value = 1; /* log U(1, 16) */
    if (s.low && c->safe_gate) out[A_LOG].init = HL_INIT_CONSTANT, out[A_LOG].value = 0;
    out[O_NORM] = (struct hl_tensor_spec){.name = "o_norm.weight", .dim = {s.V}, .init = HL_INIT_CONSTANT, .value = 1};
    if (hl_memory_possible(c)) hl_memory_tensors(c, &heads, out + MEMORY);
}

int hl_gdn_state(const hola_config *c, struct hl_state_part *out) {
    const struct gdn_dims s = hl_gdn_dims(c);
    const struct hl_memory_heads heads = heads_of(&s);
    out[STATE_S] =
        (struct hl_state_part){.name = "S", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = s.HV * s.K * s.V};
    hl_qkv_conv_state(c, s.width, out + TAIL_Q);
    return STATE_MEMORY + hl_memory_state(c, &heads, out + STATE_MEMORY);
}

/* The row of all projections. */
int64_t hl_gdn_joint_row(const struct gdn_dims *s, enum hl_pass pass, bool host) {
    const int64_t low[] = {s->qk, s->qk, s->vv, s->low, s->low, s->HV};
    const int64_t few = s->HV * (s->decays + s->beta), plain[] = {s->qk, s->qk, s->vv, few, s->gated ? s->vv : 0};
    return s->low ? hl_joint_row(pass, host, 6, low) : hl_joint_row(pass, host, 5, plain);
}

/* The projections in the order of their tensors, then the outputs of F_UP and G_UP. */
static void add_projections(const struct gdn_dims *s, int64_t joint, struct hl_buffers *list, size_t row,
                            const size_t field[8]) {
    const bool low = s->low > 0;
    const int64_t a = s->HV * s->decays, z = s->gated ? s->vv : 0;
    const int64_t width[8] = {s->qk, s->qk, s->vv, s->low, s->low, low ? 0 : a, s->beta ? s->HV : 0, low ? 0 : z};
    hl_buffer_add_row(list, joint, row, 8, field, width);
    if (!low) return;
    hl_buffer_add(list, (struct hl_buffer){.field = field[5], .width = a});
    hl_buffer_add(list, (struct hl_buffer){.field = field[7], .width = z});
}

/* Numbers per chunk that kda's op keeps; none under --recompute, as the op can compute them again. */
static int64_t kept_tiles(const struct hl_buffers_for *f, const struct gdn_dims *s) {
    const bool keeps = s->low && f->pass == HL_TRAIN && !f->recompute && f->backend && f->backend->kda_kept;
    return keeps ? s->HV * f->backend->kda_kept(f->backend, s->K, s->V) / (int64_t)sizeof(real) : 0;
}

void hl_gdn_buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    const struct gdn_dims s = hl_gdn_dims(f->cfg);
    const struct hl_memory_heads heads = heads_of(&s);
    const int64_t joint = hl_gdn_joint_row(&s, f->pass, f->host);
    const bool train = f->pass == HL_TRAIN;
    const bool writes = train || (hl_memory_measures(f->cfg) && !f->host); /* a device computes block_S from v_new */
#define AT(name) offsetof(struct gdn_acts, name)
#define ADD(name, numbers, ...) \
    hl_buffer_add(acts, (struct hl_buffer){.field = AT(name), .width = numbers, __VA_ARGS__})
#define CHEAP .cheap = true
#define REAL .element = HL_ELEMENT_REAL
    add_projections(&s, joint, acts, AT(row),
                    (const size_t[8]){AT(q0), AT(k0), AT(v0), AT(f0), AT(g0), AT(a), AT(b), AT(z)});
    ADD(q1, s.qk, CHEAP);
    ADD(k1, s.qk, CHEAP);
    ADD(v1, s.vv, CHEAP);
    ADD(q, s.qk, CHEAP);
    ADD(k, s.qk, CHEAP);
    ADD(r_q, s.H, CHEAP, REAL);
    ADD(r_k, s.H, CHEAP, REAL);
    ADD(beta, s.HV, REAL);
    ADD(g, s.HV * s.decays, REAL);
    ADD(m, s.HV, REAL);
    ADD(v_new, writes ? s.vv : 0, .cheap = false);
    ADD(A, writes ? s.HV * HL_CHUNK : 0, .cheap = false);
    ADD(S, train && f->host ? s.HV * s.K * s.V : 0, REAL, .unit = HL_PER_CHUNK);
    ADD(tiles, kept_tiles(f, &s), REAL, .unit = HL_PER_CHUNK);
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
    add_projections(&s, joint, grads, AT(row),
                    (const size_t[8]){AT(dq0), AT(dk0), AT(dv0), AT(df0), AT(dg0), AT(da), AT(db), AT(dz)});
    ADD(dy, s.vv, .cheap = false);
    ADD(dout, s.vv, .cheap = false);
    ADD(dq, s.qk, .cheap = false);
    ADD(dk, s.qk, .cheap = false);
    ADD(dv, s.vv, .cheap = false);
    ADD(dq1, s.qk, .cheap = false);
    ADD(dk1, s.qk, .cheap = false);
    ADD(dg, s.HV * (s.low ? s.decays : 1), REAL);
    ADD(dbeta, s.HV, REAL);
#undef AT
#undef ADD
#undef CHEAP
#undef REAL
}
