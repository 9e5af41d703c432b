/* fp8_cuda.cu -- op fp8_quantise (fp8.h): reads a matrix once and writes both forms, or one.
 *
 * Three kernels. by_rows: rows alone; a half-warp has 4 rows of 128 numbers: no shared memory, no barrier. tiles: columns,
 * or both forms; a block of threads has 128 x 128 numbers in registers (fp8_tile_cuda.cuh). weights: the same with one
 * scale for all of them. With float activations, for checking: plain loops. */
#ifdef HL_CUDA_F32
#include "ops/linear/fp8_plain_cuda.cuh"
#else
#include "ops/linear/fp8_tile_cuda.cuh"

struct source {
    const act *x;
    uint32_t ld, row0; /* the first row of this launch */
};

/* rows of a thread's patch, threads, rows of all their patches */
enum { BY_ROWS_EACH = 4, BY_ROWS_THREADS = 256, BY_ROWS_GROUP = BY_ROWS_THREADS / FP8_ACROSS * BY_ROWS_EACH };
enum { TILE_EACH = 8, TILE_THREADS = fp8_tile<TILE_EACH>::THREADS };

/* Grid: blocks of 128 columns, groups of rows. */
template <int format>
static __global__ void __launch_bounds__(BY_ROWS_THREADS, 6) by_rows(struct source a, struct fp8_forms f) {
    enum { ROWS = BY_ROWS_EACH };
    const struct fp8_lane l = fp8_lane_of();
    const int i = a.row0 + (blockIdx.y * (BY_ROWS_THREADS / FP8_ACROSS) + l.ty) * ROWS,
              j = blockIdx.x * FP8_SIDE + l.tx * FP8_EACH;
    uint32_t x[ROWS][FP8_PAIRS], column[FP8_PAIRS], row[ROWS / 2];
    fp8_load<ROWS>(x, a.x + (int64_t)i * a.ld + j, a.ld, i < f.rows && j < f.cols);
    fp8_patch_most<ROWS>(x, column, row);
    fp8_make_rows<ROWS, format>(x, row, l.lane, i, j, blockIdx.x, f);
}

/* Grid: tiles. */
template <int format>
static __global__ void __launch_bounds__(TILE_THREADS, 4) tiles(struct source a, struct fp8_forms f) {
    __shared__ struct fp8_tile<TILE_EACH> s;
    const struct fp8_place at = fp8_place_of<TILE_EACH>(a.row0);
    uint32_t x[TILE_EACH][FP8_PAIRS];
    fp8_load<TILE_EACH>(x, a.x + (int64_t)at.i * a.ld + at.j, a.ld, at.i < f.rows && at.j < f.cols);
    fp8_make_tile<TILE_EACH, format>(x, &s, at.i0, at.j0, f);
}

/* The largest magnitude of a tile, in both halves of a word. */
static __device__ __forceinline__ uint32_t whole_most(const uint32_t *column, uint32_t *shared) {
    uint32_t m = larger_pair(larger_pair(column[0], column[1]), larger_pair(column[2], column[3]));
    for (int i = 16; i > 0; i /= 2) m = larger_pair(m, __shfl_xor_sync(0xffffffffu, m, i));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < fp8_tile<TILE_EACH>::WARPS; w++) m = larger_pair(m, shared[w]);
    return larger_pair(m, low_halves(m >> 16, m));
}
/* The scale of tile (i, j) of a form that is `across` tiles wide; the last tile of a row pads the table's row with 1. */
static __device__ __forceinline__ void put_tile_scale(float *table, int i, int j, int across, float scale) {
    const int row = (across + 3) / 4 * 4, at = j + threadIdx.x;
    if (threadIdx.x == 0) table[(int64_t)i * row + j] = scale;
    else if (j == across - 1 && at < row) table[(int64_t)i * row + at] = 1.0f;
}
template <int format>
static __global__ void __launch_bounds__(TILE_THREADS, 4) weights(struct source a, struct fp8_forms f) {
    enum { ROWS = TILE_EACH };
    __shared__ struct fp8_tile<ROWS> s;
    const struct fp8_place at = fp8_place_of<ROWS>(a.row0);
    const bool in = at.i < f.rows && at.j < f.cols;
    uint32_t x[ROWS][FP8_PAIRS], column[FP8_PAIRS], row[ROWS / 2];
    fp8_load<ROWS>(x, a.x + (int64_t)at.i * a.ld + at.j, a.ld, in);
    fp8_patch_most<ROWS>(x, column, row);
    const struct fp8_scales of = fp8_scale_pair<format>(whole_most(column, s.inverse));
    if (f.codes) {
        for (int k = 0; k < ROWS / 2; k++) row[k] = of.inverse;
        if (in) fp8_put_rows<ROWS, format>(x, row, f.codes + (int64_t)at.i * f.cols + at.j, (uint32_t)f.cols);
        put_tile_scale(f.scale, at.i0 / FP8_SIDE, blockIdx.x, gridDim.x, low(of.scale));
    }
    if (!f.codes_t) return;
    fp8_put_columns<ROWS, format>(x, make_uint4(of.inverse, of.inverse, of.inverse, of.inverse), fp8_lane_of(), s.code);
    put_tile_scale(f.scale_t, blockIdx.x, at.i0 / FP8_SIDE, (f.rows + FP8_SIDE - 1) / FP8_SIDE, low(of.scale));
    __syncthreads();
    fp8_copy_columns<ROWS>(s.code, at.i0, at.j0, f);
}

template <int format> static void quantise(struct hl_cuda *c, const struct hl_fp8_quantise *a) {
    const struct fp8_forms f = {(int)a->rows, (int)a->cols, a->codes, a->codes_t, a->scale, a->scale_t};
    const struct source from = {(const act *)a->x, (uint32_t)a->ld, 0};
    const int64_t across = hl_pieces(a->cols, FP8_SIDE);
    if (a->blocks) fp8_launch(c, weights<format>, TILE_THREADS, FP8_SIDE, across, from, &f);
    else if (a->codes_t) fp8_launch(c, tiles<format>, TILE_THREADS, FP8_SIDE, across, from, &f);
    else fp8_launch(c, by_rows<format>, BY_ROWS_THREADS, BY_ROWS_GROUP, across, from, &f);
}
#endif

extern "C" void HL_OP(fp8_quantise)(struct hl_backend *backend, const struct hl_fp8_quantise *a) {
    HL_ASSERT(a->rows % HL_FP8_ALIGN == 0 && a->cols % HL_FP8_ALIGN == 0 && a->ld % WIDE == 0 &&
              (uintptr_t)a->x % 16 == 0);
    if (a->rows == 0 || a->cols == 0) return;
#ifdef HL_CUDA_F32
    quantise(hl_cuda_of(backend), a);
#else
    if (a->format == HL_E4M3) quantise<HL_E4M3>(hl_cuda_of(backend), a);
    else quantise<HL_E5M2>(hl_cuda_of(backend), a);
#endif
}
