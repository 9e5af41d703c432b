/* cache_back_block_cuda.cu -- backward of the exact memory, one cache block at a time: everything is read once, and the
 * scores of a tile are computed once for dq, dk and dv.
 *
 * Persistent kernel: one thread block per SM, two warpgroups; items are (block, value head). Shared memory (struct
 * back_smem): the block's queries and their dout, four tiles of 64 rows; one tile of 64 keys and values; p and ds of
 * all queries with those keys. Tiles of keys are processed in order, first the kept ones, then the block's own. Each
 * warpgroup has two tiles of queries, with dq in registers. For a tile of keys both compute p and ds of their queries
 * and add to dq; barrier; then one sums dv from all p and the other dk from all ds, while the next keys are copied;
 * barrier. Own keys are visible to their own tile of queries and later ones, so the query tiles retire one after
 * another, and those of the next item replace them. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/cache/cache_back_tiles_cuda.cuh"

#ifndef HL_CUDA_F32
/* dv (group 0) or dk (group 1) of tile n of the keys, once p and ds of all queries are complete */
template <int D>
static __device__ __forceinline__ void finish_keys(struct back_smem<D> *m, const struct cache_dev &c,
                                                   const struct cache_back &b, const struct item &x, int at, int h,
                                                   int n, int group) {
    const int kepts = tiles_of(x.kept), own = n - kepts, end = tiles_of(x.len);
    const int ld = (int)c.a.HV * D;
    float d[D / 8][4] = {};
    struct lines<D> old;
    bf16 *to = (bf16 *)(group ? c.a.dk : c.a.dv) + ((int64_t)(x.row + own * TILE) * c.a.HV + h) * D;
    read_lines<D>(old, to, ld, x.len - own * TILE, own >= 0 && group == 0);
    if (group) sum_queries<D>(d, m->ds, m->q, 0, max(own, 0), end);
    else sum_queries<D>(d, m->p, m->dout, 0, max(own, 0), end);
    if (own < 0) {
        write_share<D>(b.kept + ((int64_t)at * c.a.window + n * TILE) * 2 * D + (group ? 0 : D), d, x.kept - n * TILE);
        return;
    }
    bf16(*stage)[SQUARE] = group ? m->ds : m->p;
    named_barrier_sync(1 + group, GROUP); /* other warps' products may still be reading it */
    write_tile<D, true>(to, ld, x.len - own * TILE, d, old, stage[0], stage[1], group); /* dk's old: 0 */
}
/* dq of tile i, which has no keys left: staged in place of its p and ds */
template <int D>
static __device__ __forceinline__ void write_dq(struct back_smem<D> *m, const struct cache_dev &c, const struct item &x,
                                                int h, int i, const float (*d)[4], int group) {
    bf16 *to = (bf16 *)c.a.dq + ((int64_t)(x.row + i * TILE) * c.a.HV + h) * D;
    const struct lines<D> none = {};
    write_tile<D, false>(to, (int)c.a.HV * D, x.len - i * TILE, d, none, m->p[i], m->ds[i], group);
}

/* Which of the four tiles of queries is the a-th of a group: 0 and 3, or 1 and 2 */
enum { TILES = back_smem<128>::TILES };
static __device__ __forceinline__ int tile_of(int a, int group) { return a ? TILES - 1 - group : group; }

