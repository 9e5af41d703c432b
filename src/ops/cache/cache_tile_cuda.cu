/* cache_tile_cuda.cu -- backward of the exact memory on tensor cores.
 *
 * back_q: a thread block is a tile of queries and walks their keys: dq, R, and the scalars' shares.
 * back_kv: a thread block is 64 keys of one block and walks its queries: dk, dv. The keys of a block's own rows go to
 * dk, dv; those of kept rows are left for `gather`. Both compute the probabilities again from lse. */
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f;

/* ---- dq ---- */

enum { KEYS = 32 };
template <int D> struct q_room {
    enum {
        WARPS = D == 256 ? 8 : 4, /* two thread blocks would not fit beside each other: make it a big one */
        ROWS = 16 * WARPS,
        THREADS = 32 * WARPS,
        Q = ROWS * tile<D>::LD,
        KV = KEYS * tile<D>::LD,
        BYTES = (2 * Q + 4 * KV) * 2 + (ROWS + WARPS) * 4,
    };
};

/* along[row] = dout.read of the warp's 16 rows */
template <int D>
static __device__ __forceinline__ void dout_read(const struct cache_dev &c, const struct view &s, int from,
                                                 float *along) {
    enum { AT_ONCE = 32 / tile<D>::CHUNKS };
    const int lane = threadIdx.x % 32;
    for (int r = lane / tile<D>::CHUNKS; r < 16; r += AT_ONCE) {
        const int64_t at = ((int64_t)(s.row + from + r) * c.a.HV + s.h) * D + lane % tile<D>::CHUNKS * 8;
        float x[8], y[8], sum = 0;
        if (from + r < s.len) {
            load_wide(x, (const bf16 *)c.a.dout + at), load_wide(y, (const bf16 *)c.a.read + at);
            for (int i = 0; i < 8; i++) sum += x[i] * y[i];
        }
        for (int i = tile<D>::CHUNKS / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
        if (lane % tile<D>::CHUNKS == 0) along[r] = sum;
    }
}

/* The tile's shares of dgate, dsink and dtau. */
static __device__ __forceinline__ void write_parts(const struct cache_dev &c, const struct view &s,
                                                   const float *along, const float *dtau, int from, int rows,
                                                   float lambda, float *to) {
    float gate = 0, sink = 0, tau = 0;
    if (threadIdx.x >= 32) return;
    for (int r = threadIdx.x; r < rows && from + r < s.len; r += 32) {
        gate += along[r];
        sink += expf(c.a.sink[s.h] - c.a.lse[(int64_t)(s.row + from + r) * c.a.HV + s.h]) * along[r];
    }
    gate = warp_sum(gate), sink = warp_sum(sink);
    for (int i = 0; i < rows / 16; i++) tau += dtau[i];
    if (threadIdx.x) return;
    to[0] = lambda * (1 - lambda) * gate, to[1] = -lambda * sink, to[2] = tau;
}

/* What a thread knows of its two queries, rows g and g + 8 of the warp's. */
struct query {
    float lse[2], R[2];
};

/* dq += tau ds k over one tile of columns; returns the thread's share of sum ds q.k. tau: with 1/sqrt(K) in it */
template <int D>
static __device__ __forceinline__ float q_tile(float dq[][4], const bf16 *q, const bf16 *dout, const bf16 *k,
                                               const bf16 *v, int row, const struct query &x, float tau,
                                               float lambda, const int limit[2]) {
    float s[KEYS / 8][4] = {}, dp[KEYS / 8][4] = {}, dtau = 0;
    const int t = threadIdx.x % 4;
    product_rows_two<D, KEYS>(s, q, k, dp, dout, v, row, 0);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p =
                n * 8 + 2 * t + e % 2 > limit[e / 2] ? 0.0f : exp2f(s[n][e] * tau * LOG2E - x.lse[e / 2]);
            const float ds = p * (lambda * dp[n][e] - x.R[e / 2]);
            dtau += ds * s[n][e];
            s[n][e] = ds * tau;
        }
    product_sum<D, KEYS>(dq, s, k);
    return dtau;
}

