/* cache_case.h -- a random batch for the exact memory, the op run on it, and an independent implementation of the
 * selection in docs/math.md: no stream, no state, every block ranks all rows before it. */
#ifndef HL_CACHE_CASE_H
#define HL_CACHE_CASE_H
#include "check.h"
#include "backend/backend.h"

struct shape {
    int64_t window, chunk, H, HV, K, V;
    hola_evict evict;
};

static inline struct hl_policy policy_of(hola_evict evict) {
    const hola_config cfg = {.cache_evict = evict, .cache_sinks = 2};
    struct hl_policy p;
    assert_true(hl_policy_of(&p, &cfg));
    return p;
}

/* Everything the op reads and writes; `a` points into it. */
struct batch {
    struct shape s;
    struct hl_seg seg[8];
    struct hl_rows rows;
    int64_t T, blocks, nq, nv, ns; /* counts of q, of v, of sel */
    real *q, *k, *v, *score, *tau, *sink, *gate, *dout;
    real *out, *read, *lse, *dq, *dk, *dv, *dtau, *dsink, *dgate, *dscore;
    real *token, *dtoken; /* token_gate and its gradient; NULL: one gate for all tokens */
    real *joined;         /* the scores of the op with one set per layer, whose heads have b->score; NULL: b->score */
    real *r, *weight, *S; /* of measured scores: [T][H]; [K]; [blocks][HV][K][V], the state after each block */
    int64_t nS;
    int64_t *sel;
    struct hl_cache a;
};

static inline void batch_clear(struct batch *b) {
    check_poison(b->read, b->nv);
    check_poison(b->lse, b->T * b->s.HV);
    check_poison(b->dq, b->nq);
    check_poison(b->dk, b->nq);
    check_poison(b->dscore, b->T * b->s.HV);
    if (b->token) check_poison(b->dtoken, b->T * b->s.HV);
    memset(b->sel, 0x5a, (size_t)b->ns * sizeof *b->sel);
    check_fill(b->out, b->nv, -1, 1, 91); /* out, dv and the scalars' gradients are added to */
    check_fill(b->dv, b->nv, -1, 1, 92);
    for (int64_t h = 0; h < b->s.HV; h++) b->dtau[h] = b->dsink[h] = b->dgate[h] = (real)(0.25 * (double)h);
}

/* A batch of n segments, all without a session. */
static inline struct batch *batch_new(struct shape s, const int64_t *len, int n, uint64_t seed) {
    struct batch *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->s = s;
    for (int i = 0; i < n; i++) {
        if (len[i] <= 0) continue;
        b->seg[b->rows.n++] = (struct hl_seg){.row = b->T, .len = len[i]};
        b->T += len[i];
    }
    b->rows.T = b->T;
    b->rows.seg = b->seg;
    b->blocks = hl_blocks_before(&b->rows, b->rows.n, s.chunk);
    b->nq = b->T * s.H * s.K, b->nv = b->T * s.HV * s.V, b->ns = b->blocks * s.HV * s.window;
    b->q = check_random(b->nq, -2, 2, seed + 1);
    b->k = check_random(b->nq, -2, 2, seed + 2);
    b->v = check_random(b->nv, -1, 1, seed + 3);
    b->score =
        check_random(b->T * s.HV, s.evict == HOLA_EVICT_LTE ? -2 : 0, s.evict == HOLA_EVICT_LTE ? 2 : 1, seed + 4);
    b->nS = s.evict == HOLA_EVICT_LOLA ? b->blocks * s.HV * s.K * s.V : 0;
    b->r = check_random(b->T * s.H, 0.2, 2, seed + 9);
    b->weight = check_random(s.K, 0.5, 1.5, seed + 10);
    b->weight[s.K / 2] = 0; /* ignored */
    b->S = check_random(b->nS, -0.5, 0.5, seed + 11);
    b->tau = check_random(s.HV, 0.5, 2, seed + 5);
    b->sink = check_random(s.HV, -1, 2, seed + 6);
    b->gate = check_random(s.HV, -2, 1, seed + 7);
    b->dout = check_random(b->nv, -1, 1, seed + 8);
    b->out = check_new(b->nv), b->read = check_new(b->nv), b->dv = check_new(b->nv);
    b->dq = check_new(b->nq), b->dk = check_new(b->nq);
    b->lse = check_new(b->T * s.HV), b->dscore = check_new(b->T * s.HV);
    b->dtau = check_new(s.HV), b->dsink = check_new(s.HV), b->dgate = check_new(s.HV);
    b->sel = malloc((size_t)(b->ns + 1) * sizeof *b->sel);
    assert_non_null(b->sel);
    b->a = (struct hl_cache){.rows = &b->rows,
                             .H = s.H,
                             .HV = s.HV,
                             .K = s.K,
                             .V = s.V,
                             .window = s.window,
                             .chunk = s.chunk,
                             .policy = policy_of(s.evict),
                             .q = b->q,
                             .k = b->k,
                             .v = b->v,
                             .tau = b->tau,
                             .sink = b->sink,
                             .gate = b->gate,
                             .out = b->out,
                             .read = b->read,
                             .lse = b->lse,
                             .sel = b->sel,
                             .dout = b->dout,
                             .dq = b->dq,
                             .dk = b->dk,
                             .dv = b->dv,
                             .dtau = b->dtau,
                             .dsink = b->dsink,
                             .dgate = b->dgate,
                             .dscore = b->dscore,
                             .r_state = b->r,
                             .k_weight = b->weight,
                             .block_S = b->S};
    if (hl_cache_scored(&b->a.policy)) b->a.score = b->score;
    batch_clear(b);
    return b;
}

