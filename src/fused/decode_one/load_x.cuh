/* load_x.cuh -- before a product of a decoding step: waits for the words of x and loads this lane's
 * columns.
 *
 * The factor of an RMSNorm applies to a whole row, or to one head's part of it, and is applied after the product
 * (reduce_unit); only the squares are summed here. */
#ifndef HL_LOAD_X_CUH
#define HL_LOAD_X_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/token_wait.cuh"
#include "fused/decode_one/weight_stream.cuh"

enum { STEPS = HL_DECODE_STEPS };

/* This lane's pairs of its warp's steps of a piece. */
struct columns {
    uint2 step[STEPS];
};

template <class D>
static __device__ __forceinline__ const uint32_t *embedding(const D &a, const struct block &b, int m) {
    return (const uint32_t *)(a.embed + (int64_t)(D::max_rows == 1 ? *token_id(a, b) : a.ids[m]) * a.d);
}
static __device__ __forceinline__ float square(uint2 v) { return square(v.x) + square(v.y); }
static __device__ __forceinline__ uint32_t scaled(uint32_t v, float2 y) { return pack2(low(v) * y.x, high(v) * y.y); }

/* The words of x that a lane polls. With one row: those of one step, which the warp then shuffles. With several: all
 * steps of the lane's own row. 8 lanes hold the 16 pairs of a step. */
template <class D> struct x_words { static constexpr int steps = D::max_rows == 1 ? 1 : STEPS; /* of a lane */ };
template <class D> static __device__ __forceinline__ int x_row(const struct block &b) {
    return D::max_rows == 1 ? 0 : b.lane / 8;
}
template <class D> static __device__ __forceinline__ int x_step(const struct block &b) {
    return D::max_rows == 1 ? b.lane / 8 : 0;
}
/* Steps of a piece of that many columns that this lane polls. */
template <class D> static __device__ __forceinline__ int steps_of(const D &a, const struct block &b, int columns) {
    const int n = min(a.warp_steps, columns / 32 - b.warp * a.warp_steps);
    return D::max_rows == 1 ? (b.lane / 8 < n ? 1 : 0) : b.lane / 8 < a.M ? n : 0;
}
/* Index of this lane's first word, before swizzling. */
template <class D> static __device__ __forceinline__ int word_of(const D &a, const struct block &b) {
    return (b.warp * a.warp_steps + x_step<D>(b)) * 16 + b.lane % 4 * 4 + (b.lane >> 2 & 1);
}
template <class D>
static __device__ __forceinline__ const uint64_t *words_at(const D &a, const struct block &b, const uint64_t *words) {
    return words + x_row<D>(b) * a.row_words + swizzled(word_of(a, b));
}
/* Shuffles every step to the lanes that multiply it. */
template <int N>
static __device__ __forceinline__ void to_columns(const struct block &b, const uint2 (&v)[N], struct columns &x) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (N == STEPS) x.step[i] = v[i % N];
        else
            x.step[i] = make_uint2(__shfl_sync(0xffffffffu, v[0].x, i * 8 + b.lane % 8),
                                   __shfl_sync(0xffffffffu, v[0].y, i * 8 + b.lane % 8));
    }
}
/* Sum over the 8 lanes of a row or a step. */
static __device__ __forceinline__ float sum_over_8(float s) {
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    return s + __shfl_xor_sync(0xffffffffu, s, 4);
}

/* Sums this lane's squares over the row's lanes and stores the warp's part. */
template <class D> static __device__ __forceinline__ void store_squares(const D &a, const struct block &b, float s) {
    s = sum_over_8(s);
    if (D::max_rows == 1) {
        s += __shfl_xor_sync(0xffffffffu, s, 8);
        s += __shfl_xor_sync(0xffffffffu, s, 16);
    }
    if (b.lane % 8 == 0 && b.lane / 8 < a.M)
        ((float *)(b.shared + a.s.squares))[(b.squares_half * a.M + b.lane / 8) * WARPS + b.warp] = s;
}

/* Multiplies this lane's words by the norm's weights, distributes them and returns the sum of squares. */
template <int N>
static __device__ __forceinline__ float scale_columns(const struct block &b, uint2 (&v)[N], const float2 (&y)[N][2],
                                                      struct columns &x) {
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        s += square(v[i]);
        v[i] = make_uint2(scaled(v[i].x, y[i][0]), scaled(v[i].y, y[i][1]));
    }
    to_columns(b, v, x);
    return s;
}

/* x of IN, MLP and HEAD: the residual stream times the norm's weights. Returns the sum of squares. */
template <int kind, class D>
static __device__ __forceinline__ float load_normed(const D &a, const struct block &b, int l, struct columns &x) {
    enum { N = x_words<D>::steps };
    const float *w = kind == HEAD ? a.final_norm
                     : kind == IN ? layer_of(a, b, l).attn_norm
                                  : layer_of(a, b, l).mlp_norm;
    const int n = steps_of(a, b, a.d);
    float2 y[N][2]; /* loads overlap the wait for the words */
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
        for (int i = 0; i < N; i++) v[i] = i < n ? make_uint2(from[i * 16], from[i * 16 + 2]) : make_uint2(0, 0);
    } else {
        const uint64_t *from = words_at(a, b, kind == MLP ? b.words + a.w_h : b.last_words + a.w_x);
        const uint32_t epoch = b.epoch + (kind == MLP ? l : l - 1);
        wait_for<D>(v, from, 16, n, epoch);
    }
    return scale_columns(b, v, y, x);
}

