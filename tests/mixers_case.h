/* mixers_case.h -- two mixers unknown to src/: plain linear attention, whose state is one matrix per head, and softmax
 * attention, whose state grows with the position. Each is its tables and one reference op. */
#include "mixers/mixer.h"
#include "models.h"
#include <string.h>

enum { Q, K, V, O };
struct attn_acts {
    real *q, *k, *v, *o;
};
struct attn_grads {
    real *dq, *dk, *dv, *dout;
};
static int64_t attn_width(const hola_config *c) { return c->num_heads * c->head_dim; }

static void attn_tensors(const hola_config *c, struct hl_tensor_spec *out) {
    const int64_t d = c->hidden_size, n = attn_width(c);
    out[Q] = (struct hl_tensor_spec){.name = "q_proj.weight", .dim = {n, d}};
    out[K] = (struct hl_tensor_spec){.name = "k_proj.weight", .dim = {n, d}};
    out[V] = (struct hl_tensor_spec){.name = "v_proj.weight", .dim = {n, d}};
    out[O] = (struct hl_tensor_spec){.name = "o_proj.weight", .dim = {d, n}};
}

static void attn_buffers(const struct hl_buffers_for *f, struct hl_buffers *acts, struct hl_buffers *grads) {
    for (size_t i = 0; i < 4; i++) {
        const struct hl_buffer b = {.field = i * sizeof(real *), .width = attn_width(f->cfg)};
        hl_buffer_add(acts, b);
        if (f->pass == HL_TRAIN) hl_buffer_add(grads, b);
    }
}

static struct hl_linear attn_projections(const struct hl_layer *l) {
    const struct attn_acts *a = l->acts;
    const struct attn_grads *d = l->grads;
    struct hl_linear in = {.M = l->T, .K = l->cfg->hidden_size, .x = l->xn, .dx = l->dxn};
    hl_layer_part(l, &in, Q, a->q, d ? d->dq : NULL);
    hl_layer_part(l, &in, K, a->k, d ? d->dk : NULL);
    hl_layer_part(l, &in, V, a->v, d ? d->dv : NULL);
    return in;
}
static void attn_forward(const struct hl_layer *l, void (*op)(const struct hl_layer *)) {
    const struct attn_acts *a = l->acts;
    const struct hl_linear in = attn_projections(l);
    l->backend->ops.linear_forward(l->backend, &in);
    op(l);
    hl_layer_project(l, O, a->o, attn_width(l->cfg));
}
static void attn_backward(const struct hl_layer *l, void (*op)(const struct hl_layer *)) {
    const struct attn_acts *a = l->acts;
    const struct attn_grads *d = l->grads;
    const struct hl_linear in = attn_projections(l);
    hl_layer_project_backward(l, O, a->o, attn_width(l->cfg), d->dout);
    op(l);
    l->backend->ops.linear_backward(l->backend, &in);
}
static void attn_recompute(const struct hl_layer *l) { (void)l; } /* nothing is cheap */

/* ---- linear attention: S += k v^T, out = q^T S ---- */

