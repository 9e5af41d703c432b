/* cache_read_cpu.c -- the read for many rows: scores, softmax and values of a tile of queries against all columns of
 * its block (cache_cpu.h).
 *
 * Scores are stored as S[key][query]: neither product needs a transpose, the softmax runs down the columns with one
 * query per SIMD lane, and the weights that a key receives (h2o) are row sums. */
#include "ops/cache/cache_cpu.h"
#include "ops/linear/kernel.h"

/* Queries [i0, i0 + n) of block b against its columns [0, cols). */
struct tile {
    const struct hl_cache_head *d;
    struct hl_cache_work *w;
    int64_t row;     /* of the batch: the first query */
    int64_t n, seen; /* queries; columns that the first one sees. Query i sees i more */
    int64_t cols;    /* seen + n - 1: columns the last one sees */
    int64_t ld;      /* of S and qT */
    int64_t loaded;  /* columns already in kT and v from the previous tile */
};

/* Queries are processed in steps; all of a step are multiplied by the columns its last query sees. */
static int64_t step_end(const struct tile *t, int64_t i) { return i + CACHE_STEP < t->n ? i + CACHE_STEP : t->n; }
static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }

/* Loads columns [from, from + n) of the block into kT, whose first column is `base`. */
static void load_keys(const struct tile *t, int64_t base, int64_t from, int64_t n) {
    for (int64_t c = from; c < from + n; c += CACHE_BCOLS) {
        int64_t m = min(CACHE_BCOLS, from + n - c), ld;
        const real *k = HL_OP(cache_keys)(t->d, t->w->chosen.id + c, m, t->w->rows, &ld);
        HL_OP(pack_transpose)(t->w->kT + c - base, t->w->ldk, k, ld, m, m, t->d->a->K);
    }
}

static void scores(const struct tile *t, int64_t c0, int64_t n) {
    const struct hl_cache *a = t->d->a;
    for (int64_t i = 0; i < t->n; i = step_end(t, i)) {
        int64_t end = step_end(t, i);
        struct hl_small_gemm p = {.N = end - i, .K = a->K, .ai = 1, .ak = t->w->ldk, .bk = t->ld, .bn = 1};
        p.M = min(n, t->seen + end - 1 - c0);
        p.A = t->w->kT;
        p.B = t->w->qT + i;
        p.C = t->w->S + c0 * t->ld + i;
        p.ldc = t->ld;
        p.alpha = a->tau[t->d->h] / R_SQRT((real)a->K);
        if (p.M > 0) HL_OP(small_gemm)(&p, t->w->mm);
    }
}

/* Adds the kept columns' log sigma(score). */
static void add_biases(const struct tile *t) {
    for (int64_t c = 0; c < t->w->chosen.n; c++) {
        const real bias = hl_logsigmoid(t->w->chosen.score[c]);
        real *S = t->w->S + c * t->ld;
        for (int64_t i = 0; i < t->n; i += VL)
            v_store(S + i, v_load(S + i) + bias); /* rows have room for whole vectors */
    }
}

static void values(const struct tile *t, int64_t c0, int64_t n) {
    const struct hl_cache *a = t->d->a;
    for (int64_t i = 0; i < t->n; i = step_end(t, i)) {
        int64_t end = step_end(t, i);
        struct hl_small_gemm p = {
            .M = end - i, .N = a->V, .ai = 1, .ak = t->ld, .bk = hl_cache_ld(a->V), .bn = 1, .alpha = 1};
        p.K = min(n, t->seen + end - 1 - c0);
        p.A = t->w->S + c0 * t->ld + i;
        p.B = t->w->v;
        p.C = t->w->O + i * hl_cache_ld(a->V);
        p.ldc = hl_cache_ld(a->V);
        p.add = c0 > 0;
        if (p.K > 0) HL_OP(small_gemm)(&p, t->w->mm);
    }
}