template <int D>
static __device__ __forceinline__ void write_dq(const struct cache_dev &c, const struct view &s,
                                                float dq[][4], bf16 *room, int from) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(room + (g + 8 * i) * tile<D>::LD + n * 8 + 2 * t) =
                pack2(dq[n][2 * i], dq[n][2 * i + 1]);
    __syncwarp();
    for (int i = lane; i < 16 * tile<D>::CHUNKS; i += 32) {
        const int row = i / tile<D>::CHUNKS, at = i % tile<D>::CHUNKS * 8;
        if (from + row < s.len)
            *(uint4 *)((bf16 *)c.a.dq + ((int64_t)(s.row + from + row) * c.a.H + s.hk) * D + at) =
                *(const uint4 *)(room + row * tile<D>::LD + at);
    }
}

/* grid (blocks H tiles); the value heads of a key head in turn */
template <int D>
static __global__ void __launch_bounds__(q_room<D>::THREADS, D == 256 ? 1 : 3)
    back_q(const struct cache_dev c, const struct cache_back b, int tiles) {
    enum { ROWS = q_room<D>::ROWS, THREADS = q_room<D>::THREADS, KV = q_room<D>::KV };
    const int64_t hk = blockIdx.x / tiles % c.a.H, block = blockIdx.x / tiles / c.a.H;
    const int from = blockIdx.x % tiles * ROWS, warp = threadIdx.x / 32, row = warp * 16,
              g = threadIdx.x % 32 / 4;
    bf16 *q = (bf16 *)shared_memory(), *dout = q + q_room<D>::Q, *kv = dout + q_room<D>::Q;
    float *along = (float *)(kv + 4 * KV), *dtaus = along + ROWS, dq[D / 8][4] = {};
    struct view s = view_of(c, block, hk * c.group);
    const int len = s.len;
    for (int64_t h = hk * c.group; h < (hk + 1) * c.group; h++) {
        float *part = b.part + ((block * tiles + blockIdx.x % tiles) * c.a.HV + h) * 3;
        if (from >= len) {
            if (threadIdx.x < 3) part[threadIdx.x] = 0;
            continue;
        }
        s = view_of(c, block, h);
        const float root = 1.0f / sqrtf((float)D), tau = c.a.tau[h] * root, lambda = sigmoid(c.a.gate[h]);
        const int kept = (s.kept + KEYS - 1) / KEYS, all = kept + (min(from + ROWS, len) + KEYS - 1) / KEYS;
        float dtau = 0;
        struct query x;
        if (h == hk * c.group) fetch_rows<D, ROWS, THREADS>(q, c.a.q, c.a.H, hk, s.row + from, len - from);
        fetch_rows<D, ROWS, THREADS>(dout, c.a.dout, c.a.HV, h, s.row + from, len - from);
        dout_read<D>(c, s, from + row, along + row);
        __syncwarp();
        for (int i = 0; i < 2; i++) {
            const int64_t at = (int64_t)(s.row + from + row + g + 8 * i) * c.a.HV + h;
            const bool there = from + row + g + 8 * i < len;
            x.lse[i] = there ? c.a.lse[at] * LOG2E : 0.0f;
            x.R[i] = lambda * along[row + g + 8 * i];
            if (there && threadIdx.x % 4 == 0) b.R[at] = x.R[i];
        }
        for (int j = -1; j < all; j++) {
            if (j + 1 < all) {
                bf16 *next = kv + ((j + 1) & 1) * 2 * KV;
                const bool old = j + 1 < kept;
                fetch_columns<D, KEYS, THREADS>(next, next + KV, c, s, old,
                                                (old ? j + 1 : j + 1 - kept) * KEYS);
            }
            copy_commit();
            if (j < 0) continue;
            copy_wait<1>();
            __syncthreads();
            const bf16 *now = kv + (j & 1) * 2 * KV;
            const int first = (j < kept ? j : j - kept) * KEYS, at = from + row;
            const int limit[2] = {j < kept ? s.kept - 1 - first : at + g - first,
                                  j < kept ? s.kept - 1 - first : at + g + 8 - first};
            if (j < kept || first <= at + 15)
                dtau += q_tile<D>(dq, q, dout, now, now + KV, row, x, tau, lambda, limit);
            __syncthreads();
        }
        dtau = warp_sum(dtau) * root;
        if (threadIdx.x % 32 == 0) dtaus[warp] = dtau;
        __syncthreads();
        write_parts(c, s, along, dtaus, from, ROWS, lambda, part);
        __syncthreads();
    }
    if (from < len) write_dq<D>(c, s, dq, dout + row * tile<D>::LD, from + row);
}

