/* fp8.c -- FP8 products on a device: the weights' codes, which are valid for one training step (ops/linear/fp8.h). */
#include "cuda/device.h"
#include <stdlib.h>

bool hl_cuda_fp8_on(const struct hl_cuda *c) { return c->fp8; }

hola_status hl_cuda_fp8_open(struct hl_cuda *c) {
    if (!hl_cuda_has_fp8(c))
        return hl_fail(HOLA_ENOTSUP, "FP8: %.100s does not have it as Hopper does (compute capability 9.0)", c->name);
    c->fp8 = true;
    c->fp8_step = 1;
    c->fp8_refused = 0;
    return HOLA_OK;
}

void hl_cuda_fp8_close(struct hl_cuda *c) {
    for (int i = 0; i < c->fp8_weights; i++) hl_cuda_free(c, c->fp8_weight[i].codes);
    free(c->fp8_weight);
    c->fp8_weight = NULL;
    c->fp8_weights = c->fp8_room = 0;
    c->fp8 = false;
}

/* One block of memory: both forms, then their scales, each 256-byte aligned. */
static bool make_room(struct hl_cuda *c, struct hl_fp8_weight *w, int64_t scales, int64_t scales_t) {
    const int64_t codes = hl_pieces(w->rows * w->cols, 256) * 256;
    scales = hl_pieces(scales, 64) * 64;
    w->codes = hl_cuda_malloc(c, 2 * codes + (scales + scales_t) * (int64_t)sizeof(float));
    if (!w->codes) return false;
    w->codes_t = w->codes + codes;
    w->scale = (float *)(void *)(w->codes_t + codes);
    w->scale_t = w->scale + scales;
    return true;
}

const struct hl_fp8_weight *hl_cuda_fp8_weight(struct hl_cuda *c, const void *W, int64_t rows, int64_t cols,
                                               int64_t scales, int64_t scales_t, bool *fill) {
    struct hl_fp8_weight *w = NULL;
    for (int i = 0; i < c->fp8_weights && !w; i++) {
        struct hl_fp8_weight *x = &c->fp8_weight[i];
        if (x->W == W && x->rows == rows && x->cols == cols) w = x;
    }
    if (!w && c->fp8_weights == c->fp8_room) {
        const int room = 2 * c->fp8_room + 64;
        struct hl_fp8_weight *more = realloc(c->fp8_weight, (size_t)room * sizeof *more);
        if (more) c->fp8_weight = more, c->fp8_room = room;
    }
    if (!w && c->fp8_weights < c->fp8_room) {
        w = &c->fp8_weight[c->fp8_weights];
        *w = (struct hl_fp8_weight){.W = W, .rows = rows, .cols = cols};
        if (make_room(c, w, scales, scales_t)) c->fp8_weights++;
        else w = NULL;
    }
    if (!w) {
        hl_cuda_fail(c, HOLA_ENOMEM, "FP8: a weight of %lld x %lld does not fit in the device's memory",
                     (long long)rows, (long long)cols);
        return NULL;
    }
    *fill = w->step != c->fp8_step;
    w->step = c->fp8_step;
    return w;
}
