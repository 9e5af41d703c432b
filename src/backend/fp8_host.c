/* fp8_host.c -- products in FP8 on the CPU, which has none: the operands are quantised as on a device, turned back into
 * floats, and multiplied by the backend's own linear ops. So the numbers are those of the device, except for the order
 * of the sums and what activations are rounded to before. It is slower than without. */
#include "backend/fp8_host.h"
#include <stdlib.h>

struct hl_fp8_host {
    void (*forward)(struct hl_backend *, const struct hl_linear *), /* the backend's own */
        (*backward)(struct hl_backend *, const struct hl_linear *);
    int64_t room, weight; /* numbers in x and d; in w */
    real *x, *d, *w;      /* operands as the codes say they are */
    uint8_t *codes;
    float *scale;
};

static real value(const struct hl_fp8_quantise *q, bool transposed, int64_t i, int64_t j) {
    if (!transposed)
        return (real)(hl_from_fp8(q->codes[i * q->cols + j], q->format) *
                      q->scale[hl_fp8_scale_at(q->blocks, q->rows, q->cols, i, j)]);
    return (real)(hl_from_fp8(q->codes_t[j * q->rows + i], q->format) *
                  q->scale_t[hl_fp8_scale_at(q->blocks, q->cols, q->rows, j, i)]);
}

struct rounding {
    struct hl_fp8_quantise q;
    bool transposed;
    real *out;
};
static void dequantise_row(void *ctx, int64_t i, int worker) {
    const struct rounding *r = ctx;
    (void)worker;
    for (int64_t j = 0; j < r->q.cols; j++) r->out[i * r->q.cols + j] = value(&r->q, r->transposed, i, j);
}
void hl_fp8_dequantise(const struct hl_fp8_quantise *q, bool transposed, real *out) {
    struct rounding r = {*q, transposed, out};
    for (int64_t i = 0; i < q->rows; i++) dequantise_row(&r, i, 0);
}

/* What FP8 makes of a matrix [rows][cols], in `out`. transposed: with the scales of its transposed form. */
static const real *rounded(struct hl_backend *b, const void *x, int64_t rows, int64_t cols, enum hl_fp8 format,
                           bool blocks, bool transposed, real *out) {
    struct hl_fp8_host *h = b->fp8_host;
    struct rounding r = {
        {.rows = rows, .cols = cols, .ld = cols, .x = x, .format = format, .blocks = blocks}, transposed, out};
    HL_ASSERT(rows * cols <= (out == h->w ? h->weight : h->room));
    if (transposed) r.q.codes_t = h->codes, r.q.scale_t = h->scale;
    else r.q.codes = h->codes, r.q.scale = h->scale;
    b->ops.fp8_quantise(b, &r.q);
    hl_pool_run(b->pool, rows, dequantise_row, &r);
    return out;
}
static struct hl_weight rounded_weight(struct hl_backend *b, const struct hl_weight *W) {
    struct hl_weight w = *W;
    w.data = rounded(b, W->data, W->rows, W->cols, HL_E4M3, true, false, b->fp8_host->w);
    w.precision = HOLA_PRECISION_AUTO;
    return w;
}

static bool in_fp8(const struct hl_linear *a, int p) {
    const struct hl_weight *W = &a->part[p].W;
    return W->precision == HOLA_PRECISION_FP8 && hl_fp8_fits(a->M, W->rows, W->cols);
}
/* The parts that are, or are not, in FP8; whether there are any. */
static bool choose(const struct hl_linear *a, bool fp8, struct hl_linear *out) {
    *out = *a;
    out->n = 0;
    for (int p = 0; p < a->n; p++)
        if (in_fp8(a, p) == fp8) out->part[out->n++] = a->part[p];
    return out->n > 0;
}

