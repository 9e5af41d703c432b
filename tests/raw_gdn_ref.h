/* raw_gdn_ref.h -- the gated delta rule of include/hola_ops.h in double, token by token, with its gradient: the
 * reference for the raw calls. Written from the header's formulas, independent of src/ops/gdn. */
#ifndef HL_RAW_GDN_REF_H
#define HL_RAW_GDN_REF_H
#include "hola_ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Deliberate bugs that a comparison must detect. */
enum ref_mistake {
    REF_RIGHT,
    REF_NO_H0,        /* starts empty */
    REF_NO_DHT,       /* final states have no gradient */
    REF_NO_SCALE,     /* always K^-1/2 */
    REF_OTHER_HEADS,  /* value head h reads key head h % H */
    REF_CHUNK_FORGET, /* the state is lost every 64 rows */
    REF_NO_NORM_GRAD, /* the norm counts as a constant */
    REF_NEIGHBOUR,    /* a sequence ends a row late */
    REF_MISTAKES
};

struct gdn_ref {
    int64_t T, N, H, HV, K, V;
    const int64_t *cu; /* [N + 1] */
    int flags;
    double scale;
    double *q, *k, *v, *g, *beta, *A_log, *dt_bias, *h0, *dout, *dht; /* g, A_log, dt_bias, h0, dht may be NULL */
    double *out, *ht, *m, *dq, *dk, *dv, *dg, *dbeta, *dh0, *dA_log, *ddt_bias;
    enum ref_mistake mistake;
};

static inline double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double ref_softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static inline int64_t ref_key_head(const struct gdn_ref *a, int64_t hv) {
    return a->mistake == REF_OTHER_HEADS ? hv % a->H : hv / (a->HV / a->H);
}
static inline double ref_gate(const struct gdn_ref *a, int64_t i, int64_t hv) {
    if (!a->g) return 0;
    if (!(a->flags & HOLA_GDN_GATE)) return a->g[i];
    return -exp(a->A_log[hv]) * ref_softplus(a->g[i] + (a->dt_bias ? a->dt_bias[hv] : 0));
}
static inline double ref_beta(const struct gdn_ref *a, int64_t i) {
    const double most = a->flags & HOLA_GDN_NEG ? 2 : 1;
    return a->flags & HOLA_GDN_SIGMOID ? most * ref_sigmoid(a->beta[i]) : a->beta[i];
}
/* y = x / |x|, where asked for; returns 1 / |x| */
static inline double ref_unit(const struct gdn_ref *a, const double *x, double *y) {
    double sum = 1e-6, r = 1;
    for (int64_t i = 0; i < a->K; i++) sum += x[i] * x[i];
    if (a->flags & HOLA_GDN_NORM) r = 1 / sqrt(sum);
    for (int64_t i = 0; i < a->K; i++) y[i] = r * x[i];
    return r;
}
/* to += the gradient of x from dy, that of y = x r */
static inline void ref_unit_back(const struct gdn_ref *a, const double *y, double r, const double *dy, double *to) {
    double along = 0;
    for (int64_t i = 0; i < a->K; i++) along += y[i] * dy[i];
    if (!(a->flags & HOLA_GDN_NORM) || a->mistake == REF_NO_NORM_GRAD) along = 0;
    for (int64_t i = 0; i < a->K; i++) to[i] += r * (dy[i] - along * y[i]);
}

struct ref_head { /* one value head of one sequence */
    int64_t s, hv, hk, first, len;
    double *S, *dS, *e, *q, *k, *dq, *dk; /* S: [len + 1][K][V] */
};

