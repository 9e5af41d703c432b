/* cache_step_cpu.c -- one new token of a session: append, read, merge a full block. k and v are read once, row
 * by row in memory order. */
#include "ops/cache/cache_cpu.h"
#include "ops/simd.h"

enum { ROWS = 32 };

typedef real v4 __attribute__((vector_size(4 * sizeof(real))));

/* Reduces the lanes to four. */
static inline v4 fold(vr x) {
    v4 t[VL / 4];
    memcpy(t, &x, sizeof x);
    for (int w = VL / 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}
/* Reduces four vectors at once: for short rows, reducing each alone would cost more than the products. */
static inline v4 sums(const vr s[4]) {
    v4 a = fold(s[0]), b = fold(s[1]), c = fold(s[2]), d = fold(s[3]);
    v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* q.k in VL partial sums */
static inline vr row_dot(const real *q, const real *k, int64_t K) {
    vr s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * VL <= K; i += 4 * VL)
        for (int u = 0; u < 4; u++) s[u] += v_load(q + i + u * VL) * v_load(k + i + u * VL);
    for (; i + VL <= K; i += VL) s[0] += v_load(q + i) * v_load(k + i);
    if (i < K) s[1] += v_load_n(q + i, K - i) * v_load_n(k + i, K - i);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* p[j] = scale q.k_j for n rows, sequentially: one stream has twice the bandwidth of several. */
static void dots(const real *q, const real *k, int64_t n, int64_t K, real scale, real *p) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, k += 4 * K) {
        vr s[4];
        for (int u = 0; u < 4; u++) s[u] = row_dot(q, k + u * K, K);
        v4 z = scale * sums(s);
        memcpy(p + j, &z, sizeof z);
    }
    for (; j < n; j++, k += K) p[j] = scale * v_sum(row_dot(q, k, K));
}

/* p = exp(p - max) in place; returns the sum, including the sink. p is padded to whole vectors. */
static real softmax(real *p, int64_t n, real sink) {
    vr m = v_set(sink), sum = {0};
    real max;
    for (int64_t j = n; j % VL; j++) p[j] = -(real)INFINITY;
    for (int64_t j = 0; j < n; j += VL) m = v_max(v_load(p + j), m);
    max = v_hmax(m);
    for (int64_t j = 0; j < n; j += VL) {
        vr e = v_exp(v_load(p + j) - max);
        v_store(p + j, e);
        sum += e;
    }
    return v_sum(sum) + v_exp(v_set(sink - max))[0];
}

/* acc[0, W VL) += sum_j p_j v_j over n rows with stride V */
static inline __attribute__((always_inline)) void sum_wide(const real *p, const real *v, int64_t n, int64_t V,
                                                           real *acc, const int W) {
    vr s[16];
    for (int u = 0; u < W; u++) s[u] = v_load(acc + u * VL);
    for (int64_t j = 0; j < n; j++, v += V)
        for (int u = 0; u < W; u++) s[u] += p[j] * v_load(v + u * VL);
    for (int u = 0; u < W; u++) v_store(acc + u * VL, s[u]);
}
static void sum_narrow(const real *p, const real *v, int64_t n, int64_t V, real *acc, int64_t width) {
    vr s = v_load_n(acc, width);
    for (int64_t j = 0; j < n; j++, v += V) s += p[j] * (width == VL ? v_load(v) : v_load_n(v, width));
    v_store_n(acc, s, width);
}

/* acc += sum_j p_j v_j, with whole rows in registers if they fit, so that v is one sequential stream; otherwise ROWS
 * rows at a time, which are still in cache when their next columns are read. */
static void weighted_sum(const real *p, const real *v, int64_t n, int64_t V, real *acc) {
    for (int64_t j = 0; j < n; j += ROWS) {
        int64_t m = n - j < ROWS ? n - j : ROWS, i = 0;
        const real *rows = v + j * V;
        for (; i + 16 * VL <= V; i += 16 * VL) sum_wide(p + j, rows + i, m, V, acc + i, 16);
        for (; i + 8 * VL <= V; i += 8 * VL) sum_wide(p + j, rows + i, m, V, acc + i, 8);
        for (; i + 4 * VL <= V; i += 4 * VL) sum_wide(p + j, rows + i, m, V, acc + i, 4);
        for (; i < V; i += VL) sum_narrow(p + j, rows + i, m, V, acc + i, V - i < VL ? V - i : VL);
    }
}

void HL_OP(cache_step)(const struct hl_cache_head *d, struct hl_cache_work *w) {
    const struct hl_cache *a = d->a;
    const int64_t K = a->K, V = a->V, slot = a->window + d->open, at = d->row * a->HV + d->h, n = d->open + 1;
    const real *q = (const real *)a->q + (d->row * a->H + d->hk) * K,
               *k = (const real *)a->k + (d->row * a->H + d->hk) * K;
    const real lam = hl_cache_lambda(a, d->row, d->h), scale = a->tau[d->h] / R_SQRT((real)K);
    real *p = w->S, *read = w->O, *out = (real *)a->out + at * V, sum;
    memcpy(d->k + slot * K, k, (size_t)K * sizeof(real));
    memcpy(d->v + slot * V, (const real *)a->v + at * V, (size_t)V * sizeof(real));
    d->score[slot] = hl_cache_scored(&a->policy) ? a->score[at] : 0;
    if (d->factor) d->factor[slot] = hl_cache_factor_of(d, 0);

    dots(q, d->k, d->kept, K, scale, p);
    dots(q, d->k + a->window * K, n, K, scale, p + d->kept);
    for (int64_t j = 0; j < d->kept && a->policy.score == HL_SCORE_LEARNED; j++) p[j] += hl_logsigmoid(d->score[j]);
    sum = softmax(p, d->kept + n, a->sink[d->h]);
    memset(read, 0, (size_t)V * sizeof(real));
    weighted_sum(p, d->v, d->kept, V, read);
    weighted_sum(p + d->kept, d->v + a->window * V, n, V, read);
    for (int64_t i = 0; i < V; i++) {
        read[i] /= sum;
        out[i] += lam * read[i];
    }
    if (a->policy.moves_with_reads) {
        for (int64_t j = 0; j < d->kept; j++) d->score[j] += p[j] / sum;
        for (int64_t j = 0; j < n; j++) d->score[a->window + j] += p[d->kept + j] / sum;
    }
    if (n == a->chunk) { /* all rows of the full block are in the state */
        struct hl_cache_head full = *d;
        full.pos = d->pos + 1;
        full.open = n;
        full.len = 0;
        hl_cache_select_start(&w->chosen, &full);
        hl_cache_select_block(&w->chosen, &full, 0);
        if (a->policy.score == HL_SCORE_RECALL) HL_OP(cache_measure)(&full, w, hl_cache_state_after(d, 0), n);
        HL_OP(cache_merge)(&full, &w->chosen, n);
        hl_cache_select_store(&w->chosen, &full, 0);
    }
}
