/* gdn_back_scan_cuda.cu -- the reverse scan of the backward pass: dh, the gradient of the state after each
 * chunk, from the last chunk of a segment to its first, and X2 (gdn_back_cuda.cuh). Structure as the forward
 * scan (gdn_trans_cuda.cuh, gdn_ring_cuda.cu), with dO in the place of v:
 *     P = s tril(Q K^T) D       dv_new = P^T dO + eL (K dh)       X2 = A^T dv_new
 *     dh <- exp(G_last) dh + Q^T (s eG dO) - K^T (eG beta X2)
 * Grid: a block per segment, split, value head and 64 W columns of V (tiles fastest). Block: W consumer
 * warpgroups with 64 columns each, which form P together (named barrier 1: P is complete), then a producer
 * warpgroup, whose first warp loads (gdn_copy_cuda.cuh) and whose others store. mbarriers of two rings: in (q, k, A,
 * gates, and dO; the copies fill, the consumers empty) and out (X2, in dO's place; the consumers fill, the storers
 * empty); landed: the copies of a chunk with fewer than 64 rows. Long segments are split, counted from the segment's
 * end. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"
#include "ops/gdn/gdn_copy_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"

#ifndef HL_CUDA_F32

enum { OUTS = 3 };
struct maps {
    struct tensor_map q, k, A, dO;
};
template <int K> struct stage { bf16 q[C * K], k[C * K], P[C * C], A[C * C]; };
template <int K, int W> struct smem {
    enum { DEPTH = K == 256 ? 2 : 3 };
    stage<K> in[DEPTH];
    bf16 out[OUTS][W * PANEL]; /* dO, then X2 in its place; a panel for each consumer */
    float gates[DEPTH][BACK_GATES];
    uint64_t barriers[2 * DEPTH + 2 * OUTS + 1];
    gdn_vanished<DEPTH, 4 * W> vanished;
};
template <int DEPTH> struct reverse_barriers {
    ring_barriers<0, DEPTH> in;
    ring_barriers<2 * DEPTH, OUTS> out;
    __device__ __forceinline__ reverse_barriers(uint64_t *p) : in{mbarrier_base(p)}, out{in.first} {}
    __device__ __forceinline__ mbarrier_t landed() const { return mbarrier_at(in.first, 2 * DEPTH + 2 * OUTS); }
};
/* by one thread; storers: the threads that arrive at out.empty, 0: a thread of each consumer warp */
template <int W, int DEPTH>
static __device__ __forceinline__ void init_barriers(const reverse_barriers<DEPTH> &b, int storers) {
    mbarrier_init(b.landed(), 1);
    for (int i = 0; i < DEPTH; i++) mbarrier_init_warps(b.in.full(i), 1), mbarrier_init_warps(b.in.empty(i), 4 * W);
    for (int i = 0; i < OUTS; i++) {
        mbarrier_init_warps(b.out.full(i), 4 * W);
        if (storers) mbarrier_init(b.out.empty(i), storers);
        else mbarrier_init_warps(b.out.empty(i), 4 * W);
    }
}

/* The chunks of a segment and value head that a block scans. Rows are computed rather than loaded: a load would stall
 * every step. */
struct chunk_range {
    int s, hv, split;
    int first, last, chunks; /* the segment's first and last; the number in this split */
    int64_t row, len;        /* of the segment */
    int top, col;            /* the split's last chunk; column of V */
    bool values;             /* else dO is 0 */
};
static __device__ __forceinline__ chunk_range range_of(const struct gdn_back &a, int s, int hv, int split) {
    const int first = a.chunk_first[s], n = a.chunk_first[s + 1] - first, p = a.split.n - 1 - split;
    const int end = gdn_split_start(n, p + 1, a.split.n);
    return {s,
            hv,
            split,
            first,
            first + n - 1,
            end - gdn_split_start(n, p, a.split.n),
            a.seg[s].row,
            a.seg[s].len,
            first + end - 1,
            0,
            true};
}
/* rows of chunk c, and the first of them, of [T][HV] */
static __device__ __forceinline__ int rows_of(const chunk_range &w, int c) {
    return c < w.last ? C : (int)(w.len - (int64_t)(c - w.first) * C);
}
static __device__ __forceinline__ int64_t row_of(const struct gdn_back &a, const chunk_range &w, int c) {
    return (w.row + (int64_t)(c - w.first) * C) * a.HV + w.hv;
}

/* ---- producer warpgroup ---- */

