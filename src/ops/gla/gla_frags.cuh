/* gla_frags.cuh -- accumulators of a warpgroup [64][..] of the chunk's products: lane 4g + t has rows g, g + 8 of the
 * warp's 16, columns 2t, 2t + 1 of every 8. */
#ifndef HL_GLA_FRAGS_CUH
#define HL_GLA_FRAGS_CUH
#include "ops/gla/gla_steep.cuh"

static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}
/* writes acc, as bf16, to a tile from column c0 on: all of it, 0 above the diagonal, or only what is below it */
enum { ALL, NOT_ABOVE, BELOW };
template <int N, int PART>
static __device__ __forceinline__ void store_frags(bf16 *tile, const float (*acc)[4], int c0) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = own_row(h), j = c0 + 8 * n + 2 * t;
            const float x = acc[n][2 * h], y = acc[n][2 * h + 1];
            const int least = PART == ALL ? -CHUNK : PART == NOT_ABOVE ? 0 : 1; /* of i - j */
            *(uint32_t *)(tile + tile_at<64>(i, j)) = pack2(i - j >= least ? x : 0.0f, i - j > least ? y : 0.0f);
        }
    fence_proxy_async();
}
static __device__ __forceinline__ void store_diagonal(float *to, const float acc[8][4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (own_row(e / 2) == 8 * n + 2 * t + e % 2) to[own_row(e / 2)] = acc[n][e];
}
/* d += x y, y: K channels of h or dh */
template <int K> static __device__ __forceinline__ void times_states(float d[K / 8][4], const bf16 *x, const bf16 *y) {
    wgmma_begin<K / 8>(d);
#pragma unroll
    for (int c = 0; c < 64; c += 16) wgmma_ss<K>(d, operand<64, false>{x, 0, c}, operand<64, true, TILE>{y, c, 0});
    wgmma_end<K / 8>(d);
}
/* dA += dO v^T */
static __device__ __forceinline__ void times_values(float dA[8][4], const bf16 *dout, const bf16 *v) {
    wgmma_begin<8>(dA);
#pragma unroll
    for (int c = 0; c < 64; c += 16) wgmma_ss<64>(dA, operand<64, false>{dout, 0, c}, operand<64, false>{v, 0, c});
    wgmma_end<8>(dA);
}
/* columns times exp(mq), or exp(G_last - mk) */
template <int K, bool QUERY>
static __device__ __forceinline__ void scale_channels(float acc[K / 8][4], const struct channels<K> &x) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int c = 8 * n + 2 * t + j;
            const float y = fast_exp2(QUERY ? x.mq[c] : x.last[c] - x.mk[c]);
            acc[n][j] *= y, acc[n][2 + j] *= y;
        }
}
/* to shared memory, float rows of K + 8: their banks differ */
template <int K> static __device__ __forceinline__ void stage_frags(float *to, const float acc[K / 8][4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + own_row(h) * (K + 8) + 8 * n + 2 * t) = make_float2(acc[n][2 * h], acc[n][2 * h + 1]);
}

/* A = q k^T where it is not above the diagonal, of the whole block; a barrier must follow */
template <int K>
static __device__ __forceinline__ void multiply_pairs(bf16 *A, const bf16 (*q)[TILE], const bf16 (*k)[TILE],
                                                      int group) {
    enum { N = 32 * 64 / K };
    float acc[N / 8][4] = {};
    wgmma_begin<N / 8>(acc);
#pragma unroll
    for (int c = 0; c < K / 16; c++)
        wgmma_ss<N>(acc, operand<64, false>{q[c / 4], 0, c % 4 * 16},
                    operand<64, false>{k[c / 4], N * group, c % 4 * 16});
    wgmma_end<N / 8>(acc);
    store_frags<N, NOT_ABOVE>(A, acc, N * group);
}
/* and the steep channels' part; sum: 16 KB of shared memory. It begins with a barrier; one must follow. */
template <int K>
static __device__ __forceinline__ void add_steep(bf16 *A, float *sum, struct steep_channels<K> &list,
                                                 const struct channels<K> &x, const struct chunk_source &s,
                                                 float scale) {
    steep_pairs<K>(sum, list, x, s, scale);
    for (int i = threadIdx.x; i < CHUNK * CHUNK; i += 4 * K) {
        bf16 *to = A + tile_at<64>(i / CHUNK, i % CHUNK);
        put(to, f32(*to) + sum[i]);
    }
    fence_proxy_async();
}

#endif
