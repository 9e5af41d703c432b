/* panel.cuh -- the input rows of a product as panels of 64 columns: [K / 64][32 or 64 rows][64], each in its shared
 * memory layout (wgmma.cuh), so that one bulk copy loads a panel. */
#ifndef HL_PANEL_CUH
#define HL_PANEL_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/wgmma.cuh"

enum { BATCH_ROWS = 64, PANEL = 64 };
struct panels {
    bf16 *at;
    int rows;
};
static __host__ __device__ __forceinline__ int panels_of(int64_t K) { return (int)((K + PANEL - 1) / PANEL); }
static __device__ __forceinline__ bf16 *panel_at(const struct panels &p, int row, int col) {
    return p.at + col / PANEL * p.rows * PANEL + tile_at<PANEL>(row, col % PANEL);
}

#endif
