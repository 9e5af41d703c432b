/* mixer.c -- which mixers there are, and what they share. */
#include "mixers/mixer.h"

extern const struct hl_mixer hl_mixer_hola, hl_mixer_gated_deltanet, hl_mixer_delta_net;

enum { MOST = 32 };
static const struct hl_mixer *mixers[MOST] = {&hl_mixer_hola, &hl_mixer_gated_deltanet, &hl_mixer_delta_net};
static int count = HOLA_TYPE_COUNT;

int hl_mixer_count(void) { return count; }

const struct hl_mixer *hl_mixer_of(hola_model_type type) {
    return (unsigned)type < (unsigned)count ? mixers[type] : NULL;
}

hola_model_type hl_mixer_register(const struct hl_mixer *m) {
    if (count == MOST) return HOLA_TYPE_COUNT;
    mixers[count] = m;
    return (hola_model_type)count++;
}

void hl_buffer_add(struct hl_buffers *list, struct hl_buffer b) {
    HL_ASSERT(list->n < HL_BUFFERS && (!b.inside || list->n > 0));
    list->buffer[list->n++] = b;
}

void hl_layer_part(const struct hl_layer *l, struct hl_linear *a, int tensor, void *out, const void *dout) {
    const struct hl_layer_tensor *t = &l->tensor[tensor];
    if (!t->W.data) return;
    HL_ASSERT(a->n < HL_LINEAR_MAX);
    a->part[a->n++] = (struct hl_linear_part){.W = t->W, .out = out, .dout = dout, .dW = t->grad};
}

void hl_layer_project(const struct hl_layer *l, int tensor, const void *y, int64_t width) {
    struct hl_linear a = {.M = l->T, .K = width, .x = y};
    hl_layer_part(l, &a, tensor, l->h, NULL);
    a.part[0].from = l->x;
    l->backend->ops.linear_forward(l->backend, &a);
}

void hl_layer_project_backward(const struct hl_layer *l, int tensor, const void *y, int64_t width, void *dy) {
    struct hl_linear a = {.M = l->T, .K = width, .x = y, .dx = dy};
    hl_layer_part(l, &a, tensor, NULL, l->dh);
    l->backend->ops.linear_backward(l->backend, &a);
}
