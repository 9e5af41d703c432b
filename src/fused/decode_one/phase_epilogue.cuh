/* phase_epilogue.cuh -- behind the products of a decoding step: a warp adds up what all left of one group, makes of it what
 * the phase is for and hands it on. A lane has a pair of neighbouring rows of the group, 4 lanes each row of x: all that
 * stands between the last sum and the word takes time, and to add up numbers that lie in shared memory takes less of it
 * than to have them go round the warp. */
#ifndef HL_DECODE_HAND_CUH
#define HL_DECODE_HAND_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/load_x.cuh"

struct behind {   /* fetched before the sums are there */
    uint64_t *to; /* where the pair's word goes */
    uint64_t x;   /* a word of the residual stream; looked at again if it was not there yet */
    const uint64_t *x_at;
    float2 t[3]; /* tails of the convolution */
    float4 w[2]; /* and its weights */
    float *tail;
    int C;
};

/* The address is made here, not where it is used, with all others waiting for that. */
static __device__ __forceinline__ void now(uint64_t *&p) {
#ifndef HL_CUDA_EMU
    asm volatile("" : "+l"(p));
#endif
}
template <int kind, class D>
static __device__ __forceinline__ void prepare(const D &a, const struct block &b, int l, int m, int row,
                                               struct behind &e) {
    uint64_t *words = b.now + m * a.row;
    e.to = kind == IN     ? words + a.w_in + (row < a.a_at ? row : a.a_at + row - a.z_at) / 2
           : kind == MLP  ? words + a.w_act + swapped(row / 8 * 2 + row / 2 % 2)
           : kind == OUT  ? words + a.w_h + swapped(row / 2)
           : kind == DOWN ? words + a.w_x + swapped(row / 2)
                          : NULL;
    now(e.to);
    if (kind == OUT && l == 0) e.x = embedding(a, b, m)[row / 2];
    if (kind == OUT && l > 0) e.x_at = b.before + m * a.row + a.w_x + swapped(row / 2);
    if (kind == DOWN) e.x_at = words + a.w_h + swapped(row / 2);
    if (e.x_at) e.x = look(e.x_at);
    if (kind == IN && row < a.a_at) {
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
static __device__ __forceinline__ void put_in(const D &a, uint64_t *words, uint32_t number, int row, float2 s,
                                              const struct behind &e) {
    const uint32_t both = pack2(s.x, s.y);
    const float2 x = make_float2(low(both), high(both));
    if (row < a.a_at) {
        const float4 v = e.w[0], w = e.w[1];
        const float y = fast_silu(v.x * e.t[0].x + v.y * e.t[1].x + v.z * e.t[2].x + v.w * x.x),
                    z = fast_silu(w.x * e.t[0].y + w.y * e.t[1].y + w.z * e.t[2].y + w.w * x.y);
        give(e.to, pack2(y, z), number);
        *(float2 *)e.tail = e.t[1], *(float2 *)(e.tail + e.C) = e.t[2], *(float2 *)(e.tail + 2 * e.C) = x;
    } else if (row < a.z_at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = row + i, at = r < a.b_at ? r - a.a_at : a.HV + r - a.b_at;
            if (r < a.z_at) give(words + a.w_ab + at, __float_as_uint(i ? x.y : x.x), number);
        }
    } else if (row < a.in_rows) give(e.to, both, number);
}
/* Two logits, without their last bits, wherever they go: these say on the host whether they are new. To its memory a
 * lane's go in one piece where they can, since every piece takes its time there. */
template <class D>
static __device__ __forceinline__ void put_logits(const D &a, struct block &b, int m, int row, float2 s) {
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
    if (!a.verdict) return;
    const uint64_t v = is_finite(s.x) ? order_of(__uint_as_float(x), row) : UINT64_MAX,
                   w = !both            ? 0
                       : is_finite(s.y) ? order_of(__uint_as_float(y), row + 1)
                                        : UINT64_MAX;
    b.best = max(b.best, max(v, w));
}
/* All lanes; `mine`: there is such an output. */
template <int kind, class D>
static __device__ __forceinline__ void hand_on(const D &a, struct block &b, int l, int m, int unit, float2 s,
                                               bool mine, const struct behind &e) {
    const int pair = b.lane % 4, row = unit * 8 + 2 * pair;
    const uint32_t number = b.number + l;
    if (kind == MLP) { /* two pairs of gate, two of up */
        const uint32_t up = __shfl_xor_sync(0xffffffffu, pack2(s.x, s.y), 2), gate = pack2(s.x, s.y);
        if (mine && pair < 2)
            give(e.to, pack2(fast_silu(low(gate)) * low(up), fast_silu(high(gate)) * high(up)), number);
    }
    if (!mine) return;
    if (kind == IN) put_in(a, b.now + m * a.row, number, row, s, e);
    if (kind == HEAD) put_logits(a, b, m, row, s);
    if (kind == OUT || kind == DOWN) {
        const uint32_t old = kind == OUT ? number - 1 : number;
        uint32_t x = (uint32_t)e.x;
        if (e.x_at && !fresh(e.x, old)) x = take_one(e.x_at, old);
        give(e.to, pack2(low(x) + s.x, high(x) + s.y), number);
    }
}

/* 1 / RMS of the head that warp w's columns are of. */
template <class D>
static __device__ __forceinline__ float head_factor(const D &a, const float (&squares)[WARPS], int w) {
    const int n = a.V / (32 * a.part);
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        if (i / n == w / n) s += squares[i];
    return fast_rsqrt(s * a.one_V + a.eps);
}
/* Over all warps, of group j of the batch and row m. */
template <int kind, class D>
static __device__ __forceinline__ float2 sum_of(const D &a, const struct block &b, int j, int m) {
    const float *sums = (const float *)(b.shared + a.s.sums) +
                        ((b.turn * HL_DECODE_BATCH + j * D::most) * WARPS + m) * 8 + b.lane % 4 * 2;
    const float4 *at = (const float4 *)((const float *)(b.shared + a.s.squares) + (b.norm * a.M + m) * WARPS);
    constexpr bool normed = kind == IN || kind == MLP || kind == HEAD;
    float2 v[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) v[w] = *(const float2 *)(sums + w * D::most * 8);
    float r = 1.0f;
    if (normed || kind == OUT) {
        const float4 q0 = at[0], q1 = at[1];
        const float q[WARPS] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
        if (normed) r = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
        else if (a.whole)
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = head_factor(a, q, w);
                v[w].x *= f, v[w].y *= f;
            }
    }
#pragma unroll
    for (int n = WARPS / 2; n > 0; n /= 2)
#pragma unroll
        for (int w = 0; w < n; w++) v[w].x += v[w + n].x, v[w].y += v[w + n].y;
    if (!normed) return v[0];
    const float f = fast_rsqrt(r * a.one_d + a.eps);
    return make_float2(v[0].x * f, v[0].y * f);
}
static_assert(WARPS == 8, "squares");

#endif
