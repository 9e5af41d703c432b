/* gdn_ref.c -- the reference: the gated delta rule token by token, and its gradient from the last token to the first,
 * with the states of all tokens kept. */
#include "ops/gdn/gdn_cpu.h"
#include <stdlib.h>
#include <string.h>

/* One value head of one segment: the rows of its first token, and the strides from token to token. */
struct head {
    const real *q, *k, *v, *g, *beta;
    int64_t qk_stride, v_stride, b_stride, K, V;
};

static struct head head_of(const struct hl_gdn *a, int64_t row, int64_t hv) {
    int64_t hk = hv / (a->HV / a->H), qk = (row * a->H + hk) * a->K;
    return (struct head){.q = (const real *)a->q + qk,
                         .k = (const real *)a->k + qk,
                         .v = (const real *)a->v + (row * a->HV + hv) * a->V,
                         .g = a->g ? a->g + row * a->HV + hv : NULL,
                         .beta = a->beta + row * a->HV + hv,
                         .qk_stride = a->H * a->K,
                         .v_stride = a->HV * a->V,
                         .b_stride = a->HV,
                         .K = a->K,
                         .V = a->V};
}

static real alpha_at(const struct head *x, int64_t t) { return x->g ? R_EXP(x->g[t * x->b_stride]) : 1; }

/* e = v_t - k_t^T S, with S already decayed */
static void residual(const struct head *x, int64_t t, const real *S, real *e) {
    const real *k = x->k + t * x->qk_stride, *v = x->v + t * x->v_stride;
    for (int64_t j = 0; j < x->V; j++) e[j] = v[j];
    for (int64_t i = 0; i < x->K; i++)
        for (int64_t j = 0; j < x->V; j++) e[j] -= k[i] * S[i * x->V + j];
}

/* S_{t-1} becomes S_t; leaves e */
static void step(const struct head *x, int64_t t, real *S, real *e) {
    const real *k = x->k + t * x->qk_stride;
    real alpha = alpha_at(x, t), beta = x->beta[t * x->b_stride];
    for (int64_t i = 0; i < x->K * x->V; i++) S[i] *= alpha;
    residual(x, t, S, e);
    for (int64_t i = 0; i < x->K; i++)
        for (int64_t j = 0; j < x->V; j++) S[i * x->V + j] += k[i] * (beta * e[j]);
}

static real *new_reals(int64_t n) {
    real *p = calloc((size_t)n, sizeof *p);
    HL_ASSERT(p);
    return p;
}

static void forward_head(const struct hl_gdn *a, int64_t segment, int64_t hv) {
    const struct hl_seg *s = &a->rows->seg[segment];
    struct head x = head_of(a, s->row, hv);
    int64_t K = a->K, V = a->V;
    real scale = 1 / R_SQRT((real)K), *kept = s->state ? (real *)(s->state + a->S_off) + hv * K * V : NULL;
    real *S = new_reals(K * V), *e = new_reals(V);
    if (kept) memcpy(S, kept, (size_t)(K * V) * sizeof *S);
    for (int64_t t = 0; t < s->len; t++) {
        const real *q = x.q + t * x.qk_stride;
        real *out = (real *)a->out + ((s->row + t) * a->HV + hv) * V, norm2 = 0;
        step(&x, t, S, e);
        for (int64_t j = 0; j < V; j++) out[j] = 0;
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < V; j++) out[j] += scale * q[i] * S[i * V + j];
        for (int64_t j = 0; j < V; j++) norm2 += e[j] * e[j];
        a->m[(s->row + t) * a->HV + hv] = x.beta[t * x.b_stride] * R_SQRT(norm2);
        if (a->block_S && t + 1 < s->len && (s->pos + t + 1) % a->block == 0)
            memcpy(gdn_block_state(a, segment, t, hv), S, (size_t)(K * V) * sizeof *S);
    }
    if (kept) memcpy(kept, S, (size_t)(K * V) * sizeof *S);
    free(S);
    free(e);
}

void HL_OP(gdn_forward)(struct hl_backend *backend, const struct hl_gdn *a) {
    (void)backend;
    HL_ASSERT(a->HV % a->H == 0);
    for (int64_t s = 0; s < a->rows->n; s++)
        for (int64_t hv = 0; hv < a->HV; hv++) forward_head(a, s, hv);
}

