/* xent_cpu.c -- HL_XENT_ROWS rows at a time. With gradients: logits by the matrix product, then each row separately
 * (maximum, exponentials and their sum, gradient in place), then the two products of the gradient. Loss only: blocks of
 * logits stay in a core's cache, and only a maximum and a sum are kept. */
#include "ops/linear/quant.h"
#include "ops/linear/kernel.h"
#include "ops/ops.h"

struct pass {
    const struct hl_xent *a;
    int64_t row, rows, per_task; /* rows [row, row+rows), per_task of them in a task */
};

/* The last, partial vector of a row: lanes past the end are ignored. */
static inline vr load_tail(const real *z, int64_t n) {
    real t[VL];
    for (int i = 0; i < VL; i++) t[i] = i < n ? z[i] : -(real)INFINITY;
    return v_load(t);
}

static real row_max(const real *z, int64_t n) {
    vr m[4] = {v_set(-(real)INFINITY), v_set(-(real)INFINITY), v_set(-(real)INFINITY), v_set(-(real)INFINITY)};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int j = 0; j < 4; j++) m[j] = v_max(m[j], v_load(z + i + j * VL));
    for (; i + VL <= n; i += VL) m[0] = v_max(m[0], v_load(z + i));
    if (i < n) m[0] = v_max(m[0], load_tail(z + i, n - i));
    return v_hmax(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
}

static inline void add_lanes(double lane[VL], vr e) {
    real t[VL];
    v_store(t, e);
    for (int l = 0; l < VL; l++) lane[l] += (double)t[l];
}

/* Sum of exp(z - max), the terms left in z if `keep`. Eight vectors at a time are added in `real`, those sums in
 * double: the error stays near that of one exponential for any row length. */
static double row_exp(real *z, int64_t n, real max, bool keep) {
    double lane[VL] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 * VL <= n; i += 8 * VL) {
        vr e[8];
        for (int j = 0; j < 8; j++) e[j] = v_exp(v_load(z + i + j * VL) - max);
        if (keep)
            for (int j = 0; j < 8; j++) v_store(z + i + j * VL, e[j]);
        add_lanes(lane, ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7])));
    }
    for (; i < n; i += VL) {
        bool whole = i + VL <= n;
        vr e = v_exp((whole ? v_load(z + i) : load_tail(z + i, n - i)) - max);
        if (keep && whole) v_store(z + i, e);
        else if (keep) v_store_n(z + i, e, n - i);
        add_lanes(lane, e);
    }
    for (int l = 0; l < VL; l++) sum += lane[l];
    return sum;
}

static void scale_row(real *z, int64_t n, real s) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) v_store(z + i, v_load(z + i) * s);
    for (; i < n; i++) z[i] *= s;
}

static bool holds(const real *z, int64_t n, real x) {
    for (int64_t i = 0; i < n; i++)
        if (z[i] == x) return true;
    return false;
}

/* nll of row t from its logits z, which become scale (softmax - onehot). */
static void one_row(const struct hl_xent *a, int64_t t, real *z) {
    int64_t V = a->W.rows;
    int32_t target = a->target[t];
    real max;
    double sum, hit;
    a->nll[t] = 0;
    if (a->correct) a->correct[t] = 0;
    if (target < 0) {
        memset(z, 0, (size_t)V * sizeof(real));
        return;
    }
    max = row_max(z, V);
    hit = (double)z[target] - (double)max;
    if (a->correct) a->correct[t] = z[target] == max && !holds(z, target, max);
    sum = row_exp(z, V, max, true);
    a->nll[t] = log(sum) - hit;
    scale_row(z, V, (real)((double)a->scale / sum));
    z[target] -= a->scale;
}

static void task(void *ctx, int64_t i, int worker) {
    const struct pass *p = ctx;
    (void)worker;
    for (int64_t r = i * p->per_task; r < p->rows && r < (i + 1) * p->per_task; r++)
        one_row(p->a, p->row + r, (real *)p->a->logits + r * p->a->W.rows);
}

/* ---- loss only ---- */

/* A block of logits. Rows are full strips, padded so that the rows of a tile do not map to the same L1 cache sets. */
enum { ROWS = 120, COLUMNS = HL_LINEAR_COLUMNS, LDC = COLUMNS + 16 };

/* What is kept of a row's columns: their maximum and the sum of exp(z - max). Blocks are the same columns in any
 * pass, and added up in their order. */
struct share {
    double sum;
    real max;
    real hit;   /* the target's, where it is one of them */
    bool first; /* and none before it is the same */
};
static struct share look(real *z, int64_t n, int64_t target) {
    struct share y = {.max = row_max(z, n)};
    if (target >= 0 && target < n) y.hit = z[target], y.first = !holds(z, target, y.hit);
    y.sum = row_exp(z, n, y.max, false);
    return y;
}

struct whole { /* of a row so far */
    double max, sum, hit;
    bool correct; /* the target is the first of the largest */
};
static void join(struct whole *w, const struct share *y, bool has_target) {
    const double max = (double)y->max > w->max ? (double)y->max : w->max;
    w->sum = w->sum * exp(w->max - max) + y->sum * exp((double)y->max - max);
    if (has_target) w->hit = (double)y->hit, w->correct = w->hit > w->max && y->first;
    w->max = max;
    w->correct = w->correct && w->hit == max;
}
static const struct whole nothing = {.max = -1e300};

struct scoring {
    const struct hl_xent *a;
    struct hl_pool *pool;
    int64_t row, rows, row_blocks;
    real *strips;        /* of all rows; NULL: quantised and BF16 products make their own */
    real *room;          /* a block for each worker */
    struct share *share; /* [blocks][rows]; NULL: all logits are there */
};

