/* decode_look.cuh -- the two memories in a decoding step, first part: where things lie, q and k of a head,
 * and the logits of the cache's read. A warp per slot of the cache leaves its logit as a word. */
#ifndef HL_DECODE_LOOK_CUH
#define HL_DECODE_LOOK_CUH
#include "ops/decode/decode_cuda.cuh"

static __device__ __forceinline__ struct task task_at(const struct decode &a, int t, int parts) {
    struct task p = {t / parts / a.HV, t / parts % a.HV, t % parts};
    return p;
}
static __device__ __forceinline__ struct memory cache_of(const struct decode &a, const struct block &b, int l,
                                                         const struct task &p) {
    char *s = state_of(a, b, l, p.m) + a.cache_at + p.h * a.at.bytes;
    struct memory m = {(float *)(s + a.at.k), (float *)(s + a.at.v), (float *)(s + a.at.score),
                       (int64_t *)(s + a.at.pos)};
    return m;
}
/* slots [0, kept) and [window, fresh) are filled, `fresh` is the new token's */
struct filled {
    int kept, fresh;
};
static __device__ __forceinline__ struct filled filled_of(const struct decode &a, const struct block &b,
                                                          int m) {
    return ((const struct filled *)(b.shared + a.s.filled))[m];
}
static __device__ __forceinline__ struct filled filled_at(const struct decode &a, int64_t pos) {
    const int64_t whole = pos / a.chunk * a.chunk;
    struct filled f = {whole < a.window ? (int)whole : a.window, a.window + (int)(pos - whole)};
    return f;
}
static __device__ __forceinline__ bool old_slot(const struct decode &a, const struct filled &f, int slot) {
    return slot < f.kept || (slot >= a.window && slot < f.fresh);
}

/* ---- what a thread fetches of a task, before it is needed ---- */

/* the keys in this warp's slots */
enum { EACH = 2, WIDE_KEY = 2 }; /* slots of a warp; pieces of 128 columns, K <= 256 */
struct keys {
    float4 x[EACH][WIDE_KEY];
};
static __device__ __forceinline__ struct keys keys_of(const struct decode &a, const struct block &b, int l,
                                                      const struct task &p) {
    struct keys k = {};
    const struct filled f = filled_of(a, b, p.m);
    const float4 *from = (const float4 *)cache_of(a, b, l, p).k;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int n = b.warp + i * WARPS, slot = p.part * a.share + n;
        if (n >= a.share || !old_slot(a, f, slot)) continue;
#pragma unroll
        for (int e = 0; e < WIDE_KEY; e++)
            if (e * 32 + b.lane < a.K / 4) k.x[i][e] = from[slot * (a.K / 4) + e * 32 + b.lane];
    }
    return k;
}

