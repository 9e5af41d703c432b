/* cache_logits.cuh -- the two memories in a decoding step, first part: where things lie, and the logits of the
 * cache's read. Half a warp per slot of the cache leaves its logit as a word. */
#ifndef HL_DECODE_LOOK_CUH
#define HL_DECODE_LOOK_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/poll_missing.cuh"

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

enum {
    PIECES_OF_KEY = 4, /* of 4 numbers that one of 16 lanes has: K <= 256 */
    QUERY =
        272 /* among the shared floats of a task: [256] q, times its norm's weights, [128] squares of pairs */
};
static_assert(QUERY + 256 + 128 <= HL_DECODE_SMALL, "decode.h");

/* A row's factor for the cache, of its sum of squares. */
template <class D> static __device__ __forceinline__ float factor_of(const D &a, float squares) {
    return fast_rsqrt(a.rms ? squares * a.one_K + 1e-6f : squares + (float)HL_L2_EPS);
}
static __device__ __forceinline__ float over_half(float s) {
    for (int n = 1; n < 16; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
    return s;
}
/* Of the rows of the state that a warp has, a pair of neighbours each lane: half of the lanes have the word of q, the
 * others that of k; all have the weights of both norms. */
struct pair {
    uint32_t word;
    float2 q_norm, k_norm;
};
template <class D>
static __device__ __forceinline__ struct pair take_rows(const D &a, const struct block &b, int l,
                                                        const struct task &p) {
    const int j = b.lane % 16, n = j < a.rows / 2 ? 1 : 0;
    const uint64_t *words = b.now + p.m * a.row + a.w_in + (p.h / a.group * a.K + b.warp * a.rows) / 2 + j +
                            b.lane / 16 * (a.qk / 2);
    struct pair y = {0, make_float2(1.0f, 1.0f), make_float2(1.0f, 1.0f)};
    if (a.cache && a.rms && n) { /* come while the word is waited for */
        y.q_norm = ((const float2 *)(layer_of(a, b, l).q_norm + b.warp * a.rows))[j];
        y.k_norm = ((const float2 *)(layer_of(a, b, l).k_norm + b.warp * a.rows))[j];
    }
    uint32_t v[1];
    if (D::sparing) take_missing(v, words, 0, n, b.number + l);
    else take<1>(v, words, 0, n, b.number + l);
    y.word = v[0];
    return y;
}
/* A task's logits. The warps take a part of q each, since a word is seen the sooner the fewer ask for it, and meet in
 * shared memory. The factor of q's norm comes in at the end. */
template <class D>
static __device__ __forceinline__ struct pair look_up(const D &a, const struct block &b, int l,
                                                      const struct task &p) {
    const int place = b.warp * 2 + b.lane / 16, slot = place < a.share ? p.part * a.share + place : a.slots,
              n = (a.K / 4 - b.lane % 16 + 15) / 16;
    const bool filled = old_slot(a, filled_of(a, b, p.m), slot);
    const uint2 *key = (const uint2 *)(b.shared + a.s.k) + place * (a.K / 4) + b.lane % 16;
    float *query = (float *)(b.shared + a.s.small) + QUERY, *squares = query + 256;
    uint2 k[PIECES_OF_KEY];
    float dot = 0.0f, s = 0.0f;
#pragma unroll
    for (int e = 0; e < PIECES_OF_KEY; e++) k[e] = filled && e < n ? key[e * 16] : make_uint2(0, 0);
    const struct pair mine = take_rows(a, b, l, p);
    if (b.lane < a.rows / 2) {
        const int at = b.warp * (a.rows / 2) + b.lane;
        const float x = low(mine.word), y = high(mine.word);
        ((float2 *)query)[at] = make_float2(x * mine.q_norm.x, y * mine.q_norm.y);
        squares[at] = x * x + y * y;
    }
    sync_block();
#pragma unroll
    for (int e = 0; e < PIECES_OF_KEY; e++) {
        if (e >= n) continue;
        const float4 x = ((const float4 *)query)[e * 16 + b.lane % 16];
        const float2 xx = ((const float2 *)squares)[e * 16 + b.lane % 16];
        dot += x.x * low(k[e].x) + x.y * high(k[e].x) + x.z * low(k[e].y) + x.w * high(k[e].y);
        s += xx.x + xx.y;
    }
    dot = over_half(dot), s = over_half(s);
    if (b.lane % 16 == 0 && filled)
        give(b.now + p.m * a.row + a.w_z + p.h * a.even_slots + slot,
             __float_as_uint(dot * factor_of(a, s) * scalars_of(a, b, l, p.h)[SCALE]), b.number + l);
    return mine;
}

#endif
