/* decode_product.cuh -- the matrix products of a decoding step, with what stands before and behind each.
 *
 * A block owns groups of 8 rows of weights; its warps split the columns of every chunk and add up in order, so
 * that a row's result is the same in any batch. A step is 32 columns: lane (g, t) loads 16 bytes of row g at
 * column 8 t, four pairs, which are a whole A fragment where the first and third pair stand for row g and the
 * others for row g + 8. So x is a B fragment whose columns 2 m and 2 m + 1 have the first and third and the
 * other pairs of row m: lane (2 m + p, t) holds pairs 4 t + p and 4 t + p + 2 of a step, and lane (g, m) ends up
 * with row g of the output, in two parts; columns of rows that are not there hold anything. An RMSNorm's factor
 * belongs to the whole row and comes in at the end. */
#ifndef HL_DECODE_PRODUCT_CUH
#define HL_DECODE_PRODUCT_CUH
#include "ops/decode/decode_bring.cuh"

/* ---- behind: what becomes of an output; a warp has a group, a lane one of its rows, 8 lanes each row of x ---- */

struct behind { /* fetched before the product */
    uint64_t x; /* a word of the residual stream; looked at again if it was not there yet */
    const uint64_t *x_at;
    float t[3]; /* tails of the convolution */
    float4 w;   /* and its weights */
    float *tail;
    int C;
};

