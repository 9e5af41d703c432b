/* decay_cpu.c -- the log decays with vectors, parallel over blocks of rows. Sums over rows are computed per block, and
 * the blocks are added in order. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    ROWS = 64,     /* rows of one task, at least */
    SMALL = 2048,  /* below this many elements, use one thread */
    PARTS = 32768, /* numbers in the partial sums, which are on the stack */
};
#define INLINE static inline __attribute__((always_inline))

INLINE vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
INLINE void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}
INLINE int64_t lanes(int64_t left) { return left < VL ? left : VL; }

struct blocks {
    const void *op;
    int64_t T, n, rows; /* n blocks of `rows` rows */
    real *part;         /* [n][sums]; NULL: one block, which adds directly to the op's sums */
    int64_t sums;
};

/* sums: number of sums over the rows per block; 0: none */
static struct blocks cut(const void *op, int64_t T, int64_t sums) {
    const int64_t most = sums == 0 ? T : PARTS / sums > 1 ? PARTS / sums : 1;
    struct blocks b = {.op = op, .T = T, .rows = ROWS, .sums = sums};
    if (hl_pieces(T, ROWS) > most) b.rows = hl_pieces(T, most);
    b.n = hl_pieces(T, b.rows);
    return b;
}
static void run(struct hl_backend *backend, struct blocks *b, int64_t width, hl_task task) {
    if (b->T * width > SMALL) hl_pool_run(hl_backend_pool(backend), b->n, task, b);
    else
        for (int64_t i = 0; i < b->n; i++) task(b, i, 0);
}
static inline int64_t last_row(const struct blocks *b, int64_t i) {
    return (i + 1) * b->rows < b->T ? (i + 1) * b->rows : b->T;
}
/* to += the sums [first, first + count) of all blocks */
static void add_parts(const struct blocks *b, real *to, int64_t first, int64_t count) {
    for (int64_t i = 0; b->part && i < b->n; i++)
        for (int64_t c = 0; c < count; c++) to[c] += b->part[i * b->sums + first + c];
}

/* ---- logsigmoid ---- */

/* min(x, 0) - log(1 + exp(-|x|)) */
INLINE vr v_logsigmoid(vr x) { return v_min(x, v_set(0)) - v_log1p(v_exp(v_min(x, -x))); }

static void logsigmoid_rows(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_logsigmoid copy = *(const struct hl_logsigmoid *)b->op, *p = &copy;
    const real share = 1 / p->normalizer;
    (void)worker;
    for (int64_t t = block * b->rows; t < last_row(b, block); t++)
        for (int64_t c = 0; c < p->C; c += VL) {
            const int64_t n = lanes(p->C - c), i = t * p->C + c;
            vr x = get((const real *)p->x + i, n);
            if (p->bias) x += get(p->bias + c, n);
            put(p->g + i, v_max(share * v_logsigmoid(x), v_set(p->clamp_min)), n);
        }
}
void HL_OP(logsigmoid_forward)(struct hl_backend *backend, const struct hl_logsigmoid *p) {
    struct blocks b = cut(p, p->T, 0);
    run(backend, &b, p->C, logsigmoid_rows);
}

static void dlogsigmoid_rows(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_logsigmoid copy = *(const struct hl_logsigmoid *)b->op, *p = &copy;
    const real share = 1 / p->normalizer;
    real *sum = b->part ? b->part + block * b->sums : p->bias ? p->dbias : NULL;
    (void)worker;
    if (b->part) memset(sum, 0, (size_t)b->sums * sizeof *sum);
    for (int64_t t = block * b->rows; t < last_row(b, block); t++)
        for (int64_t c = 0; c < p->C; c += VL) {
            const int64_t n = lanes(p->C - c), i = t * p->C + c;
            vr x = get((const real *)p->x + i, n);
            if (p->bias) x += get(p->bias + c, n);
            vr dx = get(p->dg + i, n) * share * v_sigmoid(-x);
            dx = v_select((vi)(share * v_logsigmoid(x) < p->clamp_min), v_set(0), dx);
            put((real *)p->dx + i, dx, n);
            if (sum) put(sum + c, get(sum + c, n) + dx, n);
        }
}
void HL_OP(logsigmoid_backward)(struct hl_backend *backend, const struct hl_logsigmoid *p) {
    struct blocks b = cut(p, p->T, p->bias ? p->C : 0);
    real part[PARTS];
    if (p->bias && b.n > 1) b.part = part;
    run(backend, &b, p->C, dlogsigmoid_rows);
    if (p->bias) add_parts(&b, p->dbias, 0, p->C);
}

