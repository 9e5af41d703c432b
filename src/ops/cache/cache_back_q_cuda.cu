/* cache_back_q_cuda.cu -- backward of the exact memory on tensor cores: back_rowdot, R = lambda dout.read, which runs
 * before cache_back_kv_cuda.cu, and back_q, dq from its ds, which runs after.
 *
 * back_rowdot: grid (blocks tiles HV). back_q: grid (blocks H tiles), a thread block is 64 queries, a warp 16 of
 * them; shared memory: two stages of 64 keys and their ds. THREADS threads each. */
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_back_cuda.cuh"
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
enum { THREADS = 128, LDS = TILE + 8 };

/* rowdot[row] = dout.read of the warp's 16 rows */
template <int D>
static __device__ __forceinline__ void dout_dot_read(const struct cache_dev &c, const struct block_view &s, int from,
                                                     float *rowdot) {
    enum { PER_STEP = 32 / tile<D>::CHUNKS };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 16 / PER_STEP; i++) {
        const int r = lane / tile<D>::CHUNKS + i * PER_STEP;
        const int64_t at = ((int64_t)(s.row + from + r) * c.a.HV + s.h) * D + lane % tile<D>::CHUNKS * 8;
        float x[8], y[8], sum = 0;
        if (from + r < s.len) {
            load_wide(x, (const bf16 *)c.a.dout + at), load_wide(y, (const bf16 *)c.a.read + at);
            for (int j = 0; j < 8; j++) sum += x[j] * y[j];
        }
        for (int j = tile<D>::CHUNKS / 2; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
        if (lane % tile<D>::CHUNKS == 0) rowdot[r] = sum;
    }
}

/* R of 64 rows, and their terms of dgate and dsink */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    back_rowdot(const struct cache_dev c, const struct cache_back b, int tiles) {
    __shared__ float rowdot[TILE];
    const int64_t h = blockIdx.x % c.a.HV, block = blockIdx.x / c.a.HV / tiles;
    const struct block_view s = view_of(c, block, h, true, false);
    const int from = blockIdx.x / (int)c.a.HV % tiles * TILE, warp = threadIdx.x / 32;
    float gate = 0, sink = 0;
    dout_dot_read<D>(c, s, from + warp * 16, rowdot + warp * 16);
    __syncthreads();
    if (warp > 0) return;
    for (int r = threadIdx.x; r < TILE && from + r < s.len; r += 32) {
        const int64_t at = (int64_t)(s.row + from + r) * c.a.HV + h;
        const float open = gate_of(c.a, s.row + from + r, h), lambda = lambda_of(c.a, open, sigmoid(open));
        const float dgate = slope_of(c.a, lambda) * rowdot[r];
        b.R[at] = lambda * rowdot[r];
        if (c.a.dtoken_gate) put((act *)c.a.dtoken_gate + at, dgate);
        gate += dgate;
        sink += lambda * expf(c.a.sink[h] - c.a.lse[at]) * rowdot[r];
    }
    gate = warp_sum(gate), sink = warp_sum(sink);
    if (threadIdx.x) return;
    b.gate_sink[blockIdx.x * 2] = gate;
    b.gate_sink[blockIdx.x * 2 + 1] = -sink;
}

template <int D> struct q_smem {
    enum { K = TILE * tile<D>::LD, DS = TILE * LDS, BYTES = 2 * (K + DS) * 2 };
};

/* The warp's 16 rows, staged in `smem` for full cache lines. */
template <int D>
static __device__ __forceinline__ void write_dq(const struct cache_dev &c, const struct block_view &s,
                                                const float dq[][4], bf16 *smem, int from) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(smem + (g + 8 * i) * tile<D>::LD + n * 8 + 2 * t) = pack2(dq[n][2 * i], dq[n][2 * i + 1]);
    __syncwarp();
    for (int i = lane; i < 16 * tile<D>::CHUNKS; i += 32) {
        const int row = i / tile<D>::CHUNKS, at = i % tile<D>::CHUNKS * 8;
        if (from + row < s.len)
            *(uint4 *)((bf16 *)c.a.dq + ((int64_t)(s.row + from + row) * c.a.H + s.hk) * D + at) =
                *(const uint4 *)(smem + row * tile<D>::LD + at);
    }
}

