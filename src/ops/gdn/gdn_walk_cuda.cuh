/* gdn_walk_cuda.cuh -- from chunk to chunk (ARCHITECTURE sec. 4.1).
 *
 * With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}, A and P from
 * gdn_prep:
 *     r = beta (v - exp(G) k S)    v_new = A r (= beta e)    out = s exp(G) q S + P v_new
 *     S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * A warpgroup owns 64 columns of V and has everything turned: S as [64][K] in fp32 accumulators, whose packed
 * pairs are operands of (k S) and (q S) as they are; so are those of r, of v_new and of v_new decayed. No
 * product waits for another warp, and nothing but out and v_new passes through shared memory. W such groups of
 * a block share k, q, A and P. One more group copies, DEPTH chunks deep, and takes out, v_new and the sums of
 * its squares to memory.
 *
 * OUT false: only the state is wanted, at the end. */
#ifndef HL_GDN_WALK_CUH
#define HL_GDN_WALK_CUH
#include "cuda/early.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

enum { GROUP = 128, PANEL = CHUNK * 64 };

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
    /* [segs][HV][parts][K][V] and [K][K], parts > 1: where the part after next starts, the last one: where the
     * first does; and what a part makes of a state: M S, where it would make B of none */
    float *ends, *moves;
};

/* v: then out, on its way to memory; both groups of W have their own panel of it and of v_new */
template <int K, int W> struct stage_of_state { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[W * PANEL]; };
template <int K, int W, bool OUT> struct stage : stage_of_state<K, W> {
    bf16 q[CHUNK * K], P[CHUNK * CHUNK], v_new[W * PANEL];
};
template <int K, int W> struct stage<K, W, false> : stage_of_state<K, W> {};
template <int K, int W, bool OUT> struct walk_room {
    enum { DEPTH = W == 1 || (OUT && K == 256) ? 2 : 3, AHEAD = DEPTH - 1 };
    stage<K, W, OUT> s[DEPTH];
    float gates[DEPTH][GATES];
};

/* One block's way. */
struct way {
    int64_t row, rows, first; /* the part's first row, the rows from there on; first chunk */
    int hv, col, tile, chunks;
    bool values; /* else there are none: v is 0 */
};
static __device__ __forceinline__ struct way way_of(const struct gdn_walk &a, int s, int part, int hv) {
    const int all = a.chunk_first[s + 1] - a.chunk_first[s];
    const int first = (int)((int64_t)all * part / a.parts), end = (int)((int64_t)all * (part + 1) / a.parts);
    const int64_t skip = (int64_t)first * CHUNK;
    return {a.seg[s].row + skip, a.seg[s].len - skip, a.chunk_first[s] + first, hv, 0, 0, end - first, true};
}

/* ---- the group that copies ----
 * Barriers, of this group and one other: a chunk is there; the other group is done with it. */
template <int W> static __device__ __forceinline__ int is_there(int n, int group) {
    return 1 + 2 * (n * W + group);
}
template <int W> static __device__ __forceinline__ int is_done(int n, int group) {
    return 2 + 2 * (n * W + group);
}

/* Chunk c of the way: rows are counted, not looked up. */
struct rows_of {
    int64_t row; /* of [T][HV] */
    int len;
};
static __device__ __forceinline__ struct rows_of rows_at(const struct gdn_walk &a, const struct way &w,
                                                         int c) {
    const int64_t left = w.rows - (int64_t)c * CHUNK;
    return {(w.row + (int64_t)c * CHUNK) * a.HV + w.hv, left < CHUNK ? (int)left : CHUNK};
}

