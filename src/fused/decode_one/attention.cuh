/* attention.cuh -- softmax attention over a session's pages, as the mixer of a decoding step.
 *
 * Part 1: a task is one split of a query head's keys, every splits-th unit of UNIT positions. LANES lanes share a key,
 * 16 bytes each; the block's warps process different keys of a unit, each with a running maximum, and combine in shared
 * memory. Split 0 also handles the new token, whose rotated key and value it appends to the page. The split's sums,
 * maximum and denominator are published as floats. Part 2: a task combines the splits for COLS columns of a head.
 * Splits depend on the model alone and units on the position alone, so the bits do not depend on other sessions.
 *
 * TASK_WARP prefetches the first unit of a layer's task into L2 while the previous layer computes. */
#ifndef HL_DECODE_ATTENTION_CUH
#define HL_DECODE_ATTENTION_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

enum {
    KEYS_EACH = 4,                          /* keys per group of lanes in a unit, loaded at once */
    READ_STRIDE = HL_DECODE_ATTENTION_D + 2 /* floats of a warp's part: sums, maximum, denominator */
};
#define LOG2E 1.4426950408889634f

/* Lanes per key and keys per unit. */
template <class D> static __device__ __forceinline__ int key_lanes(const D &a) { return a.K / 8; }
template <class D> static __device__ __forceinline__ int unit_keys(const D &a) {
    return WARPS * KEYS_EACH * (32 / key_lanes(a));
}
/* A token's row of a key head, in the pages of row m; at: k_off or v_off. */
template <class D>
static __device__ __forceinline__ bf16 *page_row(const D &a, int l, int m, int64_t pos, int head, int64_t at) {
    char *page = a.pages[m * HL_DECODE_PAGES + pos / HL_PAGE_TOKENS];
    return (bf16 *)(page + l * a.page_layer + at) + (pos % HL_PAGE_TOKENS * a.kv + head) * a.K;
}

/* TASK_WARP: the first unit of the block's first task, to L2. */
template <class D>
static __device__ __forceinline__ void prefetch_keys(const D &a, const struct block &b, int l, const struct task &p) {
#ifndef HL_CUDA_EMU
    const int64_t first = (int64_t)p.part * unit_keys(a), end = seg_of(a, b, p.m).pos;
    for (int i = b.lane; i < unit_keys(a) && first + i < end; i += 32) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(page_row(a, l, p.m, first + i, p.h / a.group, a.k_off)));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(page_row(a, l, p.m, first + i, p.h / a.group, a.v_off)));
    }
#endif
}

/* The lane's 8 channels of a head published by IN, from word `at` on: each lane polls a part, shuffles share them. */
template <class D>
static __device__ __forceinline__ void load_head(const D &a, const struct block &b, int l, const uint64_t *at,
                                                 float (&x)[8]) {
    const int lanes = key_lanes(a), n = 4 * lanes / 32, e = b.lane % lanes; /* n: words per lane, 1 or 2 */
    uint32_t v[2] = {};
    wait_for<D>(v, at + b.lane, 32, n, b.epoch + l);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int word = 4 * e + j;
        const uint32_t first = __shfl_sync(0xffffffffu, v[0], word % 32),
                       second = __shfl_sync(0xffffffffu, v[1], word % 32), y = word < 32 ? first : second;
        x[2 * j] = low(y), x[2 * j + 1] = high(y);
    }
}
/* Rotates them; the other element of each pair is half the lanes away. */
template <class D>
static __device__ __forceinline__ void rotate(const D &a, const struct block &b, int m, float (&x)[8]) {
    const int lanes = key_lanes(a), e = b.lane % lanes;
    const bool upper = e >= lanes / 2;
    const float2 *angle = a.angle + m * (a.K / 2) + e % (lanes / 2) * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float other = __shfl_xor_sync(0xffffffffu, x[j], lanes / 2);
        const float2 cs = angle[j];
        x[j] = x[j] * cs.x + (upper ? other : -other) * cs.y;
    }
}
static __device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
    return make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
}
static __device__ __forceinline__ void unpack8(float (&x)[8], uint4 v) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) x[2 * j] = low(w[j]), x[2 * j + 1] = high(w[j]);
}

