/* gdn_ring_cuda.cu -- the forward scan over chunks with its outputs (gdn_ring_cuda.cuh), for the variants ring and
 * ring_split: gdn_prep for all chunks at once, then, if segments are split, the states between the splits
 * (gdn_seqsplit_cuda.cu), then this scan. Floor: q, k, v, A, P read once, out written once.
 *
 * Grid: a block per segment, split, value head and 64 W columns of V (tiles fastest). Block: W consumer
 * warpgroups with 64 columns each, then one producer warpgroup: its first warp loads (gdn_copy_cuda.cuh), its last
 * STORE_THREADS store.
 *
 * Shared memory has a ring per operand, refilled as soon as a buffer is empty: q after the first product, k, A and P at
 * the end of the chunk, v when out, which replaces it, is in memory. So loads and stores do not wait for each other.
 * mbarriers, by arriving side (waiting side):
 *     full        the copies: q, k, v, A, gates and, with keys of 256, P of a chunk are complete (consumers)
 *     landed      the same of a chunk with fewer than 64 rows (the loading warp, which then arrives at full)
 *     q_empty     consumers have read q (the loading warp)
 *     k_empty     consumers have read k, A, P and gates (the loading warp)
 *     new_full    consumers: v_new is complete (storers)
 *     new_empty   storers have read v_new (consumers)
 *     out_full    consumers: out is complete, in the place of v (storers)
 *     v_empty     storers have read out (the loading warp) */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_copy_cuda.cuh"
#include "ops/gdn/gdn_ring_store_cuda.cuh"

#ifndef HL_CUDA_F32

enum { VALUES = 3 };

struct maps {
    struct tensor_map q, k, v, A, P;
};

/* FORMS: the consumers form P, each some of its columns, in the second of two buffers while the first may still be read;
 * otherwise it is gdn_prep's, since with keys of 256 there is no time for it. */
template <int K, int W> struct smem {
    enum { DEPTH = K == 256 ? 2 : 3, FORMS = K < 256, GATES_HERE = FORMS ? (int)GATES : (int)GATES_READ };
    bf16 kq[DEPTH][K / 64][2 * PANEL]; /* k above q, so that k S and q S are one product; panels of 64 columns */
    bf16 A[DEPTH][CHUNK * CHUNK], P[2][CHUNK * CHUNK];
    bf16 v[VALUES][W * PANEL], v_new[W * PANEL]; /* v, then out in its place; a panel for each consumer */
    float gates[DEPTH][GATES_HERE];
    uint64_t barriers[3 * DEPTH + 2 * VALUES + 3];
};

/* in: full, and empty for q; v: full for out, and empty for v */
template <int DEPTH> struct forward_barriers {
    ring_barriers<0, DEPTH> in;
    ring_barriers<3 * DEPTH, VALUES> v;
    ring_barriers<3 * DEPTH + 2 * VALUES, 1> v_new;
    __device__ __forceinline__ forward_barriers(uint64_t *p) : in{mbarrier_base(p)}, v{in.first}, v_new{in.first} {}
    __device__ __forceinline__ mbarrier_t full(int c) const { return in.full(c); }
    __device__ __forceinline__ mbarrier_t q_empty(int c) const { return in.empty(c); }
    __device__ __forceinline__ mbarrier_t k_empty(int c) const { return mbarrier_at(in.first, 2 * DEPTH + c % DEPTH); }
    __device__ __forceinline__ mbarrier_t out_full(int c) const { return v.full(c); }
    __device__ __forceinline__ mbarrier_t v_empty(int c) const { return v.empty(c); }
    __device__ __forceinline__ mbarrier_t new_full() const { return v_new.full(0); }
    __device__ __forceinline__ mbarrier_t new_empty() const { return v_new.empty(0); }
    __device__ __forceinline__ mbarrier_t landed() const { return mbarrier_at(in.first, 3 * DEPTH + 2 * VALUES + 2); }
};
/* by one thread */
template <int W, int DEPTH> static __device__ __forceinline__ void init_barriers(const forward_barriers<DEPTH> &b) {
    mbarrier_init(b.landed(), 1);
    for (int i = 0; i < DEPTH; i++) {
        mbarrier_init_warps(b.full(i), 1);
        mbarrier_init_warps(b.q_empty(i), 4 * W), mbarrier_init_warps(b.k_empty(i), 4 * W);
    }
    for (int i = 0; i < VALUES; i++)
        mbarrier_init_warps(b.out_full(i), 4 * W), mbarrier_init(b.v_empty(i), STORE_THREADS);
    mbarrier_init_warps(b.new_full(), 4 * W), mbarrier_init(b.new_empty(), STORE_THREADS);
}
/* ---- producer warpgroup: loads, by a warp ---- */

