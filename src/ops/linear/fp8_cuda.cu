/* fp8_cuda.cu -- op fp8_quantise (fp8.h): reads a matrix once and writes both forms.
 *
 * Grid: blocks of 128 x 128, row-major; 256 threads, each with 8 x 8 numbers in registers: thread (tx, ty) has columns
 * 8 tx .. and rows 8 ty ... Largest magnitudes are reduced as integers, so the order does not matter. The transposed
 * form goes through shared memory, 8 codes of a column at a time, so that its rows are written in 128-byte pieces;
 * these 8 are at position ty ^ tx of the column, so that 16 threads use 16 different pairs of banks. */
#include "ops/cuda_ops.cuh"
#include "cuda/fp8.cuh"

enum { SIDE = HL_FP8_BLOCK, EACH = 8, ACROSS = SIDE / EACH, THREADS = ACROSS * ACROSS, WARPS = THREADS / 32 };

struct tile_shared {
    uint2 code[SIDE * ACROSS]; /* of the transposed form: [column][8 rows] */
    uint32_t most[WARPS][SIDE];
    float scale[SIDE]; /* of the columns */
};

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The largest magnitudes of a thread's rows, over all columns, and of the whole block. */
static __device__ __forceinline__ void row_most(uint32_t most[EACH]) {
    for (int p = 0; p < EACH; p++)
        for (int i = ACROSS / 2; i > 0; i /= 2) most[p] = larger(most[p], __shfl_xor_sync(0xffffffffu, most[p], i));
}
static __device__ __forceinline__ uint32_t block_most(const uint32_t row[EACH], uint32_t *shared) {
    uint32_t m = row[0];
    for (int p = 1; p < EACH; p++) m = larger(m, row[p]);
    m = larger(m, __shfl_xor_sync(0xffffffffu, m, ACROSS));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) m = larger(m, shared[w]);
    return m;
}
/* Writes the scales of the columns to shared memory. */
template <int format>
static __device__ __forceinline__ void column_scales(struct tile_shared *s, const uint32_t most[EACH]) {
    const int tx = threadIdx.x % ACROSS, lane = threadIdx.x % 32;
    for (int j = 0; j < EACH; j++) {
        const uint32_t m = larger(most[j], __shfl_xor_sync(0xffffffffu, most[j], ACROSS));
        if (lane < ACROSS) s->most[threadIdx.x / 32][tx * EACH + j] = m;
    }
    __syncthreads();
    if (threadIdx.x < SIDE) {
        uint32_t m = 0;
        for (int w = 0; w < WARPS; w++) m = larger(m, s->most[w][threadIdx.x]);
        s->scale[threadIdx.x] = hl_fp8_scale(m, (enum hl_fp8)format);
    }
    __syncthreads();
}

/* The scale of block (i, j) of a form that is `across` blocks wide; the last block of a row pads the table's row with
 * 1. */
static __device__ __forceinline__ void put_block_scale(float *table, int64_t i, int64_t j, int64_t across, int64_t row,
                                                       float scale) {
    const int64_t at = j + threadIdx.x;
    if (threadIdx.x == 0) table[i * row + j] = scale;
    else if (j == across - 1 && at < row) table[i * row + at] = 1.0f;
}

