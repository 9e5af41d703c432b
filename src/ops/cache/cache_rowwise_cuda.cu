/* cache_rowwise_cuda.cu -- the exact memory row by row, like the reference: for every shape, and for policies whose
 * scores move with reads.
 *
 * grid (n HV), THREADS threads: a thread block is one value head of a segment. Shared memory: the softmax weights of w
 * + C columns, scratch of a block sum, a selector. Rows are in the session's state, or, if the segment has none, in
 * scratch memory with the same layout. No PDL. */
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_distinct_cuda.cuh"
#include "ops/cache/cache_measure_cuda.cuh"

enum { THREADS = 512, WARPS = THREADS / 32 };

/* Slot of the j-th visible row. */
static __device__ __forceinline__ int64_t slot_of(int64_t j, int64_t kept, int64_t w) {
    return j < kept ? j : w + j - kept;
}

/* p[j] = softmax over n rows and the sink; returns the log of the denominator. scratch: 33 floats */
static __device__ float softmax(float *p, int64_t n, float sink, float *scratch) {
    float row_max = sink, sum = 0;
    for (int64_t j = 0; j < n; j++) row_max = fmaxf(row_max, p[j]);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < n; j += THREADS) sum += p[j] = expf(p[j] - row_max);
    sum = block_sum(sum, scratch) + expf(sink - row_max);
    for (int64_t j = threadIdx.x; j < n; j += THREADS) p[j] /= sum;
    __syncthreads();
    return row_max + logf(sum);
}

/* The row `row` of the batch reads n rows. */
template <enum hl_score_kind KIND>
static __device__ void read_row(const struct cache_dev &c, const struct cache_slots &m, int64_t h, int64_t row,
                                int64_t kept, int64_t n, float *p, float *scratch) {
    const int64_t K = c.a.K, V = c.a.V, w = c.a.window, at = row * c.a.HV + h;
    const act *q = (const act *)c.a.q + (row * c.a.H + h / c.group) * K;
    const float scale = c.a.tau[h] / sqrtf((float)K), lambda = lambda_at(c.a, row, h);
    const int lane = threadIdx.x % 32;
    for (int64_t j = threadIdx.x / 32; j < n; j += WARPS) {
        const act *k = m.k + slot_of(j, kept, w) * K;
        float dot = 0;
        for (int64_t i = lane; i < K; i += 32) dot += f32(q[i]) * f32(k[i]);
        dot = warp_sum(dot);
        dot = scale * dot;
        if (lane == 0) p[j] = KIND == HL_SCORE_LEARNED && j < kept ? dot + log_sigmoid(m.score[j]) : dot;
    }
    __syncthreads();
    const float lse = softmax(p, n, c.a.sink[h], scratch);
    if (c.a.lse && threadIdx.x == 0) c.a.lse[at] = lse;
    for (int64_t i = threadIdx.x; i < V; i += THREADS) {
        act *out = (act *)c.a.out + at * V + i;
        float sum = 0;
        for (int64_t j = 0; j < n; j++) sum += p[j] * f32(m.v[slot_of(j, kept, w) * V + i]);
        put(out, f32(*out) + lambda * sum);
        if (c.a.read) put((act *)c.a.read + at * V + i, sum);
    }
    if (c.a.policy.moves_with_reads)
        for (int64_t j = threadIdx.x; j < n; j += THREADS) m.score[slot_of(j, kept, w)] += p[j];
    __syncthreads();
}

/* kept = top_w(kept + block) */
template <enum hl_score_kind KIND>
static __device__ int64_t merge_block(const struct cache_dev &c, const struct cache_slots &m, int64_t h, int64_t kept,
                                      int64_t first, const struct selector &s) {
    const int64_t w = c.a.window, n = kept + c.a.chunk;
    const struct hl_seg none = {};
    for (int64_t j = threadIdx.x; j < n; j += THREADS) {
        const int64_t slot = slot_of(j, kept, w);
        s.id[j] = (int32_t)(-1 - slot);
        s.key[j] = rank_of(c.a.policy, j, m.score + slot);
    }
    const int now = select_rows(c, m, h, s, (int)kept, (int)n, (int)w);
    if (KIND == HL_SCORE_RECALL && has_factors(c) && threadIdx.x == 0)
        keep_column(m.factor, 1, (const float *)NULL, 0, s.id, now);
    keep_rows(c, m, h, s.id, now, none, first, threadIdx.x, THREADS);
    __syncthreads();
    return now;
}