/* 64 keys and their ds with the 64 queries of tile i: the u-th tile of keys, kept ones first */
template <int D>
static __device__ __forceinline__ void fetch_keys_ds(bf16 *smem, const struct cache_dev &c, const struct block_view &s,
                                                     const bf16 *ds, int u, int i, int kepts, int owns) {
    const int kept = tiles_of(s.kept), own = u - kept;
    const bf16 *from = ds + (u < kept ? u * owns + i : kepts * owns + i * (i + 1) / 2 + own) * TILE * TILE;
    bf16 *to = smem + q_smem<D>::K;
    fetch_columns<D, TILE, THREADS>(smem, NULL, c, s, u < kept, (u < kept ? u : own) * TILE);
#pragma unroll
    for (int j = threadIdx.x; j < TILE * TILE / 8; j += THREADS)
        copy_async(to + j / (TILE / 8) * LDS + j % (TILE / 8) * 8, from + j * 8);
}

/* dq of 64 queries, over their keys and the value heads of the key head */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    back_q(const struct cache_dev c, const struct cache_back b, int kepts, int owns, int all_ds) {
    const int64_t hk = blockIdx.x / owns % c.a.H, block = blockIdx.x / owns / c.a.H, h0 = hk * c.group;
    const int tile_q = blockIdx.x % owns, warp = threadIdx.x / 32;
    bf16 *smem = (bf16 *)shared_memory();
    struct block_view s = view_of(c, block, h0, true, false);
    const int each = tiles_of(s.kept) + tile_q + 1, all = each * (int)c.group;
    float dq[D / 8][4] = {};
    if (tile_q * TILE >= s.len) return;
    for (int u = -1; u < all; u++) {
        if (u + 1 < all) {
            const int64_t h = h0 + (u + 1) / each;
            if (h != s.h) s = view_of(c, block, h, true, false);
            fetch_keys_ds<D>(smem + (u + 1) % 2 * (q_smem<D>::K + q_smem<D>::DS), c, s,
                             (const bf16 *)b.ds + (block * c.a.HV + h) * all_ds * TILE * TILE, (u + 1) % each, tile_q,
                             kepts, owns);
        }
        copy_commit();
        if (u < 0) continue;
        copy_wait<1>();
        __syncthreads();
        const bf16 *k = smem + u % 2 * (q_smem<D>::K + q_smem<D>::DS), *ds = k + q_smem<D>::K;
#pragma unroll
        for (int j = 0; j < TILE; j += 16) {
            uint32_t x[4], y[4];
            if (u % each == each - 1 && j > warp * 16) continue; /* keys after the queries */
            mma_load_a_trans(x, ds, LDS, j, warp * 16);
#pragma unroll
            for (int n = 0; n < D; n += 16) {
                mma_load_b_trans(y, k, tile<D>::LD, j, n);
                mma_bf16(dq[n / 8], x, y);
                mma_bf16(dq[n / 8 + 1], x, y + 2);
            }
        }
        __syncthreads();
    }
    write_dq<D>(c, s, dq, smem + warp * 16 * tile<D>::LD, tile_q * TILE + warp * 16);
}

template <int D>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b, bool first) {
    const struct hl_cache *a = &c->a;
    const unsigned owns = (unsigned)tiles_of(a->chunk), blocks = (unsigned)c->rows.blocks;
    if (first) launch(cuda, back_rowdot<D>, blocks * owns * (unsigned)a->HV, THREADS, 0, *c, *b, (int)owns);
    else
        launch(cuda, back_q<D>, blocks * owns * (unsigned)a->H, THREADS, (size_t)q_smem<D>::BYTES, *c, *b,
               (int)tiles_of(a->window), (int)owns, (int)ds_tiles(a));
}
static void any(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b, bool first) {
    if (c->a.K == 64) run<64>(cuda, c, b, first);
    if (c->a.K == 128) run<128>(cuda, c, b, first);
    if (c->a.K == 256) run<256>(cuda, c, b, first);
}
void HL_OP(cache_back_rowdot)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    any(cuda, c, b, true);
}
void HL_OP(cache_back_q)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    any(cuda, c, b, false);
}
#else /* cache_tiled() never asks for them */
void HL_OP(cache_back_rowdot)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
void HL_OP(cache_back_q)(struct hl_cuda *, const struct cache_dev *, const struct cache_back *) {}
#endif
