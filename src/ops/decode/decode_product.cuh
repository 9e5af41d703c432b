/* decode_product.cuh -- the matrix products of a decoding step, with what stands before and behind each.
 *
 * A block owns groups of 8 rows of weights; its warps split the columns of every chunk and add up in order, so
 * that a row's result is the same in any batch. A step is 32 columns: lane (g, t) loads 16 bytes of row g at
 * column 8 t, four pairs, which are a whole A fragment where the first and third pair stand for row g and the
 * others for row g + 8. So x is a B fragment whose columns 2 m and 2 m + 1 have the first and third and the
 * other pairs of row m: lane (2 m + p, t) holds pairs 4 t + p and 4 t + p + 2 of a step, takes them itself when
 * they come, and lane (g, m) ends up with row g of the output, in two parts. An RMSNorm's factor belongs to the
 * whole row and comes in at the end. */
#ifndef HL_DECODE_PRODUCT_CUH
#define HL_DECODE_PRODUCT_CUH
#include "ops/decode/decode_stream.cuh"

enum { STEPS = HL_DECODE_STEPS };

/* This lane's pairs of a warp's steps of a chunk. */
struct columns {
    uint2 step[STEPS];
};

template <class D> static __device__ __forceinline__ const uint32_t *embedding(const D &a, int m) {
    return (const uint32_t *)(a.embed + (int64_t)a.ids[m] * a.d);
}
static __device__ __forceinline__ float square(uint32_t v) { return low(v) * low(v) + high(v) * high(v); }
static __device__ __forceinline__ float square(uint2 v) { return square(v.x) + square(v.y); }
static __device__ __forceinline__ uint32_t scaled(uint32_t v, float2 y) {
    return pack2(low(v) * y.x, high(v) * y.y);
}

/* ---- before: this lane's columns of the row it multiplies ---- */

/* Steps that this lane has of a chunk of that many columns. */
static __device__ __forceinline__ int x_row(const struct block &b) { return b.lane / 8; }
template <class D>
static __device__ __forceinline__ int steps_of(const D &a, const struct block &b, int columns) {
    return x_row(b) < a.M ? min(a.part, columns / 32 - b.warp * a.part) : 0;
}
/* The first of this lane's words, as the row has them. */
template <class D> static __device__ __forceinline__ int word_of(const D &a, const struct block &b) {
    return b.warp * a.part * 16 + b.lane % 4 * 4 + (b.lane >> 2 & 1);
}
template <class D>
static __device__ __forceinline__ const uint64_t *words_at(const D &a, const struct block &b,
                                                           const uint64_t *words) {
    return words + x_row(b) * a.row + swapped(word_of(a, b));
}
/* Sum over the 8 lanes of a row. */
static __device__ __forceinline__ float over_row(float s) {
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    return s + __shfl_xor_sync(0xffffffffu, s, 4);
}

/* The row, times the norm's weights; its factor is 1 / RMS of all the parts of squares. */
template <class D>
static __device__ __forceinline__ void bring_normed(const D &a, const struct block &b, int kind, int l,
                                                    struct columns &x) {
    const float *w = kind == HEAD ? a.final_norm
                     : kind == IN ? layer_of(a, b, l).attn_norm
                                  : layer_of(a, b, l).mlp_norm;
    const int n = steps_of(a, b, a.d);
    float2 y[STEPS][2]; /* comes while the words are waited for */
    float s = 0.0f;
    w += 2 * word_of(a, b);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        y[i][0] = y[i][1] = make_float2(0.0f, 0.0f);
        if (i < n) y[i][0] = *(const float2 *)(w + i * 32), y[i][1] = *(const float2 *)(w + i * 32 + 4);
    }
    if (kind == IN && l == 0) {
        const uint32_t *from = embedding(a, min(x_row(b), a.M - 1)) + word_of(a, b);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            x.step[i] = i < n ? make_uint2(from[i * 16], from[i * 16 + 2]) : make_uint2(0, 0);
    } else {
        const uint64_t *from = words_at(a, b, kind == MLP ? b.now + a.w_h : b.before + a.w_x);
        take_pairs<STEPS>(x.step, from, 16, n, b.number + (kind == MLP ? l : l - 1));
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        s += square(x.step[i]);
        x.step[i] = make_uint2(scaled(x.step[i].x, y[i][0]), scaled(x.step[i].y, y[i][1]));
    }
    s = over_row(s);
    if (b.lane % 8 == 0 && x_row(b) < a.M)
        ((float *)(b.shared + a.s.squares))[(b.norm * a.M + x_row(b)) * WARPS + b.warp] = s;
}

