/* gdn_back_parts_cuda.cu -- the gradient of the state after each chunk, dh, from the last chunk of a segment
 * to its first, and X2, for few, long segments: as the forward walk of those (gdn_turned_cuda.cuh), with dO
 * in the place of v and the parts counted from the segment's end. */
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32

/* out: dO, then X2 on its way to memory; each group of W has its panel */
template <int K, int W> struct scan_stage { bf16 q[C * K], k[C * K], P[C * C], A[C * C], out[W * PANEL]; };
template <int K, int W> struct scan_room {
    enum { DEPTH = K == 256 || W == 1 ? 2 : 3, AHEAD = DEPTH - 1, LOADERS = GROUP / 2 };
    scan_stage<K, W> stage[DEPTH];
    float gates[DEPTH][3 * C]; /* exp(G), exp(G_last - G), beta */
};

/* What a block walks along: chunks of a segment, one value head. Rows are counted, not looked up: a load from
 * memory in every step would be waited for. */
struct walk {
    int s, hv, part;
    int first, last, chunks; /* the segment's first and last, how many of them from `last` of this part on */
    int64_t row, len;        /* of the segment */
    int top, col;            /* the part's last chunk; of V */
    bool values;             /* else dO is 0 */
};
static __device__ __forceinline__ walk walk_of(const struct gdn_back &a, int s, int hv, int part) {
    const int first = a.chunk_first[s], n = a.chunk_first[s + 1] - first, p = a.e.parts - 1 - part;
    const int end = gdn_cut(n, p + 1, a.e.parts);
    return {s,
            hv,
            part,
            first,
            first + n - 1,
            end - gdn_cut(n, p, a.e.parts),
            a.seg[s].row,
            a.seg[s].len,
            first + end - 1,
            0,
            true};
}
/* rows of chunk c, and the first of them, of [T][HV] */
static __device__ __forceinline__ int rows_of(const walk &w, int c) {
    return c < w.last ? C : (int)(w.len - (int64_t)(c - w.first) * C);
}
static __device__ __forceinline__ int64_t row_of(const struct gdn_back &a, const walk &w, int c) {
    return (w.row + (int64_t)(c - w.first) * C) * a.HV + w.hv;
}

/* ---- the group that copies ---- */

/* all but dO, in whose place X2 may be */
template <int K, int W>
static __device__ __forceinline__ void load_keys(scan_room<K, W> &m, const struct gdn_back &a, const walk &w,
                                                 int step, int i) {
    enum { N = scan_room<K, W>::LOADERS };
    const int c = w.top - step, n = rows_of(w, c), at = step % scan_room<K, W>::DEPTH;
    const int64_t row = row_of(a, w, c), head = (int64_t)c * a.HV + w.hv;
    const int64_t qk = (row / a.HV * a.H + w.hv / a.group) * K;
    scan_stage<K, W> &s = m.stage[at];
#pragma unroll 1
    for (int p = 0; p < K / 64; p++) {
        copy_panel<64, C, N>(s.k + p * PANEL, a.k + qk + 64 * p, a.H * K, n, i);
        if (w.values) copy_panel<64, C, N>(s.q + p * PANEL, a.q + qk + 64 * p, a.H * K, n, i);
    }
    if (w.values) copy_panel<C, C, N>(s.P, a.P + head * C * C, C, C, i);
    copy_panel<C, C, N>(s.A, a.A + row * C, a.HV * C, n, i);
    if (i < 3 * C / 4) /* EG, EL and BETA lie one after another on both sides */
        copy_async(m.gates[at] + 4 * i, a.gates + head * GATES + EG + 4 * i);
}
template <int K, int W>
static __device__ __forceinline__ void load_out(scan_room<K, W> &m, const struct gdn_back &a, const walk &w,
                                                int step, int i) {
    const int c = w.top - step;
    const bf16 *from = a.dout + row_of(a, w, c) * a.V + w.col;
#pragma unroll 1
    for (int g = 0; g < W && w.values; g++)
        copy_panel<64, C, scan_room<K, W>::LOADERS>(m.stage[step % scan_room<K, W>::DEPTH].out + g * PANEL,
                                                    from + 64 * g, a.HV * a.V, rows_of(w, c), i);
}
template <int K, int W>
static __device__ __forceinline__ void load_all(scan_room<K, W> &m, const struct gdn_back &a, const walk &w,
                                                int i) {
    enum { DEPTH = scan_room<K, W>::DEPTH, AHEAD = DEPTH - 1, LOADERS = scan_room<K, W>::LOADERS };
    for (int c = -AHEAD; c <= w.chunks; c++) {
        const int next = c + AHEAD, done = c - 1;
        if (c >= 0 && c < w.chunks) {
            copy_wait<AHEAD - 1>();
            operands_written();
            for (int g = 0; g < W; g++) come(is_there<W>(c % DEPTH, g), LOADERS + GROUP);
        }
        for (int g = 0; g < W && c > 0; g++) meet(is_done<W>(done % DEPTH, g), 2 * GROUP);
        if (next < w.chunks) {
            load_keys(m, a, w, next, i);
            if (c > 0) meet(is_stored(done % DEPTH), GROUP);
            load_out(m, a, w, next, i);
        }
        copy_commit();
    }
}
/* X2 of the block's columns, if it is KEPT */
template <int K, int W, bool KEPT>
static __device__ __forceinline__ void store_all(scan_room<K, W> &m, const struct gdn_back &a, const walk &w,
                                                 int i) {
    enum { DEPTH = scan_room<K, W>::DEPTH, STEP = GROUP / 2 / 8 };
    const int col = i % 8 * 8;
    for (int c = 0; c < w.chunks; c++) {
        for (int g = 0; g < W; g++) meet(is_done<W>(c % DEPTH, g), 2 * GROUP);
        if (KEPT) {
            const int n = rows_of(w, w.top - c);
            bf16 *to = (bf16 *)a.X2 + (row_of(a, w, w.top - c) + i / 8 * a.HV) * a.V + w.col + col;
#pragma unroll 1
            for (int g = 0; g < W; g++)
#pragma unroll 4
                for (int r = 0; r < C; r += STEP)
                    if (r + i / 8 < n)
                        *(uint4 *)(to + (int64_t)r * a.HV * a.V + 64 * g) = *(
                            const uint4 *)(m.stage[c % DEPTH].out + g * PANEL + tile_at<64>(r + i / 8, col));
        }
        if (c + DEPTH < w.chunks) come(is_stored(c % DEPTH), GROUP);
    }
}

