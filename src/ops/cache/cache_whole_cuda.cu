/* cache_whole_cuda.cu -- backward of the exact memory, a whole block of the grid at a time: everything is read
 * once, and the scores of a pair are computed once for dq, dk and dv.
 *
 * Thread blocks stay on their multiprocessor and walk over (block, value head). The block's queries and their
 * dout lie in shared memory, 64 rows a tile, and tiles of 64 keys pass by: first the kept ones, then the block's
 * own. Two warpgroups have two tiles of queries each, with dq in registers. For a tile of keys they first compute
 * p and ds of their queries and add to dq; then one has dv from all p, the other dk from all ds, while the next keys
 * come. Own keys are seen by their own tile of queries and later ones, so the tiles of queries are done with one
 * after another, and those of the next block take their places. */
#include "cuda/early.cuh"
#include "cuda/quick.cuh"
#include "ops/cache/cache_whole_cuda.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f;

/* ---- before the keys: dout.read of every query ---- */

/* What a thread reads of the 32 rows that its warp has: under way before it is needed. The i-th of them is row
 * row_of(i) of the warp's: of those that lie alike in shared memory, eight apart, one after another. */
template <int D> struct old_reads {
    enum { CHUNKS = D / 8, AT_ONCE = 32 / CHUNKS, EACH = 32 / AT_ONCE };
    uint4 x[EACH];
    float lse;
    static __device__ __forceinline__ int row_of(int i) { return i % 4 * 8 + i / 4 * AT_ONCE; }
};
template <int D>
static __device__ __forceinline__ void ask_reads(struct old_reads<D> &r, const struct cache_dev &c,
                                                 const struct item &x, int h) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32,
              row = first + lane / old_reads<D>::CHUNKS;
    const int ld = (int)c.a.HV * D;
    const bf16 *from =
        (const bf16 *)c.a.read + (int64_t)(x.row + row) * ld + h * D + lane % old_reads<D>::CHUNKS * 8;
#pragma unroll
    for (int i = 0; i < old_reads<D>::EACH; i++) {
        r.x[i] = make_uint4(0, 0, 0, 0);
        if (row + r.row_of(i) < x.len) r.x[i] = *(const uint4 *)(from + r.row_of(i) * ld);
    }
    r.lse = first + lane < x.len ? c.a.lse[(int64_t)(x.row + first + lane) * c.a.HV + h] : 0.0f;
}
/* m->along, m->lse, and the warp's share of dgate and dsink. Barriers around it. */
template <int D>
static __device__ __forceinline__ void along_rows(struct whole_room<D> *m, const struct cache_dev &c,
                                                  const struct old_reads<D> &read, int len, int h,
                                                  float part[2]) {
    enum { CHUNKS = D / 8, AT_ONCE = old_reads<D>::AT_ONCE };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32, chunk = lane % CHUNKS,
              row = first + lane / CHUNKS;
    const float lambda = sigmoid(c.a.gate[h]);
    const bf16 *dout = m->dout[first / TILE] + chunk / 8 * SQUARE;
#pragma unroll
    for (int i = 0; i < old_reads<D>::EACH; i++) {
        float a[8], b[8], sum = 0;
        load_wide(a, (const bf16 *)&read.x[i]);
        load_wide(b, dout + tile_at<64>(row % TILE + i / 4 * AT_ONCE, chunk % 8 * 8) + i % 4 * 8 * 64);
        for (int j = 0; j < 8; j++) sum += a[j] * b[j];
        for (int j = CHUNKS / 2; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
        if (chunk == 0) m->along[row + read.row_of(i)] = sum;
    }
    __syncwarp();
    const bool there = first + lane < len;
    const float along = there ? m->along[first + lane] : 0.0f;
    if (!there) m->along[first + lane] = 0;
    m->lse[first + lane] = there ? read.lse * LOG2E - log2f(lambda) : INFINITY; /* not there: p = 0 */
    const float gate = warp_sum(along), sink = warp_sum(there ? expf(c.a.sink[h] - read.lse) * along : 0.0f);
    if (lane == 0) part[0] = lambda * (1 - lambda) * gate, part[1] = -lambda * sink;
}

/* ---- a tile of queries and a tile of keys ---- */

/* scores and their gradients: s = q k^T, dp = dout v^T */
template <int D>
static __device__ __forceinline__ void score(float (*s)[4], float (*dp)[4], const struct whole_room<D> *m,
                                             int i) {
    hold<8>(dp);
    products_begin<8>(s);
#pragma unroll
    for (int x = 0; x < D; x += 16) {
        const int panel = x / 64 * SQUARE;
        product<TILE>(s, operand<64, false>{m->q[i] + panel, 0, x % 64},
                      operand<64, false>{m->k + panel, 0, x % 64});
        product<TILE>(dp, operand<64, false>{m->dout[i] + panel, 0, x % 64},
                      operand<64, false>{m->v + panel, 0, x % 64});
    }
    products_end<8>(s);
    hold<8>(dp);
}

/* What is hidden: keys from `keys` on, and if `past` those after their query, both counted in their tiles. */
struct edge {
    int keys;
    bool past;
};
static __device__ __forceinline__ bool hidden(const struct edge &e, int query, int key) {
    return key >= e.keys || (e.past && key > query);
}

/* s becomes lambda p and dp the gradient of q.k; TAU: the thread's share of the sum of ds s comes back. */
template <int D, bool TAU>
static __device__ __forceinline__ float weigh(float (*s)[4], float (*dp)[4], const struct whole_room<D> *m,
                                              int i, float tau, const struct edge &e) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float lse[2] = {m->lse[i * TILE + row], m->lse[i * TILE + row + 8]};
    const float along[2] = {m->along[i * TILE + row], m->along[i * TILE + row + 8]};
    const float scale = tau * LOG2E, less[2] = {tau * along[0], tau * along[1]};
    const bool edged = e.past || e.keys < TILE;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p = quick_exp2(s[n][j] * scale - lse[j / 2]);
            if (TAU) {
                if (edged && hidden(e, row + j / 2 * 8, n * 8 + 2 * t + j % 2)) p = 0;
                const float ds = p * (dp[n][j] - along[j / 2]);
                sum += ds * s[n][j];
                dp[n][j] = ds * tau;
            } else dp[n][j] = p * (dp[n][j] * tau - less[j / 2]);
            s[n][j] = p;
        }
    if constexpr (!TAU) {
        if (!edged) return 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (hidden(e, row + j / 2 * 8, n * 8 + 2 * t + j % 2)) s[n][j] = dp[n][j] = 0;
    }
    return sum;
}