/* ---- dk, dv ---- */

enum { TILE = 64, KV_THREADS = 256, LDP = TILE + 8 };
template <int D> struct kv_room {
    enum {
        STAGES = D == 256 ? 2 : 1, /* smaller heads: two thread blocks beside each other instead */
        X = TILE * tile<D>::LD,
        P = TILE * LDP,
        BYTES = (2 * X + 2 * STAGES * X + 2 * P) * 2 + 2 * STAGES * TILE * 4,
    };
    bf16 *k, *v, *q, *dout, *p, *ds; /* q, dout: of the first stage */
    float *lse, *R;
};
template <int D> static __device__ __forceinline__ struct kv_room<D> kv_room_at(char *shared) {
    typedef struct kv_room<D> room;
    struct kv_room<D> m;
    m.k = (bf16 *)shared, m.v = m.k + room::X;
    m.q = m.v + room::X, m.dout = m.q + room::STAGES * room::X;
    m.p = m.dout + room::STAGES * room::X, m.ds = m.p + room::P;
    m.lse = (float *)(m.ds + room::P), m.R = m.lse + room::STAGES * TILE;
    return m;
}

/* A warp's 32 keys x D/4 columns of dk and dv. */
template <int D>
struct kv_sums {
    float dk[2][D / 32][4], dv[2][D / 32][4];
};

/* Probabilities and ds of 16 keys x 32 queries a warp, to shared memory [key][query]. `past`: keys after their
 * query are hidden, both counted from the tiles' first; keys from `keys` on are none. */
template <int D>
static __device__ __forceinline__ void pairs(const struct kv_room<D> &m, int stage, float tau, float lambda,
                                             bool past, int keys) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int key = warp % 4 * 16, query = warp / 4 * 32;
    const bf16 *q = m.q + stage * kv_room<D>::X, *dout = m.dout + stage * kv_room<D>::X;
    float s[4][4] = {}, dp[4][4] = {};
    product_rows_two<D, 32>(s, m.k, q, dp, m.v, dout, key, query);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int at = query + n * 8 + 2 * t;
        const float2 lse = *(const float2 *)(m.lse + stage * TILE + at),
                     R = *(const float2 *)(m.R + stage * TILE + at);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = key + g + 8 * i;
            float p[2], ds[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const bool seen = j < keys && (!past || j <= at + e);
                p[e] = seen ? exp2f(s[n][2 * i + e] * tau * LOG2E - (e ? lse.y : lse.x)) : 0.0f;
                ds[e] = p[e] * (lambda * dp[n][2 * i + e] - (e ? R.y : R.x)) * tau;
            }
            *(uint32_t *)(m.p + j * LDP + at) = pack2(p[0] * lambda, p[1] * lambda);
            *(uint32_t *)(m.ds + j * LDP + at) = pack2(ds[0], ds[1]);
        }
    }
}

/* sum (32 keys x D/4) += p [key][query] x [query][D] */
template <int D>
static __device__ __forceinline__ void add_tile(float sum[2][D / 32][4], const bf16 *p, const bf16 *x) {
    const int warp = threadIdx.x / 32, key = warp % 2 * 32, column = warp / 2 * (D / 4);
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t a[2][4], b[4];
        fragment_a(a[0], p, LDP, key, k), fragment_a(a[1], p, LDP, key + 16, k);
#pragma unroll
        for (int n = 0; n < D / 4; n += 16) {
            fragment_b_turned(b, x, tile<D>::LD, k, column + n);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_bf16(sum[i][n / 8], a[i], b);
                mma_bf16(sum[i][n / 8 + 1], a[i], b + 2);
            }
        }
    }
}

