/* raw_attention_ref.h -- causal softmax attention by its definition (include/hola_ops.h), query by query in double,
 * forward and backward, for the tests of the raw calls; with mistakes that comparisons must find. */
#ifndef HL_RAW_ATTENTION_REF_H
#define HL_RAW_ATTENTION_REF_H
#include "check.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum attention_mistake {
    ATTENTION_RIGHT,
    ATTENTION_SEES_NEXT, /* a query sees the key behind it */
    ATTENTION_WINDOW,    /* the window is one too long */
    ATTENTION_PACKED,    /* a sequence sees the one before it */
    ATTENTION_HEADS,     /* every query head reads the first key head */
    ATTENTION_SCALE,     /* the scale is forgotten */
    ATTENTION_MISTAKES
};

struct attention_ref {
    int64_t T, N, H, HK, D, window;
    const int64_t *cu;
    double scale;
    double *q, *k, *v, *dout;
    double *out, *lse, *dq, *dk, *dv;
    enum attention_mistake mistake;
};

static inline double attention_dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}
/* The query of row t and head h of the sequence with rows [first, end); p: room for end numbers. */
static inline void attention_query(const struct attention_ref *a, int64_t first, int64_t end, int64_t t, int64_t h,
                                   double *p) {
    const enum attention_mistake m = a->mistake;
    const int64_t D = a->D, head = m == ATTENTION_HEADS ? 0 : h / (a->H / a->HK), at = (t * a->H + h) * D;
    const int64_t window = a->window + (m == ATTENTION_WINDOW), begin = m == ATTENTION_PACKED ? 0 : first;
    const int64_t from = a->window && t - window + 1 > begin ? t - window + 1 : begin;
    const int64_t last = m == ATTENTION_SEES_NEXT && t + 1 < end ? t + 1 : t;
    const double scale = m == ATTENTION_SCALE ? 1 : a->scale;
    double top = -INFINITY, sum = 0, along = 0;
    for (int64_t j = from; j <= last; j++) {
        p[j] = scale * attention_dot(a->q + at, a->k + (j * a->HK + head) * D, D);
        top = fmax(top, p[j]);
    }
    for (int64_t j = from; j <= last; j++) sum += p[j] = exp(p[j] - top);
    a->lse[t * a->H + h] = top + log(sum);
    for (int64_t i = 0; i < D; i++) {
        double out = 0;
        for (int64_t j = from; j <= last; j++) out += p[j] / sum * a->v[(j * a->HK + head) * D + i];
        a->out[at + i] = out;
    }
    if (!a->dout) return;
    along = attention_dot(a->dout + at, a->out + at, D);
    for (int64_t j = from; j <= last; j++) {
        const int64_t key = (j * a->HK + head) * D;
        const double w = p[j] / sum, dz = scale * w * (attention_dot(a->dout + at, a->v + key, D) - along);
        for (int64_t i = 0; i < D; i++) {
            a->dq[at + i] += dz * a->k[key + i];
            a->dk[key + i] += dz * a->q[at + i];
            a->dv[key + i] += w * a->dout[at + i];
        }
    }
}
/* Everything; gradients where there is dout. */
static inline void attention_ref_run(const struct attention_ref *a) {
    double *p = malloc((size_t)(a->T + 1) * sizeof *p);
    assert_non_null(p);
    if (a->dout) {
        memset(a->dq, 0, (size_t)(a->T * a->H * a->D) * 8);
        memset(a->dk, 0, (size_t)(a->T * a->HK * a->D) * 8), memset(a->dv, 0, (size_t)(a->T * a->HK * a->D) * 8);
    }
    for (int64_t n = 0; n < a->N; n++)
        for (int64_t t = a->cu[n]; t < a->cu[n + 1]; t++)
            for (int64_t h = 0; h < a->H; h++) attention_query(a, a->cu[n], a->cu[n + 1], t, h, p);
    free(p);
}
#endif
