/* mixer.c -- the list of mixers, and their shared code. */
#include "mixers/mixer.h"

#define DECLARE(type, name) extern const struct hl_mixer hl_mixer_##name;
HL_MIXERS_LIST(DECLARE)

enum { MOST = 32 };
#define ENTRY(type, name) [HOLA_TYPE_##type] = &hl_mixer_##name,
static const struct hl_mixer *mixers[MOST] = {HL_MIXERS_LIST(ENTRY)};
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

int64_t hl_joint_row(enum hl_pass pass, bool host, int n, const int64_t *width) {
    int64_t row = 0;
    if (pass != HL_TRAIN || host) return 0;
    for (int i = 0; i < n; i++) {
        if (row % 8) return 0;
        row += width[i];
    }
    return (row + 63) / 64 * 64; /* rows are aligned to cache lines */
}

void hl_buffer_add_row(struct hl_buffers *list, int64_t joint, size_t row, int n, const size_t *field,
                       const int64_t *width) {
    int64_t offset = 0;
    if (joint) hl_buffer_add(list, (struct hl_buffer){.field = row, .width = joint});
    for (int i = 0; i < n; i++) {
        hl_buffer_add(list,
                      (struct hl_buffer){.field = field[i], .width = width[i], .inside = joint > 0, .offset = offset});
        offset += width[i];
    }
}

void hl_layer_part(const struct hl_layer *l, struct hl_linear *a, int tensor, void *out, const void *dout) {
    const struct hl_layer_tensor *t = &l->tensor[tensor];
    if (!t->W.data) return;
    HL_ASSERT(a->n < HL_LINEAR_MAX);
    a->part[a->n++] = (struct hl_linear_part){.W = t->W, .out = out, .dout = dout, .dW = t->grad};
}

const void *hl_layer_adjacent(const struct hl_layer *l, int first, int last) {
    const char *next = l->tensor[first].W.data;
    for (int i = first; i <= last; i++) {
        const struct hl_weight *W = &l->tensor[i].W;
        if (!W->data) continue;
        if ((const char *)W->data != next) return NULL;
        next += W->rows * W->cols * l->backend->act_size;
    }
    return l->tensor[first].W.data;
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
