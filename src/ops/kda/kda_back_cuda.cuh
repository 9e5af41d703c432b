/* kda_back_cuda.cuh -- shared by the kernels of KDA's backward pass.
 *
 * Names and formulas are those of docs/math.md. Per value head and chunk of 64 rows, with the tiles of kda_cuda.cuh;
 * dh: gradient of the state after the chunk; s = K^{-1/2}:
 *     dv_new = P^T dO + ke dh                  X2 = A^T dv_new           dV = beta X2
 *     dh before the chunk = e^{G_last} dh + qg^T dO - kg^T (beta X2)
 *     dS = s stril(dO v_new^T)                 N = -stril(X2 v_new^T)
 *     dQ = s e^G (dO h^T) + rows of pair(Q, K) with dS      E = -e^G (X2 h^T) + rows of pair(K, K) with N
 *     U = e^{G_last - G} (v_new dh^T)          W = columns of pair(Q, K) with dS + of pair(K, K) with beta N
 *     dK = beta E + U + W                      dbeta = V.X2 + K.E
 *     dg_t = sum_{i>=t} (Q dQ + beta K E - K W - K U)_i + sum_i (K U)_i + e^{G_last} sum_v h dh, per channel
 * The diagonal of the scores does not decay: it is left out of dS, and s (dO.v_new)_i times k_i, q_i is added to dQ, dK
 * after their products for dg are taken. */
#ifndef HL_KDA_BACK_CUDA_CUH
#define HL_KDA_BACK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_cuda.cuh"

struct kda_back {
    int64_t T, segs, chunks;
    int H, HV, K, V, group; /* group: value heads of a key head */
    const act *q, *k, *v, *dout, *v_new, *A;
    const float *g, *beta;
    act *dv;
    float *dg, *dbeta;
    const struct hl_seg *seg;
    const struct hl_dev_span *chunk;
    const int32_t *chunk_first;
    const float *h0, *dht; /* [segs][HV][K][V]; NULL: empty states, final ones without a gradient */
    float *dh0;            /* NULL: not wanted */
    /* scratch */
    void *tiles;            /* [chunks][HV] of kda_tiles */
    void *h, *dh;           /* the states before and the gradients after every chunk: [chunks][HV][V / 64] tiles of
                               kda_store_state; plain: h alone, float [K][V] */
    void *X2;               /* [chunks][HV][V / 64] panels */
    float *plain;           /* [segs][HV][65][K][V]: of the plain form */
    act *dq_head, *dk_head; /* [T][HV][K]: dq, dk themselves where a key head has one value head */
};

/* of a segment and head; NULL stays NULL */
template <class T> static __device__ __forceinline__ T *kda_end_state(const struct kda_back &a, T *x, int s, int hv) {
    return x ? x + ((int64_t)s * a.HV + hv) * a.K * a.V : NULL;
}

/* The transposed state of 64 columns of V, from a warpgroup's accumulators, to a tile of h or dh: [K / 32] panels of
 * [64][32], swizzled as in shared memory. */
template <int K> static __device__ __forceinline__ void kda_store_state(bf16 *to, const float S[K / 8][4]) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 32; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * n + i][2 * h], S[4 * n + i][2 * h + 1]);
            gather_columns(w);
            *(uint4 *)(to + n * 64 * 32 + tile_at<32>(row + 8 * h, 8 * t)) = make_uint4(w[0], w[1], w[2], w[3]);
        }
}

extern "C" {
/* h of every chunk; dh and X2 of every chunk; everything else */
void HL_OP(kda_back_states)(struct hl_cuda *c, const struct kda_back *a);
void HL_OP(kda_back_scan)(struct hl_cuda *c, const struct kda_back *a);
void HL_OP(kda_back_chunks)(struct hl_cuda *c, const struct kda_back *a);
bool HL_OP(kda_back_fits)(struct hl_cuda *c, int64_t K, int64_t V);
void HL_OP(kda_back_plain)(struct hl_cuda *c, const struct kda_back *a);
}

#endif
