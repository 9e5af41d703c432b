/* decode_look.cuh -- the two memories in a decoding step, first part: where things lie, q and k of a head,
 * and the logits of the cache's read. A warp per slot of the cache leaves its logit as a word. */
#ifndef HL_DECODE_LOOK_CUH
#define HL_DECODE_LOOK_CUH
#include "ops/decode/decode_cuda.cuh"

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

/* ---- what a warp needs of a task, into shared memory before it is needed ---- */

/* the keys in this warp's two slots, half a warp each */
template <class D>
static __device__ __forceinline__ int slot_of(const D &a, const struct block &b, const struct task &p) {
    const int n = b.warp * 2 + b.lane / 16;
    return n < a.share ? p.part * a.share + n : a.slots;
}
template <class D> static __device__ __forceinline__ uint4 *key_at(const D &a, const struct block &b) {
    return (uint4 *)(b.shared + a.s.k) + (b.warp * 2 + b.lane / 16) * (a.K / 8);
}
template <class D>
static __device__ __forceinline__ void fetch_keys(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    const int slot = slot_of(a, b, p);
    if (!old_slot(a, filled_of(a, b, p.m), slot)) return;
    const uint4 *from = (const uint4 *)cache_of(a, b, l, p).k + slot * (a.K / 8);
#pragma unroll 1
    for (int i = b.lane % 16; i < a.K / 8; i += 16) copy_async(key_at(a, b) + i, from + i);
}

/* COLS columns of this warp's rows of the state and of its slots of the cache's values. A lane has one column of
 * every fourth of them. */
template <class D>
static __device__ __forceinline__ float *state_at(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    return (float *)(state_of(a, b, l, p.m) + a.S) + (p.h * a.K + b.warp * a.rows) * a.V + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ bf16 *values_at(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    return cache_of(a, b, l, p).v + p.part * COLS;
}
template <class D>
static __device__ __forceinline__ void fetch_tile(const D &a, const struct block &b, int l,
                                                  const struct task &p) {
    const int half = b.lane % 2 * 4, row = b.lane / 2;
    float *S = (float *)(b.shared + a.s.S) + b.warp * a.rows * COLS + half;
    const float *from = state_at(a, b, l, p) + half;
#pragma unroll 1
    for (int i = row; i < a.rows; i += 16) copy_async(S + i * COLS, from + i * a.V);
    if (!a.cache) return;
    const struct filled f = filled_of(a, b, p.m);
    bf16 *v = (bf16 *)(b.shared + a.s.v);
    const bf16 *values = values_at(a, b, l, p);
#pragma unroll 1
    for (int i = b.lane; i < a.each; i += 32) {
        const int slot = b.warp * a.each + i;
        if (old_slot(a, f, slot)) copy_async(v + slot * COLS, values + slot * a.V);
    }
}
/* What the first tasks of a layer need. */
template <class D>
static __device__ __forceinline__ void fetch_ahead(const D &a, const struct block &b, int l) {
    if (a.cache && b.look.m < a.M) fetch_keys(a, b, l, b.look);
    if (b.tile.m < a.M) fetch_tile(a, b, l, b.tile);
}
static __device__ __forceinline__ void fetched() {
    copy_commit();
    copy_wait<0>();
    __syncwarp();
}

/* ---- q and k of a key head ---- */

template <class D>
static __device__ __forceinline__ float *head_of(const D &a, const struct block &b, int which) {
    return (float *)(b.shared + a.s.head) + which * a.K;
}
enum { Q_STATE, K_STATE, Q_CACHE, K_CACHE };

/* Normed for the state and for the cache, rounded as activations are; one warp has q, one has k. All
 * threads. */
template <class D>
static __device__ __forceinline__ void bring_head(const D &a, struct block &b, int l, int m, int hk) {
    const int width = a.K / 2, me = (l * ROWS + m) * a.H + hk;
    if (b.in_head == me) return;
    if (b.in_head / (ROWS * a.H) == l) sync_block(); /* the last one is no longer in use */
    b.in_head = me;
    if (b.warp < 2) {
        enum { EACH = 4 }; /* K <= 256 */
        const struct hl_decode_layer &y = layer_of(a, b, l);
        const float2 *w = (const float2 *)(b.warp ? y.k_norm : y.q_norm) + b.lane;
        float2 *state = (float2 *)head_of(a, b, Q_STATE + b.warp) + b.lane,
               *cache = (float2 *)head_of(a, b, Q_CACHE + b.warp) + b.lane, gamma[EACH];
        const int n = (a.K / 2 - b.lane + 31) / 32;
        uint32_t v[EACH];
        float s = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++) gamma[e] = a.rms && e < n ? w[e * 32] : make_float2(0.0f, 0.0f);
        take<EACH>(v, b.now + m * a.row + a.w_in + (b.warp * a.qk + hk * a.K) / 2 + b.lane, 32, n,
                   b.number + l);
#pragma unroll
        for (int e = 0; e < EACH; e++) s += low(v[e]) * low(v[e]) + high(v[e]) * high(v[e]);
        s = warp_sum(s);
        const float r = rsqrtf(s + (float)HL_L2_EPS), rms = rsqrtf(s * a.one_K + 1e-6f);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (e >= n) continue;
            const float2 x = make_float2(low(v[e]), high(v[e]));
            const float2 y1 = make_float2(round_bf16(r * x.x), round_bf16(r * x.y));
            state[e * 32] = y1;
            cache[e * 32] =
                !a.rms ? y1
                       : make_float2(round_bf16(rms * x.x * gamma[e].x), round_bf16(rms * x.y * gamma[e].y));
        }
    }
    sync_block();
}

