/* cache_step_cpu.c -- one new token of a session: append, read, merge a full block. k and v are read once, row
 * by row in memory order. Rows in F16 are widened as they are loaded: what a token costs is their bytes. */
#include "ops/cache/cache_cpu.h"
#include "ops/cache/cache_rows.h"

#define INLINE static inline __attribute__((always_inline)) /* `half` is a constant, the loops are compiled twice */

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

/* Numbers [i, i + VL) of rows; the first n of them. */
INLINE vr load(const void *rows, int64_t i, bool half) {
    return half ? v_load_f16((const uint16_t *)rows + i) : v_load((const real *)rows + i);
}
INLINE vr load_n(const void *rows, int64_t i, int64_t n, bool half) {
    return half ? v_load_f16_n((const uint16_t *)rows + i, n) : v_load_n((const real *)rows + i, n);
}

/* q.k in VL partial sums; k begins at number `at` of the rows */
INLINE vr row_dot(const real *q, const void *k, int64_t at, int64_t K, bool half) {
    vr s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * VL <= K; i += 4 * VL)
        for (int u = 0; u < 4; u++) s[u] += v_load(q + i + u * VL) * load(k, at + i + u * VL, half);
    for (; i + VL <= K; i += VL) s[0] += v_load(q + i) * load(k, at + i, half);
    if (i < K) s[1] += v_load_n(q + i, K - i) * load_n(k, at + i, K - i, half);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* Neighbouring slots of the state: the kept rows, or the open block's. */
struct slots {
    const char *k, *v; /* [n][K], [n][V] */
    int64_t n;
    real *p; /* their logits, then their weights */
};

/* Short rows are read faster than hardware prefetchers begin: the next keys, and the values of these. */
INLINE void prefetch(const struct slots *r, int64_t j, int64_t K, int64_t V) {
    enum { LINE = 64, AHEAD = 2048 };
    const int64_t k = 8 * K, v = 8 * V; /* bytes of four rows */
    for (int64_t c = 0; c < k; c += LINE) __builtin_prefetch(r->k + j * K * 2 + AHEAD + c);
    for (int64_t c = 0; c < v; c += LINE) __builtin_prefetch(r->v + j * V * 2 + c);
}

/* p[j] = scale q.k_j, sequentially: one stream has twice the bandwidth of several. */
INLINE void dots(const struct slots *r, const real *q, int64_t K, int64_t V, real scale, bool half) {
    int64_t j = 0, at = 0;
    for (; j + 4 <= r->n; j += 4, at += 4 * K) {
        vr s[4];
        if (half) prefetch(r, j, K, V);
        for (int u = 0; u < 4; u++) s[u] = row_dot(q, r->k, at + u * K, K, half);
        v4 z = scale * sums(s);
        memcpy(r->p + j, &z, sizeof z);
    }
    for (; j < r->n; j++, at += K) r->p[j] = scale * v_sum(row_dot(q, r->k, at, K, half));
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

/* acc[0, W VL) += sum_j p_j v_j over n rows with stride V; the first begins at number `at` */
INLINE void sum_wide(const real *p, const void *v, int64_t at, int64_t n, int64_t V, real *acc, int W, bool half) {
    vr s[16];
    for (int u = 0; u < W; u++) s[u] = v_load(acc + u * VL);
    for (int64_t j = 0; j < n; j++, at += V)
        for (int u = 0; u < W; u++) s[u] += p[j] * load(v, at + u * VL, half);
    for (int u = 0; u < W; u++) v_store(acc + u * VL, s[u]);
}
INLINE void sum_narrow(const real *p, const void *v, int64_t at, int64_t n, int64_t V, real *acc, int64_t width,
                       bool half) {
    vr s = v_load_n(acc, width);
    for (int64_t j = 0; j < n; j++, at += V) s += p[j] * (width == VL ? load(v, at, half) : load_n(v, at, width, half));
    v_store_n(acc, s, width);
}

/* acc += sum_j p_j v_j, with whole rows in registers if they fit, so that v is one sequential stream; otherwise ROWS
 * rows at a time, which are still in cache when their next columns are read. */
INLINE void weighted_sum(const struct slots *r, int64_t V, real *acc, bool half) {
    for (int64_t j = 0; j < r->n; j += ROWS) {
        const real *p = r->p + j;
        int64_t m = r->n - j < ROWS ? r->n - j : ROWS, i = 0, at = j * V;
        for (; i + 16 * VL <= V; i += 16 * VL) sum_wide(p, r->v, at + i, m, V, acc + i, 16, half);
        for (; i + 8 * VL <= V; i += 8 * VL) sum_wide(p, r->v, at + i, m, V, acc + i, 8, half);
        for (; i + 4 * VL <= V; i += 4 * VL) sum_wide(p, r->v, at + i, m, V, acc + i, 4, half);
        for (; i < V; i += VL) sum_narrow(p, r->v, at + i, m, V, acc + i, V - i < VL ? V - i : VL, half);
    }
}

/* The same for both parts of the state. */
static void all_dots(const struct hl_cache *a, const struct slots part[2], const real *q, real scale) {
    for (int i = 0; i < 2; i++)
        if (a->row_dtype == HOLA_F16) dots(&part[i], q, a->K, a->V, scale, true);
        else dots(&part[i], q, a->K, a->V, scale, false);
}
static void all_sums(const struct hl_cache *a, const struct slots part[2], real *read) {
    memset(read, 0, (size_t)a->V * sizeof(real));
    for (int i = 0; i < 2; i++)
        if (a->row_dtype == HOLA_F16) weighted_sum(&part[i], a->V, read, true);
        else weighted_sum(&part[i], a->V, read, false);
}

static void append(const struct hl_cache_head *d, char *rows, int64_t slot, const real *from, int64_t n) {
    if (d->a->row_dtype == HOLA_F16) rows_to_f16((uint16_t *)(void *)rows + slot * n, from, n);
    else memcpy((real *)(void *)rows + slot * n, from, (size_t)n * sizeof(real));
}

void HL_OP(cache_step)(const struct hl_cache_head *d, struct hl_cache_work *w) {
    const struct hl_cache *a = d->a;
    const int64_t K = a->K, V = a->V, slot = a->window + d->open, at = d->row * a->HV + d->h, n = d->open + 1;
    const int64_t size = hl_cache_row_size(a->row_dtype);
    const real *q = (const real *)a->q + (d->row * a->H + d->hk) * K,
               *k = (const real *)a->k + (d->row * a->H + d->hk) * K;
    const real lam = hl_cache_lambda(a, d->row, d->h), scale = a->tau[d->h] / R_SQRT((real)K);
    real *p = w->S, *read = w->O, *out = (real *)a->out + at * V, sum;
    const struct slots part[2] = {{d->k, d->v, d->kept, p},
                                  {d->k + a->window * K * size, d->v + a->window * V * size, n, p + d->kept}};
    append(d, d->k, slot, k, K);
    append(d, d->v, slot, (const real *)a->v + at * V, V);
    d->score[slot] = hl_cache_scored(&a->policy) ? a->score[at] : 0;
    if (d->factor) d->factor[slot] = hl_cache_factor_of(d, 0);

    all_dots(a, part, q, scale);
    for (int64_t j = 0; j < d->kept && a->policy.score == HL_SCORE_LEARNED; j++) p[j] += hl_logsigmoid(d->score[j]);
    sum = softmax(p, d->kept + n, a->sink[d->h]);
    all_sums(a, part, read);
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
        HL_OP(cache_merge)(&full, w, n);
        HL_OP(cache_store)(&w->chosen, &full, 0);
    }
}
