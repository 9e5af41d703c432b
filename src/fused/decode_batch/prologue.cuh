/* prologue.cuh -- convolutions and norms of q, k, v of one row: a warp has a head of one of them. */
#ifndef HL_DECODE_BATCH_PREPARE_CUH
#define HL_DECODE_BATCH_PREPARE_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"

struct batch_prologue {
    const struct hl_seg *seg;
    const bf16 *in; /* [M][ld]: q, k, v, ... */
    bf16 *q, *k, *qt, *kt, *v;
    const float *w[3], *gamma[2]; /* gamma NULL: no second norm */
    int64_t tail[3];              /* from a session's start */
    int ld, H, HV, units;
};

/* N neighbours */
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

/* What a lane has of head `head` of q, k or v (which: 0, 1, 2). */
template <int D> struct prepared {
    enum { N = D / 32 };
    float *tail, h[4][N], w[N][4], gamma[N];
    __align__(16) uint32_t now[N / 2]; /* h[3] */
    int which, head;
    /* What was there before: asked for before others are waited for. */
    __device__ __forceinline__ void ask(const struct batch_prologue &a, const struct hl_seg &seg, int which_,
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
    /* What is new, and what comes last: not touched yet, since it takes a while. */
    __device__ __forceinline__ void ask_new(const struct batch_prologue &a, int row) {
        if (which < 2 && a.gamma[which]) load_floats<N>(gamma, a.gamma[which] + threadIdx.x % 32 * N);
        const bf16 *from = a.in + (int64_t)row * a.ld + which * a.H * D + head * D + threadIdx.x % 32 * N;
        if constexpr (N == 8) *(uint4 *)now = *(const uint4 *)from;
        else
#pragma unroll
            for (int i = 0; i < N / 2; i++) now[i] = ((const uint32_t *)from)[i];
    }
    /* All that is there, so that less is left: into h[0] what the convolution has without the new number. */
    __device__ __forceinline__ void fold() {
#pragma unroll
        for (int j = 0; j < N; j++) h[0][j] = w[j][0] * h[0][j] + w[j][1] * h[1][j] + w[j][2] * h[2][j];
    }
    /* near: to there goes what the delta rule reads, D numbers, and to `sharp` what the exact memory does, of q and k;
     * NULL: where they belong. */
    __device__ __forceinline__ void finish(const struct batch_prologue &a, int row, bf16 *near, bf16 *sharp) {
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
            store_acts<N>(near ? near + threadIdx.x % 32 * N : a.v + at, y);
            return;
        }
        sum = warp_sum(sum);
        const float r = rsqrtf(sum + (float)HL_L2_EPS), rt = rsqrtf(sum / (float)D + 1e-6f);
#pragma unroll
        for (int j = 0; j < N; j++) z[j] = r * y[j];
        store_acts<N>(near ? near + threadIdx.x % 32 * N : (which ? a.k : a.q) + at, z);
        if (!near && !a.gamma[which]) return;
#pragma unroll
        for (int j = 0; j < N && a.gamma[which]; j++) z[j] = rt * y[j] * gamma[j];
        store_acts<N>(near ? sharp + threadIdx.x % 32 * N : (which ? a.kt : a.qt) + at, z);
    }
    /* For the next token. */
    __device__ __forceinline__ void keep(const struct batch_prologue &a) const {
#pragma unroll
        for (int i = 0; i < 3; i++) store_floats<N>(tail + i * (which == 2 ? a.HV : a.H) * D, h[i + 1]);
    }
};

#endif
