/* decode_product.cuh -- the matrix products of a decoding step, with what stands before and behind each.
 *
 * A block owns groups of 8 rows of weights; its warps split the inner size and add up in order, so that a
 * row's result is the same in any batch. As in gemv_cuda.cuh, lane (g, t) holds 16 bytes of row g of W and of
 * x at column 32 k + 8 t, which are fragments of two products: W is B, x is the upper half of A. M: rows,
 * rounded up to a power of two. */
#ifndef HL_DECODE_PRODUCT_CUH
#define HL_DECODE_PRODUCT_CUH
#include "ops/decode/decode_cuda.cuh"

static __device__ __forceinline__ uint32_t *x_of(const struct decode &a, const struct block &b, int m) {
    return (uint32_t *)(b.shared + a.s.x + m * a.s.ld * 2);
}
static __device__ __forceinline__ const uint32_t *embedding(const struct decode &a, int m) {
    return (const uint32_t *)(a.embed + (int64_t)a.ids[m] * a.d);
}
static __device__ __forceinline__ float square(uint32_t v) { return low(v) * low(v) + high(v) * high(v); }

/* ---- before: the rows that are multiplied, into shared memory; a thread has two neighbouring words ---- */

static __device__ __forceinline__ float factor(const float *squares, int parts, int width, float eps) {
    float s = 0.0f;
    if (parts == 8) {
        const float4 x = *(const float4 *)squares, y = *(const float4 *)(squares + 4);
        s = ((x.x + x.y) + (x.z + x.w)) + ((y.x + y.y) + (y.z + y.w));
    } else
        for (int p = 0; p < parts; p++) s += squares[p];
    return rsqrtf(s / (float)width + eps);
}

/* RMSNorm of the rows. The sums of squares of 64 words each, a warp's, have their places. */
template <int M>
static __device__ __forceinline__ void bring_normed(const struct decode &a, struct block &b, int kind,
                                                    int l) {
    const int width = a.d / 2, parts = (width + 63) / 64, last = (a.M - 1) * a.row;
    const float *w = kind == HEAD ? a.final_norm
                     : kind == IN ? layer_of(a, b, l).attn_norm
                                  : layer_of(a, b, l).mlp_norm;
    const uint64_t *words = kind == MLP ? b.now + a.w_h : b.before + a.w_x;
    const uint32_t number = b.number + (kind == MLP ? l : l - 1);
    float *squares = (float *)(b.shared + a.s.squares);
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (2 * (int)threadIdx.x < width)
        y = ((const float4 *)w)[threadIdx.x];                       /* comes while the words are waited for */
    for (int c0 = 2 * b.warp * 32; c0 < width; c0 += 2 * THREADS) { /* whole warps */
        const int c = c0 + 2 * b.lane;
        uint2 v[M];
        if (kind == IN && l == 0)
#pragma unroll
            for (int m = 0; m < M; m++)
                v[m] = *(const uint2 *)(embedding(a, min(m, a.M - 1)) + min(c, width - 2));
        else take<M>(v, words + min(c, width - 2), a.row, last, number);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m >= a.M) break;
            const float s = warp_sum(c < width ? square(v[m].x) + square(v[m].y) : 0.0f);
            if (c < width) *(uint2 *)(x_of(a, b, m) + c) = v[m];
            if (b.lane == 0) squares[m * parts + c0 / 64] = s;
        }
    }
    __syncthreads();
    for (int c = 2 * threadIdx.x; c < width; c += 2 * THREADS) {
        if (c >= 2 * THREADS) y = ((const float4 *)w)[c / 2];
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m >= a.M) break;
            const float r = factor(squares + m * parts, parts, a.d, a.eps);
            uint2 *x = (uint2 *)(x_of(a, b, m) + c);
            *x = make_uint2(pack2(r * low(x->x) * y.x, r * high(x->x) * y.y),
                            pack2(r * low(x->y) * y.z, r * high(x->y) * y.w));
        }
    }
    __syncthreads();
}

