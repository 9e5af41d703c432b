/* cache_logits.cuh -- the mixer of a decoding step, part 1: the location and copies of a task's data, and the logits of
 * the cache read. A task is task_slots slots of one head; half a warp computes one slot's logit and publishes it. */
#ifndef HL_CACHE_LOGITS_CUH
#define HL_CACHE_LOGITS_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/attention.cuh"
#include "fused/decode_one/low_rank.cuh"

template <class D> static __device__ __forceinline__ struct task task_at(const D &a, int t, int parts) {
    struct task p = {t / parts / a.HV, t / parts % a.HV, t % parts};
    return p;
}
template <class D>
static __device__ __forceinline__ struct cache_slots cache_of(const D &a, const struct block &b, int l,
                                                              const struct task &p) {
    char *s = state_of(a, b, l, p.m) + a.cache_at + p.h * a.at.bytes;
    struct cache_slots m = {(bf16 *)(s + a.at.k), (bf16 *)(s + a.at.v), (float *)(s + a.at.score),
                            (int64_t *)(s + a.at.pos)};
    return m;
}
/* Slots [0, kept) and [window, new_slot) are filled; the new token goes to new_slot. */
struct filled {
    int kept, new_slot;
};
template <class D> static __device__ __forceinline__ struct filled filled_of(const D &a, const struct block &b, int m) {
    return ((const struct filled *)(b.shared + a.s.filled))[m];
}
template <class D> static __device__ __forceinline__ struct filled filled_at(const D &a, int64_t pos) {
    const int64_t block = pos / a.chunk * a.chunk; /* where the open block starts */
    struct filled f = {block < a.window ? (int)block : a.window, a.window + (int)(pos - block)};
    return f;
}
template <class D> static __device__ __forceinline__ bool old_slot(const D &a, const struct filled &f, int slot) {
    return slot < f.kept || (slot >= a.window && slot < f.new_slot);
}

/* ---- a task's data, copied to shared memory; this is thread `me` of `all` ---- */

