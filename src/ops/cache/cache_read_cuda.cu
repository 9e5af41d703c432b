/* cache_read_cuda.cu -- the read on tensor cores: online softmax over tiles of keys.
 *
 * grid (blocks HV tiles), 2 ROWS threads: a thread block is ROWS queries of one block and value head; a warpgroup has
 * 64 of them with its accumulators in registers. Shared memory: the queries, and two stages of KEYS keys and values, so
 * that a tile is copied while the previous one is read. The block's own keys come first and pdl_wait after them: the
 * selection of the kept rows may still be running when the kernel starts. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/epilogue.cuh"
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f, LN2 = 0.69314718f;

/* The largest tiles with which at least 8 warps fit on an SM, even with 99 KB of shared memory. */
template <int D> struct read_smem {
    enum { ROWS = D == 256 ? 64 : 128, KEYS = D == 256 ? 32 : 64, THREADS = 2 * ROWS, PANEL = KEYS * 64 };
    bf16 q[ROWS / 64][64 * D]; /* rows of D numbers are panels of 64 */
    bf16 kv[2][2][KEYS * D];
};

/* ---- copies; to be committed ---- */

template <int D>
static __device__ __forceinline__ void copy_queries(struct read_smem<D> *m, const struct cache_dev &c,
                                                    const struct block_view &s, int from) {
    const int64_t ld = c.a.H * D;
    const bf16 *q = (const bf16 *)c.a.q + (int64_t)(s.row + from) * ld + s.hk * D;
#pragma unroll
    for (int i = 0; i < read_smem<D>::ROWS / 64; i++)
#pragma unroll
        for (int x = 0; x < D / 64; x++)
            copy_panel<64, 64, read_smem<D>::THREADS>(m->q[i] + x * 64 * 64, q + i * 64 * ld + x * 64, ld,
                                                      s.len - from - i * 64, threadIdx.x);
}
/* q = -q, for a negative temperature: the softmax then needs only its absolute value. */
template <int D> static __device__ __forceinline__ void negate_queries(struct read_smem<D> *m) {
    uint32_t *q = (uint32_t *)m->q;
    for (int i = threadIdx.x; i < read_smem<D>::ROWS * D / 2; i += read_smem<D>::THREADS) q[i] ^= 0x80008000u;
    fence_proxy_async();
    __syncthreads();
}
/* KEYS columns from column `from` on: kept rows or the block's own */
template <int D>
static __device__ __forceinline__ void copy_columns(struct read_smem<D> *m, int stage, const struct cache_dev &c,
                                                    const struct block_view &s, bool kept, int from) {
    enum { KEYS = read_smem<D>::KEYS, THREADS = read_smem<D>::THREADS, PANEL = read_smem<D>::PANEL };
    bf16 *k = m->kv[stage][0], *v = m->kv[stage][1];
    if (!kept && from >= s.skip) {
        const int64_t row = s.row + from - s.skip;
        const int left = s.len + s.skip - from;
#pragma unroll
        for (int x = 0; x < D / 64; x++) {
            copy_panel<64, KEYS, THREADS>(k + x * PANEL, (const bf16 *)c.a.k + (row * c.a.H + s.hk) * D + x * 64,
                                          c.a.H * D, left, threadIdx.x);
            copy_panel<64, KEYS, THREADS>(v + x * PANEL, (const bf16 *)c.a.v + (row * c.a.HV + s.h) * D + x * 64,
                                          c.a.HV * D, left, threadIdx.x);
        }
        return;
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < KEYS * 8; i += THREADS) {
        const int r = i / 8, col = i % 8 * 8;
        const int id = kept ? kept_id(s, from + r) : own_id(c, s, from + r);
        const int slot = id == (int)NO_ROW ? -1 : -1 - id;
#pragma unroll
        for (int x = 0; x < D / 64; x++) {
            const int to = x * PANEL + tile_at<64>(r, col);
            fetch<D>(k + to, (const bf16 *)c.a.k, id < 0 ? -1 : (int64_t)id * c.a.H + s.hk, s.m.k, slot, x * 64 + col);
            fetch<D>(v + to, (const bf16 *)c.a.v, id < 0 ? -1 : (int64_t)id * c.a.HV + s.h, s.m.v, slot, x * 64 + col);
        }
    }
}

