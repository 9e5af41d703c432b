/* cache_back_cpu.c -- the backward pass of the read (docs/math.md).
 *
 * Kept rows receive gradients from many blocks, which are added in a fixed order: block by block, and within a block
 * value head by value head. So one task owns a key head of a segment; or, if threads would be idle, a key head of a
 * block, and contributions to kept rows are buffered until those of earlier blocks have been added. A tile is up to
 * CACHE_BACK queries against CACHE_BCOLS columns (cache_cpu.h); P is recomputed from lse. */
#include "ops/cache/cache_cpu.h"
#include "ops/linear/kernel.h"

/* Scalar gradients held at a time, one set per value head of a segment. A config has at most this many value heads per
 * key head. */
enum { SCALARS = 1024 };

struct scalar_grads {
    double tau, sink, gate;
};
struct back {
    struct hl_pool *pool;
    const struct hl_cache *a;
    int64_t first; /* task of this round's first entry */
    /* a split segment: its index, the blocks [block, end) in progress, slots of a worker's `kept` */
    int64_t segment, block, end, slots;
    struct scalar_grads scalars[SCALARS];
};

/* Queries [i, i + n) of a block, counted from its first row; `row` is the first one's in the batch. */
struct tile {
    const struct hl_cache_head *d;
    struct hl_cache_work *w;
    struct scalar_grads *scalars;
    int64_t row, i, n;
    const real *q, *dout; /* the queries' rows, with strides ldk and ldv */
    int64_t ldk, ldv;
    real *slot; /* contributions to kept rows, [window] of dk, dv, dscore; NULL: added directly */
};
static int64_t slot_reals(const struct hl_cache *a) { return a->window * (a->K + a->V + 1); }

static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }

/* Loads the tile's qT and doutT, lambda_t, R_t = dc_t.read_t, and computes from it the gradients of gate and sink. */
static void load_queries(const struct tile *t) {
    const struct hl_cache *a = t->d->a;
    const int64_t h = t->d->h, ld = hl_cache_ld(CACHE_BACK);
    for (int64_t i = 0; i < t->n; i++) {
        int64_t row = t->row + i, at = row * a->HV + h, j = 0;
        const real lam = t->w->lam[i] = hl_cache_lambda(a, row, h);
        const real *dout = (const real *)a->dout + at * a->V, *read = (const real *)a->read + at * a->V;
        vr sum = {0};
        real rowdot;
        for (; j + VL <= a->V; j += VL) sum += v_load(dout + j) * v_load(read + j);
        if (j < a->V) sum += v_load_n(dout + j, a->V - j) * v_load_n(read + j, a->V - j);
        rowdot = v_sum(sum);
        t->w->R[i] = lam * rowdot;
        const real dgate = hl_cache_slope(a, lam) * rowdot;
        if (a->dtoken_gate) ((real *)a->dtoken_gate)[at] = dgate;
        t->scalars->gate += (double)dgate;
        t->scalars->sink -= (double)(R_EXP(a->sink[h] - a->lse[at]) * t->w->R[i]);
    }
    HL_OP(pack_transpose)(t->w->bqT, ld, t->q, t->ldk, t->n, t->n, a->K);
    HL_OP(pack_transpose)(t->w->bdoT, ld, t->dout, t->ldv, t->n, t->n, a->V);
}

/* Loads kT and vT of n columns; returns the keys themselves, with row stride *ld. */
static const real *load_keys(const struct tile *t, const int64_t *id, int64_t n, int64_t *ldk) {
    const int64_t ld = hl_cache_ld(CACHE_BCOLS);
    int64_t ldv;
    const real *k = HL_OP(cache_keys)(t->d, id, n, t->w->bk, ldk);
    const real *v = HL_OP(cache_values)(t->d, id, n, t->w->rows, &ldv);
    HL_OP(pack_transpose)(t->w->bkT, ld, k, *ldk, n, n, t->d->a->K);
    HL_OP(pack_transpose)(t->w->bvT, ld, v, ldv, n, n, t->d->a->V);
    return k;
}

static const real lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Converts s = q.k / sqrt(K) in P and dout.v in dS, where query i sees the first `seen` of n columns, to P = lambda p
 * and dS = p (lambda dout.v - R), p = exp(tau s + bias - lse), zero where not visible. bias: of the columns; NULL:
 * none. Returns the sum of dS s. */
