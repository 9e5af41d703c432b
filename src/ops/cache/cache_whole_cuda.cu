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
#include "cuda/wgmma.cuh"
#include "ops/cache/cache_back_cuda.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f;

enum { GROUP = 128, THREADS = 32 * WHOLE_SHARES, TILES = 4 /* of queries */, SQUARE = TILE * TILE };

/* Rows of D numbers are panels of 64. */
template <int D> struct whole_room {
    bf16 q[TILES][TILE * D], dout[TILES][TILE * D], k[TILE * D], v[TILE * D];
    bf16 p[TILES][SQUARE], ds[TILES][SQUARE]; /* [query][key] of a tile; results pass through them on the way out */
    float lse[TILES * TILE], along[TILES * TILE]; /* log2 of the denominator over lambda; dout.read */
};

/* One block of the grid and one value head: what number `at` = block x HV + h is */
struct item {
    int row, len, kept;
};
static __device__ __forceinline__ struct item item_of(const struct cache_dev &c, int at, int items) {
    struct item x = {0, 0, 0};
    if (at >= items) return x;
    const struct hl_piece p = c.rows.block[at / (int)c.a.HV];
    const struct hl_seg s = c.rows.seg[p.seg];
    x.row = p.row, x.len = p.len;
    x.kept = (int)kept_at(c, s.pos + p.row - s.row);
    return x;
}

/* ---- copies; to be committed ---- */

