/* phase_epilogue.cuh -- after a product of a decoding step: one warp sums a unit over all warps, applies the phase's
 * epilogue (convolution, residual, SwiGLU, logits) and publishes the outputs. A lane has a pair of adjacent rows of the
 * unit, and 4 lanes share a row of x. Everything between the last sum and the word adds latency; reading the partial
 * sums from shared memory is faster than shuffling them. */
#ifndef HL_PHASE_EPILOGUE_CUH
#define HL_PHASE_EPILOGUE_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/load_x.cuh"

struct epilogue_inputs { /* loaded before the sums are complete */
    uint64_t *to;        /* where the pair is published */
    uint64_t x;          /* the residual stream's word; polled again if it was stale */
    const uint64_t *x_at;
    float2 t[3]; /* the convolution's last three inputs */
    float4 w[2]; /* its weights */
    float *tail;
    int C;
};

/* Keeps the compiler from computing the address where it is used, on the critical path. */
static __device__ __forceinline__ void materialize(uint64_t *&p) {
#ifndef HL_CUDA_EMU
    asm volatile("" : "+l"(p));
#endif
}
template <int kind, class D>
static __device__ __forceinline__ void load_epilogue(const D &a, const struct block &b, int l, int m, int row,
                                                     struct epilogue_inputs &e) {
    constexpr bool low_rank = D::rule != HL_DECODE_DELTA;
    uint64_t *words = b.words + m * a.row_words;
    e.to = kind == IN     ? words + a.w_in + (low_rank || row < a.a_at ? row : a.a_at + row - a.z_at) / 2
           : kind == MLP  ? words + a.w_act + swizzled(row / 8 * 2 + row / 2 % 2)
           : kind == OUT  ? words + a.w_h + swizzled(row / 2)
           : kind == DOWN ? words + a.w_x + swizzled(row / 2)
                          : NULL;
    materialize(e.to);
    if (kind == OUT && l == 0) e.x = embedding(a, b, m)[row / 2];
    if (kind == OUT && l > 0) e.x_at = b.last_words + m * a.row_words + a.w_x + swizzled(row / 2);
    if (kind == DOWN) e.x_at = words + a.w_h + swizzled(row / 2);
    if (e.x_at) e.x = poll(e.x_at);
    if (kind == IN && has_conv<D> && row < a.a_at) {
        const int p = row < a.qk ? 0 : row < 2 * a.qk ? 1 : 2, c = row - p * a.qk;
        const float4 *w = (const float4 *)layer_of(a, b, l).conv[p] + c;
        e.C = p < 2 ? a.qk : a.vv;
        e.tail = (float *)(state_of(a, b, l, m) + (p == 0 ? a.tail_q : p == 1 ? a.tail_k : a.tail_v)) + c;
        e.w[0] = w[0], e.w[1] = w[1];
#pragma unroll
        for (int i = 0; i < 3; i++)
            e.t[i] = seg_of(a, b, m).pos > 0 ? *(const float2 *)(e.tail + i * e.C) : make_float2(0.0f, 0.0f);
    }
}

template <class D>
static __device__ __forceinline__ void finish_in(const D &a, uint64_t *words, uint32_t epoch, int row, float2 s,
                                                 const struct epilogue_inputs &e) {
    const uint32_t both = pack2(s.x, s.y);
    const float2 x = make_float2(low(both), high(both));
    if (has_conv<D> && row < a.a_at) {
        const float4 v = e.w[0], w = e.w[1];
        const float y = fast_silu_div(v.x * e.t[0].x + v.y * e.t[1].x + v.z * e.t[2].x + v.w * x.x),
                    z = fast_silu_div(w.x * e.t[0].y + w.y * e.t[1].y + w.z * e.t[2].y + w.w * x.y);
        publish(e.to, pack2(y, z), epoch);
        *(float2 *)e.tail = e.t[1], *(float2 *)(e.tail + e.C) = e.t[2], *(float2 *)(e.tail + 2 * e.C) = x;
    } else if (D::rule != HL_DECODE_DELTA) {
        const bool silu = D::rule == HL_DECODE_GSA && row < a.a_at;
        if (row < a.b_at) publish(e.to, silu ? pack2(fast_silu_div(x.x), fast_silu_div(x.y)) : both, epoch);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row >= a.b_at && row + i < a.in_rows)
                publish(words + a.w_ab + a.HV + row + i - a.b_at, __float_as_uint(i ? x.y : x.x), epoch);
    } else if (row < a.z_at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = row + i, at = r < a.b_at ? r - a.a_at : a.HV + r - a.b_at;
            if (r < a.z_at) publish(words + a.w_ab + at, __float_as_uint(i ? x.y : x.x), epoch);
        }
    } else if (row < a.in_rows) publish(e.to, both, epoch);
}
/* Two logits. Their lowest bits are always cleared, since in host memory they tell new from old. A lane writes both at
 * once if they are aligned: every write to host memory is costly. */
