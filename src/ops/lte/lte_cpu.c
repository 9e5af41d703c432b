/* lte_cpu.c -- the learned score (lte.h): products with W_in, then convolutions with the channels side by side.
 *
 * Forward: a task is a value head of a block. Backward: a task is a key head, which processes all its blocks and value
 * heads in order, since blocks share weight gradients and value heads share key gradients. */
#include "core/carve.h"
#include "ops/linear/small_gemm.h"
#include "ops/cache/cache_rows.h"

/* A worker's arrays, [C][r] unless said otherwise. */
struct work {
    real *mm, *norm;                         /* scratch of products; [C] */
    real *u, *pre_a, *act_a, *pre_c, *act_c; /* as in lte.h; pre: before silu */
    real *d, *other;                         /* gradients */
    real *rows;                              /* [C][K or V]: rows as reals; gradient of rows */
};
static struct work place(void *scratch, int64_t C, int64_t r, int64_t K, int64_t V) {
    struct hl_carve c = {scratch, 0, 64};
    const int64_t n = C * r + VL; /* full vectors may extend past the end */
    struct work w = {.mm = hl_carve(&c, HL_SMALL_GEMM_SCRATCH, sizeof(real)), .norm = hl_carve(&c, C, sizeof(real))};
    real **each[] = {&w.u, &w.pre_a, &w.act_a, &w.pre_c, &w.act_c, &w.d, &w.other};
    for (int i = 0; i < 7; i++) *each[i] = hl_carve(&c, n, sizeof(real));
    w.rows = hl_carve(&c, C * (K > V ? K : V), sizeof(real));
    HL_ASSERT(c.used <= hl_lte_scratch(C, r, K, V));
    return w;
}
static struct work worker_of(struct hl_pool *pool, int worker, const struct hl_lte *a) {
    void *scratch = hl_pool_scratch(pool, worker, hl_lte_scratch(a->chunk, a->r, a->K, a->V));
    return place(scratch, a->chunk, a->r, a->K, a->V);
}

/* One value head of one block that its segment completes. Its first `open` rows are in the state. */
struct block {
    const struct hl_lte *a;
    int64_t h, hk, row, open;    /* row: of the batch, the first one after the open rows */
    const char *k_open, *v_open; /* the open rows, K and V apart, in a->row_dtype */
    real *score_open;
};

static struct block block_of(const struct hl_lte *a, const struct hl_seg *s, int64_t first, int64_t h) {
    struct block b = {.a = a, .h = h, .hk = h / (a->HV / a->H), .open = first < 0 ? -first : 0};
    b.row = s->row + first + b.open;
    if (b.open == 0) return b;
    const struct hl_cache_layout l =
        hl_cache_layout(a->K, a->V, a->window, a->chunk, hl_cache_row_size(a->row_dtype), false);
    char *state = s->state + a->state_off + h * l.bytes;
    b.k_open = state + l.k + a->window * a->K * hl_cache_row_size(a->row_dtype);
    b.v_open = state + l.v + a->window * a->V * hl_cache_row_size(a->row_dtype);
    b.score_open = (real *)(state + l.score) + a->window;
    return b;
}

/* n rows from row j of the block on, *ld apart; n is cut at the end of the open rows. In place if they are read as they
 * are, else in w->rows. */
static const real *rows_at(const struct block *b, const struct work *w, int64_t j, bool keys, int64_t *n, int64_t *ld) {
    const struct hl_lte *a = b->a;
    const int64_t D = keys ? a->K : a->V, heads = keys ? a->H : a->HV, head = keys ? b->hk : b->h;
    *n = (j < b->open ? b->open : a->chunk) - j;
    *ld = j < b->open ? D : heads * D;
    const char *open = keys ? b->k_open : b->v_open;
    const real *rows = (const real *)(keys ? a->k : a->v) + ((b->row + j - b->open) * heads + head) * D;
    if (a->row_dtype != HOLA_F16) return j < b->open ? (const real *)(const void *)open + j * D : rows;
    for (int64_t i = 0; i < *n; i++)
        if (j < b->open) rows_of_f16(w->rows + i * D, (const uint16_t *)(const void *)open + (j + i) * D, D);
        else rows_rounded(w->rows + i * D, rows + i * heads * D, D);
    *ld = D;
    return w->rows;
}

static real sum_squares(const real *x, int64_t n) {
    vr sum = {0};
    int64_t j = 0;
    for (; j + VL <= n; j += VL) sum += v_load(x + j) * v_load(x + j);
    if (j < n) sum += v_load_n(x + j, n - j) * v_load_n(x + j, n - j);
    return v_sum(sum);
}

