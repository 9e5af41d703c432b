/* gdn_walk_cuda.cuh -- from chunk to chunk (docs/math.md).
 *
 * With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}, A and P from
 * gdn_prep:
 *     r = beta (v - exp(G) k S)    v_new = A r (= beta e)    out = s exp(G) q S + P v_new
 *     S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * A warpgroup owns 64 columns of V and has everything turned: S as [64][K] in fp32 accumulators, whose packed
 * pairs are operands of (k S) and (q S) as they are; so are those of r, of v_new and of v_new decayed. No
 * product waits for another warp, and nothing but out and v_new passes through shared memory. W such groups
 * of a block share k, q, A and P. One more group copies, DEPTH chunks deep; half of it takes out, v_new and
 * the sums of its squares to memory, so that no load waits for a store.
 *
 * OUT false: only the state is wanted, at the end. */
#ifndef HL_GDN_WALK_CUH
#define HL_GDN_WALK_CUH
#include "ops/gdn/gdn_prep_cuda.cuh"
#include "ops/gdn/gdn_turned_cuda.cuh"

/* Long sequences are cut into parts (gdn_split_cuda.cu); part p of n chunks has those from n p / parts on. */
struct gdn_walk {
    const bf16 *q, *k, *v, *A, *P;
    const float *gates;
    bf16 *out, *v_new; /* v_new NULL: not kept */
    float *sums;       /* [V / 64][T][HV]: of squares of v_new */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off, T, segs;
    int H, HV, V, parts;
    struct gdn_ends e;
};

/* v: then out, on its way to memory; both groups of W have their own panel of it and of v_new */
template <int K, int W> struct stage_of_state { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[W * PANEL]; };
template <int K, int W, bool OUT> struct stage : stage_of_state<K, W> {
    bf16 q[CHUNK * K], P[CHUNK * CHUNK], v_new[W * PANEL];
};
template <int K, int W> struct stage<K, W, false> : stage_of_state<K, W> {};
template <int K, int W, bool OUT> struct walk_room {
    enum { DEPTH = W == 1 || OUT ? 2 : 3, AHEAD = DEPTH - 1, LOADERS = OUT ? GROUP / 2 : GROUP };
    stage<K, W, OUT> s[DEPTH];
    float gates[DEPTH][GATES];
};

/* One block's way. */
struct way {
    int row, rows, first; /* the part's first row, the rows from there on; first chunk */
    int hv, col, tile, chunks;
    bool values; /* else there are none: v is 0 */
};
static __device__ __forceinline__ struct way way_of(const struct gdn_walk &a, int s, int part, int hv) {
    const int all = a.chunk_first[s + 1] - a.chunk_first[s];
    const int first = gdn_cut(all, part, a.parts), chunks = gdn_cut(all, part + 1, a.parts) - first;
    const int row = (int)a.seg[s].row + first * CHUNK, rows = (int)a.seg[s].len - first * CHUNK;
    return {row, rows, a.chunk_first[s] + first, hv, 0, 0, chunks, true};
}

/* ---- the group that copies ----
 * Barriers, of this group and one other: a chunk is there; the other group is done with it. */
/* Chunk c of the way: rows are counted, not looked up. */
struct rows_of {
    int64_t row; /* of [T][HV] */
    int len;
};
static __device__ __forceinline__ struct rows_of rows_at(const struct gdn_walk &a, const struct way &w,
                                                         int c) {
    const int left = w.rows - c * CHUNK;
    return {(int64_t)(w.row + c * CHUNK) * a.HV + w.hv, left < CHUNK ? left : CHUNK};
}

static __device__ __forceinline__ float squares(uint32_t pair) {
    return low(pair) * low(pair) + high(pair) * high(pair);
}