/* What the thread holds of the tile's first `rows` rows, ld apart, as floats. */
template <int D>
static __device__ __forceinline__ void write_floats(const float sum[2][D / 32][4], int rows, float *to,
                                                    int64_t ld) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < D / 32; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = warp % 2 * 32 + i * 16 + g + 8 * e;
                if (row < rows)
                    *(float2 *)(to + row * ld + warp / 2 * (D / 4) + n * 8 + 2 * t) =
                        make_float2(sum[i][n][2 * e], sum[i][n][2 * e + 1]);
            }
}
/* The same rows as halves, written or added to; they go through `room` [64][D + 4] for whole lines at a time. */
template <int D>
static __device__ __forceinline__ void write_halves(const float sum[2][D / 32][4], int rows, bf16 *to, int64_t ld,
                                                    bool add, float *room) {
    enum { CHUNKS = tile<D>::CHUNKS, STEP = KV_THREADS / CHUNKS, EACH = TILE / STEP };
    const int r = threadIdx.x / CHUNKS, at = threadIdx.x % CHUNKS * 8;
    uint4 old[EACH]; /* every load before the first store: they might be the same memory */
#pragma unroll
    for (int i = 0; i < EACH; i++)
        old[i] = add && r + i * STEP < rows ? *(const uint4 *)(to + (r + i * STEP) * ld + at) : make_uint4(0, 0, 0, 0);
    write_floats<D>(sum, TILE, room, D + 4);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float4 x = *(const float4 *)(room + (r + i * STEP) * (D + 4) + at);
        const float4 y = *(const float4 *)(room + (r + i * STEP) * (D + 4) + at + 4);
        const uint4 o = old[i];
        if (r + i * STEP < rows)
            *(uint4 *)(to + (r + i * STEP) * ld + at) =
                make_uint4(pack2(low(o.x) + x.x, high(o.x) + x.y), pack2(low(o.y) + x.z, high(o.y) + x.w),
                           pack2(low(o.z) + y.x, high(o.z) + y.y), pack2(low(o.w) + y.z, high(o.w) + y.w));
    }
    __syncthreads();
}

/* q, dout, lse, R of 64 queries from row `from` of the block on, into one stage */
template <int D>
static __device__ __forceinline__ void fetch_queries(const struct kv_room<D> &m, const struct cache_dev &c,
                                                     const float *R, const struct view &s, int stage,
                                                     int from) {
    fetch_rows<D, TILE, KV_THREADS>(m.q + stage * kv_room<D>::X, c.a.q, c.a.H, s.hk, s.row + from, s.len - from);
    fetch_rows<D, TILE, KV_THREADS>(m.dout + stage * kv_room<D>::X, c.a.dout, c.a.HV, s.h, s.row + from,
                                    s.len - from);
    if (threadIdx.x < TILE) {
        const int64_t at = (int64_t)(s.row + from + threadIdx.x) * c.a.HV + s.h;
        const bool there = from + (int)threadIdx.x < s.len;
        m.lse[stage * TILE + threadIdx.x] = there ? c.a.lse[at] * LOG2E : 0.0f;
        m.R[stage * TILE + threadIdx.x] = there ? R[at] : 0.0f;
    }
}

/* All queries of the block from tile `first` on, of one value head. k and v are under way or there. */
template <int D>
static __device__ __forceinline__ void walk_queries(struct kv_sums<D> &sum, const struct kv_room<D> &m,
                                                    const struct cache_dev &c, const float *R,
                                                    const struct view &s, int first, bool own, int keys) {
    enum { STAGES = kv_room<D>::STAGES };
    const int end = (s.len + TILE - 1) / TILE;
    const float tau = c.a.tau[s.h] / sqrtf((float)D), lambda = sigmoid(c.a.gate[s.h]);
    if (STAGES == 2) fetch_queries<D>(m, c, R, s, first % 2, first * TILE);
    copy_commit();
    for (int i = first; i < end; i++) {
        const int stage = STAGES == 2 ? i % 2 : 0;
        if (STAGES == 1) fetch_queries<D>(m, c, R, s, 0, i * TILE);
        else if (i + 1 < end) fetch_queries<D>(m, c, R, s, (i + 1) % 2, (i + 1) * TILE);
        copy_commit();
        copy_wait<STAGES - 1>();
        __syncthreads();
        pairs<D>(m, stage, tau, lambda, own && i == first, keys);
        __syncthreads();
        add_tile<D>(sum.dv, m.p, m.dout + stage * kv_room<D>::X);
        add_tile<D>(sum.dk, m.ds, m.q + stage * kv_room<D>::X);
        __syncthreads();
    }
}

