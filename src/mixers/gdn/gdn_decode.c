/* gdn_decode.c -- a Gated DeltaNet, DeltaNet or HOLA layer, and the parts shared with KDA, as seen by the fused
 * decoding kernels. */
#include "mixers/gdn/gdn_layer.h"

void hl_gdn_decode_sizes(const struct hl_layer *l, struct hl_decode *out) {
    const hola_config *c = l->cfg;
    const struct gdn_dims s = hl_gdn_dims(c);
    out->H = s.H, out->HV = s.HV, out->K = s.K, out->V = s.V;
    out->window = s.memory ? c->cache_window : 0;
    out->chunk = s.memory ? c->cache_chunk : 0;
    out->conv = c->conv_size;
    out->gated = s.gated, out->decay = s.decays, out->beta = s.beta;
    out->neg_eigval = c->allow_neg_eigval;
    out->cache = s.memory, out->rms = s.rms;
    hl_policy_of(&out->policy, c);
    out->S = l->state[STATE_S];
    for (int i = 0; i < 3; i++) out->tail[i] = l->state[TAIL_Q + i];
    out->cache_at = s.memory ? l->state[STATE_MEMORY] : 0;
}

void hl_gdn_decode_common(const struct hl_layer *l, struct hl_decode_layer *out) {
    const struct hl_layer_tensor *t = l->tensor;
    out->o = t[O_PROJ].W.data;
    out->o_norm = t[O_NORM].vector;
    for (int i = 0; i < 3; i++) out->conv[i] = t[Q_CONV + i].vector;
    out->A_log = t[A_LOG].vector, out->dt_bias = t[DT_BIAS].vector;
    out->q_norm = t[MEMORY + HL_MEMORY_Q_NORM].vector, out->k_norm = t[MEMORY + HL_MEMORY_K_NORM].vector;
    out->tau = t[MEMORY + HL_MEMORY_TAU].vector, out->sink = t[MEMORY + HL_MEMORY_SINK].vector;
    out->cache_gate = t[MEMORY + HL_MEMORY_GATE].vector;
}
bool hl_gdn_decode_layer(const struct hl_layer *l, struct hl_decode_layer *out) {
    out->in = hl_layer_adjacent(l, Q_PROJ, G_PROJ);
    hl_gdn_decode_common(l, out);
    return out->in;
}
