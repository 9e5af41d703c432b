/* reduce.cuh -- the second half of every sum over rows: blocks leave partial sums in scratch, and these are
 * added up in a fixed order, so that the same input gives the same bits. */
#ifndef HL_PARTIALS_CUH
#define HL_PARTIALS_CUH
#include "cuda/common.cuh"

enum { PART_COLS = 32, PART_ROWS = 16 };
/* out[i] += sum over p of part[p][i], the next p `stride` further on. Warps take every PART_ROWS-th p, then
 * one warp adds the sums of all. */
static __global__ void add_partials(float *out, const float *part, int64_t P, int64_t n, int64_t stride) {
    __shared__ float sums[PART_ROWS][PART_COLS];
    const unsigned lane = threadIdx.x % PART_COLS, warp = threadIdx.x / PART_COLS;
    const int64_t i = (int64_t)blockIdx.x * PART_COLS + lane;
    float s = 0.0f;
    if (i < n)
        for (int64_t p = warp; p < P; p += PART_ROWS) s += part[p * stride + i];
    sums[warp][lane] = s;
    __syncthreads();
    if (warp > 0 || i >= n) return;
    for (int k = 1; k < PART_ROWS; k++) s += sums[k][lane];
    out[i] += s;
}
static inline void sum_partials(struct hl_cuda *c, float *out, const float *part, int64_t P, int64_t n,
                                int64_t stride = 0) {
    launch(c, add_partials, blocks_for(n, PART_COLS), PART_COLS * PART_ROWS, 0, out, part, P, n,
           stride ? stride : n);
}

#endif