/* u = W_in x: v's part first, which its norm multiplies, then k's */
static void project(const struct block *b, const struct work *w) {
    const struct hl_lte *a = b->a;
    const int64_t D = a->K + a->V, r = a->r;
    for (int keys = 0; keys < 2; keys++)
        for (int64_t j = 0, n, ld; j < a->chunk; j += n) {
            const real *x = rows_at(b, w, j, keys, &n, &ld);
            struct hl_small_gemm p = {.M = n, .N = r, .K = keys ? a->K : a->V, .A = x, .ai = ld, .ak = 1};
            p.B = a->w_in + b->h * r * D + (keys ? 0 : a->K), p.bk = 1, p.bn = D;
            p.C = w->u + j * r, p.ldc = r, p.alpha = 1, p.add = keys;
            HL_OP(small_gemm)(&p, w->mm);
            for (int64_t i = 0; i < n && !keys; i++) {
                const real norm = w->norm[j + i] = 1 / R_SQRT(sum_squares(x + i * ld, a->V) / (real)a->V + a->eps);
                for (int64_t c = 0; c < r; c++) w->u[(j + i) * r + c] *= norm;
            }
        }
}

/* pre = bias + the three taps of x, y = silu(pre) */
static void convolve(const struct hl_lte *a, const real *w, const real *bias, const real *x, real *pre, real *y) {
    const int64_t r = a->r, n = a->chunk * r;
    for (int64_t j = 0; j < a->chunk; j++) {
        const real *left = j >= 2 ? x + (j - 2) * r : NULL, *right = j + 2 < a->chunk ? x + (j + 2) * r : NULL;
        for (int64_t c = 0; c < r; c++) pre[j * r + c] = bias[c] + w[c * 3 + 1] * x[j * r + c];
        for (int64_t c = 0; left && c < r; c++) pre[j * r + c] += w[c * 3] * left[c];
        for (int64_t c = 0; right && c < r; c++) pre[j * r + c] += w[c * 3 + 2] * right[c];
    }
    for (int64_t i = 0; i < n; i += VL) {
        const vr z = v_load(pre + i);
        v_store(y + i, z / (1 + v_exp(-z)));
    }
}

static void layers(const struct block *b, const struct work *w) {
    const struct hl_lte *a = b->a;
    const int64_t at = b->h * a->r;
    convolve(a, a->conv1 + 3 * at, a->bias1 + at, w->u, w->pre_a, w->act_a);
    convolve(a, a->conv2 + 3 * at, a->bias2 + at, w->act_a, w->pre_c, w->act_c);
}

struct job {
    struct hl_pool *pool;
    const struct hl_lte *a;
};

static void score_block(const struct block *b, const struct work *w) {
    const struct hl_lte *a = b->a;
    const int64_t r = a->r;
    project(b, w);
    layers(b, w);
    for (int64_t j = 0; j < a->chunk; j++) {
        const int64_t at = (b->row + j - b->open) * a->HV + b->h;
        real score = a->b_out[b->h];
        for (int64_t c = 0; c < r; c++) score += a->w_out[b->h * r + c] * w->act_c[j * r + c];
        if (j < b->open) b->score_open[j] = score;
        else a->score[at] = score;
        if (j >= b->open) memcpy(a->u + at * r, w->u + j * r, (size_t)r * sizeof(real));
    }
}

/* a value head of a segment's block: blocks are numbered across all segments */
static void forward_task(void *ctx, int64_t i, int worker) {
    const struct job *f = ctx;
    const struct hl_lte *a = f->a;
    const int64_t h = i % a->HV;
    int64_t block = i / a->HV, n = 0;
    while (block >= hl_seg_blocks(&a->rows->seg[n], a->chunk)) block -= hl_seg_blocks(&a->rows->seg[n++], a->chunk);
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t first = (s->pos / a->chunk + block) * a->chunk - s->pos;
    if (first + a->chunk <= s->len) {
        const struct block b = block_of(a, s, first, h);
        const struct work w = worker_of(f->pool, worker, a);
        score_block(&b, &w);
        return;
    }
    for (int64_t t = first > 0 ? first : 0; t < s->len; t++) a->score[(s->row + t) * a->HV + h] = 0;
}
static void all_tasks(void *ctx, int64_t tasks, int worker) {
    for (int64_t i = 0; i < tasks; i++) forward_task(ctx, i, worker);
}

void HL_OP(lte_forward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct job f = {hl_backend_pool(backend), a};
    const int64_t tasks = hl_blocks_before(a->rows, a->rows->n, a->chunk) * a->HV;
    bool any = false;
    for (const struct hl_seg *s = a->rows->seg; s < a->rows->seg + a->rows->n; s++)
        any = any || s->pos / a->chunk < (s->pos + s->len) / a->chunk;
    if (any) hl_pool_run(f.pool, tasks, forward_task, &f);
    else all_tasks(&f, tasks, 0); /* no block is complete: write zeros only */
}

/* ---- backward ---- */

/* dy becomes dpre; the gradients of weights and bias; dx, written */
static void convolve_backward(const struct hl_lte *a, const real *w, const real *x, const real *pre, real *dy, real *dw,
                              real *dbias, real *dx) {
    const int64_t r = a->r, C = a->chunk, n = C * r;
    for (int64_t i = 0; i < n; i += VL) {
        const vr z = v_load(pre + i), s = 1 / (1 + v_exp(-z));
        v_store(dy + i, v_load(dy + i) * s * (1 + z * (1 - s)));
    }
    memset(dx, 0, (size_t)n * sizeof(real));
    for (int64_t j = 0; j < C; j++) {
        const real *d = dy + j * r;
        for (int64_t c = 0; c < r; c++) dbias[c] += d[c];
        for (int64_t i = -1; i <= 1; i++) {
            if (j + 2 * i < 0 || j + 2 * i >= C) continue;
            const real *from = x + (j + 2 * i) * r;
            real *to = dx + (j + 2 * i) * r;
            for (int64_t c = 0; c < r; c++) dw[c * 3 + i + 1] += d[c] * from[c];
            for (int64_t c = 0; c < r; c++) to[c] += d[c] * w[c * 3 + i + 1];
        }
    }
}

