/* qkv.c -- see qkv.h. */
#include "mixers/qkv.h"

/* ---- tables ---- */

void hl_qkv_projection_tensors(int64_t hidden_size, const int64_t width[3], struct hl_tensor_spec *out) {
    static const char *const names[3] = {"q_proj.weight", "k_proj.weight", "v_proj.weight"};
    for (int i = 0; i < 3; i++) out[i] = (struct hl_tensor_spec){.name = names[i], .dim = {width[i], hidden_size}};
}

void hl_qkv_conv_tensors(const hola_config *c, const int64_t width[3], struct hl_tensor_spec *out) {
    static const char *const names[3] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    for (int i = 0; c->conv_size > 0 && i < 3; i++)
        out[i] = (struct hl_tensor_spec){.name = names[i], .dim = {width[i], 1, c->conv_size}};
}

void hl_qkv_conv_state(const hola_config *c, const int64_t width[3], struct hl_state_part *out) {
    static const char *const names[3] = {"conv.q", "conv.k", "conv.v"};
    const int64_t tail = c->conv_size > 1 ? c->conv_size - 1 : 0;
    for (int i = 0; i < 3; i++)
        out[i] = (struct hl_state_part){
            .name = names[i], .kind = HL_STATE_REAL, .change = HL_REPLACED, .count = tail * width[i]};
}

hola_status hl_qkv_check(const hola_config *c, const char *where) {
    if (c->num_heads % c->num_kv_heads == 0) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s: num_kv_heads: %lld does not divide num_heads, %lld", where,
                   (long long)c->num_kv_heads, (long long)c->num_heads);
}

/* ---- gla and gsa ---- */

struct hl_qkv_dims hl_qkv_dims(const hola_config *c) {
    struct hl_qkv_dims s = {
        .d = c->hidden_size, .H = c->num_heads, .HK = c->num_kv_heads, .K = c->head_dim, .V = c->head_v_dim};
    s.width[0] = s.H * s.K, s.width[1] = s.HK * s.K, s.width[2] = s.HK * s.V;
    s.out = s.H * s.V;
    s.map[0] = s.map[1] = c->feature_map;
    return s;
}

void hl_qkv_buffers(const struct hl_buffers_for *f, const struct hl_qkv_dims *s, struct hl_buffers *acts,
                    size_t acts_field, struct hl_buffers *grads, size_t grads_field) {
    const bool conv = f->cfg->conv_size > 0;
    for (int i = 0; i < 3; i++) {
        const size_t at = (size_t)i * sizeof(void *);
        const bool mapped = s->map[i] != HOLA_MAP_NONE;
        hl_buffer_add(acts, (struct hl_buffer){.field = acts_field + offsetof(struct hl_qkv_acts, convolved) + at,
                                               .width = conv ? s->width[i] : 0,
                                               .cheap = true});
        hl_buffer_add(acts, (struct hl_buffer){.field = acts_field + offsetof(struct hl_qkv_acts, mapped) + at,
                                               .width = mapped ? s->width[i] : 0,
                                               .cheap = true});
        if (f->pass == HL_TRAIN)
            hl_buffer_add(grads, (struct hl_buffer){.field = grads_field + offsetof(struct hl_qkv_grads, d) + at,
                                                    .width = conv || mapped ? s->width[i] : 0});
    }
}

struct hl_linear hl_qkv_projections(const struct hl_qkv *y) {
    const struct hl_layer *l = y->l;
    struct hl_linear in = {.M = l->T, .K = y->s.d, .x = l->xn, .dx = l->dxn, .ld = y->joint};
    for (int i = 0; i < 3; i++)
        hl_layer_part(l, &in, y->projection + i, y->a->projected[i], y->d ? y->d->dprojected[i] : NULL);
    return in;
}

static struct hl_conv convolution(const struct hl_qkv *y, int i) {
    const struct hl_layer_tensor *t = &y->l->tensor[y->conv_tensor + i];
    return (struct hl_conv){.rows = y->l->rows,
                            .C = y->s.width[i],
                            .W = y->l->cfg->conv_size,
                            .ld = y->joint,
                            .x = y->a->projected[i],
                            .y = y->a->convolved[i],
                            .w = t->vector,
                            .tail_off = y->l->state[y->conv_state + i],
                            .dy = y->d ? y->d->d[i] : NULL,
                            .dx = y->d ? y->d->dprojected[i] : NULL,
                            .dw = t->grad};
}

/* After a convolution the gradient is updated in place. */
static struct hl_feature_map feature_map(const struct hl_qkv *y, int i) {
    const bool conv = y->l->cfg->conv_size > 0;
    return (struct hl_feature_map){.M = y->l->T,
                                   .D = y->s.width[i],
                                   .kind = y->s.map[i],
                                   .x = conv ? y->a->convolved[i] : y->a->projected[i],
                                   .ld = conv ? 0 : y->joint,
                                   .y = y->a->mapped[i],
                                   .dy = y->d ? y->d->d[i] : NULL,
                                   .dx = !y->d  ? NULL
                                         : conv ? y->d->d[i]
                                                : y->d->dprojected[i]};
}

struct hl_qkv_end hl_qkv_end(const struct hl_qkv *y, int i) {
    const bool conv = y->l->cfg->conv_size > 0, map = y->s.map[i] != HOLA_MAP_NONE;
    struct hl_qkv_end e = {.x = map ? y->a->mapped[i] : conv ? y->a->convolved[i] : y->a->projected[i]};
    e.ld = map || conv ? 0 : y->joint;
    if (y->d) e.dx = map || conv ? y->d->d[i] : y->d->dprojected[i];
    return e;
}

void hl_qkv_forward(const struct hl_qkv *y) {
    struct hl_backend *b = y->l->backend;
    for (int i = 0; i < 3; i++) {
        const struct hl_conv conv = convolution(y, i);
        const struct hl_feature_map map = feature_map(y, i);
        if (conv.W > 0) b->ops.conv_forward(b, &conv);
        if (map.kind != HOLA_MAP_NONE) b->ops.feature_map_forward(b, &map);
    }
}

void hl_qkv_backward(const struct hl_qkv *y) {
    struct hl_backend *b = y->l->backend;
    for (int i = 0; i < 3; i++) {
        const struct hl_conv conv = convolution(y, i);
        const struct hl_feature_map map = feature_map(y, i);
        if (map.kind != HOLA_MAP_NONE) b->ops.feature_map_backward(b, &map);
        if (conv.W > 0) b->ops.conv_backward(b, &conv);
    }
}