template <bool blocks, int format>
static __global__ void __launch_bounds__(THREADS, 2)
    tile(struct hl_fp8_quantise a, int64_t blocks_row, int64_t blocks_row_t) {
    __shared__ struct tile_shared s;
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const int64_t across = (a.cols + SIDE - 1) / SIDE, down = (a.rows + SIDE - 1) / SIDE;
    const int64_t bi = blockIdx.x / across, bj = blockIdx.x % across;
    const int64_t i0 = bi * SIDE + ty * EACH, j0 = bj * SIDE + tx * EACH; /* rows and columns are multiples of 16 */
    const bool in = i0 < a.rows && j0 < a.cols;
    const act *x = (const act *)a.x + i0 * a.ld + j0;
    float v[EACH][EACH], scale[EACH], y[EACH];
    uint32_t row[EACH], column[EACH];
#pragma unroll
    for (int p = 0; p < EACH; p++)
#pragma unroll
        for (int j = 0; j < EACH; j += WIDE) {
            for (int k = 0; k < WIDE; k++) v[p][j + k] = 0.0f;
            if (in) load_wide(v[p] + j, x + p * a.ld + j);
        }
#pragma unroll
    for (int p = 0; p < EACH; p++) row[p] = column[p] = 0;
#pragma unroll
    for (int p = 0; p < EACH; p++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const uint32_t m = hl_fp8_bits(v[p][j]) & 0x7fffffffu;
            row[p] = larger(row[p], m), column[j] = larger(column[j], m);
        }
    row_most(row);
    float whole = 1.0f;
    if (blocks) whole = hl_fp8_scale(block_most(row, s.most[0]), (enum hl_fp8)format);

    if (a.codes) {
#pragma unroll
        for (int p = 0; p < EACH; p++) scale[p] = blocks ? whole : hl_fp8_scale(row[p], (enum hl_fp8)format);
#pragma unroll
        for (int p = 0; p < EACH; p++) {
            const float inverse = hl_fp8_inverse(scale[p]);
            for (int j = 0; j < EACH; j++) y[j] = v[p][j] * inverse;
            if (in) *(uint2 *)(a.codes + (i0 + p) * a.cols + j0) = fp8_eight<format>(y);
        }
        if (blocks) put_block_scale(a.scale, bi, bj, across, blocks_row, whole);
        else if (tx == 0 && in)
            for (int p = 0; p < EACH; p++) a.scale[bj * a.rows + i0 + p] = scale[p];
    }
    if (!a.codes_t) return;
    if (!blocks) column_scales<format>(&s, column);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const float inverse = hl_fp8_inverse(blocks ? whole : s.scale[tx * EACH + j]);
        for (int p = 0; p < EACH; p++) y[p] = v[p][j] * inverse;
        s.code[(tx * EACH + j) * ACROSS + (ty ^ tx)] = fp8_eight<format>(y);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < SIDE * ACROSS; k += THREADS) {
        const int column_here = k / ACROSS, eight = k % ACROSS;
        const int64_t i = bi * SIDE + eight * EACH, j = bj * SIDE + column_here;
        const uint2 codes = s.code[column_here * ACROSS + (eight ^ (column_here / EACH))];
        if (i < a.rows && j < a.cols) *(uint2 *)(a.codes_t + j * a.rows + i) = codes;
    }
    if (blocks) put_block_scale(a.scale_t, bj, bi, down, blocks_row_t, whole);
    else if (threadIdx.x < SIDE && bj * SIDE + threadIdx.x < a.cols)
        a.scale_t[bi * a.cols + bj * SIDE + threadIdx.x] = s.scale[threadIdx.x];
}

extern "C" void HL_OP(fp8_quantise)(struct hl_backend *backend, const struct hl_fp8_quantise *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const unsigned grid = (unsigned)(hl_pieces(a->rows, SIDE) * hl_pieces(a->cols, SIDE));
    HL_ASSERT(a->rows % HL_FP8_ALIGN == 0 && a->cols % HL_FP8_ALIGN == 0 && a->ld % WIDE == 0 &&
              (uintptr_t)a->x % 16 == 0);
    if (grid == 0) return;
    void (*const kernel)(struct hl_fp8_quantise, int64_t, int64_t) =
        a->blocks ? (a->format == HL_E4M3 ? tile<true, HL_E4M3> : tile<true, HL_E5M2>)
                  : (a->format == HL_E4M3 ? tile<false, HL_E4M3> : tile<false, HL_E5M2>);
    launch(c, kernel, grid, THREADS, 0, *a, hl_fp8_blocks_row(a->cols), hl_fp8_blocks_row(a->rows));
}
