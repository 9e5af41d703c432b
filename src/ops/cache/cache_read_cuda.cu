/* cache_read_cuda.cu -- the read on tensor cores: softmax and sum over the keys as they stream past.
 *
 * grid (blocks HV tiles): a thread block is ROWS queries of one block and value head, a warp 16 of them
 * with their sums in registers. Keys and values come KEYS at a time into two buffers; nothing else is
 * kept. */
#include "cuda/quick.cuh"
#include "ops/cache/cache_mma.cuh"

#ifndef HL_CUDA_F32
static const float LOG2E = 1.44269504f, LN2 = 0.69314718f;

/* The largest tiles that leave room for 8 warps or more on a multiprocessor, of chips with 99 KB too. */
template <int D> struct read_room {
    enum {
        ROWS = D == 256 ? 64 : 128,
        KEYS = D == 64 ? 64 : 32,
        THREADS = 2 * ROWS,
        Q = ROWS * tile<D>::LD,
        KV = KEYS * tile<D>::LD,
        BYTES = (Q + 4 * KV) * 2,
    };
};

/* Softmax so far of the warp's 16 queries; a thread holds rows g and g + 8. */
template <int D> struct reader { float o[D / 8][4], top[2], sum[2]; };

/* One tile of columns: the queries see those up to `limit`[row], counted from the tile's first. */
template <int D>
static __device__ __forceinline__ void read_tile(struct reader<D> &r, const bf16 *q, const bf16 *k,
                                                 const bf16 *v, int row, float scale, const int limit[2],
                                                 bool edge) {
    enum { KEYS = read_room<D>::KEYS };
    float s[KEYS / 8][4] = {};
    const int t = threadIdx.x % 4;
    float top[2] = {r.top[0], r.top[1]};
    product_rows<D, KEYS>(s, q, row, k, 0);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] *= scale;
            if (edge && n * 8 + 2 * t + e % 2 > limit[e / 2]) s[n][e] = -INFINITY;
            top[e / 2] = fmaxf(top[e / 2], s[n][e]);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
    }
    if (__any_sync(0xffffffffu, top[0] > r.top[0] || top[1] > r.top[1])) {
        const float less[2] = {exp2f(r.top[0] - top[0]), exp2f(r.top[1] - top[1])};
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) r.o[n][e] *= less[e / 2];
        for (int i = 0; i < 2; i++) r.sum[i] *= less[i], r.top[i] = top[i];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = quick_exp2(s[n][e] - top[e / 2]);
            r.sum[e / 2] += s[n][e];
        }
    product_sum<D, KEYS>(r.o, s, v);
}

static __device__ __forceinline__ uint32_t add_pairs(uint32_t y, float a, uint32_t x) {
    return pack2(low(y) + a * low(x), high(y) + a * high(x));
}
/* The warp's rows go out through `room` [16][LD], whole lines at a time. */
template <int D>
static __device__ __forceinline__ void write_rows(const struct cache_dev &c, const struct view &s,
                                                  struct reader<D> &r, bf16 *room, int from) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float sink = c.a.sink[s.h] * LOG2E, lambda = sigmoid(c.a.gate[s.h]);
    float over[2];
    for (int i = 0; i < 2; i++) {
        r.sum[i] += __shfl_xor_sync(0xffffffffu, r.sum[i], 1);
        r.sum[i] += __shfl_xor_sync(0xffffffffu, r.sum[i], 2);
        r.sum[i] += exp2f(sink - r.top[i]);
        over[i] = 1.0f / r.sum[i];
        if (c.a.lse && t == 0 && from + g + 8 * i < s.len)
            c.a.lse[(int64_t)(s.row + from + g + 8 * i) * c.a.HV + s.h] = (r.top[i] + log2f(r.sum[i])) * LN2;
    }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(room + (g + 8 * i) * tile<D>::LD + n * 8 + 2 * t) =
                pack2(r.o[n][2 * i] * over[i], r.o[n][2 * i + 1] * over[i]);
    __syncwarp();
    enum {
        EACH = tile<D>::CHUNKS / 2
    }; /* every load before the first store: they might be the same memory */
    uint4 old[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int row = (lane + 32 * i) / tile<D>::CHUNKS, at = (lane + 32 * i) % tile<D>::CHUNKS * 8;
        const int64_t to = ((int64_t)(s.row + from + row) * c.a.HV + s.h) * D + at;
        if (from + row < s.len) old[i] = *(const uint4 *)((const bf16 *)c.a.out + to);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int row = (lane + 32 * i) / tile<D>::CHUNKS, at = (lane + 32 * i) % tile<D>::CHUNKS * 8;
        const int64_t to = ((int64_t)(s.row + from + row) * c.a.HV + s.h) * D + at;
        const uint4 x = *(const uint4 *)(room + row * tile<D>::LD + at), y = old[i];
        if (from + row >= s.len) continue;
        if (c.a.read) *(uint4 *)((bf16 *)c.a.read + to) = x;
        *(uint4 *)((bf16 *)c.a.out + to) =
            make_uint4(add_pairs(y.x, lambda, x.x), add_pairs(y.y, lambda, x.y), add_pairs(y.z, lambda, x.z),
                       add_pairs(y.w, lambda, x.w));
    }
}