/* Applies the factors of the heads, for models where a warp's columns span more than one head: the squares are
 * exchanged in shared memory, and 8 lanes sum those of a step's head. */
template <class D, int N>
static __device__ __forceinline__ void scale_heads(const D &a, const struct block &b, const uint2 (&v)[N],
                                                   float2 (&y)[N][2]) {
    const int n = steps_of(a, b, a.vv), steps = a.vv / 32, of_head = a.V / 32,
              first = b.warp * a.warp_steps + x_step<D>(b);
    float *parts = (float *)(b.shared + a.s.parts) + x_row<D>(b) * steps;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = sum_over_8(square(v[i]));
        if (i < n && b.lane % 8 == 0) parts[first + i] = s;
    }
    sync_block();
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s = 0.0f;
        for (int j = b.lane % 8; j < of_head && i < n; j += 8) s += parts[(first + i) / of_head * of_head + j];
        const float f = rsqrtf(sum_over_8(s) * a.inv_V + a.eps);
        y[i][0].x *= f, y[i][0].y *= f, y[i][1].x *= f, y[i][1].y *= f;
    }
}

/* The output gate: KDA's is a sigmoid. */
template <class D> static __device__ __forceinline__ float gate_of(float z) {
    return D::rule == HL_DECODE_KDA ? fast_sigmoid_div(z) : fast_silu_div(z);
}
/* x of OUT: the heads' outputs times the norm's weights, gated. Returns the sum of squares. */
template <class D>
static __device__ __forceinline__ float load_heads(const D &a, const struct block &b, int l, struct columns &x) {
    enum { N = x_words<D>::steps };
    const int n = steps_of(a, b, a.vv);
    float2 y[N][2];
    uint2 v[N];
#pragma unroll
    for (int i = 0; i < N; i++) { /* these loads overlap the wait for the words */
        y[i][0] = y[i][1] = make_float2(1.0f, 1.0f);
        if (D::rule == HL_DECODE_ATTENTION) continue; /* no norm */
        const int column = 2 * word_of(a, b) + i * 32;
        const float *w = layer_of(a, b, l).o_norm + (D::rule == HL_DECODE_GSA ? column : column % a.V);
        y[i][0] = y[i][1] = make_float2(0.0f, 0.0f);
        if (i < n) y[i][0] = *(const float2 *)w, y[i][1] = *(const float2 *)(w + 4);
    }
    if (a.gated) { /* so do the gates, published in IN */
        const uint64_t *from = b.words + x_row<D>(b) * a.row_words + z_words(a) + word_of(a, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t z[2];
            wait_for<D>(z, from + i * 16, 2, i < n ? 2 : 0, b.epoch + l);
            y[i][0].x *= gate_of<D>(low(z[0])), y[i][0].y *= gate_of<D>(high(z[0]));
            y[i][1].x *= gate_of<D>(low(z[1])), y[i][1].y *= gate_of<D>(high(z[1]));
        }
    }
    wait_for<D>(v, words_at(a, b, b.words + a.w_o), 16, n, b.epoch + l);
    if (D::rule != HL_DECODE_GSA && D::rule != HL_DECODE_ATTENTION && !a.head_per_warp) scale_heads(a, b, v, y);
    return scale_columns(b, v, y, x);
}

/* x of DOWN. */
template <class D>
static __device__ __forceinline__ void load_acts(const D &a, const struct block &b, int l, struct columns *x) {
    enum { N = x_words<D>::steps };
    const uint64_t *from = words_at(a, b, b.words + a.w_act);
    const uint32_t epoch = b.epoch + l;
    uint2 v[D::pieces][N];
    if (D::poll_missing) {
        int n[D::pieces];
#pragma unroll
        for (int c = 0; c < D::pieces; c++) n[c] = steps_of(a, b, min(a.I - c * a.width, a.width));
        wait_for_missing(v, from, a.width / 2, 16, n, epoch);
    } else {
        for (;;) { /* all pieces at once: one by one, each would cost another L2 round trip */
            bool there = true;
#pragma unroll
            for (int c = 0; c < D::pieces; c++) {
                const int n = steps_of(a, b, min(a.I - c * a.width, a.width));
#pragma unroll
                for (int i = 0; i < N; i++) {
                    struct word_pair w = {(uint64_t)epoch << 32, (uint64_t)epoch << 32};
                    if (i < n) w = poll_pair(from + c * (a.width / 2) + i * 16);
                    v[c][i] = make_uint2((uint32_t)w.x, (uint32_t)w.y);
                    there = there && is_current(w.x, epoch) && is_current(w.y, epoch);
                }
            }
            if (warp_all(there)) break;
            spin();
        }
    }
#pragma unroll
    for (int c = 0; c < D::pieces; c++) to_columns(b, v[c], x[c]);
}

#endif
