/* exact_memory.c -- see exact_memory.h. */
#include "mixers/exact_memory.h"

bool hl_has_exact_memory(const hola_config *c) {
    const struct hl_mixer *m = hl_mixer_of(c->model_type);
    struct hl_policy policy;
    return m && m->memory && hl_policy_of(&policy, c);
}
bool hl_memory_possible(const hola_config *c) {
    const struct hl_mixer *m = hl_mixer_of(c->model_type);
    return m && m->memory && !(m->memory_optional && c->cache_evict == HOLA_EVICT_NONE);
}
bool hl_memory_has_own_norm(const hola_config *c) { return hl_has_exact_memory(c) && c->cache_norm == HOLA_NORM_RMS; }

static struct hl_policy policy_of(const hola_config *c) {
    struct hl_policy p;
    hl_policy_of(&p, c);
    return p;
}
bool hl_memory_measures(const hola_config *c) {
    return hl_has_exact_memory(c) && policy_of(c).score == HL_SCORE_RECALL;
}
bool hl_memory_has_factors(const hola_config *c) { return hl_memory_measures(c) && c->cache_norm == HOLA_NORM_RMS; }
bool hl_memory_is_learned(const hola_config *c) {
    return hl_has_exact_memory(c) && policy_of(c).score == HL_SCORE_LEARNED;
}

bool hl_memory_gates_tokens(const hola_config *c) { return hl_has_exact_memory(c) && c->cache_gate_token; }

hola_status hl_memory_config_check(const hola_config *c, const char *where) {
    const char *evict = hola_evict_name(c->cache_evict);
    if (!hl_has_exact_memory(c)) return HOLA_OK;
    const struct hl_policy p = policy_of(c);
    if (p.redundancy > 0 && p.by_position)
        return hl_fail(HOLA_EINVAL, "%s: cache_redundancy: %s ranks by position, it has no scores that decide", where,
                       evict);
    if (p.layer_set && !hl_policy_scores_writes(&p))
        return hl_fail(HOLA_EINVAL, "%s: cache_layer_set: %s does not score a token when it is written", where, evict);
    if (p.layer_set && p.redundancy > 0)
        return hl_fail(HOLA_EINVAL, "%s: cache_layer_set: cache_redundancy compares keys of one head", where);
    return HOLA_OK;
}

/* Weights start as N(0, 2 / fan_in), biases as 0. */
static void scorer_tensors(const hola_config *c, const struct hl_memory_heads *h, struct hl_tensor_spec *out) {
    const int64_t r = c->cache_lte_dim, D = h->K + h->V;
    const struct hl_tensor_spec bias = {.dim = {h->HV * r}, .init = HL_INIT_CONSTANT, .value = 0};
    out[HL_MEMORY_LTE_IN] = (struct hl_tensor_spec){
        .name = "cache_lte_in.weight", .dim = {h->HV, r, D}, .init = HL_INIT_NORMAL, .value = sqrt(2.0 / (double)D)};
    out[HL_MEMORY_LTE_CONV1] = (struct hl_tensor_spec){
        .name = "cache_lte_conv1.weight", .dim = {h->HV * r, 1, 3}, .init = HL_INIT_NORMAL, .value = sqrt(2.0 / 3)};
    out[HL_MEMORY_LTE_CONV2] = out[HL_MEMORY_LTE_CONV1];
    out[HL_MEMORY_LTE_CONV2].name = "cache_lte_conv2.weight";
    out[HL_MEMORY_LTE_BIAS1] = out[HL_MEMORY_LTE_BIAS2] = out[HL_MEMORY_LTE_BIAS_OUT] = bias;
    out[HL_MEMORY_LTE_BIAS1].name = "cache_lte_conv1.bias";
    out[HL_MEMORY_LTE_BIAS2].name = "cache_lte_conv2.bias";
    out[HL_MEMORY_LTE_OUT] = (struct hl_tensor_spec){.name = "cache_lte_out.weight",
                                                     .dim = {h->HV, r},
                                                     .init = HL_INIT_NORMAL,
                                                     .value = sqrt(2.0 / (double)r),
                                                     .plain = true};
    out[HL_MEMORY_LTE_BIAS_OUT].name = "cache_lte_out.bias";
    out[HL_MEMORY_LTE_BIAS_OUT].dim[0] = h->HV;
}