/* ---- the cache's logits ---- */

static __device__ __forceinline__ float dot4(float4 x, float4 y) {
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
static __device__ __forceinline__ float dot8(const float4 *x, uint4 y) {
    return dot4(x[0], make_float4(low(y.x), high(y.x), low(y.y), high(y.y))) +
           dot4(x[1], make_float4(low(y.z), high(y.z), low(y.w), high(y.w)));
}
static __device__ __forceinline__ uint4 pack8(const float4 *x) {
    return make_uint4(pack2(x[0].x, x[0].y), pack2(x[0].z, x[0].w), pack2(x[1].x, x[1].y),
                      pack2(x[1].z, x[1].w));
}

/* A task's logits; q and k are there. */
template <class D>
static __device__ __forceinline__ void look_up(const D &a, const struct block &b, int l,
                                               const struct task &p) {
    const struct filled f = filled_of(a, b, p.m);
    const int slot = slot_of(a, b, p);
    const bool newest = slot == f.fresh, filled = newest || old_slot(a, f, slot);
    const float4 *q = (const float4 *)head_of(a, b, Q_CACHE), *k = (const float4 *)head_of(a, b, K_CACHE);
    float dot = 0.0f;
#pragma unroll
    for (int e = 0; e < 2; e++) { /* K <= 256 */
        const int i = e * 16 + b.lane % 16;
        if (filled && i < a.K / 8) dot += dot8(q + 2 * i, newest ? pack8(k + 2 * i) : key_at(a, b)[i]);
    }
    for (int n = 1; n < 16; n *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, n);
    if (b.lane % 16 == 0 && filled)
        give(b.now + p.m * a.row + a.w_z + p.h * a.slots + slot,
             __float_as_uint(dot * scalars_of(a, b, l, p.h)[SCALE]), b.number + l);
    if (!newest) return;
    uint4 *place = (uint4 *)cache_of(a, b, l, p).k + slot * (a.K / 8);
#pragma unroll 1
    for (int i = b.lane % 16; i < a.K / 8; i += 16) place[i] = pack8(k + 2 * i);
}

#endif
