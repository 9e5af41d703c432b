/* gemv.cuh -- the matrix products of a decoding step.
 *
 * A block owns units of 8 rows of weights. Its warps split the columns of every piece, and their sums are added in a
 * fixed order, so a row's result does not depend on the number of rows. A step is 32 columns:
 * lane (g, t) loads 16 bytes of row g at column 8 t. Those four pairs are a whole A fragment of
 * mma.m16n8k16 if the first and third pair are taken for row g and the other two for row g + 8. So x is a
 * B fragment in which columns 2 m and 2 m + 1 hold the first and third, and the other pairs of row m: lane
 * (2 m + p, t) holds pairs 4 t + p and 4 t + p + 2 of a step. Lane (g, m) ends up with row g of the output
 * in two parts; columns of absent rows hold garbage. The factor of an RMSNorm belongs to the whole row and
 * is applied at the end. */
#ifndef HL_GEMV_CUH
#define HL_GEMV_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/phase_epilogue.cuh"

struct weights {
    uint4 step[STEPS];
};
/* Loads this lane's weights of the next piece, which has that many columns, then frees the stage. Steps beyond the
 * warp's share load other data, which is multiplied by zeros. */
template <class D>
static __device__ __forceinline__ struct weights load_piece(const D &a, struct block &b, int columns) {
    struct weights w;
    const int n = columns / 32 - b.warp * a.warp_steps;
    const char *from = stage_at(a, b) + b.lane / 4 * a.stride + b.lane % 4 * 16;
    if (n > 0) from += b.warp * a.warp_steps * 64;
    mbarrier_wait(full(b, b.lane / 16), b.parity); /* the half that has this lane's row */
#pragma unroll
    for (int i = 0; i < STEPS; i++) w.step[i] = *(const uint4 *)(from + (i < n ? i * 64 : 0));
    mbarrier_arrive_warp(empty(b), b.lane);
    next_stage(a, b);
    return w;
}
template <int N> struct unit_weights { struct weights piece[N]; };
/* All pieces of the next unit. */
template <int kind, class D, int N>
static __device__ __forceinline__ void load_unit(const D &a, struct block &b, struct unit_weights<N> &w) {
    const int K = inner_size(a, kind);
#pragma unroll
    for (int c = 0; c < N; c++)
        w.piece[c] = c == 0 || c * a.width < K ? load_piece(a, b, min(K - c * a.width, a.width)) : w.piece[0];
}
template <int ACCS>
static __device__ __forceinline__ void multiply(float (&d)[ACCS][4], const struct weights &w, const struct columns &x) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t A[4] = {w.step[i].x, w.step[i].y, w.step[i].z, w.step[i].w};
        const uint32_t B[2] = {x.step[i].x, x.step[i].y};
        mma_bf16(d[i % ACCS], A, B);
    }
}

/* How a phase processes its units: AHEAD of them in registers at a time, PER_SUM between reductions over the warps. */
template <int kind, class D> struct plan {
    enum {
        MOST = HL_DECODE_UNITS / D::max_rows,
        PIECES = kind == DOWN ? D::pieces : 1,
        WANT = kind == DOWN || kind == OUT ? 1
               : kind == HEAD              ? 2
               : kind == MLP               ? 6
                                           : 3,
        UNITS = kind == IN     ? D::in_units
                : kind == MLP  ? D::mlp_units
                : kind == HEAD ? 0
                               : D::out_units,
        SOME = UNITS && UNITS < WANT ? UNITS : WANT,
        AHEAD = SOME < MOST ? SOME : MOST,
        PER_SUM = MOST / AHEAD * AHEAD,
        AT_ONCE = UNITS && UNITS <= AHEAD, /* AHEAD covers all units of a block */
        ONE_SUM = UNITS && UNITS <= PER_SUM,
        ACCS = WANT == 1 ? 2 : 1 /* accumulators: with one, each mma would wait for the previous one */
    };
};
/* Phase `kind` of layer l. Loads the first units' weights into registers while waiting for x. */
template <int kind, class D> static __device__ __forceinline__ void gemv(const D &a, struct block &b, int l) {
    typedef struct plan<kind, D> plan;
    enum { PIECES = plan::PIECES, AHEAD = plan::AHEAD, PER_SUM = plan::PER_SUM, ACCS = plan::ACCS };
    const int units = units_of(a, kind), G = gridDim.x, m = b.lane / 4, row = b.lane % 4 * 2;
    int first = b.first_unit, unit = first + b.warp * G, ahead = first;
    b.squares_half ^= 1;
    if (first >= units) return;
    bool has = b.warp < PER_SUM && unit < units;
    struct epilogue_inputs e = {};
    if (has && m < a.M) load_epilogue<kind>(a, b, l, m, unit * 8 + row, e);
    struct columns x[PIECES];
    struct unit_weights<PIECES> w[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++, ahead += G) {
        if (ahead < units) load_unit<kind>(a, b, w[i]);
        else w[i] = w[0]; /* unused, but must be initialised */
    }
    float s = 0.0f;
    if constexpr (kind == OUT) s = load_heads(a, b, l, x[0]);
    else if constexpr (kind == DOWN) load_acts(a, b, l, x);
    else s = load_normed<kind>(a, b, l, x[0]);
    for (bool begin = true;; begin = false) {
        float *sums = (float *)(b.shared + a.s.sums) +
                      ((b.sums_half * HL_DECODE_UNITS * WARPS + b.warp * D::max_rows) + b.lane % 4) * 8 + b.lane / 4;
#pragma unroll 1
        for (int j = 0; j < (plan::AT_ONCE ? 1 : PER_SUM) && first + j * G < units; j += AHEAD) {
            float d[AHEAD][ACCS][4] = {};
#pragma unroll
            for (int i = 0; i < AHEAD; i++) { /* independent units, so that they overlap */
#pragma unroll
                for (int c = 0; c < PIECES; c++)
                    if (c == 0 || c * a.width < inner_size(a, kind)) multiply(d[i], w[i].piece[c], x[c]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++, ahead += G)
                if (!plan::AT_ONCE && ahead < units) load_unit<kind>(a, b, w[i]);
#pragma unroll
            for (int i = 0; i < AHEAD; i++, sums += WARPS * D::max_rows * 8) {
                float s = d[i][0][0] + d[i][0][3];
                if (ACCS > 1) s += d[i][ACCS - 1][0] + d[i][ACCS - 1][3];
                if (b.lane % 4 < a.M) *sums = s;
            }
        }
        if (kind != DOWN && begin) store_squares(a, b, s);
        sync_block();
        if (has) epilogue<kind>(a, b, l, m, unit, reduce_unit<kind>(a, b, b.warp, min(m, a.M - 1)), m < a.M, e);
        b.sums_half ^= 1;
        if (plan::ONE_SUM) return;
        first += PER_SUM * G, unit += PER_SUM * G;
        if (first >= units) return;
        has = b.warp < PER_SUM && unit < units;
        if (has && m < a.M) load_epilogue<kind>(a, b, l, m, unit * 8 + row, e);
    }
}

#endif
