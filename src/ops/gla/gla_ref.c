/* gla_ref.c -- the reference: gated linear attention token by token, and its gradient from the last token to the first,
 * for which the states of all tokens are stored. They are double: if q is nearly orthogonal to the keys, an output is
 * small compared with its terms, and the norm after it amplifies their rounding. */
#include "ops/gla/gla_cpu.h"
#include <stdlib.h>
#include <string.h>

static double *new_numbers(int64_t n) {
    double *p = calloc((size_t)n, sizeof *p);
    HL_ASSERT(p);
    return p;
}

/* S_{t-1} becomes S_t; at: row and key head */
static void step(const struct hl_gla *a, int64_t at, double *S) {
    const real *k = (const real *)a->k + at * a->K, *v = (const real *)a->v + at * a->V, *g = a->g + at * a->K;
    for (int64_t i = 0; i < a->K; i++)
        for (int64_t j = 0; j < a->V; j++)
            S[i * a->V + j] = exp((double)g[i]) * S[i * a->V + j] + (double)k[i] * (double)v[j];
}

static void forward_head(const struct hl_gla *a, const struct hl_seg *s, int64_t hk) {
    int64_t K = a->K, V = a->V, group = a->H / a->HK;
    real *kept = s->state ? (real *)(s->state + a->S_off) + hk * K * V : NULL;
    double *S = new_numbers(K * V);
    for (int64_t i = 0; kept && i < K * V; i++) S[i] = (double)kept[i];
    for (int64_t row = s->row; row < s->row + s->len; row++) {
        step(a, row * a->HK + hk, S);
        for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
            const real *q = (const real *)a->q + (row * a->H + h) * K;
            real *out = (real *)a->out + (row * a->H + h) * V;
            for (int64_t j = 0; j < V; j++) {
                double sum = 0;
                for (int64_t i = 0; i < K; i++) sum += (double)q[i] * S[i * V + j];
                out[j] = (real)((double)a->scale * sum);
            }
        }
    }
    for (int64_t i = 0; kept && i < K * V; i++) kept[i] = (real)S[i];
    free(S);
}

void HL_OP(gla_forward)(struct hl_backend *backend, const struct hl_gla *a) {
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t s = 0; s < a->rows->n; s++)
        for (int64_t hk = 0; hk < a->HK; hk++) forward_head(a, &a->rows->seg[s], hk);
}

/* Gradients of a row. S: S_{t-1}, then S_t; dS: the gradient of S_t, replaced by that of S_{t-1}. */
static void backward_step(const struct hl_gla *a, int64_t row, int64_t hk, const double *S, double *dS) {
    const int64_t K = a->K, V = a->V, group = a->H / a->HK, at = row * a->HK + hk;
    const real *k = (const real *)a->k + at * K, *v = (const real *)a->v + at * V, *g = a->g + at * K;
    real *dk = (real *)a->dk + at * K, *dv = (real *)a->dv + at * V;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        const real *q = (const real *)a->q + (row * a->H + h) * K, *dout = (const real *)a->dout + (row * a->H + h) * V;
        real *dq = (real *)a->dq + (row * a->H + h) * K;
        for (int64_t i = 0; i < K; i++) {
            double sum = 0;
            for (int64_t j = 0; j < V; j++) {
                sum += (double)a->scale * S[(K + i) * V + j] * (double)dout[j];
                dS[i * V + j] += (double)a->scale * (double)q[i] * (double)dout[j];
            }
            dq[i] = (real)sum;
        }
    }
    for (int64_t j = 0; j < V; j++) {
        double sum = 0;
        for (int64_t i = 0; i < K; i++) sum += dS[i * V + j] * (double)k[i];
        dv[j] = (real)sum;
    }
    for (int64_t i = 0; i < K; i++) {
        double alpha = exp((double)g[i]), dalpha = 0, sum = 0;
        for (int64_t j = 0; j < V; j++) {
            sum += dS[i * V + j] * (double)v[j];
            dalpha += dS[i * V + j] * S[i * V + j];
            dS[i * V + j] *= alpha;
        }
        dk[i] = (real)sum;
        a->dg[at * K + i] = (real)(alpha * dalpha);
    }
}

void HL_OP(gla_backward)(struct hl_backend *backend, const struct hl_gla *a) {
    const int64_t KV = a->K * a->V;
    (void)backend;
    HL_ASSERT(a->H % a->HK == 0);
    for (int64_t i = 0; i < a->rows->n * a->HK; i++) {
        const struct hl_seg *s = &a->rows->seg[i / a->HK];
        const int64_t hk = i % a->HK;
        double *S = new_numbers((s->len + 1) * KV), *dS = new_numbers(KV);
        for (int64_t j = 0; j < KV; j++) {
            if (a->h0) S[j] = (double)a->h0[i * KV + j];
            if (a->dht) dS[j] = (double)a->dht[i * KV + j];
        }
        for (int64_t t = 0; t < s->len; t++) { /* S + t KV: the state before token t */
            memcpy(S + (t + 1) * KV, S + t * KV, (size_t)KV * sizeof *S);
            step(a, (s->row + t) * a->HK + hk, S + (t + 1) * KV);
        }
        for (int64_t t = s->len - 1; t >= 0; t--) backward_step(a, s->row + t, hk, S + t * KV, dS);
        for (int64_t j = 0; j < KV && a->dh0; j++) a->dh0[i * KV + j] = (real)dS[j];
        free(S);
        free(dS);
    }
}

/* (the fast variants' scratch, here because this file is compiled once for all instruction sets) */
int64_t hl_gla_scratch(int64_t K, int64_t V) { return gla_scratch_reals(K, V) * (int64_t)sizeof(real); }