template <class D>
static __device__ __forceinline__ void finish_head(const D &a, struct block &b, int m, int row, float2 s) {
    const uint32_t x = __float_as_uint(s.x) & ~1u, y = __float_as_uint(s.y) & ~1u;
    const bool both = row + 1 < a.vocab;
    if (row >= a.vocab) return;
    if (a.logits) {
        uint32_t *to = (uint32_t *)a.logits + (int64_t)m * a.vocab + row;
        if (both && (uintptr_t)to % 8 == 0) *(uint2 *)to = make_uint2(x | a.tag, y | a.tag);
        else {
            to[0] = x | a.tag;
            if (both) to[1] = y | a.tag;
        }
    }
    if (!a.host_argmax) return;
    const uint64_t v = is_finite(s.x) ? order_of(__uint_as_float(x), row) : UINT64_MAX,
                   w = !both            ? 0
                       : is_finite(s.y) ? order_of(__uint_as_float(y), row + 1)
                                        : UINT64_MAX;
    b.argmax = max(b.argmax, max(v, w));
}
/* All lanes; `mine`: this lane has an output. */
template <int kind, class D>
static __device__ __forceinline__ void epilogue(const D &a, struct block &b, int l, int m, int unit, float2 s,
                                                bool mine, const struct epilogue_inputs &e) {
    const int pair = b.lane % 4, row = unit * 8 + 2 * pair;
    const uint32_t epoch = b.epoch + l;
    if (kind == MLP) { /* a unit has two pairs of gate, then two of up */
        const uint32_t up = __shfl_xor_sync(0xffffffffu, pack2(s.x, s.y), 2), gate = pack2(s.x, s.y);
        if (mine && pair < 2)
            publish(e.to, pack2(fast_silu_div(low(gate)) * low(up), fast_silu_div(high(gate)) * high(up)), epoch);
    }
    if (!mine) return;
    if (kind == IN) finish_in(a, b.words + m * a.row_words, epoch, row, s, e);
    if (kind == HEAD) finish_head(a, b, m, row, s);
    if (kind == OUT || kind == DOWN) {
        const uint32_t old = kind == OUT ? epoch - 1 : epoch;
        uint32_t x = (uint32_t)e.x;
        if (e.x_at && !is_current(e.x, old)) x = wait_for_one(e.x_at, old);
        publish(e.to, pack2(low(x) + s.x, high(x) + s.y), epoch);
    }
}

/* 1 / RMS of the head that warp w's columns belong to. */
template <class D>
static __device__ __forceinline__ float head_scale(const D &a, const float (&squares)[WARPS], int w) {
    const int n = a.V / (32 * a.warp_steps);
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        if (i / n == w / n) s += squares[i];
    return fast_rsqrt(s * a.inv_V + a.eps);
}
/* Sum over all warps, of unit j since the last reduction and row m, with the norm's factor. */
template <int kind, class D>
static __device__ __forceinline__ float2 reduce_unit(const D &a, const struct block &b, int j, int m) {
    const float *sums = (const float *)(b.shared + a.s.sums) +
                        ((b.sums_half * HL_DECODE_UNITS + j * D::max_rows) * WARPS + m) * 8 + b.lane % 4 * 2;
    const float4 *at = (const float4 *)((const float *)(b.shared + a.s.squares) + (b.squares_half * a.M + m) * WARPS);
    constexpr bool wide = kind == OUT && D::rule == HL_DECODE_GSA; /* one norm over all heads */
    constexpr bool normed = kind == IN || kind == MLP || kind == HEAD || wide;
    float2 v[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) v[w] = *(const float2 *)(sums + w * D::max_rows * 8);
    float r = 1.0f;
    if (normed || kind == OUT) {
        const float4 q0 = at[0], q1 = at[1];
        const float q[WARPS] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
        if (normed) r = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
        else if constexpr (D::rule != HL_DECODE_ATTENTION) {
            if (a.head_per_warp)
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    const float f = head_scale(a, q, w);
                    v[w].x *= f, v[w].y *= f;
                }
        }
    }
#pragma unroll
    for (int n = WARPS / 2; n > 0; n /= 2)
#pragma unroll
        for (int w = 0; w < n; w++) v[w].x += v[w + n].x, v[w].y += v[w + n].y;
    if (!normed) return v[0];
    const float f = fast_rsqrt(r * a.inv_d + (wide ? 1e-5f : a.eps));
    return make_float2(v[0].x * f, v[0].y * f);
}
static_assert(WARPS == 8, "squares");

#endif