/* By a warp. Without values only what M takes: k, A and the gates. */
template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &m, const reverse_barriers<smem<K, W>::DEPTH> &b,
                                                 const struct gdn_back &a, const struct maps &maps,
                                                 const chunk_range &w, int lane) {
    enum { DEPTH = smem<K, W>::DEPTH };
    const int hk = w.hv / a.group * K, bytes = 2 * C * (w.values ? 2 * K + C + 64 * W : K + C) + 4 * BACK_GATES;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step, n = rows_of(w, c), row = (int)w.row + (c - w.first) * C;
        stage<K> &s = m.in[step % DEPTH];
        bf16 *dO = m.out[step % OUTS];
        if (!w.values) { /* of a chunk with all rows */
            mbarrier_wait(b.in.empty(step), empty_parity<DEPTH>(step));
            if (__shfl_sync(0xffffffffu, lane == 0 && m.vanished.ends(step), 0)) {
                mbarrier_arrive_warp(b.in.full(step), lane);
                return;
            }
        }
        if (lane == 0) {
            const mbarrier_t full = n == C ? b.in.full(step) : b.landed();
            mbarrier_wait(b.in.empty(step), empty_parity<DEPTH>(step));
            mbarrier_arrive_expect_tx(full, bytes);
            for (int p = 0; p < K / 64; p++) {
                tensor_copy(s.k + p * PANEL, &maps.k, row, hk + 64 * p, full);
                if (w.values) tensor_copy(s.q + p * PANEL, &maps.q, row, hk + 64 * p, full);
            }
            bulk_copy(m.gates[step % DEPTH], a.gates + ((int64_t)c * a.HV + w.hv) * BACK_GATES, 4 * BACK_GATES, full,
                      true);
            tensor_copy(s.A, &maps.A, row, w.hv * C, full);
            if (w.values) mbarrier_wait(b.out.empty(step), empty_parity<OUTS>(step));
            for (int g = 0; g < W && w.values; g++)
                tensor_copy(dO + g * PANEL, &maps.dO, row, w.hv * a.V + w.col + 64 * g, full);
        }
        __syncwarp();
        if (n == C) {
            if (lane > 0 && lane < WARP_ARRIVALS) mbarrier_arrive(b.in.full(step));
            continue;
        }
        mbarrier_wait(b.landed(), 0); /* only the segment's last chunk can be shorter, and it comes first */
        clear_rows(s.q, K / 64, n, lane), clear_rows(s.k, K / 64, n, lane), clear_rows(s.A, 1, n, lane);
        clear_rows(dO, W, n, lane);
        fence_proxy_async();
        mbarrier_arrive_warp(b.in.full(step), lane);
    }
}
/* X2 to memory in the layout of shared memory, by one thread: a bulk store per chunk, of which one may be running */
template <int K, int W>
static __device__ __forceinline__ void store_tiles(smem<K, W> &m, const reverse_barriers<smem<K, W>::DEPTH> &b,
                                                   const struct gdn_back &a, const chunk_range &w) {
    for (int step = 0; step < w.chunks; step++) {
        const int64_t item = (int64_t)(w.top - step) * a.HV + w.hv;
        mbarrier_wait(b.out.full(step), full_parity<OUTS>(step));
        bulk_store((bf16 *)a.X2 + item * C * a.V + w.col * C, m.out[step % OUTS], W * PANEL * (int)sizeof(bf16));
        if (step == 0) continue;
        bulk_store_wait_read<1>();
        mbarrier_arrive(b.out.empty(step - 1));
    }
    bulk_store_wait_read<0>();
}
/* X2 of the block's columns to memory row by row; by threads i of STORE_THREADS */
template <int K, int W>
static __device__ __forceinline__ void store_loop(smem<K, W> &m, const reverse_barriers<smem<K, W>::DEPTH> &b,
                                                  const struct gdn_back &a, const chunk_range &w, int i) {
    enum { STEP = row_store<W>::STEP };
    const row_store<W> p(i);
    const int64_t next = (int64_t)STEP * a.HV * a.V;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step, n = rows_of(w, c);
        bf16 *to = (bf16 *)a.X2 + (row_of(a, w, c) + (int64_t)p.row * a.HV) * a.V + w.col + p.col;
        mbarrier_wait(b.out.full(step), full_parity<OUTS>(step));
#pragma unroll
        for (int first = 0; first < C; first += BATCH * STEP) {
            uint4 x[BATCH];
            p.read(x, m.out[step % OUTS], first);
            p.write(to, x, next, n - first), to += BATCH * next;
        }
        fence_proxy_async(); /* before the next copy to it */
        mbarrier_arrive(b.out.empty(step));
    }
}

/* ---- consumer warpgroups ---- */