/* ---- the others ---- */

/* d += x T, T [64][64] */
static __device__ __forceinline__ void times_square(float d[C / 8][4], const uint32_t x[4][4],
                                                    const bf16 *T) {
#pragma unroll
    for (int i = 0; i < 4; i++) product_regs<C>(d, x[i], operand<C, true>{T, 16 * i, 0});
}
/* of -eG beta d, by columns */
static __device__ __forceinline__ void pack_scaled(uint32_t x[4][4], const float d[C / 8][4], const float *eG,
                                                   const float *beta) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C / 8; n++) {
        const float2 e = *(const float2 *)(eG + 8 * n + 2 * t), b = *(const float2 *)(beta + 8 * n + 2 * t);
        const float y = -e.x * b.x, z = -e.y * b.y;
        x[n / 2][n % 2 * 2] = pack2(y * d[n][0], z * d[n][1]);
        x[n / 2][n % 2 * 2 + 1] = pack2(y * d[n][2], z * d[n][3]);
    }
}

/* One chunk: dh, which is that after it, becomes that before it. to: dh as it came, or NULL. */
template <int K, int W, bool KEPT>
static __device__ __forceinline__ void scan_chunk(scan_stage<K, W> &s, const float *eG, int group,
                                                  float dh[K / 8][4], bool values, bf16 *to) {
    const float *eL = eG + C, *beta = eL + C, end = eG[C - 1];
    bf16 *out = s.out + group * PANEL;
    float d[C / 8][4];
    uint32_t x[4][4], y[4][4];
    read_state<K, false>(d, dh, s.k, to);
    scale_columns(d, eL, 1.0f);
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dh[n][i] *= end;
    if (values) { /* both uses of dO: dv += P^T dO and dh += Q^T (s eG dO) */
#pragma unroll
        for (int i = 0; i < 4; i++) frag_a_turned<64>(x[i], out, 16 * i, threadIdx.x / 32 % 4 * 16);
        scale_operands(y, x, eG, 1.0f / sqrtf((float)K));
        hold_operands<4>(x), hold_operands<4>(y);
        products_begin<C / 8>(d);
        times_square(d, x, s.P);
        products_left<1>();
        products_begin<K / 8>(dh);
        write_state<K>(dh, y, s.q);
        products_left<1>();
        hold<C / 8>(d), hold_operands<4>(x);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    hold_operands<4>(x);
    zero(d);
    products_begin<C / 8>(d);
    times_square(d, x, s.A);
    products_end<C / 8>(d);
    hold_operands<4>(x), hold<K / 8>(dh);
    if (values) hold_operands<4>(y);
    pack_scaled(y, d, eG, beta);
    hold_operands<4>(y);
    products_begin<K / 8>(dh);
    write_state<K>(dh, y, s.k);
    products_left<1>();
    if (KEPT) {
#pragma unroll
        for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
        leave(out, x);
    }
    products_wait<K / 8>(dh);
    hold_operands<4>(y);
}
template <int K, int W, bool KEPT>
static __device__ __forceinline__ void scan_all(scan_room<K, W> &m, const struct gdn_back &a, const walk &w,
                                                int group, float dh[K / 8][4]) {
    enum { DEPTH = scan_room<K, W>::DEPTH };
    const int64_t v0 = w.col + threadIdx.x / 32 * 16;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step;
        bf16 *to = NULL;
        if (KEPT && c < w.last) to = (bf16 *)a.dh + (((int64_t)c * a.HV + w.hv) * a.V + v0) * K;
        meet(is_there<W>(step % DEPTH, group), scan_room<K, W>::LOADERS + GROUP);
        scan_chunk<K, W, KEPT>(m.stage[step % DEPTH], m.gates[step % DEPTH], group, dh, w.values, to);
        come(is_done<W>(step % DEPTH, group), 2 * GROUP);
    }
}

