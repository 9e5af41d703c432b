/* lte_ref.c -- the learned score as in lte.h, block by block in plain loops, and its gradient. */
#include "ops/linear/small_gemm.h"
#include <stdlib.h>
#include <string.h>

/* One value head of one block: its rows' k and v, and the numbers of every layer, [C][r]. */
struct block {
    const struct hl_lte *a;
    int64_t h, row; /* row: of the batch, of the block's first row; may be before the segment's */
    real **k, **v;
    real *norm; /* [C]: 1 / sqrt(mean(v^2) + eps) */
    real *u, *pre_a, *act_a, *pre_c, *act_c;
};

static real silu(real x) { return x * hl_sigmoid(x); }
static real dsilu(real x) {
    const real s = hl_sigmoid(x);
    return s * (1 + x * (1 - s));
}

static void block_new(struct block *b, const struct hl_lte *a) {
    const size_t C = (size_t)a->chunk, n = C * (size_t)a->r;
    *b = (struct block){.a = a};
    b->k = malloc(C * sizeof *b->k), b->v = malloc(C * sizeof *b->v);
    b->norm = malloc((C + 5 * n + C * (size_t)(a->K + a->V)) * sizeof(real));
    HL_ASSERT(b->k && b->v && b->norm);
    b->u = b->norm + C, b->pre_a = b->u + n, b->act_a = b->pre_a + n, b->pre_c = b->act_a + n, b->act_c = b->pre_c + n;
    for (size_t j = 0; j < C; j++) b->k[j] = b->act_c + n + j * (size_t)(a->K + a->V), b->v[j] = b->k[j] + a->K;
}
static void block_free(struct block *b) {
    free(b->k);
    free(b->v);
    free(b->norm);
}

/* Row `at` of n numbers, from the state (rows of a->row_dtype) or from the batch (reals). */
static void copy_row(const struct hl_lte *a, const void *from, bool state, int64_t at, int64_t n, real *to) {
    for (int64_t i = at * n; i < (at + 1) * n; i++, to++)
        if (a->row_dtype != HOLA_F16) *to = ((const real *)from)[i];
        else *to = hl_from_f16(state ? ((const uint16_t *)from)[i] : hl_cache_to_f16(((const real *)from)[i]));
}

/* Copies the rows of the i-th block of segment s. False: the segment does not complete it. state: the scores of the
 * rows before the segment, by their index in the block. */
static bool block_open(struct block *b, const struct hl_seg *s, int64_t i, int64_t h, real **state) {
    const struct hl_lte *a = b->a;
    const struct hl_cache_layout l =
        hl_cache_layout(a->K, a->V, a->window, a->chunk, hl_cache_row_size(a->row_dtype), false);
    const int64_t first = (s->pos / a->chunk + i) * a->chunk - s->pos; /* of the segment's rows */
    char *head = s->state ? s->state + a->state_off + h * l.bytes : NULL;
    b->h = h;
    b->row = s->row + first;
    *state = head ? (real *)(head + l.score) + a->window : NULL;
    if (first + a->chunk > s->len) return false;
    for (int64_t j = 0; j < a->chunk; j++) {
        const int64_t row = b->row + j, slot = a->window + j;
        const bool before = first + j < 0; /* the segment */
        copy_row(a, before ? head + l.k : a->k, before, before ? slot : row * a->H + h / (a->HV / a->H), a->K, b->k[j]);
        copy_row(a, before ? head + l.v : a->v, before, before ? slot : row * a->HV + h, a->V, b->v[j]);
    }
    return true;
}

/* pre = bias + the three taps of x, y = silu(pre); w and bias are of this head. */
static void convolve(const struct hl_lte *a, const real *w, const real *bias, const real *x, real *pre, real *y) {
    for (int64_t j = 0; j < a->chunk; j++)
        for (int64_t c = 0; c < a->r; c++) {
            real sum = bias[c];
            for (int64_t i = -1; i <= 1; i++)
                if (j + 2 * i >= 0 && j + 2 * i < a->chunk) sum += w[c * 3 + i + 1] * x[(j + 2 * i) * a->r + c];
            pre[j * a->r + c] = sum;
            y[j * a->r + c] = silu(sum);
        }
}

static void run(struct block *b) {
    const struct hl_lte *a = b->a;
    const int64_t K = a->K, V = a->V, r = a->r;
    const real *w = a->w_in + b->h * r * (K + V);
    for (int64_t j = 0; j < a->chunk; j++) {
        real sum = 0;
        for (int64_t i = 0; i < V; i++) sum += b->v[j][i] * b->v[j][i];
        b->norm[j] = 1 / R_SQRT(sum / (real)V + a->eps);
        for (int64_t c = 0; c < r; c++) {
            real x = 0;
            for (int64_t i = 0; i < K; i++) x += w[c * (K + V) + i] * b->k[j][i];
            for (int64_t i = 0; i < V; i++) x += w[c * (K + V) + K + i] * (b->v[j][i] * b->norm[j]);
            b->u[j * r + c] = x;
        }
    }
    convolve(a, a->conv1 + b->h * r * 3, a->bias1 + b->h * r, b->u, b->pre_a, b->act_a);
    convolve(a, a->conv2 + b->h * r * 3, a->bias2 + b->h * r, b->act_a, b->pre_c, b->act_c);
}

