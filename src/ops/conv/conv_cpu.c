/* conv_cpu.c -- the short convolution with vectors of channels that walk down the rows.
 *
 * Each scan down the rows keeps the taps and the last W rows of its channels in registers, so every number is loaded
 * and stored once. Tasks are blocks of rows of the batch times slices of channels; a block loads the W-1 rows before
 * it, so a row's result does not depend on where blocks or segments are cut. In the backward pass a block also
 * recomputes du of the W-1 rows after it, and sums dw separately; the blocks are added in order at the end. */
#include "ops/ops.h"
#include "ops/simd.h"

enum {
    ROWS = 64,     /* rows of one block, at least */
    SLICE = 256,   /* channels of one task */
    TILE = 8,      /* rows that a vector of channels processes before the next vector */
    SMALL = 8192,  /* below this many elements, use one thread */
    PARTS = 32768, /* numbers in the partial sums of dw, which are on the stack */
};

struct blocks {
    const struct hl_conv *op;
    int64_t W;
    int64_t n, rows;        /* n blocks of `rows` rows */
    int64_t c0, c1, slices; /* channels [c0, c1) */
    real *part;             /* [n][W][c1-c0] */
};

/* One task: rows [t, end) and channels [c, c1). */
struct piece {
    int64_t block, t, end, c, c1;
};

/* The walks are written once for any W and compiled for W = 4 and full vectors, where the arrays of vectors below are
 * registers: only when everything is inlined. They use a local copy of the op's arguments, since the compiler must
 * assume that a stored vector may alias the original. */
#define INLINE static inline __attribute__((always_inline))

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static struct piece piece(const struct blocks *b, int64_t i) {
    struct piece p = {.block = i / b->slices};
    p.t = p.block * b->rows;
    p.end = least(p.t + b->rows, b->op->rows->T);
    p.c = b->c0 + i % b->slices * SLICE;
    p.c1 = least(p.c + SLICE, b->c1);
    return p;
}

static void run(struct hl_pool *pool, struct blocks *b, hl_task task) {
    b->slices = hl_pieces(b->c1 - b->c0, SLICE);
    if (b->op->rows->T * (b->c1 - b->c0) > SMALL) hl_pool_run(pool, b->n * b->slices, task, b);
    else
        for (int64_t i = 0; i < b->n * b->slices; i++) task(b, i, 0);
}

/* The segment that contains row t; segments are contiguous. */
static const struct hl_seg *segment(const struct hl_rows *rows, int64_t t) {
    int64_t lo = 0, hi = rows->n;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (rows->seg[mid].row <= t) lo = mid;
        else hi = mid;
    }
    return &rows->seg[lo];
}

static inline vr get(const real *p, int64_t n) { return n == VL ? v_load(p) : v_load_n(p, n); }
static inline void put(real *p, vr x, int64_t n) {
    if (n == VL) v_store(p, x);
    else v_store_n(p, x, n);
}

/* The taps of channels [p->c, p->c1), tap by tap: taps[W][SLICE]. Without weights there is one, 1. */
INLINE void load_taps(const struct hl_conv *a, int64_t W, const struct piece *p, real *taps) {
    const int64_t width = p->c1 - p->c;
    if (!a->w) {
        for (int64_t k = 0; k < width; k++) taps[k] = 1;
        return;
    }
    const real *w = a->w + p->c * W;
    for (int64_t k = 0; k < width; k++)
        for (int64_t i = 0; i < W; i++) taps[i * SLICE + k] = w[k * W + i];
}

/* Points h[0 .. W-2] at the rows before row t of segment s, from channel c on. Backward also asks for
 * rows past the end of the segment. */
static void rows_before(const struct hl_conv *a, const struct hl_seg *s, int64_t W, int64_t t, int64_t c,
                        const real **h) {
    static const real zeros[SLICE];
    for (int64_t i = 0; i < W - 1; i++) {
        int64_t row = t - W + 1 + i - s->row; /* in the segment */
        h[i] = zeros;
        if (row >= 0 && row < s->len) h[i] = (const real *)a->x + (s->row + row) * a->C + c;
        else if (row < 0 && s->state && s->pos > 0)
            h[i] = (const real *)(s->state + a->tail_off) + (row + W - 1) * a->C + c;
    }
}

/* Prefetches the next tile. Its rows are too short and too many for the hardware prefetcher. */
INLINE void fetch(const void *x, const struct hl_conv *a, const struct piece *p, int64_t t, int64_t k) {
    if (t + TILE < a->rows->T) __builtin_prefetch((const real *)x + (t + TILE) * a->C + p->c + k);
}