static int linear_state(const hola_config *c, struct hl_state_part *out) {
    out[0] = (struct hl_state_part){
        .name = "S", .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = c->num_heads * c->head_dim * c->head_dim};
    return 1;
}
/* One head of a segment. back: S holds the sum over later tokens of q dout^T, and gradients are written. */
static void linear_head(const struct hl_layer *l, const struct hl_seg *s, int64_t h, bool back) {
    const int64_t n = attn_width(l->cfg), D = l->cfg->head_dim;
    const struct attn_acts *a = l->acts;
    const struct attn_grads *d = l->grads;
    real *own = calloc((size_t)(D * D), sizeof *own), *S = own;
    if (s->state) S = (real *)(s->state + l->state[0]) + h * D * D;
    for (int64_t t = 0; t < s->len; t++) {
        const int64_t at = (s->row + t) * n + h * D;
        for (int64_t j = 0; j < D; j++) {
            real o = 0, dq = 0;
            for (int64_t i = 0; i < D; i++) {
                if (j == 0)
                    for (int64_t c = 0; c < D; c++) S[i * D + c] += a->k[at + i] * a->v[at + c];
                o += a->q[at + i] * S[i * D + j];
                if (back) dq += S[j * D + i] * d->dout[at + i];
            }
            if (back && j > 0) d->dq[at + j] = dq;
            if (back && j == 0) { /* S is complete only after the loop above */
                d->dq[at] = 0;
                for (int64_t i = 0; i < D; i++) d->dq[at] += S[i] * d->dout[at + i];
            }
            if (!back) a->o[at + j] = o;
        }
    }
    if (back) memset(own, 0, (size_t)(D * D) * sizeof *own);
    for (int64_t t = s->len; back && t-- > 0;) {
        const int64_t at = (s->row + t) * n + h * D;
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = 0; j < D; j++) own[i * D + j] += a->q[at + i] * d->dout[at + j];
        for (int64_t i = 0; i < D; i++) {
            d->dk[at + i] = d->dv[at + i] = 0;
            for (int64_t j = 0; j < D; j++) {
                d->dk[at + i] += own[i * D + j] * a->v[at + j];
                d->dv[at + i] += own[j * D + i] * a->k[at + j];
            }
        }
    }
    free(own);
}
static void linear_op(const struct hl_layer *l) {
    for (int64_t s = 0; s < l->rows->n; s++)
        for (int64_t h = 0; h < l->cfg->num_heads; h++) linear_head(l, &l->rows->seg[s], h, false);
}
static void linear_op_back(const struct hl_layer *l) {
    for (int64_t s = 0; s < l->rows->n; s++)
        for (int64_t h = 0; h < l->cfg->num_heads; h++) linear_head(l, &l->rows->seg[s], h, true);
}
static void linear_forward(const struct hl_layer *l) { attn_forward(l, linear_op); }
static void linear_backward(const struct hl_layer *l) { attn_backward(l, linear_op_back); }
static const struct hl_mixer linear_mixer = {.name = "linear_attention",
                                             .architecture = "LinearAttentionForCausalLM",
                                             .fields = HL_GROUP_HEADS | HL_GROUP_GATED,
                                             .host_op = "linear_attention",
                                             .tensors = attn_tensors,
                                             .state = linear_state,
                                             .acts_size = sizeof(struct attn_acts),
                                             .grads_size = sizeof(struct attn_grads),
                                             .buffers = attn_buffers,
                                             .forward = linear_forward,
                                             .recompute = attn_recompute,
                                             .backward = linear_backward};

/* ---- softmax attention: keys and values of all tokens are kept ---- */