/* ---- online softmax of the warpgroup's 64 queries; a thread holds rows g and g + 8 of its warp's 16 ---- */

template <int D> struct running_softmax { float o[D / 8][4], row_max[2], sum[2]; };

/* s becomes p; sums and accumulators are rescaled to the new maximum logit. scale > 0, so the largest s gives the
 * largest logit. */
template <int D>
static __device__ __forceinline__ void online_softmax(struct running_softmax<D> &r, float (*s)[4], float scale,
                                                      const int limit[2], bool edge) {
    enum { KEYS = read_smem<D>::KEYS };
    const int t = threadIdx.x % 4;
    float row_max[2] = {-INFINITY, -INFINITY};
    if (edge) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (n * 8 + 2 * t + e % 2 > limit[e / 2]) s[n][e] = -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) row_max[e / 2] = fmaxf(row_max[e / 2], s[n][e]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row_max[i] = fmaxf(row_max[i], __shfl_xor_sync(0xffffffffu, row_max[i], 1));
        row_max[i] = fmaxf(row_max[i], __shfl_xor_sync(0xffffffffu, row_max[i], 2));
        row_max[i] = fmaxf(r.row_max[i], row_max[i] * scale);
    }
    if (__any_sync(0xffffffffu, row_max[0] > r.row_max[0] || row_max[1] > r.row_max[1])) {
        const float rescale[2] = {exp2f(r.row_max[0] - row_max[0]), exp2f(r.row_max[1] - row_max[1])};
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) r.o[n][e] *= rescale[e / 2];
        for (int i = 0; i < 2; i++) r.sum[i] *= rescale[i], r.row_max[i] = row_max[i];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = fast_exp2(s[n][e] * scale - row_max[e / 2]);
            r.sum[e / 2] += s[n][e];
        }
}

/* s += bias / scale: the biases of the tile's kept columns, of which there are n. */
template <int D>
static __device__ __forceinline__ void add_biases(float (*s)[4], const float *bias, int n, float scale) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < read_smem<D>::KEYS / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int j = i * 8 + 2 * t + e;
            const float b = j < n ? bias[j] * (LOG2E / scale) : 0.0f;
            s[i][e] += b, s[i][2 + e] += b;
        }
}

/* One tile of columns: a query sees those up to `limit`[row], relative to the tile. */
template <int D, bool BIAS>
static __device__ __forceinline__ void read_tile(struct running_softmax<D> &r, const bf16 *q, const bf16 *k,
                                                 const bf16 *v, float scale, const int limit[2], bool edge,
                                                 const float *bias, int kept) {
    enum { KEYS = read_smem<D>::KEYS, PANEL = read_smem<D>::PANEL, N = D < 128 ? D : 128 };
    float s[KEYS / 8][4] = {};
    uint32_t p[KEYS / 16][4];
    wgmma_begin<KEYS / 8>(s);
#pragma unroll
    for (int x = 0; x < D; x += 16)
        wgmma_ss<KEYS>(s, operand<64, false>{q + x / 64 * 64 * 64, 0, x % 64},
                       operand<64, false>{k + x / 64 * PANEL, 0, x % 64});
    wgmma_end<KEYS / 8>(s);
    if (BIAS && bias) add_biases<D>(s, bias, kept, scale);
    online_softmax<D>(r, s, scale, limit, edge);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) as_fragment(p[i], s, i);
    wgmma_hold_a<KEYS / 16>(p);
    wgmma_begin<D / 8>(r.o);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
        for (int n = 0; n < D; n += N)
            wgmma_rs<N>(r.o + n / 8, p[i], operand<64, true, PANEL>{v + n / 64 * PANEL, 16 * i, 0});
    wgmma_end<D / 8>(r.o);
    wgmma_hold_a<KEYS / 16>(p);
}

