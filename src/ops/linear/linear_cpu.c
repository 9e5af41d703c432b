/* linear_cpu.c -- linear layers, forward and backward, as a list of products split into blocks.
 *
 * A task owns one block of one product's C. For each piece of k it packs the block's columns of B into panels, which
 * stay in L2 (stored panels are read in place), then runs strips of A, which stay in L1, past all of them. The split
 * depends on the shape and the number of threads; the bits of C depend on neither (kernel.h). */
#include "ops/linear/bf16.h"
#include "ops/linear/quant_dot.h"
#include <string.h>

enum {
    SERIAL_FLOPS = 50000,   /* less than this is not worth waking threads */
    STRIP_BYTES = 32 * 1024 /* of x quantised for all parts: on the stack */
};

struct term { /* C (= or +=) A B over K */
    const real *A;
    int64_t ai, ak; /* A(i, k) = A[i*ai + k*ak], one of them 1 */
    const void *B;
    enum { B_ROWS, B_COLUMNS, B_PANELS, B_QUANT } form; /* B(k, n) = B[n*bs + k], B[k*bs + n], or panels */
    const void *strip; /* few rows: A as codes (B_QUANT), or packed for all tasks at once (B_PANELS) */
    hola_dtype dtype;  /* of panels */
    int64_t bs, K;
    bool bf16; /* operands are rounded to BF16 */
};
struct product { /* C[M][N] (= or +=) the sum of its terms, in order */
    int64_t M, N;
    real *C;
    bool add;
    int terms;
    struct term term[HL_LINEAR_MAX];
    int64_t mc, nc, row_blocks, tasks; /* the split */
};
struct job {
    struct hl_pool *pool;
    int n;
    int64_t tasks;
    struct product product[HL_LINEAR_MAX + 1];
};

