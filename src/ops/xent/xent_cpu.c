/* xent_cpu.c -- HL_XENT_ROWS rows at a time: logits by the matrix product, then each row by itself
 * (maximum, exponentials and their sum, gradient in place), then the two products of the gradient. */
#include "ops/ops.h"
#include "ops/simd.h"

struct pass {
    const struct hl_xent *a;
    int64_t row, rows, per_task; /* rows [row, row+rows), per_task of them in a task */
};

/* The last, cut vector of a row: lanes past the end take no part. */
static inline vr load_tail(const real *z, int64_t n) {
    real t[VL];
    for (int i = 0; i < VL; i++) t[i] = i < n ? z[i] : -(real)INFINITY;
    return v_load(t);
}

static real row_max(const real *z, int64_t n) {
    vr m[4] = {v_set(-(real)INFINITY), v_set(-(real)INFINITY), v_set(-(real)INFINITY),
               v_set(-(real)INFINITY)};
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

/* Sum of exp(z - max), the terms left in z if `keep`. Eight vectors at a time are added in `real`, those
 * sums in double: the error stays near that of one exponential however long the row. */
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

/* nll of row t from its logits z; with gradients wanted, z becomes scale (softmax - onehot). */
static void one_row(const struct hl_xent *a, int64_t t, real *z) {
    int64_t V = a->W.rows;
    int32_t target = a->target[t];
    real max;
    double sum, hit;
    a->nll[t] = 0;
    if (a->top) a->top[t] = 0;
    if (target < 0) {
        if (a->dx) memset(z, 0, (size_t)V * sizeof(real));
        return;
    }
    max = row_max(z, V);
    hit = (double)z[target] - (double)max;
    if (a->top) a->top[t] = z[target] == max && !holds(z, target, max);
    sum = row_exp(z, V, max, a->dx != NULL);
    a->nll[t] = log(sum) - hit;
    if (!a->dx) return;
    scale_row(z, V, (real)((double)a->scale / sum));
    z[target] -= a->scale;
}

static void task(void *ctx, int64_t i, int worker) {
    const struct pass *p = ctx;
    (void)worker;
    for (int64_t r = i * p->per_task; r < p->rows && r < (i + 1) * p->per_task; r++)
        one_row(p->a, p->row + r, (real *)p->a->logits + r * p->a->W.rows);
}

void HL_OP(xent)(struct hl_pool *pool, const struct hl_xent *a) {
    HL_ASSERT(!a->dx || a->W.layout == HL_ROWS);
    for (int64_t row = 0; row < a->M; row += HL_XENT_ROWS) {
        struct pass p = {.a = a, .row = row, .rows = a->M - row < HL_XENT_ROWS ? a->M - row : HL_XENT_ROWS};
        struct hl_linear l = {.M = p.rows, .K = a->D, .x = (const real *)a->x + row * a->D, .n = 1};
        l.part[0].W = a->W;
        l.part[0].out = a->logits;
        HL_OP(linear_forward)(pool, &l);
        p.per_task = hl_pieces(8192, a->W.rows); /* a task is worth a few microseconds */
        hl_pool_run(pool, hl_pieces(p.rows, p.per_task), task, &p);
        if (!a->dx) continue;
        l.part[0].dout = a->logits;
        l.part[0].dW = a->dW;
        l.dx = (real *)a->dx + row * a->D;
        HL_OP(linear_backward)(pool, &l);
    }
}