/* ---- kda ---- */

/* beta of a row, or with dbeta its gradient */
INLINE void beta_row(const struct hl_kda_gate *p, int64_t t, bool back) {
    const vr most = v_set(p->neg_eigval ? 2 : 1);
    for (int64_t h = 0; h < p->HV; h += VL) {
        const int64_t n = lanes(p->HV - h), i = t * p->HV + h;
        const vr s = v_sigmoid(get((const real *)p->b + i, n));
        if (back) put((real *)p->db + i, get(p->dbeta + i, n) * most * s * (1 - s), n);
        else put(p->beta + i, most * s, n);
    }
}

static void kda_rows(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_kda_gate copy = *(const struct hl_kda_gate *)b->op, *p = &copy;
    (void)worker;
    for (int64_t t = block * b->rows; t < last_row(b, block); t++) {
        beta_row(p, t, false);
        for (int64_t h = 0; h < p->HV; h++) {
            const real A = R_EXP(p->A_log[h]);
            for (int64_t c = 0; c < p->K; c += VL) {
                const int64_t n = lanes(p->K - c), i = (t * p->HV + h) * p->K + c;
                const vr a = get((const real *)p->x + i, n) + get(p->dt_bias + h * p->K + c, n);
                put(p->g + i, p->lower_bound != 0 ? p->lower_bound * v_sigmoid(A * a) : -A * v_softplus(a), n);
            }
        }
    }
}
void HL_OP(kda_gate_forward)(struct hl_backend *backend, const struct hl_kda_gate *p) {
    struct blocks b = cut(p, p->T, 0);
    run(backend, &b, p->HV * p->K, kda_rows);
}

/* Sums of a block: ddt_bias [HV][K], then dA_log [HV]. */
static void dkda_rows(void *ctx, int64_t block, int worker) {
    const struct blocks *b = ctx;
    const struct hl_kda_gate copy = *(const struct hl_kda_gate *)b->op, *p = &copy;
    real *dt = b->part ? b->part + block * b->sums : p->ddt_bias;
    real *dA_log = b->part ? dt + p->HV * p->K : p->dA_log;
    (void)worker;
    if (b->part) memset(dt, 0, (size_t)b->sums * sizeof *dt);
    for (int64_t t = block * b->rows; t < last_row(b, block); t++) {
        beta_row(p, t, true);
        for (int64_t h = 0; h < p->HV; h++) {
            const real A = R_EXP(p->A_log[h]);
            vr sum = v_set(0);
            for (int64_t c = 0; c < p->K; c += VL) {
                const int64_t n = lanes(p->K - c), i = (t * p->HV + h) * p->K + c;
                const vr a = get((const real *)p->x + i, n) + get(p->dt_bias + h * p->K + c, n);
                const vr dg = get(p->dg + i, n), s = v_sigmoid(p->lower_bound != 0 ? A * a : a);
                vr dx = -A * s * dg;
                if (p->lower_bound != 0) {
                    dx = dg * p->lower_bound * s * (1 - s) * A;
                    sum += dx * a;
                } else sum += dg * get(p->g + i, n);
                put((real *)p->dx + i, dx, n);
                put(dt + h * p->K + c, get(dt + h * p->K + c, n) + dx, n);
            }
            dA_log[h] += v_sum(sum);
        }
    }
}
void HL_OP(kda_gate_backward)(struct hl_backend *backend, const struct hl_kda_gate *p) {
    struct blocks b = cut(p, p->T, p->HV * (p->K + 1));
    real part[PARTS];
    if (b.n > 1) b.part = part;
    run(backend, &b, p->HV * p->K, dkda_rows);
    add_parts(&b, p->ddt_bias, 0, p->HV * p->K);
    add_parts(&b, p->dA_log, p->HV * p->K, p->HV);
}
