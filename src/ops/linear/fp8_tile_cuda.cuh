/* fp8_tile_cuda.cuh -- codes and scales (fp8.h) of bf16 that a block of threads has in registers: for fp8_quantise, and
 * for kernels that compute a matrix and write nothing but its codes.
 *
 * A thread has ROWS x 8 numbers, as packed pairs: patch (tx, ty) has columns 8 tx .. and rows ROWS ty .. of a tile of 128
 * columns. A warp has two rows of patches; 8 adjacent lanes have 128 bytes of a row. The scales of rows are found in a
 * warp. Those of columns, over 128 rows, are found through shared memory, and through it the codes by columns are
 * brought into pieces of 128 bytes. */
#ifndef HL_FP8_TILE_CUDA_CUH
#define HL_FP8_TILE_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fp8.cuh"

enum { FP8_SIDE = HL_FP8_BLOCK, FP8_EACH = 8, FP8_PAIRS = FP8_EACH / 2, FP8_ACROSS = FP8_SIDE / FP8_EACH };

/* Where the codes of a matrix go; those of weights have one scale per tile. Codes NULL: a form that is not wanted. */
struct fp8_forms {
    int rows, cols; /* multiples of 16 */
    uint8_t *codes, *codes_t;
    float *scale, *scale_t;
};
struct fp8_lane {
    int lane, warp, tx, ty;
};
static __device__ __forceinline__ struct fp8_lane fp8_lane_of() {
    struct fp8_lane l;
    l.lane = threadIdx.x % 32, l.warp = threadIdx.x / 32;
    l.tx = (l.lane % 8) | (l.lane & 16) / 2, l.ty = 2 * l.warp + l.lane / 8 % 2;
    return l;
}
/* In a grid of tiles: the first row and column of the block's tile, and of the thread's patch. row0: of the launch. */
struct fp8_place {
    int i0, j0, i, j;
};
template <int ROWS> static __device__ __forceinline__ struct fp8_place fp8_place_of(uint32_t row0) {
    const struct fp8_lane l = fp8_lane_of();
    struct fp8_place at;
    at.i0 = row0 + blockIdx.y * FP8_SIDE, at.j0 = blockIdx.x * FP8_SIDE;
    at.i = at.i0 + l.ty * ROWS, at.j = at.j0 + l.tx * FP8_EACH;
    return at;
}
/* A thread's patch: 0 outside of the matrix. */
template <int ROWS>
static __device__ __forceinline__ void fp8_load(uint32_t (*x)[FP8_PAIRS], const act *from, uint32_t ld, bool in) {
#pragma unroll
    for (int p = 0; p < ROWS; p++) {
        uint4 u = make_uint4(0, 0, 0, 0);
        if (in) u = *(const uint4 *)((const char *)from + p * ld * (uint32_t)sizeof(act));
        x[p][0] = u.x, x[p][1] = u.y, x[p][2] = u.z, x[p][3] = u.w;
    }
}

/* ---- magnitudes ---- */

/* The largest of a patch's columns, and of its rows, two in a word. */
template <int ROWS>
static __device__ __forceinline__ void fp8_patch_most(const uint32_t (*x)[FP8_PAIRS], uint32_t column[FP8_PAIRS],
                                                      uint32_t row[ROWS / 2]) {
#pragma unroll
    for (int k = 0; k < FP8_PAIRS; k++) column[k] = 0;
#pragma unroll
    for (int p = 0; p < ROWS; p += 2) {
        uint32_t m[FP8_PAIRS], n[FP8_PAIRS];
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++) {
            m[k] = x[p][k] & FP8_MAGNITUDES, n[k] = x[p + 1][k] & FP8_MAGNITUDES;
            column[k] = larger_pair(larger_pair(column[k], m[k]), n[k]);
        }
        const uint32_t a = larger_pair(larger_pair(larger_pair(m[0], m[1]), m[2]), m[3]);
        const uint32_t b = larger_pair(larger_pair(larger_pair(n[0], n[1]), n[2]), n[3]);
        row[p / 2] = larger_pair(low_halves(a, b), high_halves(a, b));
    }
}
/* Reduces those of rows over the 16 lanes with the same ty; a lane keeps the word fp8_row_word. Where lanes have more
 * words than they keep, each sends those which the other one keeps. */
