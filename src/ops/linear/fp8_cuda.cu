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

/* Grid: blocks of 128 columns, groups of rows. */
template <int ROWS, int format, bool once>
static __global__ void __launch_bounds__(256, ROWS == 4 ? 6 : 4) by_rows(struct source a, struct fp8_forms f) {
    const struct fp8_lane l = fp8_lane_of();
    const int i = a.row0 + (blockIdx.y * (256 / FP8_ACROSS) + l.ty) * ROWS, j = blockIdx.x * FP8_SIDE + l.tx * FP8_EACH;
    uint32_t x[ROWS][FP8_PAIRS], column[FP8_PAIRS], row[ROWS / 2];
    fp8_load<ROWS, once>(x, a.x + (int64_t)i * a.ld + j, a.ld, i < f.rows && j < f.cols);
    fp8_patch_most<ROWS>(x, column, row);
    fp8_make_rows<ROWS, format>(x, row, l.lane, i, j, blockIdx.x, f);
}

/* Grid: tiles. */
template <int ROWS, int format, bool once>
static __global__ void __launch_bounds__(fp8_tile<ROWS>::THREADS, ROWS == 8 ? 4 : 3)
    tiles(struct source a, struct fp8_forms f) {
    __shared__ struct fp8_tile<ROWS> s;
    const struct fp8_place at = fp8_place_of<ROWS>(a.row0);
    uint32_t x[ROWS][FP8_PAIRS];
    fp8_load<ROWS, once>(x, a.x + (int64_t)at.i * a.ld + at.j, a.ld, at.i < f.rows && at.j < f.cols);
    fp8_make_tile<ROWS, format>(x, &s, at.i0, at.j0, f);
}

/* The same, persistent: the next tile is on its way to shared memory while this one is in registers. A thread reads
 * only what it has copied itself. */
template <int format>
static __global__ void __launch_bounds__(fp8_tile<8>::THREADS, 4) tiles_ahead(struct source a, struct fp8_forms f) {
    enum { ROWS = 8, THREADS = fp8_tile<ROWS>::THREADS };
    struct fp8_tile<ROWS> *s = (struct fp8_tile<ROWS> *)shared_memory();
    uint4 *next = (uint4 *)(s + 1) + threadIdx.x;
    const struct fp8_lane l = fp8_lane_of();
    const unsigned across = (f.cols + FP8_SIDE - 1) / FP8_SIDE, all = across * ((f.rows + FP8_SIDE - 1) / FP8_SIDE);
    int i0 = -1, j0 = 0;
    for (unsigned t = blockIdx.x;; t += gridDim.x) {
        const int now_i = i0, now_j = j0;
        uint32_t x[ROWS][FP8_PAIRS];
        if (now_i >= 0) {
            copy_wait<0>();
#pragma unroll
            for (int p = 0; p < ROWS; p++) {
                const uint4 u = next[p * THREADS];
                x[p][0] = u.x, x[p][1] = u.y, x[p][2] = u.z, x[p][3] = u.w;
            }
        }
        if (t < all) {
            i0 = t / across * FP8_SIDE, j0 = t % across * FP8_SIDE;
            const int i = i0 + l.ty * ROWS, j = j0 + l.tx * FP8_EACH;
            const bool in = i < f.rows && j < f.cols;
            const act *from = in ? a.x + (int64_t)i * a.ld + j : a.x;
#pragma unroll
            for (int p = 0; p < ROWS; p++) copy_async(next + p * THREADS, from + (in ? p * a.ld : 0), in ? 16 : 0);
            copy_commit();
        }
        if (now_i >= 0) fp8_make_tile<ROWS, format>(x, s, now_i, now_j, f);
        if (t >= all) return;
    }
}

/* The largest magnitude of a tile, in both halves of a word. */
template <int ROWS> static __device__ __forceinline__ uint32_t whole_most(const uint32_t *column, uint32_t *shared) {
    uint32_t m = larger_pair(larger_pair(column[0], column[1]), larger_pair(column[2], column[3]));
    for (int i = 16; i > 0; i /= 2) m = larger_pair(m, __shfl_xor_sync(0xffffffffu, m, i));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < fp8_tile<ROWS>::WARPS; w++) m = larger_pair(m, shared[w]);
    return larger_pair(m, low_halves(m >> 16, m));
}
/* The scale of tile (i, j) of a form that is `across` tiles wide; the last tile of a row pads the table's row with 1. */
static __device__ __forceinline__ void put_tile_scale(float *table, int i, int j, int across, float scale) {
    const int row = (across + 3) / 4 * 4, at = j + threadIdx.x;
    if (threadIdx.x == 0) table[(int64_t)i * row + j] = scale;
    else if (j == across - 1 && at < row) table[(int64_t)i * row + at] = 1.0f;
}
template <int format>
static __global__ void __launch_bounds__(fp8_tile<8>::THREADS, 4) weights(struct source a, struct fp8_forms f) {
    enum { ROWS = 8 };
    __shared__ struct fp8_tile<ROWS> s;
    const struct fp8_place at = fp8_place_of<ROWS>(a.row0);
    const bool in = at.i < f.rows && at.j < f.cols;
    uint32_t x[ROWS][FP8_PAIRS], column[FP8_PAIRS], row[ROWS / 2];
    fp8_load<ROWS>(x, a.x + (int64_t)at.i * a.ld + at.j, a.ld, in);
    fp8_patch_most<ROWS>(x, column, row);
    const struct fp8_scales of = fp8_scale_pair<format>(whole_most<ROWS>(column, s.inverse));
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
    static const struct {
        void (*kernel)(struct source, struct fp8_forms);
        int rows, threads;
    } rows[] = {{by_rows<4, format, false>, 64, 256},
                {by_rows<4, format, true>, 64, 256},
                {by_rows<8, format, false>, 128, 256},
                {tiles<8, format, false>, 128, 256}},
      columns[] = {
          {tiles<8, format, false>, 128, 256}, {tiles<8, format, true>, 128, 256}, {tiles<4, format, false>, 128, 512}};
    const enum hl_fp8_kind kind = !a->codes_t ? HL_FP8_ROWS : a->codes ? HL_FP8_BOTH : HL_FP8_COLUMNS;
    const int d = hl_fp8_maker[kind].taken;
    const struct fp8_forms f = {(int)a->rows, (int)a->cols, a->codes, a->codes_t, a->scale, a->scale_t};
    const struct source from = {(const act *)a->x, (uint32_t)a->ld, 0};
    const int64_t across = hl_pieces(a->cols, FP8_SIDE);
    if (a->blocks) fp8_launch(c, weights<format>, 256, FP8_SIDE, across, from, &f);
    else if (kind == HL_FP8_ROWS) fp8_launch(c, rows[d].kernel, rows[d].threads, rows[d].rows, across, from, &f);
    else if (d < 3) fp8_launch(c, columns[d].kernel, columns[d].threads, columns[d].rows, across, from, &f);
    else {
        const unsigned n = (unsigned)across * blocks_for(a->rows, FP8_SIDE), most = 4 * (unsigned)hl_cuda_sms(c);
        launch(c, tiles_ahead<format>, n < most ? n : most, 256, sizeof(struct fp8_tile<8>) + 32768, from, f);
    }
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
