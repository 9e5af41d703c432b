/* prologue.cuh -- convolution, SiLU and norms of q, k and v of one row. A warp has one head of one of
 * them. */
#ifndef HL_PROLOGUE_CUH
#define HL_PROLOGUE_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"

struct batch_prologue {
    const struct hl_seg *seg;
    const bf16 *in; /* [M][ld]: q, k, v, ... */
    bf16 *q, *k, *qt, *kt, *v;
    const float *w[3], *gamma[2]; /* gamma NULL: no RMSNorm for the cache */
    int64_t tail[3];              /* offset in a session's state */
    int ld, H, HV, units;
};

/* N adjacent activations. */
template <int N> static __device__ __forceinline__ void store_acts(bf16 *p, const float *x) {
    if constexpr (N == 8) store_wide(p, x);
    else
        for (int i = 0; i < N; i += 2) *(uint32_t *)(p + i) = pack2(x[i], x[i + 1]);
}

template <int N> static __device__ __forceinline__ void load_floats(float *x, const float *p) {
    if constexpr (N == 2) x[0] = ((const float2 *)p)->x, x[1] = ((const float2 *)p)->y;
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) load_wide(x + i, p + i);
}
template <int N> static __device__ __forceinline__ void store_floats(float *p, const float *x) {
    if constexpr (N == 2) *(float2 *)p = make_float2(x[0], x[1]);
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) store_wide(p + i, x + i);
}

/* A lane's share of head `head` of q, k or v (which: 0, 1, 2). */
template <int D> struct conv_head {
    enum { N = D / 32 };
    float *tail, h[4][N], w[N][4], gamma[N];
    __align__(16) uint32_t now[N / 2]; /* h[3], packed */
    int which, head;
    /* The tail and the weights: can be loaded before pdl_wait. */
    __device__ __forceinline__ void load_old(const struct batch_prologue &a, const struct hl_seg &seg, int which_,
                                             int head_) {
        which = which_, head = head_;
        const int heads = which == 2 ? a.HV : a.H, c = head * D + threadIdx.x % 32 * N;
        tail = (float *)(seg.state + a.tail[which]) + c;
#pragma unroll
        for (int i = 0; i < 3; i++) {
#pragma unroll
            for (int j = 0; j < N; j++) h[i][j] = 0.0f;
            if (seg.pos) load_floats<N>(h[i], tail + i * heads * D);
        }
        load_floats<4 * N>(&w[0][0], a.w[which] + c * 4);
    }
    /* The new input, and gamma. Not used immediately: the loads take a while. */
    __device__ __forceinline__ void load_new(const struct batch_prologue &a, int row) {
        if (which < 2 && a.gamma[which]) load_floats<N>(gamma, a.gamma[which] + threadIdx.x % 32 * N);
        const bf16 *from = a.in + (int64_t)row * a.ld + which * a.H * D + head * D + threadIdx.x % 32 * N;
        if constexpr (N == 8) *(uint4 *)now = *(const uint4 *)from;
        else
#pragma unroll
            for (int i = 0; i < N / 2; i++) now[i] = ((const uint32_t *)from)[i];
    }
    /* Sums the convolution of the old inputs in h[0] while the new one is loading. */
    __device__ __forceinline__ void fold_old() {
#pragma unroll
        for (int j = 0; j < N; j++) h[0][j] = w[j][0] * h[0][j] + w[j][1] * h[1][j] + w[j][2] * h[2][j];
    }
    /* If staged is not NULL, stores in shared memory: D elements for the delta rule to `staged` and, for q and k, D for
     * the cache to `cache_staged`. Otherwise stores to the arrays in global memory. */
    __device__ __forceinline__ void finish(const struct batch_prologue &a, int row, bf16 *staged, bf16 *cache_staged) {
        const int heads = which == 2 ? a.HV : a.H, c = head * D + threadIdx.x % 32 * N;
        const int64_t at = (int64_t)row * heads * D + c;
        float y[N], z[N], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) h[3][i] = i % 2 ? high(now[i / 2]) : low(now[i / 2]);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float u = h[0][j] + w[j][3] * h[3][j];
            y[j] = fast_silu(u), sum += y[j] * y[j];
        }
        if (which == 2) {
            store_acts<N>(staged ? staged + threadIdx.x % 32 * N : a.v + at, y);
            return;
        }
        sum = warp_sum(sum);
        const float r = rsqrtf(sum + (float)HL_L2_EPS), rt = rsqrtf(sum / (float)D + 1e-6f);
#pragma unroll
        for (int j = 0; j < N; j++) z[j] = r * y[j];
        store_acts<N>(staged ? staged + threadIdx.x % 32 * N : (which ? a.k : a.q) + at, z);
        if (!staged && !a.gamma[which]) return;
#pragma unroll
        for (int j = 0; j < N && a.gamma[which]; j++) z[j] = rt * y[j] * gamma[j];
        store_acts<N>(staged ? cache_staged + threadIdx.x % 32 * N : (which ? a.kt : a.qt) + at, z);
    }
    /* The tail for the next token. */
    __device__ __forceinline__ void store_tail(const struct batch_prologue &a) const {
#pragma unroll
        for (int i = 0; i < 3; i++) store_floats<N>(tail + i * (which == 2 ? a.HV : a.H) * D, h[i + 1]);
    }
};

#endif