/* The heads' outputs, normed and gated. A step lies in one head; their squares meet in shared memory, and 8
 * lanes add those of a step's head. */
template <class D>
static __device__ __forceinline__ void bring_heads(const D &a, const struct block &b, int l,
                                                   struct columns &x) {
    const int n = steps_of(a, b, a.vv), m = x_row(b), steps = a.vv / 32, of_head = a.V / 32;
    const int first = b.warp * a.part, mine = min(first + b.lane / 8, steps - 1), head = mine / of_head;
    float *parts = (float *)(b.shared + a.s.parts), r[D::most];
    float2 y[STEPS][2];
    uint2 z[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) { /* these come while the words are waited for */
        const int h = __shfl_sync(0xffffffffu, head, i * 8);
        const float *w = layer_of(a, b, l).o_norm + 2 * word_of(a, b) + i * 32 - h * a.V;
        y[i][0] = y[i][1] = make_float2(0.0f, 0.0f);
        if (i < n) y[i][0] = *(const float2 *)w, y[i][1] = *(const float2 *)(w + 4);
    }
    take_pairs<STEPS>(x.step, words_at(a, b, b.now + a.w_o), 16, n, b.number + l);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const float s = over_row(square(x.step[i]));
        if (i < n && b.lane % 8 == 0) parts[m * steps + first + i] = s;
    }
    for (int i = 0; i < STEPS && a.gated; i++) {
        uint32_t v[2];
        take<2>(v, b.now + m * a.row + a.w_in + a.qk + a.vv / 2 + word_of(a, b) + i * 16, 2, i < n ? 2 : 0,
                b.number + l);
        z[i] = make_uint2(v[0], v[1]);
    }
    sync_block();
#pragma unroll
    for (int e = 0; e < D::most; e++) {
        float s = 0.0f;
        for (int i = b.lane % 8; i < of_head && e < a.M; i += 8) s += parts[e * steps + head * of_head + i];
        r[e] = rsqrtf(over_row(s) * a.one_V + a.eps);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        float f = 0.0f;
#pragma unroll
        for (int e = 0; e < D::most; e++) {
            const float factor = __shfl_sync(0xffffffffu, r[e], i * 8);
            if (m == e) f = factor;
        }
        float2 y0 = make_float2(f * y[i][0].x, f * y[i][0].y), y1 = make_float2(f * y[i][1].x, f * y[i][1].y);
        if (a.gated && i < n) {
            y0.x *= quick_silu(low(z[i].x)), y0.y *= quick_silu(high(z[i].x));
            y1.x *= quick_silu(low(z[i].y)), y1.y *= quick_silu(high(z[i].y));
        }
        x.step[i] = make_uint2(scaled(x.step[i].x, y0), scaled(x.step[i].y, y1));
    }
}

template <class D>
static __device__ __forceinline__ void bring_acts(const D &a, const struct block &b, int l,
                                                  struct columns *x) {
    const uint64_t *from = words_at(a, b, b.now + a.w_act);
    const uint32_t number = b.number + l;
    for (;;) { /* all chunks at once: one after another would be a trip to the chip's cache each */
        bool there = true;
#pragma unroll
        for (int c = 0; c < D::chunks; c++) {
            const int n = steps_of(a, b, min(a.I - c * a.width, a.width));
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                struct two w = {(uint64_t)number << 32, (uint64_t)number << 32};
                if (i < n) w = look_two(from + c * (a.width / 2) + i * 16);
                x[c].step[i] = make_uint2((uint32_t)w.x, (uint32_t)w.y);
                there = there && fresh(w.x, number) && fresh(w.y, number);
            }
        }
        if (there) return;
        look_again();
    }
}

/* ---- behind: what becomes of an output; a warp has a group, a lane one of its rows, 8 lanes each row of x ---- */

struct behind { /* fetched before the product */
    uint64_t x; /* a word of the residual stream; looked at again if it was not there yet */
    const uint64_t *x_at;
    float t[3]; /* tails of the convolution */
    float4 w;   /* and its weights */
    float *tail;
    int C;
};

