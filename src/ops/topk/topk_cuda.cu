/* topk_cuda.cu -- see topk.h. Grid M, block TOPK_THREADS: a block owns a row, whose logits are in its threads' registers
 * as far as they fit, HELD each.
 *
 * The k-th largest of the maxima of GROUPS groups bounds the k-th largest logit from below, so only a few are at least
 * as large: they are collected in shared memory (in any order), and each thread counts how many rank before its own. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/topk/topk_order.cuh"

enum { TOPK_THREADS = 1024, GROUPS = TOPK_THREADS / 4, LIST = 2048, HELD = 32 }; /* GROUPS: of adjacent threads */

static __device__ __forceinline__ int before(const uint64_t *list, int n, uint64_t v) {
    int more = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) more += list[i] > v;
    return more;
}
/* The thread's best below `limit`. */
static __device__ __forceinline__ uint64_t best_of(const float *x, int64_t V, uint64_t limit) {
    uint64_t best = 0;
    for (int64_t i = threadIdx.x; i < V; i += TOPK_THREADS) {
        const uint64_t v = order_of(x[i], (int32_t)i);
        if (v > best && v < limit) best = v;
    }
    return best;
}
/* Fallback for more candidates than LIST, such as many equal logits: one by one. All threads. */
static __device__ void find_slowly(const struct hl_topk &a, const float *x, struct hl_candidate *out, uint64_t *best) {
    uint64_t limit = ~(uint64_t)0;
    for (int j = 0; j < (int)a.k; j++) {
        uint64_t v = best_of(x, a.V, limit);
        v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, 1));
        best[threadIdx.x / 4] = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, 2));
        __syncthreads();
        limit = 0;
        for (int i = 0; i < GROUPS; i++) limit = max(limit, best[i]);
        if (threadIdx.x == 0) out[j] = candidate_of(limit);
        __syncthreads();
    }
}

/* The k-th largest of best[GROUPS]: by all threads, four for each. */
static __device__ __forceinline__ void find_bound(const float *best, int k, float *bound) {
    const float mine = best[threadIdx.x / 4];
    int more = 0, same = 0;
#pragma unroll 8
    for (int i = threadIdx.x % 4 * 4; i < GROUPS; i += 16) {
        const float4 b = *(const float4 *)(best + i);
        more += (b.x > mine) + (b.y > mine) + (b.z > mine) + (b.w > mine);
        same += (b.x == mine) + (b.y == mine) + (b.z == mine) + (b.w == mine);
    }
    more += __shfl_xor_sync(0xffffffffu, more, 1), same += __shfl_xor_sync(0xffffffffu, same, 1);
    more += __shfl_xor_sync(0xffffffffu, more, 2), same += __shfl_xor_sync(0xffffffffu, same, 2);
    if (more < k && more + same >= k) *bound = mine; /* equal ones write the same value */
}

static __global__ void __launch_bounds__(TOPK_THREADS) topk_row(const struct hl_topk a) {
    __shared__ uint64_t list[LIST];
    __shared__ __align__(16) float best[GROUPS];
    __shared__ float bound;
    __shared__ int count;
    const int k = (int)a.k;
    const int64_t mine = threadIdx.x;
    const float lowest = -3.402823466e38f; /* of those that are right */
    pdl_wait(), pdl_trigger();
    const float *x = a.logits + (int64_t)blockIdx.x * a.V;
    struct hl_candidate *out = a.out + (int64_t)blockIdx.x * k;
    float held[HELD], top = lowest;
    bool not_finite = false;
#pragma unroll
    for (int j = 0; j < HELD; j++) held[j] = mine + j * TOPK_THREADS < a.V ? x[mine + j * TOPK_THREADS] : lowest;
#pragma unroll
    for (int j = 0; j < HELD; j++) not_finite = not_finite || !is_finite(held[j]), top = fmaxf(top, held[j]);
    for (int64_t i = mine + HELD * TOPK_THREADS; i < a.V; i += TOPK_THREADS)
        not_finite = not_finite || !is_finite(x[i]), top = fmaxf(top, x[i]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    best[threadIdx.x / 4] = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (threadIdx.x == 0) count = 0;
    if (__syncthreads_or(not_finite)) {
        if ((int)threadIdx.x < k) out[threadIdx.x] = hl_candidate{0.0f, -1};
        return;
    }
    find_bound(best, k, &bound);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int64_t i = mine + j * TOPK_THREADS;
        if (i >= a.V || held[j] < bound) continue;
        const int at = atomicAdd(&count, 1);
        if (at < LIST) list[at] = order_of(held[j], (int32_t)i);
    }
    for (int64_t i = mine + HELD * TOPK_THREADS; i < a.V; i += TOPK_THREADS) {
        if (x[i] < bound) continue;
        const int at = atomicAdd(&count, 1);
        if (at < LIST) list[at] = order_of(x[i], (int32_t)i);
    }
    __syncthreads();
    const int n = count;
    for (int i = threadIdx.x; i < n && n <= LIST; i += TOPK_THREADS) {
        const int at = before(list, n, list[i]);
        if (at < k) out[at] = candidate_of(list[i]);
    }
    __syncthreads();
    if (n > LIST) find_slowly(a, x, out, list);
}

/* The same for k = 1. */
static __global__ void __launch_bounds__(TOPK_THREADS) top1(const struct hl_topk a) {
    __shared__ uint64_t all[TOPK_THREADS / 32];
    pdl_wait(), pdl_trigger();
    const float *x = a.logits + (int64_t)blockIdx.x * a.V;
    const int V = (int)a.V, mine = (int)threadIdx.x;
    float top = -INFINITY;
    int at = 0;
    bool not_finite = false;
    for (int first = 0; first < V; first += HELD * TOPK_THREADS) {
        float held[HELD];
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            const int i = first + mine + j * TOPK_THREADS;
            held[j] = x[i < V ? i : 0]; /* one that is there, and before */
        }
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            not_finite = not_finite || !is_finite(held[j]);
            if (held[j] > top) top = held[j], at = first + j * TOPK_THREADS;
        }
    }
    if (__syncthreads_or(not_finite)) {
        if (threadIdx.x == 0) a.out[blockIdx.x] = hl_candidate{0.0f, -1};
        return;
    }
    uint64_t v = order_of(top, mine + at < V ? mine + at : 0);
    for (int i = 16; i > 0; i /= 2) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, i));
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    v = all[threadIdx.x];
    for (int i = 16; i > 0; i /= 2) v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, i));
    if (threadIdx.x == 0) a.out[blockIdx.x] = candidate_of(v);
}

extern "C" void HL_OP(topk)(struct hl_backend *backend, const struct hl_topk *a) {
    if (a->M < 1) return;
    launch_pdl(hl_cuda_of(backend), a->k == 1 ? top1 : topk_row, (unsigned)a->M, TOPK_THREADS, 0, *a);
}
