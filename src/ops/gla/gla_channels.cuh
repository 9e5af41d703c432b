/* gla_channels.cuh -- the decays of a chunk, channel by channel, in a block of 4 K threads: thread t has two adjacent
 * channels, 2 (t % (K/2)), and 8 rows from 8 (t / (K/2)) on. In base 2: exp2 is an instruction.
 *
 *     sum_c x_ic y_jc exp(G_ic - G_jc) = (x_i exp(G_i - r)) . (y_j exp(r - G_j))     for any r per channel
 * With r halfway between the chunk's first and last G no exponent leaves +-60 while the channel decays by less than
 * 2^-120 within the chunk: then the sum is one product of bf16 tiles. A channel that decays more is `steep`: it is
 * excluded from the product (its columns are 0), and its contribution is added pair by pair in fp32 (gla_steep.cuh). */
#ifndef HL_GLA_CHANNELS_CUH
#define HL_GLA_CHANNELS_CUH
#include "cuda/fastmath.cuh"
#include "ops/gla/gla_cuda.cuh"

enum { ROWS = 8, GROUPS = CHUNK / ROWS };
#define HL_LOG2E 1.4426950408889634f

/* A chunk of one head in memory: q, k, g at its first row and the head's first channel. */
struct chunk_source {
    const bf16 *q, *k; /* k NULL: 1 - exp(g) */
    const float *g;
    int64_t ld_q, ld_k, ld_g;
    int len;
};
#ifndef HL_CUDA_F32
/* of a whole batch */
static inline struct chunk_source source_of(const struct gla_view *a) {
    struct chunk_source s = {a->q, a->k, a->g, a->ld_q, a->ld_k, a->HK * a->K, 0};
    return s;
}
#endif
template <int K>
static __device__ __forceinline__ struct chunk_source chunk_of(struct chunk_source s, const struct hl_dev_span &p,
                                                               int head) {
    s.q = s.q ? s.q + p.row * s.ld_q + head * K : NULL, s.k = s.k ? s.k + p.row * s.ld_k + head * K : NULL;
    s.g += p.row * s.ld_g + head * K, s.len = p.len;
    return s;
}
/* shared memory */
template <int K> struct channels {
    float sums[GROUPS][K]; /* of a thread's rows */
    float first[K];        /* G of the first row */
    float last[K];         /* of the last row */
    float mq[K], mk[K];    /* references: of x exp(G - mq), of y exp(mk - G) */
    unsigned char steep[K];
};
/* per thread */
struct decays {
    float G[ROWS][2], last[2], mq[2], mk[2];
    bool steep[2];
};

template <int K> static __device__ __forceinline__ int own_channel() { return threadIdx.x % (K / 2) * 2; }
template <int K> static __device__ __forceinline__ int own_first_row() { return threadIdx.x / (K / 2) * ROWS; }

/* exp(-60) is negligible, and longer sums would lose precision */
static __device__ __forceinline__ float log2_decay(float g) { return fmaxf(g, -60.0f) * HL_LOG2E; }

/* Two adjacent numbers of each of the thread's rows, 0 past len; p: at the chunk's first row, channel 0. */
template <int K>
static __device__ __forceinline__ void load_pairs(uint32_t x[ROWS], const bf16 *p, int64_t ld, int len) {
    const int row = own_first_row<K>();
    p += row * ld + own_channel<K>();
#pragma unroll
    for (int i = 0; i < ROWS; i++, p += ld) x[i] = row + i < len ? *(const uint32_t *)p : 0u;
}
/* q, k and the cumulative log decays of the thread's rows and channels; q may be NULL. Returns whether any channel of
 * the block is steep. */
template <int K, bool SLOTTED>
static __device__ __forceinline__ bool load_chunk(uint32_t q[ROWS], uint32_t k[ROWS], struct decays &d,
                                                  struct channels<K> &x, const struct chunk_source &s) {
    const int row = own_first_row<K>(), c = own_channel<K>(), group = row / ROWS;
    const float *g = s.g + row * s.ld_g + c;
#pragma unroll
    for (int i = 0; i < ROWS; i++, g += s.ld_g) {
        const float2 y = row + i < s.len ? *(const float2 *)g : make_float2(0.0f, 0.0f);
        d.G[i][0] = y.x, d.G[i][1] = y.y;
    }
    if (s.q) load_pairs<K>(q, s.q, s.ld_q, s.len);
    if (!SLOTTED) load_pairs<K>(k, s.k, s.ld_k, s.len);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (SLOTTED) k[i] = pack2(-expm1f(d.G[i][0]), -expm1f(d.G[i][1]));
#pragma unroll
        for (int j = 0; j < 2; j++) d.G[i][j] = log2_decay(d.G[i][j]);
    }
    if (group == 0) x.first[c] = d.G[0][0], x.first[c + 1] = d.G[0][1];
#pragma unroll
    for (int i = 1; i < ROWS; i++) d.G[i][0] += d.G[i - 1][0], d.G[i][1] += d.G[i - 1][1];
    x.sums[group][c] = d.G[ROWS - 1][0], x.sums[group][c + 1] = d.G[ROWS - 1][1];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float before = 0.0f, all = 0.0f;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            before = n == group ? all : before;
            all += x.sums[n][c + j];
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) d.G[i][j] += before;
        const float first = x.first[c + j], middle = 0.5f * (first + all);
        d.last[j] = all;
        d.steep[j] = first - all > 120.0f;
        d.mq[j] = d.steep[j] ? 0.0f : middle, d.mk[j] = d.steep[j] ? all : middle;
        if (group == 0) {
            x.last[c + j] = all, x.steep[c + j] = d.steep[j];
            x.mq[c + j] = d.mq[j], x.mk[c + j] = d.mk[j];
        }
    }
    return __syncthreads_or(d.steep[0] || d.steep[1]);
}
/* The thread's pairs, times factor, decayed: QUERY: x exp(G - mq), else x exp(mk - G). To tiles in shared memory, 0
 * where steep; and times exp(mq), or exp(G_last - mk), to those at `to`. */
template <int K, bool QUERY>
static __device__ __forceinline__ void decay_pairs(bf16 *to, bf16 (*tile)[TILE], const uint32_t x[ROWS],
                                                   const struct decays &d, float factor) {
    const int c = own_channel<K>(), row = own_first_row<K>();
    float end[2];
#pragma unroll
    for (int j = 0; j < 2; j++) end[j] = fast_exp2(QUERY ? d.mq[j] : d.last[j] - d.mk[j]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int at = tile_at<64>(row + i, c % 64);
        float y[2] = {low(x[i]), high(x[i])};
#pragma unroll
        for (int j = 0; j < 2; j++) y[j] *= factor * fast_exp2(QUERY ? d.G[i][j] - d.mq[j] : d.mk[j] - d.G[i][j]);
        *(uint32_t *)(tile[c / 64] + at) = pack2(d.steep[0] ? 0.0f : y[0], d.steep[1] ? 0.0f : y[1]);
        if (to) *(uint32_t *)(to + c / 64 * TILE + at) = pack2(end[0] * y[0], end[1] * y[1]);
    }
}

#endif