void HL_OP(lte_forward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct block b;
    (void)backend;
    memset(a->score, 0, (size_t)(a->rows->T * a->HV) * sizeof(real));
    block_new(&b, a);
    for (const struct hl_seg *s = a->rows->seg; s < a->rows->seg + a->rows->n; s++)
        for (int64_t i = 0; i < hl_seg_blocks(s, a->chunk); i++)
            for (int64_t h = 0; h < a->HV; h++) {
                real *state;
                if (!block_open(&b, s, i, h, &state)) continue;
                run(&b);
                for (int64_t j = 0; j < a->chunk; j++) {
                    real score = a->b_out[h];
                    for (int64_t c = 0; c < a->r; c++) score += a->w_out[h * a->r + c] * b.act_c[j * a->r + c];
                    if (b.row + j < s->row) state[j] = score;
                    else a->score[(b.row + j) * a->HV + h] = score;
                }
            }
    block_free(&b);
}

/* dpre, from dy in its place; the gradients of weights and bias; dx, written. */
static void convolve_backward(const struct hl_lte *a, const real *w, const real *x, const real *pre, real *dy, real *dw,
                              real *dbias, real *dx) {
    memset(dx, 0, (size_t)(a->chunk * a->r) * sizeof(real));
    for (int64_t j = 0; j < a->chunk; j++)
        for (int64_t c = 0; c < a->r; c++) {
            const real d = dy[j * a->r + c] * dsilu(pre[j * a->r + c]);
            dbias[c] += d;
            for (int64_t i = -1; i <= 1; i++) {
                if (j + 2 * i < 0 || j + 2 * i >= a->chunk) continue;
                dw[c * 3 + i + 1] += d * x[(j + 2 * i) * a->r + c];
                dx[(j + 2 * i) * a->r + c] += d * w[c * 3 + i + 1];
            }
        }
}

/* du to the gradients of W_in, k and v */
static void input_backward(const struct block *b, const real *du) {
    const struct hl_lte *a = b->a;
    const int64_t K = a->K, V = a->V, r = a->r, hk = b->h / (a->HV / a->H);
    const real *w = a->w_in + b->h * r * (K + V);
    real *dw = a->dw_in + b->h * r * (K + V), *dx = malloc((size_t)V * sizeof *dx);
    HL_ASSERT(dx);
    for (int64_t j = 0; j < a->chunk; j++) {
        real *dk = (real *)a->dk + ((b->row + j) * a->H + hk) * K,
             *dv = (real *)a->dv + ((b->row + j) * a->HV + b->h) * V;
        real along = 0;
        memset(dx, 0, (size_t)V * sizeof *dx);
        for (int64_t c = 0; c < r; c++) {
            const real d = du[j * r + c];
            for (int64_t i = 0; i < K; i++) {
                dw[c * (K + V) + i] += d * b->k[j][i];
                dk[i] += d * w[c * (K + V) + i];
            }
            for (int64_t i = 0; i < V; i++) {
                dw[c * (K + V) + K + i] += d * (b->v[j][i] * b->norm[j]);
                dx[i] += d * w[c * (K + V) + K + i];
            }
        }
        for (int64_t i = 0; i < V; i++) along += dx[i] * b->v[j][i] * b->norm[j];
        for (int64_t i = 0; i < V; i++) dv[i] += b->norm[j] * (dx[i] - b->v[j][i] * b->norm[j] * along / (real)V);
    }
    free(dx);
}

static void backward_block(struct block *b) {
    const struct hl_lte *a = b->a;
    const int64_t r = a->r, h = b->h;
    real *d = malloc((size_t)(2 * a->chunk * r) * sizeof *d), *other = d + a->chunk * r;
    HL_ASSERT(d);
    run(b);
    for (int64_t j = 0; j < a->chunk; j++) {
        const real dscore = a->dscore[(b->row + j) * a->HV + h];
        a->db_out[h] += dscore;
        for (int64_t c = 0; c < r; c++) {
            a->dw_out[h * r + c] += dscore * b->act_c[j * r + c];
            d[j * r + c] = dscore * a->w_out[h * r + c];
        }
    }
    convolve_backward(a, a->conv2 + h * r * 3, b->act_a, b->pre_c, d, a->dconv2 + h * r * 3, a->dbias2 + h * r, other);
    convolve_backward(a, a->conv1 + h * r * 3, b->u, b->pre_a, other, a->dconv1 + h * r * 3, a->dbias1 + h * r, d);
    input_backward(b, d);
    free(d);
}

void HL_OP(lte_backward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct block b;
    (void)backend;
    block_new(&b, a);
    for (const struct hl_seg *s = a->rows->seg; s < a->rows->seg + a->rows->n; s++)
        for (int64_t i = 0; i < hl_seg_blocks(s, a->chunk); i++)
            for (int64_t h = 0; h < a->HV; h++) {
                real *none;
                HL_ASSERT(!s->state && s->pos == 0);
                if (block_open(&b, s, i, h, &none)) backward_block(&b);
            }
    block_free(&b);
}

/* (the fast form's scratch, here because this file is compiled once for all instruction sets: the longest vectors) */
int64_t hl_lte_scratch(int64_t chunk, int64_t r, int64_t K, int64_t V) {
    return ((int64_t)HL_SMALL_GEMM_SCRATCH + chunk * (1 + 7 * r + (K > V ? K : V)) + 16 * 16) * (int64_t)sizeof(real) +
           16 * 64;
}