/* Ranks by position alone: the first n rows of a segment are never evicted. */
static inline struct batch *with_sinks(struct batch *b, int64_t n) {
    assert_true(b->a.policy.by_position);
    b->a.policy.sinks = n;
    return b;
}

/* Linear gates, the first of them closed if `closed`. */
static inline struct batch *with_linear_gate(struct batch *b, bool closed) {
    b->a.linear_gate = true;
    for (int64_t h = 0; h < b->s.HV; h++)
        b->gate[h] = closed && h == 0 ? 0 : (real)fabs((double)b->gate[h]) + (real)0.1;
    return b;
}

/* A gate per token. */
static inline struct batch *with_token_gate(struct batch *b, uint64_t seed) {
    b->a.token_gate = b->token = check_random(b->T * b->s.HV, -2, 2, seed);
    b->a.dtoken_gate = b->dtoken = check_new(b->T * b->s.HV);
    return b;
}

/* Keys of `groups` directions in a plane, each a near-duplicate of its two neighbours only; near-duplicates rank
 * last. */
static inline struct batch *with_redundancy(struct batch *b, int64_t groups, uint64_t seed) {
    const int64_t K = b->s.K;
    for (int64_t i = 0; i < b->nq; i++) {
        const double angle = 0.35 * (double)(check_mix((uint64_t)(i / K) + seed) % (uint64_t)groups);
        b->k[i] = b->k[i] * (real)0.05 + (real)(2 * (i % K % 2 ? sin(angle) : cos(angle)));
    }
    b->a.policy.redundancy = 0.9;
    return b;
}

/* The scores that the op gets with one set per layer: those of the backend's cache_score. */
static inline void batch_join(struct batch *b, const char *backend, struct hl_backend *pool) {
    const struct hl_score a = {
        .T = b->T, .HV = b->s.HV, .V = b->s.V, .policy = b->a.policy, .m = b->score, .score = b->joined};
    if (b->joined) hl_ops_named(backend)->cache_score(pool, &a);
}
/* One set per layer. The heads' scores are small integers: many norms are equal, and all backends' have the same bits.
 * Some are not numbers. */
static inline struct batch *with_layer_set(struct batch *b, uint64_t seed) {
    const int64_t n = b->T * b->s.HV;
    assert_true(b->s.evict == HOLA_EVICT_BETAE);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t x = check_mix((uint64_t)i + seed * 1000) % 100;
        b->score[i] = x == 99 ? (real)NAN : (real)(x % 6);
    }
    b->a.policy.layer_set = true;
    b->a.score = b->joined = check_new(n);
    batch_join(b, "cpu-ref", NULL);
    return b;
}

