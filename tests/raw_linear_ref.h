/* raw_linear_ref.h -- KDA and gated linear attention by their definition (include/hola_ops.h), token by token in
 * double, forward and backward, for the tests of the raw calls; with deliberate bugs that comparisons must detect. */
#ifndef HL_RAW_LINEAR_REF_H
#define HL_RAW_LINEAR_REF_H
#include "check.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum linear_mistake {
    LINEAR_RIGHT,
    LINEAR_FORGETS,    /* the state is lost every 64 rows */
    LINEAR_ONE_DECAY,  /* the first channel's decay for all */
    LINEAR_NO_START,   /* h0 is ignored */
    LINEAR_NO_END,     /* dht is ignored */
    LINEAR_STOPS,      /* gradients stop at 64 rows */
    LINEAR_RUNS_ON,    /* a sequence starts with the previous one's state */
    LINEAR_HEADS,      /* every head reads the first head's query */
    LINEAR_NO_NORM,    /* q and k are taken as given */
    LINEAR_CONST_NORM, /* the norm counts as a constant */
    LINEAR_MISTAKES
};

/* Output head o has query q_of(o), key k_of(o), and value, decay and state s_of(o). KDA (beta not NULL): O = HV, the
 * queries and keys of o / (HV / H). GLA: O = H, keys, values, decays and states of o / (H / HK). */
struct linear_ref {
    int64_t T, N, H, S, K, V; /* H: heads of q; S: of states */
    const int64_t *cu;
    double scale;
    double *q, *k, *v, *g, *beta, *h0, *dout, *dht;
    double *out, *ht, *m, *dq, *dk, *dv, *dg, *dbeta, *dh0;
    bool norm; /* q and k are normalised first */
    enum linear_mistake mistake;
};
static inline int64_t linear_heads(const struct linear_ref *a) { return a->H > a->S ? a->H : a->S; }
static inline int64_t linear_keys(const struct linear_ref *a) { return a->beta ? a->H : a->S; }

