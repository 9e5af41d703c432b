/* cache_back_block_cuda.cuh -- the shared memory of cache_back_block_cuda.cu and cache_back_block256_cuda.cu, with the
 * copies to and from it. */
#ifndef HL_CACHE_BACK_BLOCK_CUDA_CUH
#define HL_CACHE_BACK_BLOCK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/epilogue.cuh"
#include "ops/cache/cache_back_cuda.cuh"

enum { GROUP = 128, THREADS = 32 * BLOCK_WARPS, SQUARE = TILE * TILE };

/* Rows of D numbers are panels of 64. */
template <int D> struct back_smem {
    enum {
        TILES = D > 128 ? 2 : 4,           /* of queries in shared memory at a time */
        ROWS = TILES * TILE / BLOCK_WARPS, /* of them per warp */
        COLUMNS = D > 128 ? 64 : D         /* of dk and dv that a warpgroup sums at a time */
    };
    bf16 q[TILES][TILE * D], dout[TILES][TILE * D], k[TILE * D], v[TILE * D];
    bf16 p[TILES][SQUARE], ds[TILES][SQUARE];      /* [query][key] of a tile; results of D <= 128 are staged there */
    float lse[TILES * TILE], rowdot[TILES * TILE]; /* log2 of the denominator over lambda; dout.read */
};

/* One cache block and one value head: item `at` = block x HV + h */
struct item {
    int row, len, kept;
};
static __device__ __forceinline__ struct item item_of(const struct cache_dev &c, int at, int items) {
    struct item x = {0, 0, 0};
    if (at >= items) return x;
    const struct hl_dev_span p = c.rows.block[at / (int)c.a.HV];
    const struct hl_seg s = c.rows.seg[p.seg];
    x.row = p.row, x.len = p.len;
    x.kept = min(p.row - (int)s.row, (int)c.a.window); /* segments start empty */
    return x;
}

/* ---- copies; to be committed ---- */

/* 64 rows of head h of x [T][HV][D] from `row` on; zeros from the `left`-th on */
template <int D>
static __device__ __forceinline__ void copy_rows(bf16 *to, const struct cache_dev &c, const void *x, int h, int row,
                                                 int left) {
    const bf16 *from = (const bf16 *)x + ((int64_t)row * c.a.HV + h) * D;
#pragma unroll
    for (int i = 0; i < D / 64; i++)
        copy_panel<64, TILE, THREADS>(to + i * SQUARE, from + 64 * i, c.a.HV * D, left, threadIdx.x);
}
/* Tile i of a block's queries, if it exists. */
template <int D>
static __device__ __forceinline__ void copy_queries(struct back_smem<D> *m, const struct cache_dev &c,
                                                    const struct item &x, int h, int i) {
    if (i * TILE >= x.len) return;
    copy_rows<D>(m->q[i], c, c.a.q, h, x.row + i * TILE, x.len - i * TILE);
    copy_rows<D>(m->dout[i], c, c.a.dout, h, x.row + i * TILE, x.len - i * TILE);
}
/* The ids of the kept rows that this thread will copy, loaded in advance */
static __device__ __forceinline__ void prefetch_kept_ids(const struct cache_dev &c, int at, int tile, int id[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int slot = tile * TILE + i * (TILE / 2) + threadIdx.x / 8;
        id[i] = slot < c.a.window ? (int)c.a.sel[(int64_t)at * c.a.window + slot] : -1;
    }
}
/* Tile n of a block's keys: kept ones first */
template <int D>
static __device__ __forceinline__ void copy_keys(struct back_smem<D> *m, const struct cache_dev &c,
                                                 const struct item &x, int h, int n, const int id[2]) {
    const int from = (n - tiles_of(x.kept)) * TILE;
    if (from >= 0) {
        copy_rows<D>(m->k, c, c.a.k, h, x.row + from, x.len - from);
        copy_rows<D>(m->v, c, c.a.v, h, x.row + from, x.len - from);
        return;
    }
    const int col = threadIdx.x % 8 * 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t row = ((int64_t)max(id[i], 0) * c.a.HV + h) * D + col;
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            const int to = j * SQUARE + tile_at<64>(i * (TILE / 2) + threadIdx.x / 8, col);
            copy_async(m->k + to, (const bf16 *)c.a.k + row + 64 * j, id[i] < 0 ? 0 : 16);
            copy_async(m->v + to, (const bf16 *)c.a.v + row + 64 * j, id[i] < 0 ? 0 : 16);
        }
    }
}

/* ---- results: a warpgroup's 64 rows ---- */

/* gradients of kept rows, as floats, 2 D apart */
template <int D> static __device__ __forceinline__ void write_share(float *to, const float (*d)[4], int rows) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row + 8 * i < rows)
                *(float2 *)(to + (row + 8 * i) * 2 * D + n * 8 + 2 * t) = make_float2(d[n][2 * i], d[n][2 * i + 1]);
}
/* Rows of a result, 16 bytes at a time: those of one thread */
template <int D> struct lines {
    enum { CHUNKS = D / 8, STEP = GROUP / CHUNKS, EACH = TILE / STEP };
    uint4 x[EACH];
};
template <int D>
static __device__ __forceinline__ void read_lines(struct lines<D> &old, const bf16 *from, int ld, int rows,
                                                  bool there) {
    const int i = threadIdx.x % GROUP, r = i / lines<D>::CHUNKS, at = i % lines<D>::CHUNKS * 8;
#pragma unroll
    for (int n = 0; n < lines<D>::EACH; n++) {
        const int row = r + n * lines<D>::STEP;
        old.x[n] = make_uint4(0, 0, 0, 0);
        if (there && row < rows) old.x[n] = *(const uint4 *)(from + row * ld + at);
    }
}
/* 64 x 64 accumulators as operands of the next product, and those to a tile */
static __device__ __forceinline__ void pack_square(uint32_t (*x)[4], const float (*d)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
}
static __device__ __forceinline__ void store_square(bf16 *to, const uint32_t (*x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) tile_stmatrix(to, threadIdx.x / 32 % 4 * 16, 16 * i, x[i]);
}

/* to = d, or d + old: 64 rows, staged in two squares: columns up to 64, and those from 64 on */
template <int D, bool ADD>
static __device__ __forceinline__ void write_tile(bf16 *to, int ld, int rows, const float (*d)[4],
                                                  const struct lines<D> &old, bf16 *left, bf16 *right, int group) {
    enum { CHUNKS = lines<D>::CHUNKS, STEP = lines<D>::STEP };
    const int first = threadIdx.x % GROUP / CHUNKS, chunk = threadIdx.x % CHUNKS;
    uint32_t x[4][4];
    pack_square(x, d);
    store_square(left, x);
    if (D == 128) pack_square(x, d + 8), store_square(right, x);
    named_barrier_sync(1 + group, GROUP);
    const bf16 *from = (chunk < 8 ? left : right) + tile_at<64>(first, chunk % 8 * 8);
    to += first * ld + chunk * 8;
    static_assert(STEP % 8 == 0, "steps of whole groups of 8 rows");
#pragma unroll
    for (int n = 0; n < lines<D>::EACH; n++) {
        const int r = n * STEP;
        uint4 y = *(const uint4 *)(from + r * 64);
        if (ADD) y = add_pairs(y, old.x[n]);
        if (first + r < rows) *(uint4 *)(to + r * ld) = y;
    }
}

#endif
