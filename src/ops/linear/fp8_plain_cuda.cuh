/* fp8_plain_cuda.cuh -- op fp8_quantise of floats, for checking: plain loops. Grid: 128 x 128 numbers; thread t has row t
 * of them, then column t. */
#ifndef HL_FP8_PLAIN_CUDA_CUH
#define HL_FP8_PLAIN_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "core/fp8.h"

enum { SIDE = HL_FP8_BLOCK };

/* One line of a form: its codes one after another, its numbers `step` apart. */
static __device__ void put_line(const float *x, int64_t step, int64_t n, float scale, enum hl_fp8 format,
                                uint8_t *codes) {
    for (int64_t k = 0; k < n; k++) codes[k] = hl_to_fp8(x[k * step] * hl_fp8_inverse(scale), format);
}
static __device__ uint32_t line_most(const float *x, int64_t step, int64_t n) {
    uint32_t most = 0;
    for (int64_t k = 0; k < n; k++) most = max(most, hl_fp8_bits(x[k * step]) & 0x7fffffffu);
    return most;
}
/* One form of the block at (i0, j0) of [rows][cols]; the last block of a row pads a table of blocks with 1. */
static __device__ void put_form(const struct hl_fp8_quantise *a, const float *x, int64_t row_step, int64_t col_step,
                                int64_t rows, int64_t cols, int64_t i0, int64_t j0, const uint32_t *whole,
                                uint8_t *codes, float *table) {
    const int64_t i = i0 + threadIdx.x, n = min(cols - j0, (int64_t)SIDE);
    const int64_t across = (cols + SIDE - 1) / SIDE, row = (across + 3) / 4 * 4; /* of a table of blocks */
    const int64_t block = i0 / SIDE * row + j0 / SIDE, pad = j0 / SIDE + threadIdx.x;
    if (i < rows) {
        const float *line = x + i * row_step + j0 * col_step;
        const float scale = hl_fp8_scale(a->blocks ? *whole : line_most(line, col_step, n), a->format);
        put_line(line, col_step, n, scale, a->format, codes + i * cols + j0);
        if (!a->blocks) table[j0 / SIDE * rows + i] = scale;
        else if (threadIdx.x == 0) table[block] = scale;
    }
    if (a->blocks && threadIdx.x > 0 && j0 + SIDE >= cols && pad < row) table[block + threadIdx.x] = 1.0f;
}

static __global__ void __launch_bounds__(SIDE) plain(struct hl_fp8_quantise a) {
    __shared__ uint32_t whole;
    const float *x = (const float *)a.x;
    const int64_t i0 = (int64_t)blockIdx.x * SIDE, j0 = (int64_t)blockIdx.y * SIDE, i = i0 + threadIdx.x;
    if (threadIdx.x == 0) whole = 0;
    __syncthreads();
    if (i < a.rows) atomicMax(&whole, line_most(x + i * a.ld + j0, 1, min(a.cols - j0, (int64_t)SIDE)));
    __syncthreads();
    if (a.codes) put_form(&a, x, a.ld, 1, a.rows, a.cols, i0, j0, &whole, a.codes, a.scale);
    if (a.codes_t) put_form(&a, x, 1, a.ld, a.cols, a.rows, j0, i0, &whole, a.codes_t, a.scale_t);
}

static void quantise(struct hl_cuda *c, const struct hl_fp8_quantise *a) {
    const dim3 grid(blocks_for(a->rows, SIDE), blocks_for(a->cols, SIDE));
    launch(c, plain, grid, SIDE, 0, *a);
}

#endif
