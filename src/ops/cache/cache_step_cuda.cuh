/* cache_step_cuda.cuh -- a decoding step of the exact memory: the filled slots, and the merge of a full block. */
#ifndef HL_CACHE_STEP_CUDA_CUH
#define HL_CACHE_STEP_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/cache/cache_distinct_cuda.cuh"

/* The filled slots of a head: [0, kept) and [w, fresh); the new row goes to slot `fresh`. */
struct filled {
    int kept, w, fresh;
};
static __device__ __forceinline__ struct filled filled_at(const struct cache_dev &c, int64_t pos) {
    const int w = (int)c.a.window, chunk = (int)c.a.chunk;
    /* a 64-bit division would take longer than the rest */
    const int into = pos < INT32_MAX ? (int)((uint32_t)pos % (uint32_t)chunk) : (int)(pos % chunk);
    const struct filled f = {(int)min(pos - into, (int64_t)w), w, w + into};
    return f;
}
/* The rows of the slots -1 - id[0, n) become the kept ones, in place: a row only moves to a lower slot, so loading
 * a batch of rows before storing it is safe. All threads; a thread moves 16 bytes of k or v at a time, some also a
 * row's score and position. */
template <int D, bool FACTORS = false>
static __device__ __forceinline__ void keep_slots(const struct cache_dev &c, const struct cache_slots &m,
                                                  const int32_t *id, int n, int64_t first) {
    enum { PER_STEP = 4, UNITS = D / WIDE };
    const int w = (int)c.a.window, rows = PER_STEP * (int)blockDim.x / (2 * UNITS); /* of a batch: at most threads */
    for (int i0 = 0; i0 < n; i0 += rows) {
        const int mine = i0 + (int)threadIdx.x, slot = mine < n ? -1 - id[mine] : 0;
        const bool there = (int)threadIdx.x < rows && mine < n;
        const float score = there ? m.score[slot] : 0.0f, factor = FACTORS && there ? m.factor[slot] : 0.0f;
        const int64_t pos = !there ? 0 : slot < w ? m.pos[slot] : first + slot - w;
        uint4 x[PER_STEP];
#pragma unroll
        for (int j = 0; j < PER_STEP; j++) {
            const int u = (int)(threadIdx.x + j * blockDim.x), i = i0 + u / (2 * UNITS), col = u % UNITS * WIDE;
            const act *from = u / UNITS % 2 ? m.v : m.k;
            if (u < rows * 2 * UNITS && i < n) x[j] = *(const uint4 *)(from + (int64_t)(-1 - id[i]) * D + col);
        }
        __syncthreads();
        if (there) m.score[mine] = score, m.pos[mine] = pos;
        if (FACTORS && there) m.factor[mine] = factor;
#pragma unroll
        for (int j = 0; j < PER_STEP; j++) {
            const int u = (int)(threadIdx.x + j * blockDim.x), i = i0 + u / (2 * UNITS), col = u % UNITS * WIDE;
            act *to = u / UNITS % 2 ? m.v : m.k;
            if (u < rows * 2 * UNITS && i < n) *(uint4 *)(to + (int64_t)i * D + col) = x[j];
        }
        __syncthreads();
    }
}

/* For a full block: kept = top_w(kept + block). smem: selector_bytes(). All threads. PLAIN: the policy is plain. */
template <int D, bool FACTORS = false, bool PLAIN = true>
static __device__ __forceinline__ void merge_full(const struct cache_dev &c, const struct hl_seg &seg, int64_t h,
                                                  char *smem) {
    const struct cache_slots m = cache_slots_of(c, seg, h);
    const struct selector s = selector_at(c, smem);
    const int64_t kept = kept_at(c, seg.pos), w = c.a.window, n = kept + c.a.chunk;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        const int64_t slot = j < kept ? j : w + j - kept;
        s.id[j] = (int32_t)(-1 - slot);
        s.key[j] = rank_of(c.a.policy, j, m.score + slot);
    }
    const int now =
        PLAIN ? select_top(s, (int)kept, (int)n, (int)w) : select_rows(c, m, h, s, (int)kept, (int)n, (int)w);
    keep_slots<D, FACTORS>(c, m, s.id, now, seg.pos + 1 - c.a.chunk);
}

#endif
