/* gdn_back_parts_cuda.cu -- the gradient of the state after each chunk, dh, from the last chunk of a
 * segment to its first, and X2: as the forward walk (gdn_trans_cuda.cuh, gdn_ring_cuda.cu), with dO in the
 * place of v. The groups form P = s tril(q k^T) D themselves. Long segments have parts, counted from the
 * segment's end. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOADERS = GROUP / 2, OUTS = 3 };
template <int K> struct scan_stage { bf16 q[C * K], k[C * K], P[C * C], A[C * C]; };
template <int K, int W> struct scan_room {
    enum { DEPTH = K == 256 ? 2 : 3 };
    scan_stage<K> stage[DEPTH];
    bf16 out[OUTS][W * PANEL]; /* dO, then X2 on its way to memory; each group of W has its panel */
    float gates[DEPTH][GATES];
    uint64_t barriers[2 * DEPTH + 2 * OUTS];
};
/* A step's operands are there, its place is free; the same for what leaves. */
template <int DEPTH> struct marks {
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t there(int c) const { return mbarrier_at(first, c % DEPTH); }
    __device__ __forceinline__ mbarrier_t free(int c) const { return mbarrier_at(first, DEPTH + c % DEPTH); }
    __device__ __forceinline__ mbarrier_t out_there(int c) const { return mbarrier_at(first, 2 * DEPTH + c % OUTS); }
    __device__ __forceinline__ mbarrier_t out_free(int c) const {
        return mbarrier_at(first, 2 * DEPTH + OUTS + c % OUTS);
    }
};
/* by one thread; so many load and store */
template <int W, int DEPTH>
static __device__ __forceinline__ void open_marks(const marks<DEPTH> &b, int loaders, int storers) {
    for (int i = 0; i < DEPTH; i++) mbarrier_init(b.there(i), loaders), mbarrier_init_warps(b.free(i), 4 * W);
    for (int i = 0; i < OUTS; i++) mbarrier_init_warps(b.out_there(i), 4 * W), mbarrier_init(b.out_free(i), storers);
}

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
    return {
        s, hv,  part, first, first + n - 1, end - gdn_cut(n, p, a.e.parts), a.seg[s].row, a.seg[s].len, first + end - 1,
        0, true};
}
/* rows of chunk c, and the first of them, of [T][HV] */
static __device__ __forceinline__ int rows_of(const walk &w, int c) {
    return c < w.last ? C : (int)(w.len - (int64_t)(c - w.first) * C);
}
static __device__ __forceinline__ int64_t row_of(const struct gdn_back &a, const walk &w, int c) {
    return (w.row + (int64_t)(c - w.first) * C) * a.HV + w.hv;
}

/* ---- the group that copies ---- */

/* X2 of a step, as it lies in shared memory, on its way; by one thread */
template <int K, int W>
static __device__ __forceinline__ void store_panels(scan_room<K, W> &m, const marks<scan_room<K, W>::DEPTH> &b,
                                                    const struct gdn_back &a, const walk &w, int step) {
    const int64_t item = (int64_t)(w.top - step) * a.HV + w.hv;
    mbarrier_wait(b.out_there(step), full<OUTS>(step));
    bulk_store((bf16 *)a.X2 + item * C * a.V + w.col * C, m.out[step % OUTS], W * PANEL * (int)sizeof(bf16));
}
/* By threads i of N. STORES: the first of them also sends X2 to memory, as soon as a step is known to be
 * over: DEPTH steps later, when its place is free. */