static void pack_block(void *ctx, int64_t i, int worker) {
    const struct scoring *s = ctx;
    const int64_t K = s->a->D, m0 = i * ROWS, m = s->rows - m0 < ROWS ? s->rows - m0 : ROWS;
    (void)worker;
    HL_OP(linear_strips)(s->strips + m0 / HL_MR * HL_AS * K, (const real *)s->a->x + (s->row + m0) * K, m, K);
}

static void score_block(void *ctx, int64_t i, int worker) {
    const struct scoring *s = ctx;
    const struct hl_xent *a = s->a;
    const int64_t m0 = i % s->row_blocks * ROWS, at = i / s->row_blocks, n0 = at * COLUMNS;
    struct hl_linear_block b = {.M = s->rows - m0 < ROWS ? s->rows - m0 : ROWS,
                                .K = a->D,
                                .n0 = n0,
                                .n = a->W.rows - n0 < COLUMNS ? a->W.rows - n0 : COLUMNS,
                                .x = (const real *)a->x + (s->row + m0) * a->D,
                                .strips = s->strips ? s->strips + m0 / HL_MR * HL_AS * a->D : NULL,
                                .W = a->W,
                                .C = s->room + worker * ROWS * LDC,
                                .ldc = LDC};
    HL_OP(linear_block)(&b, hl_pool_scratch(s->pool, worker, hl_linear_scratch()));
    for (int64_t r = 0; r < b.M; r++)
        s->share[at * s->rows + m0 + r] = look(b.C + r * LDC, b.n, a->target[s->row + m0 + r] - n0);
}

static void score_row(void *ctx, int64_t r, int worker) {
    const struct scoring *s = ctx;
    const struct hl_xent *a = s->a;
    const int64_t t = s->row + r, V = a->W.rows, target = a->target[t];
    struct whole w = nothing;
    (void)worker;
    for (int64_t n0 = 0; target >= 0 && n0 < V; n0 += COLUMNS) {
        const int64_t n = V - n0 < COLUMNS ? V - n0 : COLUMNS;
        const struct share y =
            s->share ? s->share[n0 / COLUMNS * s->rows + r] : look((real *)a->logits + r * V + n0, n, target - n0);
        join(&w, &y, target >= n0 && target < n0 + n);
    }
    a->nll[t] = target < 0 ? 0 : log(w.sum) + w.max - w.hit;
    if (a->correct) a->correct[t] = target >= 0 && w.correct;
}

/* Lays the pieces out in the workspace; false: it is too small, or the rows are too few to be worth it. */
static bool lay_out(struct scoring *s) {
    const struct hl_xent *a = s->a;
    const int64_t blocks = hl_pieces(a->W.rows, COLUMNS), strips = hl_pieces(s->rows, HL_MR) * HL_AS * a->D;
    const int64_t rooms = hl_pool_threads(s->pool) * ROWS * LDC;
    const int64_t shares = blocks * s->rows * (int64_t)(sizeof *s->share / sizeof(real));
    if (s->rows < ROWS / 2 || shares + strips + rooms > s->rows * a->W.rows) return false;
    s->row_blocks = hl_pieces(s->rows, ROWS);
    s->share = (struct share *)a->logits;
    s->strips = (real *)a->logits + shares;
    s->room = s->strips + strips;
    return true;
}

static void loss_alone(struct hl_backend *backend, const struct hl_xent *a, int64_t row, int64_t rows) {
    struct scoring s = {.a = a, .pool = hl_backend_pool(backend), .row = row, .rows = rows};
    if (lay_out(&s)) {
        if (a->W.precision == HOLA_PRECISION_BF16 || (a->W.layout == HL_PANELS && hl_is_quant(a->W.dtype)))
            s.strips = NULL;
        else hl_pool_run(s.pool, s.row_blocks, pack_block, &s);
        hl_pool_run(s.pool, s.row_blocks * hl_pieces(a->W.rows, COLUMNS), score_block, &s);
    } else {
        struct hl_linear l = {.M = rows, .K = a->D, .x = (const real *)a->x + row * a->D, .n = 1};
        l.part[0].W = a->W;
        l.part[0].out = a->logits;
        HL_OP(linear_forward)(backend, &l);
    }
    hl_pool_run(s.pool, rows, score_row, &s);
}

/* ---- the op ---- */

void HL_OP(xent)(struct hl_backend *backend, const struct hl_xent *a) {
    HL_ASSERT(!a->dx || a->W.layout == HL_ROWS);
    for (int64_t row = 0; row < a->M; row += HL_XENT_ROWS) {
        struct pass p = {.a = a, .row = row, .rows = a->M - row < HL_XENT_ROWS ? a->M - row : HL_XENT_ROWS};
        struct hl_linear l = {.M = p.rows, .K = a->D, .x = (const real *)a->x + row * a->D, .n = 1};
        if (!a->dx) {
            loss_alone(backend, a, row, p.rows);
            continue;
        }
        l.part[0].W = a->W;
        l.part[0].out = a->logits;
        HL_OP(linear_forward)(backend, &l);
        p.per_task = hl_pieces(8192, a->W.rows); /* a task is worth a few microseconds */
        hl_pool_run(hl_backend_pool(backend), hl_pieces(p.rows, p.per_task), task, &p);
        l.part[0].dout = a->logits;
        l.part[0].dW = a->dW;
        l.dx = (real *)a->dx + row * a->D;
        HL_OP(linear_backward)(backend, &l);
    }
}
