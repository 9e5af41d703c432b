/* cache_back_kv_cuda.cu -- backward of the exact memory on tensor cores: dk, dv and ds.
 *
 * grid (blocks (HV kept tiles + H own tiles)), 256 threads: a thread block is 64 keys of one block of the grid and
 * loops over its queries. Shared memory (struct kv_smem): k and v, one or two stages of q and dout, p and ds of a
 * tile. Probabilities are recomputed from lse; p and ds go through shared memory, as the warps divide the sums
 * over queries differently. Gradients of a block's own rows go to dk and dv, those of kept rows to scratch, for
 * gather_kept. */
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "ops/cache/cache_back_cuda.cuh"
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f;

enum { LDP = TILE + 8 };
/* S: stages of q, so that the next tile is copied during computation; 1 if shared memory is short. Heads below 256 have
 * one stage of dout, so that two thread blocks fit on an SM. */
template <int D, int S> struct kv_smem {
    enum {
        WARPS = 8,
        THREADS = 32 * WARPS,
        QUERIES = 256 / WARPS,     /* of a warp, with 16 keys: probabilities */
        COLUMNS = 2 * D / WARPS,   /* of a warp, with 32 keys: sums */
        STAGES = D == 256 ? S : 1, /* of dout */
        X = TILE * tile<D>::LD,
        P = TILE * LDP,
        BYTES = ((2 + S + STAGES) * X + 2 * P) * 2 + 3 * S * TILE * 4,
    };
    bf16 *k, *v, *q, *dout, *p, *ds; /* q, dout: of the first stage */
    float *lse, *R, *lambda;
};
template <int D, int S> static __device__ __forceinline__ struct kv_smem<D, S> kv_smem_at(char *shared) {
    typedef struct kv_smem<D, S> smem;
    struct kv_smem<D, S> m;
    m.k = (bf16 *)shared, m.v = m.k + smem::X;
    m.q = m.v + smem::X, m.dout = m.q + S * smem::X;
    m.p = m.dout + smem::STAGES * smem::X, m.ds = m.p + smem::P;
    m.lse = (float *)(m.ds + smem::P), m.R = m.lse + S * TILE, m.lambda = m.R + S * TILE;
    return m;
}

/* A warp's accumulators of dk and dv. */
template <int D, int S>
struct kv_sums {
    float dk[2][kv_smem<D, S>::COLUMNS / 8][4], dv[2][kv_smem<D, S>::COLUMNS / 8][4];
};

/* The thread's two keys in score_tile: biases, and sums of ds over its queries. */
struct key_bias {
    float log2[2], sum[2];
};
template <int D, int S>
static __device__ __forceinline__ struct key_bias load_biases(const struct cache_dev &c, const struct block_view &s,
                                                              int from) {
    const int key = from + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    struct key_bias b = {};
    for (int i = 0; i < 2; i++)
        if (key + 8 * i < s.kept) b.log2[i] = LOG2E * log_sigmoid(c.a.score[s.sel[key + 8 * i] * c.a.HV + s.h]);
    return b;
}
/* The sums of the tile's keys, over the lanes and the two warps that have them, to `to` [64]. smem: 128 floats */
template <int D, int S>
static __device__ __forceinline__ void write_biases(const struct key_bias &b, float *smem, float *to, int keys) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        float x = b.sum[i];
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        x += __shfl_xor_sync(0xffffffffu, x, 2);
        if (lane % 4 == 0) smem[warp / 4 * TILE + warp % 4 * 16 + lane / 4 + 8 * i] = x;
    }
    __syncthreads();
    if ((int)threadIdx.x < min((int)TILE, keys)) to[threadIdx.x] = smem[threadIdx.x] + smem[TILE + threadIdx.x];
    __syncthreads();
}

/* Probabilities and ds of 16 keys x QUERIES per warp, to shared memory [key][query]. mask: keys from `keys` on do not
 * exist, and if `causal`, keys after their query are hidden; both are relative to the tiles' first. Returns the
 * thread's part of the sum of ds q.k. tau: with 1/sqrt(K) in it. BIAS: adds biases to the logits of the thread's two
 * keys and sums their ds */
