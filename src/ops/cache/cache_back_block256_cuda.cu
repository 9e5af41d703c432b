/* cache_back_block256_cuda.cu -- cache_back_block_cuda.cu for heads of 256: only two tiles of queries fit into shared
 * memory, so a block is processed in passes of two tiles of queries, each with its visible keys.
 *
 * Also a persistent kernel; each warpgroup has one tile of queries. Later passes add to the dk and dv that earlier ones
 * wrote, from the same thread. Results go from registers directly to global memory, 64 columns at a time, since there
 * is neither shared memory for staging nor registers for more accumulators. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/cache/cache_back_tiles_cuda.cuh"

#ifndef HL_CUDA_F32
enum { D = 256, TILES = back_smem<D>::TILES, N = back_smem<D>::COLUMNS };
typedef struct back_smem<D> smem;

/* One cache block and one value head, and the queries of one pass: from tile `first` on. */
struct query_pass {
    int at, h, first; /* at = block x HV + h */
    struct item all;  /* the block */
};
static __device__ __forceinline__ struct query_pass first_pass(const struct cache_dev &c, int at, int items) {
    struct query_pass x = {at, at % (int)c.a.HV, 0, item_of(c, at, items)};
    return x;
}
static __device__ __forceinline__ struct query_pass next_pass(const struct cache_dev &c, struct query_pass x,
                                                              int items) {
    x.first += TILES;
    return x.first * TILE < x.all.len ? x : first_pass(c, x.at + gridDim.x, items);
}
/* its queries */
static __device__ __forceinline__ struct item queries(const struct query_pass &x) {
    struct item q = x.all;
    q.row += x.first * TILE, q.len -= x.first * TILE;
    return q;
}
static __device__ __forceinline__ int tiles_in(const struct query_pass &x) {
    return min(tiles_of(x.all.len) - x.first, (int)TILES);
}

/* ---- results: a warpgroup's 64 rows ---- */

/* N columns of the gradients of kept rows, as floats, 2 D apart; add: accumulate onto earlier passes */
static __device__ __forceinline__ void add_share(float *to, const float (*d)[4], int rows, bool add) {
    enum { BATCH = 4 }; /* loads in flight */
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    to += row * 2 * D + 2 * t;
#pragma unroll
    for (int n = 0; n < N / 8; n += BATCH) {
        float2 x[BATCH][2];
#pragma unroll
        for (int j = 0; j < 2 * BATCH; j++) {
            x[j / 2][j % 2] = make_float2(0.0f, 0.0f);
            if (add && row + j % 2 * 8 < rows)
                x[j / 2][j % 2] = *(const float2 *)(to + j % 2 * 16 * D + (n + j / 2) * 8);
        }
#pragma unroll
        for (int j = 0; j < 2 * BATCH; j++) {
            const float *y = d[n + j / 2] + j % 2 * 2;
            const float2 old = x[j / 2][j % 2];
            if (row + j % 2 * 8 < rows)
                *(float2 *)(to + j % 2 * 16 * D + (n + j / 2) * 8) = make_float2(old.x + y[0], old.y + y[1]);
        }
    }
}
/* `width` columns of bf16. Adjacent lanes exchange their parts of 16 columns, so that each has four contiguous ones and
 * the four lanes of a row write whole sectors. */
template <int width> struct quads {
    uint2 x[width / 16][2];
    static __device__ __forceinline__ int row(int i) {
        return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * i;
    }
    static __device__ __forceinline__ int column(int n) {
        return 16 * n + threadIdx.x % 2 * 8 + threadIdx.x / 2 % 2 * 4;
    }
};
template <int width>
static __device__ __forceinline__ void read_quads(struct quads<width> &old, const bf16 *from, int ld, int rows,
                                                  bool there) {
#pragma unroll
    for (int n = 0; n < width / 16; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = old.row(i);
            old.x[n][i].x = old.x[n][i].y = 0;
            if (there && row < rows) old.x[n][i] = *(const uint2 *)(from + row * ld + old.column(n));
        }
}
/* to = d + old */
template <int width>
static __device__ __forceinline__ void write_quads(bf16 *to, int ld, int rows, const float (*d)[4],
                                                   const struct quads<width> &old) {
    const bool odd = threadIdx.x % 2;
#pragma unroll
    for (int n = 0; n < width / 16; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t a = pack2(d[2 * n][2 * i], d[2 * n][2 * i + 1]),
                           b = pack2(d[2 * n + 1][2 * i], d[2 * n + 1][2 * i + 1]);
            const uint32_t own = odd ? b : a, other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
            const uint2 o = old.x[n][i];
            uint2 y;
            y.x = add_pair(o.x, odd ? other : own), y.y = add_pair(o.y, odd ? own : other);
            if (old.row(i) < rows) *(uint2 *)(to + old.row(i) * ld + old.column(n)) = y;
        }
}