template <int K, int W, int N, bool STORES>
static __device__ __forceinline__ void load_all(scan_room<K, W> &m, const marks<scan_room<K, W>::DEPTH> &b,
                                                const struct gdn_back &a, const walk &w, int i) {
    enum { DEPTH = scan_room<K, W>::DEPTH };
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step, n = rows_of(w, c), at = step % DEPTH;
        const int64_t row = row_of(a, w, c), head = (int64_t)c * a.HV + w.hv;
        const int64_t qk = (row / a.HV * a.H + w.hv / a.group) * K;
        scan_stage<K> &s = m.stage[at];
        mbarrier_wait(b.free(step), empty<DEPTH>(step));
        if (STORES && i == 0 && step >= DEPTH) store_panels(m, b, a, w, step - DEPTH);
#pragma unroll 1
        for (int p = 0; p < K / 64; p++) {
            copy_panel<64, C, N>(s.k + p * PANEL, a.k + qk + 64 * p, a.H * K, n, i);
            copy_panel<64, C, N>(s.q + p * PANEL, a.q + qk + 64 * p, a.H * K, n, i);
        }
        copy_panel<C, C, N>(s.A, a.A + row * C, a.HV * C, n, i);
#pragma unroll 1
        for (int j = i; j < GATES / 4; j += N) copy_async(m.gates[at] + 4 * j, a.gates + head * GATES + 4 * j);
        if (STORES && i == 0 && step >= OUTS) {
            bulk_store_wait_read<OUTS - DEPTH>();
            mbarrier_arrive(b.out_free(step - OUTS));
        }
        mbarrier_wait(b.out_free(step), empty<OUTS>(step));
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, C, N>(m.out[step % OUTS] + g * PANEL, a.dout + row * a.V + (w.values ? w.col + 64 * g : 0),
                                 a.HV * a.V, w.values ? n : 0, i);
        copy_async_arrive(b.there(step));
    }
    if constexpr (STORES) {
        for (int step = w.chunks < DEPTH ? 0 : w.chunks - DEPTH; i == 0 && step < w.chunks; step++)
            store_panels(m, b, a, w, step);
        if (i == 0) bulk_store_wait_read<0>();
    }
}
/* X2 of the block's columns by rows, if it is KEPT */
template <int K, int W, bool KEPT>
static __device__ __forceinline__ void store_all(scan_room<K, W> &m, const marks<scan_room<K, W>::DEPTH> &b,
                                                 const struct gdn_back &a, const walk &w, int i) {
    enum { STEP = pieces<W>::STEP };
    const pieces<W> p(i);
    const int64_t next = (int64_t)STEP * a.HV * a.V;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step, n = rows_of(w, c);
        bf16 *to = (bf16 *)a.X2 + (row_of(a, w, c) + (int64_t)p.row * a.HV) * a.V + w.col + p.col;
        mbarrier_wait(b.out_there(step), full<OUTS>(step));
#pragma unroll
        for (int first = 0; KEPT && first < C; first += AT_ONCE * STEP) {
            uint4 x[AT_ONCE];
            p.read(x, m.out[step % OUTS], first);
            p.write(to, x, next, n - first), to += AT_ONCE * next;
        }
        mbarrier_arrive(b.out_free(step));
    }
}

/* ---- the others ---- */