/* GSA: the first of the task's COLS columns of Kt and of Vt. */
template <class D>
static __device__ __forceinline__ float *slot_keys_at(const D &a, const struct block &b, int l, const struct task &p) {
    return (float *)(state_of(a, b, l, p.m) + a.S) + p.h * a.K * HL_DECODE_SLOTS + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ float *slot_values_at(const D &a, const struct block &b, int l,
                                                        const struct task &p) {
    return (float *)(state_of(a, b, l, p.m) + a.Vt) + p.h * HL_DECODE_SLOTS * a.V + p.part * COLS;
}
static __device__ __forceinline__ void fetch_columns(float *to, const float *from, int rows, int stride, int me,
                                                     int all) {
#pragma unroll 2
    for (int i = me; i < 2 * rows; i += all) copy_async(to + i * 4, from + i / 2 * stride + i % 2 * 4);
}
template <class D>
static __device__ __forceinline__ void fetch_keys(const D &a, const struct block &b, int l, const struct task &p,
                                                  int me, int all) {
    if constexpr (D::rule == HL_DECODE_GSA) {
        fetch_columns((float *)(b.shared + a.s.S), slot_keys_at(a, b, l, p), a.K, HL_DECODE_SLOTS, me, all);
        return;
    }
    const int row = a.K / 8, first = p.part * a.task_slots; /* in units of 16 bytes */
    const struct filled f = filled_of(a, b, p.m);
    const uint4 *from = (const uint4 *)cache_of(a, b, l, p).k + first * row;
    uint4 *to = (uint4 *)(b.shared + a.s.k);
#pragma unroll 2
    for (int i = me; i < a.task_slots * row; i += all)
        if (old_slot(a, f, first + i / row)) copy_async(to + i, from + i);
}

/* The first of a tile task's COLS columns, in the state and in the cached values. */
template <class D>
static __device__ __forceinline__ float *state_at(const D &a, const struct block &b, int l, const struct task &p) {
    return (float *)(state_of(a, b, l, p.m) + a.S) + p.h * a.K * a.V + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ bf16 *values_at(const D &a, const struct block &b, int l, const struct task &p) {
    return cache_of(a, b, l, p).v + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ void fetch_tile(const D &a, const struct block &b, int l, const struct task &p,
                                                  int me, int all) {
    if constexpr (D::rule == HL_DECODE_GSA) {
        float *to = (float *)(b.shared + a.s.slot_values);
        fetch_columns(to, slot_values_at(a, b, l, p), HL_DECODE_SLOTS, a.V, me, all);
        return;
    }
    fetch_columns((float *)(b.shared + a.s.S), state_at(a, b, l, p), a.K, a.V, me, all);
    if constexpr (has_low_rank<D>) fetch_low_rank(a, b, l, p, me, all);
    if (!a.cache) return;
    const struct filled f = filled_of(a, b, p.m);
    bf16 *v = (bf16 *)(b.shared + a.s.v);
    const bf16 *values = values_at(a, b, l, p);
#pragma unroll 2
    for (int slot = me; slot < f.new_slot; slot += all)
        if (old_slot(a, f, slot)) copy_async(v + slot * COLS, values + slot * a.V);
}
/* Whether the mixer has two parts, logits first. */
template <class D> static __device__ __forceinline__ bool has_logits(const D &a) {
    return D::rule == HL_DECODE_GSA || D::rule == HL_DECODE_ATTENTION || a.cache;
}
/* TASK_WARP prefetches the first tasks of a layer. */
template <class D> static __device__ __forceinline__ bool has_task(const D &a, const struct block &b) {
    return (has_logits(a) && b.logits_task.m < a.M) || b.tile_task.m < a.M;
}
template <class D> static __device__ __forceinline__ void fetch_first_tasks(const D &a, const struct block &b, int l) {
    if constexpr (D::rule == HL_DECODE_ATTENTION) {
        if (b.logits_task.m < a.M) prefetch_keys(a, b, l, b.logits_task);
        return;
    }
    if (has_logits(a) && b.logits_task.m < a.M) fetch_keys(a, b, l, b.logits_task, b.lane, 32);
    if (b.tile_task.m < a.M) fetch_tile(a, b, l, b.tile_task, b.lane, 32);
}

/* ---- the logits of the slots that were filled before this token ---- */

enum {
    KEY_PIECES = 4, /* groups of 4 key elements per lane, 16 lanes per key: K <= 256 */
    QUERY = 272     /* in the scratch: float [256] q times its norm's weights, [128] squares of pairs of q */
};
static_assert(QUERY + 256 + 128 <= HL_DECODE_SCRATCH, "decode_one.h: scratch");

/* The factor of the cache norm of q or k, from the sum of squares. */
template <class D> static __device__ __forceinline__ float factor_of(const D &a, float squares) {
    return fast_rsqrt(a.rms ? squares * a.inv_K + 1e-6f : squares + (float)HL_L2_EPS);
}
static __device__ __forceinline__ float sum_over_16(float s) {
    for (int n = 1; n < 16; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
    return s;
}
/* A lane's part of q and k for its warp's rows of the state: lanes 0 to 15 hold a pair of q, lanes 16 to 31 the same
 * pair of k; all hold both norms' weights for that pair. */
struct qk_pair {
    uint32_t word;
    float2 q_norm, k_norm;
};
template <class D>
static __device__ __forceinline__ struct qk_pair wait_for_qk(const D &a, const struct block &b, int l,
                                                             const struct task &p) {
    const int j = b.lane % 16, n = j < a.warp_rows / 2 ? 1 : 0;
    const uint64_t *words = b.words + p.m * a.row_words + a.w_in + (p.h / a.group * a.K + b.warp * a.warp_rows) / 2 +
                            j + b.lane / 16 * (a.qk / 2);
    struct qk_pair y = {0, make_float2(1.0f, 1.0f), make_float2(1.0f, 1.0f)};
    if (a.cache && a.rms && n) { /* loads overlap the wait for the word */
        y.q_norm = ((const float2 *)(layer_of(a, b, l).q_norm + b.warp * a.warp_rows))[j];
        y.k_norm = ((const float2 *)(layer_of(a, b, l).k_norm + b.warp * a.warp_rows))[j];
    }
    uint32_t v[1];
    wait_for<D>(v, words, 0, n, b.epoch + l);
    y.word = v[0];
    return y;
}
/* The logits of a task. Each warp polls a part of q, since a word arrives sooner the fewer warps poll it, and the parts
 * are shared through shared memory. The factor of q's norm is applied at the end. */
template <class D>
static __device__ __forceinline__ struct qk_pair cache_logits(const D &a, const struct block &b, int l,
                                                              const struct task &p) {
    const int i = b.warp * 2 + b.lane / 16, slot = i < a.task_slots ? p.part * a.task_slots + i : a.slots,
              n = (a.K / 4 - b.lane % 16 + 15) / 16;
    const bool filled = old_slot(a, filled_of(a, b, p.m), slot);
    const uint2 *key = (const uint2 *)(b.shared + a.s.k) + i * (a.K / 4) + b.lane % 16;
    float *query = (float *)(b.shared + a.s.scratch) + QUERY, *squares = query + 256;
    uint2 k[KEY_PIECES];
    float dot = 0.0f, s = 0.0f;
#pragma unroll
    for (int e = 0; e < KEY_PIECES; e++) k[e] = filled && e < n ? key[e * 16] : make_uint2(0, 0);
    const struct qk_pair mine = wait_for_qk(a, b, l, p);
    if (b.lane < a.warp_rows / 2) {
        const int at = b.warp * (a.warp_rows / 2) + b.lane;
        const float x = low(mine.word), y = high(mine.word);
        ((float2 *)query)[at] = make_float2(x * mine.q_norm.x, y * mine.q_norm.y);
        squares[at] = x * x + y * y;
    }
    sync_block();
#pragma unroll
    for (int e = 0; e < KEY_PIECES; e++) {
        if (e >= n) continue;
        const float4 x = ((const float4 *)query)[e * 16 + b.lane % 16];
        const float2 xx = ((const float2 *)squares)[e * 16 + b.lane % 16];
        dot += x.x * low(k[e].x) + x.y * high(k[e].x) + x.z * low(k[e].y) + x.w * high(k[e].y);
        s += xx.x + xx.y;
    }
    dot = sum_over_16(dot), s = sum_over_16(s);
    if (b.lane % 16 == 0 && filled)
        publish(b.words + p.m * a.row_words + a.w_logits + p.h * a.even_slots + slot,
                __float_as_uint(dot * factor_of(a, s) * scalars_of(a, b, l, p.h)[SCALE]), b.epoch + l);
    return mine;
}

#endif
