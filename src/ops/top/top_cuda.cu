/* top_cuda.cu -- see top.h: a thread block a row, with logits in their order (top_order.cuh). The k-th of the best of
 * GROUPS parts bounds the k-th of the row from below, so those at least as large are few: they are collected and
 * each counts how many are before it. */
#include "cuda/early.cuh"
#include "ops/top/top_order.cuh"

enum { TOP_THREADS = 1024, GROUPS = TOP_THREADS / 4, LIST = 2048 }; /* GROUPS: of neighbouring threads */

static __device__ __forceinline__ int before(const uint64_t *list, int n, uint64_t v) {
    int more = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) more += list[i] > v;
    return more;
}
/* The thread's best below `limit`. */
static __device__ __forceinline__ uint64_t best_of(const float *x, int64_t V, uint64_t limit, bool *wrong) {
    uint64_t best = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < V; i += TOP_THREADS) {
        const float z = x[i];
        const uint64_t v = order_of(z, (int32_t)i);
        *wrong = *wrong || !is_finite(z);
        if (v > best && v < limit) best = v;
    }
    return best;
}

static __device__ __forceinline__ uint64_t group_best(uint64_t v) {
    v = max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, 1));
    return max(v, (uint64_t)__shfl_xor_sync(0xffffffffu, (unsigned long long)v, 2));
}

static __global__ void __launch_bounds__(TOP_THREADS) top(const struct hl_top a) {
    __shared__ uint64_t best[GROUPS], list[LIST];
    __shared__ uint64_t least;
    __shared__ int count;
    const int k = (int)a.k;
    wait_for_others(), let_others_start();
    const float *x = a.logits + (int64_t)blockIdx.x * a.V;
    struct hl_candidate *out = a.out + (int64_t)blockIdx.x * k;
    bool wrong = false;
    const uint64_t mine = group_best(best_of(x, a.V, ~(uint64_t)0, &wrong));
    best[threadIdx.x / 4] = mine;
    if (threadIdx.x == 0) count = 0, least = 0;
    if (__syncthreads_or(wrong)) {
        if (threadIdx.x == 0) out[0].id = -1;
        return;
    }
    if (threadIdx.x % 4 == 0 && mine && before(best, GROUPS, mine) == k - 1)
        least = mine; /* 0: fewer than k have any */
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.V; i += TOP_THREADS) {
        const uint64_t v = order_of(x[i], (int32_t)i);
        if (v < least) continue;
        const int at = atomicAdd(&count, 1);
        if (at < LIST) list[at] = v;
    }
    __syncthreads();
    const int n = count;
    for (int i = threadIdx.x; i < n && n <= LIST; i += TOP_THREADS) {
        const int at = before(list, n, list[i]);
        if (at < k) out[at] = candidate_of(list[i]);
    }
    uint64_t limit = ~(uint64_t)0;
    for (int j = 0; j < k && n > LIST; j++) { /* equal ones without end: one by one */
        best[threadIdx.x / 4] = group_best(best_of(x, a.V, limit, &wrong));
        __syncthreads();
        limit = 0;
        for (int i = 0; i < GROUPS; i++) limit = max(limit, best[i]);
        if (threadIdx.x == 0) out[j] = candidate_of(limit);
        __syncthreads();
    }
}

extern "C" void HL_OP(top)(struct hl_pool *pool, const struct hl_top *a) {
    if (a->M > 0) launch_early(hl_cuda_of(pool), top, (unsigned)a->M, TOP_THREADS, 0, *a);
}