/* With cache_evict none the tensors stay, so that a saved model keeps them, but they are not trained. */
void hl_memory_tensors(const hola_config *c, const struct hl_memory_heads *h, struct hl_tensor_spec *out) {
    const bool off = !hl_has_exact_memory(c);
    if (c->cache_norm == HOLA_NORM_RMS) {
        out[HL_MEMORY_Q_NORM] = (struct hl_tensor_spec){
            .name = "cache_q_norm.weight", .dim = {h->K}, .init = HL_INIT_CONSTANT, .value = 1, .frozen = off};
        out[HL_MEMORY_K_NORM] = out[HL_MEMORY_Q_NORM];
        out[HL_MEMORY_K_NORM].name = "cache_k_norm.weight";
    }
    out[HL_MEMORY_SINK] = (struct hl_tensor_spec){
        .name = "cache_sink", .dim = {h->HV}, .init = HL_INIT_CONSTANT, .value = 0, .frozen = off};
    out[HL_MEMORY_GATE] = (struct hl_tensor_spec){
        .name = "cache_gate", .dim = {h->HV}, .init = HL_INIT_CONSTANT, .value = c->cache_gate_init, .frozen = off};
    if (c->cache_gate_token) /* starts at 0: a new model has the same gates as without it */
        out[HL_MEMORY_GATE_PROJ] = (struct hl_tensor_spec){.name = "cache_gate_proj.weight",
                                                           .dim = {h->HV, c->hidden_size},
                                                           .init = HL_INIT_CONSTANT,
                                                           .frozen = off,
                                                           .unquantised = true};
    out[HL_MEMORY_TAU] = (struct hl_tensor_spec){.name = "cache_tau",
                                                 .dim = {h->HV},
                                                 .init = HL_INIT_CONSTANT,
                                                 .value = c->cache_tau_init,
                                                 .frozen = off || c->cache_tau_freeze,
                                                 .optional = true};
    if (hl_memory_is_learned(c)) scorer_tensors(c, h, out);
    for (int i = 0; i < HL_MEMORY_TENSORS; i++) out[i].memory = true;
}

/* As in hl_cache_layout. Scores that reads change (h2o) differ after every token, so a mark copies everything. */
int hl_memory_state(const hola_config *c, const struct hl_memory_heads *h, struct hl_state_part *out) {
    const int64_t w = c->cache_window, slots = w + c->cache_chunk;
    const struct hl_state_part part = {
        .change = policy_of(c).moves_with_reads ? HL_REPLACED : HL_RANKED, .heads = h->HV, .block = c->cache_chunk};
    if (!hl_has_exact_memory(c)) return 0;
    for (int i = 0; i < HL_MEMORY_PARTS - !hl_memory_has_factors(c); i++) out[i] = part;
    out[HL_MEMORY_K].name = "cache.k", out[HL_MEMORY_K].kind = HL_STATE_ROW;
    out[HL_MEMORY_K].count = slots * h->K;
    out[HL_MEMORY_V].name = "cache.v", out[HL_MEMORY_V].kind = HL_STATE_ROW;
    out[HL_MEMORY_V].count = slots * h->V;
    out[HL_MEMORY_SCORE].name = "cache.score", out[HL_MEMORY_SCORE].kind = HL_STATE_SCORE;
    out[HL_MEMORY_SCORE].count = slots;
    out[HL_MEMORY_POSITION].name = "cache.position", out[HL_MEMORY_POSITION].kind = HL_STATE_POSITION;
    out[HL_MEMORY_POSITION].count = w;
    if (!hl_memory_has_factors(c)) return HL_MEMORY_FACTOR;
    out[HL_MEMORY_FACTOR].name = "cache.factor", out[HL_MEMORY_FACTOR].kind = HL_STATE_SCORE;
    out[HL_MEMORY_FACTOR].count = slots;
    return HL_MEMORY_PARTS;
}

int64_t hl_memory_scratch(const hola_config *c, const struct hl_memory_heads *h) {
    const int64_t read = hl_cache_scratch(h->K, h->V, c->cache_window, c->cache_chunk);
    const int64_t score = hl_memory_is_learned(c) ? hl_lte_scratch(c->cache_chunk, c->cache_lte_dim, h->K, h->V) : 0;
    return hl_has_exact_memory(c) ? (read > score ? read : score) : 0;
}

static bool needs_score(const hola_config *c) {
    const struct hl_policy p = policy_of(c);
    return p.score != HL_SCORE_WRITE || p.layer_set;
}