/* Epilogue: the warp's 16 rows, from row `from` of the block on, are staged in place in q and, times lambda, at the
 * same offset in kv, so that full cache lines are written. */
template <int D>
static __device__ __forceinline__ void write_rows(const struct cache_dev &c, const struct block_view &s,
                                                  struct running_softmax<D> &r, struct read_smem<D> *m, int group,
                                                  int from) {
    enum { CHUNKS = D / 8, STEP = 32 / CHUNKS, EACH = 16 / STEP };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16, g = lane / 4, t = lane % 4;
    const int row = lane / CHUNKS, chunk = lane % CHUNKS, left = s.len - from - row, ld = (int)c.a.HV * D;
    const int64_t at = ((int64_t)(s.row + from + row) * c.a.HV + s.h) * D + chunk * 8;
    bf16 *const out = (bf16 *)c.a.out + at, *const read = (bf16 *)c.a.read + at;
    const float sink = c.a.sink[s.h] * LOG2E;
    bf16 *const plain = m->q[group], *const gated = m->kv[0][0] + group * 64 * D;
    float inv_sum[2], lambda[2];
    uint4 old[EACH]; /* all loads before the first store, because they may alias */
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * STEP < left) old[i] = *(const uint4 *)(out + i * STEP * ld);
    for (int i = 0; i < 2; i++) {
        r.sum[i] += __shfl_xor_sync(0xffffffffu, r.sum[i], 1);
        r.sum[i] += __shfl_xor_sync(0xffffffffu, r.sum[i], 2);
        r.sum[i] += exp2f(sink - r.row_max[i]);
        inv_sum[i] = 1.0f / r.sum[i];
        const float gate = gate_of(c.a, s.row + min(from + g + 8 * i, s.len - 1), s.h);
        lambda[i] = lambda_of(c.a, gate, sigmoid(gate));
        if (c.a.lse && t == 0 && from + g + 8 * i < s.len)
            c.a.lse[(int64_t)(s.row + from + g + 8 * i) * c.a.HV + s.h] = (r.row_max[i] + log2f(r.sum[i])) * LN2;
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t x[4];
        for (int j = 0; j < 2; j++)
            for (int e = 0; e < 4; e++) r.o[n + j][e] *= inv_sum[e / 2];
        pack_a(x, r.o + n);
        tile_stmatrix(plain + n / 8 * 64 * 64, first, n % 8 * 8, x);
        for (int j = 0; j < 2; j++)
            for (int e = 0; e < 4; e++) r.o[n + j][e] *= lambda[e / 2];
        pack_a(x, r.o + n);
        tile_stmatrix(gated + n / 8 * 64 * 64, first, n % 8 * 8, x);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int place = chunk / 8 * 64 * 64 + tile_at<64>(first + row + i * STEP, chunk % 8 * 8);
        if (i * STEP >= left) continue;
        if (c.a.read) *(uint4 *)(read + i * STEP * ld) = *(const uint4 *)(plain + place);
        *(uint4 *)(out + i * STEP * ld) = add_pairs(old[i], *(const uint4 *)(gated + place));
    }
}

/* STATES: with sessions; BIAS: kept rows have biases. Template arguments, since code without them needs fewer
 * registers. */
