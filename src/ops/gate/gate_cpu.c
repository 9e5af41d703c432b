/* gate_cpu.c -- beta and the log decay with vectors.
 *
 * Heads are few (4..16), so a vector holds as many whole rows as fit, or, with more heads than lanes, a
 * slice of one row; either way lane l always belongs to head h0 + l % H, whose parameters stay in
 * registers and whose sums stay in that lane. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    ROWS = 256,   /* rows of one task, at least */
    SMALL = 2048, /* below this many elements, use one thread */
    PARTS = 8192, /* numbers in the partial sums of dA_log and ddt_bias, which are on the stack */
};

struct blocks {
    const struct hl_gate *op;
    int64_t n, rows; /* n blocks of `rows` rows */
    real *part;      /* [n][2][H]: sums of dg g and of da */
};

/* The heads of one scan over the rows. */
struct lanes {
    int64_t h0, rows, n; /* first head, rows of one vector, lanes in use */
    vr A, dt;            /* -exp(A_log), dt_bias */
};

static inline vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
static inline void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}

static struct lanes lanes_at(const struct hl_gate *p, int64_t h0) {
    struct lanes l = {.h0 = h0, .rows = p->H < VL ? VL / p->H : 1};
    real A[VL] = {0}, dt[VL] = {0};
    l.n = p->H < VL ? l.rows * p->H : p->H - h0 < VL ? p->H - h0 : VL;
    for (int64_t i = 0; p->a && i < l.n; i++) {
        A[i] = p->A_log[h0 + i % p->H];
        dt[i] = p->dt_bias[h0 + i % p->H];
    }
    l.A = -v_exp(v_load(A));
    l.dt = v_load(dt);
    return l;
}

/* Elements of the vector that starts at row t; the last rows may fill fewer lanes. */
static inline int64_t filled(const struct lanes *l, int64_t t, int64_t end, int64_t H) {
    return end - t < l->rows ? (end - t) * H : l->n;
}

static struct blocks cut(const struct hl_gate *p) {
    struct blocks b = {.op = p, .rows = ROWS};
    int64_t most = PARTS / (2 * p->H);
    if (hl_pieces(p->T, ROWS) > most) b.rows = hl_pieces(p->T, most > 1 ? most : 1);
    b.n = hl_pieces(p->T, b.rows);
    return b;
}

static void run(struct hl_pool *pool, struct blocks *b, hl_task task) {
    if (b->op->T * b->op->H > SMALL) hl_pool_run(pool, b->n, task, b);
    else
        for (int64_t i = 0; i < b->n; i++) task(b, i, 0);
}

static inline int64_t last_row(const struct blocks *b, int64_t i) {
    return (i + 1) * b->rows < b->op->T ? (i + 1) * b->rows : b->op->T;
}

static inline void forward(const struct hl_gate *p, const struct lanes *l, int64_t i, int64_t n) {
    vr beta = v_set(1);
    if (p->b) beta = v_set(p->neg_eigval ? 2 : 1) * v_sigmoid(get((const real *)p->b + i, n));
    put(p->beta + i, beta, n);
    if (p->a) put(p->g + i, l->A * v_softplus(get((const real *)p->a + i, n) + l->dt), n);
}

static void forward_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_gate *p = b->op;
    const int64_t end = last_row(b, block);
    (void)worker;
    for (int64_t h0 = 0; h0 < p->H; h0 += VL) {
        const struct lanes l = lanes_at(p, h0);
        for (int64_t t = block * b->rows; t < end; t += l.rows) forward(p, &l, t * p->H + h0, filled(&l, t, end, p->H));
    }
}

void HL_OP(gate_forward)(struct hl_backend *backend, const struct hl_gate *p) {
    struct blocks b = cut(p);
    run(hl_backend_pool(backend), &b, forward_block);
}

/* Unused lanes read dg = 0 and add nothing. */
static inline void backward(const struct hl_gate *p, const struct lanes *l, int64_t i, int64_t n, vr *dA_log,
                            vr *ddt_bias) {
    if (p->b) {
        vr s = v_sigmoid(get((const real *)p->b + i, n));
        put((real *)p->db + i, get(p->dbeta + i, n) * v_set(p->neg_eigval ? 2 : 1) * s * (1 - s), n);
    }
    if (p->a) {
        vr dg = get(p->dg + i, n);
        vr da = l->A * v_sigmoid(get((const real *)p->a + i, n) + l->dt) * dg;
        put((real *)p->da + i, da, n);
        *ddt_bias += da;
        *dA_log += dg * get(p->g + i, n);
    }
}

static void backward_block(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_gate *p = b->op;
    const int64_t end = last_row(b, block);
    real *sA = b->part ? b->part + block * 2 * p->H : p->dA_log;
    real *sdt = b->part ? sA + p->H : p->ddt_bias;
    (void)worker;
    if (b->part) memset(sA, 0, (size_t)(2 * p->H) * sizeof(real));
    for (int64_t h0 = 0; h0 < p->H; h0 += VL) {
        const struct lanes l = lanes_at(p, h0);
        vr dA_log = {0}, ddt_bias = {0};
        for (int64_t t = block * b->rows; t < end; t += l.rows)
            backward(p, &l, t * p->H + h0, filled(&l, t, end, p->H), &dA_log, &ddt_bias);
        for (int64_t i = 0; p->a && i < l.n; i++) {
            sA[h0 + i % p->H] += dA_log[i];
            sdt[h0 + i % p->H] += ddt_bias[i];
        }
    }
}

void HL_OP(gate_backward)(struct hl_backend *backend, const struct hl_gate *p) {
    struct blocks b = cut(p);
    real part[PARTS];
    b.part = b.n > 1 ? part : NULL;
    run(hl_backend_pool(backend), &b, backward_block);
    for (int64_t i = 0; p->a && b.part && i < b.n; i++)
        for (int64_t h = 0; h < p->H; h++) {
            p->dA_log[h] += part[i * 2 * p->H + h];
            p->ddt_bias[h] += part[i * 2 * p->H + p->H + h];
        }
}