static inline void batch_free(struct batch *b) {
    real *q[] = {b->q, b->k, b->dq, b->dk}, *v[] = {b->v, b->dout, b->out, b->read, b->dv};
    real *t[] = {b->score, b->lse, b->dscore}, *h[] = {b->tau, b->sink, b->gate, b->dtau, b->dsink, b->dgate};
    for (int i = 0; i < 4; i++) check_free(q[i], b->nq);
    for (int i = 0; i < 5; i++) check_free(v[i], b->nv);
    for (int i = 0; i < 3; i++) check_free(t[i], b->T * b->s.HV);
    check_free(b->r, b->T * b->s.H), check_free(b->weight, b->s.K), check_free(b->S, b->nS);
    for (int i = 0; i < 6; i++) check_free(h[i], b->s.HV);
    if (b->token) check_free(b->token, b->T * b->s.HV), check_free(b->dtoken, b->T * b->s.HV);
    if (b->joined) check_free(b->joined, b->T * b->s.HV);
    free(b->sel);
    free(b);
}

/* ---- sessions of a batch's segments ---- */

static inline int64_t batch_state_bytes(const struct batch *b, int64_t size) {
    return hl_cache_state_bytes(b->s.HV, b->s.K, b->s.V, b->s.window, b->s.chunk, size, hl_cache_factors(&b->a));
}
/* Pieces of the batch's segments, all of them in sessions, with the states that the delta rule would have stored.
 * Returns block_S, to be freed; the state after piece i is written to state[i] if its last row ends a block, else
 * NaN. */
static inline real *batch_states(const struct batch *b, const struct hl_rows *rows, real *const *state) {
    const struct shape *s = &b->s;
    const int64_t C = s->chunk, each = s->HV * s->K * s->V, blocks = hl_blocks_before(rows, rows->n, C);
    real *all = b->nS ? malloc((size_t)(blocks * each) * sizeof *all) : NULL, *to = all;
    for (int64_t n = 0; b->nS && n < rows->n; n++) {
        const struct hl_seg *g = &rows->seg[n];
        int64_t whole = 0, before;
        while (b->seg[whole].row != g->row - g->pos) whole++;
        before = hl_blocks_before(&b->rows, whole, C);
        for (int64_t i = g->pos / C; i <= (g->pos + g->len - 1) / C; i++, to += each) {
            const bool ends = (i + 1) * C == g->pos + g->len, inside = (i + 1) * C < g->pos + g->len;
            const real *S = b->S + (before + i) * each;
            for (int64_t x = 0; x < each; x++) to[x] = inside ? S[x] : (real)NAN;
            for (int64_t x = 0; x < each && i == (g->pos + g->len - 1) / C; x++) state[n][x] = ends ? S[x] : (real)NAN;
        }
    }
    return all;
}
/* Three segments whose states have the delta rule's at S: in one pass, or each alone. */
static inline void forward_three(const struct hl_ops *ops, struct batch *b, struct hl_seg g[3], int64_t S,
                                 struct hl_backend *backend, bool alone) {
    for (int n = 0; n < 3; n += alone ? 1 : 3) {
        struct hl_rows rows = {.T = b->T, .n = alone ? 1 : 3, .seg = g + n};
        real *after[3];
        for (int j = n; j < 3; j++) after[j - n] = (real *)(void *)(g[j].state + S);
        real *block_S = batch_states(b, &rows, after);
        b->a.rows = &rows;
        b->a.block_S = block_S, b->a.S_off = S;
        ops->cache_forward(backend, &b->a);
        free(block_S);
    }
}

/* After a whole block the state's positions are the next block's selection. */
static inline void check_positions(const struct batch *b, const char *state, int64_t pos) {
    const struct shape *s = &b->s;
    struct hl_cache_layout l =
        hl_cache_layout(s->K, s->V, s->window, s->chunk, hl_cache_row_size(b->a.row_dtype), hl_cache_factors(&b->a));
    if (pos % s->chunk || pos >= b->T || !b->a.sel) return;
    for (int64_t h = 0; h < s->HV; h++) {
        const int64_t *at = (const int64_t *)(const void *)(state + h * l.bytes + l.pos);
        const int64_t *sel = b->sel + (pos / s->chunk * s->HV + h) * s->window;
        for (int64_t j = 0; j < s->window && j < pos; j++) assert_int_equal(at[j], sel[j]);
    }
}

