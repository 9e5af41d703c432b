/* decode_look.cuh -- the two memories in a decoding step, first part: where things lie, and the logits of the
 * cache's read. Half a warp per slot of the cache leaves its logit as a word. */
#ifndef HL_DECODE_LOOK_CUH
#define HL_DECODE_LOOK_CUH
#include "ops/decode/decode_sparing.cuh"

template <class D> static __device__ __forceinline__ struct task task_at(const D &a, int t, int parts) {
    struct task p = {t / parts / a.HV, t / parts % a.HV, t % parts};
    return p;
}
template <class D>
static __device__ __forceinline__ struct memory cache_of(const D &a, const struct block &b, int l,
                                                         const struct task &p) {
    char *s = state_of(a, b, l, p.m) + a.cache_at + p.h * a.at.bytes;
    struct memory m = {(bf16 *)(s + a.at.k), (bf16 *)(s + a.at.v), (float *)(s + a.at.score),
                       (int64_t *)(s + a.at.pos)};
    return m;
}
/* slots [0, kept) and [window, fresh) are filled, `fresh` is the new token's */
struct filled {
    int kept, fresh;
};
template <class D>
static __device__ __forceinline__ struct filled filled_of(const D &a, const struct block &b, int m) {
    return ((const struct filled *)(b.shared + a.s.filled))[m];
}
template <class D> static __device__ __forceinline__ struct filled filled_at(const D &a, int64_t pos) {
    const int64_t whole = pos / a.chunk * a.chunk;
    struct filled f = {whole < a.window ? (int)whole : a.window, a.window + (int)(pos - whole)};
    return f;
}
template <class D>
static __device__ __forceinline__ bool old_slot(const D &a, const struct filled &f, int slot) {
    return slot < f.kept || (slot >= a.window && slot < f.fresh);
}

/* ---- what a task needs, into shared memory before it is needed; this thread is number `me` of `all` ---- */

template <class D>
static __device__ __forceinline__ void fetch_keys(const D &a, const struct block &b, int l,
                                                  const struct task &p, int me, int all) {
    const int each = a.K / 8, first = p.part * a.share; /* 16 bytes at a time */
    const struct filled f = filled_of(a, b, p.m);
    const uint4 *from = (const uint4 *)cache_of(a, b, l, p).k + first * each;
    uint4 *to = (uint4 *)(b.shared + a.s.k);
#pragma unroll 2
    for (int i = me; i < a.share * each; i += all)
        if (old_slot(a, f, first + i / each)) copy_async(to + i, from + i);
}

/* COLS columns of the state and of the cache's values */
template <class D>
static __device__ __forceinline__ float *state_at(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    return (float *)(state_of(a, b, l, p.m) + a.S) + p.h * a.K * a.V + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ bf16 *values_at(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    return cache_of(a, b, l, p).v + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ void fetch_tile(const D &a, const struct block &b, int l,
                                                  const struct task &p, int me, int all) {
    float *S = (float *)(b.shared + a.s.S);
    const float *from = state_at(a, b, l, p);
#pragma unroll 2
    for (int i = me; i < 2 * a.K; i += all) copy_async(S + i * 4, from + i / 2 * a.V + i % 2 * 4);
    if (!a.cache) return;
    const struct filled f = filled_of(a, b, p.m);
    bf16 *v = (bf16 *)(b.shared + a.s.v);
    const bf16 *values = values_at(a, b, l, p);
#pragma unroll 2
    for (int slot = me; slot < f.fresh; slot += all)
        if (old_slot(a, f, slot)) copy_async(v + slot * COLS, values + slot * a.V);
}
/* The first tasks of a layer are fetched ahead, by the warp that brings the weights. */
template <class D> static __device__ __forceinline__ bool has_task(const D &a, const struct block &b) {
    return (a.cache && b.look.m < a.M) || b.tile.m < a.M;
}
template <class D>
static __device__ __forceinline__ void fetch_ahead(const D &a, const struct block &b, int l) {
    if (a.cache && b.look.m < a.M) fetch_keys(a, b, l, b.look, b.lane, 32);
    if (b.tile.m < a.M) fetch_tile(a, b, l, b.tile, b.lane, 32);
}

/* ---- the logits of the slots that were there before ---- */

enum { PIECES_OF_KEY = 4 }; /* of 4 numbers that one of 16 lanes has: K <= 256 */

/* A row's factor for the cache, of its sum of squares. */
template <class D> static __device__ __forceinline__ float factor_of(const D &a, float squares) {
    return a.rms ? rsqrtf(squares * a.one_K + 1e-6f) : rsqrtf(squares + (float)HL_L2_EPS);
}
static __device__ __forceinline__ float over_half(float s) {
    for (int n = 1; n < 16; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
    return s;
}
/* A task's logits. The factor of q's norm comes in at the end. */
template <class D>
static __device__ __forceinline__ void look_up(const D &a, const struct block &b, int l,
                                               const struct task &p) {
    if (b.warp * 2 >= a.share) return;
    const int place = b.warp * 2 + b.lane / 16, slot = place < a.share ? p.part * a.share + place : a.slots,
              n = (a.K / 4 - b.lane % 16 + 15) / 16;
    const bool filled = old_slot(a, filled_of(a, b, p.m), slot);
    const uint64_t *words = b.now + p.m * a.row + a.w_in + p.h / a.group * a.K / 2 + b.lane % 16 * 2;
    const uint2 *key = (const uint2 *)(b.shared + a.s.k) + place * (a.K / 4) + b.lane % 16;
    const float4 *gamma = (const float4 *)layer_of(a, b, l).q_norm + b.lane % 16;
    uint2 q[PIECES_OF_KEY], k[PIECES_OF_KEY];
    float4 y[PIECES_OF_KEY];
    float dot = 0.0f, s = 0.0f;
#pragma unroll
    for (int e = 0; e < PIECES_OF_KEY; e++) {
        k[e] = filled && e < n ? key[e * 16] : make_uint2(0, 0);
        y[e] = a.rms && e < n ? gamma[e * 16] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    }
    if (D::sparing) take_missing(q, words, 32, filled ? n : 0, b.number + l);
    else take_pairs<PIECES_OF_KEY>(q, words, 32, filled ? n : 0, b.number + l);
#pragma unroll
    for (int e = 0; e < PIECES_OF_KEY; e++) {
        const float4 x = make_float4(low(q[e].x), high(q[e].x), low(q[e].y), high(q[e].y));
        dot += x.x * y[e].x * low(k[e].x) + x.y * y[e].y * high(k[e].x) + x.z * y[e].z * low(k[e].y) +
               x.w * y[e].w * high(k[e].y);
        s += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    dot = over_half(dot), s = over_half(s);
    if (b.lane % 16 == 0 && filled)
        give(b.now + p.m * a.row + a.w_z + p.h * a.even_slots + slot,
             __float_as_uint(dot * factor_of(a, s) * scalars_of(a, b, l, p.h)[SCALE]), b.number + l);
}

#endif