/* d += x T, T [64][64] */
static __device__ __forceinline__ void times_square(float d[C / 8][4], const uint32_t x[4][4], const bf16 *T) {
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<C>(d, x[i], operand<C, true>{T, 16 * i, 0});
}
/* -eG beta d, by columns, as A operands */
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

/* P; the warpgroup has C / W of its columns */
template <int K, int W> static __device__ __forceinline__ void form_scores(stage<K> &s, const float *gates, int group) {
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
    for (int n = 0; n < COLS / 8; n++) /* all loads before the stores, which the compiler must assume may alias */
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
/* One chunk: dh after it becomes dh before it. to: destination for dh after it, or NULL. VALUES: else dO is 0. */
template <int K, int W, bool FINAL, bool VALUES>
static __device__ __forceinline__ void scan_chunk(smem<K, W> &m, const reverse_barriers<smem<K, W>::DEPTH> &b, int step,
                                                  int group, float dh[K / 8][4], bf16 *to) {
    enum { DEPTH = smem<K, W>::DEPTH };
    stage<K> &s = m.in[step % DEPTH];
    const float *gates = m.gates[step % DEPTH], *eG = gates + EG, *eL = gates + EL, *beta = gates + BETA;
    const float scale = 1.0f / sqrtf((float)K);
    bf16 *out = m.out[step % OUTS] + group * PANEL;
    float d[C / 8][4];
    uint32_t x[4][4], y[4][4];
    const float end = eG[C - 1];
    if constexpr (VALUES) form_scores<K, W>(s, gates, group);
    read_state<K>(d, dh, s.k, to);
    scale_columns(d, eL, 1.0f);
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dh[n][i] *= end;
    if constexpr (VALUES) {
#pragma unroll
        for (int i = 0; i < 4; i++) tile_load_a_trans<64>(x[i], out, 16 * i, threadIdx.x / 32 % 4 * 16);
        scale_operands(y, x, eG, scale); /* both uses of dO: dv += P^T dO and dh += Q^T (s eG dO) */
        wgmma_hold_a<4>(x), wgmma_hold_a<4>(y);
        if (!FINAL) mbarrier_arrive_warp(b.out.empty(step));
        named_barrier_sync(1, W * GROUP); /* P is complete */
        wgmma_begin<C / 8>(d);
        times_square(d, x, s.P);
        wgmma_commit_wait<1>();
        wgmma_begin<K / 8>(dh);
        write_state<K>(dh, y, s.q);
        wgmma_commit_wait<1>();
        wgmma_hold<C / 8>(d), wgmma_hold_a<4>(x);
    }
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
    if constexpr (FINAL) {
        wgmma_commit_wait<1>();
#pragma unroll
        for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
        store_trans(out, x);
        fence_proxy_async();
        mbarrier_arrive_warp(b.out.full(step));
    }
    wgmma_wait_all<K / 8>(dh);
    wgmma_hold_a<4>(y);
    if constexpr (!VALUES) m.vanished.template note<K>(dh, step);
    mbarrier_arrive_warp(b.in.empty(step));
}

template <int K, int W, bool FINAL, bool STATES, bool VALUES>
static __device__ __forceinline__ void scan_loop(smem<K, W> &m, const reverse_barriers<smem<K, W>::DEPTH> &b,
                                                 const struct gdn_back &a, const chunk_range &w, int group,
                                                 float dh[K / 8][4]) {
    const int64_t col = w.col + group * 64, row = threadIdx.x / 32 % 4 * 16;
    for (int step = 0; step < w.chunks; step++) {
        const int c = w.top - step;
        bf16 *to = NULL;
        if (a.dh && (c < w.last || (STATES && a.dht)))
            to = (bf16 *)a.dh + (((int64_t)c * a.HV + w.hv) * a.V + col) * K + row * 64;
        mbarrier_wait(b.in.full(step), full_parity<smem<K, W>::DEPTH>(step));
        if (!VALUES && m.vanished.end[step % smem<K, W>::DEPTH]) break;
        scan_chunk<K, W, FINAL, VALUES>(m, b, step, group, dh, to);
    }
}

/* FINAL: stores dh and X2. Otherwise only the states between the splits: tiles of V's columns, then of K's (the
 * identity). fused: one thread stores X2 by bulk copies; otherwise STORE_THREADS do. */
template <int K, int W, bool FINAL, bool STATES>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1)
    reverse_scan(const struct gdn_back a, const __grid_constant__ struct maps maps) {
    smem<K, W> &m = *(smem<K, W> *)shared_tiles();
    const reverse_barriers<smem<K, W>::DEPTH> b(m.barriers);
    const int tiles = a.V / (64 * W), tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
    const struct gdn_split_unit u =
        FINAL ? gdn_split_unit{true, tile, head % a.HV, head / a.HV % a.split.n, head / a.HV / a.split.n}
              : gdn_split_unit_of(a.split, blockIdx.x, tiles, K / (64 * W));
    const int group = warpgroup_index(), hv = u.hv, split = u.split, s = u.s;
    named_barrier_init();
    chunk_range w = range_of(a, s, hv, split);
    w.values = u.values, w.col = u.tile * 64 * W;
    if (threadIdx.x == 0) init_barriers<W>(b, !FINAL ? 0 : a.fused ? 1 : STORE_THREADS);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    if (group == W) {
        producer_registers<K, W>();
        const int i = threadIdx.x - W * GROUP;
        if (i < 32) load_loop<K, W>(m, b, a, maps, w, i);
        else if (FINAL && a.fused && i == 32) store_tiles<K, W>(m, b, a, w);
        else if (FINAL && !a.fused && i >= GROUP - STORE_THREADS)
            store_loop<K, W>(m, b, a, w, i - (GROUP - STORE_THREADS));
    } else {
        consumer_registers<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float dh[K / 8][4];
        if (w.values)
            load_state<K>(dh, FINAL && split > 0 ? split_state(a.split, K, s, hv, split - 1) + col : NULL, a.V);
        else identity_state<K>(dh, (int)col);
        if constexpr (STATES)
            if (w.values && split == 0 && a.dht) load_state<K>(dh, end_state(a, a.dht, s, hv) + col, a.V);
        if (FINAL || w.values) scan_loop<K, W, FINAL, STATES, true>(m, b, a, w, group, dh);
        else scan_loop<K, W, FINAL, STATES, false>(m, b, a, w, group, dh);
        if (FINAL && STATES && a.dh0 && split + 1 == a.split.n)
            store_state<K>(end_state(a, a.dh0, s, hv) + col, dh, a.V);
        if (!FINAL && w.values) store_state<K>(split_state(a.split, K, s, hv, split) + col, dh, a.V);
        else if (!FINAL) store_state<K>(split_transition(a.split, K, s, hv, split) + col, dh, K);
    }
}

