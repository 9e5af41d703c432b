/* slots.cuh -- the mixer of a decoding step for GSA: slots of keys and values that decay, read by a softmax.
 *
 * Part 1: a task is COLS slots of a head. It decays their columns of Kt, adds the new key, and publishes their logits.
 * Part 2: a task is COLS columns of Vt. Every warp computes the softmax of the head's logits and has 8 of the 64 slots.
 * SiLU is applied to the output before it is published; OUT applies its norm, over all heads. */
#ifndef HL_SLOTS_CUH
#define HL_SLOTS_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/mixer_step.cuh"

enum {
    SLOTS = HL_DECODE_SLOTS,
    SLOT_DECAY = VALUES, /* in the scratch: [COLS] decays, then [COLS] write strengths of a part 1 task */
    SLOT_WRITE = WRITE
};
static_assert(SLOTS == 8 * WARPS && COLS == 8, "a warp has 8 slots, a lane a pair of them");

struct slot_gate {
    float2 alpha, s; /* of a pair of slots: exp(f) and 1 - exp(f) */
};
template <class D> static __device__ __forceinline__ struct slot_gate slot_gate_of(const D &a, uint32_t v) {
    const float f0 = -softplus(-low(v)) * a.inv_normalizer, f1 = -softplus(-high(v)) * a.inv_normalizer;
    const struct slot_gate g = {make_float2(__expf(f0), __expf(f1)), make_float2(-expm1f(f0), -expm1f(f1))};
    return g;
}
/* The words of the raw gates of a head's slots. */
template <class D>
static __device__ __forceinline__ const uint64_t *slot_words(const D &a, const struct block &b, const struct task &p) {
    return b.words + p.m * a.row_words + a.w_in + (a.a_at + p.h * SLOTS) / 2;
}

/* Part 1. Each of a column's 4 lanes sums the parts of two warps, as in delta_rule(). */
template <class D>
static __device__ __forceinline__ void slot_logits(const D &a, const struct block &b, int l, const struct task &p) {
    float *scratch = (float *)(b.shared + a.s.scratch);
    const struct qk_pair mine = wait_for_qk(a, b, l, p);
    const int c = b.lane % COLS;
    struct state_rows y;
    state_times_qk(a, b, mine, y, scratch);
    if (b.warp == GATE_WARP && b.lane < COLS / 2) {
        const uint32_t v = wait_for_one(slot_words(a, b, p) + p.part * COLS / 2 + b.lane, b.epoch + l);
        const struct slot_gate g = slot_gate_of(a, v);
        ((float2 *)(scratch + SLOT_DECAY))[b.lane] = g.alpha, ((float2 *)(scratch + SLOT_WRITE))[b.lane] = g.s;
    }
    sync_block();
    const float alpha = scratch[SLOT_DECAY + c], s = scratch[SLOT_WRITE + c];
    if (b.warp == RULE_WARP) {
        const int first = b.lane / COLS * 2;
        const float *part = scratch + first * 2 * COLS + c, *norms = scratch + NORMS + first * 4;
        const float sq = sum_over_column(part[COLS] + part[3 * COLS]), qk = sum_over_column(norms[2] + norms[6]);
        if (b.lane < COLS)
            publish(b.words + p.m * a.row_words + a.w_logits + p.h * SLOTS + p.part * COLS + c,
                    __float_as_uint(alpha * sq + qk * s), b.epoch + l);
    }
    float *S = slot_keys_at(a, b, l, p) + (b.warp * a.warp_rows + b.lane / COLS * 2) * SLOTS + c;
#pragma unroll
    for (int i = 0; i < STATE_PAIRS; i++) {
        if (i * 4 + b.lane / COLS >= a.warp_rows / 2) continue;
        S[i * 8 * SLOTS] = alpha * y.S[i].x + y.k[i].x * s;
        S[i * 8 * SLOTS + SLOTS] = alpha * y.S[i].y + y.k[i].y * s;
    }
}

/* Part 2. */
template <class D>
static __device__ __forceinline__ void slot_tile(const D &a, const struct block &b, int l, const struct task &p) {
    float *scratch = (float *)(b.shared + a.s.scratch) + QUERY; /* RULE_WARP may still read part 1's */
    const uint64_t *words = b.words + p.m * a.row_words;
    const int c = b.lane % COLS, pair = b.warp * 4 + b.lane / COLS; /* of slots */
    const float *tile = (const float *)(b.shared + a.s.slot_values) + 2 * pair * COLS + c;
    uint32_t f[1], v[1];
    uint2 z[1];
    wait_for<D>(f, slot_words(a, b, p) + b.lane, 0, 1, b.epoch + l);
    wait_for<D>(v, words + a.w_in + a.qk + (p.h * a.V + p.part * COLS) / 2 + b.lane % 4, 0, 1, b.epoch + l);
    wait_for<D>(z, words + a.w_logits + p.h * SLOTS + 2 * b.lane, 0, 1, b.epoch + l);
    const struct slot_gate g = slot_gate_of(a, f[0]);
    const float z0 = __uint_as_float(z[0].x), z1 = __uint_as_float(z[0].y), max = warp_max(fmaxf(z0, z1));
    const float e0 = __expf(z0 - max), e1 = __expf(z1 - max), r = __fdividef(1.0f, warp_sum(e0 + e1));
    const float p0 = e0 * r, p1 = e1 * r, ps = warp_sum(p0 * g.s.x + p1 * g.s.y);
    const uint32_t both = __shfl_sync(0xffffffffu, v[0], c / 2);
    const float value = c % 2 ? high(both) : low(both);
#define OF_PAIR(x) __shfl_sync(0xffffffffu, x, pair)
    const float S0 = OF_PAIR(g.alpha.x) * tile[0], S1 = OF_PAIR(g.alpha.y) * tile[COLS];
    const float read = sum_over_column(OF_PAIR(p0) * S0 + OF_PAIR(p1) * S1);
    const float s0 = OF_PAIR(g.s.x), s1 = OF_PAIR(g.s.y);
#undef OF_PAIR
    if (b.lane < COLS) scratch[b.warp * COLS + c] = read;
    sync_block();
    if (b.warp == 0) {
        float o = ps * value;
#pragma unroll
        for (int w = 0; w < WARPS; w++) o += scratch[w * COLS + c];
        o = fast_silu_div(o);
        const float other = __shfl_xor_sync(0xffffffffu, o, 1);
        if (b.lane < COLS && b.lane % 2 == 0)
            publish(b.words + p.m * a.row_words + a.w_o + swizzled((p.h * a.V + p.part * COLS + b.lane) / 2),
                    pack2(o, other), b.epoch + l);
    }
    float *S = slot_values_at(a, b, l, p) + 2 * pair * a.V + c;
    S[0] = S0 + s0 * value, S[a.V] = S1 + s1 * value;
}

#endif