/* all but v, whose place may hold what has to leave */
template <int K, int W, bool OUT>
static __device__ __forceinline__ void load_keys(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                                 const struct way &w, int c, int i) {
    const struct rows_of r = rows_at(a, w, c);
    const int64_t qk = ((w.row + (int64_t)c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
    const int n = c % walk_room<K, W, OUT>::DEPTH;
    stage<K, W, OUT> &s = x.s[n];
#pragma unroll
    for (int p = 0; p < K / 64; p++)
        copy_panel<64, CHUNK, GROUP>(s.k + p * PANEL, a.k + qk + 64 * p, (int64_t)a.H * K, r.len, i);
    if constexpr (OUT)
#pragma unroll
        for (int p = 0; p < K / 64; p++)
            copy_panel<64, CHUNK, GROUP>(s.q + p * PANEL, a.q + qk + 64 * p, (int64_t)a.H * K, r.len, i);
    copy_panel<CHUNK, CHUNK, GROUP>(s.A, a.A + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
    if constexpr (OUT)
        copy_panel<CHUNK, CHUNK, GROUP>(s.P, a.P + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
    if (i < GATES / 4)
        copy_async(x.gates[n] + 4 * i, a.gates + ((w.first + c) * a.HV + w.hv) * GATES + 4 * i);
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void load_values(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                                   const struct way &w, int c, int i) {
    const struct rows_of r = rows_at(a, w, c);
    bf16 *v = x.s[c % walk_room<K, W, OUT>::DEPTH].v;
#pragma unroll
    for (int g = 0; g < W; g++)
        copy_panel<64, CHUNK, GROUP>(v + g * PANEL, a.v + (w.values ? r.row * a.V + w.col + 64 * g : 0),
                                     (int64_t)a.HV * a.V, w.values ? r.len : 0, i);
}
/* What chunk c left: out, v_new where it is kept, and the sums of its squares. Each thread takes the pieces of v's
 * place that load_values has it write. */
template <int K, int W>
static __device__ __forceinline__ void store_results(walk_room<K, W, true> &x, const struct gdn_walk &a,
                                                     const struct way &w, int c, int i) {
    const struct rows_of r = rows_at(a, w, c);
    const stage<K, W, true> &s = x.s[c % walk_room<K, W, true>::DEPTH];
    const int col = i % 8 * 8;
#pragma unroll
    for (int g = 0; g < W; g++)
#pragma unroll
        for (int row = i / 8; row < CHUNK; row += GROUP / 8) {
            const int at = g * PANEL + tile_at<64>(row, col);
            const int64_t line = r.row + (int64_t)row * a.HV, to = line * a.V + w.col + 64 * g + col;
            float y[8], sum = 0.0f;
            load_wide(y, s.v_new + at);
#pragma unroll
            for (int n = 0; n < 8; n++) sum += y[n] * y[n];
#pragma unroll
            for (int n = 1; n < 8; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
            if (row >= r.len) continue;
            *(uint4 *)(a.out + to) = *(const uint4 *)(s.v + at);
            if (a.v_new) *(uint4 *)(a.v_new + to) = *(const uint4 *)(s.v_new + at);
            if (col == 0) a.sums[(int64_t)(w.tile * W + g) * a.T * a.HV + line] = sum;
        }
}
template <int K, int W, bool OUT>
static __device__ __forceinline__ void serve(walk_room<K, W, OUT> &x, const struct gdn_walk &a,
                                             const struct way &w) {
    enum { DEPTH = walk_room<K, W, OUT>::DEPTH, AHEAD = DEPTH - 1 };
    const int i = threadIdx.x - W * GROUP;
    for (int c = 0; c < AHEAD; c++) {
        if (c < w.chunks) load_keys(x, a, w, c, i), load_values(x, a, w, c, i);
        copy_commit();
    }
    for (int c = 0; c <= w.chunks; c++) {
        const int next = c + AHEAD, done = c - 1;
        if (c < w.chunks) {
            copy_wait<AHEAD - 1>();
            operands_written();
            for (int g = 0; g < W; g++) come(is_there<W>(c % DEPTH, g), 2 * GROUP);
        }
        for (int g = 0; g < W && c > 0; g++) meet(is_done<W>(done % DEPTH, g), 2 * GROUP);
        if (next < w.chunks) load_keys(x, a, w, next, i);
        if constexpr (OUT)
            if (c > 0) store_results(x, a, w, done, i);
        if (next < w.chunks) load_values(x, a, w, next, i);
        copy_commit();
    }
}

/* ---- the others: of 16 rows (columns of V) a warp, lane 4g + t holds g and g + 8, and there columns (rows
 * of the chunk) 2t, 2t + 1 of every 8 ---- */

/* d[..][n] times x[n] */
static __device__ __forceinline__ void scale_columns(float d[CHUNK / 8][4], const float *x, float all) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        const float2 y = *(const float2 *)(x + 8 * n + 2 * t);
        d[n][0] *= all * y.x, d[n][1] *= all * y.y, d[n][2] *= all * y.x, d[n][3] *= all * y.y;
    }
}

static __device__ __forceinline__ void zero(float d[CHUNK / 8][4]) {
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[n][i] = 0.0f;
}
/* d = rows S, rows: k or q; in batches of 32 rows of S, of which two are under way. AGAIN: S is packed anew. The
 * compiler would rather keep what it packed the first time, and run out of registers: so it gets to see other
 * numbers, though they are the same. */
template <int K, bool AGAIN>
static __device__ __forceinline__ void read_state(float d[CHUNK / 8][4], const float S[K / 8][4],
                                                  const bf16 *rows) {
    const float one = __int_as_float(0x3f800000 + (int)blockIdx.z);
    uint32_t x[2][2][4];
    zero(d);
    hold<CHUNK / 8>(d);
#pragma unroll
    for (int b = 0; b < K / 32; b++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *y = S[4 * b + i / 2] + i % 2 * 2;
            x[b % 2][i / 4][i % 4] = AGAIN ? pack2(one * y[0], one * y[1]) : pack2(y[0], y[1]);
        }
        hold_operands<2>(x[b % 2]);
        products_go_on();
#pragma unroll
        for (int i = 0; i < 2; i++)
            product_regs<CHUNK>(d, x[b % 2][i],
                                operand<64, false>{rows + b / 2 * PANEL, 0, b % 2 * 32 + 16 * i});
        products_left<1>();
        if (b > 0) hold_operands<2>(x[(b + 1) % 2]);
    }
    products_wait<CHUNK / 8>(d);
    hold_operands<2>(x[1]);
}
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
/* S += x k */
template <int K>
static __device__ __forceinline__ void write_state(float S[K / 8][4], const uint32_t x[4][4], const bf16 *k) {
    enum { N = K < 128 ? K : 128 };
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int n = 0; n < K; n += N)
            product_regs<N>(S + n / 8, x[c], operand<64, true, PANEL>{k + n / 64 * PANEL, 16 * c, 0});
}

/* S between registers and memory: float [K][V] at the warp's first column */
template <int K>
static __device__ __forceinline__ void state_in(float S[K / 8][4], const float *from, int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = from ? from[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] : 0.0f;
}
template <int K>
static __device__ __forceinline__ void state_out(float *to, const float S[K / 8][4], int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] = S[n][i];
}
/* rows from `first` on of the identity */
template <int K> static __device__ __forceinline__ void state_one(float S[K / 8][4], int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = 8 * n + 2 * t + i % 2 == first + g + i / 2 * 8 ? 1.0f : 0.0f;
}

/* turned to the group's tile, [64][64] */
static __device__ __forceinline__ void leave(bf16 *tile, const uint32_t x[4][4]) {
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) store_turned<64>(tile, x[i], 16 * i, 16 * warp);
}
/* operands, decayed to the end of the chunk: as the backward pass has them */
static __device__ __forceinline__ void decay_values(uint32_t x[4][4], const uint32_t v_new[4][4],
                                                    const float *eL) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 y = *(const float2 *)(eL + i / 2 * 8 + 2 * t);
        const uint32_t v = v_new[i / 4][i % 4];
        x[i / 4][i % 4] = pack2(y.x * low(v), y.y * high(v));
    }
}

