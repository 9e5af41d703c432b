/* gemv.cuh -- the matrix products of a decoding step.
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
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/phase_epilogue.cuh"

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
    mbarrier_wait(full(b, b.lane / 16), b.lap); /* where this lane's row is */
#pragma unroll
    for (int i = 0; i < STEPS; i++) w.step[i] = *(const uint4 *)(from + (i < n ? i * 64 : 0));
    mbarrier_arrive_warp(empty(b), b.lane);
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

/* How a phase's groups are taken: AHEAD at a time, BATCH between two sums over the warps. */
template <int kind, class D> struct plan {
    enum {
        ROOM = HL_DECODE_BATCH / D::most,
        PIECES = kind == DOWN ? D::chunks : 1,
        WANT = kind == DOWN || kind == OUT ? 1
               : kind == HEAD              ? 2
               : kind == MLP               ? 6
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
};
/* Phase `kind` of layer l. While x is awaited, the weights of the first groups come to registers. */
template <int kind, class D> static __device__ __forceinline__ void gemv(const D &a, struct block &b, int l) {
    typedef struct plan<kind, D> plan;
    enum { PIECES = plan::PIECES, AHEAD = plan::AHEAD, BATCH = plan::BATCH, TURNS = plan::TURNS };
    const int units = units_of(a, kind), G = gridDim.x, m = b.lane / 4, row = b.lane % 4 * 2;
    int first = b.first, unit = first + b.warp * G, ahead = first;
    b.norm ^= 1;
    if (first >= units) return;
    bool has = b.warp < BATCH && unit < units;
    struct behind e = {};
    if (has && m < a.M) prepare<kind>(a, b, l, m, unit * 8 + row, e);
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
        for (int j = 0; j < (plan::AT_ONCE ? 1 : BATCH) && first + j * G < units; j += AHEAD) {
            float d[AHEAD][TURNS][4] = {};
#pragma unroll
            for (int i = 0; i < AHEAD; i++) { /* one group does not wait for another */
#pragma unroll
                for (int c = 0; c < PIECES; c++)
                    if (c == 0 || c * a.width < inner(a, kind)) multiply(d[i], w[i].piece[c], x[c]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++, ahead += G)
                if (!plan::AT_ONCE && ahead < units) fetch_group<kind>(a, b, w[i]);
#pragma unroll
            for (int i = 0; i < AHEAD; i++, sums += WARPS * D::most * 8) {
                float s = d[i][0][0] + d[i][0][3];
                if (TURNS > 1) s += d[i][TURNS - 1][0] + d[i][TURNS - 1][3];
                if (b.lane % 4 < a.M) *sums = s;
            }
        }
        if (kind != DOWN && begin) put_squares(a, b, s);
        sync_block();
        if (has) hand_on<kind>(a, b, l, m, unit, sum_of<kind>(a, b, b.warp, min(m, a.M - 1)), m < a.M, e);
        b.turn ^= 1;
        if (plan::ONE_BATCH) return;
        first += BATCH * G, unit += BATCH * G;
        if (first >= units) return;
        has = b.warp < BATCH && unit < units;
        if (has && m < a.M) prepare<kind>(a, b, l, m, unit * 8 + row, e);
    }
}

#endif