/* d += x T, T [64][64] */
static __device__ __forceinline__ void times_square(float d[C / 8][4], const uint32_t x[4][4], const bf16 *T) {
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<C>(d, x[i], operand<C, true>{T, 16 * i, 0});
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

/* P; the group has C / W of its columns */
template <int K, int W>
static __device__ __forceinline__ void form_scores(scan_stage<K> &s, const float *gates, int group) {
    enum { COLS = C / W };
    const int t = threadIdx.x % 4;
    const float scale = 1.0f / sqrtf((float)K);
    float d[COLS / 8][4] = {};
    wgmma_begin<COLS / 8>(d);
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        wgmma_ss<COLS>(d, operand<64, false>{s.q + n / 4 * PANEL, 0, n % 4 * 16},
                       operand<64, false>{s.k + n / 4 * PANEL, group * COLS, n % 4 * 16});
    wgmma_end<COLS / 8>(d);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++) /* all loads before the stores, which might be to the same place */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = own_row(h), j = group * COLS + 8 * n + 2 * t;
            const float2 D = decay(gates, i, j);
            d[n][2 * h] = j <= i ? scale * d[n][2 * h] * D.x : 0.0f;
            d[n][2 * h + 1] = j < i ? scale * d[n][2 * h + 1] * D.y : 0.0f;
        }
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(s.P + tile_at<C>(own_row(h), group * COLS + 8 * n + 2 * t)) =
                pack2(d[n][2 * h], d[n][2 * h + 1]);
    fence_proxy_async();
}
/* One chunk: dh, which is that after it, becomes that before it. to: dh as it came, or NULL. */
template <int K, int W, bool KEPT>
static __device__ __forceinline__ void scan_chunk(scan_room<K, W> &m, const marks<scan_room<K, W>::DEPTH> &b, int step,
                                                  int group, float dh[K / 8][4], bf16 *to) {
    enum { DEPTH = scan_room<K, W>::DEPTH };
    scan_stage<K> &s = m.stage[step % DEPTH];
    const float *gates = m.gates[step % DEPTH], *eG = gates + EG, *eL = gates + EL, *beta = gates + BETA;
    const float scale = 1.0f / sqrtf((float)K);
    bf16 *out = m.out[step % OUTS] + group * PANEL;
    float d[C / 8][4];
    uint32_t x[4][4], y[4][4];
    mbarrier_wait(b.there(step), full<DEPTH>(step));
    fence_proxy_async();
    const float end = eG[C - 1];
    form_scores<K, W>(s, gates, group);
    read_state<K>(d, dh, s.k, to);
    scale_columns(d, eL, 1.0f);
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dh[n][i] *= end;
            /* both uses of dO: dv += P^T dO and dh += Q^T (s eG dO) */
#pragma unroll
    for (int i = 0; i < 4; i++) tile_load_a_trans<64>(x[i], out, 16 * i, threadIdx.x / 32 % 4 * 16);
    scale_operands(y, x, eG, scale);
    wgmma_hold_a<4>(x), wgmma_hold_a<4>(y);
    named_barrier_sync(1, W * GROUP); /* P is there */
    wgmma_begin<C / 8>(d);
    times_square(d, x, s.P);
    wgmma_commit_wait<1>();
    wgmma_begin<K / 8>(dh);
    write_state<K>(dh, y, s.q);
    wgmma_commit_wait<1>();
    wgmma_hold<C / 8>(d), wgmma_hold_a<4>(x);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    wgmma_hold_a<4>(x);
    zero(d);
    wgmma_begin<C / 8>(d);
    times_square(d, x, s.A);
    wgmma_end<C / 8>(d);
    wgmma_hold_a<4>(x), wgmma_hold<K / 8>(dh);
    wgmma_hold_a<4>(y);
    pack_scaled(y, d, eG, beta);
    wgmma_hold_a<4>(y);
    wgmma_begin<K / 8>(dh);
    write_state<K>(dh, y, s.k);
    wgmma_commit_wait<1>();
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    leave(out, x);
    fence_proxy_async();
    mbarrier_arrive_warp(b.out_there(step));
    wgmma_wait_all<K / 8>(dh);
    wgmma_hold_a<4>(y);
    mbarrier_arrive_warp(b.free(step));
}

template <int K, int W, bool KEPT>
static __device__ __forceinline__ void scan_all(scan_room<K, W> &m, const marks<scan_room<K, W>::DEPTH> &b,
                                                const struct gdn_back &a, const walk &w, int group,
                                                float dh[K / 8][4]) {
    const int64_t col = w.col + group * 64, row = threadIdx.x / 32 % 4 * 16;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step;
        bf16 *to = NULL;
        if (a.dh && c < w.last) to = (bf16 *)a.dh + (((int64_t)c * a.HV + w.hv) * a.V + col) * K + row * 64;
        scan_chunk<K, W, KEPT>(m, b, step, group, dh, to);
    }
}

/* KEPT: dh and X2, by part, head and tile of V's columns. Else where parts end: tiles of V's columns, then of
 * K's (the identity's). */
