/* cache_measure_cuda.cu -- selection by scores measured against the state (HL_SCORE_RECALL): first the scores of each
 * block's own rows, all blocks at once; then the blocks in order, since kept rows are measured again at the end of
 * each.
 *
 *   measure_own      grid (blocks HV, tiles of ROWS rows): own rows of blocks that their segment completes, with `kept`
 *                    also the rows in the state (single tokens, which no other kernel handles). Rows of
 *                    other blocks get 0.
 *   select_measured  grid (n HV): a thread block processes the blocks of one value head. Shared memory: the selector,
 *                    then that of `measure`.
 *   store_factors    grid (n HV): the factors of the rows that a session keeps.
 * THREADS threads each. Scores are stored with the row: a.recall for a row of the batch, or the state. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/cache/cache_distinct_cuda.cuh"
#include "ops/cache/cache_measure_cuda.cuh"

enum { THREADS = 256, ROWS = 64 };

static __device__ __forceinline__ void put_score(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                 int64_t id, float score) {
    if (id < 0) m.score[-1 - id] = score;
    else c.a.recall[id * c.a.HV + h] = score;
}

static __global__ void __launch_bounds__(THREADS) measure_own(const struct cache_dev c, bool kept) {
    __shared__ int32_t id[MEASURED];
    __shared__ float score[MEASURED];
    const int64_t block = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV;
    const int w = (int)c.a.window, C = (int)c.a.chunk;
    pdl_wait(), pdl_trigger();
    const struct hl_dev_span p = c.rows.block[block];
    const struct hl_seg s = c.rows.seg[p.seg];
    struct cache_slots m = {};
    if (s.state) m = cache_slots_of(c, s, h);
    const int before = kept ? (int)kept_at(c, s.pos) : 0, from = blockIdx.y * ROWS, end = min(from + ROWS, before + C);
    const float *S = p.skip + p.len == C ? state_after(c, p, block, h) : NULL;
    if (!S) { /* own rows without a score */
        for (int i = from + threadIdx.x; i < end; i += THREADS)
            if (i - before >= p.skip && i - before < p.skip + p.len)
                put_score(c, m, h, p.row + i - before - p.skip, 0.0f);
        return;
    }
    for (int i = from; i < end; i += MEASURED) {
        const int n = min((int)MEASURED, end - i);
        __syncthreads();
        if ((int)threadIdx.x < n) {
            const int j = i + threadIdx.x, own = j - before;
            id[threadIdx.x] = j < before ? -1 - j : own < p.skip ? -1 - (w + own) : p.row + own - p.skip;
        }
        __syncthreads();
        measure(c, m, h, id, n, S, shared_memory(), score);
        if ((int)threadIdx.x < n) put_score(c, m, h, id[threadIdx.x], score[threadIdx.x]);
    }
}

static __global__ void __launch_bounds__(THREADS) select_measured(const struct cache_dev c, int64_t selector) {
    __shared__ float score[MEASURED];
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, at = c.a.K + c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    const struct selector s = selector_at(c, shared_memory());
    const int w = (int)c.a.window, C = (int)c.a.chunk, last = c.rows.block_first[n + 1];
    struct cache_slots m = {};
    int kept = 0;
    pdl_wait(), pdl_trigger(); /* readers start with rows that are not selected here */
    if (seg.state) {
        m = cache_slots_of(c, seg, h);
        kept = (int)kept_at(c, seg.pos);
        for (int i = threadIdx.x; i < kept; i += THREADS) s.id[i] = -1 - i;
        __syncthreads();
    }
    for (int b = c.rows.block_first[n]; b < last; b++) {
        const struct hl_dev_span p = c.rows.block[b];
        write_kept(c, s, b * c.a.HV + h, kept);
        const float *S = p.skip + p.len == C ? state_after(c, p, b, h) : NULL;
        if (!S) break;
        for (int i = 0; i < kept; i += MEASURED) {
            const int rows = min((int)MEASURED, kept - i);
            measure(c, m, h, s.id + i, rows, S, shared_memory() + selector, score);
            if ((int)threadIdx.x < rows) put_score(c, m, h, s.id[i + threadIdx.x], score[threadIdx.x]);
            if ((int)threadIdx.x < rows) s.key[i + threadIdx.x] = rank_of(score[threadIdx.x]);
        }
        for (int x = threadIdx.x; x < C; x += THREADS) {
            const int64_t id = x < p.skip ? -1 - (w + x) : p.row + x - p.skip;
            s.id[kept + x] = (int32_t)id;
            s.key[kept + x] = rank_of(column(c, m, h, id, at));
        }
        kept = select_rows(c, m, h, s, kept, kept + C, w);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < kept && seg.state; i += THREADS) c.kept_after[(n * c.a.HV + h) * w + i] = s.id[i];
}

/* Before `store`, which moves the rest of the rows. */
static __global__ void __launch_bounds__(32) store_factors(const struct cache_dev c) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, w = c.a.window, C = c.a.chunk;
    const struct hl_seg seg = c.rows.seg[n];
    if (!seg.state) return;
    const struct cache_slots m = cache_slots_of(c, seg, h);
    const struct hl_dev_span p = c.rows.block[c.rows.block_first[n + 1] - 1];
    const int64_t open = (seg.pos + seg.len) % C;
    const int32_t *id = c.kept_after + (n * c.a.HV + h) * w;
    const int kept = seg.pos / C < (seg.pos + seg.len) / C ? (int)kept_at(c, seg.pos + seg.len) : 0;
    for (int i = 0; i < kept; i += 32) { /* rows only move to lower slots: loads first, then stores */
        const int j = i + threadIdx.x;
        const float f = j < kept ? factor_of(c, m, h, id[j]) : 0.0f;
        __syncwarp();
        if (j < kept) m.factor[j] = f;
        __syncwarp();
    }
    for (int64_t i = p.skip + threadIdx.x; i < open; i += 32) m.factor[w + i] = factor_of(c, m, h, p.row + i - p.skip);
}

static void launch_own(struct hl_cuda *cuda, const struct cache_dev *c, bool kept) {
    const int64_t rows = c->a.chunk + (kept ? c->a.window : 0);
    launch_pdl(cuda, measure_own, dim3((unsigned)(c->rows.blocks * c->a.HV), blocks_for(rows, ROWS)), THREADS,
               (size_t)measure_bytes(&c->a), *c, kept);
}
void HL_OP(cache_measure_step)(struct hl_cuda *cuda, const struct cache_dev *c) { launch_own(cuda, c, true); }
void HL_OP(cache_select_measured)(struct hl_cuda *cuda, const struct cache_dev *c) {
    const int64_t selector = selector_bytes(&c->a);
    launch_own(cuda, c, false);
    if (c->a.window > 0)
        launch_pdl(cuda, select_measured, (unsigned)(c->a.rows->n * c->a.HV), THREADS,
                   (size_t)(selector + measure_bytes(&c->a)), *c, selector);
}
void HL_OP(cache_store_factors)(struct hl_cuda *cuda, const struct cache_dev *c) {
    launch(cuda, store_factors, (unsigned)(c->a.rows->n * c->a.HV), 32, 0, *c);
}
