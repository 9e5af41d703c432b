/* cache_cpu.c -- forward of the exact memory: tasks and their order.
 *
 * A task is one value head of one segment and a range of its blocks. The selection is sequential but
 * cheap, so a task repeats it from the segment's start instead of waiting for other tasks. Where scores
 * move with reads, the selection needs the reads, and where rows are measured against the state or compared with each
 * other, it is not cheap: one task does all blocks. The states of sessions are written in a second round, after all
 * reads. */
#include "ops/cache/cache_cpu.h"
#include "ops/simd.h"

enum {
    SHARES = 8,        /* most tasks per head of a segment */
    SMALL = 64 * 1024, /* below this many flops, waking threads costs more than it saves */
    FEW = HL_FEW,      /* up to this many tokens of a session, one at a time is faster than a tile */
    SCORE_ROWS = 256,
};
_Static_assert((int)FEW >= (int)HL_STEP_ROWS, "short passes have the bits of single steps");

struct forward {
    struct hl_pool *pool;
    const struct hl_cache *a;
    int64_t shares, tasks;
    bool reads, stores; /* phases of this round; only one share stores */
};

static void write_sel(const struct hl_cache_head *d, const struct hl_cache_selection *p, int64_t block) {
    int64_t *sel = d->a->sel + (block * d->a->HV + d->h) * d->a->window;
    for (int64_t j = 0; j < d->a->window; j++) sel[j] = j < p->n ? d->row + p->id[j] : -1;
}

/* Selects for all blocks of the segment up to b1; reads those in [b0, b1). `before`: number of blocks in earlier
 * segments. */
static void run_blocks(const struct forward *f, const struct hl_cache_head *d, struct hl_cache_work *w, int64_t before,
                       int64_t b0, int64_t b1) {
    const int64_t C = d->a->chunk;
    int64_t m = 0;
    hl_cache_select_start(&w->chosen, d);
    for (int64_t b = 0; b < b1; b++) {
        m = hl_cache_select_block(&w->chosen, d, b);
        if (b >= b0 && f->reads) {
            if (d->a->sel) write_sel(d, &w->chosen, before + b);
            HL_OP(cache_read)(d, w, b, m);
        }
        if (m < C) break;
        if (d->a->policy.score == HL_SCORE_RECALL) {
            const real *S = hl_cache_state_after(d, b);
            if (!S) return; /* the last block, in training */
            HL_OP(cache_measure)(d, w, S, m);
        }
        HL_OP(cache_merge)(d, w, m);
        m = 0;
    }
    if (f->stores && d->k) HL_OP(cache_store)(&w->chosen, d, m);
}

static bool by_steps(const struct hl_seg *s) { return s->state && s->len <= FEW; }

/* block: the first one's in block_S */
static void steps(const struct hl_cache *a, const struct hl_seg *s, int64_t h, struct hl_cache_work *w, int64_t block) {
    for (int64_t t = 0; t < s->len; t++) {
        struct hl_seg token = {.row = s->row + t, .len = 1, .pos = s->pos + t, .state = s->state};
        struct hl_cache_head d = hl_cache_head(a, &token, h);
        d.last = t + 1 == s->len;
        d.block = block + (s->pos + t) / a->chunk - s->pos / a->chunk;
        HL_OP(cache_step)(&d, w);
    }
}

static void forward_task(void *ctx, int64_t i, int worker) {
    const struct forward *f = ctx;
    const struct hl_cache *a = f->a;
    const int64_t share = i % f->shares, h = i / f->shares % a->HV, n = i / f->shares / a->HV;
    const struct hl_seg *s = &a->rows->seg[n];
    const int64_t before = a->sel || a->block_S ? hl_blocks_before(a->rows, n, a->chunk) : 0;
    struct hl_cache_work w = hl_cache_worker(f->pool, worker, a);
    if (by_steps(s)) {
        if (share == 0 && f->reads) steps(a, s, h, &w, before);
    } else {
        struct hl_cache_head d = hl_cache_head(a, s, h);
        d.block = before;
        int64_t blocks = hl_cache_blocks(&d), size = hl_pieces(blocks, f->shares), b0 = share * size;
        int64_t b1 = b0 + size < blocks ? b0 + size : blocks;
        if (b0 < b1) run_blocks(f, &d, &w, before, b0, b1);
    }
}
static void all_tasks(void *ctx, int64_t i, int worker) {
    for (i = 0; i < ((const struct forward *)ctx)->tasks; i++) forward_task(ctx, i, worker);
}

void HL_OP(cache_forward)(struct hl_backend *backend, const struct hl_cache *a) {
    struct forward f = {.pool = hl_backend_pool(backend), .a = a, .shares = 1, .reads = true};
    double flops = 0;
    const bool in_order = a->policy.moves_with_reads || a->policy.score == HL_SCORE_RECALL || a->policy.redundancy > 0;
    bool later = false;
    HL_ASSERT(a->HV % a->H == 0 && a->window >= 0 && a->chunk > 0);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        int64_t blocks = hl_seg_blocks(s, a->chunk), seen = s->pos + s->len;
        if (blocks > f.shares && !in_order && !by_steps(s)) f.shares = blocks;
        if (seen > a->window + a->chunk) seen = a->window + a->chunk;
        flops += 2.0 * (double)(s->len * seen) * (double)(a->HV * (a->K + a->V));
        later = later || (s->state && !by_steps(s));
    }
    if (f.shares > SHARES) f.shares = SHARES;
    f.tasks = a->rows->n * a->HV * f.shares;
    f.stores = f.shares == 1;
    if (flops < SMALL) hl_pool_run(hl_backend_pool(backend), 1, all_tasks, &f);
    else hl_pool_run(hl_backend_pool(backend), f.tasks, forward_task, &f);
    if (f.stores || !later) return;
    f.tasks = a->rows->n * a->HV;
    f.shares = 1;
    f.reads = false;
    f.stores = true;
    hl_pool_run(hl_backend_pool(backend), f.tasks, forward_task, &f);
}

struct score {
    const struct hl_score *a;
};
static void score_rows(void *ctx, int64_t piece, int worker) {
    const struct hl_score *a = ((const struct score *)ctx)->a;
    const int64_t first = piece * SCORE_ROWS, last = first + SCORE_ROWS < a->T ? first + SCORE_ROWS : a->T;
    int64_t i = first * a->HV, end = last * a->HV;
    (void)worker;
    if (a->policy.score == HL_SCORE_WRITE) memmove(a->score + i, a->m + i, (size_t)(end - i) * sizeof(real));
    for (; i < end && a->policy.score == HL_SCORE_RESIDUAL; i++) a->score[i] = a->m[i] / a->beta[i];
    for (; i < end && a->policy.score == HL_SCORE_VALUE; i++) {
        const real *v = (const real *)a->v + i * a->V;
        int64_t j = 0;
        vr sum = {0};
        for (; j + VL <= a->V; j += VL) sum += v_load(v + j) * v_load(v + j);
        if (j < a->V) sum += v_load_n(v + j, a->V - j) * v_load_n(v + j, a->V - j);
        a->score[i] = a->beta[i] * R_SQRT(v_sum(sum));
    }
    for (int64_t t = first; t < last && a->policy.layer_set; t++) hl_score_of_layer(a->score + t * a->HV, a->HV);
}

void HL_OP(cache_score)(struct hl_backend *backend, const struct hl_score *a) {
    struct score s = {a};
    hl_pool_run(hl_backend_pool(backend), hl_pieces(a->T, SCORE_ROWS), score_rows, &s);
}