static int softmax_state(const hola_config *c, struct hl_state_part *out) {
    for (int i = 0; i < 2; i++)
        out[i] = (struct hl_state_part){
            .name = i ? "v" : "k", .kind = HL_STATE_REAL, .change = HL_GROWS, .count = attn_width(c)};
    return 2;
}
/* Key (part 0) or value (part 1) of the token at position p of a segment: in the batch, or in a page. */
static real *softmax_row(const struct hl_layer *l, int64_t s, int part, int64_t p) {
    const struct hl_seg *seg = &l->rows->seg[s];
    const struct attn_acts *a = l->acts;
    const int64_t n = attn_width(l->cfg);
    if (!seg->state) return (part ? a->v : a->k) + (seg->row + p) * n;
    return (real *)(l->rows->pages[s][p / HL_PAGE_TOKENS] + l->state[part]) + p % HL_PAGE_TOKENS * n;
}
static void softmax_token(const struct hl_layer *l, int64_t s, int64_t h, int64_t t, bool back) {
    const struct hl_seg *seg = &l->rows->seg[s];
    const struct attn_acts *a = l->acts;
    const struct attn_grads *d = l->grads;
    const int64_t D = l->cfg->head_dim, at = (seg->row + t) * attn_width(l->cfg) + h * D, n = seg->pos + t + 1;
    const real *q = a->q + at, scale = 1 / R_SQRT((real)D);
    real *p = malloc((size_t)n * sizeof *p), max = 0, sum = 0, along = 0;
    for (int64_t j = 0; j < n; j++) {
        const real *k = softmax_row(l, s, 0, j) + h * D;
        p[j] = 0;
        for (int64_t i = 0; i < D; i++) p[j] += q[i] * k[i] * scale;
        if (j == 0 || p[j] > max) max = p[j];
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = R_EXP(p[j] - max);
    for (int64_t i = 0; !back && i < D; i++) {
        a->o[at + i] = 0;
        for (int64_t j = 0; j < n; j++) a->o[at + i] += p[j] / sum * softmax_row(l, s, 1, j)[h * D + i];
    }
    for (int64_t i = 0; back && i < D; i++) along += d->dout[at + i] * a->o[at + i];
    for (int64_t j = 0; back && j < n; j++) {
        const int64_t from = (seg->row + j) * attn_width(l->cfg) + h * D;
        real dp = 0;
        for (int64_t i = 0; i < D; i++) {
            dp += d->dout[at + i] * a->v[from + i];
            d->dv[from + i] += p[j] / sum * d->dout[at + i];
        }
        for (int64_t i = 0; i < D; i++) {
            d->dq[at + i] += p[j] / sum * (dp - along) * scale * a->k[from + i];
            d->dk[from + i] += p[j] / sum * (dp - along) * scale * q[i];
        }
    }
    free(p);
}
static void softmax_op(const struct hl_layer *l) {
    const struct attn_acts *a = l->acts;
    const size_t row = (size_t)attn_width(l->cfg);
    for (int64_t s = 0; s < l->rows->n; s++) {
        const struct hl_seg *seg = &l->rows->seg[s];
        for (int64_t t = 0; seg->state && t < seg->len; t++) {
            memcpy(softmax_row(l, s, 0, seg->pos + t), a->k + (size_t)(seg->row + t) * row, row * sizeof(real));
            memcpy(softmax_row(l, s, 1, seg->pos + t), a->v + (size_t)(seg->row + t) * row, row * sizeof(real));
        }
        for (int64_t t = 0; t < seg->len; t++)
            for (int64_t h = 0; h < l->cfg->num_heads; h++) softmax_token(l, s, h, t, false);
    }
}
static void softmax_op_back(const struct hl_layer *l) {
    const struct attn_grads *d = l->grads;
    const size_t bytes = (size_t)(l->T * attn_width(l->cfg)) * sizeof(real);
    memset(d->dq, 0, bytes), memset(d->dk, 0, bytes), memset(d->dv, 0, bytes);
    for (int64_t s = 0; s < l->rows->n; s++)
        for (int64_t t = 0; t < l->rows->seg[s].len; t++)
            for (int64_t h = 0; h < l->cfg->num_heads; h++) softmax_token(l, s, h, t, true);
}
static void softmax_forward(const struct hl_layer *l) { attn_forward(l, softmax_op); }
static void softmax_backward(const struct hl_layer *l) { attn_backward(l, softmax_op_back); }
static const struct hl_mixer softmax_mixer = {.name = "softmax_attention",
                                              .architecture = "SoftmaxAttentionForCausalLM",
                                              .fields = HL_GROUP_HEADS | HL_GROUP_GATED,
                                              .host_op = "softmax_attention",
                                              .tensors = attn_tensors,
                                              .state = softmax_state,
                                              .acts_size = sizeof(struct attn_acts),
                                              .grads_size = sizeof(struct attn_grads),
                                              .buffers = attn_buffers,
                                              .forward = softmax_forward,
                                              .recompute = attn_recompute,
                                              .backward = softmax_backward};

/* ---- models of them ---- */

enum { MIXERS = 2 };
static const struct hl_mixer *const mixer_of_test[MIXERS] = {&linear_mixer, &softmax_mixer};
/* The config of mixer i, registered at the first call. */
static hola_config mixer_config(int i) {
    static hola_model_type type[MIXERS];
    char json[512];
    hola_config c;
    if (type[i] == 0) type[i] = hl_mixer_register(mixer_of_test[i]);
    assert_true(type[i] >= HOLA_TYPE_COUNT);
    snprintf(json, sizeof json, "{" TINY "\"model_type\":\"%s\",\"num_heads\":2,\"head_dim\":8,\"expand_v\":1}",
             mixer_of_test[i]->name);
    CHECK_OK(hl_config_parse(&c, json, (int64_t)strlen(json), "test"));
    assert_int_equal(c.model_type, type[i]);
    return c;
}
static inline hola_model *mixer_model(int i, int threads, const char *backend) {
    const hola_config c = mixer_config(i);
    hola_model *m;
    CHECK_OK(hola_model_new(&m, &c, 7, &(hola_options){.threads = threads, .backend = backend}));
    return m;
}
