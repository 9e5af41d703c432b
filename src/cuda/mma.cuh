/* mma.cuh -- fragments of mma_bf16 (common.cuh) by ldmatrix, from unswizzled tiles in shared memory: rows are `ld`
 * elements apart and 16-byte aligned. For swizzled tiles see wgmma.cuh. */
#ifndef HL_MMA_CUH
#define HL_MMA_CUH
#include "cuda/common.cuh"

/* A, 16 x 16, stored [row][k] */
static __device__ __forceinline__ void mma_load_a(uint32_t a[4], const bf16 *t, int ld, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix4(a, t + (row + lane % 16) * ld + k + lane / 16 * 8);
}
/* the same, stored [k][row] */
static __device__ __forceinline__ void mma_load_a_trans(uint32_t a[4], const bf16 *t, int ld, int k, int row) {
    const int lane = threadIdx.x % 32;
    ldmatrix4_trans(a, t + (k + lane % 8 + lane / 16 * 8) * ld + row + lane / 8 % 2 * 8);
}
/* 16 (k) x 16 columns of B: b[0], b[1] are the first 8 columns, b[2], b[3] the others; stored [column][k] */
static __device__ __forceinline__ void mma_load_b(uint32_t b[4], const bf16 *t, int ld, int column, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix4(b, t + (column + lane % 8 + lane / 16 * 8) * ld + k + lane / 8 % 2 * 8);
}
/* the same, stored [k][column] */
static __device__ __forceinline__ void mma_load_b_trans(uint32_t b[4], const bf16 *t, int ld, int k, int column) {
    const int lane = threadIdx.x % 32;
    ldmatrix4_trans(b, t + (k + lane % 16) * ld + column + lane / 16 * 8);
}

#endif
