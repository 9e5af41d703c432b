/* norm_cpu.c -- RMSNorm, gated RMSNorm and L2 norm with vectors, parallel over blocks of rows.
 *
 * Every row is read twice, the second time from L1: memory sees each array once. Backward sums dw per block of rows and
 * adds the blocks in order at the end, so that dw needs no separate pass. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    TASK = 16384,  /* elements of one task */
    ROWS = 128,    /* maximum rows per task: short sums round less */
    SMALL = 8192,  /* below this many elements, use one thread */
    PARTS = 32768, /* numbers in the partial sums of dw, which are on the stack */
};

/* Tasks use a local copy of the op's arguments: the compiler must assume that a stored vector may alias the original,
 * and would reload it for every vector. */
struct blocks {
    const void *op;
    int64_t M, D, n, rows; /* n blocks of `rows` rows */
    real *part;            /* [n][D] */
};

static struct blocks cut(const void *op, int64_t M, int64_t D) {
    struct blocks b = {.op = op, .M = M, .D = D};
    b.rows = D < TASK ? TASK / D : 1;
    if (b.rows > ROWS) b.rows = ROWS;
    b.n = hl_pieces(M, b.rows);
    return b;
}

static void run(struct hl_pool *pool, struct blocks *b, hl_task task) {
    if (b->M * b->D > SMALL) hl_pool_run(pool, b->n, task, b);
    else
        for (int64_t i = 0; i < b->n; i++) task(b, i, 0);
}

static inline int64_t last_row(const struct blocks *b, int64_t i) {
    return (i + 1) * b->rows < b->M ? (i + 1) * b->rows : b->M;
}

/* n <= VL lanes; a constant VL in the main loops */
static inline vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
static inline void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}

static real dot(const real *x, const real *y, int64_t D) {
    vr s0 = {0}, s1 = {0};
    int64_t c = 0;
    for (; c + 2 * VL <= D; c += 2 * VL) {
        s0 += v_load(x + c) * v_load(y + c);
        s1 += v_load(x + c + VL) * v_load(y + c + VL);
    }
    if (c + VL <= D) {
        s0 += v_load(x + c) * v_load(y + c);
        c += VL;
    }
    if (c < D) s1 += v_load_n(x + c, D - c) * v_load_n(y + c, D - c);
    return v_sum(s0 + s1);
}

/* ---- rmsnorm ---- */

static inline vr weight(const struct hl_rmsnorm *a, int64_t c, int64_t n) { return a->w ? get(a->w + c, n) : v_set(1); }

static inline void rms_lanes(const struct hl_rmsnorm *a, int64_t m, int64_t c, vr r, int64_t n) {
    int64_t i = m * a->D + c;
    vr y = r * get((const real *)a->x + i, n) * weight(a, c, n);
    if (a->z) {
        vr z = get((const real *)a->z + i, n);
        y *= a->z_sigmoid ? v_sigmoid(z) : z * v_sigmoid(z);
    }
    put((real *)a->y + i, y, n);
}

static void rms_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_rmsnorm copy = *(const struct hl_rmsnorm *)b->op, *a = &copy;
    (void)worker;
    for (int64_t m = block * b->rows; m < last_row(b, block); m++) {
        const real *x = (const real *)a->x + m * a->D;
        real r = 1 / R_SQRT(dot(x, x, a->D) / (real)a->D + a->eps);
        int64_t c = 0;
        a->r[m] = r;
        for (; c + VL <= a->D; c += VL) rms_lanes(a, m, c, v_set(r), VL);
        if (c < a->D) rms_lanes(a, m, c, v_set(r), a->D - c);
    }
}

void HL_OP(rmsnorm_forward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    struct blocks b = cut(a, a->M, a->D);
    run(hl_backend_pool(backend), &b, rms_block);
}

/* x u w, where u is the gradient before the gate. dz receives sigma(z) for the second pass. */
static inline vr xuw_lanes(const struct hl_rmsnorm *a, int64_t m, int64_t c, int64_t n) {
    int64_t i = m * a->D + c;
    vr u = get((const real *)a->dy + i, n);
    if (a->z) {
        vr z = get((const real *)a->z + i, n), sg = v_sigmoid(z);
        put((real *)a->dz + i, sg, n);
        u *= a->z_sigmoid ? sg : z * sg;
    }
    return get((const real *)a->x + i, n) * (u * weight(a, c, n));
}

static real xuw(const struct hl_rmsnorm *a, int64_t m) {
    vr s0 = {0}, s1 = {0};
    int64_t c = 0;
    for (; c + 2 * VL <= a->D; c += 2 * VL) {
        s0 += xuw_lanes(a, m, c, VL);
        s1 += xuw_lanes(a, m, c + VL, VL);
    }
    if (c + VL <= a->D) {
        s0 += xuw_lanes(a, m, c, VL);
        c += VL;
    }
    if (c < a->D) s1 += xuw_lanes(a, m, c, a->D - c);
    return v_sum(s0 + s1);
}