/* du, times the norm of v where v is concerned, to the gradients of W_in, k and v */
static void input_backward(const struct block *b, const struct work *w, real *du) {
    const struct hl_lte *a = b->a;
    const int64_t r = a->r, D = a->K + a->V, C = a->chunk, ldk = a->H * a->K, ldv = a->HV * a->V;
    const real *W = a->w_in + b->h * r * D, *v = (const real *)a->v + (b->row * a->HV + b->h) * a->V;
    real *dW = a->dw_in + b->h * r * D, *dv = (real *)a->dv + (b->row * a->HV + b->h) * a->V;
    struct hl_small_gemm p = {.M = r, .K = C, .A = du, .ai = 1, .ak = r, .bn = 1, .ldc = D, .alpha = 1, .add = true};
    struct hl_small_gemm dx = {.M = C, .K = r, .A = du, .ai = r, .ak = 1, .bk = D, .bn = 1, .alpha = 1};
    p.N = a->K, p.B = (const real *)a->k + (b->row * a->H + b->hk) * a->K, p.bk = ldk, p.C = dW;
    HL_OP(small_gemm)(&p, w->mm);
    dx.N = a->K, dx.B = W, dx.C = (real *)a->dk + (b->row * a->H + b->hk) * a->K, dx.ldc = ldk, dx.add = true;
    HL_OP(small_gemm)(&dx, w->mm);
    dx.N = a->V, dx.B = W + a->K, dx.C = w->rows, dx.ldc = a->V, dx.add = false;
    HL_OP(small_gemm)(&dx, w->mm);
    for (int64_t j = 0; j < C; j++) { /* dv = norm (dx - xh mean(xh dx)), xh = norm v */
        const real norm = w->norm[j], *x = v + j * ldv, *d = w->rows + j * a->V;
        real along = 0;
        for (int64_t i = 0; i < a->V; i++) along += d[i] * x[i];
        along *= norm * norm / (real)a->V;
        for (int64_t i = 0; i < a->V; i++) dv[j * ldv + i] += norm * (d[i] - x[i] * along);
        for (int64_t c = 0; c < r; c++) du[j * r + c] *= norm;
    }
    p.N = a->V, p.B = v, p.bk = ldv, p.C = dW + a->K;
    HL_OP(small_gemm)(&p, w->mm);
}

static void backward_block(const struct block *b, const struct work *w) {
    const struct hl_lte *a = b->a;
    const int64_t r = a->r, at = b->h * r;
    for (int64_t j = 0; j < a->chunk; j++) {
        const int64_t row = (b->row + j) * a->HV + b->h;
        const real *v = (const real *)a->v + row * a->V;
        memcpy(w->u + j * r, a->u + row * r, (size_t)r * sizeof(real));
        w->norm[j] = 1 / R_SQRT(sum_squares(v, a->V) / (real)a->V + a->eps);
    }
    layers(b, w);
    for (int64_t j = 0; j < a->chunk; j++) {
        const real dscore = a->dscore[(b->row + j) * a->HV + b->h];
        a->db_out[b->h] += dscore;
        for (int64_t c = 0; c < r; c++) {
            a->dw_out[at + c] += dscore * w->act_c[j * r + c];
            w->d[j * r + c] = dscore * a->w_out[at + c];
        }
    }
    convolve_backward(a, a->conv2 + 3 * at, w->act_a, w->pre_c, w->d, a->dconv2 + 3 * at, a->dbias2 + at, w->other);
    convolve_backward(a, a->conv1 + 3 * at, w->u, w->pre_a, w->other, a->dconv1 + 3 * at, a->dbias1 + at, w->d);
    input_backward(b, w, w->d);
}

static void backward_task(void *ctx, int64_t hk, int worker) {
    const struct job *f = ctx;
    const struct hl_lte *a = f->a;
    const struct work w = worker_of(f->pool, worker, a);
    const int64_t rep = a->HV / a->H;
    for (const struct hl_seg *s = a->rows->seg; s < a->rows->seg + a->rows->n; s++)
        for (int64_t first = 0; first + a->chunk <= s->len; first += a->chunk)
            for (int64_t h = hk * rep; h < (hk + 1) * rep; h++) {
                const struct block b = block_of(a, s, first, h);
                backward_block(&b, &w);
            }
}

void HL_OP(lte_backward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct job f = {hl_backend_pool(backend), a};
    for (int64_t n = 0; n < a->rows->n; n++) HL_ASSERT(!a->rows->seg[n].state && a->rows->seg[n].pos == 0);
    hl_pool_run(f.pool, a->H, backward_task, &f);
}