static int64_t dtype_size(hola_dtype t) { return t == HOLA_F32 ? 4 : 2; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/* ---- one block ---- */

struct panels { /* one piece of one term: panel j at B + j * step bytes */
    const char *B;
    int64_t step;
    hola_dtype dtype;
};

/* Columns n0..n0+n of B, rows k..k+kc: in place, or packed into scratch. */
static struct panels find_panels(const struct term *t, int64_t n0, int64_t n, int64_t k, int64_t kc, real *scratch) {
    struct panels p = {(const char *)scratch, kc * HL_PANEL * (int64_t)sizeof(real), HOLA_F32};
    if (t->form == B_COLUMNS) {
        HL_OP(pack_copy)(scratch, HL_PANEL, (const real *)t->B + k * t->bs + n0, t->bs, n, HL_PANEL, kc);
    } else if (t->form == B_ROWS) {
        for (int64_t j = 0; j < n; j += HL_PANEL) {
            const real *W = (const real *)t->B + (n0 + j) * t->bs + k;
            HL_OP(pack_transpose)(scratch + j * kc, HL_PANEL, W, t->bs, min64(n - j, HL_PANEL), HL_PANEL, kc);
        }
    } else {
        int64_t size = dtype_size(t->dtype), step = t->K * HL_PANEL * size;
        const char *stored = (const char *)t->B + n0 / HL_PANEL * step + k * HL_PANEL * size;
        if (t->dtype == HOLA_F32 && sizeof(real) == sizeof(float)) return (struct panels){stored, step, t->dtype};
        for (int64_t j = 0; j < n; j += HL_PANEL, stored += step)
            HL_OP(convert)(scratch + j * kc, stored, t->dtype, kc * HL_PANEL);
    }
    return p;
}

/* Columns k..k+kc of m rows of A, as strips. */
static void pack_strips(real *strips, const struct term *t, int64_t i0, int64_t m, int64_t k, int64_t kc) {
    const real *A = t->A + i0 * t->ai + k * t->ak;
    if (t->ak == 1)
        for (int64_t i = 0; i < m; i += HL_MR, strips += HL_AS * kc, A += HL_MR * t->ai)
            HL_OP(pack_transpose)(strips, HL_AS, A, t->ai, min64(m - i, HL_MR), min64(m - i, HL_MR), kc);
    else HL_OP(pack_copy)(strips, HL_AS, A, t->ak, m, HL_MR, kc);
}

/* Rows [0, m) of A times columns [n0, n0 + n) of B, over k..k+kc. strips: of these rows, from k on, `next` apart; NULL:
 * packed here. */
struct piece {
    const struct term *t;
    int64_t m0, m, n0, n, k;
    const real *strips;
    int64_t next;
    real *C; /* at m0, n0 */
    int64_t ldc;
    bool add;
};
static void run_piece(const struct piece *p, real *scratch) {
    const struct term *t = p->t;
    const int64_t kc = min64(t->K - p->k, HL_KC), m = p->m;
    int64_t group = t->ak == 1 ? HL_MR : HL_STRIPS / HL_AS * HL_MR; /* rows packed at a time */
    struct panels panels = find_panels(t, p->n0, p->n, p->k, kc, scratch);
    real *own = scratch + HL_BLOCK * HL_KC;
    struct hl_tile tile = {.kc = kc, .ldc = p->ldc, .alpha = 1, .add = p->add};
    tile.as = HL_AS;
    tile.bs = HL_PANEL;
    tile.dtype = panels.dtype;
    for (int64_t i = 0; i < m; i += HL_MR) {
        int64_t in = i % group;
        if (!p->strips && in == 0) pack_strips(own, t, p->m0 + i, min64(m - i, group), p->k, kc);
        tile.mr = (int)min64(m - i, HL_MR);
        tile.A = p->strips ? p->strips + i / HL_MR * p->next : own + in / HL_MR * HL_AS * kc;
        for (int64_t j = 0; j < p->n; j += HL_PANEL) {
            tile.B = panels.B + j / HL_PANEL * panels.step;
            tile.n = (int)min64(p->n - j, HL_PANEL);
            tile.C = p->C + i * p->ldc + j;
            HL_OP(tile)(&tile);
        }
    }
}

/* Small M with stored panels: decoding. Each panel is read once, sequentially, and bf16 and f16 are converted in
 * registers; the strips of all pieces of K are packed beforehand. */
static bool small_m(const struct product *p) {
    const struct term *t = &p->term[0];
    if (t->form == B_QUANT) return p->M <= HL_DOT_ROWS;
    if (t->bf16) return t->form == B_PANELS && p->M <= HL_MR;
    int64_t strips = hl_pieces(p->M, HL_MR);
    return t->form == B_PANELS && strips <= 2 && strips * HL_AS * t->K <= HL_BLOCK_SCRATCH &&
           (t->dtype != HOLA_F32 || sizeof(real) == sizeof(float));
}
static void run_small_m(const struct product *p, int64_t n0, real *strips) {
    const struct term *t = &p->term[0];
    bool row = p->M == 1, packed = row || t->strip; /* a single row is its own strip */
    int64_t end = min64(p->N, n0 + p->nc), size = dtype_size(t->dtype);
    int64_t as = hl_pieces(p->M, HL_MR) * HL_AS; /* of all strips together */
    struct hl_tile tile = {.as = row ? 1 : HL_AS, .bs = HL_PANEL, .dtype = t->dtype, .ldc = p->N, .alpha = 1};
    for (int64_t k = 0; k < t->K && !packed; k += HL_KC)
        pack_strips(strips + as * k, t, 0, p->M, k, min64(t->K - k, HL_KC));
    for (; row && n0 + HL_ROW_PANELS * HL_PANEL <= end; n0 += HL_ROW_PANELS * HL_PANEL) {
        const struct hl_one_row r = {.x = t->A,
                                     .B = (const char *)t->B + n0 * t->K * size,
                                     .dtype = t->dtype,
                                     .K = t->K,
                                     .step = HL_PANEL * t->K * size,
                                     .C = p->C + n0,
                                     .add = p->add};
        HL_OP(one_row)(&r);
    }
    for (int64_t j = n0; j < end; j += HL_PANEL)
        for (int64_t k = 0; k < t->K; k += HL_KC) {
            tile.B = (const char *)t->B + (j / HL_PANEL * t->K + k) * HL_PANEL * size;
            tile.n = (int)min64(end - j, HL_PANEL);
            tile.kc = min64(t->K - k, HL_KC);
            tile.add = p->add || k > 0;
            for (int64_t i = 0; i < p->M; i += HL_MR) {
                tile.mr = (int)min64(p->M - i, HL_MR);
                tile.A = row ? t->A + k : strips + as * k + i / HL_MR * HL_AS * tile.kc;
                tile.C = p->C + i * p->N + j;
                HL_OP(tile)(&tile);
            }
        }
}

/* Quantised weights: integer dot products, for any number of rows. */
static void run_quant(const struct piece *p, real *scratch) {
    const struct hl_dot_block b = {.dtype = p->t->dtype,
                                   .panels = p->t->B,
                                   .x = p->t->A + p->m0 * p->t->ai,
                                   .xs = p->t->ai,
                                   .strip = p->t->strip,
                                   .K = p->t->K,
                                   .n0 = p->n0,
                                   .n = p->n,
                                   .m = p->m,
                                   .C = p->C,
                                   .ldc = p->ldc,
                                   .add = p->add};
    HL_OP(dot_block)(&b, scratch, hl_linear_scratch());
}

/* All of a term with BF16 operands. */
static void run_bf16(const struct piece *p, real *scratch) {
#ifdef HL_DOUBLE
    HL_ASSERT(!p && !scratch);
#else
    const struct term *t = p->t;
    const struct hl_bf16_block b = {.A = t->A + p->m0 * t->ai,
                                    .ai = t->ai,
                                    .ak = t->ak,
                                    .B = t->B,
                                    .form = t->form == B_ROWS      ? HL_BF16_ROWS
                                            : t->form == B_COLUMNS ? HL_BF16_COLUMNS
                                                                   : HL_BF16_PANELS,
                                    .dtype = t->dtype,
                                    .bs = t->bs,
                                    .K = t->K,
                                    .n0 = p->n0,
                                    .n = p->n,
                                    .m = p->m,
                                    .C = p->C,
                                    .ldc = p->ldc,
                                    .add = p->add};
    HL_OP(bf16_block)(&b, scratch);
#endif
}
/* Double precision is for testing formulas: there is no rounding of operands. */
static bool in_bf16(const struct hl_weight *W) {
    return sizeof(real) == sizeof(float) && W->precision == HOLA_PRECISION_BF16;
}

static void task(void *ctx, int64_t i, int worker) {
    struct job *job = ctx;
    const struct product *p = job->product;
    real *scratch = hl_pool_scratch(job->pool, worker, hl_linear_scratch());
    int64_t m0, n0;
    for (; i >= p->tasks; p++) i -= p->tasks;
    m0 = i % p->row_blocks * p->mc; /* neighbouring tasks share columns: B comes from the shared cache */
    n0 = i / p->row_blocks * p->nc;
    struct piece piece = {.t = p->term,
                          .m0 = m0,
                          .m = min64(p->M - m0, p->mc),
                          .n0 = n0,
                          .n = min64(p->N - n0, p->nc),
                          .C = p->C + m0 * p->N + n0,
                          .ldc = p->N,
                          .add = p->add};
    if (p->term[0].form == B_QUANT) {
        run_quant(&piece, scratch);
        return;
    }
    if (small_m(p) && !p->term[0].bf16) {
        run_small_m(p, n0, p->term[0].strip ? (real *)(uintptr_t)p->term[0].strip : scratch);
        return;
    }
    for (int t = 0; t < p->terms; t++, piece.add = true)
        if (p->term[t].bf16) piece.t = &p->term[t], run_bf16(&piece, scratch);
        else
            for (piece.t = &p->term[t], piece.k = 0; piece.k < p->term[t].K; piece.k += HL_KC, piece.add = true)
                run_piece(&piece, scratch);
}

static void all_tasks(void *ctx, int64_t i, int worker) {
    struct job *job = ctx;
    for (i = 0; i < job->tasks; i++) task(ctx, i, worker);
}

/* ---- splitting ---- */

static int64_t depth(const struct product *p) {
    int64_t k = 0;
    for (int t = 0; t < p->terms; t++) k += p->term[t].K;
    return k;
}

/* Chooses the blocks with the least estimated time, in cycles of a wide vector unit: tiles, packing, and task start; at
 * the end, on average half a task runs alone. */
static void cut(struct product *p, int threads) {
    double best = 1e300, K = (double)depth(p);
    int64_t panels = hl_pieces(p->N, HL_PANEL), least = hl_pieces(p->N, HL_BLOCK);
    for (int64_t rb = 1; rb <= max64(1, p->M / 48) && rb <= 8 * threads; rb += 1 + rb / 8)
        for (int64_t cb = least; cb <= panels && cb <= 8 * threads + least; cb += 1 + cb / 4) {
            int64_t mc = round_up(hl_pieces(p->M, rb), 12), nc = hl_pieces(panels, cb) * HL_PANEL;
            int64_t rounds = hl_pieces(hl_pieces(p->M, mc) * hl_pieces(p->N, nc), threads);
            double tiles = (double)nc * (double)mc / 16, packing = 0.8 * (double)(mc + nc);
            double time = (K * (tiles + packing) + 1000) * ((double)rounds + 0.5 * (threads - 1) / threads);
            if (time >= best) continue;
            best = time;
            p->mc = mc;
            p->nc = nc;
        }
}
/* Decoding is bound by memory, not by tiles, and has no time for a search. */
static void cut_small_m(struct product *p, int threads) {
    int64_t panels = hl_pieces(p->N, HL_PANEL);
    p->mc = p->M;
    /* a task on quantised weights may have to quantise x itself: use fewer tasks */
    const int64_t tasks = (p->term[0].form == B_QUANT && !p->term[0].strip ? 4 : 8) * threads;
    int64_t each = max64(hl_pieces(panels, tasks), hl_pieces(512, p->term[0].K));
    if (p->M == 1 && p->term[0].form == B_PANELS && panels >= 2 * HL_ROW_PANELS * threads)
        each = round_up(each, HL_ROW_PANELS);
    p->nc = each * HL_PANEL;
}

static void run(struct job *job) {
    double flops = 0;
    job->tasks = 0;
    for (int i = 0; i < job->n; i++) {
        struct product *p = &job->product[i];
        (small_m(p) ? cut_small_m : cut)(p, hl_pool_threads(job->pool));
        p->row_blocks = hl_pieces(p->M, p->mc);
        p->tasks = p->row_blocks * hl_pieces(p->N, p->nc);
        job->tasks += p->tasks;
        flops += 2 * (double)p->M * (double)p->N * (double)depth(p);
    }
    if (flops < SERIAL_FLOPS) hl_pool_run(job->pool, 1, all_tasks, job);
    else hl_pool_run(job->pool, job->tasks, task, job);
}

/* ---- the op ---- */

static struct term forward_term(const real *x, const struct hl_weight *W, int64_t K) {
    return (struct term){.A = x,
                         .ai = K,
                         .ak = 1,
                         .B = W->data,
                         .form = W->layout != HL_PANELS  ? B_ROWS
                                 : hl_is_quant(W->dtype) ? B_QUANT
                                                         : B_PANELS,
                         .dtype = W->dtype,
                         .bs = K,
                         .K = K,
                         .bf16 = in_bf16(W)};
}

void HL_OP(linear_strips)(real *dst, const real *x, int64_t M, int64_t K) {
    const struct term t = {.A = x, .ai = K, .ak = 1};
    for (int64_t i = 0; i < M; i += HL_MR)
        for (int64_t k = 0; k < K; k += HL_KC)
            pack_strips(dst + i / HL_MR * HL_AS * K + k * HL_AS, &t, i, min64(M - i, HL_MR), k, min64(K - k, HL_KC));
}

void HL_OP(linear_block)(const struct hl_linear_block *b, real *scratch) {
    const struct term t = forward_term(b->x, &b->W, b->K);
    struct piece p = {.t = &t, .m = b->M, .n0 = b->n0, .n = b->n, .next = HL_AS * b->K, .C = b->C, .ldc = b->ldc};
    if (t.form == B_QUANT || t.bf16) {
        (t.form == B_QUANT ? run_quant : run_bf16)(&p, scratch);
        return;
    }
    for (; p.k < b->K; p.k += HL_KC, p.add = true) {
        p.strips = b->strips ? b->strips + p.k * HL_AS : NULL;
        run_piece(&p, scratch);
    }
}

/* Few rows of x as the codes that a dtype needs, made once for all parts. */
struct strips {
    _Alignas(64) char made[2][STRIP_BYTES]; /* INT8, INT4 */
    enum { NOT_YET, FITS, TOO_LARGE } state[2];
};
static const void *strip_for(struct strips *s, hola_dtype dtype, const struct hl_linear *a) {
    const int i = dtype == HOLA_INT4;
    if (s->state[i] == NOT_YET)
        s->state[i] = HL_OP(dot_strip)(s->made[i], STRIP_BYTES, dtype, a->x, a->K, a->M, a->K) ? FITS : TOO_LARGE;
    return s->state[i] == FITS ? s->made[i] : NULL;
}

/* A few rows, as in decoding: packed once for all parts, where every task would do it again. The tasks of such a job
 * need no scratch, so that of the calling thread holds the strips. */
static void pack_once(struct job *job) {
    const struct term *t = &job->product[0].term[0];
    const int64_t M = job->product[0].M, as = hl_pieces(M, HL_MR) * HL_AS;
    if (job->n == 0 || M == 1) return;
    for (int i = 0; i < job->n; i++) {
        const struct product *p = &job->product[i];
        if (!small_m(p) || p->term[0].form == B_QUANT || p->term[0].bf16) return;
    }
    real *strips = hl_pool_scratch(job->pool, 0, hl_linear_scratch());
    for (int64_t k = 0; k < t->K; k += HL_KC) pack_strips(strips + as * k, t, 0, M, k, min64(t->K - k, HL_KC));
    for (int i = 0; i < job->n; i++) job->product[i].term[0].strip = strips;
}

void HL_OP(linear_forward)(struct hl_backend *backend, const struct hl_linear *a) {
    struct job job = {.pool = hl_backend_pool(backend)};
    struct strips strips;
    strips.state[0] = strips.state[1] = NOT_YET;
    HL_ASSERT(a->n <= HL_LINEAR_MAX && a->K > 0);
    for (int i = 0; i < a->n && a->M > 0; i++) {
        const struct hl_linear_part *part = &a->part[i];
        struct product *p = &job.product[job.n++];
        HL_ASSERT(part->W.cols == a->K && part->W.rows > 0);
        *p = (struct product){.M = a->M, .N = part->W.rows, .C = part->out, .add = part->from, .terms = 1};
        if (part->from && part->from != part->out) memcpy(part->out, part->from, (size_t)(p->M * p->N) * sizeof(real));
        p->term[0] = forward_term(a->x, &part->W, a->K);
        if (p->term[0].form == B_QUANT && small_m(p)) p->term[0].strip = strip_for(&strips, part->W.dtype, a);
    }
    pack_once(&job);
    run(&job);
}

void HL_OP(linear_backward)(struct hl_backend *backend, const struct hl_linear *a) {
    struct job job = {.pool = hl_backend_pool(backend)};
    struct product *dx = NULL;
    HL_ASSERT(a->n <= HL_LINEAR_MAX && a->K > 0);
    if (a->M == 0) return;
    if (a->dx) {
        dx = &job.product[job.n++];
        *dx = (struct product){.M = a->M, .N = a->K, .C = a->dx, .add = a->dx_add};
    }
    for (int i = 0; i < a->n; i++) {
        const struct hl_linear_part *part = &a->part[i];
        int64_t N = part->W.rows;
        const bool bf16 = in_bf16(&part->W);
        HL_ASSERT(part->W.cols == a->K && N > 0 && part->W.layout == HL_ROWS);
        if (dx)
            dx->term[dx->terms++] = (struct term){.A = part->dout,
                                                  .ai = N,
                                                  .ak = 1,
                                                  .B = part->W.data,
                                                  .form = B_COLUMNS,
                                                  .bs = a->K,
                                                  .K = N,
                                                  .bf16 = bf16};
        if (part->dW) {
            struct product *p = &job.product[job.n++];
            *p = (struct product){.M = N, .N = a->K, .C = part->dW, .add = true, .terms = 1};
            p->term[0] = (struct term){
                .A = part->dout, .ai = 1, .ak = N, .B = a->x, .form = B_COLUMNS, .bs = a->K, .K = a->M, .bf16 = bf16};
        }
    }
    run(&job);
}