template <int K, int W, bool KEPT>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) scan_parts(const struct gdn_back a) {
    scan_room<K, W> &m = *(scan_room<K, W> *)shared_tiles();
    const marks<scan_room<K, W>::DEPTH> b = {mbarrier_base(m.barriers)};
    const int values = a.V / (64 * W), tiles = KEPT ? values : values + K / (64 * W);
    const int parts = KEPT ? a.e.parts : a.e.parts - 1, tile = blockIdx.x % tiles, group = warpgroup_index();
    const int hv = blockIdx.x / tiles % a.HV, part = blockIdx.x / tiles / a.HV % parts,
              s = blockIdx.x / tiles / a.HV / parts;
    named_barrier_init();
    walk w = walk_of(a, s, hv, part);
    w.values = tile < values;
    w.col = (w.values ? tile : tile - values) * 64 * W;
    if (!w.values && part == 0) return;
    const bool whole = KEPT && a.walks;
    if (threadIdx.x == 0) open_marks<W>(b, whole ? GROUP : LOADERS, whole ? 1 : STORERS);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    if (group == W) {
        registers_of_copier<K, W>();
        const int i = threadIdx.x - W * GROUP;
        if (whole) load_all<K, W, GROUP, KEPT>(m, b, a, w, i);
        else if (i < LOADERS) load_all<K, W, LOADERS, false>(m, b, a, w, i);
        else store_all<K, W, KEPT>(m, b, a, w, i - LOADERS);
    } else {
        registers_of_walker<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float dh[K / 8][4];
        if (w.values) state_in<K>(dh, KEPT && part > 0 ? end_of(a.e, K, s, hv, part - 1) + col : NULL, a.V);
        else state_one<K>(dh, (int)col);
        scan_all<K, W, KEPT>(m, b, a, w, group, dh);
        if (!KEPT && w.values) state_out<K>(end_of(a.e, K, s, hv, part) + col, dh, a.V);
        else if (!KEPT) state_out<K>(move_of(a.e, K, s, hv, part) + col, dh, K);
    }
}

template <int K, int W, bool KEPT> static void launch_scan(struct hl_cuda *c, const struct gdn_back *a) {
    const int64_t parts = KEPT ? a->e.parts : a->e.parts - 1, width = KEPT ? a->V : a->V + K;
    struct gdn_back x = *a;
    if (!KEPT) x.dh = NULL;
    launch_pdl(c, scan_parts<K, W, KEPT>, (unsigned)(a->segs * a->HV * parts * (width / (64 * W))), (W + 1) * GROUP,
               sizeof(scan_room<K, W>) + TILES_ROOM, x);
}
/* wide tiles where they keep the chip busy */
template <int K> static void scan_of(struct hl_cuda *c, const struct gdn_back *a) {
    const bool busy = a->segs * a->HV * a->e.parts * (a->V / 128) >= GDN_FULL;
    if (a->e.parts > 1) {
        if constexpr (K % 128 == 0) (a->V % 128 ? launch_scan<K, 1, false> : launch_scan<K, 2, false>)(c, a);
        else launch_scan<K, 1, false>(c, a);
        HL_OP(gdn_join)(c, &a->e, K);
    }
    if constexpr (K % 128 == 0) (a->V % 128 || !busy ? launch_scan<K, 1, true> : launch_scan<K, 2, true>)(c, a);
    else launch_scan<K, 1, true>(c, a);
}
template <int K> static bool scan_fits(struct hl_cuda *c) {
    enum { W = K % 128 ? 1 : 2 };
    return hl_cuda_compiled_for_sm90(c, (const void *)scan_parts<K, W, true>) &&
           sizeof(scan_room<K, W>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" bool HL_OP(gdn_back_fits)(struct hl_cuda *c, int64_t K) {
    return K == 256 ? scan_fits<256>(c) : K == 128 ? scan_fits<128>(c) : scan_fits<64>(c);
}
extern "C" void HL_OP(gdn_back_parts)(struct hl_cuda *c, const struct gdn_back *a) {
    (a->K == 256 ? scan_of<256> : a->K == 128 ? scan_of<128> : scan_of<64>)(c, a);
}
#endif
