/* reduce.cuh -- the second half of every sum over rows (such as split-K): blocks leave partial sums in scratch memory,
 * and another kernel adds them in a fixed order, without atomics, so that the same input gives the same bits. */
#ifndef HL_REDUCE_CUH
#define HL_REDUCE_CUH
#include "cuda/common.cuh"
#include "cuda/pdl.cuh"

enum { PART_COLS = 32, PART_ROWS = 32 };
/* out[i] += sum over p of part[p * stride + i]. Grid: n / PART_COLS, a lane owns a column; warp w of the block takes
 * p = w, w + PART_ROWS, ..., eight loads in flight, then the first warp adds up the warps' sums. Launched while the
 * kernel before it still runs. */
static __global__ void __launch_bounds__(PART_COLS *PART_ROWS)
    add_partials(float *out, const float *part, int P, int64_t n, int64_t stride) {
    __shared__ float sums[PART_ROWS][PART_COLS];
    const unsigned lane = threadIdx.x % PART_COLS, warp = threadIdx.x / PART_COLS;
    const int64_t i = (int64_t)blockIdx.x * PART_COLS + lane;
    float s = 0.0f;
    pdl_wait(), pdl_trigger();
    if (i < n) { /* tested once: loads of several p are then in flight together */
#pragma unroll 8
        for (int p = (int)warp; p < P; p += PART_ROWS) s += part[p * stride + i];
    }
    sums[warp][lane] = s;
    __syncthreads();
    if (warp > 0 || i >= n) return;
    for (int k = 1; k < PART_ROWS; k++) s += sums[k][lane];
    out[i] += s;
}
static inline void sum_partials(struct hl_cuda *c, float *out, const float *part, int64_t P, int64_t n,
                                int64_t stride = 0) {
    launch_pdl(c, add_partials, blocks_for(n, PART_COLS), PART_COLS * PART_ROWS, 0, out, part, (int)P, n,
               stride ? stride : n);
}

#endif