/* A running softmax of a group of lanes; scores are of base 2. */
struct running {
    float max, sum, y[8];
};
static __device__ __forceinline__ void merge(struct running &r, float max, float sum, const float (&y)[8]) {
    const float top = fmaxf(r.max, max), mine = exp2f(r.max - top), other = exp2f(max - top);
    r.max = top, r.sum = mine * r.sum + other * sum;
#pragma unroll
    for (int j = 0; j < 8; j++) r.y[j] = mine * r.y[j] + other * y[j];
}
static __device__ __forceinline__ float dot_over(const float (&q)[8], uint4 k, int lanes) {
    float x[8], z = 0.0f;
    unpack8(x, k);
#pragma unroll
    for (int j = 0; j < 8; j++) z += q[j] * x[j];
    for (int n = 1; n < lanes; n *= 2) z += __shfl_xor_sync(0xffffffffu, z, n);
    return z;
}

/* Part 1. */
template <class D>
static __device__ __forceinline__ void attention_split(const D &a, const struct block &b, int l, const struct task &p) {
    const int lanes = key_lanes(a), groups = 32 / lanes, e = b.lane % lanes, group = b.lane / lanes, kv = p.h / a.group;
    const uint64_t *words = b.words + p.m * a.row_words + a.w_in;
    const int64_t pos = seg_of(a, b, p.m).pos, units = (pos + unit_keys(a) - 1) / unit_keys(a);
    float *parts = (float *)(b.shared + a.s.reads);
    struct running r = {-1e30f, 0.0f, {}};
    float q[8];
    load_head(a, b, l, words + p.h * a.K / 2, q);
    rotate(a, b, p.m, q);
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = low(pack2(q[j], 0.0f)) * (LOG2E * rsqrtf((float)a.K));
#pragma unroll 1
    for (int64_t u = p.part; u < units; u += a.slot_tasks) {
        uint4 k[KEYS_EACH], v[KEYS_EACH];
        float z[KEYS_EACH], max = -1e30f, sum = 0.0f, y[8] = {};
#pragma unroll
        for (int i = 0; i < KEYS_EACH; i++) {
            const int64_t at = u * unit_keys(a) + (i * WARPS + b.warp) * groups + group;
            k[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (at < pos) {
                k[i] = ((const uint4 *)page_row(a, l, p.m, at, kv, a.k_off))[e];
                v[i] = ((const uint4 *)page_row(a, l, p.m, at, kv, a.v_off))[e];
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS_EACH; i++) {
            const int64_t at = u * unit_keys(a) + (i * WARPS + b.warp) * groups + group;
            z[i] = dot_over(q, k[i], lanes);
            if (at >= pos) z[i] = -INFINITY;
            max = fmaxf(max, z[i]);
        }
#pragma unroll
        for (int i = 0; i < KEYS_EACH; i++) {
            const float w = exp2f(z[i] - max);
            float x[8];
            unpack8(x, v[i]);
            sum += w;
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] += w * x[j];
        }
        merge(r, max, sum, y);
    }
    if (p.part == 0 && b.warp == 0) { /* the new token: every group of lanes computes it, one result is used */
        float k[8], v[8];
        load_head(a, b, l, words + (a.H * a.K + kv * a.K) / 2, k);
        load_head(a, b, l, words + ((a.H + a.kv) * a.K + kv * a.K) / 2, v);
        rotate(a, b, p.m, k);
        const uint4 key = pack8(k);
        const float z = dot_over(q, key, lanes);
        if (group == 0) merge(r, z, 1.0f, v);
        if (group == 0 && p.h % a.group == 0) {
            ((uint4 *)page_row(a, l, p.m, pos, kv, a.k_off))[e] = key;
            ((uint4 *)page_row(a, l, p.m, pos, kv, a.v_off))[e] = pack8(v);
        }
    }
    for (int n = lanes; n < 32; n *= 2) { /* over the warp's groups */
        float y[8];
        const float max = __shfl_xor_sync(0xffffffffu, r.max, n), sum = __shfl_xor_sync(0xffffffffu, r.sum, n);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = __shfl_xor_sync(0xffffffffu, r.y[j], n);
        if (group & (n / lanes)) { /* both sides add in the same order */
            struct running s = {max, sum, {}};
#pragma unroll
            for (int j = 0; j < 8; j++) s.y[j] = y[j];
            merge(s, r.max, r.sum, r.y);
            r = s;
        } else merge(r, max, sum, y);
    }
    float *mine = parts + b.warp * READ_STRIDE;
    if (group == 0) {
#pragma unroll
        for (int j = 0; j < 8; j++) mine[e * 8 + j] = r.y[j];
        if (e == 0) mine[a.K] = r.max, mine[a.K + 1] = r.sum;
    }
    sync_block();
    uint64_t *to = b.words + p.m * a.row_words + a.w_logits + (p.h * a.slot_tasks + p.part) * (a.K + 2);
    if ((int)threadIdx.x < a.K + 2) { /* the last two: maximum and denominator */
        const int c = threadIdx.x;
        float top = -1e30f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, parts[w * READ_STRIDE + a.K]);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += exp2f(parts[w * READ_STRIDE + a.K] - top) * parts[w * READ_STRIDE + (c == a.K ? a.K + 1 : c)];
        publish(to + (c == a.K       ? a.K + 1
                      : c == a.K + 1 ? a.K
                                     : c),
                __float_as_uint(c == a.K + 1 ? top : sum), b.epoch + l);
    }
}