template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const forward_barriers<smem<K, W>::DEPTH> &b,
                                                 const struct gdn_ring_args &a, const struct maps &maps,
                                                 const struct chunk_range &w, int lane) {
    typedef smem<K, W> M;
    enum { DEPTH = M::DEPTH, SQUARES = M::FORMS ? 1 : 2 };
    enum { BYTES = 2 * CHUNK * (2 * K + SQUARES * CHUNK + 64 * W) + 4 * M::GATES_HERE };
    const int qk = w.hv / (a.HV / a.H) * K;
    for (int c = 0; c < w.chunks; c++) {
        const int n = c % DEPTH, row = w.row + c * CHUNK, len = rows_of(a, w, c).len;
        bf16 *k = x.kq[n][0], *v = x.v[c % VALUES];
        if (lane == 0) {
            const mbarrier_t full = len == CHUNK ? b.full(c) : b.landed();
            mbarrier_wait(b.q_empty(c), empty_parity<DEPTH>(c));
            mbarrier_arrive_expect_tx(full, BYTES);
            for (int p = 0; p < K / 64; p++) tensor_copy(k + (2 * p + 1) * PANEL, &maps.q, row, qk + 64 * p, full);
            mbarrier_wait(b.k_empty(c), empty_parity<DEPTH>(c));
            for (int p = 0; p < K / 64; p++) tensor_copy(k + 2 * p * PANEL, &maps.k, row, qk + 64 * p, full);
            tensor_copy(x.A[n], &maps.A, row, w.hv * CHUNK, full);
            if (!M::FORMS) tensor_copy(x.P[n], &maps.P, row, w.hv * CHUNK, full);
            bulk_copy(x.gates[n], a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES, 4 * M::GATES_HERE, full,
                      true);
            mbarrier_wait(b.v_empty(c), empty_parity<VALUES>(c));
            for (int g = 0; g < W; g++) tensor_copy(v + g * PANEL, &maps.v, row, w.hv * a.V + w.col + 64 * g, full);
        }
        __syncwarp();
        if (len == CHUNK) {
            if (lane > 0 && lane < WARP_ARRIVALS) mbarrier_arrive(b.full(c));
            continue;
        }
        mbarrier_wait(b.landed(), 0); /* only a range's last chunk can be shorter */
        clear_rows(k, 2 * K / 64, len, lane), clear_rows(v, W, len, lane);
        clear_rows(x.A[n], 1, len, lane);
        fence_proxy_async();
        mbarrier_arrive_warp(b.full(c), lane);
    }
}

/* ---- producer warpgroup: stores, by threads i of STORE_THREADS ---- */

template <int K, int W>
static __device__ __forceinline__ void store_loop(smem<K, W> &x, const forward_barriers<smem<K, W>::DEPTH> &b,
                                                  const struct gdn_ring_args &a, const struct chunk_range &w, int i) {
    const row_store<W> p(i);
    for (int c = 0; c < w.chunks; c++) {
        mbarrier_wait(b.new_full(), full_parity<1>(c));
        store_new<W>(x.v_new, a, w, p, c, i);
        mbarrier_arrive(b.new_empty());
        mbarrier_wait(b.out_full(c), full_parity<VALUES>(c));
        store_out<W>(x.v[c % VALUES], a, w, p, c);
        fence_proxy_async(); /* before the next copy to it */
        mbarrier_arrive(b.v_empty(c));
    }
}

/* ---- consumer warpgroups ---- */

/* P; the warpgroup has C / W of its columns */
template <int K, int W>
static __device__ __forceinline__ void form_scores(bf16 *P, const bf16 *kq, const float *G, int group) {
    enum { COLS = CHUNK / W };
    const int t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4, row = 16 * warp + threadIdx.x % 32 / 4;
    const float scale = 1.0f / sqrtf((float)K), G_row[2] = {G[row], G[row + 8]};
    float d[COLS / 8][4] = {};
    wgmma_begin<COLS / 8>(d);
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        wgmma_ss<COLS>(d, operand<64, false>{kq + (n / 4 * 2 + 1) * PANEL, 0, n % 4 * 16},
                       operand<64, false>{kq + n / 4 * 2 * PANEL, group * COLS, n % 4 * 16});
    wgmma_end<COLS / 8>(d);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++) {
        const int j = group * COLS + 8 * n + 2 * t;
        const float2 G_col = *(const float2 *)(G + j);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row + 8 * h;
            d[n][2 * h] = j <= i ? scale * d[n][2 * h] * fast_exp2(G_row[h] - G_col.x) : 0.0f;
            d[n][2 * h + 1] = j < i ? scale * d[n][2 * h + 1] * fast_exp2(G_row[h] - G_col.y) : 0.0f;
        }
    }