template <int ROWS> static __device__ __forceinline__ uint32_t fp8_rows_most(uint32_t word[ROWS / 2], int lane) {
    const int step[] = {16, 4, 2, 1}; /* lanes that differ by 8 have other rows */
    int n = ROWS / 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (n == 1) {
            word[0] = larger_pair(word[0], __shfl_xor_sync(0xffffffffu, word[0], step[i]));
            continue;
        }
        n /= 2;
        const bool upper = lane & step[i];
#pragma unroll
        for (int k = 0; k < n; k++) {
            const uint32_t send = upper ? word[k] : word[k + n], keep = upper ? word[k + n] : word[k];
            word[k] = larger_pair(keep, __shfl_xor_sync(0xffffffffu, send, step[i]));
        }
    }
    return word[0];
}
template <int ROWS> static __device__ __forceinline__ int fp8_row_word(int lane) {
    return ROWS == 8 ? (lane & 16) / 8 + (lane & 4) / 4 : (lane & 16) / 16;
}
/* Of the lanes with the same word, the one that writes its scales. */
template <int ROWS> static __device__ __forceinline__ bool fp8_row_writer(int lane) {
    return (lane & (ROWS == 8 ? 3 : 7)) == 0;
}
/* Every lane gets all words of its rows again. */
template <int ROWS>
static __device__ __forceinline__ void fp8_share_words(uint32_t word, int lane, uint32_t out[ROWS / 2]) {
#pragma unroll
    for (int k = 0; k < ROWS / 2; k++)
        out[k] = __shfl_sync(0xffffffffu, word, (lane & 8) | (ROWS == 8 ? (k & 2) * 8 + (k & 1) * 4 : (k & 1) * 16));
}

/* ---- codes ---- */

/* The codes of a patch's rows, `ld` apart. inverse: two rows in a word. */
template <int ROWS, int format>
static __device__ __forceinline__ void fp8_put_rows(const uint32_t (*x)[FP8_PAIRS], const uint32_t inverse[ROWS / 2],
                                                    uint8_t *to, uint32_t ld) {
#pragma unroll
    for (int p = 0; p < ROWS; p++) {
        const uint32_t w = inverse[p / 2], s = p % 2 ? high_halves(w, w) : low_halves(w, w);
        uint32_t y[FP8_PAIRS];
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++) y[k] = times_pair(x[p][k], s);
        *(uint2 *)(to + p * ld) =
            make_uint2(fp8_pair<format>(low(y[0]), high(y[0])) | fp8_pair<format>(low(y[1]), high(y[1])) << 16,
                       fp8_pair<format>(low(y[2]), high(y[2])) | fp8_pair<format>(low(y[3]), high(y[3])) << 16);
    }
}
/* The form by rows of the patch at row i and column j of the matrix, in tile column bj; a warp at a time. */
template <int ROWS, int format>
static __device__ __forceinline__ void fp8_make_rows(const uint32_t (*x)[FP8_PAIRS], uint32_t row[ROWS / 2], int lane,
                                                     int i, int j, int bj, const struct fp8_forms &f) {
    const struct fp8_scales mine = fp8_scale_pair<format>(fp8_rows_most<ROWS>(row, lane));
    fp8_share_words<ROWS>(mine.inverse, lane, row);
    if (i < f.rows && j < f.cols)
        fp8_put_rows<ROWS, format>(x, row, f.codes + (int64_t)i * f.cols + j, (uint32_t)f.cols);
    if (fp8_row_writer<ROWS>(lane) && i < f.rows)
        *(float2 *)(f.scale + (int64_t)bj * f.rows + i + 2 * fp8_row_word<ROWS>(lane)) = both_halves(mine.scale);
}

template <int ROWS> struct fp8_tile {
    enum { THREADS = FP8_ACROSS * (FP8_SIDE / ROWS), WARPS = THREADS / 32 };
    uint4 code[FP8_SIDE * FP8_SIDE / 16]; /* of the form by columns: [column][16 rows], see fp8_put_columns */
    uint32_t most[WARPS][FP8_SIDE / 2];   /* of columns, two in a word */
    uint32_t inverse[FP8_SIDE / 2];
};

/* The codes of a patch's columns, to shared memory. 16 rows of a column are at position row / 16 ^ tx % 8, so that
 * neither the 8 lanes that write 8 columns nor those that read one meet in a bank. inverse: two columns in a word. */