/* From 0, so that there is only one way to contract the products into FMAs. */
INLINE vr convolve(const vr *w, const vr *h, int64_t W) {
    vr u = v_set(0);
    for (int64_t i = 0; i < W; i++) u += w[i] * h[i];
    return u;
}

INLINE void shift(vr *h, int64_t W) {
    for (int64_t i = 0; i < W - 1; i++) h[i] = h[i + 1];
}

/* ---- forward ---- */

/* Rows [t, end) of n channels, the k-th of slice p and those after it. */
INLINE void walk(const struct hl_conv *a, int64_t W, const struct piece *p, const real *taps, const real *const *before,
                 int64_t t, int64_t end, int64_t k, int64_t n) {
    vr w[HL_CONV_MAX], h[HL_CONV_MAX];
    for (int64_t i = 0; i < W; i++) w[i] = get(taps + i * SLICE + k, n);
    for (int64_t i = 0; i < W - 1; i++) h[i] = get(before[i] + k, n);
    for (; t < end; t++) {
        h[W - 1] = get((const real *)a->x + t * a->C + p->c + k, n);
        fetch(a->x, a, p, t, k);
        vr u = convolve(w, h, W);
        put((real *)a->y + t * a->C + p->c + k, u * v_sigmoid(u), n);
        shift(h, W);
    }
}

INLINE void forward_rows(const struct hl_conv *op, int64_t W, const struct piece *p) {
    const struct hl_conv copy = *op, *a = &copy;
    const struct hl_seg *s = segment(a->rows, p->t);
    real taps[HL_CONV_MAX * SLICE];
    load_taps(a, W, p, taps);
    for (int64_t t = p->t, end; t < p->end; t = end) {
        const real *before[HL_CONV_MAX];
        int64_t k = 0;
        while (t >= s->row + s->len) s++;
        end = least(least(t + TILE, p->end), s->row + s->len);
        rows_before(a, s, W, t, p->c, before);
        for (; k + VL <= p->c1 - p->c; k += VL) walk(a, W, p, taps, before, t, end, k, VL);
        if (p->c + k < p->c1) walk(a, W, p, taps, before, t, end, k, p->c1 - p->c - k);
    }
}

static void forward_piece(void *ctx, int64_t i, int worker) {
    const struct blocks *b = ctx;
    const struct piece p = piece(b, i);
    (void)worker;
    if (b->W == 4) forward_rows(b->op, 4, &p);
    else forward_rows(b->op, b->W, &p);
}

/* Keeps the last W-1 rows of the sequence for the next segment. */
static void keep_tail(void *ctx, int64_t i, int worker) {
    const struct blocks *b = ctx;
    const struct hl_conv *a = b->op;
    const struct hl_seg *s = &a->rows->seg[i];
    const int64_t kept = s->len < b->W - 1 ? b->W - 1 - s->len : 0, fresh = b->W - 1 - kept, C = a->C;
    (void)worker;
    if (!s->state) return;
    real *tail = (real *)(s->state + a->tail_off);
    if (s->pos == 0) memset(tail, 0, (size_t)(kept * C) * sizeof(real));
    else memmove(tail, tail + s->len * C, (size_t)(kept * C) * sizeof(real));
    memcpy(tail + kept * C, (const real *)a->x + (s->row + s->len - fresh) * C, (size_t)(fresh * C) * sizeof(real));
}

void HL_OP(conv_forward)(struct hl_backend *backend, const struct hl_conv *a) {
    struct blocks b = {.op = a, .W = a->w ? a->W : 1, .n = hl_pieces(a->rows->T, ROWS), .rows = ROWS, .c1 = a->C};
    HL_ASSERT(b.W >= 1 && b.W <= HL_CONV_MAX);
    run(hl_backend_pool(backend), &b, forward_piece);
    if (b.W == 1) return;
    /* only now have all tasks read the old tails */
    if (a->rows->n * a->C > SMALL) hl_pool_run(hl_backend_pool(backend), a->rows->n, keep_tail, &b);
    else
        for (int64_t i = 0; i < a->rows->n; i++) keep_tail(&b, i, 0);
}

/* ---- backward ---- */

/* A slice's state along a segment. */
struct carry {
    real taps[HL_CONV_MAX * SLICE];
    real du[HL_CONV_MAX * SLICE]; /* of the last W-1 rows */
    const real *before[HL_CONV_MAX];
    int64_t begin, end, seg_end; /* rows of this task in the segment; end of the segment */
    real *dw;                    /* [W][stride], of this task */
    int64_t stride;
};

/* du of rows [t, stop) and dx of those W-1 rows earlier: only then are all inputs of dx known. Past the end of the
 * segment du is 0; rows past the task's end add nothing to its dw. */