/* p and ds of query tile i with the keys at hand, to shared memory; dq += ds k */
template <int D, bool TAU>
static __device__ __forceinline__ float pairs(float (*dq)[4], struct whole_room<D> *m, int i, float tau,
                                              const struct edge &e) {
    float s[8][4] = {}, dp[8][4] = {};
    uint32_t x[4][4];
    score<D>(s, dp, m, i);
    const float sum = weigh<D, TAU>(s, dp, m, i, tau, e);
    store_square(m->p[i], s, x);
    store_square(m->ds[i], dp, x);
    hold_operands<4>(x);
    products_begin<D / 8>(dq);
#pragma unroll
    for (int j = 0; j < 4; j++) product_regs<D>(dq, x[j], operand<64, true, SQUARE>{m->k, 16 * j, 0});
    products_end<D / 8>(dq);
    hold_operands<4>(x);
    return sum;
}

/* d (64 keys x D) = p^T x over the tiles [first, end) of queries */
template <int D>
static __device__ __forceinline__ void sum_queries(float (*d)[4], const bf16 (*p)[SQUARE],
                                                   const bf16 (*x)[TILE * D], int first, int end) {
    for (int i = first; i < end; i++) {
        products_begin<D / 8>(d);
#pragma unroll
        for (int j = 0; j < TILE; j += 16)
            product<D>(d, operand<64, true>{p[i], j, 0}, operand<64, true, SQUARE>{x[i], j, 0});
        products_end<D / 8, 1>(d); /* those of the tile before */
    }
    products_wait<D / 8>(d);
}

/* dv (group 0) or dk (group 1) of tile n of the keys, once p and ds of all queries are there */
template <int D>
static __device__ __forceinline__ void finish_keys(struct whole_room<D> *m, const struct cache_dev &c,
                                                   const struct cache_back &b, const struct item &x, int at,
                                                   int h, int n, int group) {
    const int kepts = tiles_of(x.kept), own = n - kepts, end = tiles_of(x.len);
    const int ld = (int)c.a.HV * D;
    float d[D / 8][4] = {};
    struct lines<D> old;
    bf16 *to = (bf16 *)(group ? c.a.dk : c.a.dv) + ((int64_t)(x.row + own * TILE) * c.a.HV + h) * D;
    read_lines<D>(old, to, ld, x.len - own * TILE, own >= 0 && group == 0);
    if (group) sum_queries<D>(d, m->ds, m->q, max(own, 0), end);
    else sum_queries<D>(d, m->p, m->dout, max(own, 0), end);
    if (own < 0)
        write_share<D>(b.kept + ((int64_t)at * c.a.window + n * TILE) * 2 * D + (group ? 0 : D), d,
                       x.kept - n * TILE);
    else write_sum<D>(to, ld, x.len - own * TILE, d, old, (float *)(group ? m->ds : m->p), group);
}

