/* attention_wgmma_cuda.cuh -- helpers of the wgmma attention kernels: warpgroups, and storing accumulator rows. */
#ifndef HL_ATTENTION_WGMMA_CUDA_CUH
#define HL_ATTENTION_WGMMA_CUDA_CUH
#include "ops/attention/attention_cuda.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/pdl.cuh"
#include "cuda/tensor_map.cuh"
#include "cuda/wgmma.cuh"

enum { GROUP = 128, KEYS = HL_TILE };

/* Stores this warp's rows, 16 bytes per lane: the four lanes of a row exchange pairs of columns. */
template <int D>
static __device__ __forceinline__ void store_rows(bf16 *to, int64_t ld, const float (*o)[4], const float by[2],
                                                  int left) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    const bool odd = lane & 1, upper = lane & 2;
    to += row * ld + lane % 4 * 8;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < D / 32; n++) {
            uint32_t x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = pack2(o[4 * n + j][2 * r] * by[r], o[4 * n + j][2 * r + 1] * by[r]);
            const uint32_t y0 = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1),
                           y1 = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
            if (odd) x[0] = y0, x[2] = y1;
            else x[1] = y0, x[3] = y1;
            const uint32_t z0 = __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 2),
                           z1 = __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 2);
            if (upper) x[0] = z0, x[1] = z1;
            else x[2] = z0, x[3] = z1;
            store_if(to + 8 * r * ld + 32 * n, make_uint4(x[0], x[1], x[2], x[3]), row + 8 * r < left);
        }
}

#endif