/* The heads' outputs, normed and gated: the same with sums over 16 words, 8 lanes. */
template <int M>
static __device__ __forceinline__ void bring_heads(const struct decode &a, struct block &b, int l) {
    const int width = a.vv / 2, parts = width / 16, of_head = a.V / 32, last = (a.M - 1) * a.row;
    const uint32_t number = b.number + l;
    float *squares = (float *)(b.shared + a.s.squares);
    for (int c0 = 2 * b.warp * 32; c0 < width; c0 += 2 * THREADS) {
        const int c = c0 + 2 * b.lane;
        uint2 v[M];
        take<M>(v, b.now + a.w_o + min(c, width - 2), a.row, last, number);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m >= a.M) break;
            float s = square(v[m].x) + square(v[m].y);
            for (int n = 1; n < 8; n *= 2) s += __shfl_xor_sync(0xffffffffu, s, n);
            if (c < width) *(uint2 *)(x_of(a, b, m) + c) = v[m];
            if (c < width && b.lane % 8 == 0) squares[m * parts + c / 16] = s;
        }
    }
    __syncthreads();
    for (int c = 2 * threadIdx.x; c < width; c += 2 * THREADS) {
        const int h = 2 * c / a.V;
        const float4 y = *(const float4 *)(layer_of(a, b, l).o_norm + 2 * c - h * a.V);
        uint2 z[M];
        if (a.gated) take<M>(z, b.now + a.w_in + a.qk + a.vv / 2 + c, a.row, last, number);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m >= a.M) break;
            const float r = factor(squares + m * parts + h * of_head, of_head, a.V, a.eps);
            uint2 *x = (uint2 *)(x_of(a, b, m) + c);
            float u[4] = {r * low(x->x) * y.x, r * high(x->x) * y.y, r * low(x->y) * y.z,
                          r * high(x->y) * y.w};
            if (a.gated) {
                u[0] *= silu(low(z[m].x)), u[1] *= silu(high(z[m].x));
                u[2] *= silu(low(z[m].y)), u[3] *= silu(high(z[m].y));
            }
            *x = make_uint2(pack2(u[0], u[1]), pack2(u[2], u[3]));
        }
    }
    __syncthreads();
}

template <int M>
static __device__ __forceinline__ void bring_acts(const struct decode &a, struct block &b, int l) {
    enum { EACH = M == 1 ? 3 : M == 2 ? 2 : 1 };
    const int width = a.I / 2, last = (a.M - 1) * a.row;
    const uint64_t *words = b.now + a.w_act;
    for (int c0 = 2 * threadIdx.x; c0 < width; c0 += 2 * THREADS * EACH) {
        uint2 v[EACH][M];
        if (M == 1) { /* several columns at once */
            uint2 u[EACH];
            take<EACH>(u, words + c0, 2 * THREADS, width - 2 - c0, b.number + l);
            for (int e = 0; e < EACH; e++) v[e][0] = u[e];
        } else
            for (int e = 0; e < EACH; e++)
                take<M>(v[e], words + min(c0 + e * 2 * THREADS, width - 2), a.row, last, b.number + l);
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
            for (int m = 0; m < M; m++)
                if (m < a.M && c0 + e * 2 * THREADS < width)
                    *(uint2 *)(x_of(a, b, m) + c0 + e * 2 * THREADS) = v[e][m];
    }
    __syncthreads();
}

/* ---- behind: what becomes of two neighbouring outputs ---- */

struct behind { /* fetched before the product */
    uint64_t x; /* a word of the residual stream; looked at again if it was not there yet */
    const uint64_t *x_at;
    float2 t[3]; /* tails of the convolutions */
    float4 w[2]; /* and their weights */
    float *tail;
    int C;
};

