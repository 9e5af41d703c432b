/* low_rank.cuh -- the mixer of a decoding step with per-channel decay (KDA, GLA): the second halves of the low-rank
 * projections.
 *
 * IN publishes the inner values. A tile task needs the decays of all channels of its head, so it multiplies them by the
 * head's rows of the second matrix, which TASK_WARP has copied to shared memory: two threads per channel. All tiles of
 * a head repeat this work; another exchange between blocks would take longer. KDA's output gate is computed the same
 * way, one warp per column of the tile, and published for OUT. */
#ifndef HL_LOW_RANK_CUH
#define HL_LOW_RANK_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

template <class D> static constexpr bool has_low_rank = D::rule == HL_DECODE_KDA || D::rule == HL_DECODE_GLA;
template <class D> static __device__ __forceinline__ float *alpha_of(const D &a, const struct block &b) {
    return (float *)(b.shared + a.s.alpha);
}
/* Copies a tile's rows of the second matrices; this is thread `me` of `all`. */
template <class D>
static __device__ __forceinline__ void fetch_low_rank(const D &a, const struct block &b, int l, const struct task &p,
                                                      int me, int all) {
    const struct hl_decode_layer &y = layer_of(a, b, l);
    const int row = a.low / 8, stride = (a.low + HL_DECODE_PAD) / 8; /* in units of 16 bytes */
    const uint4 *from = (const uint4 *)y.decay + p.h * a.K * row;
    uint4 *to = (uint4 *)(b.shared + a.s.decay_rows);
#pragma unroll 2
    for (int i = me; i < a.K * row; i += all) copy_async(to + i / row * stride + i % row, from + i);
    if (D::rule != HL_DECODE_KDA) return;
    from = (const uint4 *)y.z_up + (p.h * a.V + p.part * COLS) * row, to = (uint4 *)(b.shared + a.s.z_rows);
    for (int i = me; i < COLS * row; i += all) copy_async(to + i, from + i);
}

static __device__ __forceinline__ float dot8(uint4 w, const float *x) {
    const float4 x0 = *(const float4 *)x, x1 = *(const float4 *)(x + 4);
    return low(w.x) * x0.x + high(w.x) * x0.y + low(w.y) * x0.z + high(w.y) * x0.w + low(w.z) * x1.x +
           high(w.z) * x1.y + low(w.w) * x1.z + high(w.w) * x1.w;
}
static __device__ __forceinline__ float fast_sigmoid_div(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
/* The decay of a channel from its raw value; A = exp(A_log). */
template <class D> static __device__ __forceinline__ float decay_of(const D &a, float A, float x) {
    if (D::rule == HL_DECODE_GLA) { /* logsigmoid(x) = -softplus(-x) */
        const float g = -softplus(-x) * a.inv_normalizer;
        return __expf(fmaxf(g, a.clamp_min));
    }
    return __expf(a.lower_bound < 0.0f ? a.lower_bound * fast_sigmoid_div(A * x) : -A * softplus(x));
}

/* Computes the decays of a tile's head in shared memory, and publishes KDA's z of the tile. */
template <class D>
static __device__ __forceinline__ void low_rank_gates(const D &a, const struct block &b, int l, const struct task &p) {
    const struct hl_decode_layer &y = layer_of(a, b, l);
    constexpr bool kda = D::rule == HL_DECODE_KDA;
    float *alpha = alpha_of(a, b), *inner = alpha + a.K, *z = inner + 2 * a.low;
    const int half = threadIdx.x % 2, n = kda ? a.low : a.low / 2, words = a.w_in + a.a_at / 2;
    float bias[2]; /* loads overlap the wait for the words */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = threadIdx.x / 2 + i * (THREADS / 2);
        bias[i] = c < a.K ? y.decay_bias[p.h * a.K + c] : 0.0f;
    }
    const float z_bias = kda ? y.z_bias[p.h * a.V + p.part * COLS + b.warp] : 0.0f;
    uint32_t v[1];
    wait_for<D>(v, b.words + p.m * a.row_words + words + threadIdx.x, 0, (int)threadIdx.x < n ? 1 : 0, b.epoch + l);
    if ((int)threadIdx.x < n) ((float2 *)inner)[threadIdx.x] = make_float2(low(v[0]), high(v[0]));
    sync_block();
    const float A = scalars_of(a, b, l, p.h)[DECAY];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = threadIdx.x / 2 + i * (THREADS / 2);
        if (c >= a.K) break; /* whole warps: K is a multiple of 32 */
        const uint4 *w = (const uint4 *)(b.shared + a.s.decay_rows) + c * ((a.low + HL_DECODE_PAD) / 8) + half;
        float s = 0.0f;
#pragma unroll 4
        for (int e = 0; e < a.low / 16; e++) s += dot8(w[2 * e], inner + (2 * e + half) * 8);
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        if (half == 0) alpha[c] = decay_of(a, A, s + bias[i]);
    }
    if (kda) {
        const uint32_t *w = (const uint32_t *)(b.shared + a.s.z_rows) + b.warp * (a.low / 2);
        float s = 0.0f;
        for (int e = b.lane; e < a.low / 2; e += 32) {
            const float2 x = ((const float2 *)(inner + a.low))[e];
            s += low(w[e]) * x.x + high(w[e]) * x.y;
        }
        s = warp_sum(s);
        if (b.lane == 0) z[b.warp] = s + z_bias;
    }
    sync_block();
    if (kda && b.warp == 1 && b.lane < COLS / 2)
        publish(b.words + p.m * a.row_words + a.w_z + (p.h * a.V + p.part * COLS) / 2 + b.lane,
                pack2(z[2 * b.lane], z[2 * b.lane + 1]), b.epoch + l);
}
static_assert(WARPS == COLS, "a warp a column of z");

#endif