void hl_memory_buffers(const struct hl_buffers_for *f, const struct hl_memory_heads *h, struct hl_buffers *acts,
                       size_t acts_field, struct hl_buffers *grads, size_t grads_field) {
    const int64_t qk = h->H * h->K, vv = h->HV * h->V;
    const bool rms = hl_memory_has_own_norm(f->cfg), learned = hl_memory_is_learned(f->cfg);
    const int64_t gates = hl_memory_gates_tokens(f->cfg) ? h->HV : 0;
    if (!hl_has_exact_memory(f->cfg)) return;
#define FIELD(name) .field = acts_field + offsetof(struct hl_memory_acts, name)
#define REAL .element = HL_ELEMENT_REAL
    hl_buffer_add(acts, (struct hl_buffer){FIELD(qt), .width = rms ? qk : 0, .cheap = true});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(kt), .width = rms ? qk : 0, .cheap = true});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(r_qt), .width = rms ? h->H : 0, .cheap = true, REAL});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(r_kt), .width = rms ? h->H : 0, .cheap = true, REAL});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(score), .width = needs_score(f->cfg) ? h->HV : 0, REAL});
    hl_buffer_add(acts,
                  (struct hl_buffer){FIELD(block_S), .width = hl_memory_measures(f->cfg) ? h->HV * h->K * h->V : 0,
                                     REAL, .unit = HL_PER_BLOCK, .brief = true});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(u), .width = learned ? h->HV * f->cfg->cache_lte_dim : 0, REAL});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(token_gate), .width = gates});
    if (f->pass != HL_TRAIN) return;
    hl_buffer_add(acts, (struct hl_buffer){FIELD(read), .width = vv});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(lse), .width = h->HV, REAL});
    hl_buffer_add(acts, (struct hl_buffer){FIELD(sel), .width = h->HV * f->cfg->cache_window,
                                           .element = HL_ELEMENT_INT64, .unit = HL_PER_BLOCK});
#undef FIELD
#undef REAL
#define FIELD(name) .field = grads_field + offsetof(struct hl_memory_grads, name)
    hl_buffer_add(grads, (struct hl_buffer){FIELD(dqt), .width = qk});
    hl_buffer_add(grads, (struct hl_buffer){FIELD(dkt), .width = qk});
    hl_buffer_add(grads, (struct hl_buffer){FIELD(dtoken_gate), .width = gates});
    hl_buffer_add(grads, (struct hl_buffer){FIELD(dscore), .width = learned ? h->HV : 0, .element = HL_ELEMENT_REAL});
#undef FIELD
}

/* ---- forward and backward ---- */

struct hl_rmsnorm hl_memory_norm(const struct hl_exact_memory *m, bool query) {
    const struct hl_layer_tensor *w = &m->tensor[query ? HL_MEMORY_Q_NORM : HL_MEMORY_K_NORM];
    return (struct hl_rmsnorm){.M = m->l->T * m->heads.H,
                               .D = m->heads.K,
                               .eps = (real)HL_CACHE_EPS,
                               .x = query ? m->q1 : m->k1,
                               .w = w->vector,
                               .y = query ? m->a->qt : m->a->kt,
                               .r = query ? m->a->r_qt : m->a->r_kt,
                               .dy = m->d ? query ? m->d->dqt : m->d->dkt : NULL,
                               .dx = query ? m->dq1 : m->dk1,
                               .dx_add = true,
                               .dw = w->grad};
}

static struct hl_cache read_of(const struct hl_exact_memory *m) {
    const hola_config *c = m->l->cfg;
    const bool keep = m->l->pass == HL_TRAIN, rms = hl_memory_has_own_norm(c);
    const struct hl_layer_tensor *t = m->tensor;
    return (struct hl_cache){.rows = m->l->rows,
                             .H = m->heads.H,
                             .HV = m->heads.HV,
                             .K = m->heads.K,
                             .V = m->heads.V,
                             .window = c->cache_window,
                             .chunk = c->cache_chunk,
                             .policy = policy_of(c),
                             .row_dtype = m->l->row_dtype,
                             .q = rms ? m->a->qt : m->q,
                             .k = rms ? m->a->kt : m->k,
                             .v = m->v,
                             .score = needs_score(c) ? m->a->score : m->m,
                             .tau = t[HL_MEMORY_TAU].vector,
                             .sink = t[HL_MEMORY_SINK].vector,
                             .gate = t[HL_MEMORY_GATE].vector,
                             .token_gate = m->a->token_gate,
                             .linear_gate = c->cache_gate_linear,
                             .out = m->out,
                             .state_off = m->state,
                             .read = keep ? m->a->read : NULL,
                             .lse = keep ? m->a->lse : NULL,
                             .sel = keep ? m->a->sel : NULL,
                             .dout = m->dout,
                             .dq = m->d ? m->d->dqt : NULL,
                             .dk = m->d ? m->d->dkt : NULL,
                             .dv = m->dv,
                             .dtau = c->cache_tau_freeze ? NULL : t[HL_MEMORY_TAU].grad,
                             .dsink = t[HL_MEMORY_SINK].grad,
                             .dgate = t[HL_MEMORY_GATE].grad,
                             .dtoken_gate = m->d ? m->d->dtoken_gate : NULL,
                             .dscore = m->d ? m->d->dscore : NULL,
                             .r_state = rms ? m->r_k : NULL,
                             .k_weight = rms ? t[HL_MEMORY_K_NORM].vector : NULL,
                             .recall = m->a->score,
                             .block_S = m->a->block_S,
                             .S_off = m->S};
}

