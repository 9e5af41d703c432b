/* block.c -- one layer: norm, mixer, residual, norm, SwiGLU, residual. The mixer itself is behind mixers/mixer.h. */
#include "model/model.h"

struct hl_layer hl_layer_open(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                              int64_t index, real *grads) {
    const struct hl_layer_activations *a = acts->layer ? &acts->layer[index] : NULL;
    const int64_t *tensor = m->params.layer[index].mixer;
    struct hl_layer l = {.backend = m->backend,
                         .cfg = &m->cfg,
                         .rows = rows,
                         .pass = acts->pass,
                         .index = index,
                         .row_dtype = acts->pass == HL_INFER && m->backend->host ? m->state.row : HOLA_F32,
                         .T = rows ? rows->T : 0};
    for (int i = 0; i < HL_MIXER_TENSORS; i++) {
        if (tensor[i] < 0) continue;
        const struct hl_tensor *t = &m->params.tensor[tensor[i]];
        if (t->matrix) l.tensor[i].W = hl_model_weight(m, acts->pass, tensor[i]);
        else l.tensor[i].vector = hl_model_vector(m, acts->pass, tensor[i]);
        l.tensor[i].grad = grads ? grads + t->offset : NULL;
    }
    for (int i = 0; i < m->state.n; i++)
        l.state[i] =
            index * (m->state.part[i].change == HL_GROWS ? m->state.page_layer : m->state.layer) + m->state.at[i];
    if (!a) return l;
    l.acts = a->mixer;
    l.x = a->x, l.xn = a->xn, l.h = a->h;
    if (acts->pass == HL_TRAIN) l.grads = acts->grad.mixer, l.dh = acts->grad.dx, l.dxn = acts->grad.dn;
    return l;
}

/* Shared by forward and backward of the block around the mixer. */
struct block {
    const hola_model *m;
    const struct hl_activations *acts;
    const struct hl_layer_activations *a;
    const struct hl_layer_params *p;
    int64_t T;
    real *grads;
};

static const real *vector(const struct block *k, int64_t i) { return hl_model_vector(k->m, k->acts->pass, i); }
static real *grad(const struct block *k, int64_t i) {
    return k->grads ? k->grads + k->m->params.tensor[i].offset : NULL;
}
static struct hl_linear_part part(const struct block *k, int64_t i, void *out, const void *dout) {
    return (struct hl_linear_part){
        .W = hl_model_weight(k->m, k->acts->pass, i), .out = out, .dout = dout, .dW = grad(k, i)};
}

static struct hl_rmsnorm norm(const struct block *k, const void *x, int64_t w, void *y, real *r) {
    return (struct hl_rmsnorm){.M = k->T,
                               .D = k->m->cfg.hidden_size,
                               .eps = (real)k->m->cfg.norm_eps,
                               .x = x,
                               .w = vector(k, w),
                               .y = y,
                               .r = r,
                               .dy = k->acts->grad.dn,
                               .dx = k->acts->grad.dx,
                               .dx_add = true,
                               .dw = grad(k, w)};
}
static struct hl_rmsnorm mixer_norm(const struct block *k) {
    return norm(k, k->a->x, k->p->attn_norm, k->a->xn, k->a->r_attn);
}
static struct hl_rmsnorm mlp_norm(const struct block *k) {
    return norm(k, k->a->h, k->p->mlp_norm, k->a->hn, k->a->r_mlp);
}
static struct hl_linear gate_and_up(const struct block *k) { /* gradients overwrite the activations they belong to */
    struct hl_linear a = {
        .M = k->T, .K = k->m->cfg.hidden_size, .x = k->a->hn, .dx = k->acts->grad.dn, .ld = k->acts->paired, .n = 2};
    a.part[0] = part(k, k->p->gate_proj, k->a->gate, k->a->gate);
    a.part[1] = part(k, k->p->up_proj, k->a->up, k->a->up);
    return a;
}
static struct hl_swiglu swiglu(const struct block *k) {
    return (struct hl_swiglu){.M = k->T,
                              .D = k->m->cfg.intermediate_size,
                              .gate = k->a->gate,
                              .up = k->a->up,
                              .ld = k->acts->paired,
                              .y = k->a->act,
                              .dy = k->acts->grad.dact,
                              .dgate = k->a->gate,
                              .dup = k->a->up};
}
static struct hl_linear down(const struct block *k, void *out) {
    struct hl_linear a = {
        .M = k->T, .K = k->m->cfg.intermediate_size, .x = k->a->act, .dx = k->acts->grad.dact, .n = 1};
    a.part[0] = part(k, k->p->down_proj, out, k->acts->grad.dx);
    a.part[0].from = k->a->h;
    return a;
}

/* Products in FP8: there are ops that do SwiGLU together with the layers around it. */
static bool in_fp8(const struct block *k) {
    return k->acts->pass == HL_TRAIN && k->m->training_precision == HOLA_PRECISION_FP8;
}

static struct block open_block(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                               int64_t index, real *grads) {
    return (struct block){m, acts, &acts->layer[index], &m->params.layer[index], rows->T, grads};
}

void hl_block_forward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows, int64_t index,
                      void *out) {
    const struct block k = open_block(m, acts, rows, index, NULL);
    const struct hl_layer l = hl_layer_open(m, acts, rows, index, NULL);
    const struct hl_rmsnorm n1 = mixer_norm(&k), n2 = mlp_norm(&k);
    const struct hl_linear in = gate_and_up(&k), add = down(&k, out);
    const struct hl_swiglu act = swiglu(&k);
    struct hl_backend *b = m->backend;
    b->ops.rmsnorm_forward(b, &n1);
    hl_mixer_of(m->cfg.model_type)->forward(&l);
    b->ops.rmsnorm_forward(b, &n2);
    b->ops.linear_forward(b, &in);
    if (in_fp8(&k) && b->ops.down_forward) {
        b->ops.down_forward(b, &(struct hl_down){act, add, acts->recompute});
    } else {
        b->ops.swiglu_forward(b, &act);
        b->ops.linear_forward(b, &add);
    }
    if (acts->watch) acts->watch(acts->watch_ctx, &l);
}

void hl_block_backward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                       int64_t index, real *grads) {
    const struct hl_mixer *mixer = hl_mixer_of(m->cfg.model_type);
    const struct block k = open_block(m, acts, rows, index, grads);
    const struct hl_layer l = hl_layer_open(m, acts, rows, index, grads);
    const struct hl_rmsnorm n1 = mixer_norm(&k), n2 = mlp_norm(&k);
    const struct hl_linear in = gate_and_up(&k), add = down(&k, NULL);
    const struct hl_swiglu act = swiglu(&k);
    struct hl_backend *b = m->backend;
    if (acts->recompute) {
        b->ops.rmsnorm_forward(b, &n1);
        mixer->recompute(&l);
        b->ops.rmsnorm_forward(b, &n2);
    }
    if (in_fp8(&k) && b->ops.down_backward) {
        b->ops.down_backward(b, &(struct hl_down){act, add, acts->recompute});
    } else {
        if (acts->recompute) b->ops.swiglu_forward(b, &act);
        b->ops.linear_backward(b, &add);
    }
    if (in_fp8(&k) && b->ops.gate_up_backward) {
        b->ops.gate_up_backward(b, &(struct hl_gate_up){act, in});
    } else {
        b->ops.swiglu_backward(b, &act);
        b->ops.linear_backward(b, &in);
    }
    b->ops.rmsnorm_backward(b, &n2);
    mixer->backward(&l);
    b->ops.rmsnorm_backward(b, &n1);
}
