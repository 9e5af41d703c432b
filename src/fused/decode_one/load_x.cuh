/* load_x.cuh -- before a product of a decoding step: this lane's columns of the row that it multiplies.
 *
 * The factor of an RMSNorm belongs to a whole row, or to a head's part of it, and comes in behind the product
 * (sum_of): here only squares are added up. */
#ifndef HL_DECODE_BRING_CUH
#define HL_DECODE_BRING_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/token_wait.cuh"
#include "fused/decode_one/weight_stream.cuh"

enum { STEPS = HL_DECODE_STEPS };

/* This lane's pairs of a warp's steps of a chunk. */
struct columns {
    uint2 step[STEPS];
};

template <class D>
static __device__ __forceinline__ const uint32_t *embedding(const D &a, const struct block &b, int m) {
    return (const uint32_t *)(a.embed + (int64_t)(D::most == 1 ? *id_of(a, b) : a.ids[m]) * a.d);
}
static __device__ __forceinline__ float square(uint2 v) { return square(v.x) + square(v.y); }
static __device__ __forceinline__ uint32_t scaled(uint32_t v, float2 y) {
    return pack2(low(v) * y.x, high(v) * y.y);
}

/* Who takes which words of x: where there is one row, a lane those of one step, which then go round the warp;
 * else all steps of a row, which are its own. 8 lanes have a step's 16 pairs. */
template <class D> struct takes { static constexpr int steps = D::most == 1 ? 1 : STEPS; /* a lane's */ };
template <class D> static __device__ __forceinline__ int x_row(const struct block &b) {
    return D::most == 1 ? 0 : b.lane / 8;
}
template <class D> static __device__ __forceinline__ int x_step(const struct block &b) {
    return D::most == 1 ? b.lane / 8 : 0;
}
/* Steps that this lane takes of a chunk of that many columns. */
template <class D>
static __device__ __forceinline__ int steps_of(const D &a, const struct block &b, int columns) {
    const int n = min(a.part, columns / 32 - b.warp * a.part);
    return D::most == 1 ? (b.lane / 8 < n ? 1 : 0) : b.lane / 8 < a.M ? n : 0;
}
/* The first of this lane's words, as the row has them. */
template <class D> static __device__ __forceinline__ int word_of(const D &a, const struct block &b) {
    return (b.warp * a.part + x_step<D>(b)) * 16 + b.lane % 4 * 4 + (b.lane >> 2 & 1);
}
template <class D>
static __device__ __forceinline__ const uint64_t *words_at(const D &a, const struct block &b,
                                                           const uint64_t *words) {
    return words + x_row<D>(b) * a.row + swapped(word_of(a, b));
}
/* Every step to the lanes that multiply it. */
template <int N>
static __device__ __forceinline__ void spread(const struct block &b, const uint2 (&v)[N], struct columns &x) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (N == STEPS) x.step[i] = v[i % N];
        else
            x.step[i] = make_uint2(__shfl_sync(0xffffffffu, v[0].x, i * 8 + b.lane % 8),
                                   __shfl_sync(0xffffffffu, v[0].y, i * 8 + b.lane % 8));
    }
}
/* Sum over the 8 lanes of a row or step. */
static __device__ __forceinline__ float over_row(float s) {
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    return s + __shfl_xor_sync(0xffffffffu, s, 4);
}

/* This lane's part of the row's squares becomes the warp's. */
template <class D>
static __device__ __forceinline__ void put_squares(const D &a, const struct block &b, float s) {
    s = over_row(s);
    if (D::most == 1) {
        s += __shfl_xor_sync(0xffffffffu, s, 8);
        s += __shfl_xor_sync(0xffffffffu, s, 16);
    }
    if (b.lane % 8 == 0 && b.lane / 8 < a.M)
        ((float *)(b.shared + a.s.squares))[(b.norm * a.M + b.lane / 8) * WARPS + b.warp] = s;
}

/* This lane's words times the norm's weights, to those that multiply them; gives the squares. */
template <int N>
static __device__ __forceinline__ float scale_columns(const struct block &b, uint2 (&v)[N],
                                                      const float2 (&y)[N][2], struct columns &x) {
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        s += square(v[i]);
        v[i] = make_uint2(scaled(v[i].x, y[i][0]), scaled(v[i].y, y[i][1]));
    }
    spread(b, v, x);
    return s;
}

