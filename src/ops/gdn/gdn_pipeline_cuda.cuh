/* gdn_pipeline_cuda.cuh -- what the walks with rings of buffers share: their barriers in shared memory, and
 * the way of tiles to memory. */
#ifndef HL_GDN_PIECES_CUH
#define HL_GDN_PIECES_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

/* The parities of step c in a ring of N buffers: of its being there, and of its place being free. */
template <int N> static __device__ __forceinline__ uint32_t full(int c) { return c / N & 1; }
template <int N> static __device__ __forceinline__ uint32_t empty(int c) { return (c / N & 1) ^ 1; }

enum { STORERS = GROUP / 2 };
/* ---- rows of 64 W columns to memory, by threads i of STORERS: each 16 bytes of every STEP-th row, AT_ONCE
 * rows at a time ---- */

enum { AT_ONCE = 4 };
template <int W> struct pieces {
    enum { UNITS = 8 * W, STEP = STORERS / UNITS };
    int row, col, at[2]; /* the first one; where it is in a tile, and where it would be 4 rows on */
    __device__ __forceinline__ pieces(int i) {
        row = i / UNITS, col = i % UNITS * 8;
        for (int n = 0; n < 2; n++) at[n] = col / 64 * PANEL + tile_at<64>(row + 4 * n, col % 64) - 256 * n;
    }
    __device__ __forceinline__ void read(uint4 x[AT_ONCE], const bf16 *tile, int first) const {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            x[n] = *(const uint4 *)(tile + at[n * STEP % 8 / 4] + (first + n * STEP) * 64);
    }
    __device__ __forceinline__ void write(bf16 *to, const uint4 x[AT_ONCE], int64_t step, int left) const {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            store_if(to, x[n], row + n * STEP < left);
            to += step;
        }
    }
};

#endif