template <int D, int S, bool mask, bool BIAS>
static __device__ __forceinline__ float score_tile(const struct kv_smem<D, S> &m, int stage, float tau, bool causal,
                                                   int keys, struct key_bias &bias) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    enum { QUERIES = kv_smem<D, S>::QUERIES };
    const int key = warp % 4 * 16, query = warp / 4 * QUERIES;
    const bf16 *q = m.q + stage * kv_smem<D, S>::X, *dout = m.dout + stage % kv_smem<D, S>::STAGES * kv_smem<D, S>::X;
    float s[QUERIES / 8][4] = {}, dp[QUERIES / 8][4] = {}, sum = 0;
    const float scale = tau * LOG2E;
    if (!mask || !causal || key < query + QUERIES) /* otherwise the warp's part is fully masked */
        product_rows_two<D, QUERIES>(s, m.k, q, dp, m.v, dout, key, query);
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const int at = query + n * 8 + 2 * t;
        const float2 lse = *(const float2 *)(m.lse + stage * TILE + at), R = *(const float2 *)(m.R + stage * TILE + at);
        const float2 lambda = *(const float2 *)(m.lambda + stage * TILE + at);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = key + g + 8 * i;
            float p[2], ds[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float z = s[n][2 * i + e] * scale;
                p[e] = fast_exp2((BIAS ? z + bias.log2[i] : z) - (e ? lse.y : lse.x));
                if (mask && (j >= keys || (causal && j > at + e))) p[e] = 0.0f;
                ds[e] = p[e] * ((e ? lambda.y : lambda.x) * dp[n][2 * i + e] - (e ? R.y : R.x));
                sum += ds[e] * s[n][2 * i + e];
                if (BIAS) bias.sum[i] += ds[e];
            }
            *(uint32_t *)(m.p + j * LDP + at) = pack2(p[0] * lambda.x, p[1] * lambda.y);
            *(uint32_t *)(m.ds + j * LDP + at) = pack2(ds[0] * tau, ds[1] * tau);
        }
    }
    return sum;
}

/* ds of a tile to global memory, for dq */
template <int D, int S> static __device__ __forceinline__ void write_ds(const struct kv_smem<D, S> &m, bf16 *to) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * TILE / 8; i += kv_smem<D, S>::THREADS)
        *(uint4 *)(to + i * 8) = *(const uint4 *)(m.ds + i / (TILE / 8) * LDP + i % (TILE / 8) * 8);
}

/* sum (32 keys x COLUMNS) += p [key][query] x [query][D]; causal: queries before the keys are masked */
template <int D, int S>
static __device__ __forceinline__ void add_tile(float sum[2][kv_smem<D, S>::COLUMNS / 8][4], const bf16 *p,
                                                const bf16 *x, bool causal) {
    enum { COLUMNS = kv_smem<D, S>::COLUMNS };
    const int warp = threadIdx.x / 32, key = warp % 2 * 32, column = warp / 2 * COLUMNS;
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t a[2][4], b[4];
        if (causal && k + 15 < key) continue;
        mma_load_a(a[0], p, LDP, key, k), mma_load_a(a[1], p, LDP, key + 16, k);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            mma_load_b_trans(b, x, tile<D>::LD, k, column + n);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_bf16(sum[i][n / 8], a[i], b);
                mma_bf16(sum[i][n / 8 + 1], a[i], b + 2);
            }
        }
    }
}

/* The thread's part of the tile's first `rows` rows, ld apart, as floats. */
template <int D, int S>
static __device__ __forceinline__ void write_floats(const float sum[2][kv_smem<D, S>::COLUMNS / 8][4], int rows,
                                                    float *to, int64_t ld) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < kv_smem<D, S>::COLUMNS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = warp % 2 * 32 + i * 16 + g + 8 * e;
                if (row < rows)
                    *(float2 *)(to + row * ld + warp / 2 * kv_smem<D, S>::COLUMNS + n * 8 + 2 * t) =
                        make_float2(sum[i][n][2 * e], sum[i][n][2 * e + 1]);
            }
}
/* The same rows as bf16, written or added to, staged in `smem` [64][D + 4] for full cache lines. */
template <int D, int S>
static __device__ __forceinline__ void write_bf16(const float sum[2][kv_smem<D, S>::COLUMNS / 8][4], int rows, bf16 *to,
                                                  int64_t ld, bool add, float *smem) {
    enum { CHUNKS = tile<D>::CHUNKS, STEP = kv_smem<D, S>::THREADS / CHUNKS, EACH = TILE / STEP };
    const int r = threadIdx.x / CHUNKS, at = threadIdx.x % CHUNKS * 8;
    uint4 old[EACH]; /* all loads before the first store, because they may alias */
#pragma unroll
    for (int i = 0; i < EACH; i++)
        old[i] = add && r + i * STEP < rows ? *(const uint4 *)(to + (r + i * STEP) * ld + at) : make_uint4(0, 0, 0, 0);
    write_floats<D, S>(sum, TILE, smem, D + 4);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float4 x = *(const float4 *)(smem + (r + i * STEP) * (D + 4) + at);
        const float4 y = *(const float4 *)(smem + (r + i * STEP) * (D + 4) + at + 4);
        const uint4 o = old[i];
        if (r + i * STEP < rows)
            *(uint4 *)(to + (r + i * STEP) * ld + at) =
                make_uint4(pack2(low(o.x) + x.x, high(o.x) + x.y), pack2(low(o.y) + x.z, high(o.y) + x.w),
                           pack2(low(o.z) + y.x, high(o.z) + y.y), pack2(low(o.w) + y.z, high(o.w) + y.w));
    }
    __syncthreads();
}