static __device__ __forceinline__ void prepare(const struct decode &a, const struct block &b, int kind, int l,
                                               int m, int unit, int pair, struct behind &e) {
    const int row = unit * 8 + 2 * pair;
    if (kind == OUT && l == 0) e.x = embedding(a, m)[row / 2];
    if (kind == OUT && l > 0) e.x_at = b.before + m * a.row + a.w_x + row / 2;
    if (kind == DOWN) e.x_at = b.now + m * a.row + a.w_h + row / 2;
    if (e.x_at) e.x = look(e.x_at);
    if (kind == IN && row < a.a_at) {
        const struct hl_decode_layer &y = layer_of(a, b, l);
        const int p = row < a.qk ? 0 : row < 2 * a.qk ? 1 : 2, c = row - p * a.qk;
        e.C = p < 2 ? a.qk : a.vv;
        e.tail = (float *)(state_of(a, b, l, m) + (p == 0 ? a.tail_q : p == 1 ? a.tail_k : a.tail_v)) + c;
        for (int i = 0; i < 2; i++) e.w[i] = ((const float4 *)y.conv[p])[c + i];
        for (int i = 0; i < 3; i++)
            e.t[i] = seg_of(a, b, m).pos > 0 ? *(const float2 *)(e.tail + i * e.C) : make_float2(0.0f, 0.0f);
    }
}

static __device__ __forceinline__ float convolve(float4 w, float t0, float t1, float t2, float x) {
    const float u = w.x * t0 + w.y * t1 + w.z * t2 + w.w * x;
    return silu(u);
}
static __device__ __forceinline__ void put_in(const struct decode &a, uint64_t *words, uint32_t number,
                                              int row, float s0, float s1, const struct behind &e) {
    if (row < a.a_at) {
        const float x0 = round_bf16(s0), x1 = round_bf16(s1);
        give(words + a.w_in + row / 2,
             pack2(convolve(e.w[0], e.t[0].x, e.t[1].x, e.t[2].x, x0),
                   convolve(e.w[1], e.t[0].y, e.t[1].y, e.t[2].y, x1)),
             number);
        *(float2 *)e.tail = e.t[1], *(float2 *)(e.tail + e.C) = e.t[2];
        *(float2 *)(e.tail + 2 * e.C) = make_float2(x0, x1);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const int r = row + i, at = r < a.b_at ? r - a.a_at : a.HV + r - a.b_at;
        if (r < a.z_at) give(words + a.w_ab + at, __float_as_uint(round_bf16(i ? s1 : s0)), number);
    }
    if (row >= a.z_at && row < a.in_rows)
        give(words + a.w_in + (a.a_at + row - a.z_at) / 2, pack2(s0, s1), number);
}

static __device__ __forceinline__ void finish(const struct decode &a, const struct block &b, int kind, int l,
                                              int m, int unit, int j, int pair, const struct behind &e) {
    const float *sums = (const float *)(b.shared + a.s.sums) + (j * WARPS * a.M + m) * 8 + 2 * pair;
    const int row = unit * 8 + 2 * pair;
    uint64_t *words = b.now + m * a.row;
    float s0 = 0.0f, s1 = 0.0f, u0 = 0.0f, u1 = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 s = *(const float2 *)(sums + w * a.M * 8);
        s0 += s.x, s1 += s.y;
        if (kind == MLP) {
            const float2 u = *(const float2 *)(sums + w * a.M * 8 + 4);
            u0 += u.x, u1 += u.y;
        }
    }
    if (kind == IN) put_in(a, words, b.number + l, row, s0, s1, e);
    if (kind == OUT || kind == DOWN) {
        const uint32_t number = b.number + (kind == OUT ? l - 1 : l);
        uint32_t x = (uint32_t)e.x;
        if (e.x_at && !fresh(e.x, number)) x = take_one(e.x_at, number);
        give(words + (kind == OUT ? a.w_h : a.w_x) + row / 2, pack2(low(x) + s0, high(x) + s1), b.number + l);
    }
    if (kind == MLP)
        give(words + a.w_act + unit * 2 + pair,
             pack2(silu(round_bf16(s0)) * round_bf16(u0), silu(round_bf16(s1)) * round_bf16(u1)),
             b.number + l);
    if (kind == HEAD) {
        float *out = a.logits + (int64_t)m * a.vocab + row;
        if (row < a.vocab) out[0] = s0;
        if (row + 1 < a.vocab) out[1] = s1;
    }
}