static real weights(const struct tile *t, const real *bias, int64_t i, int64_t seen, int64_t n) {
    const int64_t ld = hl_cache_ld(CACHE_BCOLS);
    const struct hl_cache *a = t->d->a;
    real *P = t->w->P + i * ld, *dS = t->w->dS + i * ld;
    const real tau = a->tau[t->d->h], lse = a->lse[(t->row + i) * a->HV + t->d->h], R = t->w->R[i], lam = t->w->lam[i];
    vr sum = {0};
    int64_t j = 0;
    for (; j < seen; j += VL) {
        vr s = v_load(P + j), p = bias ? v_exp(tau * s + v_load(bias + j) - lse) : v_exp(tau * s - lse);
        vr ds = p * (lam * v_load(dS + j) - R), dtau = ds * s;
        if (j + VL > seen) {
            vi mask = (vi)(v_load(lanes) < (real)(seen - j));
            p = v_select(mask, p, v_set(0));
            ds = v_select(mask, ds, v_set(0));
            dtau = v_select(mask, dtau, v_set(0));
        }
        v_store(P + j, lam * p);
        v_store(dS + j, ds);
        sum += dtau;
    }
    for (; j < n; j++) P[j] = dS[j] = 0;
    return v_sum(sum);
}

/* The biases of n columns, in order `id`: log sigma(score) of kept ones, 0 of others. NULL: the policy has none. */
static const real *load_biases(const struct tile *t, const int64_t *id, int64_t n) {
    const struct hl_cache *a = t->d->a;
    const int64_t kept = t->w->chosen.n - (id - t->w->chosen.id);
    if (a->policy.score != HL_SCORE_LEARNED || kept <= 0) return NULL;
    for (int64_t c = 0; c < CACHE_BCOLS; c++)
        t->w->bias[c] = c < n && c < kept ? hl_logsigmoid(a->score[(t->d->row + id[c]) * a->HV + t->d->h]) : 0;
    return t->w->bias;
}
/* Adds rows of `width` numbers to rows id of dst. A separate function: a preceding multiplication must not be fused
 * with the addition, because the numbers may also come from a slot. */
static __attribute__((noinline)) void add_rows(real *dst, int64_t stride, const int64_t *id, int64_t n,
                                               const real *rows, int64_t ld, int64_t width) {
    for (int64_t c = 0; c < n; c++)
        for (int64_t j = 0; j < width; j++) dst[id[c] * stride + j] += rows[c * ld + j];
}
/* The same for kept columns; slot: buffers their rows, NULL: no buffering */
static void add_kept(const struct tile *t, real *slot, real *dst, int64_t stride, const int64_t *id, int64_t n,
                     const real *rows, int64_t ld, int64_t width) {
    if (!slot) add_rows(dst, stride, id, n, rows, ld, width);
    for (int64_t c = 0; c < n && slot; c++)
        memcpy(slot + (id - t->w->chosen.id + c) * width, rows + c * ld, (size_t)width * sizeof(real));
}
static int64_t kept_columns(const struct tile *t, const int64_t *id, int64_t n) {
    const int64_t kept = t->w->chosen.n - (id - t->w->chosen.id);
    return kept < 0 ? 0 : min(kept, n);
}

/* Adds sigma(-score) sum_t dS to the gradients of the kept columns' scores. */
static void add_to_scores(const struct tile *t, const int64_t *id, int64_t n, int64_t first) {
    const struct hl_cache *a = t->d->a;
    const int64_t ld = hl_cache_ld(CACHE_BCOLS), kept = kept_columns(t, id, n), at = t->d->row * a->HV + t->d->h;
    real *slot = t->slot ? t->slot + a->window * (a->K + a->V) : NULL, *grads = t->w->bias; /* already read */
    for (int64_t c = 0; c < kept; c++) {
        real sum = 0;
        for (int64_t i = first; i < t->n; i++) sum += t->w->dS[i * ld + c];
        grads[c] = hl_sigmoid(-a->score[at + id[c] * a->HV]) * sum;
    }
    add_kept(t, slot, a->dscore + at, a->HV, id, kept, grads, 1, 1);
}

/* Adds what the n columns receive of dk or dv to dst [T][stride]: p's A = dS or P, B = rows of queries. Contiguous rows
 * of the block are the product's output directly. */