static inline void drms_lanes(const struct hl_rmsnorm *a, int64_t m, int64_t c, vr mean, real *dw, int64_t n) {
    int64_t i = m * a->D + c;
    vr r = v_set(a->r[m]), xh = r * get((const real *)a->x + i, n), w = weight(a, c, n);
    vr u = get((const real *)a->dy + i, n), d;
    if (a->z) {
        vr z = get((const real *)a->z + i, n), sg = get((const real *)a->dz + i, n), dyz = u * sg;
        put((real *)a->dz + i, dyz * xh * w * (a->z_sigmoid ? 1 - sg : 1 + z * (1 - sg)), n);
        u = a->z_sigmoid ? dyz : dyz * z;
    }
    if (dw) put(dw + c, get(dw + c, n) + u * xh, n);
    d = r * (u * w - xh * mean);
    if (a->dx_add) d += get((const real *)a->dx + i, n);
    put((real *)a->dx + i, d, n);
}

static void drms_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_rmsnorm copy = *(const struct hl_rmsnorm *)b->op, *a = &copy;
    real *dw = b->part ? b->part + block * a->D : a->dw;
    (void)worker;
    if (b->part) memset(dw, 0, (size_t)a->D * sizeof(real));
    for (int64_t m = block * b->rows; m < last_row(b, block); m++) {
        vr mean = v_set(a->r[m] * xuw(a, m) / (real)a->D);
        int64_t c = 0;
        for (; c + VL <= a->D; c += VL) drms_lanes(a, m, c, mean, dw, VL);
        if (c < a->D) drms_lanes(a, m, c, mean, dw, a->D - c);
    }
}

void HL_OP(rmsnorm_backward)(struct hl_backend *backend, const struct hl_rmsnorm *a) {
    struct blocks b = cut(a, a->M, a->D);
    real part[PARTS];
    HL_ASSERT(!a->z || (a->dz && a->dz != a->z));
    if (b.n > 1 && b.n * a->D > PARTS) { /* fewer, longer blocks */
        b.n = PARTS / a->D > 1 ? PARTS / a->D : 1;
        b.rows = hl_pieces(a->M, b.n);
        b.n = hl_pieces(a->M, b.rows);
    }
    b.part = a->dw && b.n > 1 ? part : NULL;
    run(hl_backend_pool(backend), &b, drms_block);
    for (int64_t i = 0; b.part && i < b.n; i++)
        for (int64_t c = 0; c < a->D; c++) a->dw[c] += part[i * a->D + c];
}

/* ---- l2norm ---- */

static inline void l2_lanes(const real *x, real *y, vr r, int64_t n) { put(y, r * get(x, n), n); }

static void l2_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_l2norm copy = *(const struct hl_l2norm *)b->op, *a = &copy;
    (void)worker;
    for (int64_t m = block * b->rows; m < last_row(b, block); m++) {
        const real *x = (const real *)a->x + m * a->D;
        real *y = (real *)a->y + m * a->D, r = 1 / R_SQRT(dot(x, x, a->D) + (real)HL_L2_EPS);
        int64_t c = 0;
        a->r[m] = r;
        for (; c + VL <= a->D; c += VL) l2_lanes(x + c, y + c, v_set(r), VL);
        if (c < a->D) l2_lanes(x + c, y + c, v_set(r), a->D - c);
    }
}

void HL_OP(l2norm_forward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    struct blocks b = cut(a, a->M, a->D);
    run(hl_backend_pool(backend), &b, l2_block);
}

static inline void dl2_lanes(const struct hl_l2norm *a, int64_t i, vr r, vr ydy, int64_t n) {
    vr y = r * get((const real *)a->x + i, n);
    vr d = r * (get((const real *)a->dy + i, n) - y * ydy);
    if (a->dx_add) d += get((const real *)a->dx + i, n);
    put((real *)a->dx + i, d, n);
}

static void dl2_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_l2norm copy = *(const struct hl_l2norm *)b->op, *a = &copy;
    (void)worker;
    for (int64_t m = block * b->rows; m < last_row(b, block); m++) {
        int64_t i = m * a->D, c = 0;
        real r = a->r[m], ydy = r * dot((const real *)a->x + i, (const real *)a->dy + i, a->D);
        for (; c + VL <= a->D; c += VL) dl2_lanes(a, i + c, v_set(r), v_set(ydy), VL);
        if (c < a->D) dl2_lanes(a, i + c, v_set(r), v_set(ydy), a->D - c);
    }
}

void HL_OP(l2norm_backward)(struct hl_backend *backend, const struct hl_l2norm *a) {
    struct blocks b = cut(a, a->M, a->D);
    run(hl_backend_pool(backend), &b, dl2_block);
}