/* Of 64 queries from row `from` of the block on: q, lse, R and lambda into one of two stages; dout into its own */
template <int D, int S>
static __device__ __forceinline__ void fetch_queries(const struct kv_smem<D, S> &m, const struct cache_dev &c,
                                                     const float *R, const struct block_view &s, int stage, int from) {
    fetch_rows<D, TILE, kv_smem<D, S>::THREADS>(m.q + stage * kv_smem<D, S>::X, c.a.q, c.a.H, s.hk, s.row + from,
                                                s.len - from);
    if (threadIdx.x < TILE) {
        const int64_t at = (int64_t)(s.row + from + threadIdx.x) * c.a.HV + s.h;
        const bool there = from + (int)threadIdx.x < s.len;
        m.lse[stage * TILE + threadIdx.x] = there ? c.a.lse[at] * LOG2E : 0.0f;
        m.R[stage * TILE + threadIdx.x] = there ? R[at] : 0.0f;
        const float gate = there ? gate_of(c.a, s.row + from + threadIdx.x, s.h) : 0.0f;
        m.lambda[stage * TILE + threadIdx.x] = there ? lambda_of(c.a, gate, sigmoid(gate)) : 0.0f;
    }
}
template <int D, int S>
static __device__ __forceinline__ void fetch_dout(const struct kv_smem<D, S> &m, const struct cache_dev &c,
                                                  const struct block_view &s, int stage, int from) {
    fetch_rows<D, TILE, kv_smem<D, S>::THREADS>(m.dout + stage % kv_smem<D, S>::STAGES * kv_smem<D, S>::X, c.a.dout,
                                                c.a.HV, s.h, s.row + from, s.len - from);
}

/* All queries of the block from tile `first` on, of one value head. k and v are in flight or loaded. The next tile is
 * copied while this one is computed; if dout has one stage, once dv is done with it. ds: location for the first tile;
 * the tiles of own keys are stored as a triangle, query by query. Returns the thread's part of dtau. */
template <int D, int S, bool BIAS>
static __device__ __forceinline__ float
loop_queries(struct kv_sums<D, S> &sum, const struct kv_smem<D, S> &m, const struct cache_dev &c, const float *R,
             const struct block_view &s, int first, bool own, int keys, bf16 *ds, struct key_bias &bias) {
    enum { STAGES = kv_smem<D, S>::STAGES };
    const int end = (s.len + TILE - 1) / TILE;
    const float tau = c.a.tau[s.h] / sqrtf((float)D);
    float dtau = 0;
    fetch_queries<D, S>(m, c, R, s, first % S, first * TILE);
    fetch_dout<D, S>(m, c, s, first % S, first * TILE);
    copy_commit();
    for (int i = first; i < end; i++) {
        const int stage = i % S, next = (i + 1) % S;
        const bool causal = own && i == first;
        if (i + 1 < end && S == 2) fetch_queries<D, S>(m, c, R, s, next, (i + 1) * TILE);
        if (i + 1 < end && STAGES == 2) fetch_dout<D, S>(m, c, s, next, (i + 1) * TILE);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        dtau += causal || keys < TILE ? score_tile<D, S, true, BIAS>(m, stage, tau, causal, keys, bias)
                                      : score_tile<D, S, false, BIAS>(m, stage, tau, causal, keys, bias);
        __syncthreads();
        write_ds<D, S>(m, ds);
        ds += (own ? i + 1 : 1) * TILE * TILE;
        add_tile<D, S>(sum.dv, m.p, m.dout + stage % STAGES * kv_smem<D, S>::X, causal);
        if (STAGES == 1) {
            __syncthreads();
            if (i + 1 < end) fetch_dout<D, S>(m, c, s, next, (i + 1) * TILE);
            copy_commit();
        }
        add_tile<D, S>(sum.dk, m.ds, m.q + stage * kv_smem<D, S>::X, causal);
        __syncthreads();
        if (S == 2) continue;
        if (i + 1 < end) fetch_queries<D, S>(m, c, R, s, 0, (i + 1) * TILE);
        copy_commit();
    }
    return dtau / sqrtf((float)D);
}

/* grid (blocks (HV kept tiles + H own tiles)): the thread blocks of a cache block are adjacent, so that they share its
 * rows in L2 */
