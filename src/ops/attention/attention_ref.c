/* attention_ref.c -- the reference for softmax attention and its gradient, query by query. */
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>

/* Key or value at position p, all heads: a row of this call, or of the session's state. */
static real *state_row(const struct hl_attention *a, int64_t n, int64_t p, int64_t off) {
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t width = a->HK * a->D;
    if (a->window) return (real *)(s->state + off) + p % a->window * width;
    return (real *)(a->rows->pages[n][p / HL_PAGE_TOKENS] + off) + p % HL_PAGE_TOKENS * width;
}
static const real *row_at(const struct hl_attention *a, int64_t n, int64_t p, const void *x, int64_t off) {
    const struct hl_seg *s = &a->rows->seg[n];
    if (p < s->pos) return state_row(a, n, p, off);
    return (const real *)x + (s->row + p - s->pos) * a->HK * a->D;
}

static int64_t first_key(const struct hl_attention *a, int64_t t) {
    return a->window && t >= a->window ? t - a->window + 1 : 0;
}
static real dot(const real *x, const real *y, int64_t n) {
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* The query of head h at position t of segment n; z: room for the logits of all visible keys. */
static void forward_query(const struct hl_attention *a, int64_t n, int64_t t, int64_t h, real *z) {
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t first = first_key(a, t), row = s->row + t - s->pos, at = (row * a->H + h) * a->D;
    const int64_t head = h / (a->H / a->HK) * a->D;
    real *out = (real *)a->out + at, max = 0, sum = 0;
    for (int64_t j = first; j <= t; j++) {
        z[j - first] = a->scale * dot((const real *)a->q + at, row_at(a, n, j, a->k, a->k_off) + head, a->D);
        if (j == first || z[j - first] > max) max = z[j - first];
    }
    for (int64_t i = 0; i < a->D; i++) out[i] = 0;
    for (int64_t j = first; j <= t; j++) {
        const real p = R_EXP(z[j - first] - max), *v = row_at(a, n, j, a->v, a->v_off) + head;
        sum += p;
        for (int64_t i = 0; i < a->D; i++) out[i] += p * v[i];
    }
    for (int64_t i = 0; i < a->D; i++) out[i] /= sum;
    if (a->lse) a->lse[row * a->H + h] = max + R_LOG(sum);
}

/* Appends this call's rows to the session; a ring keeps only the last ones. */
static void keep(const struct hl_attention *a, int64_t n) {
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t width = a->HK * a->D, end = s->pos + s->len;
    for (int64_t p = s->pos; p < end; p++) {
        if (a->window && p < end - a->window) continue;
        memcpy(state_row(a, n, p, a->k_off), row_at(a, n, p, a->k, 0), (size_t)width * sizeof(real));
        memcpy(state_row(a, n, p, a->v_off), row_at(a, n, p, a->v, 0), (size_t)width * sizeof(real));
    }
}

void HL_OP(attention_forward)(struct hl_backend *backend, const struct hl_attention *a) {
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        real *z = malloc((size_t)(s->pos + s->len) * sizeof *z);
        HL_ASSERT(z);
        for (int64_t t = s->pos; t < s->pos + s->len; t++)
            for (int64_t h = 0; h < a->H; h++) forward_query(a, n, t, h, z);
        if (s->state) keep(a, n);
        free(z);
    }
}

/* Writes dq of a query and accumulates dk and dv of the keys it sees. */
static void backward_query(const struct hl_attention *a, const struct hl_seg *s, int64_t t, int64_t h) {
    const int64_t row = s->row + t, at = (row * a->H + h) * a->D;
    const real *q = (const real *)a->q + at, *dout = (const real *)a->dout + at;
    const real along = dot(dout, (const real *)a->out + at, a->D), lse = a->lse[row * a->H + h];
    real *dq = (real *)a->dq + at;
    for (int64_t i = 0; i < a->D; i++) dq[i] = 0;
    for (int64_t j = first_key(a, t); j <= t; j++) {
        const int64_t from = ((s->row + j) * a->HK + h / (a->H / a->HK)) * a->D;
        const real *k = (const real *)a->k + from, *v = (const real *)a->v + from;
        const real p = R_EXP(a->scale * dot(q, k, a->D) - lse), ds = p * (dot(dout, v, a->D) - along) * a->scale;
        for (int64_t i = 0; i < a->D; i++) {
            dq[i] += ds * k[i];
            ((real *)a->dk)[from + i] += ds * q[i];
            ((real *)a->dv)[from + i] += p * dout[i];
        }
    }
}

void HL_OP(attention_backward)(struct hl_backend *backend, const struct hl_attention *a) {
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        const int64_t width = a->HK * a->D;
        HL_ASSERT(!s->state);
        memset((real *)a->dk + s->row * width, 0, (size_t)(s->len * width) * sizeof(real));
        memset((real *)a->dv + s->row * width, 0, (size_t)(s->len * width) * sizeof(real));
        for (int64_t t = 0; t < s->len; t++)
            for (int64_t h = 0; h < a->H; h++) backward_query(a, s, t, h);
    }
}