template <class D>
static __device__ __forceinline__ void prepare(const D &a, const struct block &b, int kind, int l, int m,
                                               int row, struct behind &e) {
    if (kind == OUT && l == 0) e.x = embedding(a, m)[row / 2];
    if (kind == OUT && l > 0) e.x_at = b.before + m * a.row + a.w_x + swapped(row / 2);
    if (kind == DOWN) e.x_at = b.now + m * a.row + a.w_h + swapped(row / 2);
    if (e.x_at) e.x = look(e.x_at);
    if (kind == IN && row < a.a_at) {
        const int p = row < a.qk ? 0 : row < 2 * a.qk ? 1 : 2, c = row - p * a.qk;
        e.C = p < 2 ? a.qk : a.vv;
        e.tail = (float *)(state_of(a, b, l, m) + (p == 0 ? a.tail_q : p == 1 ? a.tail_k : a.tail_v)) + c;
        e.w = ((const float4 *)layer_of(a, b, l).conv[p])[c];
        for (int i = 0; i < 3; i++) e.t[i] = seg_of(a, b, m).pos > 0 ? e.tail[i * e.C] : 0.0f;
    }
}

/* All lanes of a warp, each with the output s of its row; pairs go as words, from the lane of the first. */
template <class D>
static __device__ __forceinline__ void put_in(const D &a, uint64_t *words, uint32_t number, int row, float s,
                                              bool mine, const struct behind &e) {
    const float x = round_bf16(s);
    float y = s;
    if (row < a.a_at) y = quick_silu(e.w.x * e.t[0] + e.w.y * e.t[1] + e.w.z * e.t[2] + e.w.w * x);
    const float other = __shfl_xor_sync(0xffffffffu, y, 1);
    if (!mine || row >= a.in_rows) return;
    if (row < a.a_at) {
        if (row % 2 == 0) give(words + a.w_in + row / 2, pack2(y, other), number);
        e.tail[0] = e.t[1], e.tail[e.C] = e.t[2], e.tail[2 * e.C] = x;
    } else if (row < a.z_at) {
        const int at = row < a.b_at ? row - a.a_at : a.HV + row - a.b_at;
        give(words + a.w_ab + at, __float_as_uint(x), number);
    } else if (row % 2 == 0) give(words + a.w_in + (a.a_at + row - a.z_at) / 2, pack2(y, other), number);
}
template <class D>
static __device__ __forceinline__ void hand_on(const D &a, const struct block &b, int kind, int l, int m,
                                               int unit, float s, bool mine, const struct behind &e) {
    const int g = b.lane % 8, row = unit * 8 + g;
    uint64_t *words = b.now + m * a.row;
    if (kind == IN) put_in(a, words, b.number + l, row, s, mine, e);
    else if (kind == HEAD) {
        if (mine && row < a.vocab) a.logits[(int64_t)m * a.vocab + row] = s;
    } else if (kind == MLP) {
        const float up = __shfl_xor_sync(0xffffffffu, s, 4);
        const float y = quick_silu(round_bf16(s)) * round_bf16(up),
                    other = __shfl_xor_sync(0xffffffffu, y, 1);
        if (mine && g < 4 && g % 2 == 0)
            give(words + a.w_act + swapped(unit * 2 + g / 2), pack2(y, other), b.number + l);
    } else {
        const float other = __shfl_xor_sync(0xffffffffu, s, 1);
        if (!mine || g % 2) return;
        const uint32_t number = b.number + (kind == OUT ? l - 1 : l);
        uint32_t x = (uint32_t)e.x;
        if (e.x_at && !fresh(e.x, number)) x = take_one(e.x_at, number);
        give(words + (kind == OUT ? a.w_h : a.w_x) + swapped(row / 2), pack2(low(x) + s, high(x) + other),
             b.number + l);
    }
}

