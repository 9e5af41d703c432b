/* cache_distinct_cuda.cuh -- the selection with near-duplicate keys ranked last (cache.h), by one thread block.
 *
 * The columns are ranked, then visited BATCH at a time: the warps compare the keys of a batch with those already taken
 * and with each other, one pair per warp, then one thread takes or defers the columns in order. The sums of a pair do
 * not depend on the number of threads, so all selecting kernels choose the same rows. */
#ifndef HL_CACHE_DISTINCT_CUDA_CUH
#define HL_CACHE_DISTINCT_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"

enum { BATCH = 32 };
struct distinct {
    int32_t *order;  /* [n]: columns by rank; reused from the start for deferred columns */
    int32_t *taken;  /* [window]: selector's `best` */
    float *norm;     /* [window]: |k|^2 of those taken; finally the columns in order of position */
    float *own;      /* [BATCH]: |k|^2 of the batch */
    uint32_t *alike; /* [BATCH]: bit mask of earlier columns of the batch that this one duplicates; all bits: duplicates
                      * one already taken */
    int32_t *count;  /* [2]: taken, deferred */
};
static __device__ __forceinline__ struct distinct distinct_at(const struct cache_dev &c, const struct selector &s) {
    int32_t *p = s.warp + 32;
    struct distinct d = {p, s.best};
    p += (c.a.window + c.a.chunk + 3) / 4 * 4, d.norm = (float *)p;
    p += (c.a.window + 3) / 4 * 4, d.own = (float *)p;
    d.alike = (uint32_t *)p + BATCH, d.count = p + 2 * BATCH;
    return d;
}

static __device__ __forceinline__ const act *key_of(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                    int32_t id) {
    return id < 0 ? m.k + (int64_t)(-1 - id) * c.a.K : (const act *)c.a.k + (id * c.a.H + h / c.group) * c.a.K;
}
static __device__ __forceinline__ float key_dot(const act *x, const act *y, int64_t K) { /* a warp */
    float sum = 0;
    for (int64_t i = threadIdx.x % 32; i < K; i += 32) sum += f32(x[i]) * f32(y[i]);
    return warp_sum(sum);
}
static __device__ __forceinline__ bool alike(float dot, float x, float y, float limit) { /* hl_cache_alike */
    return dot > limit * sqrtf(x * y);
}

/* own and alike of the n columns order[first, first + n), with `taken` better ones already taken. All warps. */
static __device__ __forceinline__ void compare_batch(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                     const struct selector &s, const struct distinct &d, int first,
                                                     int n, int taken) {
    const int64_t K = c.a.K;
    const float limit = (float)c.a.policy.redundancy;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int i = warp; i < n; i += warps) {
        const act *k = key_of(c, m, h, s.id[d.order[first + i]]);
        const float x = key_dot(k, k, K);
        if (lane == 0) d.own[i] = x;
    }
    __syncthreads();
    for (int i = warp; i < n; i += warps) {
        const act *k = key_of(c, m, h, s.id[d.order[first + i]]);
        uint32_t mask = 0;
        bool repeats = false;
        for (int j = 0; j < taken; j++)
            repeats |= alike(key_dot(k, key_of(c, m, h, s.id[d.taken[j]]), K), d.own[i], d.norm[j], limit);
        for (int j = 0; j < i && !repeats; j++)
            if (alike(key_dot(k, key_of(c, m, h, s.id[d.order[first + j]]), K), d.own[i], d.own[j], limit))
                mask |= 1u << j;
        if (lane == 0) d.alike[i] = repeats ? 0xffffffffu : mask;
    }
    __syncthreads();
}

/* Like select_top, for columns whose rows are in `m` and the batch. */
static __device__ __forceinline__ int select_distinct(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                      const struct selector &s, int n, int w) {
    const struct distinct d = distinct_at(c, s);
    __syncthreads();
    if (n <= w) return n;
    if ((int)threadIdx.x < (n + 3) / 4 * 4 - n) s.key[n + threadIdx.x] = 0; /* padding beats no column before it */
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += blockDim.x) d.order[count_better(s.key, n, j)] = j;
    int taken = 0, back = 0;
    for (int first = 0; first < n && taken < w; first += BATCH) {
        const int many = min(n - first, (int)BATCH);
        __syncthreads();
        compare_batch(c, m, h, s, d, first, many, taken);
        if (threadIdx.x == 0) {
            uint32_t now = 0; /* of the batch, taken */
            for (int i = 0; i < many && taken < w; i++) {
                const int32_t j = d.order[first + i];
                if (d.alike[i] == 0xffffffffu || (d.alike[i] & now)) d.order[back++] = j;
                else now |= 1u << i, d.norm[taken] = d.own[i], d.taken[taken++] = j;
            }
            d.count[0] = taken, d.count[1] = back;
        }
        __syncthreads();
        taken = d.count[0], back = d.count[1];
    }
    for (int i = taken + threadIdx.x; i < w; i += blockDim.x) d.taken[i] = d.order[i - taken];
    __syncthreads();
    int32_t *sorted = (int32_t *)d.norm;
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        int before = 0;
        for (int j = 0; j < w; j++) before += d.taken[j] < d.taken[i];
        sorted[before] = d.taken[i];
    }
    __syncthreads();
    move_to_front(s, sorted, w);
    return w;
}

/* Moves the best w of the n columns to the front, in order; kept: as in select_top. */
static __device__ __forceinline__ int select_rows(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                  const struct selector &s, int kept, int n, int w) {
    return c.a.policy.redundancy > 0 ? select_distinct(c, m, h, s, n, w) : select_top(s, kept, n, w);
}

#endif
