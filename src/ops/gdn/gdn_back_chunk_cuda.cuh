/* gdn_back_chunk_cuda.cuh -- for gdn_back_chunk_cuda.cu: shared memory, and the rows of a tile from its
 * accumulators. */
#ifndef HL_GDN_BACK_CHUNK_CUDA_CUH
#define HL_GDN_BACK_CHUNK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/wgmma.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

enum { SLICE = 32, CHUNK_THREADS = 4 * GROUP, DEPTH = 5, AHEAD = DEPTH - 2 };
/* dot products of rows; dg takes QDQ + UP from row i on, with UP = beta k.E - k.(W - U) */
enum { QDQ, KE, KU, UP, DOTS };

/* Two warpgroups share KT columns of K: operands of K's width are panels of KT/2 columns. */
template <int KT> struct slice {
    bf16 dO[C * SLICE], X2[C * SLICE], v_new[C * SLICE], v[C * SLICE], h[SLICE * KT], dh[SLICE * KT];
};
template <int KT> struct smem {
    slice<KT> stage[DEPTH];
    bf16 q[C * KT], k[C * KT], dS[C * C], N[C * C], bN[C * C]; /* bN: beta N */
    float gates[BACK_GATES], dot[DOTS][2][C], diagonal[C], vx[C], hdh[4];
};

/* accumulators of one warpgroup: 64 rows, KT/2 columns */
template <int KT> struct acc { float d[KT / 16][4]; };

/* dS and its diagonal from dO v_new^T (group 0), N from X2 v_new^T (group 1): strictly below the diagonal */
template <int KT>
static __device__ __forceinline__ void store_scores(const float (*f)[4], smem<KT> *m, float scale, int group) {
    const int t = threadIdx.x % 4;
    const float whole[2] = {m->gates[G_INT + own_row(0)], m->gates[G_INT + own_row(1)]};
    const float frac[2] = {m->gates[G_FRAC + own_row(0)], m->gates[G_FRAC + own_row(1)]};
    const float b[2] = {m->gates[BETA + own_row(0)], m->gates[BETA + own_row(1)]};
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = own_row(h), j = 8 * n + 2 * t, at = tile_at<C>(i, j);
            const float x = f[n][2 * h], y = f[n][2 * h + 1], beta = b[h];
            const float2 w = *(const float2 *)(m->gates + G_INT + j), p = *(const float2 *)(m->gates + G_FRAC + j);
            float2 D = make_float2(fast_exp2((whole[h] - w.x) + (frac[h] - p.x)),
                                   fast_exp2((whole[h] - w.y) + (frac[h] - p.y)));
            D.x = j < i ? D.x : 0.0f, D.y = j + 1 < i ? D.y : 0.0f;
            if (group == 0) {
                *(uint32_t *)(m->dS + at) = pack2(scale * x * D.x, scale * y * D.y);
                if (i == j) m->diagonal[i] = scale * x;
                if (i == j + 1) m->diagonal[i] = scale * y;
            } else {
                *(uint32_t *)(m->N + at) = pack2(-x * D.x, -y * D.y);
                *(uint32_t *)(m->bN + at) = pack2(beta * (-x * D.x), beta * (-y * D.y));
            }
        }
    fence_proxy_async();
}