/* The location of dv (group 0) or dk (group 1) of a tile of the block's own keys, and its number of rows; `old`:
 * whether it is added to: dv always, dk if an earlier pass has seen the keys. */
struct place {
    bf16 *to;
    int rows;
    bool old;
};
static __device__ __forceinline__ struct place place_of(const struct cache_dev &c, const struct query_pass &x, int own,
                                                        int group) {
    struct place p;
    p.to = (bf16 *)(group ? c.a.dk : c.a.dv) + ((int64_t)(x.all.row + own * TILE) * c.a.HV + x.h) * D;
    p.rows = x.all.len - own * TILE;
    p.old = own >= 0 && (group == 0 || own < x.first);
    return p;
}

/* dv (group 0) or dk (group 1) of tile n of the keys, once p and ds of the pass's queries are complete. old: the
 * previous values of the first columns, loaded early; those of the next columns are loaded a step ahead. */
static __device__ __forceinline__ void finish_keys(smem *m, const struct cache_dev &c, const struct cache_back &b,
                                                   const struct query_pass &x, int n, int group, struct quads<N> old) {
    const int own = n - tiles_of(x.all.kept), first = max(own - x.first, 0), end = tiles_in(x);
    const int ld = (int)c.a.HV * D;
    const struct place p = place_of(c, x, own, group);
    float *share = b.kept + ((int64_t)x.at * c.a.window + n * TILE) * 2 * D + (group ? 0 : D);
#pragma unroll
    for (int col = 0; col < D; col += N) {
        float d[N / 8][4] = {};
        struct quads<N> next_old;
        read_quads<N>(next_old, p.to + col + N, ld, p.rows, p.old && col + N < D);
        if (group) sum_queries<D>(d, m->ds, m->q, col, first, end);
        else sum_queries<D>(d, m->p, m->dout, col, first, end);
        if (own < 0) add_share(share + col, d, x.all.kept - n * TILE, x.first > 0);
        else write_quads<N>(p.to + col, ld, p.rows, d, old);
        old = next_old;
    }
}

/* The location of the warp's summand of the pass; passes that a short block lacks write zeros. */
static __device__ __forceinline__ int share_of(const struct cache_dev &c, const struct query_pass &x, int passes,
                                               int i) {
    return ((x.at / (int)c.a.HV * passes + i) * BLOCK_WARPS + threadIdx.x / 32) * (int)c.a.HV + x.h;
}
static __device__ __forceinline__ void clear_rest(const struct cache_dev &c, const struct cache_back &b,
                                                  const struct query_pass &x, int passes) {
    for (int i = x.first / TILES + 1; i < passes; i++) {
        const int share = share_of(c, x, passes, i);
        b.gate_sink[share * 2] = b.gate_sink[share * 2 + 1] = b.tau[share] = 0;
    }
}

