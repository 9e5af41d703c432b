/* conv_ref.c -- the short convolution as in conv.h: each output separately. */
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>

/* Row t of the segment's sequence, t counted from the segment's first row; t < 0: earlier rows. */
static real input(const struct hl_conv *a, const struct hl_seg *s, int64_t W, int64_t t, int64_t c) {
    if (t >= 0) return ((const real *)a->x)[(s->row + t) * a->C + c];
    if (!s->state || s->pos == 0) return 0;
    return ((const real *)(s->state + a->tail_off))[(t + W - 1) * a->C + c];
}

static real preact(const struct hl_conv *a, const struct hl_seg *s, int64_t W, int64_t t, int64_t c) {
    real u = 0;
    for (int64_t i = 0; i < W; i++) u += (a->w ? a->w[c * W + i] : 1) * input(a, s, W, t - W + 1 + i, c);
    return u;
}

static void keep_tail(const struct hl_conv *a, const struct hl_seg *s, int64_t W) {
    size_t bytes = (size_t)((W - 1) * a->C) * sizeof(real);
    real *tail = malloc(bytes); /* the new one may still need the old one */
    HL_ASSERT(tail);
    for (int64_t i = 0; i < W - 1; i++)
        for (int64_t c = 0; c < a->C; c++) tail[i * a->C + c] = input(a, s, W, s->len - W + 1 + i, c);
    memcpy(s->state + a->tail_off, tail, bytes);
    free(tail);
}

void HL_OP(conv_forward)(struct hl_backend *backend, const struct hl_conv *a) {
    const int64_t W = a->w ? a->W : 1;
    (void)backend;
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        for (int64_t t = 0; t < s->len; t++)
            for (int64_t c = 0; c < a->C; c++) {
                real u = preact(a, s, W, t, c);
                ((real *)a->y)[(s->row + t) * a->C + c] = u * hl_sigmoid(u);
            }
        if (s->state && W > 1) keep_tail(a, s, W);
    }
}

/* du = dy silu'(u) at row t of the segment; 0 past its end */
static real du(const struct hl_conv *a, const struct hl_seg *s, int64_t W, int64_t t, int64_t c) {
    if (t >= s->len) return 0;
    real u = preact(a, s, W, t, c), sg = hl_sigmoid(u);
    return ((const real *)a->dy)[(s->row + t) * a->C + c] * sg * (1 + u * (1 - sg));
}

void HL_OP(conv_backward)(struct hl_backend *backend, const struct hl_conv *a) {
    const int64_t W = a->w ? a->W : 1;
    (void)backend;
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        HL_ASSERT(!s->state);
        for (int64_t c = 0; c < a->C; c++) {
            double dw[HL_CONV_MAX] = {0};
            for (int64_t t = 0; t < s->len; t++) {
                real d = 0;
                for (int64_t i = 0; i < W; i++) {
                    real later = du(a, s, W, t + i, c);
                    d += (a->w ? a->w[c * W + W - 1 - i] : 1) * later;
                    dw[W - 1 - i] += (double)later * (double)input(a, s, W, t, c);
                }
                ((real *)a->dx)[(s->row + t) * a->C + c] = d;
            }
            for (int64_t i = 0; a->w && i < W; i++) a->dw[c * W + i] += (real)dw[i];
        }
    }
}
