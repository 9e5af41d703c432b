/* cache_store_cuda.cu -- the exact memory: what a session keeps after a call of many rows, in bf16.
 *
 * A block of threads holds SLICE vectors of 16 bytes of every row of one value head: first the rows that become the kept
 * ones move, all read before any is written, then the rows of the open block are copied behind them. Slices share
 * nothing, so the kept rows can move in place. The last block has the scores and positions.
 * grid (n HV, slices of k and v + 1), THREADS threads. */
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"

enum { THREADS = 256, VECTOR = 16 / sizeof(act), SLICE = 4, ROWS = THREADS / SLICE /* at a time */, EACH = 4 };

/* One segment and value head. */
struct kept {
    const int32_t *id; /* [n]: what becomes the kept rows */
    int n;             /* 0: they stay as they are */
    int64_t own;       /* the batch's row of the open block's first new one */
    int skip, open;    /* the open block's rows: stored before, and all */
};

/* state: [window + chunk] rows of `width` numbers; batch: rows `stride` apart. Both begin with this thread's vector. */
static __device__ __forceinline__ void store_slice(const struct kept &p, act *state, int64_t width, const act *batch,
                                                   int64_t stride, int64_t window) {
    const int row = threadIdx.x / SLICE;
    for (int from = 0; from < p.n; from += ROWS) { /* rows only move to lower slots: later ones are still there */
        const int i = from + row;
        const int32_t id = i < p.n ? p.id[i] : (int32_t)NO_ROW;
        uint4 x = {};
        if (id >= 0) x = *(const uint4 *)(batch + id * stride);
        else if (id != (int32_t)NO_ROW) x = *(const uint4 *)(state + (-1 - (int64_t)id) * width);
        __syncthreads();
        if (i < p.n) *(uint4 *)(state + i * width) = x;
    }
    for (int from = p.skip; from < p.open; from += EACH * ROWS) {
        uint4 x[EACH]; /* all loads before the first store, because they may alias */
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = from + j * ROWS + row;
            if (i < p.open) x[j] = *(const uint4 *)(batch + (p.own + i - p.skip) * stride);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = from + j * ROWS + row;
            if (i < p.open) *(uint4 *)(state + (window + i) * width) = x[j];
        }
    }
}

/* The score and the position of each kept row; the open block's rows have only scores, their positions follow from the
 * session's. first: position of the block in the open slots before this call. */
static __device__ __forceinline__ void store_scores(const struct cache_dev &c, const struct kept &p,
                                                    const struct cache_slots &m, const struct hl_seg &seg, int64_t h,
                                                    int64_t first) {
    const int64_t w = c.a.window;
    const float *score = by_score(c) ? c.a.score + h : (const float *)NULL;
    for (int from = 0; from < p.n; from += THREADS) {
        const int i = from + threadIdx.x;
        const int32_t id = i < p.n ? p.id[i] : (int32_t)NO_ROW;
        const int64_t slot = -1 - (int64_t)id;
        float x = 0;
        int64_t at = 0;
        if (id >= 0) x = score ? score[id * c.a.HV] : 0.0f, at = seg.pos + id - seg.row;
        else if (id != (int32_t)NO_ROW) x = m.score[slot], at = slot < w ? m.pos[slot] : first + slot - w;
        __syncthreads();
        if (i < p.n) m.score[i] = x, m.pos[i] = at;
    }
    for (int i = p.skip + threadIdx.x; i < p.open; i += THREADS)
        m.score[w + i] = score ? score[(p.own + i - p.skip) * c.a.HV] : 0.0f;
}

static __global__ void __launch_bounds__(THREADS) store(const struct cache_dev c) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, w = c.a.window, C = c.a.chunk, K = c.a.K, V = c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    if (!seg.state) return;
    const int64_t end = seg.pos + seg.len, first = seg.pos / C * C;
    const struct hl_dev_span last = c.rows.block[c.rows.block_first[n + 1] - 1];
    struct kept p = {c.kept_after + (n * c.a.HV + h) * w, 0, last.row, last.skip, (int)(end % C)};
    if (first / C < end / C) p.n = (int)kept_at(c, end); /* a block was completed */
    const struct cache_slots m = cache_slots_of(c, seg, h);
    const int64_t x = ((int64_t)blockIdx.y * SLICE + threadIdx.x % SLICE) * VECTOR;
    if (x < K) store_slice(p, m.k + x, K, (const act *)c.a.k + h / c.group * K + x, c.a.H * K, w);
    else if (x < K + V) store_slice(p, m.v + x - K, V, (const act *)c.a.v + h * V + x - K, c.a.HV * V, w);
    else store_scores(c, p, m, seg, h, first);
}

/* K and V are multiples of SLICE vectors: cache_usual */
void HL_OP(cache_store)(struct hl_cuda *cuda, const struct cache_dev *c) {
    const unsigned slices = (unsigned)((c->a.K + c->a.V) / (SLICE * VECTOR));
    launch(cuda, store, dim3((unsigned)(c->a.rows->n * c->a.HV), slices + 1), THREADS, 0, *c);
}