/* 4 columns of rows of the state, and of the cache's values of every 128th slot */
enum { STRIDE = THREADS / 2, HELD = 2, AHEAD = 3 };
struct tile {
    float4 S[HELD], v[AHEAD];
};
static __device__ __forceinline__ float *state_at(const struct decode &a, const struct block &b, int l,
                                                  const struct task &p) {
    const int row = threadIdx.x / 2, col = p.part * COLS + threadIdx.x % 2 * 4;
    return (float *)(state_of(a, b, l, p.m) + a.S) + (p.h * a.K + row) * a.V + col;
}
static __device__ __forceinline__ float *values_at(const struct decode &a, const struct block &b, int l,
                                                   const struct task &p) {
    return cache_of(a, b, l, p).v + p.part * COLS + threadIdx.x % 2 * 4;
}
static __device__ __forceinline__ float4 value_at(const struct decode &a, const struct filled &f,
                                                  const float *v, int slot) {
    return old_slot(a, f, slot) ? *(const float4 *)(v + slot * a.V) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
static __device__ __forceinline__ struct tile tile_of(const struct decode &a, const struct block &b, int l,
                                                      const struct task &p) {
    struct tile x = {};
    const int row = threadIdx.x / 2;
    const float *S = state_at(a, b, l, p);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (row + i * STRIDE < a.K) x.S[i] = *(const float4 *)(S + i * STRIDE * a.V);
    if (!a.cache) return x;
    const struct filled f = filled_of(a, b, p.m);
    const float *v = values_at(a, b, l, p);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x.v[i] = value_at(a, f, v, row + i * STRIDE);
    return x;
}

/* Brings what the first tasks of a layer will fetch into the chip's cache. */
static __device__ __forceinline__ void expect_state(const struct decode &a, const struct block &b, int l) {
    if (b.tile.m < a.M && (int)threadIdx.x < a.K)
        prefetch((const float *)(state_of(a, b, l, b.tile.m) + a.S) + (b.tile.h * a.K + threadIdx.x) * a.V +
                 b.tile.part * COLS);
    if (!a.cache) return;
    if (b.tile.m < a.M) {
        const struct filled f = filled_of(a, b, b.tile.m);
        const float *v = cache_of(a, b, l, b.tile).v + b.tile.part * COLS;
        for (int slot = threadIdx.x; slot < f.fresh; slot += THREADS)
            if (old_slot(a, f, slot)) prefetch(v + slot * a.V);
    }
    if (b.look.m < a.M && b.lane * 32 < a.K) {
        const struct filled f = filled_of(a, b, b.look.m);
        const float *k = cache_of(a, b, l, b.look).k;
        for (int n = b.warp; n < a.share; n += WARPS) {
            const int slot = b.look.part * a.share + n;
            if (old_slot(a, f, slot)) prefetch(k + slot * a.K + b.lane * 32);
        }
    }
}

/* ---- q and k of a key head ---- */

static __device__ __forceinline__ float *head_of(const struct decode &a, const struct block &b, int which) {
    return (float *)(b.shared + a.s.head) + which * a.K;
}
enum { Q_STATE, K_STATE, Q_CACHE, K_CACHE };

/* Normed for the state and for the cache, rounded as activations are; warp 0 has q, warp 1 has k. All
 * threads. */
static __device__ __forceinline__ void bring_head(const struct decode &a, struct block &b, int l, int m,
                                                  int hk) {
    const int width = a.K / 2, me = (l * ROWS + m) * a.H + hk;
    if (b.in_head == me) return;
    b.in_head = me;
    __syncthreads(); /* the last one is no longer in use */
    if (b.warp < 2) {
        const uint64_t *words =
            b.now + m * a.row + a.w_in + (b.warp * a.qk + hk * a.K) / 2 + min(2 * b.lane, width - 2);
        const struct hl_decode_layer &y = layer_of(a, b, l);
        const float4 *w = (const float4 *)(b.warp ? y.k_norm : y.q_norm);
        float4 *state = (float4 *)head_of(a, b, Q_STATE + b.warp),
               *cache = (float4 *)head_of(a, b, Q_CACHE + b.warp);
        uint2 v[2]; /* K <= 256 */
        float4 gamma[2];
        float s = 0.0f;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = e * 32 + b.lane;
            gamma[e] = a.rms && 2 * i < width ? w[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        take<2>(v, words, 64, width > 64 ? width - 2 - min(2 * b.lane, width - 2) : 0, b.number + l);
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (2 * (e * 32 + b.lane) < width)
                s += low(v[e].x) * low(v[e].x) + high(v[e].x) * high(v[e].x) + low(v[e].y) * low(v[e].y) +
                     high(v[e].y) * high(v[e].y);
        s = warp_sum(s);
        const float r = rsqrtf(s + (float)HL_L2_EPS), rms = rsqrtf(s / (float)a.K + 1e-6f);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = e * 32 + b.lane;
            if (2 * i >= width) break;
            const float4 x = make_float4(low(v[e].x), high(v[e].x), low(v[e].y), high(v[e].y));
            const float4 n = make_float4(round_bf16(r * x.x), round_bf16(r * x.y), round_bf16(r * x.z),
                                         round_bf16(r * x.w));
            state[i] = n;
            cache[i] =
                !a.rms ? n
                       : make_float4(round_bf16(rms * x.x * gamma[e].x), round_bf16(rms * x.y * gamma[e].y),
                                     round_bf16(rms * x.z * gamma[e].z), round_bf16(rms * x.w * gamma[e].w));
        }
    }
    __syncthreads();
}

/* ---- the cache's logits ---- */

static __device__ __forceinline__ float dot4(float4 x, float4 y) {
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
static __device__ __forceinline__ int even_slots(const struct decode &a) { return (a.slots + 1) & ~1; }

static __device__ __forceinline__ void look_up(const struct decode &a, struct block &b, int l) {
    const int tasks = a.M * a.HV * a.shares;
    struct task p = b.look;
    struct keys next = {};
    if (p.m < a.M) next = keys_of(a, b, l, p);
    for (int t = blockIdx.x; t < tasks; t += gridDim.x) {
        const struct task now = p;
        struct keys k = next;
        if (t + (int)gridDim.x < tasks) {
            p = task_at(a, t + gridDim.x, a.shares);
            next = keys_of(a, b, l, p);
        }
        bring_head(a, b, l, now.m, now.h / a.group);
        const struct filled f = filled_of(a, b, now.m);
        const float4 *q = (const float4 *)head_of(a, b, Q_CACHE),
                     *k1 = (const float4 *)head_of(a, b, K_CACHE);
        float dot[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int n = b.warp + i * WARPS, slot = now.part * a.share + n;
            const bool newest = n < a.share && slot == f.fresh;
            float4 *place = (float4 *)cache_of(a, b, l, now).k + slot * (a.K / 4);
            dot[i] = 0.0f;
#pragma unroll
            for (int e = 0; e < WIDE_KEY; e++) {
                const int at = e * 32 + b.lane;
                if (at >= a.K / 4) break;
                if (newest) place[at] = k.x[i][e] = k1[at];
                dot[i] += dot4(q[at], k.x[i][e]);
            }
        }
#pragma unroll
        for (int n = 16; n > 0; n /= 2)
#pragma unroll
            for (int i = 0; i < EACH; i++) dot[i] += __shfl_xor_sync(0xffffffffu, dot[i], n);
        const int n = b.warp + b.lane * WARPS, slot = now.part * a.share + n;
        if (b.lane < EACH && n < a.share && (slot == f.fresh || old_slot(a, f, slot)))
            give(b.now + now.m * a.row + a.w_z + now.h * even_slots(a) + slot,
                 __float_as_uint((b.lane ? dot[1] : dot[0]) * scalars_of(a, b, l, now.h)[SCALE]),
                 b.number + l);
    }
}

#endif
