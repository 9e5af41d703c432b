/* decode_plan.c -- a model as the decoding op sees it: sizes, the table of its weights, the op's memory. */
#include "model/model.h"
#include <stdlib.h>
#include <string.h>

enum { WORTH = 3 }; /* rows at a time up to which this is the faster way, as measured */

static const void *matrix(const hola_model *m, int64_t i) {
    return i < 0 ? NULL : hl_model_weight(m, HL_INFER, i).data;
}
static const real *vector(const hola_model *m, int64_t i) { return hl_model_vector(m, HL_INFER, i); }

/* The matrices that share the normed stream lie one behind the other. */
static bool joined(const hola_model *m, const struct hl_layer_params *p) {
    const int64_t all[] = {p->q_proj, p->k_proj, p->v_proj, p->a_proj, p->b_proj, p->g_proj};
    const char *at = matrix(m, p->q_proj);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] < 0) continue;
        if (matrix(m, all[i]) != at) return false;
        at += m->params.tensor[all[i]].count * m->backend->act_size;
    }
    return true;
}
static struct hl_decode_layer layer_of(const hola_model *m, const struct hl_layer_params *p) {
    return (struct hl_decode_layer){
        .in = matrix(m, p->q_proj),
        .o = matrix(m, p->o_proj),
        .gate = matrix(m, p->gate_proj),
        .up = matrix(m, p->up_proj),
        .down = matrix(m, p->down_proj),
        .attn_norm = vector(m, p->attn_norm),
        .mlp_norm = vector(m, p->mlp_norm),
        .o_norm = vector(m, p->o_norm),
        .conv = {vector(m, p->q_conv), vector(m, p->k_conv), vector(m, p->v_conv)},
        .A_log = vector(m, p->A_log),
        .dt_bias = vector(m, p->dt_bias),
        .q_norm = vector(m, p->cache_q_norm),
        .k_norm = vector(m, p->cache_k_norm),
        .tau = vector(m, p->cache_tau),
        .sink = vector(m, p->cache_sink),
        .cache_gate = vector(m, p->cache_gate)};
}

static struct hl_decode sizes_of(const hola_model *m, const struct hl_rows *rows) {
    const hola_config *c = &m->cfg;
    const struct hl_dims s = hl_dims(c);
    struct hl_policy policy;
    hl_policy_of(&policy, c);
    return (struct hl_decode){.rows = rows,
                              .d = s.d,
                              .I = s.I,
                              .H = s.H,
                              .HV = s.HV,
                              .K = s.K,
                              .V = s.V,
                              .L = s.L,
                              .vocab = s.vocab,
                              .window = s.cache ? c->cache_window : 0,
                              .chunk = s.cache ? c->cache_chunk : 0,
                              .conv = c->conv_size,
                              .gated = s.gated,
                              .decay = s.decay,
                              .beta = m->params.layer[0].b_proj >= 0,
                              .neg_eigval = c->allow_neg_eigval,
                              .cache = s.cache,
                              .rms = s.rms,
                              .policy = policy,
                              .eps = (real)c->norm_eps,
                              .S = m->state.S,
                              .tail = {m->state.tail_q, m->state.tail_k, m->state.tail_v},
                              .cache_at = m->state.cache,
                              .layer_bytes = m->state.layer};
}

/* The table is that of the weights where they are now. few: on the backend, too, with the op's memory. */
static bool ready(hola_model *m, const struct hl_decode *a, int64_t table, bool few) {
    struct hl_decoder *d = &m->decoder;
    const int64_t bytes = table + hl_decode_one_bytes(a);
    bool changed = !d->layer;
    if (!d->layer) d->layer = calloc((size_t)a->L, sizeof *d->layer);
    if (!d->layer) return false;
    for (int64_t l = 0; l < a->L; l++) {
        if (!joined(m, &m->params.layer[l])) return false;
        const struct hl_decode_layer y = layer_of(m, &m->params.layer[l]);
        changed = changed || memcmp(&y, &d->layer[l], sizeof y) != 0;
        d->layer[l] = y;
    }
    d->stale = d->stale || changed;
    if (!few) return true;
    if (!d->block) {
        d->block = hl_alloc(m->backend, bytes);
        if (!d->block) return false;
        hl_zero(m->backend, d->block, bytes);
    }
    if (d->stale) hl_put(m->backend, d->block, d->layer, a->L * (int64_t)sizeof *d->layer);
    d->stale = false;
    return true;
}

bool hl_decode_open(hola_model *m, const struct hl_rows *rows, struct hl_decode *out) {
    const struct hl_weight head = m->weight[m->params.head];
    const int64_t most = m->decoder.always ? HL_DECODE_ONE_ROWS : WORTH;
    if (!m->backend->ops.decode_one || m->decoder.off || head.layout != HL_ROWS) return false;
    *out = sizes_of(m, rows);
    const int64_t table = (out->L * (int64_t)sizeof(struct hl_decode_layer) + 255) / 256 * 256;
    const bool few = rows->T <= most && hl_decode_one_takes(out);
    if (!few && !(rows->T > 1 && m->backend->ops.decode_batch && hl_decode_batch_takes(out))) return false;
    if (!ready(m, out, table, few)) return false;
    out->layer = few ? (const struct hl_decode_layer *)m->decoder.block : NULL;
    out->memory = few ? m->decoder.block + table : NULL;
    out->host = m->decoder.layer;
    out->embed = matrix(m, m->params.embed);
    out->head = head.data;
    out->final_norm = vector(m, m->params.final_norm);
    return true;
}

void hl_decode_close(hola_model *m) {
    if (m->decoder.block) hl_release(m->backend, m->decoder.block);
    free(m->decoder.layer);
    m->decoder = (struct hl_decoder){0};
}