/* all but v, whose place may hold what has to leave */
template <int K, int W, bool OUT>
static __device__ __forceinline__ void load_keys(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                                 const struct way &w, int c, int i) {
    enum { N = walk_room<K, W, OUT>::LOADERS };
    const struct rows_of r = rows_at(a, w, c);
    const int64_t qk = ((int64_t)(w.row + c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
    const int n = c % walk_room<K, W, OUT>::DEPTH;
    stage<K, W, OUT> &s = x.s[n];
#pragma unroll 1
    for (int p = 0; p < K / 64; p++) {
        copy_panel<64, CHUNK, N>(s.k + p * PANEL, a.k + qk + 64 * p, (int64_t)a.H * K, r.len, i);
        if constexpr (OUT)
            copy_panel<64, CHUNK, N>(s.q + p * PANEL, a.q + qk + 64 * p, (int64_t)a.H * K, r.len, i);
    }
    copy_panel<CHUNK, CHUNK, N>(s.A, a.A + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
    if constexpr (OUT) copy_panel<CHUNK, CHUNK, N>(s.P, a.P + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
    if (i < GATES / 4)
        copy_async(x.gates[n] + 4 * i, a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES + 4 * i);
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void load_values(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                                   const struct way &w, int c, int i) {
    const struct rows_of r = rows_at(a, w, c);
    bf16 *v = x.s[c % walk_room<K, W, OUT>::DEPTH].v;
#pragma unroll 1
    for (int g = 0; g < W; g++)
        copy_panel<64, CHUNK, walk_room<K, W, OUT>::LOADERS>(
            v + g * PANEL, a.v + (w.values ? r.row * a.V + w.col + 64 * g : 0), (int64_t)a.HV * a.V,
            w.values ? r.len : 0, i);
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void load_all(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                                const struct way &w, int i) {
    enum { DEPTH = walk_room<K, W, OUT>::DEPTH, AHEAD = DEPTH - 1, LOADERS = walk_room<K, W, OUT>::LOADERS };
    for (int c = -AHEAD; c <= w.chunks; c++) {
        const int next = c + AHEAD, done = c - 1;
        if (c >= 0 && c < w.chunks) {
            copy_wait<AHEAD - 1>();
            operands_written();
            for (int g = 0; g < W; g++) come(is_there<W>(c % DEPTH, g), LOADERS + GROUP);
        }
        for (int g = 0; g < W && c > 0; g++) meet(is_done<W>(done % DEPTH, g), 2 * GROUP);
        if (next < w.chunks) {
            load_keys(x, a, w, next, i);
            if (OUT && c > 0) meet(is_stored(done % DEPTH), GROUP);
            load_values(x, a, w, next, i);
        }
        copy_commit();
    }
}

/* What chunk c left: out, v_new where it is kept, and the sums of its squares. */
template <int K, int W>
static __device__ __forceinline__ void store_results(walk_room<K, W, true> &x, const struct gdn_walk &a,
                                                     const struct way &w, int c, int i) {
    enum { STEP = GROUP / 2 / 8 };
    const struct rows_of r = rows_at(a, w, c);
    const stage<K, W, true> &s = x.s[c % walk_room<K, W, true>::DEPTH];
    const int col = i % 8 * 8;
#pragma unroll 1
    for (int g = 0; g < W; g++) {
        const int64_t to = (r.row + (int64_t)(i / 8) * a.HV) * a.V + w.col + 64 * g + col;
        float *sums = a.sums + (int64_t)(w.tile * W + g) * a.T * a.HV + r.row;
#pragma unroll 2
        for (int n = 0; n < CHUNK; n += STEP) {
            const int row = n + i / 8, at = g * PANEL + tile_at<64>(row, col);
            const int64_t next = to + (int64_t)n * a.HV * a.V;
            const uint4 v_new = *(const uint4 *)(s.v_new + at), out = *(const uint4 *)(s.v + at);
            float sum = squares(v_new.x) + squares(v_new.y) + (squares(v_new.z) + squares(v_new.w));
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            if (row < r.len) *(uint4 *)(a.out + next) = out;
            if (row < r.len && a.v_new) *(uint4 *)(a.v_new + next) = v_new;
            if (row < r.len && col == 0) sums[(int64_t)row * a.HV] = sum;
        }
    }
}
template <int K, int W>
static __device__ __forceinline__ void store_all(walk_room<K, W, true> &x, const struct gdn_walk &a,
                                                 const struct way &w, int i) {
    enum { DEPTH = walk_room<K, W, true>::DEPTH };
    for (int c = 0; c < w.chunks; c++) {
        for (int g = 0; g < W; g++) meet(is_done<W>(c % DEPTH, g), 2 * GROUP);
        store_results(x, a, w, c, i);
        if (c + DEPTH < w.chunks) come(is_stored(c % DEPTH), GROUP);
    }
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void serve(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                             const struct way &w) {
    enum { LOADERS = walk_room<K, W, OUT>::LOADERS };
    const int i = threadIdx.x - W * GROUP;
    if (i < LOADERS) load_all(x, a, w, i);
    else if constexpr (OUT) store_all(x, a, w, i - LOADERS);
}

/* ---- the others: of 16 rows (columns of V) a warp, lane 4g + t holds g and g + 8, and there columns (rows
 * of the chunk) 2t, 2t + 1 of every 8 ---- */

/* r = beta (v - exp(G) k S), as operands */
static __device__ __forceinline__ void residual(uint32_t r[4][4], const float kS[CHUNK / 8][4], const bf16 *v,
                                                const float *gates) {
    const int t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        frag_a_turned<64>(r[c], v, 16 * c, 16 * warp);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = 16 * c + 8 * (i / 2) + 2 * t;
            const float2 beta = *(const float2 *)(gates + j), eG = *(const float2 *)(gates + CHUNK + j);
            const float *y = kS[2 * c + i / 2] + i % 2 * 2;
            r[c][i] = pack2(beta.x * (low(r[c][i]) - eG.x * y[0]), beta.y * (high(r[c][i]) - eG.y * y[1]));
        }
    }
}
/* d += x T^T, T [64][64] */
static __device__ __forceinline__ void times_square(float d[CHUNK / 8][4], const uint32_t x[4][4],
                                                    const bf16 *T) {
#pragma unroll
    for (int c = 0; c < 4; c++) product_regs<CHUNK>(d, x[c], operand<CHUNK, false>{T, 0, 16 * c});
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void walk_chunk(stage<K, W, OUT> &s, const float *gates, int group,
                                                  float S[K / 8][4]) {
    const float end = gates[2 * CHUNK - 1];
    float d[CHUNK / 8][4];
    uint32_t r[4][4], decayed[4][4];
    read_state<K, false>(d, S, s.k, NULL);
    residual(r, d, s.v + group * PANEL, gates);
    hold_operands<4>(r);
    zero(d);
    products_begin<CHUNK / 8>(d);
    times_square(d, r, s.A);
    products_end<CHUNK / 8>(d);
    hold_operands<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], d + 2 * i);
    hold_operands<4>(r);
    if constexpr (OUT) {
        leave(s.v_new + group * PANEL, r);
        read_state<K, true>(d, S, s.q, NULL);
        scale_columns(d, gates + CHUNK, 1.0f / sqrtf((float)K));
        products_begin<CHUNK / 8>(d);
        times_square(d, r, s.P);
        products_left<1>();
    }
#pragma unroll
    for (int i = 0; i < K / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] *= end;
    scale_operands(decayed, r, gates + 2 * CHUNK, 1.0f);
    hold_operands<4>(decayed);
    products_begin<K / 8>(S);
    write_state<K>(S, decayed, s.k);
    if constexpr (OUT) {
        products_left<1>(); /* out is there */
        hold<CHUNK / 8>(d), hold_operands<4>(r);
#pragma unroll
        for (int i = 0; i < 4; i++) pack_a(r[i], d + 2 * i);
        leave(s.v + group * PANEL, r);
        products_wait<K / 8>(S);
    } else products_end<K / 8>(S);
    hold_operands<4>(decayed);
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void walk_all(walk_room<K, W, OUT> &x, const struct way &w, int group,
                                                float S[K / 8][4]) {
    enum { DEPTH = walk_room<K, W, OUT>::DEPTH };
    for (int c = 0; c < w.chunks; c++) {
        meet(is_there<W>(c % DEPTH, group), walk_room<K, W, OUT>::LOADERS + GROUP);
        walk_chunk(x.s[c % DEPTH], x.gates[c % DEPTH], group, S);
        come(is_done<W>(c % DEPTH, group), 2 * GROUP);
    }
}
#endif