/* One segment through a session in pieces of size, size + 1, ... (grows) or all of `size`. */
static inline void batch_feed(const struct batch *b, const char *who, struct hl_backend *pool, int64_t size, bool grows,
                              real *out) {
    const struct shape *s = &b->s;
    const int64_t off = 192, bytes = batch_state_bytes(b, hl_cache_row_size(b->a.row_dtype));
    real *S = check_new(s->HV * s->K * s->V);
    char *state = aligned_alloc(64, (size_t)((bytes + off + 127) / 64 * 64));
    struct hl_cache a = b->a;
    assert_non_null(state);
    memset(state, 0xff, (size_t)(bytes + off + 64)); /* NaN: what was not written must not be read */
    a.out = out;
    a.read = NULL, a.lse = NULL, a.sel = NULL;
    a.state_off = off;
    for (int64_t t = 0; t < b->T; t += size, size += grows) {
        struct hl_seg g = {.row = t, .len = size < b->T - t ? size : b->T - t, .pos = t, .state = state};
        struct hl_rows rows = {.T = b->T, .n = 1, .seg = &g};
        real *block_S = batch_states(b, &rows, &S);
        a.rows = &rows;
        a.block_S = block_S;
        a.S_off = (char *)S - state; /* it may lie anywhere */
        hl_ops_named(who)->cache_forward(pool, &a);
        check_positions(b, state + off, t + g.len);
        free(block_S);
    }
    check_free(S, s->HV * s->K * s->V);
    for (int64_t i = 0; i < off; i++) assert_int_equal(state[i], (char)0xff);
    for (int64_t i = off + bytes; i < off + bytes + 64; i++) assert_int_equal(state[i], (char)0xff);
    free(state);
}

static inline void batch_run(struct batch *b, const char *backend, struct hl_backend *pool, bool backward) {
    const struct hl_ops *ops = hl_ops_named(backend);
    CHECK_OK(hl_backend_reserve(pool, hl_cache_scratch(b->s.K, b->s.V, b->s.window, b->s.chunk)));
    batch_join(b, backend, pool);
    ops->cache_forward(pool, &b->a);
    if (backward) ops->cache_backward(pool, &b->a);
}

/* Outputs of two runs: same rows chosen, everything else within tol. */
static inline void batch_near(const struct batch *b, const struct batch *want, double tol, bool backward,
                              const char *who) {
    const struct shape *s = &b->s;
#define SAME(x, n, width, tol)                                                                                         \
    CHECK_NEAR(b->x, want->x, n, width, tol, "%s evict %d sinks %d w %d C %d heads %d/%d K %d V %d " #x, who,          \
               (int)s->evict, (int)b->a.policy.sinks, (int)s->window, (int)s->chunk, (int)s->H, (int)s->HV, (int)s->K, \
               (int)s->V)
    assert_memory_equal(b->sel, want->sel, (size_t)b->ns * sizeof *b->sel);
    SAME(out, b->T, s->HV * s->V, tol);
    SAME(read, b->T, s->HV * s->V, tol);
    SAME(lse, b->T, s->HV, tol);
    if (!backward) return;
    SAME(dq, b->T, s->H * s->K, tol);
    SAME(dk, b->T, s->H * s->K, tol);
    SAME(dv, b->T, s->HV * s->V, tol);
    if (s->evict == HOLA_EVICT_LTE) SAME(dscore, b->T, s->HV, tol);
    if (b->token) SAME(dtoken, b->T, s->HV, tol);
    /* sums over all rows of terms of both signs */
    SAME(dtau, 1, s->HV, 10 * tol);
    SAME(dsink, 1, s->HV, 10 * tol);
    SAME(dgate, 1, s->HV, 10 * tol);
#undef SAME
}

/* ---- the definition ---- */

enum wrong {
    RIGHT,
    SEES_BLOCK,
    LATER_TIES,
    NO_SINK,
    LATEST,
    DROPS_KEPT,
    FORGETS_FIRST,
    ONE_FIRST_MORE,
    MEASURED_ONCE,
    RAW_KEYS,
    NO_BIAS,
    ONE_GATE,
    KEEPS_ALIKE, /* treats near-duplicates like any other row */
    LEAVES_EMPTY,
    BRINGS_BACK,
    SET_PER_HEAD,
    LARGEST_HEAD /* one set per layer, but by the largest score of any head */
};

/* What head h ranks a row by. */
static inline double plain_rank(const struct batch *b, int64_t row, int64_t h, enum wrong wrong) {
    const real *score = b->score + row * b->s.HV;
    double sum = 0, largest = 0;
    bool number = true;
    for (int64_t i = 0; i < b->s.HV; i++) {
        number = number && score[i] == score[i];
        sum += (double)score[i] * (double)score[i];
        largest = fmax(largest, (double)score[i]);
    }
    if (!b->a.policy.layer_set || wrong == SET_PER_HEAD) return score[h] == score[h] ? (double)score[h] : -INFINITY;
    return !number ? -INFINITY : wrong == LARGEST_HEAD ? largest : sum;
}