/* Part 2: warp 0 combines the splits of 8 columns, 4 lanes for pairs of columns and 8 for splits. */
template <class D>
static __device__ __forceinline__ void attention_combine(const D &a, const struct block &b, int l,
                                                         const struct task &p) {
    if (b.warp > 0) return;
    const int pair = b.lane % 4, column = p.part * COLS + 2 * pair;
    const uint64_t *words = b.words + p.m * a.row_words + a.w_logits + p.h * a.slot_tasks * (a.K + 2);
    float max = -1e30f, sum = 0.0f, y0 = 0.0f, y1 = 0.0f;
    for (int s = b.lane / 4; s < a.slot_tasks; s += 8) { /* splits are a multiple of 8: all lanes */
        uint32_t y[2], m[2];
        wait_for<D>(y, words + s * (a.K + 2) + column, 1, 2, b.epoch + l);
        wait_for<D>(m, words + s * (a.K + 2) + a.K, 1, 2, b.epoch + l);
        const float other = __uint_as_float(m[0]), top = fmaxf(max, other), u = exp2f(max - top),
                    v = exp2f(other - top);
        max = top, sum = u * sum + v * __uint_as_float(m[1]);
        y0 = u * y0 + v * __uint_as_float(y[0]), y1 = u * y1 + v * __uint_as_float(y[1]);
    }
    float top = max;
    for (int n = 4; n < 32; n *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, n));
    const float u = exp2f(max - top);
    sum *= u, y0 *= u, y1 *= u;
    for (int n = 4; n < 32; n *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, n);
        y0 += __shfl_xor_sync(0xffffffffu, y0, n), y1 += __shfl_xor_sync(0xffffffffu, y1, n);
    }
    if (b.lane < 4)
        publish(b.words + p.m * a.row_words + a.w_o + swizzled((p.h * a.K + column) / 2),
                pack2(__fdividef(y0, sum), __fdividef(y1, sum)), b.epoch + l);
}

#endif