/* KEPT: dh and X2, by part, head and tile of V's columns. Else where parts end: tiles of V's columns, then of
 * K's (the identity's). */
template <int K, int W, bool KEPT>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) scan_parts(const struct gdn_back a) {
    scan_room<K, W> &m = *(scan_room<K, W> *)shared_tiles();
    const int values = a.V / (64 * W), tiles = KEPT ? values : values + K / (64 * W);
    const int parts = KEPT ? a.e.parts : a.e.parts - 1, tile = blockIdx.x % tiles, group = group_of_warps();
    const int hv = blockIdx.x / tiles % a.HV, part = blockIdx.x / tiles / a.HV % parts,
              s = blockIdx.x / tiles / a.HV / parts;
    open_some();
    walk w = walk_of(a, s, hv, part);
    w.values = tile < values;
    w.col = (w.values ? tile : tile - values) * 64 * W;
    if (!w.values && part == 0) return;
    if (group == W) {
        registers_of_copier<K, W>();
        const int i = threadIdx.x - W * GROUP;
        if (i < GROUP / 2) load_all(m, a, w, i);
        else store_all<K, W, KEPT>(m, a, w, i - GROUP / 2);
    } else {
        registers_of_walker<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float dh[K / 8][4];
        if (w.values) state_in<K>(dh, KEPT && part > 0 ? end_of(a.e, K, s, hv, part - 1) + col : NULL, a.V);
        else state_one<K>(dh, (int)col);
        scan_all<K, W, KEPT>(m, a, w, group, dh);
        if (!KEPT && w.values) state_out<K>(end_of(a.e, K, s, hv, part) + col, dh, a.V);
        else if (!KEPT) state_out<K>(move_of(a.e, K, s, hv, part) + col, dh, K);
    }
}

template <int K, int W, bool KEPT> static void launch_scan(struct hl_cuda *c, const struct gdn_back *a) {
    const int64_t parts = KEPT ? a->e.parts : a->e.parts - 1, width = KEPT ? a->V : a->V + K;
    launch(c, scan_parts<K, W, KEPT>, (unsigned)(a->segs * a->HV * parts * (width / (64 * W))),
           (W + 1) * GROUP, sizeof(scan_room<K, W>) + TILES_ROOM, *a);
}
template <int K> static void scan_of(struct hl_cuda *c, const struct gdn_back *a) {
    if constexpr (K % 128 == 0) (a->V % 128 ? launch_scan<K, 1, false> : launch_scan<K, 2, false>)(c, a);
    else launch_scan<K, 1, false>(c, a);
    HL_OP(gdn_join)(c, &a->e, K);
    launch_scan<K, 1, true>(c, a);
}
extern "C" void HL_OP(gdn_back_parts)(struct hl_cuda *c, const struct gdn_back *a) {
    (a->K == 256 ? scan_of<256> : a->K == 128 ? scan_of<128> : scan_of<64>)(c, a);
}
#endif