/* grid (blocks (HV kept tiles + H own tiles)): those of a block side by side, so that they share its rows */
template <int D>
static __global__ void __launch_bounds__(KV_THREADS, D == 256 ? 1 : 2)
    back_kv(const struct cache_dev c, const struct cache_back b, int kepts, int owns) {
    const struct kv_room<D> m = kv_room_at<D>(shared_memory());
    const int units = kepts * (int)c.a.HV + owns * (int)c.a.H, all = blockIdx.x % units;
    const int64_t block = blockIdx.x / units, w = c.a.window;
    const bool own = all >= kepts * c.a.HV;
    const int unit = own ? all - kepts * (int)c.a.HV : all;
    const int tile_at = own ? unit % owns : unit % kepts, from = tile_at * TILE;
    const int64_t h0 = own ? unit / owns * c.group : unit / kepts, h1 = own ? h0 + c.group : h0 + 1;
    struct kv_sums<D> sum = {};
    for (int64_t h = h0; h < h1; h++) {
        const struct view s = view_of(c, block, h);
        const int keys = (own ? s.len : s.kept) - from;
        if (keys <= 0) return;
#pragma unroll
        for (int i = 0; i < D / 4; i++) sum.dv[i / (D / 8)][i / 4 % (D / 32)][i % 4] = 0;
        fetch_columns<D, TILE, KV_THREADS>(m.k, m.v, c, s, !own, from);
        walk_queries<D>(sum, m, c, b.R, s, own ? tile_at : 0, own, keys);
        if (own) {
            const int64_t row = s.row + from;
            write_halves<D>(sum.dv, keys, (bf16 *)c.a.dv + (row * c.a.HV + h) * D, c.a.HV * D, true, (float *)m.q);
            if (h + 1 == h1)
                write_halves<D>(sum.dk, keys, (bf16 *)c.a.dk + (row * c.a.H + s.hk) * D, c.a.H * D, false,
                                (float *)m.q);
        } else {
            float *to = b.kept + ((block * c.a.HV + h) * w + from) * 2 * D;
            write_floats<D>(sum.dk, keys, to, 2 * D);
            write_floats<D>(sum.dv, keys, to + D, 2 * D);
        }
    }
}

template <int D>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const struct hl_cache *a = &c->a;
    const unsigned tiles = blocks_for(a->chunk, q_room<D>::ROWS);
    const unsigned kepts = blocks_for(a->window, TILE), owns = blocks_for(a->chunk, TILE);
    launch(cuda, back_q<D>, (unsigned)(c->rows.blocks * a->H * tiles), q_room<D>::THREADS,
           (size_t)q_room<D>::BYTES, *c, *b, (int)tiles);
    launch(cuda, back_kv<D>, (unsigned)c->rows.blocks * (unsigned)(kepts * a->HV + owns * a->H), KV_THREADS, (size_t)kv_room<D>::BYTES, *c, *b, (int)kepts, (int)owns);
}
void HL_OP(cache_back_tiles)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    if (c->a.K == 64) run<64>(cuda, c, b);
    if (c->a.K == 128) run<128>(cuda, c, b);
    if (c->a.K == 256) run<256>(cuda, c, b);
}
int64_t HL_OP(cache_back_parts)(const struct cache_dev *c) {
    const int64_t rows = c->a.K == 256 ? q_room<256>::ROWS : q_room<64>::ROWS;
    return c->rows.blocks * blocks_for(c->a.chunk, rows);
}
#else /* cache_tiled() never asks for them */
void HL_OP(cache_back_tiles)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
int64_t HL_OP(cache_back_parts)(const struct cache_dev *) { return 0; }
#endif
