/* gla_steep.cuh -- the contribution of a chunk's steep channels (gla_channels.cuh), pair by pair in fp32. Separate
 * functions, which read q, k and g again: few chunks need them, and their registers would slow down all others. Called
 * by all threads of the block, 4 K; they begin and end with a barrier. */
#ifndef HL_GLA_STEEP_CUH
#define HL_GLA_STEEP_CUH
#include "ops/gla/gla_channels.cuh"

enum { SLOTS = 4 }; /* channels at a time */
/* shared memory */
template <int K> struct steep_channels {
    int all, channel[K];
    float q[SLOTS][CHUNK], k[SLOTS][CHUNK], g[SLOTS][CHUNK], G[SLOTS][CHUNK];
};

template <int K>
static __device__ __forceinline__ void list_steep(struct steep_channels<K> &s, const struct channels<K> &x) {
    __syncthreads();
    if (threadIdx.x <= K) {
        int n = 0;
        for (int c = 0; c < (int)threadIdx.x; c++) n += x.steep[c];
        if (threadIdx.x == K) s.all = n;
        else if (x.steep[threadIdx.x]) s.channel[n] = threadIdx.x;
    }
    __syncthreads();
}
/* q, k and G of the channels from number `from` on; returns how many */
template <int K>
static __device__ __forceinline__ int load_steep(struct steep_channels<K> &s, const struct chunk_source &a, int from) {
    const int many = min((int)SLOTS, s.all - from), slot = threadIdx.x / CHUNK, i = threadIdx.x % CHUNK;
    const bool mine = slot < many, in = mine && i < a.len;
    __syncthreads(); /* the previous ones have been read */
    if (mine) {
        const int c = s.channel[from + slot];
        const float g = in ? a.g[i * a.ld_g + c] : 0.0f;
        s.q[slot][i] = in && a.q ? f32(a.q[i * a.ld_q + c]) : 0.0f;
        s.k[slot][i] = !in ? 0.0f : a.k ? f32(a.k[i * a.ld_k + c]) : -expm1f(g);
        s.g[slot][i] = log2_decay(g);
    }
    __syncthreads();
    if (mine) {
        float G = 0.0f;
        for (int j = 0; j <= i; j++) G += s.g[slot][j];
        s.G[slot][i] = G;
    }
    __syncthreads();
    return many;
}
/* sum_c q_ic k_jc exp(G_ic - G_jc) of the steep channels, times scale, to `sum` [64][64] in shared memory; j <= i */
template <int K>
static __device__ __attribute__((noinline)) void steep_pairs(float *sum, struct steep_channels<K> &s,
                                                             const struct channels<K> &x, const struct chunk_source &a,
                                                             float scale) {
    enum { N = CHUNK * CHUNK / (4 * K) };
    float acc[N] = {};
    list_steep<K>(s, x);
    for (int from = 0; from < s.all; from += SLOTS) {
        const int many = load_steep<K>(s, a, from);
        for (int slot = 0; slot < many; slot++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int at = threadIdx.x + n * 4 * K, i = at / CHUNK, j = at % CHUNK;
                if (j <= i) acc[n] += s.q[slot][i] * s.k[slot][j] * fast_exp2(s.G[slot][i] - s.G[slot][j]);
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++) sum[threadIdx.x + n * 4 * K] = scale * acc[n];
    __syncthreads();
}
/* dQ and dK, in shared memory with rows of LD, get what the steep channels' pairs add; dA: a tile, used
 * below the diagonal */
template <int K, int LD>
static __device__ __attribute__((noinline)) void steep_sides(float *dQ, float *dK, const bf16 *dA,
                                                             struct steep_channels<K> &s, const struct channels<K> &x,
                                                             const struct chunk_source &a, float scale) {
    list_steep<K>(s, x);
    for (int from = 0; from < s.all; from += SLOTS) {
        const int many = load_steep<K>(s, a, from), slot = threadIdx.x / CHUNK, i = threadIdx.x % CHUNK;
        if (slot >= many) continue;
        const float G = s.G[slot][i];
        float row = 0.0f, column = 0.0f;
        for (int j = 0; j < i; j++) row += f32(dA[tile_at<64>(i, j)]) * s.k[slot][j] * fast_exp2(G - s.G[slot][j]);
        for (int j = i + 1; j < CHUNK; j++)
            column += f32(dA[tile_at<64>(j, i)]) * s.q[slot][j] * fast_exp2(s.G[slot][j] - G);
        dQ[i * LD + s.channel[from + slot]] += scale * row;
        dK[i * LD + s.channel[from + slot]] += scale * column;
    }
    __syncthreads();
}

#endif