template <int K, int W, bool FINAL> static void launch_scan(struct hl_cuda *c, const struct gdn_back *a) {
    const int tiles = a->V / (64 * W);
    const int64_t blocks =
        FINAL ? a->segs * a->HV * a->split.n * tiles : gdn_split_units(&a->split, tiles, K / (64 * W));
    struct gdn_back x = *a;
    if (!FINAL) x.dh = NULL;
    const struct maps maps = {gdn_map(a->q, a->T, a->H * K), gdn_map(a->k, a->T, a->H * K),
                              gdn_map(a->A, a->T, a->HV * C), gdn_map(a->dout, a->T, a->HV * a->V)};
    launch_pdl(c, back_states_given(a) ? reverse_scan<K, W, FINAL, true> : reverse_scan<K, W, FINAL, false>,
               (unsigned)blocks, (W + 1) * GROUP, sizeof(smem<K, W>) + TILES_ROOM, x, maps);
}
/* Wide tiles if they fill the GPU. */
template <int K> static void run(struct hl_cuda *c, const struct gdn_back *a) {
    const bool busy = a->segs * a->HV * a->split.n * (a->V / 128) >= GDN_FULL;
    if (a->split.n > 1) {
        if constexpr (K % 128 == 0) (a->V % 128 ? launch_scan<K, 1, false> : launch_scan<K, 2, false>)(c, a);
        else launch_scan<K, 1, false>(c, a);
        HL_OP(gdn_join_splits)(c, &a->split, K);
    }
    if constexpr (K % 128 == 0) (a->V % 128 || !busy ? launch_scan<K, 1, true> : launch_scan<K, 2, true>)(c, a);
    else launch_scan<K, 1, true>(c, a);
}
template <int K> static bool scan_fits(struct hl_cuda *c) {
    enum { W = K % 128 ? 1 : 2 };
    return hl_cuda_compiled_for_sm90(c, (const void *)reverse_scan<K, W, true, false>) &&
           sizeof(smem<K, W>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" bool HL_OP(gdn_back_scan_fits)(struct hl_cuda *c, int64_t K) {
    return K == 256 ? scan_fits<256>(c) : K == 128 ? scan_fits<128>(c) : scan_fits<64>(c);
}
extern "C" void HL_OP(gdn_back_scan)(struct hl_cuda *c, const struct gdn_back *a) {
    (a->K == 256 ? run<256> : a->K == 128 ? run<128> : run<64>)(c, a);
}
#endif
