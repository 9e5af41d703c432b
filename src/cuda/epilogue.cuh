/* epilogue.cuh -- the epilogue of a product: stmatrix of accumulators to a swizzled tile in shared memory (wgmma.cuh),
 * from which whole rows are stored, and sums of packed bf16 pairs. */
#ifndef HL_EPILOGUE_CUH
#define HL_EPILOGUE_CUH
#include "cuda/wgmma.cuh"

/* stmatrix of 16 x 16 accumulators of a warp, as pack_a packs them, to rows from `row` and columns from `column` on */
static __device__ __forceinline__ void tile_stmatrix(bf16 *tile, int row, int column, const uint32_t x[4]) {
    const int lane = threadIdx.x % 32;
#if HL_WGMMA
    const bf16 *to = tile + tile_at<64>(row + lane % 16, column + lane / 16 * 8);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
#else
#pragma unroll
    for (int j = 0; j < 4; j++)
        *(uint32_t *)(tile + tile_at<64>(row + lane / 4 + j % 2 * 8, column + j / 2 * 8 + lane % 4 * 2)) = x[j];
#endif
}

static __device__ __forceinline__ uint32_t add_pair(uint32_t x, uint32_t y) {
#if HL_WGMMA
    uint32_t sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(x), "r"(y));
    return sum;
#else
    return pack2(low(x) + low(y), high(x) + high(y));
#endif
}
static __device__ __forceinline__ uint4 add_pairs(uint4 x, uint4 y) {
    return make_uint4(add_pair(x.x, y.x), add_pair(x.y, y.y), add_pair(x.z, y.z), add_pair(x.w, y.w));
}

#endif
