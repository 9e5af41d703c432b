/* raw_cache_ref.h -- the exact memory of include/hola_ops.h in double, row by row, with its gradient: the reference for
 * the raw calls. Every block ranks all rows before it. */
#ifndef HL_RAW_CACHE_REF_H
#define HL_RAW_CACHE_REF_H
#include "hola_ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Deliberate bugs that a comparison must detect. */
enum cache_mistake {
    CACHE_RIGHT,
    CACHE_NO_SINK,     /* the sink is ignored */
    CACHE_NO_SCALE,    /* always K^-1/2 */
    CACHE_SMALLEST,    /* the smallest scores are kept */
    CACHE_ONE_LESS,    /* window - 1 rows are kept */
    CACHE_OTHER_HEADS, /* value head h reads key head h % H */
    CACHE_NEXT_ROW,    /* a row sees the one after it */
    CACHE_MISTAKES
};
struct cache_ref {
    int64_t T, N, H, HV, K, V, window, chunk;
    const int64_t *cu; /* [N + 1] */
    int recency;
    double scale;
    double *q, *k, *v, *score, *sink, *tau, *gate, *dout; /* tau and gate may be NULL */
    double *out, *dq, *dk, *dv, *dsink, *dtau, *dgate;
    enum cache_mistake mistake;
};

static inline int cache_beats(const struct cache_ref *a, int64_t h, int64_t i, int64_t j) {
    if (a->recency) return i > j;
    const double x = a->score[i * a->HV + h], y = a->score[j * a->HV + h];
    if (a->mistake == CACHE_SMALLEST) return x < y || (x == y && i < j);
    return x > y || (x == y && i < j);
}
/* The rows that the block from `begin` on sees, of the sequence that begins at `first`: into sel, returns how many. */
static inline int64_t cache_select(const struct cache_ref *a, int64_t h, int64_t first, int64_t begin, int64_t *sel) {
    const int64_t w = a->window - (a->mistake == CACHE_ONE_LESS);
    int64_t n = 0;
    for (int64_t j = first; j < begin; j++) {
        int64_t better = 0;
        for (int64_t i = first; i < begin; i++) better += i != j && cache_beats(a, h, i, j);
        if (better < w) sel[n++] = j;
    }
    return n;
}
/* One row and value head, which sees rows J[0, n) of the batch; back: its part of the gradients. p: [n] */
static inline void cache_row(const struct cache_ref *a, int64_t row, int64_t h, const int64_t *J, int64_t n, double *p,
                             int back) {
    const int64_t K = a->K, V = a->V, hk = a->mistake == CACHE_OTHER_HEADS ? h % a->H : h / (a->HV / a->H);
    const double tau = a->tau ? a->tau[h] : 1, *q = a->q + (row * a->H + hk) * K;
    const double lambda = a->gate ? 1 / (1 + exp(-a->gate[h])) : 1, *dout = a->dout + (row * a->HV + h) * V;
    double most = a->sink[h], sum = 0, along = 0, *out = a->out + (row * a->HV + h) * V;
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int64_t i = 0; i < K; i++) p[j] += a->scale * tau * q[i] * a->k[(J[j] * a->H + hk) * K + i];
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
    const double sink = a->mistake == CACHE_NO_SINK ? 0 : exp(a->sink[h] - most);
    sum += sink;
    for (int64_t i = 0; i < V; i++) out[i] = 0;
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < V; i++) out[i] += p[j] * a->v[(J[j] * a->HV + h) * V + i];
    for (int64_t i = 0; i < V; i++) along += out[i] * dout[i], out[i] *= lambda;
    if (!back) return;
    a->dgate[h] += lambda * (1 - lambda) * along;
    a->dsink[h] -= sink / sum * lambda * along;
    for (int64_t j = 0; j < n; j++) {
        double dp = 0, s = 0;
        const int64_t at_k = (J[j] * a->H + hk) * K, at_v = (J[j] * a->HV + h) * V;
        for (int64_t i = 0; i < V; i++) {
            dp += lambda * dout[i] * a->v[at_v + i];
            a->dv[at_v + i] += lambda * p[j] * dout[i];
        }
        const double dz = p[j] * (dp - lambda * along);
        for (int64_t i = 0; i < K; i++) {
            s += q[i] * a->k[at_k + i];
            a->dq[(row * a->H + hk) * K + i] += dz * a->scale * tau * a->k[at_k + i];
            a->dk[at_k + i] += dz * a->scale * tau * q[i];
        }
        a->dtau[h] += dz * a->scale * s;
    }
}
/* back: the gradients too. All outputs must be there. */
static inline void cache_ref_run(const struct cache_ref *given, int back) {
    struct cache_ref a = *given;
    int64_t *J = malloc((size_t)(a.T + 1) * 8);
    double *p = malloc((size_t)(a.T + 1) * 8);
    if (!J || !p) abort();
    if (a.mistake == CACHE_NO_SCALE) a.scale = 1 / sqrt((double)a.K);
    double *sums[] = {a.dq, a.dk, a.dv, a.dsink, a.dtau, a.dgate};
    const int64_t n[] = {a.T * a.H * a.K, a.T * a.H * a.K, a.T * a.HV * a.V, a.HV, a.HV, a.HV};
    for (int i = 0; back && i < 6; i++) memset(sums[i], 0, (size_t)n[i] * sizeof(double));
    for (int64_t s = 0; s < a.N; s++)
        for (int64_t h = 0; h < a.HV; h++)
            for (int64_t t = a.cu[s], kept = 0; t < a.cu[s + 1]; t++) {
                const int64_t begin = a.cu[s] + (t - a.cu[s]) / a.chunk * a.chunk;
                if (t == begin) kept = cache_select(&a, h, a.cu[s], begin, J);
                const int64_t next = a.mistake == CACHE_NEXT_ROW && t + 1 < a.cu[s + 1], own = t + 1 + next - begin;
                for (int64_t j = 0; j < own; j++) J[kept + j] = begin + j;
                cache_row(&a, t, h, J, kept + own, p, back);
            }
    free(J);
    free(p);
}
#endif