struct linear_head {
    int64_t q, k, s; /* which head of each */
};
static inline struct linear_head linear_head(const struct linear_ref *a, int64_t o) {
    const int64_t group = linear_heads(a) / (a->beta ? a->H : a->S);
    struct linear_head h = {o, o / group, o / group};
    if (a->beta) h.q = h.k, h.s = o;
    if (a->mistake == LINEAR_HEADS) h.q = 0;
    return h;
}
/* S_after = the state after row t, from S, which becomes the decayed one; e [V]: what is written, before beta */
static inline void linear_step(const struct linear_ref *a, struct linear_head h, int64_t t, double *S, double *e) {
    const double *k = a->k + (t * linear_keys(a) + h.k) * a->K, *v = a->v + (t * a->S + h.s) * a->V;
    const double *g = a->g + (t * a->S + h.s) * a->K;
    for (int64_t i = 0; i < a->K; i++)
        for (int64_t j = 0; j < a->V; j++) S[i * a->V + j] *= exp(g[a->mistake == LINEAR_ONE_DECAY ? 0 : i]);
    for (int64_t j = 0; j < a->V; j++) {
        e[j] = v[j];
        for (int64_t i = 0; i < a->K && a->beta; i++) e[j] -= k[i] * S[i * a->V + j];
    }
}
static inline void linear_forward(const struct linear_ref *a, struct linear_head h, int64_t o, int64_t first,
                                  int64_t end, double *S, double *kept, double *e) {
    const int64_t KV = a->K * a->V;
    for (int64_t t = first; t < end; t++) {
        const double *q = a->q + (t * a->H + h.q) * a->K, *k = a->k + (t * linear_keys(a) + h.k) * a->K;
        const double beta = a->beta ? a->beta[t * a->S + h.s] : 1;
        double norm = 0;
        if (a->mistake == LINEAR_FORGETS && (t - first) % 64 == 63) memset(S, 0, (size_t)KV * sizeof *S);
        linear_step(a, h, t, S, e);
        memcpy(kept + (t - first) * KV, S, (size_t)KV * sizeof *S); /* the decayed one */
        for (int64_t j = 0; j < a->V; j++) {
            double out = 0;
            for (int64_t i = 0; i < a->K; i++) {
                S[i * a->V + j] += k[i] * beta * e[j];
                out += a->scale * q[i] * S[i * a->V + j];
            }
            a->out[(t * linear_heads(a) + o) * a->V + j] = out;
            norm += e[j] * e[j];
        }
        if (a->m) a->m[t * a->S + h.s] = beta * sqrt(norm);
    }
}
static inline void linear_backward(const struct linear_ref *a, struct linear_head h, int64_t o, int64_t first,
                                   int64_t end, double *dS, const double *kept) {
    const int64_t KV = a->K * a->V;
    for (int64_t t = end - 1; t >= first; t--) {
        const int64_t qk = (t * a->H + h.q) * a->K, kk = (t * linear_keys(a) + h.k) * a->K, b = t * a->S + h.s;
        const double *S = kept + (t - first) * KV, *dout = a->dout + (t * linear_heads(a) + o) * a->V;
        const double beta = a->beta ? a->beta[b] : 1;
        if (a->mistake == LINEAR_STOPS && (t - first) % 64 == 63) memset(dS, 0, (size_t)KV * sizeof *dS);
        for (int64_t j = 0; j < a->V; j++) {
            double e = a->v[b * a->V + j], dr = 0;
            for (int64_t i = 0; i < a->K && a->beta; i++) e -= a->k[kk + i] * S[i * a->V + j];
            for (int64_t i = 0; i < a->K; i++) {
                a->dq[qk + i] += a->scale * (S[i * a->V + j] + a->k[kk + i] * beta * e) * dout[j];
                dS[i * a->V + j] += a->scale * a->q[qk + i] * dout[j];
                dr += a->k[kk + i] * dS[i * a->V + j];
            }
            a->dv[b * a->V + j] += beta * dr;
            if (a->beta) a->dbeta[b] += dr * e;
            for (int64_t i = 0; i < a->K; i++) {
                const double after = dS[i * a->V + j] - (a->beta ? a->k[kk + i] * beta * dr : 0);
                a->dk[kk + i] += dS[i * a->V + j] * beta * e - (a->beta ? S[i * a->V + j] * beta * dr : 0);
                a->dg[b * a->K + i] += after * S[i * a->V + j];
                dS[i * a->V + j] = after * exp(a->g[b * a->K + i]);
            }
        }
    }
}
/* Everything for q and k as they are; gradients where there is dout. */
static inline void linear_ref_all(const struct linear_ref *a) {
    const int64_t KV = a->K * a->V, T = a->T, keys = linear_keys(a), shared = linear_heads(a) / a->S;
    double *kept = malloc((size_t)((T + 2) * KV) * sizeof *kept), *e = malloc((size_t)a->V * sizeof *e);
    assert_non_null(kept), assert_non_null(e);
    double *S = kept + T * KV, *dS = S + KV;
    memset(S, 0, (size_t)KV * sizeof *S);
    if (a->dout) {
        memset(a->dq, 0, (size_t)(T * a->H * a->K) * 8), memset(a->dk, 0, (size_t)(T * keys * a->K) * 8);
        memset(a->dv, 0, (size_t)(T * a->S * a->V) * 8), memset(a->dg, 0, (size_t)(T * a->S * a->K) * 8);
        if (a->beta) memset(a->dbeta, 0, (size_t)(T * a->S) * 8);
    }
    for (int64_t o = 0; o < linear_heads(a); o++)
        for (int64_t n = 0; n < a->N; n++) {
            const struct linear_head h = linear_head(a, o);
            const int64_t at = (n * a->S + h.s) * KV;
            if (a->mistake != LINEAR_RUNS_ON || n == 0) memset(S, 0, (size_t)KV * sizeof *S);
            if (a->h0 && a->mistake != LINEAR_NO_START) memcpy(S, a->h0 + at, (size_t)KV * sizeof *S);
            linear_forward(a, h, o, a->cu[n], a->cu[n + 1], S, kept, e);
            if (a->ht) memcpy(a->ht + at, S, (size_t)KV * sizeof *S);
            if (!a->dout) continue;
            memset(dS, 0, (size_t)KV * sizeof *dS);
            /* several output heads of a state have a share each, and its gradient at the end counts once */
            if (a->dht && o % shared == 0 && a->mistake != LINEAR_NO_END)
                memcpy(dS, a->dht + at, (size_t)KV * sizeof *dS);
            linear_backward(a, h, o, a->cu[n], a->cu[n + 1], dS, kept);
            for (int64_t i = 0; i < KV && a->dh0; i++) a->dh0[at + i] = dS[i] + (o % shared ? a->dh0[at + i] : 0);
        }
    free(kept), free(e);
}

static inline double linear_length(const double *x, int64_t K) {
    double sum = 1e-6;
    for (int64_t i = 0; i < K; i++) sum += x[i] * x[i];
    return sqrt(sum);
}
static inline double *linear_units(const double *x, int64_t rows, int64_t K) {
    double *y = malloc((size_t)(rows * K + 1) * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < rows * K; i++) y[i] = x[i] / linear_length(x + i / K * K, K);
    return y;
}
/* dx, in place of the gradient of the units y */
static inline void linear_units_back(const double *x, const double *y, double *dx, int64_t rows, int64_t K,
                                     bool constant) {
    for (int64_t r = 0; r < rows; r++) {
        double along = 0;
        for (int64_t i = r * K; i < (r + 1) * K && !constant; i++) along += y[i] * dx[i];
        for (int64_t i = r * K; i < (r + 1) * K; i++) dx[i] = (dx[i] - along * y[i]) / linear_length(x + r * K, K);
    }
}
/* Everything; gradients where there is dout. */
static inline void linear_ref_run(const struct linear_ref *a) {
    const int64_t q = a->T * a->H, k = a->T * linear_keys(a);
    const bool constant = a->mistake == LINEAR_CONST_NORM;
    struct linear_ref b = *a;
    if (!a->norm || a->mistake == LINEAR_NO_NORM) {
        linear_ref_all(a);
        return;
    }
    b.q = linear_units(a->q, q, a->K), b.k = linear_units(a->k, k, a->K);
    linear_ref_all(&b);
    if (a->dout) {
        linear_units_back(a->q, b.q, a->dq, q, a->K, constant);
        linear_units_back(a->k, b.k, a->dk, k, a->K, constant);
    }
    free(b.q), free(b.k);
}
#endif