template <int D, int S, bool BIAS>
static __global__ void __launch_bounds__(kv_smem<D, S>::THREADS, D == 256 ? 1 : 2)
    back_kv(const struct cache_dev c, const struct cache_back b, int kepts, int owns, int all_ds) {
    const struct kv_smem<D, S> m = kv_smem_at<D, S>(shared_memory());
    const int units = kepts * (int)c.a.HV + owns * (int)c.a.H, at = blockIdx.x % units;
    const int64_t block = blockIdx.x / units, w = c.a.window;
    const bool own = at >= kepts * c.a.HV;
    const int unit = own ? at - kepts * (int)c.a.HV : at, t = own ? unit % owns : unit % kepts, from = t * TILE;
    const int64_t h0 = own ? unit / owns * c.group : unit / kepts, h1 = own ? h0 + c.group : h0 + 1;
    struct kv_sums<D, S> sum = {};
    for (int64_t h = h0; h < h1; h++) {
        const struct block_view s = view_of(c, block, h, true, false);
        const int keys = (own ? s.len : s.kept) - from;
        float *tau = b.tau + (block * (kepts + owns) + (own ? kepts + t : t)) * c.a.HV + h;
        if (keys <= 0) {
            if (threadIdx.x == 0) *tau = 0;
            continue;
        }
#pragma unroll
        for (int i = 0; i < kv_smem<D, S>::COLUMNS; i++)
            sum.dv[i / (kv_smem<D, S>::COLUMNS / 2)][i / 4 % (kv_smem<D, S>::COLUMNS / 8)][i % 4] = 0;
        fetch_columns<D, TILE, kv_smem<D, S>::THREADS>(m.k, m.v, c, s, !own, from);
        const int first = own ? t : 0, tile_ds = own ? kepts * owns + t * (t + 1) / 2 + t : t * owns;
        struct key_bias bias = {};
        if (BIAS && !own) bias = load_biases<D, S>(c, s, from);
        float dtau =
            loop_queries<D, S, BIAS>(sum, m, c, b.R, s, first, own, keys,
                                     (bf16 *)b.ds + ((block * c.a.HV + h) * all_ds + tile_ds) * TILE * TILE, bias);
        if (BIAS && !own) write_biases<D, S>(bias, (float *)m.p, b.bias + (block * c.a.HV + h) * w + from, keys);
        if (c.a.dtau) {
            dtau = block_sum(dtau, m.lse);
            if (threadIdx.x == 0) *tau = dtau;
        }
        if (own) {
            const int64_t row = s.row + from;
            write_bf16<D, S>(sum.dv, keys, (bf16 *)c.a.dv + (row * c.a.HV + h) * D, c.a.HV * D, true, (float *)m.q);
            if (h + 1 == h1)
                write_bf16<D, S>(sum.dk, keys, (bf16 *)c.a.dk + (row * c.a.H + s.hk) * D, c.a.H * D, false,
                                 (float *)m.q);
        } else {
            float *to = b.kept + ((block * c.a.HV + h) * w + from) * 2 * D;
            write_floats<D, S>(sum.dk, keys, to, 2 * D);
            write_floats<D, S>(sum.dv, keys, to + D, 2 * D);
        }
    }
}

template <int D, int S> static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const struct hl_cache *a = &c->a;
    const unsigned kepts = (unsigned)tiles_of(a->window), owns = (unsigned)tiles_of(a->chunk);
    launch(cuda, c->a.policy.score == HL_SCORE_LEARNED ? back_kv<D, S, true> : back_kv<D, S, false>,
           (unsigned)c->rows.blocks * (unsigned)(kepts * a->HV + owns * a->H), kv_smem<D, S>::THREADS,
           (size_t)kv_smem<D, S>::BYTES, *c, *b, (int)kepts, (int)owns, (int)ds_tiles(a));
}
template <int D> static void run_stages(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    if (hl_cuda_shared_limit(cuda) >= kv_smem<D, 2>::BYTES) run<D, 2>(cuda, c, b);
    else run<D, 1>(cuda, c, b);
}
void HL_OP(cache_back_kv)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    if (c->a.K == 64) run_stages<64>(cuda, c, b);
    if (c->a.K == 128) run_stages<128>(cuda, c, b);
    if (c->a.K == 256) run_stages<256>(cuda, c, b);
}
bool HL_OP(cache_back_fits)(struct hl_cuda *cuda, const struct hl_cache *a) {
    return hl_cuda_shared_limit(cuda) >= (a->K == 256 ? (int)kv_smem<256, 1>::BYTES : (int)kv_smem<128, 1>::BYTES);
}
#else /* cache_tiled() never asks for it */
void HL_OP(cache_back_kv)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
bool HL_OP(cache_back_fits)(struct hl_cuda *, const struct hl_cache *) { return false; }
#endif