INLINE void dwalk(const struct hl_conv *a, int64_t W, const struct piece *p, struct carry *y, int64_t t, int64_t stop,
                  int64_t k, int64_t n) {
    vr w[HL_CONV_MAX], back[HL_CONV_MAX], h[HL_CONV_MAX], d[HL_CONV_MAX], dw[HL_CONV_MAX];
    for (int64_t i = 0; i < W; i++) {
        w[i] = back[W - 1 - i] = get(y->taps + i * SLICE + k, n);
        dw[i] = get(y->dw + i * y->stride + k, n);
    }
    for (int64_t i = 0; i < W - 1; i++) {
        h[i] = get(y->before[i] + k, n);
        d[i] = get(y->du + i * SLICE + k, n);
    }
    for (; t < stop; t++) {
        h[W - 1] = d[W - 1] = v_set(0);
        if (t < y->seg_end) {
            fetch(a->x, a, p, t, k);
            fetch(a->dy, a, p, t, k);
            h[W - 1] = get((const real *)a->x + t * a->C + p->c + k, n);
            vr u = convolve(w, h, W), sg = v_sigmoid(u);
            d[W - 1] = get((const real *)a->dy + t * a->C + p->c + k, n) * sg * (1 + u * (1 - sg));
        }
        if (t < y->end)
            for (int64_t i = 0; i < W; i++) dw[i] += d[W - 1] * h[i];
        if (t - W + 1 >= y->begin) put((real *)a->dx + (t - W + 1) * a->C + p->c + k, convolve(back, d, W), n);
        shift(h, W);
        shift(d, W);
    }
    for (int64_t i = 0; i < W; i++) put(y->dw + i * y->stride + k, dw[i], n);
    for (int64_t i = 0; i < W - 1; i++) put(y->du + i * SLICE + k, d[i], n);
}

INLINE void backward_rows(const struct blocks *b, int64_t W, const struct piece *p) {
    const struct hl_conv copy = *b->op, *a = &copy;
    const struct hl_seg *s = segment(a->rows, p->t);
    const int64_t width = p->c1 - p->c;
    struct carry y = {.stride = b->c1 - b->c0, .end = p->t};
    y.dw = b->part + p->block * W * y.stride + p->c - b->c0;
    for (int64_t i = 0; i < W; i++) memset(y.dw + i * y.stride, 0, (size_t)width * sizeof(real));
    load_taps(a, W, p, y.taps);
    for (; y.end < p->end; s++) {
        HL_ASSERT(!s->state);
        y.begin = y.end;
        y.seg_end = s->row + s->len;
        y.end = least(p->end, y.seg_end);
        memset(y.du, 0, (size_t)((W - 1) * SLICE) * sizeof(real));
        for (int64_t t = y.begin, stop; t < y.end + W - 1; t = stop) {
            int64_t k = 0;
            stop = least(t + TILE, y.end + W - 1);
            rows_before(a, s, W, t, p->c, y.before);
            for (; k + VL <= width; k += VL) dwalk(a, W, p, &y, t, stop, k, VL);
            if (k < width) dwalk(a, W, p, &y, t, stop, k, width - k);
        }
    }
}

static void backward_piece(void *ctx, int64_t i, int worker) {
    const struct blocks *b = ctx;
    const struct piece p = piece(b, i);
    (void)worker;
    if (b->W == 4) backward_rows(b, 4, &p);
    else backward_rows(b, b->W, &p);
}

void HL_OP(conv_backward)(struct hl_backend *backend, const struct hl_conv *a) {
    struct blocks b = {.op = a, .W = a->w ? a->W : 1};
    real part[PARTS];
    HL_ASSERT(b.W >= 1 && b.W <= HL_CONV_MAX);
    if (a->rows->T == 0) return;
    b.part = part;
    for (; b.c0 < a->C; b.c0 = b.c1) {
        b.c1 = least(a->C, b.c0 + PARTS / HL_CONV_MAX);
        const int64_t size = b.W * (b.c1 - b.c0);
        b.n = least(hl_pieces(a->rows->T, ROWS), PARTS / size);
        b.rows = hl_pieces(hl_pieces(a->rows->T, b.n), ROWS) * ROWS;
        b.n = hl_pieces(a->rows->T, b.rows);
        run(hl_backend_pool(backend), &b, backward_piece);
        for (int64_t i = 0; a->w && i < b.n; i++)
            for (int64_t k = 0; k < b.W; k++)
                for (int64_t c = b.c0; c < b.c1; c++)
                    a->dw[c * b.W + k] += part[i * size + k * (b.c1 - b.c0) + c - b.c0];
    }
}