template <int kind, class D>
static __device__ __forceinline__ void prepare(const D &a, const struct block &b, int l, int m, int row,
                                               struct behind &e) {
    if (kind == OUT && l == 0) e.x = embedding(a, b, m)[row / 2];
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
    const float x = rounded(s);
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
/* Without its last bit, wherever it goes: that says on the host whether it is new. */
template <class D>
static __device__ __forceinline__ void put_logit(const D &a, struct block &b, int m, int row, float s) {
    const uint32_t bits = __float_as_uint(s) & ~1u;
    if (a.logits) ((uint32_t *)a.logits)[(int64_t)m * a.vocab + row] = bits | a.tag;
    if (!a.verdict) return;
    const uint64_t v = is_finite(s) ? order_of(__uint_as_float(bits), row) : UINT64_MAX;
    if (v > b.best) b.best = v;
}
template <int kind, class D>
static __device__ __forceinline__ void hand_on(const D &a, struct block &b, int l, int m, int unit, float s,
                                               bool mine, const struct behind &e) {
    const int g = b.lane % 8, row = unit * 8 + g;
    uint64_t *words = b.now + m * a.row;
    if (kind == IN) put_in(a, words, b.number + l, row, s, mine, e);
    else if (kind == HEAD) {
        if (mine && row < a.vocab) put_logit(a, b, m, row, s);
    } else if (kind == MLP) {
        const float up = __shfl_xor_sync(0xffffffffu, s, 4);
        const float y = quick_silu(rounded(s)) * rounded(up), other = __shfl_xor_sync(0xffffffffu, y, 1);
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
/* 1 / RMS of the head that warp w's columns are of. */
template <class D>
static __device__ __forceinline__ float head_factor(const D &a, const float *squares, int w) {
    const int n = a.V / (32 * a.part), first = w / n * n;
    float s = 0.0f;
#pragma unroll 2
    for (int i = 0; i < n && first + i < WARPS; i++) s += squares[first + i];
    return rsqrtf(s * a.one_V + a.eps);
}
/* Group j of the batch, by one warp: lanes 8 m.. end up with row m. */
template <int kind, class D>
static __device__ __forceinline__ float sum_of(const D &a, const struct block &b, int j) {
    const int quarter = b.lane / 8, g = b.lane % 8;
    const float *sums = (const float *)(b.shared + a.s.sums) + b.turn * HL_DECODE_BATCH * WARPS * 8;
    const float *squares = (const float *)(b.shared + a.s.squares) + b.norm * a.M * WARPS;
    constexpr bool normed = kind == IN || kind == MLP || kind == HEAD;
    float mine = 0.0f;
#pragma unroll
    for (int m = 0; m < D::most; m++) {
        if (m >= a.M) break;
        const float *p = sums + ((j * WARPS + quarter * 2) * D::most + m) * 8 + g;
        float s = p[0], t = p[8 * D::most], r = 1.0f;
        if (kind == OUT && a.whole) {
            s *= head_factor(a, squares + m * WARPS, quarter * 2);
            t *= head_factor(a, squares + m * WARPS, quarter * 2 + 1);
        }
        if (normed) {
            const float2 q = *(const float2 *)(squares + m * WARPS + quarter * 2);
            r = q.x + q.y;
        }
        s = over_quarters(s + t);
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
    barrier_wait(full(b, b.lane / 16), b.lap); /* where this lane's row is */
#pragma unroll
    for (int i = 0; i < STEPS; i++) w.step[i] = *(const uint4 *)(from + (i < n ? i * 64 : 0));
    warp_arrive(empty(b), b.lane);
    next_place(a, b);
    return w;
}
template <int N> struct group { struct weights piece[N]; };
/* All pieces of the next group. */
template <int kind, class D, int N>
static __device__ __forceinline__ void fetch_group(const D &a, struct block &b, struct group<N> &w) {
    const int K = inner(a, kind);
#pragma unroll
    for (int c = 0; c < N; c++)
        w.piece[c] = c == 0 || c * a.width < K ? fetch(a, b, min(K - c * a.width, a.width)) : w.piece[0];
}
template <int TURNS>
static __device__ __forceinline__ void multiply(float (&d)[TURNS][4], const struct weights &w,
                                                const struct columns &x) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t A[4] = {w.step[i].x, w.step[i].y, w.step[i].z, w.step[i].w};
        const uint32_t B[2] = {x.step[i].x, x.step[i].y};
        mma_bf16(d[i % TURNS], A, B);
    }
}

/* Phase `kind` of layer l. While x is awaited, the weights of the first groups come to registers. */
template <int kind, class D>
static __device__ __forceinline__ void product(const D &a, struct block &b, int l) {
    enum {
        ROOM = HL_DECODE_BATCH / D::most,
        PIECES = kind == DOWN ? D::chunks : 1,
        WANT = kind == DOWN || kind == OUT ? 1
               : kind == HEAD              ? 2
               : kind == MLP               ? 4
                                           : 3,
        GROUPS = kind == IN     ? D::in_groups
                 : kind == MLP  ? D::mlp_groups
                 : kind == HEAD ? 0
                                : D::out_groups,
        SOME = GROUPS && GROUPS < WANT ? GROUPS : WANT,
        AHEAD = SOME < ROOM ? SOME : ROOM,
        BATCH = ROOM / AHEAD * AHEAD,
        AT_ONCE = GROUPS && GROUPS <= AHEAD, /* there are no more than these */
        ONE_BATCH = GROUPS && GROUPS <= BATCH,
        TURNS = WANT == 1 ? 2 : 1 /* accumulators: one alone would wait for itself */
    };
    const int units = units_of(a, kind), G = gridDim.x, m = b.lane / 8;
    int first = b.first, unit = first + b.warp * G, ahead = first;
    b.norm ^= 1;
    if (first >= units) return;
    bool has = b.warp < BATCH && unit < units;
    struct behind e = {};
    if (has && m < a.M) prepare<kind>(a, b, l, m, unit * 8 + b.lane % 8, e);
    struct columns x[PIECES];
    struct group<PIECES> w[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++, ahead += G) {
        if (ahead < units) fetch_group<kind>(a, b, w[i]);
        else w[i] = w[0]; /* not used, but registers must hold something */
    }
    float s = 0.0f;
    if constexpr (kind == OUT) s = bring_heads(a, b, l, x[0]);
    else if constexpr (kind == DOWN) bring_acts(a, b, l, x);
    else s = bring_normed<kind>(a, b, l, x[0]);
    for (bool begin = true;; begin = false) {
        float *sums = (float *)(b.shared + a.s.sums) +
                      ((b.turn * HL_DECODE_BATCH * WARPS + b.warp * D::most) + b.lane % 4) * 8 + b.lane / 4;
#pragma unroll 1
        for (int j = 0; j < (AT_ONCE ? 1 : BATCH) && first + j * G < units; j += AHEAD) {
            float d[AHEAD][TURNS][4] = {};
#pragma unroll
            for (int i = 0; i < AHEAD; i++) { /* one group does not wait for another */
#pragma unroll
                for (int c = 0; c < PIECES; c++)
                    if (c == 0 || c * a.width < inner(a, kind)) multiply(d[i], w[i].piece[c], x[c]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++, ahead += G)
                if (!AT_ONCE && ahead < units) fetch_group<kind>(a, b, w[i]);
#pragma unroll
            for (int i = 0; i < AHEAD; i++, sums += WARPS * D::most * 8) {
                float s = d[i][0][0] + d[i][0][3];
                if (TURNS > 1) s += d[i][TURNS - 1][0] + d[i][TURNS - 1][3];
                if (b.lane % 4 < a.M) *sums = s;
            }
        }
        if (kind != DOWN && begin) put_squares(a, b, s);
        sync_block();
        if (has) hand_on<kind>(a, b, l, m, unit, sum_of<kind>(a, b, b.warp), m < a.M, e);
        b.turn ^= 1;
        if (ONE_BATCH) return;
        first += BATCH * G, unit += BATCH * G;
        if (first >= units) return;
        has = b.warp < BATCH && unit < units;
        if (has && m < a.M) prepare<kind>(a, b, l, m, unit * 8 + b.lane % 8, e);
    }
}

#endif