/* ---- the product ---- */

static __device__ __forceinline__ void multiply_step(float d[4], uint4 w, uint4 u) {
    const uint32_t one[4] = {u.x, 0, u.y, 0}, two[4] = {u.z, 0, u.w, 0};
    const uint32_t b1[2] = {w.x, w.y}, b2[2] = {w.z, w.w};
    mma_bf16(d, one, b1);
    mma_bf16(d, two, b2);
}
/* d += a group's 8 rows times the rows in shared memory, over this warp's n steps; x: this lane's, if any */
static __device__ __forceinline__ void multiply(const struct decode &a, struct block &b, float d[4], int n,
                                                const uint4 *x) {
    enum { SOME = 4 };
    wait_for(b.flight - n);
    b.flight -= n;
#pragma unroll 1
    for (; n > 0; n -= SOME) {
        uint4 w[SOME], u[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            w[i] = u[i] = make_uint4(0, 0, 0, 0);
            if (i < n) {
                w[i] = *(const uint4 *)ring(a, b, b.out_at);
                if (x) u[i] = x[4 * i];
                step_on(a, b.out_at);
            }
        }
#pragma unroll
        for (int i = 0; i < SOME; i++) multiply_step(d, w[i], u[i]); /* what is not there is 0 */
        if (x) x += 4 * SOME;
    }
}

/* Phase `kind` of layer l. */
template <int M>
static __device__ __forceinline__ void product(const struct decode &a, struct block &b, int kind, int l) {
    const int K = inner(a, kind), units = units_of(a, kind), G = gridDim.x,
              begin = first_unit(l * PHASES + kind % PHASES);
    const int from = steps_from(K, b.warp), n = steps_from(K, b.warp + 1) - from, g = b.lane / 4,
              t = b.lane % 4;
    const int few = kind == MLP ? 1 : 2,
              low = kind == HEAD ? a.s.depth * 3 / 4 : n; /* log of the pairs of a group */
    const int pair = threadIdx.x & ((1 << few) - 1), m = (threadIdx.x >> few) % M,
              j = (threadIdx.x >> few) / M;
    const uint4 *x = g < a.M ? (const uint4 *)(x_of(a, b, g) + from * 16 + t * 4) : NULL;
    float *sums = (float *)(b.shared + a.s.sums);
#pragma unroll 1
    for (int u = begin; u < units; u += BATCH * G) {
        struct behind e = {};
        int count = 0;
        const bool mine = m < a.M && j < BATCH && u + j * G < units;
        if (mine) prepare(a, b, kind, l, m, u + j * G, pair, e);
        if (u > begin) __syncthreads(); /* the sums are free */
        else if (kind == OUT) bring_heads<M>(a, b, l);
        else if (kind == DOWN) bring_acts<M>(a, b, l);
        else bring_normed<M>(a, b, kind, l);
#pragma unroll 1
        for (int v = u; v < units && count < BATCH; v += G, count++) {
            float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (b.flight < low || b.flight < n) fill(a, b);
            multiply(a, b, d, n, x);
            if (g < a.M)
                *(float2 *)(sums + ((count * WARPS + b.warp) * a.M + g) * 8 + 2 * t) =
                    make_float2(d[0], d[1]);
        }
        __syncthreads();
        if (mine) finish(a, b, kind, l, m, u + j * G, j, pair, e);
    }
}

#endif
