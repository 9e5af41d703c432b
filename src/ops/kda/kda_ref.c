/* kda_ref.c -- the reference: the delta rule with a decay per channel, token by token, and its gradient from the last
 * token to the first, for which the states of all tokens are stored. */
#include "ops/kda/kda_cpu.h"
#include <stdlib.h>
#include <string.h>

/* One token of a value head. */
struct token {
    const real *q, *k, *v, *g;
    real beta;
    int64_t K, V, qk, b; /* qk: offset of q and k; b: row and head */
};

static struct token token_at(const struct hl_kda *a, int64_t row, int64_t hv) {
    int64_t qk = (row * a->H + hv / (a->HV / a->H)) * a->K, b = row * a->HV + hv;
    return (struct token){.q = (const real *)a->q + qk,
                          .k = (const real *)a->k + qk,
                          .v = (const real *)a->v + b * a->V,
                          .g = a->g + b * a->K,
                          .beta = a->beta[b],
                          .K = a->K,
                          .V = a->V,
                          .qk = qk,
                          .b = b};
}

/* S_{t-1} becomes S' = diag(exp(g)) S_{t-1}; e = v - k^T S' */
static void decay(const struct token *x, real *S, real *e) {
    for (int64_t j = 0; j < x->V; j++) e[j] = x->v[j];
    for (int64_t i = 0; i < x->K; i++) {
        real alpha = R_EXP(x->g[i]);
        for (int64_t j = 0; j < x->V; j++) {
            S[i * x->V + j] *= alpha;
            e[j] -= x->k[i] * S[i * x->V + j];
        }
    }
}

/* S_{t-1} becomes S_t; leaves e */
static void step(const struct token *x, real *S, real *e) {
    decay(x, S, e);
    for (int64_t i = 0; i < x->K; i++)
        for (int64_t j = 0; j < x->V; j++) S[i * x->V + j] += x->k[i] * (x->beta * e[j]);
}

static real *new_reals(int64_t n) {
    real *p = calloc((size_t)n, sizeof *p);
    HL_ASSERT(p);
    return p;
}

static void forward_head(const struct hl_kda *a, const struct hl_seg *s, int64_t hv) {
    int64_t K = a->K, V = a->V;
    real scale = 1 / R_SQRT((real)K), *kept = s->state ? (real *)(s->state + a->S_off) + hv * K * V : NULL;
    real *S = new_reals(K * V), *e = new_reals(V);
    if (kept) memcpy(S, kept, (size_t)(K * V) * sizeof *S);
    for (int64_t t = 0; t < s->len; t++) {
        struct token x = token_at(a, s->row + t, hv);
        real *out = (real *)a->out + x.b * V, norm2 = 0;
        step(&x, S, e);
        for (int64_t j = 0; j < V; j++) {
            out[j] = 0;
            norm2 += e[j] * e[j];
        }
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < V; j++) out[j] += scale * x.q[i] * S[i * V + j];
        a->m[x.b] = x.beta * R_SQRT(norm2);
    }
    if (kept) memcpy(kept, S, (size_t)(K * V) * sizeof *S);
    free(S);
    free(e);
}

void HL_OP(kda_forward)(struct hl_backend *backend, const struct hl_kda *a) {
    (void)backend;
    HL_ASSERT(a->HV % a->H == 0);
    for (int64_t s = 0; s < a->rows->n; s++)
        for (int64_t hv = 0; hv < a->HV; hv++) forward_head(a, &a->rows->seg[s], hv);
}

/* Gradients of one token. S: S_{t-1}; dS: the gradient of S_t, replaced by that of S_{t-1}; tmp: 2V + KV. */
static void backward_step(const struct hl_kda *a, const struct token *x, const real *S, real *dS, real *tmp) {
    const int64_t K = x->K, V = x->V;
    const real *dout = (const real *)a->dout + x->b * V, scale = 1 / R_SQRT((real)K);
    real *dq = (real *)a->dq + x->qk, *dk = (real *)a->dk + x->qk, *dv = (real *)a->dv + x->b * V;
    real *e = tmp, *dr = tmp + V, *Sd = tmp + 2 * V, dbeta = 0; /* Sd: the decayed state S' */
    memcpy(Sd, S, (size_t)(K * V) * sizeof *S);
    decay(x, Sd, e);
    /* out = scale q^T S_t with S_t = S' + k r^T, r = beta e */
    for (int64_t j = 0; j < V; j++) dr[j] = 0;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            real r = x->beta * e[j], *d = &dS[i * V + j];
            *d += scale * x->q[i] * dout[j];
            dq[i] += scale * (Sd[i * V + j] + x->k[i] * r) * dout[j];
            dk[i] += *d * r;
            dr[j] += x->k[i] * *d;
        }
    for (int64_t j = 0; j < V; j++) {
        dbeta += dr[j] * e[j];
        dv[j] = x->beta * dr[j];
    }
    a->dbeta[x->b] = dbeta;
    /* e = v - k^T S', so de = dv; S' = diag(exp(g)) S */
    for (int64_t i = 0; i < K; i++) {
        real alpha = R_EXP(x->g[i]), dg = 0;
        for (int64_t j = 0; j < V; j++) {
            dk[i] -= Sd[i * V + j] * dv[j];
            dS[i * V + j] -= x->k[i] * dv[j];
            dg += dS[i * V + j] * Sd[i * V + j];
            dS[i * V + j] *= alpha;
        }
        a->dg[x->b * K + i] = dg;
    }
}

/* dq and dk are accumulated: value heads of a group share them */
static void backward_head(const struct hl_kda *a, const struct hl_seg *s, int64_t hv) {
    int64_t KV = a->K * a->V, state = ((s - a->rows->seg) * a->HV + hv) * KV;
    real *S = new_reals((s->len + 1) * KV), *dS = new_reals(KV), *tmp = new_reals(2 * a->V + KV);
    if (a->h0) memcpy(S, a->h0 + state, (size_t)KV * sizeof *S);
    if (a->dht) memcpy(dS, a->dht + state, (size_t)KV * sizeof *dS);
    for (int64_t t = 0; t < s->len; t++) { /* S + t KV: the state before token t */
        struct token x = token_at(a, s->row + t, hv);
        memcpy(S + (t + 1) * KV, S + t * KV, (size_t)KV * sizeof *S);
        step(&x, S + (t + 1) * KV, tmp);
    }
    for (int64_t t = s->len - 1; t >= 0; t--) {
        struct token x = token_at(a, s->row + t, hv);
        backward_step(a, &x, S + t * KV, dS, tmp);
    }
    if (a->dh0) memcpy(a->dh0 + state, dS, (size_t)KV * sizeof *dS);
    free(S);
    free(dS);
    free(tmp);
}

void HL_OP(kda_backward)(struct hl_backend *backend, const struct hl_kda *a) {
    (void)backend;
    HL_ASSERT(a->HV % a->H == 0);
    for (int64_t s = 0; s < a->rows->n; s++) {
        const struct hl_seg *seg = &a->rows->seg[s];
        int64_t width = a->H * a->K;
        memset((real *)a->dq + seg->row * width, 0, (size_t)(seg->len * width) * sizeof(real));
        memset((real *)a->dk + seg->row * width, 0, (size_t)(seg->len * width) * sizeof(real));
        for (int64_t hv = 0; hv < a->HV; hv++) backward_head(a, seg, hv);
    }
}

/* (the fast variants' scratch, here because this file is compiled once for all instruction sets) */
int64_t hl_kda_scratch(int64_t K, int64_t V) { return kda_scratch_reals(K, V) * (int64_t)sizeof(real); }