template <int D>
static __global__ void __launch_bounds__(read_room<D>::THREADS, 2)
    read_block(const struct cache_dev c, int tiles) {
    enum { ROWS = read_room<D>::ROWS, KEYS = read_room<D>::KEYS, THREADS = read_room<D>::THREADS };
    const int64_t h = blockIdx.x / tiles % c.a.HV;
    const struct view s = view_of(c, blockIdx.x / tiles / c.a.HV, h, false);
    const int from = blockIdx.x % tiles * ROWS, row = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4;
    if (from >= s.len) return;
    bf16 *q = (bf16 *)shared_memory(), *kv = q + read_room<D>::Q;
    const float scale = c.a.tau[h] * LOG2E / sqrtf((float)D);
    const int kept = (s.kept + KEYS - 1) / KEYS;
    const int all = kept + (s.skip + min(from + ROWS, s.len) + KEYS - 1) / KEYS;
    struct reader<D> r = {};
    r.top[0] = r.top[1] = c.a.sink[h] * LOG2E;
    fetch_rows<D, ROWS, THREADS>(q, c.a.q, c.a.H, s.hk, s.row + from, s.len - from);
    for (int j = -1; j < all; j++) {
        if (j + 1 < all) {
            bf16 *next = kv + ((j + 1) & 1) * 2 * read_room<D>::KV;
            const bool old = j + 1 < kept;
            fetch_columns<D, KEYS, THREADS>(next, next + read_room<D>::KV, c, s, old,
                                            (old ? j + 1 : j + 1 - kept) * KEYS);
        }
        copy_commit();
        if (j < 0) continue;
        copy_wait<1>();
        __syncthreads();
        const bf16 *now = kv + (j & 1) * 2 * read_room<D>::KV;
        const int first = (j < kept ? j : j - kept) * KEYS,
                  at = s.skip + from + row; /* of the warp's first query */
        const int limit[2] = {j < kept ? s.kept - 1 - first : at + g - first,
                              j < kept ? s.kept - 1 - first : at + g + 8 - first};
        if (j < kept || first <= at + 15)
            read_tile<D>(r, q, now, now + read_room<D>::KV, row, scale, limit,
                         j < kept ? s.kept < first + KEYS : first + KEYS - 1 > at);
        __syncthreads();
    }
    write_rows<D>(c, s, r, q + row * tile<D>::LD, from + row);
}

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c) {
    const unsigned tiles = blocks_for(c->a.chunk, read_room<D>::ROWS);
    launch(cuda, read_block<D>, (unsigned)(c->rows.blocks * c->a.HV * tiles), read_room<D>::THREADS,
           (size_t)read_room<D>::BYTES, *c, (int)tiles);
}
void HL_OP(cache_read)(struct hl_cuda *cuda, const struct cache_dev *c) {
    if (c->a.K == 64) run<64>(cuda, c);
    if (c->a.K == 128) run<128>(cuda, c);
    if (c->a.K == 256) run<256>(cuda, c);
}
#else
void HL_OP(cache_read)(struct hl_cuda *, const struct cache_dev *) {} /* cache_tiled() never asks for it */
#endif