static void add_to_rows(const struct tile *t, const int64_t *id, int64_t n, struct hl_small_gemm p, real *slot,
                        real *dst, int64_t stride) {
    const int64_t kept = kept_columns(t, id, n);
    const bool even = kept == 0;
    dst += t->d->row * stride;
    p.M = n;
    p.ai = 1;
    p.ak = hl_cache_ld(CACHE_BCOLS);
    p.bn = 1;
    p.C = even ? dst + id[0] * stride : t->w->rows;
    p.ldc = even ? stride : hl_cache_ld(p.N);
    p.add = even && p.add;
    HL_OP(small_gemm)(&p, t->w->mm);
    if (even) return;
    add_kept(t, slot, dst, stride, id, kept, p.C, p.ldc, p.N);
    add_rows(dst, stride, id + kept, n - kept, p.C + kept * p.ldc, p.ldc, p.N);
}

/* The tile's queries from `first` on against n columns. `diagonal`: query `first` sees one of them, the next two, and
 * so on; otherwise all see all. dq and dk are first written, then accumulated: dq by the first call of a tile, dk of a
 * row by its diagonal call, which precedes those of later queries. */
static void back_tile(const struct tile *t, const int64_t *id, int64_t n, int64_t first, bool diagonal) {
    const struct hl_cache *a = t->d->a;
    const struct hl_cache_head *d = t->d;
    const int64_t ld = hl_cache_ld(CACHE_BCOLS), ldT = hl_cache_ld(CACHE_BACK), m = t->n - first;
    const real scale = 1 / R_SQRT((real)a->K), slope = a->tau[d->h] * scale;
    const bool first_head = d->h % (a->HV / a->H) == 0; /* the first value head of this key head */
    real *dq = (real *)a->dq + ((t->row + first) * a->H + d->hk) * a->K;
    struct hl_small_gemm S = {
        .M = m, .N = n, .K = a->K, .ai = 1, .ak = ldT, .bk = ld, .bn = 1, .ldc = ld, .alpha = scale};
    struct hl_small_gemm dP = S, dQ, dK = {.K = m, .N = a->K, .bk = t->ldk, .alpha = slope}, dV = dK;
    int64_t ldk;
    const real *k = load_keys(t, id, n, &ldk);
    S.A = t->w->bqT + first;
    S.B = t->w->bkT;
    S.C = t->w->P + first * ld;
    HL_OP(small_gemm)(&S, t->w->mm);
    dP.K = a->V;
    dP.A = t->w->bdoT + first;
    dP.B = t->w->bvT;
    dP.C = t->w->dS + first * ld;
    dP.alpha = 1;
    HL_OP(small_gemm)(&dP, t->w->mm);
    const real *bias = load_biases(t, id, n);
    for (int64_t i = first; i < t->n; i++)
        t->scalars->tau += (double)weights(t, bias, i, diagonal ? min(n, i - first + 1) : n, n);

    if (bias) add_to_scores(t, id, n, first);
    dQ = (struct hl_small_gemm){.M = m, .N = a->K, .K = n, .A = dP.C, .ai = ld, .ak = 1, .B = k, .bk = ldk, .bn = 1};
    dQ.C = dq;
    dQ.ldc = a->H * a->K;
    dQ.alpha = slope;
    dQ.add = !first_head || id != t->w->chosen.id;
    HL_OP(small_gemm)(&dQ, t->w->mm);
    dK.A = dP.C;
    dK.add = !first_head || !diagonal;
    dK.B = t->q + first * t->ldk;
    add_to_rows(t, id, n, dK, t->slot, (real *)a->dk + d->hk * a->K, a->H * a->K);
    dV.A = S.C;
    dV.N = a->V;
    dV.B = t->dout + first * t->ldv;
    dV.bk = t->ldv;
    dV.alpha = 1;
    dV.add = true;
    real *slot = t->slot ? t->slot + a->window * a->K : NULL;
    add_to_rows(t, id, n, dV, slot, (real *)a->dv + d->h * a->V, a->HV * a->V);
}