/* The scores of all n rows, measured against the state S. */
static __device__ void measure_all(const struct cache_dev &c, const struct cache_slots &m, int64_t h, int64_t kept,
                                   int64_t n, const float *S, char *smem) {
    __shared__ int32_t id[MEASURED];
    __shared__ float score[MEASURED];
    for (int64_t i = 0; i < n; i += MEASURED) {
        const int rows = (int)min(n - i, (int64_t)MEASURED);
        __syncthreads();
        if ((int)threadIdx.x < rows) id[threadIdx.x] = (int32_t)(-1 - slot_of(i + threadIdx.x, kept, c.a.window));
        __syncthreads();
        measure(c, m, h, id, rows, S, smem, score);
        if ((int)threadIdx.x < rows) m.score[-1 - id[threadIdx.x]] = score[threadIdx.x];
    }
    __syncthreads();
}

/* KIND: HL_SCORE_NONE stands for all scores that are neither measured nor learned */
template <enum hl_score_kind KIND>
static __global__ void __launch_bounds__(THREADS) rowwise(const struct cache_dev c, char *scratch, int64_t measuring) {
    const int64_t n = blockIdx.x / c.a.HV, h = blockIdx.x % c.a.HV, w = c.a.window, C = c.a.chunk;
    const struct hl_seg seg = c.rows.seg[n];
    const struct cache_slots m =
        seg.state ? cache_slots_of(c, seg, h) : cache_slots_at(c, scratch + n * c.a.HV * c.at.bytes, h);
    float *p = (float *)shared_memory(), *sums = p + w + C;
    const struct selector s = selector_at(c, (char *)(p + (w + C + 40) / 4 * 4));
    const bool measured = KIND == HL_SCORE_RECALL;
    int64_t kept = kept_at(c, seg.pos);
    for (int64_t t = 0; t < seg.len; t++) {
        const int64_t row = seg.row + t, pos = seg.pos + t, open = pos % C;
        const int64_t block = c.rows.block_first[n] + pos / C - seg.pos / C;
        for (int64_t j = threadIdx.x; c.a.sel && open == 0 && j < w; j += THREADS)
            c.a.sel[(block * c.a.HV + h) * w + j] = j < kept ? seg.row + m.pos[j] : -1;
        for (int64_t x = threadIdx.x; x <= c.a.K + c.a.V; x += THREADS)
            put_column(c, m, w + open, x, measured && x == c.a.K + c.a.V ? 0.0f : column(c, m, h, row, x));
        if (measured && has_factors(c) && threadIdx.x == 0) m.factor[w + open] = factor_of(c, m, h, row);
        __syncthreads();
        read_row<KIND>(c, m, h, row, kept, kept + open + 1, p, sums);
        if (open + 1 < C) continue;
        if (measured) {
            const float *S = state_after(c, c.rows.block[block], block, h);
            if (!S) return; /* the last block, in training */
            measure_all(c, m, h, kept, kept + C, S, shared_memory() + measuring);
        }
        kept = merge_block<KIND>(c, m, h, kept, pos + 1 - C, s);
    }
}

void HL_OP(cache_rowwise)(struct hl_cuda *cuda, const struct cache_dev *c, char *scratch) {
    const int64_t first = (c->a.window + c->a.chunk + 40) / 4 * 16 + selector_bytes(&c->a);
    const size_t shared = (size_t)(first + (c->a.policy.score == HL_SCORE_RECALL ? measure_bytes(&c->a) : 0));
    void (*kernel)(const struct cache_dev, char *, int64_t) =
        c->a.policy.score == HL_SCORE_RECALL    ? rowwise<HL_SCORE_RECALL>
        : c->a.policy.score == HL_SCORE_LEARNED ? rowwise<HL_SCORE_LEARNED>
                                                : rowwise<HL_SCORE_NONE>;
    launch(cuda, kernel, (unsigned)(c->a.rows->n * c->a.HV), THREADS, shared, *c, scratch, first);
}