template <int K, int W, bool OUT>
static __device__ __forceinline__ void walk_chunk(stage<K, W, OUT> &s, const float *gates, int group,
                                                  float S[K / 8][4]) {
    const float end = gates[2 * CHUNK - 1];
    float d[CHUNK / 8][4];
    uint32_t r[4][4], decayed[4][4];
    read_state<K, false>(d, S, s.k);
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
        read_state<K, true>(d, S, s.q);
        scale_columns(d, gates + CHUNK, 1.0f / sqrtf((float)K));
        products_begin<CHUNK / 8>(d);
        times_square(d, r, s.P);
        products_left<1>();
    }
#pragma unroll
    for (int i = 0; i < K / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] *= end;
    decay_values(decayed, r, gates + 2 * CHUNK);
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
        meet(is_there<W>(c % DEPTH, group), 2 * GROUP);
        walk_chunk(x.s[c % DEPTH], x.gates[c % DEPTH], group, S);
        come(is_done<W>(c % DEPTH, group), 2 * GROUP);
    }
}
/* where a group's 64 columns start, of the states kept between parts */
static __device__ __forceinline__ float *end_of(const struct gdn_walk &a, int64_t K, int s, int hv,
                                                int part) {
    return a.ends + (((int64_t)s * a.HV + hv) * a.parts + part) * K * a.V;
}
static __device__ __forceinline__ float *kept_state(const struct gdn_walk &a, int64_t K, int s, int hv) {
    return a.seg[s].state ? (float *)(a.seg[s].state + a.S_off) + hv * K * a.V : NULL;
}
/* the registers of the block's threads, moved to where they are needed */
template <int W> static __device__ __forceinline__ void registers_of_copier() {
    if (W == 2) fewer_registers<40>();
}
template <int W> static __device__ __forceinline__ void registers_of_walker() {
    if (W == 2) more_registers<232>();
}
#endif