/* Selects the columns of block b into w->chosen; returns the number of rows in the block. */
static int64_t choose(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t n, int64_t b) {
    const struct hl_cache *a = d->a;
    const int64_t m = min(a->chunk, d->len - b * a->chunk);
    const int64_t *sel = a->sel + ((hl_blocks_before(a->rows, n, a->chunk) + b) * a->HV + d->h) * a->window;
    for (w->chosen.n = 0; w->chosen.n < a->window && sel[w->chosen.n] >= 0; w->chosen.n++)
        w->chosen.id[w->chosen.n] = sel[w->chosen.n] - d->row;
    for (int64_t c = 0; c < m; c++) w->chosen.id[w->chosen.n + c] = b * a->chunk + c;
    return m;
}

/* One value head of block b of segment n: the kept columns, then its own. */
static struct scalar_grads back_block(const struct hl_cache *a, struct hl_cache_work *w, int64_t n, int64_t b,
                                      int64_t h, real *slot) {
    const struct hl_seg *s = &a->rows->seg[n];
    const struct hl_cache_head d = {.a = a, .h = h, .hk = h / (a->HV / a->H), .row = s->row, .len = s->len};
    struct scalar_grads scalars = {0};
    struct tile t = {.d = &d, .w = w, .scalars = &scalars, .ldk = a->H * a->K, .ldv = a->HV * a->V, .slot = slot};
    const int64_t m = choose(&d, w, n, b), kept = w->chosen.n, *id = w->chosen.id;
    for (t.i = 0; t.i < m; t.i += CACHE_BACK) {
        t.row = d.row + b * a->chunk + t.i;
        t.n = min(CACHE_BACK, m - t.i);
        t.q = (const real *)a->q + t.row * t.ldk + d.hk * a->K;
        t.dout = (const real *)a->dout + t.row * t.ldv + d.h * a->V;
        load_queries(&t);
        for (int64_t c = 0; c < kept + t.i; c += CACHE_BCOLS)
            back_tile(&t, id + c, min(CACHE_BCOLS, kept + t.i - c), 0, false);
        for (int64_t i = 0; i < t.n; i += CACHE_BCOLS)
            back_tile(&t, id + kept + t.i + i, min(CACHE_BCOLS, t.n - i), i, true);
    }
    return scalars;
}

static void add_scalars(struct scalar_grads *to, const struct scalar_grads *x) {
    to->tau += x->tau;
    to->sink += x->sink;
    to->gate += x->gate;
}
static void put_scalars(const struct hl_cache *a, int64_t h, const struct scalar_grads *x) {
    if (a->dtau) a->dtau[h] += (real)x->tau;
    a->dsink[h] += (real)x->sink;
    a->dgate[h] += (real)x->gate;
}

/* ---- whole segments ---- */

static void back_task(void *ctx, int64_t i, int worker) {
    struct back *g = ctx;
    const struct hl_cache *a = g->a;
    const int64_t rep = a->HV / a->H, hk = (g->first + i) % a->H, n = (g->first + i) / a->H;
    struct hl_cache_work w = hl_cache_worker(g->pool, worker, a);
    for (int64_t r = 0; r < rep; r++) g->scalars[i * rep + r] = (struct scalar_grads){0};
    for (int64_t b = 0; b * a->chunk < a->rows->seg[n].len; b++)
        for (int64_t r = 0; r < rep; r++) {
            const struct scalar_grads scalars = back_block(a, &w, n, b, hk * rep + r, NULL);
            add_scalars(&g->scalars[i * rep + r], &scalars);
        }
}

static void run_whole(struct back *g) {
    const struct hl_cache *a = g->a;
    const int64_t rep = a->HV / a->H, tasks = a->rows->n * a->H, round = SCALARS / rep;
    HL_ASSERT(rep <= SCALARS);
    for (g->first = 0; g->first < tasks; g->first += round) {
        int64_t now = min(round, tasks - g->first);
        hl_pool_run(g->pool, now, back_task, g);
        for (int64_t i = 0; i < now * rep; i++) /* segment by segment, so in order for each head */
            put_scalars(a, (g->first * rep + i) % a->HV, &g->scalars[i]);
    }
}

/* ---- one segment on many threads ---- */

static real *slot_of(const struct back *g, int64_t i) { /* at (block - g->block) * HV + value head */
    return hl_cache_worker(g->pool, (int)(i / g->slots), g->a).kept + i % g->slots * slot_reals(g->a);
}