/* 64 rows of head h of x [T][HV][D] from `row` on; zeros from the `left`-th on */
template <int D>
static __device__ __forceinline__ void copy_rows(bf16 *to, const struct cache_dev &c, const void *x, int h,
                                                 int row, int left) {
    const bf16 *from = (const bf16 *)x + ((int64_t)row * c.a.HV + h) * D;
#pragma unroll
    for (int i = 0; i < D / 64; i++)
        copy_panel<64, TILE, THREADS>(to + i * SQUARE, from + 64 * i, c.a.HV * D, left, threadIdx.x);
}
/* Tile i of a block's queries, where it has one. */
template <int D>
static __device__ __forceinline__ void copy_queries(struct whole_room<D> *m, const struct cache_dev &c,
                                                    const struct item &x, int h, int i) {
    if (i * TILE >= x.len) return;
    copy_rows<D>(m->q[i], c, c.a.q, h, x.row + i * TILE, x.len - i * TILE);
    copy_rows<D>(m->dout[i], c, c.a.dout, h, x.row + i * TILE, x.len - i * TILE);
}
/* The rows that this thread copies of a tile of kept keys: asked for before they are needed */
static __device__ __forceinline__ void ask_kept(const struct cache_dev &c, int at, int tile, int id[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int slot = tile * TILE + i * (TILE / 2) + threadIdx.x / 8;
        id[i] = slot < c.a.window ? (int)c.a.sel[(int64_t)at * c.a.window + slot] : -1;
    }
}
/* Tile n of a block's keys: kept ones first */
template <int D>
static __device__ __forceinline__ void copy_keys(struct whole_room<D> *m, const struct cache_dev &c,
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
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32, row = first + lane / old_reads<D>::CHUNKS;
    const int ld = (int)c.a.HV * D;
    const bf16 *from = (const bf16 *)c.a.read + (int64_t)(x.row + row) * ld + h * D + lane % old_reads<D>::CHUNKS * 8;
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
                                                  const struct old_reads<D> &read, int len, int h, float part[2]) {
    enum { CHUNKS = D / 8, AT_ONCE = old_reads<D>::AT_ONCE };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32, chunk = lane % CHUNKS, row = first + lane / CHUNKS;
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
static __device__ __forceinline__ void score(float (*s)[4], float (*dp)[4], const struct whole_room<D> *m, int i) {
    hold<8>(dp);
    products_begin<8>(s);
#pragma unroll
    for (int x = 0; x < D; x += 16) {
        const int panel = x / 64 * SQUARE;
        product<TILE>(s, operand<64, false>{m->q[i] + panel, 0, x % 64}, operand<64, false>{m->k + panel, 0, x % 64});
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
static __device__ __forceinline__ float weigh(float (*s)[4], float (*dp)[4], const struct whole_room<D> *m, int i,
                                              float tau, const struct edge &e) {
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

/* 64 x 64 accumulators to a tile; x: the same as operands of the next product */
static __device__ __forceinline__ void store_square(bf16 *to, const float (*d)[4], uint32_t (*x)[4]) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[i][j] = pack2(d[2 * i + j / 2][j % 2 * 2], d[2 * i + j / 2][j % 2 * 2 + 1]);
            *(uint32_t *)(to + tile_at<64>(row + j % 2 * 8, 16 * i + j / 2 * 8 + 2 * t)) = x[i][j];
        }
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
        products_end<D / 8>(d);
    }
}

/* ---- results: a warpgroup's 64 rows ---- */

/* as floats, 2 D apart: the share of kept rows */
template <int D>
static __device__ __forceinline__ void write_share(float *to, const float (*d)[4], int rows) {
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
/* to = d + old, through room [64][D] whose 32 bytes are swapped about */
template <int D>
static __device__ __forceinline__ void write_sum(bf16 *to, int ld, int rows, const float (*d)[4],
                                                 const struct lines<D> &old, float *room, int group) {
    const int g = threadIdx.x % 32 / 4, row = threadIdx.x / 32 % 4 * 16 + g, t = threadIdx.x % 4;
    const int i = threadIdx.x % GROUP, first = i / lines<D>::CHUNKS, chunk = i % lines<D>::CHUNKS;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            *(float2 *)(room + (row + 8 * j) * D + (n ^ g) * 8 + 2 * t) = make_float2(d[n][2 * j], d[n][2 * j + 1]);
    barrier(1 + group, GROUP);
    const float *from = room + first * D + (chunk ^ first % 8) * 8;
    static_assert(lines<D>::STEP % 8 == 0, "steps of whole groups of 8 rows");
#pragma unroll
    for (int n = 0; n < lines<D>::EACH; n++) {
        const int r = n * lines<D>::STEP;
        const float4 x = *(const float4 *)(from + r * D), y = *(const float4 *)(from + r * D + 4);
        const uint4 o = old.x[n];
        if (first + r < rows)
            *(uint4 *)(to + (first + r) * ld + chunk * 8) =
                make_uint4(pack2(low(o.x) + x.x, high(o.x) + x.y), pack2(low(o.y) + x.z, high(o.y) + x.w),
                           pack2(low(o.z) + y.x, high(o.z) + y.y), pack2(low(o.w) + y.z, high(o.w) + y.w));
    }
}
/* dq of tile i, which nobody needs any more: through its p and ds */
template <int D>
static __device__ __forceinline__ void write_dq(struct whole_room<D> *m, const struct cache_dev &c,
                                                const struct item &x, int h, int i, const float (*d)[4],
                                                int group) {
    uint32_t unused[4][4];
    store_square(m->p[i], d, unused);
    if (D == 128) store_square(m->ds[i], d + 8, unused);
    barrier(1 + group, GROUP);
    enum { CHUNKS = D / 8, STEP = GROUP / CHUNKS };
    const int first = threadIdx.x % GROUP / CHUNKS, chunk = threadIdx.x % CHUNKS, ld = (int)c.a.HV * D;
    const bf16 *from = (chunk < 8 ? m->p[i] : m->ds[i]) + tile_at<64>(first, chunk % 8 * 8);
    bf16 *to = (bf16 *)c.a.dq + (int64_t)(x.row + i * TILE + first) * ld + h * D + chunk * 8;
    static_assert(STEP % 8 == 0, "steps of whole groups of 8 rows");
#pragma unroll
    for (int r = 0; r < TILE; r += STEP)
        if (i * TILE + first + r < x.len) *(uint4 *)(to + r * ld) = *(const uint4 *)(from + r * 64);
}

/* dv (group 0) or dk (group 1) of tile n of the keys, once p and ds of all queries are there */
template <int D>
static __device__ __forceinline__ void finish_keys(struct whole_room<D> *m, const struct cache_dev &c,
                                                   const struct cache_back &b, const struct item &x, int at, int h,
                                                   int n, int group) {
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
    else
        write_sum<D>(to, ld, x.len - own * TILE, d, old, (float *)(group ? m->ds : m->p), group);
}

/* Which of the four tiles of queries is the a-th of a group: 0 and 3, or 1 and 2 */
static __device__ __forceinline__ int tile_of(int a, int group) { return a ? TILES - 1 - group : group; }

template <int D, bool TAU>
static __global__ void __launch_bounds__(THREADS, 1)
    back_whole(const struct cache_dev c, const struct cache_back b, int items) {
    struct whole_room<D> *m = (struct whole_room<D> *)shared_tiles();
    const int group = group_of_warps(), step = gridDim.x, HV = (int)c.a.HV;
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
            if (last ? next.kept > 0 : n + 1 < kepts) ask_kept(c, last ? at + step : at, last ? 0 : n + 1, id);
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

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
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
           shared_limit() >= TILES_ROOM + (int)(a->K == 64 ? sizeof(struct whole_room<64>) : sizeof(struct whole_room<128>));
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_whole)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
bool HL_OP(cache_back_whole_fits)(const struct hl_cache *) { return false; }
#endif