/* S_{t-1} to S_t; leaves e */
static inline void ref_step(const struct gdn_ref *a, const struct ref_head *x, int64_t t) {
    const int64_t KV = a->K * a->V, at = (x->first + t) * a->HV + x->hv;
    const double *from = x->S + t * KV, alpha = exp(ref_gate(a, at, x->hv)), beta = ref_beta(a, at);
    const int forget = a->mistake == REF_CHUNK_FORGET && t > 0 && t % 64 == 0;
    double *S = x->S + (t + 1) * KV;
    for (int64_t j = 0; j < a->V; j++) x->e[j] = a->v[at * a->V + j];
    for (int64_t i = 0; i < a->K; i++)
        for (int64_t j = 0; j < a->V; j++) {
            S[i * a->V + j] = forget ? 0 : alpha * from[i * a->V + j];
            x->e[j] -= x->k[i] * S[i * a->V + j];
        }
    for (int64_t i = 0; i < a->K; i++)
        for (int64_t j = 0; j < a->V; j++) S[i * a->V + j] += beta * x->k[i] * x->e[j];
}
static inline void ref_forward_row(const struct gdn_ref *a, const struct ref_head *x, int64_t t) {
    const int64_t row = x->first + t, at = row * a->HV + x->hv, qk = (row * a->H + x->hk) * a->K;
    double norm = 0;
    ref_unit(a, a->q + qk, x->q);
    ref_unit(a, a->k + qk, x->k);
    ref_step(a, x, t);
    const double *S = x->S + (t + 1) * a->K * a->V;
    for (int64_t j = 0; j < a->V; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a->K; i++) sum += x->q[i] * S[i * a->V + j];
        a->out[at * a->V + j] = a->scale * sum;
        norm += x->e[j] * x->e[j];
    }
    a->m[at] = ref_beta(a, at) * sqrt(norm);
}
static inline void ref_gate_back(const struct gdn_ref *a, int64_t at, int64_t hv, double dg, double dbeta) {
    if (a->flags & HOLA_GDN_SIGMOID) {
        const double s = ref_sigmoid(a->beta[at]);
        dbeta *= (a->flags & HOLA_GDN_NEG ? 2 : 1) * s * (1 - s);
    }
    a->dbeta[at] = dbeta;
    if (!a->g) return;
    if (a->flags & HOLA_GDN_GATE) {
        const double z = a->g[at] + (a->dt_bias ? a->dt_bias[hv] : 0);
        a->dA_log[hv] += dg * ref_gate(a, at, hv);
        dg *= -exp(a->A_log[hv]) * ref_sigmoid(z);
        a->ddt_bias[hv] += dg;
    }
    a->dg[at] = dg;
}
static inline void ref_backward_row(const struct gdn_ref *a, const struct ref_head *x, int64_t t) {
    const int64_t K = a->K, V = a->V, row = x->first + t, at = row * a->HV + x->hv, qk = (row * a->H + x->hk) * K;
    const double alpha = exp(ref_gate(a, at, x->hv)), beta = ref_beta(a, at), *dout = a->dout + at * V;
    const double *before = x->S + t * K * V;
    const double rq = ref_unit(a, a->q + qk, x->q), rk = ref_unit(a, a->k + qk, x->k);
    double dalpha = 0, dbeta = 0;
    ref_step(a, x, t); /* e and S_t once more */
    const double *S = x->S + (t + 1) * K * V;
    for (int64_t i = 0; i < K; i++) {
        x->dq[i] = x->dk[i] = 0;
        for (int64_t j = 0; j < V; j++) {
            x->dq[i] += a->scale * S[i * V + j] * dout[j];
            x->dS[i * V + j] += a->scale * x->q[i] * dout[j];
            x->dk[i] += x->dS[i * V + j] * beta * x->e[j];
        }
    }
    for (int64_t j = 0; j < V; j++) {
        double dw = 0; /* of beta e */
        for (int64_t i = 0; i < K; i++) dw += x->k[i] * x->dS[i * V + j];
        dbeta += dw * x->e[j];
        a->dv[at * V + j] = beta * dw;
        for (int64_t i = 0; i < K; i++) {
            x->dk[i] -= alpha * before[i * V + j] * beta * dw;
            x->dS[i * V + j] -= x->k[i] * beta * dw;
            dalpha += x->dS[i * V + j] * before[i * V + j];
            x->dS[i * V + j] *= alpha;
        }
    }
    ref_unit_back(a, x->q, rq, x->dq, a->dq + qk);
    ref_unit_back(a, x->k, rk, x->dk, a->dk + qk);
    ref_gate_back(a, at, x->hv, dalpha * alpha, dbeta);
}
static inline void ref_head(const struct gdn_ref *a, int64_t s, int64_t hv, int back) {
    const int64_t late = a->mistake == REF_NEIGHBOUR && a->cu[s + 1] < a->T, KV = a->K * a->V;
    struct ref_head x = {s, hv, ref_key_head(a, hv), a->cu[s], a->cu[s + 1] + late - a->cu[s], 0, 0, 0, 0, 0, 0, 0};
    double *all = calloc((size_t)((x.len + 2) * KV + a->V + 4 * a->K), sizeof *all);
    if (!all) abort();
    x.S = all, x.dS = x.S + (x.len + 1) * KV, x.e = x.dS + KV;
    x.q = x.e + a->V, x.k = x.q + a->K, x.dq = x.k + a->K, x.dk = x.dq + a->K;
    const int64_t at = (s * a->HV + hv) * KV;
    if (a->h0 && a->mistake != REF_NO_H0) memcpy(x.S, a->h0 + at, (size_t)KV * sizeof *all);
    if (a->dht && a->mistake != REF_NO_DHT) memcpy(x.dS, a->dht + at, (size_t)KV * sizeof *all);
    for (int64_t t = 0; t < x.len; t++) ref_forward_row(a, &x, t);
    memcpy(a->ht + at, x.S + x.len * KV, (size_t)KV * sizeof *all);
    for (int64_t t = x.len - 1; back && t >= 0; t--) ref_backward_row(a, &x, t);
    if (back) memcpy(a->dh0 + at, x.dS, (size_t)KV * sizeof *all);
    free(all);
}
/* back: the gradients too. All outputs must be there. */
static inline void gdn_ref_run(const struct gdn_ref *given, int back) {
    struct gdn_ref a = *given;
    if (a.mistake == REF_NO_SCALE) a.scale = 1 / sqrt((double)a.K);
    if (back) {
        memset(a.dq, 0, (size_t)(a.T * a.H * a.K) * sizeof(double));
        memset(a.dk, 0, (size_t)(a.T * a.H * a.K) * sizeof(double));
        memset(a.dA_log, 0, (size_t)a.HV * sizeof(double));
        memset(a.ddt_bias, 0, (size_t)a.HV * sizeof(double));
    }
    for (int64_t s = 0; s < a.N; s++)
        for (int64_t hv = 0; hv < a.HV; hv++) ref_head(&a, s, hv, back);
}
#endif
