/* tensor_map.cuh -- tensor copies (cp.async.bulk.tensor, by the TMA unit): boxes of rows of a matrix of bf16 in global
 * memory to swizzled tiles (wgmma.cuh, WIDTH 64) in shared memory. One thread starts a copy; it completes on an
 * mbarrier. Rows outside the matrix arrive as zeros and still count as bytes. Hopper and later. */
#ifndef HL_TENSOR_MAP_CUH
#define HL_TENSOR_MAP_CUH
#include "cuda/mbarrier.cuh"
#ifndef HL_CUDA_EMU
#include <cuda.h>
#endif

/* Passed to kernels as a __grid_constant__ parameter, alone or in a struct. */
#ifdef HL_CUDA_EMU
struct tensor_map {
    const bf16 *base;
    int64_t cols, rows, ld;
    int box_rows;
};
#else
struct tensor_map {
    CUtensorMap map;
};
#endif

/* The matrix [rows][cols] at `base`, its rows `ld` numbers apart, in boxes of box_rows x 64. False: it is not 16-byte
 * aligned, or the driver does not support tensor maps. */
static bool tensor_map_make(struct tensor_map *m, const void *base, int64_t rows, int64_t cols, int64_t ld,
                            int box_rows) {
    if ((uintptr_t)base % 16 || ld % 8 || cols % 64) return false;
#ifdef HL_CUDA_EMU
    *m = {(const bf16 *)base, cols, rows, ld, box_rows};
    return true;
#else
    typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode *f; /* racing threads write the same value */
    if (!f) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found) !=
                cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return false;
        f = (encode *)p;
    }
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, each[2] = {1, 1};
    return f(&m->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)base, size, stride, box, each,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
#endif
}

/* A box from (row, col) on into a tile, complete_tx on b. By one thread. */
static __device__ __forceinline__ void tensor_copy(bf16 *tile, const struct tensor_map *m, int64_t row, int col,
                                                   mbarrier_t b) {
#ifdef HL_CUDA_EMU
    const int64_t left = m->rows - row;
    emu_tensor_copy(tile, m->base + row * m->ld + col, m->ld * 2, m->box_rows,
                    (int)(left < m->box_rows ? left < 0 ? 0 : left : m->box_rows), b);
#elif HL_BULK
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(shared_address(tile)),
        "l"(&m->map), "r"(b), "r"(col), "r"((int)row)
        : "memory");
#endif
}
static __device__ __forceinline__ void tensor_map_prefetch(const struct tensor_map *m) {
#if HL_BULK
    asm volatile("prefetch.tensormap [%0];" ::"l"(&m->map) : "memory");
#endif
}

#endif