/* Which of the four tiles of queries is the a-th of a group: 0 and 3, or 1 and 2 */
static __device__ __forceinline__ int tile_of(int a, int group) { return a ? TILES - 1 - group : group; }

template <int D, bool TAU>
static __global__ void __launch_bounds__(THREADS, 1)
    back_whole(const struct cache_dev c, const struct cache_back b, int items) {
    struct whole_room<D> *m = (struct whole_room<D> *)shared_tiles();
    const int group = group_of_warps(), step = gridDim.x, HV = (int)c.a.HV;
    open_some();
    wait_for_others(), let_others_start();
    struct item x = item_of(c, blockIdx.x, items);
    int id[2] = {-1, -1};
    if (x.kept > 0) ask_kept(c, blockIdx.x, 0, id);
    for (int i = 0; i < TILES; i++) copy_queries<D>(m, c, x, blockIdx.x % HV, i);
    copy_keys<D>(m, c, x, blockIdx.x % HV, 0, id);
    copy_commit();
    for (int at = blockIdx.x; at < items; at += step) {
        const int h = at % HV, kepts = tiles_of(x.kept), tiles = tiles_of(x.len), all = kepts + tiles;
        const int h1 = (at + step) % HV, share = (at / HV * WHOLE_SHARES + threadIdx.x / 32) * HV + h;
        const float tau = c.a.tau[h] / sqrtf((float)D);
        struct old_reads<D> read;
        ask_reads<D>(read, c, x, h);
        const struct item next = item_of(c, at + step, items);
        copy_wait<0>();
        operands_written();
        __syncthreads(); /* queries and first keys are there */
        along_rows<D>(m, c, read, x.len, h, b.part + share * 2);
        for (int i = tiles; i < TILES; i++) copy_queries<D>(m, c, next, h1, i);
        float dq[2][D / 8][4] = {}, dtau = 0;
        __syncthreads();
        for (int n = 0; n < all; n++) {
            const int own = n - kepts;
            const bool last = n + 1 == all;
            if (last ? next.kept > 0 : n + 1 < kepts)
                ask_kept(c, last ? at + step : at, last ? 0 : n + 1, id);
#pragma unroll
            for (int a = 0; a < 2; a++) {
                const int i = tile_of(a, group);
                const struct edge e = {own < 0 ? x.kept - n * TILE : x.len - own * TILE, own == i};
                if (i >= own && i < tiles) dtau += pairs<D, TAU>(dq[a], m, i, tau, e);
            }
            operands_written();
            __syncthreads(); /* p and ds are there, these keys are done with */
            if (last) copy_keys<D>(m, c, next, h1, 0, id);
            else copy_keys<D>(m, c, x, h, n + 1, id);
            copy_commit();
            finish_keys<D>(m, c, b, x, at, h, n, group);
            copy_wait<0>();
            operands_written();
            __syncthreads(); /* the next keys are there, p and ds are done with */
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

template <int D>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const int items = (int)(c->rows.blocks * c->a.HV), sms = hl_cuda_sms(cuda);
    const unsigned grid = (unsigned)(items < sms ? items : sms);
    const size_t bytes = sizeof(struct whole_room<D>) + TILES_ROOM;
    if (c->a.dtau) launch_early(cuda, back_whole<D, true>, grid, THREADS, bytes, *c, *b, items);
    else launch_early(cuda, back_whole<D, false>, grid, THREADS, bytes, *c, *b, items);
}
void HL_OP(cache_back_whole)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    if (c->a.K == 64) run<64>(cuda, c, b);
    else run<128>(cuda, c, b);
}
bool HL_OP(cache_back_whole_fits)(const struct hl_cache *a) {
    return a->H == a->HV && a->K <= 128 && a->chunk <= TILES * TILE &&
           shared_limit() >= TILES_ROOM + (int)(a->K == 64 ? sizeof(struct whole_room<64>)
                                                           : sizeof(struct whole_room<128>));
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_whole)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
bool HL_OP(cache_back_whole_fits)(const struct hl_cache *) { return false; }
#endif