#pragma unroll
    for (int n = 0; n < COLS / 8; n += 2) {
        uint32_t y[4];
        pack_a(y, d + n);
        tile_store<CHUNK>(P, y, 16 * warp, group * COLS + 8 * n);
    }
    fence_proxy_async();
}
template <int K, int W>
static __device__ __forceinline__ void scan_chunk(smem<K, W> &x, const forward_barriers<smem<K, W>::DEPTH> &b, int c,
                                                  int group, float S[K / 8][4]) {
    enum { DEPTH = smem<K, W>::DEPTH, ROWS = CHUNK / 8, BOTH = K < 256, FORMS = smem<K, W>::FORMS };
    const int n = c % DEPTH;
    bf16 *v = x.v[c % VALUES] + group * PANEL;
    float d[BOTH ? 2 * ROWS : ROWS][4], *gates = x.gates[n];
    float(*qS)[4] = d + (BOTH ? ROWS : 0);
    uint32_t r[4][4], decayed[4][4];
    mbarrier_wait(b.full(c), full_parity<DEPTH>(c));
    const float end = gates[2 * CHUNK - 1];
    bf16 *P = x.P[FORMS ? c % 2 : n];
    if (FORMS) form_scores<K, W>(P, x.kq[n][0], gates + 3 * CHUNK, group);
    read_state<K, false, BOTH ? 2 * CHUNK : CHUNK, 2 * PANEL>(d, S, x.kq[n][0], NULL); /* k S, then q S */
    if (BOTH) mbarrier_arrive_warp(b.q_empty(c));
    solve_values(r, d, v, x.A[n], gates);
    mbarrier_wait(b.new_empty(), empty_parity<1>(c));
    store_trans(x.v_new + group * PANEL, r);
    mbarrier_arrive_warp(b.new_full());
    if (!BOTH) {
        read_state<K, true, CHUNK, 2 * PANEL>(d, S, x.kq[n][0] + PANEL, NULL);
        mbarrier_arrive_warp(b.q_empty(c));
    }
    scale_columns(qS, gates + CHUNK, 1.0f / sqrtf((float)K));
    if (FORMS) named_barrier_sync(1, W * GROUP); /* P is complete, and the last chunk's has been read */
    wgmma_begin<ROWS>(qS);
    times_square(qS, r, P);
    wgmma_commit_wait<1>();
    update_state<K, 2 * PANEL>(S, decayed, r, x.kq[n][0], gates, end);
    wgmma_commit_wait<1>(); /* out is complete */
    wgmma_hold<ROWS>(qS), wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], qS + 2 * i);
    store_trans(v, r);
    mbarrier_arrive_warp(b.out_full(c));
    wgmma_wait_all<K / 8>(S);
    wgmma_hold_a<4>(decayed);
    mbarrier_arrive_warp(b.k_empty(c));
}

template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1)
    ring_scan(const struct gdn_ring_args a, const __grid_constant__ struct maps maps) {
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const forward_barriers<smem<K, W>::DEPTH> b(x.barriers);
    const int tiles = a.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.HV, split = blockIdx.x / tiles / a.HV % a.splits,
              s = blockIdx.x / tiles / a.HV / a.splits;
    named_barrier_init();
    if (threadIdx.x == 0) init_barriers<W>(b);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    struct chunk_range w = range_of(a, s, split, hv);
    w.tile = tile, w.col = tile * 64 * W;
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        producer_registers<K, W>();
        if (i < 32) load_loop(x, b, a, maps, w, i);
        else if (i >= GROUP - STORE_THREADS) store_loop(x, b, a, w, i - (GROUP - STORE_THREADS));
    } else {
        consumer_registers<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float S[K / 8][4], *session = session_state(a.split, K, s, hv), *from = session;
        if (a.splits > 1) from = split_state(a.split, K, s, hv, (split + a.splits - 1) % a.splits);
        load_state<K>(S, from ? from + col : NULL, a.V);
        for (int c = 0; c < w.chunks; c++) scan_chunk(x, b, c, group, S);
        if (session && split + 1 == a.splits) store_state<K>(session + col, S, a.V);
    }
}