static struct hl_lte scorer_of(const struct hl_exact_memory *m, const struct hl_cache *read) {
    const struct hl_layer_tensor *t = m->tensor;
    return (struct hl_lte){.rows = m->l->rows,
                           .H = m->heads.H,
                           .HV = m->heads.HV,
                           .K = m->heads.K,
                           .V = m->heads.V,
                           .r = m->l->cfg->cache_lte_dim,
                           .window = read->window,
                           .chunk = read->chunk,
                           .eps = (real)m->l->cfg->norm_eps,
                           .row_dtype = read->row_dtype,
                           .k = read->k,
                           .v = read->v,
                           .w_in = t[HL_MEMORY_LTE_IN].vector,
                           .conv1 = t[HL_MEMORY_LTE_CONV1].vector,
                           .conv2 = t[HL_MEMORY_LTE_CONV2].vector,
                           .bias1 = t[HL_MEMORY_LTE_BIAS1].vector,
                           .bias2 = t[HL_MEMORY_LTE_BIAS2].vector,
                           .w_out = t[HL_MEMORY_LTE_OUT].vector,
                           .b_out = t[HL_MEMORY_LTE_BIAS_OUT].vector,
                           .state_off = m->state,
                           .u = m->a->u,
                           .score = m->a->score,
                           .dscore = read->dscore,
                           .dk = read->dk,
                           .dv = read->dv,
                           .dw_in = t[HL_MEMORY_LTE_IN].grad,
                           .dconv1 = t[HL_MEMORY_LTE_CONV1].grad,
                           .dconv2 = t[HL_MEMORY_LTE_CONV2].grad,
                           .dbias1 = t[HL_MEMORY_LTE_BIAS1].grad,
                           .dbias2 = t[HL_MEMORY_LTE_BIAS2].grad,
                           .dw_out = t[HL_MEMORY_LTE_OUT].grad,
                           .db_out = t[HL_MEMORY_LTE_BIAS_OUT].grad};
}

/* The per-token terms of the head gates. */
static struct hl_linear token_gates(const struct hl_exact_memory *m) {
    const struct hl_layer_tensor *t = &m->tensor[HL_MEMORY_GATE_PROJ];
    return (struct hl_linear){
        .M = m->l->T,
        .K = m->l->cfg->hidden_size,
        .x = m->l->xn,
        .n = 1,
        .part[0] = {.W = t->W, .out = m->a->token_gate, .dout = m->d ? m->d->dtoken_gate : NULL, .dW = t->grad},
        .dx = m->l->dxn};
}

void hl_memory_forward(const struct hl_exact_memory *m) {
    const struct hl_cache read = read_of(m);
    if (hl_memory_gates_tokens(m->l->cfg)) {
        const struct hl_linear gates = token_gates(m);
        m->l->backend->ops.linear_forward(m->l->backend, &gates);
    }
    if (hl_memory_is_learned(m->l->cfg)) {
        const struct hl_lte scorer = scorer_of(m, &read);
        m->l->backend->ops.lte_forward(m->l->backend, &scorer);
    } else if (needs_score(m->l->cfg) && !hl_memory_measures(m->l->cfg)) {
        const struct hl_score score = {.T = m->l->T,
                                       .HV = m->heads.HV,
                                       .V = m->heads.V,
                                       .policy = policy_of(m->l->cfg),
                                       .m = m->m,
                                       .beta = m->beta,
                                       .v = m->v,
                                       .score = m->a->score};
        m->l->backend->ops.cache_score(m->l->backend, &score);
    }
    m->l->backend->ops.cache_forward(m->l->backend, &read);
}

void hl_memory_backward(const struct hl_exact_memory *m) {
    const struct hl_cache read = read_of(m);
    m->l->backend->ops.cache_backward(m->l->backend, &read);
    if (hl_memory_gates_tokens(m->l->cfg)) {
        const struct hl_linear gates = token_gates(m);
        m->l->backend->ops.linear_backward(m->l->backend, &gates);
    }
    if (!hl_memory_is_learned(m->l->cfg)) return;
    const struct hl_lte scorer = scorer_of(m, &read); /* adds to dkt and dv */
    m->l->backend->ops.lte_backward(m->l->backend, &scorer);
}
