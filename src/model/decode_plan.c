/* decode_plan.c -- chooses how a token is decoded, and lays the model out for the fused kernels.
 *
 * The kernels support one mixer, so the mixer itself decides whether a model fits and where its weights are; sizes
 * alone are not enough. */
#include "model/model.h"
#include <stdlib.h>

enum { ONE_ROWS = 3 }; /* measured: up to this many rows the single kernel is faster */

static const void *matrix(const hola_model *m, int64_t i) { return hl_model_weight(m, HL_INFER, i).data; }
static const real *vector(const hola_model *m, int64_t i) { return hl_model_vector(m, HL_INFER, i); }

/* Lists the current weights of every layer; false: not in the layout that the kernels need. */
static bool list_layers(hola_model *m, const struct hl_mixer *mixer) {
    struct hl_decoder *d = &m->decoder;
    if (!d->layer) d->layer = calloc((size_t)m->cfg.num_hidden_layers, sizeof *d->layer);
    if (!d->layer) return false;
    for (int64_t i = 0; i < m->cfg.num_hidden_layers; i++) {
        const struct hl_layer_params *p = &m->params.layer[i];
        const struct hl_layer l = hl_layer_open(m, &m->infer, NULL, i, NULL);
        d->layer[i] = (struct hl_decode_layer){.gate = matrix(m, p->gate_proj),
                                               .up = matrix(m, p->up_proj),
                                               .down = matrix(m, p->down_proj),
                                               .attn_norm = vector(m, p->attn_norm),
                                               .mlp_norm = vector(m, p->mlp_norm)};
        if (!mixer->decode_layer(&l, &d->layer[i])) return false;
    }
    return true;
}

/* Repeated whenever the weights move. */
static void lay_out(hola_model *m) {
    const struct hl_mixer *mixer = hl_mixer_of(m->cfg.model_type);
    const struct hl_weight head = m->weight[m->params.head];
    struct hl_decoder *d = &m->decoder;
    d->made = m->panels_made;
    d->stale = true;
    d->fits = mixer->decode_layer && m->backend->ops.decode_one && head.layout == HL_ROWS &&
              !m->cfg.cache_gate_linear && !m->cfg.cache_gate_token && /* the kernels only support sigma(gate) */
              list_layers(m, mixer);
    if (!d->fits) return;
    const struct hl_layer first = hl_layer_open(m, &m->infer, NULL, 0, NULL);
    d->model = (struct hl_decode){.d = m->cfg.hidden_size,
                                  .I = m->cfg.intermediate_size,
                                  .L = m->cfg.num_hidden_layers,
                                  .vocab = m->cfg.vocab_size,
                                  .eps = (real)m->cfg.norm_eps,
                                  .layer_bytes = m->state.layer,
                                  .page_layer = m->state.page_layer,
                                  .page_hash = d->page_hash,
                                  .host = d->layer,
                                  .embed = matrix(m, m->params.embed),
                                  .head = head.data,
                                  .final_norm = vector(m, m->params.final_norm)};
    mixer->decode_sizes(&first, &d->model);
}

/* Copies the layer table and the single kernel's workspace to backend memory. */
static bool bring_table(hola_model *m, struct hl_decode *a) {
    struct hl_decoder *d = &m->decoder;
    const int64_t table = (a->L * (int64_t)sizeof(struct hl_decode_layer) + 255) / 256 * 256;
    if (!d->block) {
        const int64_t bytes = table + hl_decode_one_bytes(a);
        d->block = hl_alloc(m->backend, bytes);
        if (!d->block) return false;
        hl_zero(m->backend, d->block, bytes);
    }
    if (d->stale) hl_put(m->backend, d->block, d->layer, a->L * (int64_t)sizeof *d->layer);
    d->stale = false;
    a->layer = (const struct hl_decode_layer *)d->block;
    a->workspace = d->block + table;
    return true;
}

enum hl_decode_way hl_decode_plan(hola_model *m, const struct hl_rows *rows, struct hl_decode *out) {
    const int64_t most = m->decoder.always ? HL_DECODE_ONE_ROWS : ONE_ROWS;
    if (m->decoder.off || !m->backend->ops.decode_one) return HL_BY_OPS;
    if (m->decoder.made != m->panels_made) lay_out(m);
    if (!m->decoder.fits) return HL_BY_OPS;
    *out = m->decoder.model;
    out->rows = rows;
    if (rows->T <= most && hl_decode_one_takes(out) && bring_table(m, out)) return HL_BY_ONE_KERNEL;
    const bool batch = rows->T > 1 && m->backend->ops.decode_batch && hl_decode_batch_takes(out);
    return batch ? HL_BY_BATCH : HL_BY_OPS;
}

void hl_decode_close(hola_model *m) {
    if (m->decoder.block) hl_release(m->backend, m->decoder.block);
    free(m->decoder.layer);
    m->decoder = (struct hl_decoder){0};
}