/* one key head of one block */
static void block_task(void *ctx, int64_t i, int worker) {
    struct back *g = ctx;
    const int64_t rep = g->a->HV / g->a->H;
    struct hl_cache_work w = hl_cache_worker(g->pool, worker, g->a);
    for (int64_t r = 0; r < rep; r++)
        g->scalars[i * rep + r] =
            back_block(g->a, &w, g->segment, g->block + i / g->a->H, i % g->a->H * rep + r, slot_of(g, i * rep + r));
}

/* adds the contributions to the kept rows of one key head, in order */
static void kept_task(void *ctx, int64_t hk, int worker) {
    const struct back *g = ctx;
    const struct hl_cache *a = g->a;
    const struct hl_seg *s = &a->rows->seg[g->segment];
    const int64_t rep = a->HV / a->H;
    struct hl_cache_work w = hl_cache_worker(g->pool, worker, a);
    for (int64_t b = g->block; b < g->end; b++)
        for (int64_t h = hk * rep; h < (hk + 1) * rep; h++) {
            const struct hl_cache_head d = {.a = a, .h = h, .hk = hk, .row = s->row, .len = s->len};
            const real *slot = slot_of(g, (b - g->block) * a->HV + h);
            real *dk = (real *)a->dk + (s->row * a->H + hk) * a->K, *dv = (real *)a->dv + (s->row * a->HV + h) * a->V;
            choose(&d, &w, g->segment, b);
            add_rows(dk, a->H * a->K, w.chosen.id, w.chosen.n, slot, a->K, a->K);
            add_rows(dv, a->HV * a->V, w.chosen.id, w.chosen.n, slot + a->window * a->K, a->V, a->V);
            if (a->policy.score == HL_SCORE_LEARNED)
                add_rows(a->dscore + s->row * a->HV + h, a->HV, w.chosen.id, w.chosen.n,
                         slot + a->window * (a->K + a->V), 1, 1);
        }
}

static void run_split(struct back *g, int64_t window) {
    const struct hl_cache *a = g->a;
    const int64_t blocks = hl_pieces(a->rows->seg[g->segment].len, a->chunk);
    struct scalar_grads sums[SCALARS] = {{0}};
    for (g->block = 0; g->block < blocks; g->block = g->end) {
        g->end = min(blocks, g->block + window);
        hl_pool_run(g->pool, (g->end - g->block) * a->H, block_task, g);
        hl_pool_run(g->pool, a->H, kept_task, g);
        for (int64_t i = 0; i < (g->end - g->block) * a->HV; i++) add_scalars(&sums[i % a->HV], &g->scalars[i]);
    }
    for (int64_t h = 0; h < a->HV; h++) put_scalars(a, h, &sums[h]);
}

/* How many blocks of a segment to compute at once; 0: whole segments keep the threads busy, or a block is too large. */
static int64_t split_window(const struct back *g) {
    const struct hl_cache *a = g->a;
    const int64_t threads = hl_pool_threads(g->pool), tasks = a->rows->n * a->H;
    int64_t longest = 0, rounds = a->rows->n ? hl_pieces(tasks, threads) * (a->rows->T / a->rows->n) : 0;
    for (int64_t n = 0; n < a->rows->n; n++)
        if (a->rows->seg[n].len > longest) longest = a->rows->seg[n].len;
    if (longest > rounds) rounds = longest;
    if (10 * a->rows->T * a->H >= 9 * threads * rounds || a->chunk > CACHE_BACK) return 0;
    return min(threads * g->slots, SCALARS) / a->HV;
}

void HL_OP(cache_backward)(struct hl_backend *backend, const struct hl_cache *a) {
    struct back g = {.pool = hl_backend_pool(backend), .a = a};
    HL_ASSERT(a->row_dtype != HOLA_F16);
    g.slots = a->window ? CACHE_KEPT / slot_reals(a) : SCALARS;
    for (int64_t n = 0; n < a->rows->n; n++) HL_ASSERT(!a->rows->seg[n].state && a->rows->seg[n].pos == 0);
    if (a->policy.score == HL_SCORE_LEARNED) memset(a->dscore, 0, (size_t)(a->rows->T * a->HV) * sizeof(real));
    const int64_t window = split_window(&g);
    if (window == 0) run_whole(&g);
    for (g.segment = 0; window > 0 && g.segment < a->rows->n; g.segment++) run_split(&g, window);
}