template <int ROWS, int format>
static __device__ __forceinline__ void fp8_put_columns(const uint32_t (*x)[FP8_PAIRS], uint4 inverse, struct fp8_lane l,
                                                       uint4 *code) {
    const uint32_t s[] = {inverse.x, inverse.y, inverse.z, inverse.w};
    const int row = l.ty * ROWS;
    char *const to = (char *)(code + l.tx * FP8_EACH * (FP8_SIDE / 16) + (row / 16 ^ l.tx % 8)) + row % 16;
#pragma unroll
    for (int k = 0; k < FP8_PAIRS; k++) {
        uint32_t y[ROWS], even[ROWS / 4], odd[ROWS / 4]; /* columns */
#pragma unroll
        for (int p = 0; p < ROWS; p++) y[p] = times_pair(x[p][k], s[k]);
#pragma unroll
        for (int q = 0; q < ROWS / 4; q++) {
            const uint32_t *z = y + 4 * q;
            even[q] = fp8_pair<format>(low(z[0]), low(z[1])) | fp8_pair<format>(low(z[2]), low(z[3])) << 16;
            odd[q] = fp8_pair<format>(high(z[0]), high(z[1])) | fp8_pair<format>(high(z[2]), high(z[3])) << 16;
        }
        char *const column = to + 2 * k * FP8_SIDE;
        if (ROWS == 8) {
            *(uint2 *)column = make_uint2(even[0], even[ROWS / 4 - 1]);
            *(uint2 *)(column + FP8_SIDE) = make_uint2(odd[0], odd[ROWS / 4 - 1]);
        } else *(uint32_t *)column = even[0], *(uint32_t *)(column + FP8_SIDE) = odd[0];
    }
}
/* From there to the form by columns; i0, j0: the tile's first row and column. */
template <int ROWS>
static __device__ __forceinline__ void fp8_copy_columns(const uint4 *code, int i0, int j0, const struct fp8_forms &f) {
    enum { STEP = fp8_tile<ROWS>::THREADS / 8 };
    const int piece = threadIdx.x % 8, first = threadIdx.x / 8;
    uint8_t *const to = f.codes_t + (int64_t)(j0 + first) * f.rows + i0 + 16 * piece;
    if (i0 + 16 * piece >= f.rows) return;
#pragma unroll
    for (int k = 0; k < FP8_SIDE / STEP; k++) {
        const int j = first + k * STEP;
        if (j0 + j < f.cols) *(uint4 *)(to + (int64_t)k * STEP * f.rows) = code[j * 8 + (piece ^ j / FP8_EACH % 8)];
    }
}

/* ---- both forms ---- */

/* Of the tile with row i0 and column j0, multiples of 128, of which a thread has patch x. May be called again without a
 * barrier between. */
template <int ROWS, int format>
static __device__ __forceinline__ void fp8_make_tile(const uint32_t (*x)[FP8_PAIRS], struct fp8_tile<ROWS> *s, int i0,
                                                     int j0, const struct fp8_forms &f) {
    const struct fp8_lane l = fp8_lane_of();
    uint32_t column[FP8_PAIRS], row[ROWS / 2];
    fp8_patch_most<ROWS>(x, column, row);
    if (f.codes_t) {
#pragma unroll
        for (int k = 0; k < FP8_PAIRS; k++)
            column[k] = larger_pair(column[k], __shfl_xor_sync(0xffffffffu, column[k], 8));
        if ((l.lane & 8) == 0)
            *(uint4 *)&s->most[l.warp][l.tx * FP8_PAIRS] = make_uint4(column[0], column[1], column[2], column[3]);
        __syncthreads();
        const int word = threadIdx.x;
        if (word < FP8_SIDE / 2) { /* meanwhile the other warps go on with the rows */
            uint32_t m = 0;
#pragma unroll
            for (int w = 0; w < fp8_tile<ROWS>::WARPS; w++) m = larger_pair(m, s->most[w][word]);
            const struct fp8_scales scales = fp8_scale_pair<format>(m);
            s->inverse[word] = scales.inverse;
            if (j0 + 2 * word < f.cols)
                *(float2 *)(f.scale_t + (int64_t)(i0 / FP8_SIDE) * f.cols + j0 + 2 * word) = both_halves(scales.scale);
        }
    }
    if (f.codes) fp8_make_rows<ROWS, format>(x, row, l.lane, i0 + l.ty * ROWS, j0 + l.tx * FP8_EACH, j0 / FP8_SIDE, f);
    if (!f.codes_t) return;
    __syncthreads();
    fp8_put_columns<ROWS, format>(x, *(uint4 *)&s->inverse[l.tx * FP8_PAIRS], l, s->code);
    __syncthreads();
    fp8_copy_columns<ROWS>(s->code, i0, j0, f);
}

/* ---- launches ---- */

#ifdef HL_CUDA_EMU
enum { FP8_MOST_DOWN = 2 }; /* so that tests get beyond it */
#else
enum { FP8_MOST_DOWN = 65535 }; /* of a grid's y */
#endif

/* Grid: `across` columns of tiles, and groups of `rows` rows; from.row0 is set. */
template <class Source>
static void fp8_launch(struct hl_cuda *c, void (*kernel)(Source, struct fp8_forms), int threads, int rows,
                       int64_t across, Source from, const struct fp8_forms *f) {
    const int64_t down = hl_pieces(f->rows, rows);
    for (int64_t done = 0; done < down; done += FP8_MOST_DOWN) {
        const int64_t now = down - done < FP8_MOST_DOWN ? down - done : FP8_MOST_DOWN;
        from.row0 = (uint32_t)(done * rows);
        launch(c, kernel, dim3((unsigned)across, (unsigned)now), threads, 0, from, *f);
    }
}

#endif