template <int D, bool TAU>
static __global__ void __launch_bounds__(THREADS, 1)
    back_block(const struct cache_dev c, const struct cache_back b, int items) {
    struct back_smem<D> *m = (struct back_smem<D> *)shared_tiles();
    const int group = warpgroup_index(), step = gridDim.x, HV = (int)c.a.HV;
    named_barrier_init();
    pdl_wait(), pdl_trigger();
    struct item x = item_of(c, blockIdx.x, items);
    int id[2] = {-1, -1};
    if (x.kept > 0) prefetch_kept_ids(c, blockIdx.x, 0, id);
    for (int i = 0; i < TILES; i++) copy_queries<D>(m, c, x, blockIdx.x % HV, i);
    copy_keys<D>(m, c, x, blockIdx.x % HV, 0, id);
    copy_commit();
    for (int at = blockIdx.x; at < items; at += step) {
        const int h = at % HV, kepts = tiles_of(x.kept), tiles = tiles_of(x.len), all = kepts + tiles;
        const int h1 = (at + step) % HV, share = (at / HV * BLOCK_WARPS + threadIdx.x / 32) * HV + h;
        const float tau = c.a.tau[h] * (1.0f / sqrtf((float)D));
        struct loaded_reads<D> read;
        prefetch_reads<D>(read, c, x, h);
        const struct item next = item_of(c, at + step, items);
        copy_wait<0>();
        fence_proxy_async();
        __syncthreads(); /* queries and first keys have arrived */
        row_dots<D>(m, c, read, x, h, b.gate_sink + share * 2);
        for (int i = tiles; i < TILES; i++) copy_queries<D>(m, c, next, h1, i);
        float dq[2][D / 8][4] = {}, dtau = 0;
        __syncthreads();
        for (int n = 0; n < all; n++) {
            const int own = n - kepts;
            const bool last = n + 1 == all;
            if (last ? next.kept > 0 : n + 1 < kepts) prefetch_kept_ids(c, last ? at + step : at, last ? 0 : n + 1, id);
#pragma unroll
            for (int a = 0; a < 2; a++) {
                const int i = tile_of(a, group);
                const struct mask e = {own < 0 ? x.kept - n * TILE : x.len - own * TILE, own == i};
                if (i >= own && i < tiles) dtau += score_tile<D, TAU>(dq[a], m, i, tau, e);
            }
            fence_proxy_async();
            __syncthreads(); /* p and ds are complete, these keys are free */
            if (last) copy_keys<D>(m, c, next, h1, 0, id);
            else copy_keys<D>(m, c, x, h, n + 1, id);
            copy_commit();
            finish_keys<D>(m, c, b, x, at, h, n, group);
            copy_wait<0>();
            fence_proxy_async();
            __syncthreads(); /* the next keys have arrived, p and ds are free */
            if (own < 0) continue;
            copy_queries<D>(m, c, next, h1, own);
            copy_commit();
            if (own == tile_of(0, group)) write_dq<D>(m, c, x, h, own, dq[0], group);
            if (own == tile_of(1, group)) write_dq<D>(m, c, x, h, own, dq[1], group);
        }
        if (TAU) {
            dtau = warp_sum(dtau);
            if (threadIdx.x % 32 == 0) b.tau[share] = dtau / sqrtf((float)D);
        }
        x = next;
    }
}

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const int items = (int)(c->rows.blocks * c->a.HV), sms = hl_cuda_sms(cuda);
    const unsigned grid = (unsigned)(items < sms ? items : sms);
    const size_t bytes = sizeof(struct back_smem<D>) + TILES_ROOM;
    if (c->a.dtau) launch_pdl(cuda, back_block<D, true>, grid, THREADS, bytes, *c, *b, items);
    else launch_pdl(cuda, back_block<D, false>, grid, THREADS, bytes, *c, *b, items);
}
void HL_OP(cache_back_block)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    if (c->a.K == 64) run<64>(cuda, c, b);
    else run<128>(cuda, c, b);
}
bool HL_OP(cache_back_block_fits)(struct hl_cuda *cuda, const struct hl_cache *a) {
    return a->H == a->HV && a->K <= 128 && a->chunk <= TILES * TILE &&
           hl_cuda_shared_limit(cuda) >=
               TILES_ROOM + (int)(a->K == 64 ? sizeof(struct back_smem<64>) : sizeof(struct back_smem<128>));
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_block)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
bool HL_OP(cache_back_block_fits)(struct hl_cuda *, const struct hl_cache *) { return false; }
#endif