static void forward(struct hl_backend *b, const struct hl_linear *a) {
    const struct hl_fp8_host *h = b->fp8_host;
    struct hl_linear l, one;
    if (choose(a, false, &l)) h->forward(b, &l);
    if (!choose(a, true, &l)) return;
    one = l;
    one.n = 1;
    one.x = rounded(b, a->x, a->M, a->K, HL_E4M3, false, false, h->x);
    for (int p = 0; p < l.n; p++) {
        one.part[0] = l.part[p];
        one.part[0].W = rounded_weight(b, &l.part[p].W);
        h->forward(b, &one);
    }
}

static void backward(struct hl_backend *b, const struct hl_linear *a) {
    const struct hl_fp8_host *h = b->fp8_host;
    struct hl_linear l, one;
    if (choose(a, false, &l)) h->backward(b, &l);
    bool add = a->dx_add || l.n > 0;
    if (!choose(a, true, &l)) return;
    for (int p = 0; p < l.n; p++) {
        const int64_t N = l.part[p].W.rows;
        one = l;
        one.n = 1;
        one.part[0] = l.part[p];
        if (a->dx) {
            one.part[0].dout = rounded(b, l.part[p].dout, a->M, N, HL_FP8_GRADIENTS, false, false, h->d);
            one.part[0].W = rounded_weight(b, &l.part[p].W);
            one.part[0].dW = NULL;
            one.dx_add = add;
            add = true;
            h->backward(b, &one);
        }
        if (!l.part[p].dW) continue;
        one.dx = NULL;
        one.part[0].dW = l.part[p].dW;
        one.part[0].dout = rounded(b, l.part[p].dout, a->M, N, HL_FP8_GRADIENTS, false, true, h->d);
        one.x = rounded(b, a->x, a->M, a->K, HL_E4M3, false, true, h->x);
        h->backward(b, &one);
    }
}

/* ---- open, close ---- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
/* of scales: no form has more than one for 16 numbers (hl_fp8_fits) */
static int64_t codes_of(const struct hl_fp8_sizes *s) { return larger(s->tokens * s->wide, s->weight); }
static int64_t bytes(const struct hl_fp8_sizes *s) {
    return (2 * s->tokens * s->wide + s->weight) * (int64_t)sizeof(real) +
           codes_of(s) * (1 + (int64_t)sizeof(float) / 4);
}

static void close_host(struct hl_backend *b) {
    struct hl_fp8_host *h = b->fp8_host;
    if (!h) return;
    b->ops.linear_forward = h->forward, b->ops.linear_backward = h->backward;
    free(h->x), free(h->d), free(h->w), free(h->codes), free(h->scale);
    free(h);
    b->fp8_host = NULL;
}

static hola_status open_host(struct hl_backend *b, const struct hl_fp8_sizes *s) {
    struct hl_fp8_host *h = calloc(1, sizeof *h);
    const int64_t room = s->tokens * s->wide, codes = codes_of(s);
    if (!h) return hl_fail(HOLA_ENOMEM, "FP8: no memory");
    h->room = room, h->weight = s->weight;
    h->x = malloc((size_t)(room + 1) * sizeof(real)), h->d = malloc((size_t)(room + 1) * sizeof(real));
    h->w = malloc((size_t)(s->weight + 1) * sizeof(real));
    h->codes = malloc((size_t)codes + 1), h->scale = malloc((size_t)(codes / HL_FP8_ALIGN + 4) * sizeof(float));
    h->forward = b->ops.linear_forward, h->backward = b->ops.linear_backward;
    b->fp8_host = h;
    if (!h->x || !h->d || !h->w || !h->codes || !h->scale) {
        close_host(b);
        return hl_fail(HOLA_ENOMEM, "FP8: %.1f MB do not fit in the memory", (double)bytes(s) * 1e-6);
    }
    b->ops.linear_forward = forward, b->ops.linear_backward = backward;
    return HOLA_OK;
}
static void stale(struct hl_backend *b) { (void)b; } /* weights are quantised whenever they are read */
static int64_t refused(struct hl_backend *b) {
    (void)b;
    return 0;
}
const struct hl_fp8_products hl_fp8_host_products = {
    .open = open_host, .close = close_host, .stale = stale, .refused = refused, .bytes = bytes};
