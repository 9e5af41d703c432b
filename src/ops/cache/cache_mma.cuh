/* cache_mma.cuh -- tiles of rows in shared memory, and their products on tensor cores. */
#ifndef HL_CACHE_MMA_CUH
#define HL_CACHE_MMA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mma.cuh"
#include "ops/cache/cache_cuda.cuh"

/* Leading dimension of a tile: rows are padded by 16 bytes, so that the 8 rows of a fragment are in different banks. */
template <int D> struct tile {
    enum { LD = D + 8, CHUNKS = D / 8 };
};

/* d[N/8] (16 x N) += A (16 x D, from row `row`) B^T (N x D, from row `column`), both stored by rows; for two pairs
 * of tiles at once: twice as many independent accumulators. */
template <int D, int N>
static __device__ __forceinline__ void product_rows_two(float d[][4], const bf16 *a_tile, const bf16 *b_tile,
                                                        float e[][4], const bf16 *a2_tile, const bf16 *b2_tile, int row,
                                                        int column) {
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4], a2[4], b[4], b2[4];
        mma_load_a(a, a_tile, tile<D>::LD, row, k);
        mma_load_a(a2, a2_tile, tile<D>::LD, row, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            mma_load_b(b, b_tile, tile<D>::LD, column + n, k);
            mma_load_b(b2, b2_tile, tile<D>::LD, column + n, k);
            mma_bf16(d[n / 8], a, b);
            mma_bf16(d[n / 8 + 1], a, b + 2);
            mma_bf16(e[n / 8], a2, b2);
            mma_bf16(e[n / 8 + 1], a2, b2 + 2);
        }
    }
}

/* Accumulators of 16 x 16, columns from 16 i on, as a fragment of A. */
static __device__ __forceinline__ void as_fragment(uint32_t a[4], const float d[][4], int i) {
    a[0] = pack2(d[2 * i][0], d[2 * i][1]), a[1] = pack2(d[2 * i][2], d[2 * i][3]);
    a[2] = pack2(d[2 * i + 1][0], d[2 * i + 1][1]), a[3] = pack2(d[2 * i + 1][2], d[2 * i + 1][3]);
}

/* One cache block and one value head. `states` is a constant without sessions, as in the backward pass: the compiler
 * then drops their code, which costs registers. */
struct block_view {
    int64_t h, hk;
    int row, len, skip; /* new rows of the block; rows of it stored in the state */
    int kept;
    const int32_t *id;  /* forward: [kept] */
    const int64_t *sel; /* backward: kept rows */
    struct cache_slots m;
};
static __device__ __forceinline__ struct block_view view_of(const struct cache_dev &c, int64_t block, int64_t h,
                                                            bool backward, bool states) {
    const struct hl_dev_span p = c.rows.block[block];
    const struct hl_seg s = c.rows.seg[p.seg];
    struct block_view v = {};
    v.h = h, v.hk = (int)h / (int)c.group;
    v.row = p.row, v.len = p.len, v.skip = states ? p.skip : 0;
    v.kept = states ? (int)kept_at(c, s.pos + p.row - s.row) : min(p.row - (int)s.row, (int)c.a.window);
    if (backward) v.sel = c.a.sel + (block * c.a.HV + h) * c.a.window;
    else v.id = c.id + (block * c.a.HV + h) * c.a.window;
    if (states && s.state) v.m = cache_slots_of(c, s, h);
    return v;
}
/* id of kept column i; of own column i */
static __device__ __forceinline__ int kept_id(const struct block_view &v, int i) {
    return i >= v.kept ? (int)NO_ROW : v.id ? v.id[i] : (int)v.sel[i];
}
static __device__ __forceinline__ int own_id(const struct cache_dev &c, const struct block_view &v, int i) {
    return i < v.skip ? -1 - ((int)c.a.window + i) : i < v.skip + v.len ? v.row + i - v.skip : (int)NO_ROW;
}

/* 16 bytes of a row: those at `global` [count][D] for a row of the batch, those of the state, or zeros */
template <int D>
static __device__ __forceinline__ void fetch(bf16 *to, const bf16 *global, int64_t row, const bf16 *state, int slot,
                                             int at) {
    if (row >= 0) copy_async(to, global + row * D + at);
    else if (slot < 0 || !state) copy_async(to, global, 0);
    else copy_async(to, state + (int64_t)slot * D + at);
}
/* N rows of head `head` of x [T][heads][D], from row `row` of the batch on; zeros from the `left`-th on. A thread
 * copies the same 16 bytes of rows at a fixed stride. All threads; the caller commits. */
template <int D, int N, int THREADS>
static __device__ __forceinline__ void fetch_rows(bf16 *to, const void *x, int64_t heads, int64_t head, int row,
                                                  int left) {
    enum { STEP = THREADS / tile<D>::CHUNKS };
    const int r = threadIdx.x / tile<D>::CHUNKS, at = threadIdx.x % tile<D>::CHUNKS * 8;
    const bf16 *from = (const bf16 *)x + ((int64_t)(row + r) * heads + head) * D + at;
    const int stride = STEP * (int)heads * D;
    to += r * tile<D>::LD + at;
#pragma unroll
    for (int n = 0; n < N / STEP; n++) {
        const bool there = r + n * STEP < left;
        copy_async(to + n * STEP * tile<D>::LD, there ? from + n * stride : (const bf16 *)x, there ? 16 : 0);
    }
}
/* N columns, k and v (or k alone), from column `from` on: kept ones or the block's own. */
template <int D, int N, int THREADS>
static __device__ __forceinline__ void fetch_columns(bf16 *k, bf16 *v, const struct cache_dev &c,
                                                     const struct block_view &s, bool kept, int from) {
    if (!kept && from >= s.skip) {
        const int row = s.row + from - s.skip, left = s.len + s.skip - from;
        fetch_rows<D, N, THREADS>(k, c.a.k, c.a.H, s.hk, row, left);
        if (v) fetch_rows<D, N, THREADS>(v, c.a.v, c.a.HV, s.h, row, left);
        return;
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < N * tile<D>::CHUNKS; i += THREADS) {
        const int r = i / tile<D>::CHUNKS, at = i % tile<D>::CHUNKS * 8;
        const int id = kept ? kept_id(s, from + r) : own_id(c, s, from + r);
        const int slot = id == (int)NO_ROW ? -1 : -1 - id;
        fetch<D>(k + r * tile<D>::LD + at, (const bf16 *)c.a.k, id < 0 ? -1 : (int64_t)id * c.a.H + s.hk, s.m.k, slot,
                 at);
        if (v)
            fetch<D>(v + r * tile<D>::LD + at, (const bf16 *)c.a.v, id < 0 ? -1 : (int64_t)id * c.a.HV + s.h, s.m.v,
                     slot, at);
    }
}

#endif