/* Gradients of token t. S: S_{t-1}; dS: the gradient of S_t, which becomes that of S_{t-1}; tmp: 2V + KV. */
static void backward_step(const struct head *x, int64_t t, const real *S, real *dS, const real *dout, real *dq,
                          real *dk, real *dv, real *dg, real *dbeta, real *tmp) {
    const real *q = x->q + t * x->qk_stride, *k = x->k + t * x->qk_stride;
    int64_t K = x->K, V = x->V;
    real *e = tmp, *dr = tmp + V, *Sd = tmp + 2 * V; /* Sd: the decayed state S' */
    real alpha = alpha_at(x, t), beta = x->beta[t * x->b_stride], scale = 1 / R_SQRT((real)K);
    real dalpha = 0;
    for (int64_t i = 0; i < K * V; i++) Sd[i] = alpha * S[i];
    residual(x, t, Sd, e);
    /* out = scale q^T S_t with S_t = S' + k r^T, r = beta e */
    for (int64_t j = 0; j < V; j++) dr[j] = 0;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            dq[i] += scale * (Sd[i * V + j] + k[i] * (beta * e[j])) * dout[j];
            dS[i * V + j] += scale * q[i] * dout[j];
            dk[i] += dS[i * V + j] * (beta * e[j]);
            dr[j] += k[i] * dS[i * V + j];
        }
    *dbeta = 0;
    for (int64_t j = 0; j < V; j++) {
        *dbeta += dr[j] * e[j];
        dv[j] = beta * dr[j];
    }
    /* e = v - k^T S', so de = dv; S' = alpha S */
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            dk[i] -= Sd[i * V + j] * dv[j];
            dS[i * V + j] -= k[i] * dv[j];
            dalpha += dS[i * V + j] * S[i * V + j];
            dS[i * V + j] *= alpha;
        }
    if (dg) *dg = alpha * dalpha;
}

/* dq and dk are added to: value heads of a group share them */
static void backward_head(const struct hl_gdn *a, int64_t segment, int64_t hv) {
    const struct hl_seg *s = &a->rows->seg[segment];
    struct head x = head_of(a, s->row, hv);
    int64_t K = a->K, V = a->V, KV = K * V, qk = (s->row * a->H + hv / (a->HV / a->H)) * K;
    real *S = new_reals((s->len + 1) * KV), *dS = new_reals(KV), *tmp = new_reals(2 * V + KV);
    const int64_t at = (segment * a->HV + hv) * KV;
    if (a->h0) memcpy(S, a->h0 + at, (size_t)KV * sizeof *S);
    if (a->dht) memcpy(dS, a->dht + at, (size_t)KV * sizeof *S);
    for (int64_t t = 0; t < s->len; t++) { /* S + t KV: the state before token t */
        memcpy(S + (t + 1) * KV, S + t * KV, (size_t)KV * sizeof *S);
        step(&x, t, S + (t + 1) * KV, tmp);
    }
    for (int64_t t = s->len - 1; t >= 0; t--) {
        int64_t b = (s->row + t) * a->HV + hv;
        backward_step(&x, t, S + t * KV, dS, (const real *)a->dout + b * V, (real *)a->dq + qk + t * x.qk_stride,
                      (real *)a->dk + qk + t * x.qk_stride, (real *)a->dv + b * V, a->dg ? a->dg + b : NULL,
                      a->dbeta + b, tmp);
    }
    if (a->dh0) memcpy(a->dh0 + at, dS, (size_t)KV * sizeof *S);
    free(S);
    free(dS);
    free(tmp);
}

void HL_OP(gdn_backward)(struct hl_backend *backend, const struct hl_gdn *a) {
    (void)backend;
    HL_ASSERT(a->HV % a->H == 0);
    for (int64_t s = 0; s < a->rows->n; s++) {
        int64_t row = a->rows->seg[s].row, width = a->H * a->K;
        size_t bytes = (size_t)(a->rows->seg[s].len * width) * sizeof(real);
        memset((real *)a->dq + row * width, 0, bytes);
        memset((real *)a->dk + row * width, 0, bytes);
        for (int64_t hv = 0; hv < a->HV; hv++) backward_head(a, s, hv);
    }
}

/* (the fast forms' scratch, here because this file is compiled once for all instruction sets) */
int64_t hl_gdn_scratch(int64_t K, int64_t V) {
    return (gdn_scratch_reals(K, V) + GDN_SLOTS * K * V) * (int64_t)sizeof(real);
}