/* The rows that the block beginning at row `first` of segment g keeps of those before it. */
static inline int64_t plain_keep(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t first, int64_t *keep,
                                 enum wrong wrong) {
    int64_t n = 0, until = wrong == SEES_BLOCK && first + b->s.chunk < g->len ? first + b->s.chunk : first;
    bool latest = b->a.policy.by_position || wrong == LATEST;
    int64_t sinks = wrong == FORGETS_FIRST ? 0 : b->a.policy.sinks + (wrong == ONE_FIRST_MORE);
    for (int64_t j = 0; j < until; j++) {
        int64_t better = 0;
        for (int64_t i = 0; i < until; i++) {
            double x = plain_rank(b, g->row + i, h, wrong), y = plain_rank(b, g->row + j, h, wrong);
            if (latest) x = i < sinks ? INFINITY : (double)i, y = j < sinks ? INFINITY : (double)j;
            better += x > y || (x == y && (wrong == LATER_TIES ? i > j : i < j));
        }
        if (better < b->s.window) keep[n++] = j;
    }
    return n;
}

static inline double plain_score(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t t, int64_t j) {
    const struct shape *s = &b->s;
    const real *q = b->q + ((g->row + t) * s->H + h * s->H / s->HV) * s->K;
    const real *k = b->k + ((g->row + j) * s->H + h * s->H / s->HV) * s->K;
    double z = 0;
    for (int64_t i = 0; i < s->K; i++) z += (double)q[i] * (double)k[i];
    return (double)b->tau[h] * z / sqrt((double)s->K);
}

/* |v - k^T S| of row j against the state after block `block` of the batch. */
static inline double plain_recall(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t j, int64_t block,
                                  enum wrong wrong) {
    const struct shape *s = &b->s;
    const int64_t at = (g->row + j) * s->H + h * s->H / s->HV;
    const real *S = b->S + (block * s->HV + h) * s->K * s->V, *v = b->v + ((g->row + j) * s->HV + h) * s->V;
    const double r = (double)b->r[at], f = r * sqrt((1 / (r * r) - 1e-6) / (double)s->K + 1e-6);
    double sum = 0;
    for (int64_t x = 0; x < s->V; x++) {
        double e = (double)v[x];
        for (int64_t i = 0; i < s->K; i++) {
            const double k = (double)b->k[at * s->K + i], w = (double)b->weight[i];
            e -= (wrong == RAW_KEYS ? k : w == 0 ? 0 : f * k / w) * (double)S[i * s->V + x];
        }
        sum += e * e;
    }
    return sqrt(sum);
}
/* After `first` rows, a multiple of C: of the n rows kept before and of the last block's, the best remain. */
static inline int64_t plain_measure(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t first,
                                    int64_t *keep, double *score, int64_t n, enum wrong wrong) {
    const int64_t C = b->s.chunk, block = hl_blocks_before(&b->rows, g - b->seg, C) + first / C - 1;
    int64_t left = 0;
    if (first == 0) return 0;
    for (int64_t j = first - C; j < first; j++) keep[n++] = j;
    for (int64_t j = 0; j < n; j++)
        if (wrong != MEASURED_ONCE || keep[j] >= first - C) score[j] = plain_recall(b, g, h, keep[j], block, wrong);
    for (int64_t j = 0; j < n; j++) {
        int64_t better = 0;
        for (int64_t i = 0; i < n; i++) better += score[i] > score[j] || (score[i] == score[j] && i < j);
        keep[j] = better < b->s.window ? keep[j] : -1;
    }
    for (int64_t j = 0; j < n; j++) {
        if (keep[j] < 0) continue;
        score[left] = score[j];
        keep[left++] = keep[j];
    }
    return left;
}

/* After `first` rows, a multiple of C: of the n rows kept before and of the last block's, those that remain where
 * near-duplicates come last. BRINGS_BACK: of all rows. */
