/* model.c -- forward and backward passes: embeddings, layers, final norm, loss. */
#include "model/model.h"

static struct hl_rmsnorm final_norm(const hola_model *m, const struct hl_activations *acts, int64_t T, real *grads) {
    const int64_t i = m->params.final_norm;
    return (struct hl_rmsnorm){.M = T,
                               .D = m->cfg.hidden_size,
                               .eps = (real)m->cfg.norm_eps,
                               .x = acts->last,
                               .w = hl_model_vector(m, acts->pass, i),
                               .y = acts->lastn,
                               .r = acts->r_last,
                               .dy = acts->grad.dn,
                               .dx = acts->grad.dx,
                               .dw = grads ? grads + m->params.tensor[i].offset : NULL};
}

static struct hl_embed embedding(const hola_model *m, const struct hl_activations *acts, int64_t T, const int32_t *ids,
                                 real *grads) {
    const int64_t i = m->params.embed;
    return (struct hl_embed){.T = T,
                             .D = m->cfg.hidden_size,
                             .ids = ids,
                             .E = hl_model_weight(m, acts->pass, i),
                             .out = acts->layer[0].x,
                             .dout = acts->grad.dx,
                             .dE = grads ? grads + m->params.tensor[i].offset : NULL};
}

int64_t hl_model_rows(const hola_model *m) { return m->backend->host ? 512 : 8192; }

hola_status hl_model_check_ids(const hola_model *m, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->cfg.vocab_size)
            return hl_fail(HOLA_EINVAL, "token %lld: id %d is not in the vocabulary of %lld", (long long)i, (int)ids[i],
                           (long long)m->cfg.vocab_size);
    return HOLA_OK;
}

void hl_model_forward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, const int32_t *ids) {
    const int64_t L = m->cfg.num_hidden_layers;
    struct hl_embed e = embedding(m, acts, rows->T, ids, NULL);
    struct hl_rmsnorm n = final_norm(m, acts, rows->T, NULL);
    m->backend->ops.embed_forward(m->backend, &e);
    for (int64_t l = 0; l < L; l++) {
        hl_block_forward(m, acts, rows, l, l + 1 < L ? acts->layer[l + 1].x : acts->last);
    }
    m->backend->ops.rmsnorm_forward(m->backend, &n);
}

void hl_model_loss(hola_model *m, struct hl_activations *acts, int64_t T, const int32_t *target, double scale,
                   real *grads) {
    const int64_t i = m->params.head;
    struct hl_xent x = {.M = T,
                        .D = m->cfg.hidden_size,
                        .x = acts->lastn,
                        .W = hl_model_weight(m, acts->pass, i),
                        .target = target,
                        .nll = acts->nll,
                        .correct = acts->correct,
                        .logits = acts->logits,
                        .scale = (real)scale,
                        .dx = grads ? acts->grad.dn : NULL,
                        .dW = grads ? grads + m->params.tensor[i].offset : NULL};
    m->backend->ops.xent(m->backend, &x);
}

/* Reports that the gradients of a layer's tensors (-1: those outside the layers) are complete. */
static void tell_ready(const hola_model *m, const struct hl_activations *acts, int64_t layer) {
    const struct hl_params *p = &m->params;
    for (int64_t i = 0; acts->ready && i < p->n; i++) {
        if (p->tensor[i].layer != layer) continue;
        const int64_t first = p->tensor[i].offset;
        while (i + 1 < p->n && p->tensor[i + 1].layer == layer) i++;
        acts->ready(acts->ready_ctx, first, (i + 1 < p->n ? p->tensor[i + 1].offset : p->total) - first);
    }
}

void hl_model_backward(hola_model *m, struct hl_activations *acts, const struct hl_rows *rows, const int32_t *ids,
                       real *grads) {
    struct hl_rmsnorm n = final_norm(m, acts, rows->T, grads);
    struct hl_embed e = embedding(m, acts, rows->T, ids, grads);
    m->backend->ops.rmsnorm_backward(m->backend, &n);
    for (int64_t l = m->cfg.num_hidden_layers; l-- > 0;) {
        hl_block_backward(m, acts, rows, l, grads);
        tell_ready(m, acts, l);
    }
    m->backend->ops.embed_backward(m->backend, &e);
    tell_ready(m, acts, -1);
}
