/* gdn_pipeline_cuda.cuh -- shared by the pipelined scans: full and empty mbarriers of a ring of buffers, and stores of
 * tiles to global memory. */
#ifndef HL_GDN_PIPELINE_CUH
#define HL_GDN_PIPELINE_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

/* The 2 N mbarriers of a ring of N buffers, starting at the block's mbarrier number AT: full, buffer c % N holds the
 * data of step c; empty, it may be overwritten for step c. */
template <int AT, int N> struct ring_barriers {
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t full(int c) const { return mbarrier_at(first, AT + c % N); }
    __device__ __forceinline__ mbarrier_t empty(int c) const { return mbarrier_at(first, AT + N + c % N); }
};
/* the parities with which step c waits for them */
template <int N> static __device__ __forceinline__ uint32_t full_parity(int c) { return c / N & 1; }
template <int N> static __device__ __forceinline__ uint32_t empty_parity(int c) { return (c / N & 1) ^ 1; }

/* ---- rows of 64 W columns to global memory, by threads i of STORE_THREADS: each 16 bytes of every STEP-th
 * row, BATCH rows at a time ---- */

enum { STORE_THREADS = GROUP / 2, BATCH = 4 };
template <int W> struct row_store {
    enum { UNITS = 8 * W, STEP = STORE_THREADS / UNITS };
    int row, col, at[2]; /* of the first store; its offset in a tile, and the offset 4 rows further down */
    __device__ __forceinline__ row_store(int i) {
        row = i / UNITS, col = i % UNITS * 8;
        for (int n = 0; n < 2; n++) at[n] = col / 64 * PANEL + tile_at<64>(row + 4 * n, col % 64) - 256 * n;
    }
    __device__ __forceinline__ void read(uint4 x[BATCH], const bf16 *tile, int first) const {
#pragma unroll
        for (int n = 0; n < BATCH; n++) x[n] = *(const uint4 *)(tile + at[n * STEP % 8 / 4] + (first + n * STEP) * 64);
    }
    __device__ __forceinline__ void write(bf16 *to, const uint4 x[BATCH], int64_t step, int left) const {
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            store_if(to, x[n], row + n * STEP < left);
            to += step;
        }
    }
};

#endif