template <bool TAU>
static __global__ void __launch_bounds__(THREADS, 1)
    back_block256(const struct cache_dev c, const struct cache_back b, int items, int passes) {
    smem *m = (smem *)shared_tiles();
    const int group = warpgroup_index();
    named_barrier_init();
    pdl_wait(), pdl_trigger();
    struct query_pass x = first_pass(c, blockIdx.x, items);
    int id[2] = {-1, -1};
    if (x.all.kept > 0) prefetch_kept_ids(c, x.at, 0, id);
    for (int i = 0; i < TILES; i++) copy_queries<D>(m, c, x.all, x.h, i);
    copy_keys<D>(m, c, x.all, x.h, 0, id);
    copy_commit();
    while (x.at < items) {
        const int kepts = tiles_of(x.all.kept), tiles = tiles_in(x), all = kepts + x.first + tiles;
        const int share = share_of(c, x, passes, x.first / TILES);
        const float tau = c.a.tau[x.h] * (1.0f / sqrtf((float)D));
        struct loaded_reads<D> read;
        prefetch_reads<D>(read, c, queries(x), x.h);
        const struct query_pass next = next_pass(c, x, items);
        copy_wait<0>();
        fence_proxy_async();
        __syncthreads(); /* queries and first keys have arrived */
        row_dots<D>(m, c, read, queries(x), x.h, b.gate_sink + share * 2);
        if (next.at != x.at && threadIdx.x % 32 == 0) clear_rest(c, b, x, passes);
        for (int i = tiles; i < TILES; i++) copy_queries<D>(m, c, queries(next), next.h, i);
        float dq[D / 8][4] = {}, dtau = 0;
        __syncthreads();
        for (int n = 0; n < all; n++) {
            const int own = n - kepts, done = own - x.first;
            const bool last = n + 1 == all;
            if (last ? next.all.kept > 0 : n + 1 < kepts)
                prefetch_kept_ids(c, last ? next.at : x.at, last ? 0 : n + 1, id);
            const struct mask e = {own < 0 ? x.all.kept - n * TILE : x.all.len - own * TILE, done == group};
            const struct place p = place_of(c, x, own, group);
            struct quads<N> old;
            read_quads<N>(old, p.to, (int)c.a.HV * D, p.rows, p.old);
            if (group >= done && group < tiles) dtau += score_tile<D, TAU>(dq, m, group, tau, e);
            fence_proxy_async();
            __syncthreads(); /* p and ds are complete, these keys are free */
            if (last) copy_keys<D>(m, c, next.all, next.h, 0, id);
            else copy_keys<D>(m, c, x.all, x.h, n + 1, id);
            copy_commit();
            finish_keys(m, c, b, x, n, group, old);
            copy_wait<0>();
            fence_proxy_async();
            __syncthreads(); /* the next keys have arrived, p and ds are free */
            if (done < 0) continue;
            copy_queries<D>(m, c, queries(next), next.h, done);
            copy_commit();
            if (done != group) continue;
            const struct quads<D> none = {};
            const struct item q = queries(x);
            bf16 *to = (bf16 *)c.a.dq + ((int64_t)(q.row + group * TILE) * c.a.HV + x.h) * D;
            write_quads<D>(to, (int)c.a.HV * D, q.len - group * TILE, dq, none);
        }
        if (TAU) {
            dtau = warp_sum(dtau);
            if (threadIdx.x % 32 == 0) b.tau[share] = dtau / sqrtf((float)D);
        }
        x = next;
    }
}

void HL_OP(cache_back_block256)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const int items = (int)(c->rows.blocks * c->a.HV), sms = hl_cuda_sms(cuda);
    const int passes = (int)hl_pieces(c->a.chunk, TILES * TILE);
    const unsigned grid = (unsigned)(items < sms ? items : sms);
    const size_t bytes = sizeof(smem) + TILES_ROOM;
    if (c->a.dtau) launch_pdl(cuda, back_block256<true>, grid, THREADS, bytes, *c, *b, items, passes);
    else launch_pdl(cuda, back_block256<false>, grid, THREADS, bytes, *c, *b, items, passes);
}
int64_t HL_OP(cache_back_block256_shares)(struct hl_cuda *cuda, const struct hl_cache *a) {
    const bool fits = a->H == a->HV && a->K == D && hl_cuda_shared_limit(cuda) >= TILES_ROOM + (int)sizeof(smem);
    return fits ? BLOCK_WARPS * hl_pieces(a->chunk, TILES * TILE) : 0;
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_block256)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
int64_t HL_OP(cache_back_block256_shares)(struct hl_cuda *, const struct hl_cache *) { return 0; }
#endif