/* The row, times the norm's weights; gives the squares. */
template <int kind, class D>
static __device__ __forceinline__ float bring_normed(const D &a, const struct block &b, int l,
                                                     struct columns &x) {
    enum { N = takes<D>::steps };
    const float *w = kind == HEAD ? a.final_norm
                     : kind == IN ? layer_of(a, b, l).attn_norm
                                  : layer_of(a, b, l).mlp_norm;
    const int n = steps_of(a, b, a.d);
    float2 y[N][2]; /* comes while the words are waited for */
    uint2 v[N];
    w += 2 * word_of(a, b);
#pragma unroll
    for (int i = 0; i < N; i++) {
        y[i][0] = y[i][1] = make_float2(0.0f, 0.0f);
        if (i < n) y[i][0] = *(const float2 *)(w + i * 32), y[i][1] = *(const float2 *)(w + i * 32 + 4);
    }
    if (kind == IN && l == 0) {
        const uint32_t *from = embedding(a, b, min(x_row<D>(b), a.M - 1)) + word_of(a, b);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = i < n ? make_uint2(from[i * 16], from[i * 16 + 2]) : make_uint2(0, 0);
    } else {
        const uint64_t *from = words_at(a, b, kind == MLP ? b.now + a.w_h : b.before + a.w_x);
        const uint32_t number = b.number + (kind == MLP ? l : l - 1);
        if (D::sparing) take_missing(v, from, 16, n, number);
        else take_pairs<N>(v, from, 16, n, number);
    }
    return scale_columns(b, v, y, x);
}

/* The heads' own factors, where a warp's columns are not all of one head: their squares meet in shared memory, and
 * 8 lanes add those of a step's head. */
template <class D, int N>
static __device__ __forceinline__ void norm_heads(const D &a, const struct block &b, const uint2 (&v)[N],
                                                  float2 (&y)[N][2]) {
    const int n = steps_of(a, b, a.vv), steps = a.vv / 32, of_head = a.V / 32,
              first = b.warp * a.part + x_step<D>(b);
    float *parts = (float *)(b.shared + a.s.parts) + x_row<D>(b) * steps;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = over_row(square(v[i]));
        if (i < n && b.lane % 8 == 0) parts[first + i] = s;
    }
    sync_block();
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s = 0.0f;
        for (int j = b.lane % 8; j < of_head && i < n; j += 8)
            s += parts[(first + i) / of_head * of_head + j];
        const float f = rsqrtf(over_row(s) * a.one_V + a.eps);
        y[i][0].x *= f, y[i][0].y *= f, y[i][1].x *= f, y[i][1].y *= f;
    }
}

/* The heads' outputs, times the norm's weights, gated; gives the squares. */
template <class D>
static __device__ __forceinline__ float bring_heads(const D &a, const struct block &b, int l,
                                                    struct columns &x) {
    enum { N = takes<D>::steps };
    const int n = steps_of(a, b, a.vv);
    float2 y[N][2];
    uint2 v[N];
#pragma unroll
    for (int i = 0; i < N; i++) { /* these come while the words are waited for */
        const float *w = layer_of(a, b, l).o_norm + (2 * word_of(a, b) + i * 32) % a.V;
        y[i][0] = y[i][1] = make_float2(0.0f, 0.0f);
        if (i < n) y[i][0] = *(const float2 *)w, y[i][1] = *(const float2 *)(w + 4);
    }
    if (a.gated) { /* so do the gates, which were there before */
        const uint64_t *from = b.now + x_row<D>(b) * a.row + a.w_in + a.qk + a.vv / 2 + word_of(a, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t z[2];
            if (D::sparing) take_missing(z, from + i * 16, 2, i < n ? 2 : 0, b.number + l);
            else take<2>(z, from + i * 16, 2, i < n ? 2 : 0, b.number + l);
            y[i][0].x *= fast_silu(low(z[0])), y[i][0].y *= fast_silu(high(z[0]));
            y[i][1].x *= fast_silu(low(z[1])), y[i][1].y *= fast_silu(high(z[1]));
        }
    }
    if (D::sparing) take_missing(v, words_at(a, b, b.now + a.w_o), 16, n, b.number + l);
    else take_pairs<N>(v, words_at(a, b, b.now + a.w_o), 16, n, b.number + l);
    if (!a.whole) norm_heads(a, b, v, y);
    return scale_columns(b, v, y, x);
}

template <class D>
static __device__ __forceinline__ void bring_acts(const D &a, const struct block &b, int l,
                                                  struct columns *x) {
    enum { N = takes<D>::steps };
    const uint64_t *from = words_at(a, b, b.now + a.w_act);
    const uint32_t number = b.number + l;
    uint2 v[D::chunks][N];
    if (D::sparing) {
        int n[D::chunks];
#pragma unroll
        for (int c = 0; c < D::chunks; c++) n[c] = steps_of(a, b, min(a.I - c * a.width, a.width));
        take_missing(v, from, a.width / 2, 16, n, number);
    } else {
        for (;;) { /* all chunks at once: one after another would be a trip to the chip's cache each */
            bool there = true;
#pragma unroll
            for (int c = 0; c < D::chunks; c++) {
                const int n = steps_of(a, b, min(a.I - c * a.width, a.width));
#pragma unroll
                for (int i = 0; i < N; i++) {
                    struct two w = {(uint64_t)number << 32, (uint64_t)number << 32};
                    if (i < n) w = look_two(from + c * (a.width / 2) + i * 16);
                    v[c][i] = make_uint2((uint32_t)w.x, (uint32_t)w.y);
                    there = there && fresh(w.x, number) && fresh(w.y, number);
                }
            }
            if (all_lanes(there)) break;
            look_again();
        }
    }
#pragma unroll
    for (int c = 0; c < D::chunks; c++) spread(b, v[c], x[c]);
}

#endif