static const real lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* exp(S - max) for VL queries from query i on, down to the last column of their step; 0 where not visible. */
static void softmax(const struct tile *t, int64_t i) {
    const int64_t end = t->seen + step_end(t, i / CACHE_STEP * CACHE_STEP) - 1;
    const int64_t ld = t->ld, sure = min(end, t->seen + i);
    const vr lane = v_load(lanes), low = v_set(-(real)INFINITY), sink = v_set(t->d->a->sink[t->d->h]);
    real *S = t->w->S + i;
    vr max[4] = {sink, low, low, low}, sum[4] = {{0}}, m;
    int64_t c = 0;
    for (; c + 4 <= sure; c += 4)
        for (int u = 0; u < 4; u++) max[u] = v_max(v_load(S + (c + u) * ld), max[u]);
    for (; c < sure; c++) max[0] = v_max(v_load(S + c * ld), max[0]);
    for (; c < end; c++) { /* the causal triangle: queries up to the (c - sure)-th do not see column c */
        vr x = v_select((vi)(lane > (real)(c - sure)), v_load(S + c * ld), low);
        v_store(S + c * ld, x);
        max[0] = v_max(x, max[0]);
    }
    m = v_max(v_max(max[0], max[1]), v_max(max[2], max[3]));
    sum[0] = v_exp(sink - m);
    for (c = 0; c + 4 <= end; c += 4)
        for (int u = 0; u < 4; u++) {
            vr e = v_exp(v_load(S + (c + u) * ld) - m);
            v_store(S + (c + u) * ld, e);
            sum[u] += e;
        }
    for (; c < end; c++) { /* (which sum a column is added to depends only on the column) */
        vr e = v_exp(v_load(S + c * ld) - m);
        v_store(S + c * ld, e);
        sum[c % 4] += e;
    }
    v_store(t->w->max + i, m);
    v_store(t->w->sum + i, (sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Adds the weights that each column received from the tile's queries to its score. */
static void add_weights_to_scores(const struct tile *t) {
    for (int64_t i = 0; i < t->n; i += VL) v_store(t->w->max + i, 1 / v_load(t->w->sum + i));
    for (int64_t c = 0; c < t->cols; c++) {
        /* the first query of the first step that reaches column c */
        int64_t i = c < t->seen ? 0 : (c - t->seen + 1) / CACHE_STEP * CACHE_STEP;
        vr acc = {0};
        for (; i + VL <= t->n; i += VL) acc += v_load(t->w->S + c * t->ld + i) * v_load(t->w->max + i);
        if (i < t->n) acc += v_load_n(t->w->S + c * t->ld + i, t->n - i) * v_load_n(t->w->max + i, t->n - i);
        t->w->chosen.score[c] += v_sum(acc);
    }
}

/* read = O / sum, out += lambda read */
static void finish(const struct tile *t) {
    const struct hl_cache *a = t->d->a;
    for (int64_t i = 0; i < t->n; i++) {
        int64_t at = (t->row + i) * a->HV + t->d->h, j = 0;
        const real lam = hl_cache_lambda(a, t->row + i, t->d->h);
        real *O = t->w->O + i * hl_cache_ld(a->V), *out = (real *)a->out + at * a->V;
        real inv = 1 / t->w->sum[i], *read = a->read ? (real *)a->read + at * a->V : O;
        for (; j + VL <= a->V; j += VL) {
            vr r = v_load(O + j) * inv;
            v_store(read + j, r);
            v_store(out + j, v_load(out + j) + lam * r);
        }
        for (; j < a->V; j++) {
            read[j] = O[j] * inv;
            out[j] += lam * read[j];
        }
        if (a->lse) a->lse[at] = t->w->max[i] + R_LOG(t->w->sum[i]);
    }
}

static void read_tile(const struct tile *t) {
    const struct hl_cache *a = t->d->a;
    const int64_t ldv = hl_cache_ld(a->V);
    const real *q = (const real *)a->q + (t->row * a->H + t->d->hk) * a->K;
    HL_OP(pack_transpose)(t->w->qT, t->ld, q, a->H * a->K, t->n, t->n, a->K);
    for (int64_t c = 0; c < t->cols; c += CACHE_COLS) {
        int64_t n = min(CACHE_COLS, t->cols - c), have = c == 0 ? t->loaded : 0;
        load_keys(t, c, c + have, n - have);
        scores(t, c, n);
    }
    if (a->policy.score == HL_SCORE_LEARNED) add_biases(t);
    for (int64_t i = 0; i < t->n; i += VL) softmax(t, i);
    for (int64_t c = 0; c < t->cols; c += CACHE_COLS) {
        int64_t n = min(CACHE_COLS, t->cols - c), have = c == 0 ? t->loaded : 0;
        HL_OP(cache_gather_values)(t->d, t->w->chosen.id + c + have, n - have, t->w->v + have * ldv);
        values(t, c, n);
    }
    finish(t);
    if (a->policy.moves_with_reads) add_weights_to_scores(t);
}

void HL_OP(cache_read)(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t b, int64_t m) {
    const int64_t start = b * d->a->chunk - d->open; /* the block's first row, relative to the segment */
    struct tile t = {.d = d, .w = w, .ld = hl_cache_ld(w->tile)};
    for (int64_t i = start < 0 ? -start : 0; i < m; i += w->tile) {
        t.row = d->row + start + i;
        t.n = min(w->tile, m - i);
        t.seen = w->chosen.n + i + 1;
        t.loaded = t.cols <= CACHE_COLS ? t.cols : 0;
        t.cols = t.seen + t.n - 1;
        read_tile(&t);
    }
}