template <int D, bool STATES, bool BIAS>
static __global__ void __launch_bounds__(read_smem<D>::THREADS, 2) read_block(const struct cache_dev c, int tiles) {
    enum { ROWS = read_smem<D>::ROWS, KEYS = read_smem<D>::KEYS };
    struct read_smem<D> *m = (struct read_smem<D> *)shared_tiles();
    const int at = (int)blockIdx.x / tiles, h = at % (int)c.a.HV;
    const struct block_view s = view_of(c, at / (int)c.a.HV, h, false, STATES);
    const int from = (tiles - 1 - blockIdx.x % tiles) * ROWS, group = warpgroup_index(), row = threadIdx.x / 32 * 16,
              g = threadIdx.x % 32 / 4;
    if (from >= s.len) {
        if (blockIdx.x + 1 == gridDim.x)
            pdl_wait(); /* there may be no rows at all: whoever waits for this kernel ... */
        return;         /* ... waits for the one before it as well */
    }
    const float *bias = BIAS ? c.bias + (int64_t)at * c.a.window : NULL;
    const float tau = c.a.tau[h], scale = fmaxf(fabsf(tau) * LOG2E / sqrtf((float)D), 1e-30f);
    const int own = (s.skip + min(from + ROWS, s.len) + KEYS - 1) / KEYS;
    const int all = own + (s.kept + KEYS - 1) / KEYS;
    struct running_softmax<D> r = {};
    r.row_max[0] = r.row_max[1] = c.a.sink[h] * LOG2E;
    copy_queries<D>(m, c, s, from);
    for (int j = -1; j < all; j++) {
        if (j + 1 == own) pdl_wait(); /* for the selection */
        if (j + 1 < all)
            copy_columns<D>(m, (j + 1) & 1, c, s, j + 1 >= own, (j + 1 < own ? j + 1 : j + 1 - own) * KEYS);
        copy_commit();
        if (j < 0) continue;
        copy_wait<1>();
        fence_proxy_async();
        __syncthreads();
        if (tau < 0 && j == 0) negate_queries<D>(m);
        const int first = (j < own ? j : j - own) * KEYS, at = s.skip + from + row; /* of the warp's first query */
        const int limit[2] = {j < own ? at + g - first : s.kept - 1 - first,
                              j < own ? at + g + 8 - first : s.kept - 1 - first};
        if (j >= own || first <= s.skip + from + group * 64 + 63)
            read_tile<D, BIAS>(r, m->q[group], m->kv[j & 1][0], m->kv[j & 1][1], scale, limit,
                               j < own ? first + KEYS - 1 > at : s.kept < first + KEYS,
                               BIAS && j >= own ? bias + first : NULL, s.kept - first);
        __syncthreads();
    }
    write_rows<D>(c, s, r, m, group, from + row);
}

template <int D, bool STATES, bool BIAS> static void run(struct hl_cuda *cuda, const struct cache_dev *c) {
    const unsigned tiles = blocks_for(c->a.chunk, read_smem<D>::ROWS),
                   grid = (unsigned)(c->rows.blocks * c->a.HV) * tiles;
    const size_t bytes = sizeof(struct read_smem<D>) + TILES_ROOM;
    /* PDL only after a selection kernel, which writes nothing else that is read here: any other kernel may have written
     * the queries */
    if (c->a.window > 0)
        launch_pdl(cuda, read_block<D, STATES, BIAS>, grid, read_smem<D>::THREADS, bytes, *c, (int)tiles);
    else launch(cuda, read_block<D, STATES, BIAS>, grid, read_smem<D>::THREADS, bytes, *c, (int)tiles);
}
template <bool STATES, bool BIAS> static void any(struct hl_cuda *cuda, const struct cache_dev *c) {
    if (c->a.K == 64) run<64, STATES, BIAS>(cuda, c);
    if (c->a.K == 128) run<128, STATES, BIAS>(cuda, c);
    if (c->a.K == 256) run<256, STATES, BIAS>(cuda, c);
}
void HL_OP(cache_read)(struct hl_cuda *cuda, const struct cache_dev *c, bool states) {
    const bool bias = c->a.policy.score == HL_SCORE_LEARNED && c->a.window > 0;
    if (states) (bias ? any<true, true> : any<true, false>)(cuda, c);
    else (bias ? any<false, true> : any<false, false>)(cuda, c);
}
#else
void HL_OP(cache_read)(struct hl_cuda *, const struct cache_dev *, bool) {} /* cache_tiled() never asks for it */
#endif