template <int K, int W> static bool ring_fits(struct hl_cuda *c) {
    return hl_cuda_compiled_for_sm90(c, (const void *)ring_scan<K, W>) &&
           sizeof(smem<K, W>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" bool HL_OP(gdn_ring_fits)(struct hl_cuda *c, int64_t K, int64_t V) {
    if (V % 64) return false;
    return K == 256 ? ring_fits<256, 2>(c) : K == 128 ? ring_fits<128, 2>(c) : K == 64 && ring_fits<64, 1>(c);
}

template <int K, int W> static void launch_ring(struct hl_cuda *c, const struct gdn_ring_args *a) {
    const struct maps maps = {gdn_map(a->q, a->T, a->H * K), gdn_map(a->k, a->T, a->H * K),
                              gdn_map(a->v, a->T, a->HV * a->V), gdn_map(a->A, a->T, a->HV * CHUNK),
                              smem<K, W>::FORMS ? tensor_map{} : gdn_map(a->P, a->T, a->HV * CHUNK)};
    launch_pdl(c, ring_scan<K, W>, (unsigned)(a->segs * a->splits * a->HV * (a->V / (64 * W))), (W + 1) * GROUP,
               sizeof(smem<K, W>) + TILES_ROOM, *a, maps);
}
/* Lays out the scratch memory; returns its end. */
static char *carve(const struct hl_gdn *a, int64_t tiles, char *scratch, struct gdn_prep *p, struct gdn_ring_args *x) {
    const int64_t rows = a->rows->T * a->HV, states = x->splits > 1 ? x->segs * a->HV * x->splits * a->K : 0;
    p->P = a->K == 256 ? (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2) : NULL; /* smem: FORMS */
    p->A = a->A ? (bf16 *)a->A : (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2);
    p->gates = (float *)gdn_carve(&scratch, a->rows->dev->chunks * a->HV * GATES * 4);
    x->sums = tiles > 1 || !a->m ? (float *)gdn_carve(&scratch, tiles * rows * 4) : NULL;
    x->split.states = (float *)gdn_carve(&scratch, states * a->V * 4);
    x->split.transitions = (float *)gdn_carve(&scratch, states * a->K * 4);
    return scratch;
}
static void run(struct hl_backend *backend, const struct hl_gdn *a, int splits, int W) {
    const int64_t tiles = a->V / (64 * W), K = a->K;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct gdn_prep p = {};
    struct gdn_ring_args x = {(const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v};
    x.segs = a->rows->n, x.splits = splits;
    char *scratch = (char *)hl_cuda_scratch(c, carve(a, tiles, NULL, &p, &x) - (char *)NULL);
    if (!scratch) return;
    carve(a, tiles, scratch, &p, &x);
    HL_OP(gdn_prep)(backend, a, &p);
    x.A = p.A, x.P = p.P, x.gates = p.gates;
    x.out = (bf16 *)a->out, x.v_new = (bf16 *)a->v_new, x.m = a->m;
    x.seg = a->rows->dev->seg, x.chunk_first = a->rows->dev->chunk_first;
    x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    x.split.seg = x.seg, x.split.segs = x.segs, x.split.S_off = a->S_off;
    x.split.HV = x.HV, x.split.V = x.V, x.split.n = splits;
    if (splits > 1) HL_OP(gdn_split_states)(c, &x, K);
    if (K == 256) (W == 2 ? launch_ring<256, 2> : launch_ring<256, 1>)(c, &x);
    else if (K == 128) (W == 2 ? launch_ring<128, 2> : launch_ring<128, 1>)(c, &x);
    else launch_ring<64, 1>(c, &x);
    if (tiles > 1 && a->m) HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, a->rows->T * a->HV);
}

extern "C" void HL_OP(gdn_run_ring_split)(struct hl_backend *backend, const struct hl_gdn *a) {
    const struct gdn_ring_plan plan = gdn_ring_plan_of(a);
    run(backend, a, plan.splits, plan.W);
}
/* Wide tiles as long as they fill the GPU, as q and k are read once per tile. */
extern "C" void HL_OP(gdn_run_ring)(struct hl_backend *backend, const struct hl_gdn *a) {
    const int64_t blocks = a->rows->n * a->HV * (a->V / 64);
    run(backend, a, 1, a->V % 128 || blocks / 2 < GDN_FULL ? 1 : 2);
}
#endif