template <int KT> static __device__ __forceinline__ void scale_rows(acc<KT> *p, const float *x, float all) {
    const float lo = all * x[own_row(0)], hi = all * x[own_row(1)];
#pragma unroll
    for (int n = 0; n < KT / 16; n++) p->d[n][0] *= lo, p->d[n][1] *= lo, p->d[n][2] *= hi, p->d[n][3] *= hi;
}
/* dQ += dS k, E += N k, later = W - U = dS^T q + (beta N)^T k */
template <int KT>
static __device__ __forceinline__ void add_key_products(const smem<KT> *m, int group, acc<KT> *dQ, acc<KT> *E,
                                                        acc<KT> *later) {
    enum { COLS = KT / 2, TILES = COLS / 8 };
    const bf16 *q = m->q + group * C * COLS, *k = m->k + group * C * COLS;
    wgmma_hold<TILES>(dQ->d), wgmma_hold<TILES>(E->d);
    wgmma_begin<TILES>(later->d);
#pragma unroll
    for (int j = 0; j < C; j += 16) {
        wgmma_ss<COLS>(dQ->d, operand<C, false>{m->dS, 0, j}, operand<COLS, true>{k, j, 0});
        wgmma_ss<COLS>(E->d, operand<C, false>{m->N, 0, j}, operand<COLS, true>{k, j, 0});
        wgmma_ss<COLS>(later->d, operand<C, true>{m->dS, j, 0}, operand<COLS, true>{q, j, 0});
        wgmma_ss<COLS>(later->d, operand<C, true>{m->bN, j, 0}, operand<COLS, true>{k, j, 0});
    }
    wgmma_end<TILES>(later->d);
    wgmma_hold<TILES>(dQ->d), wgmma_hold<TILES>(E->d);
}

static __device__ __forceinline__ float sum_quad(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
/* dot: a row's dot product over this warpgroup's columns, summed over the tiles; held by lane 0 of four */
static __device__ __forceinline__ void add_dot(float *dot, float x, bool first) {
    x = sum_quad(x);
    if (threadIdx.x % 4 == 0) *dot = first ? x : *dot + x;
}
/* Rows of dQ and of dK = beta E + U + W, and the dot products of rows. `later` is W - U, U is without eL; dq, dk: at
 * the warpgroup's first column. A lane stores eight adjacent columns of every 32. */
template <int KT>
static __device__ __forceinline__ void finish_rows(const acc<KT> *dQ, const acc<KT> *E, const acc<KT> *U,
                                                   const acc<KT> *later, smem<KT> *m, bf16 *dq, bf16 *dk,
                                                   int64_t stride, int rows, int group, bool first) {
    enum { COLS = KT / 2 };
    const int t = threadIdx.x % 4;
    const bf16 *q_tile = m->q + group * C * COLS, *k_tile = m->k + group * C * COLS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = own_row(h);
        const float diagonal = m->diagonal[row], beta = m->gates[BETA + row], eL = m->gates[EL + row];
        float qdq = 0, ke = 0, ku = 0, up = 0;
#pragma unroll
        for (int x = 0; x < COLS; x += 32) {
            uint32_t out_q[4], out_k[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = x / 8 + i, at = tile_at<COLS>(row, 8 * n + 2 * t);
                const uint32_t qq = *(const uint32_t *)(q_tile + at), kk = *(const uint32_t *)(k_tile + at);
                const float q[2] = {low(qq), high(qq)}, k[2] = {low(kk), high(kk)};
                float a[2], b[2];
#pragma unroll
                for (int y = 0; y < 2; y++) {
                    const float d = dQ->d[n][2 * h + y], e = E->d[n][2 * h + y];
                    const float u = eL * U->d[n][2 * h + y], l = later->d[n][2 * h + y];
                    qdq += q[y] * d;
                    ke += k[y] * e;
                    ku += k[y] * u;
                    up += k[y] * (beta * e - l);
                    a[y] = d + diagonal * k[y];
                    b[y] = (beta * e + l) + (u + diagonal * q[y]);
                }
                out_q[i] = pack2(a[0], a[1]), out_k[i] = pack2(b[0], b[1]);
            }
            gather_columns(out_q), gather_columns(out_k);
            if (row >= rows) continue;
            *(uint4 *)(dq + row * stride + x + 8 * t) = make_uint4(out_q[0], out_q[1], out_q[2], out_q[3]);
            *(uint4 *)(dk + row * stride + x + 8 * t) = make_uint4(out_k[0], out_k[1], out_k[2], out_k[3]);
        }
        add_dot(&m->dot[QDQ][group][row], qdq, first);
        add_dot(&m->dot[KE][group][row], ke, first);
        add_dot(&m->dot[KU][group][row], ku, first);
        add_dot(&m->dot[UP][group][row], up, first);
    }
}
#endif