static inline int64_t plain_distinct(const struct batch *b, const struct hl_seg *g, int64_t h, int64_t first,
                                     int64_t *keep, int64_t n, enum wrong wrong) {
    const int64_t C = b->s.chunk, K = b->s.K, w = b->s.window;
    const double limit = b->a.policy.redundancy;
    int64_t chosen = 0, left = 0;
    if (first == 0) return 0;
    if (wrong == BRINGS_BACK) n = 0;
    for (int64_t j = wrong == BRINGS_BACK ? 0 : first - C; j < first; j++) keep[n++] = j;
    bool *taken = calloc((size_t)n, sizeof *taken), *alike = calloc((size_t)n, sizeof *alike);
    assert_true(taken && alike);
    while (chosen < w && chosen < n) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++) { /* the best of those that are not alike, or else of those that are */
            if (taken[j] || (best >= 0 && alike[j] > alike[best])) continue;
            const real x = b->score[(g->row + keep[j]) * b->s.HV + h];
            const real y = best >= 0 ? b->score[(g->row + keep[best]) * b->s.HV + h] : 0;
            if (best < 0 || alike[j] < alike[best] || x > y) best = j;
        }
        if (alike[best] && wrong == LEAVES_EMPTY) break;
        taken[best] = true, chosen++;
        for (int64_t j = 0; j < n && !alike[best]; j++) {
            double xy = 0, xx = 0, yy = 0;
            for (int64_t i = 0; i < K; i++) {
                const int64_t hk = h * b->s.H / b->s.HV;
                const double x = (double)b->k[((g->row + keep[best]) * b->s.H + hk) * K + i];
                const double y = (double)b->k[((g->row + keep[j]) * b->s.H + hk) * K + i];
                xy += x * y, xx += x * x, yy += y * y;
            }
            alike[j] |= !taken[j] && xy / sqrt(xx * yy) > limit;
        }
    }
    for (int64_t j = 0; j < n; j++)
        if (taken[j]) keep[left++] = keep[j];
    free(taken), free(alike);
    return left;
}

/* out and dv of the whole batch (not h2o), added to what they hold. */
static inline void plain_run(const struct batch *b, real *out, real *dv, enum wrong wrong) {
    const struct shape *s = &b->s;
    int64_t *J = malloc((size_t)(b->T + s->window + s->chunk) * sizeof *J);
    double *p = malloc((size_t)(b->T + s->window + s->chunk) * sizeof *p);
    double *score = malloc((size_t)(b->T + s->window + s->chunk) * sizeof *score);
    assert_true(J && p && score);
    for (const struct hl_seg *g = b->seg; g < b->seg + b->rows.n; g++)
        for (int64_t h = 0; h < s->HV; h++) {
            int64_t kept = 0;
            for (int64_t t = 0; t < g->len; t++) {
                int64_t first = t / s->chunk * s->chunk, n, at = (g->row + t) * s->HV + h;
                double sum = wrong == NO_SINK ? 0 : exp((double)b->sink[h]), lam;
                double open = (double)b->gate[h] + (b->token && wrong != ONE_GATE ? (double)b->token[at] : 0);
                lam = 1 / (1 + exp(-open));
                if (t == first && s->evict == HOLA_EVICT_LOLA)
                    kept = plain_measure(b, g, h, first, J, score, kept, wrong);
                else if (t == first && b->a.policy.redundancy > 0 && wrong != KEEPS_ALIKE)
                    kept = plain_distinct(b, g, h, first, J, kept, wrong);
                else if (t == first) kept = plain_keep(b, g, h, first, J, wrong);
                n = kept;
                for (int64_t j = first; j <= t; j++) J[n++] = j;
                for (int64_t j = 0; j < n; j++) {
                    const bool biased = s->evict == HOLA_EVICT_LTE && j < kept && wrong != NO_BIAS;
                    const double bias = biased ? 1 / (1 + exp(-(double)b->score[(g->row + J[j]) * s->HV + h])) : 1;
                    sum += p[j] = exp(plain_score(b, g, h, t, J[j])) * bias;
                }
                for (int64_t j = 0; j < n; j++)
                    for (int64_t i = 0; i < s->V; i++) {
                        int64_t from = ((g->row + J[j]) * s->HV + h) * s->V + i;
                        out[at * s->V + i] += (real)(lam * p[j] / sum * (double)b->v[from]);
                        if (wrong == DROPS_KEPT && j < kept) continue;
                        if (dv) dv[from] += (real)(lam * p[j] / sum * (double)b->dout[at * s->V + i]);
                    }
            }
        }
    free(J);
    free(p);
    free(score);
}

#endif