/* The sum of some warps' parts here, of all of them over the lanes of the same row. */
static __device__ __forceinline__ float over_quarters(float s) {
    s += __shfl_xor_sync(0xffffffffu, s, 8);
    return s + __shfl_xor_sync(0xffffffffu, s, 16);
}
/* Group j of the batch, by one warp: lanes 8 m.. end up with row m. */
template <class D>
static __device__ __forceinline__ float sum_of(const D &a, const struct block &b, int kind, int j) {
    const int quarter = b.lane / 8, g = b.lane % 8;
    const float *sums = (const float *)(b.shared + a.s.sums) + b.turn * HL_DECODE_BATCH * WARPS * 8;
    const float *squares = (const float *)(b.shared + a.s.squares) + b.norm * a.M * WARPS;
    const bool normed = kind == IN || kind == MLP || kind == HEAD;
    float mine = 0.0f;
#pragma unroll
    for (int m = 0; m < D::most; m++) {
        if (m >= a.M) break;
        const float *p = sums + ((j * WARPS + quarter * 2) * D::most + m) * 8 + g;
        float s = p[0] + p[8 * D::most], r = 1.0f;
        if (normed) {
            const float2 q = *(const float2 *)(squares + m * WARPS + quarter * 2);
            r = q.x + q.y;
        }
        s = over_quarters(s);
        if (normed) s *= rsqrtf(over_quarters(r) * a.one_d + a.eps);
        if (m == quarter) mine = s;
    }
    return mine;
}
static_assert(WARPS == 8, "quarters of the warps");

/* ---- the product ---- */

struct weights {
    uint4 step[STEPS];
};
/* This lane's weights of the next piece, a chunk of that many columns; its place is free again. Steps that the
 * warp does not have are some other ones, which meet zeros. */
template <class D>
static __device__ __forceinline__ struct weights fetch(const D &a, struct block &b, int columns) {
    struct weights w;
    const int n = columns / 32 - b.warp * a.part;
    const char *from = place_at(a, b) + b.lane / 4 * a.apart + b.lane % 4 * 16;
    if (n > 0) from += b.warp * a.part * 64;
    barrier_wait(full(b), b.lap);
#pragma unroll
    for (int i = 0; i < STEPS; i++) w.step[i] = *(const uint4 *)(from + (i < n ? i * 64 : 0));
    __syncwarp();
    if (b.lane == 0) barrier_arrive(empty(b));
    next_place(a, b);
    return w;
}
static __device__ __forceinline__ void multiply(float (&d)[2][4], const struct weights &w,
                                                const struct columns &x) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) { /* accumulators in turn: one waits for itself */
        const uint32_t A[4] = {w.step[i].x, w.step[i].y, w.step[i].z, w.step[i].w};
        const uint32_t B[2] = {x.step[i].x, x.step[i].y};
        mma_bf16(d[i % 2], A, B);
    }
}

/* Phase `kind` of layer l. */
template <class D>
static __device__ __forceinline__ void product(const D &a, struct block &b, int kind, int l) {
    enum { BATCH = HL_DECODE_BATCH / D::most };
    const int K = inner(a, kind), units = units_of(a, kind), G = gridDim.x, begin = b.first;
    const int m = x_row(b), chunk = a.width;
    struct columns x[D::chunks];
    struct weights next;
#pragma unroll 1
    for (int first = begin; first < units; first += BATCH * G) {
        const int unit = first + b.warp * G;
        const bool has = b.warp < BATCH && unit < units, mine = has && m < a.M;
        float *sums = (float *)(b.shared + a.s.sums) +
                      ((b.turn * HL_DECODE_BATCH * WARPS + b.warp * D::most) + b.lane % 4) * 8 + b.lane / 4;
        struct behind e = {};
        if (mine) prepare(a, b, kind, l, m, unit * 8 + b.lane % 8, e);
        if (first == begin) {
            next = fetch(a, b, min(K, chunk));
            if (kind == OUT) bring_heads(a, b, l, x[0]);
            else if (kind == DOWN) bring_acts(a, b, l, x);
            else bring_normed(a, b, kind, l, x[0]);
        }
#pragma unroll 1
        for (int j = 0; j < BATCH && first + j * G < units; j++, sums += WARPS * D::most * 8) {
            const bool last = first + (j + 1) * G >= units;
            float d[2][4] = {};
#pragma unroll
            for (int c = 0; c < D::chunks; c++) {
                if (c * chunk >= K) break;
                const struct weights w = next;
                const int done = (c + 1) * chunk, left = done < K ? K - done : last ? 0 : K;
                if (left > 0) next = fetch(a, b, min(left, chunk));
                multiply(d, w, x[c]);
            }
            if (b.lane % 4 < a.M) *sums = (d[0][0] + d[0][3]) + (d[1][0] + d[1][3]);
        }
        sync_block();
        if (has) hand_on(a, b, kind, l, m, unit, sum_of(a, b, kind, b.warp), mine, e);
        b.turn ^= 1;
    }
    b.norm ^= 1;
}

#endif
