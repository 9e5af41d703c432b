/* gdn_ring_cuda.cu -- the forward scan over chunks with its outputs (gdn_ring_cuda.cuh), for the variants ring and
 * ring_split: gdn_prep for all chunks at once, then, if segments are split, the states between the splits
 * (gdn_seqsplit_cuda.cu), then this scan. Floor: q, k, v, A, P read once, out written once.
 *
 * Grid: a block per segment, split, value head and 64 W columns of V (tiles fastest). Block: W consumer
 * warpgroups with 64 columns each, then one producer warpgroup, of which LOAD_THREADS load and STORE_THREADS
 * store.
 *
 * Shared memory has a ring per operand, refilled as soon as a buffer is empty: q after the first product, k, A and P at
 * the end of the chunk, v when out, which replaces it, is in memory. So loads and stores do not wait for each other.
 * mbarriers, by arriving side (waiting side):
 *     full        loaders: q, k, v, A, P and gates of a chunk are complete (consumers)
 *     q_empty     consumers have read q (loaders)
 *     k_empty     consumers have read k, A, P and gates (loaders)
 *     new_full    consumers: v_new is complete (storers)
 *     new_empty   storers have read v_new (consumers)
 *     out_full    consumers: out is complete, in the place of v (storers)
 *     v_empty     storers have read out (loaders) */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_ring_store_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOAD_THREADS = GROUP / 2, VALUES = 3 };

template <int K, int W> struct smem {
    enum { DEPTH = K == 256 ? 2 : 3 };
    bf16 kq[DEPTH][K / 64][2 * PANEL]; /* k above q, so that k S and q S are one product; panels of 64 columns */
    bf16 A[DEPTH][CHUNK * CHUNK], P[DEPTH][CHUNK * CHUNK];
    bf16 v[VALUES][W * PANEL], v_new[W * PANEL]; /* v, then out in its place; a panel for each consumer */
    float gates[DEPTH][GATES];
    uint64_t barriers[3 * DEPTH + 2 * VALUES + 2];
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
};
/* by one thread */
template <int W, int DEPTH> static __device__ __forceinline__ void init_barriers(const forward_barriers<DEPTH> &b) {
    for (int i = 0; i < DEPTH; i++) {
        mbarrier_init(b.full(i), LOAD_THREADS);
        mbarrier_init_warps(b.q_empty(i), 4 * W), mbarrier_init_warps(b.k_empty(i), 4 * W);
    }
    for (int i = 0; i < VALUES; i++)
        mbarrier_init_warps(b.out_full(i), 4 * W), mbarrier_init(b.v_empty(i), STORE_THREADS);
    mbarrier_init_warps(b.new_full(), 4 * W), mbarrier_init(b.new_empty(), STORE_THREADS);
}
/* ---- producer warpgroup: loads, by threads i of LOAD_THREADS ---- */

template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const forward_barriers<smem<K, W>::DEPTH> &b,
                                                 const struct gdn_ring_args &a, const struct chunk_range &w, int i) {
    enum { DEPTH = smem<K, W>::DEPTH };
    for (int c = 0; c < w.chunks; c++) {
        const int n = c % DEPTH;
        const struct chunk_rows r = rows_of(a, w, c);
        const int64_t qk = ((int64_t)(w.row + c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
        mbarrier_wait(b.q_empty(c), empty_parity<DEPTH>(c));
#pragma unroll 1
        for (int p = 0; p < K / 64; p++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.kq[n][p] + PANEL, a.q + qk + 64 * p, (int64_t)a.H * K, r.len, i);
        mbarrier_wait(b.k_empty(c), empty_parity<DEPTH>(c));
#pragma unroll 1
        for (int p = 0; p < K / 64; p++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.kq[n][p], a.k + qk + 64 * p, (int64_t)a.H * K, r.len, i);
        copy_panel<CHUNK, CHUNK, LOAD_THREADS>(x.A[n], a.A + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
        copy_panel<CHUNK, CHUNK, LOAD_THREADS>(x.P[n], a.P + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
        if (i < GATES / 4)
            copy_async(x.gates[n] + 4 * i, a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES + 4 * i);
        mbarrier_wait(b.v_empty(c), empty_parity<VALUES>(c));
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.v[c % VALUES] + g * PANEL, a.v + r.row * a.V + w.col + 64 * g,
                                                (int64_t)a.HV * a.V, r.len, i);
        copy_async_arrive(b.full(c));
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
        mbarrier_arrive(b.v_empty(c));
    }
}

/* ---- consumer warpgroups ---- */

template <int K, int W>
static __device__ __forceinline__ void scan_chunk(smem<K, W> &x, const forward_barriers<smem<K, W>::DEPTH> &b, int c,
                                                  int group, float S[K / 8][4]) {
    enum { DEPTH = smem<K, W>::DEPTH, ROWS = CHUNK / 8, BOTH = K < 256 };
    const int n = c % DEPTH;
    bf16 *v = x.v[c % VALUES] + group * PANEL;
    float d[BOTH ? 2 * ROWS : ROWS][4], *gates = x.gates[n];
    float(*qS)[4] = d + (BOTH ? ROWS : 0);
    uint32_t r[4][4], decayed[4][4];
    mbarrier_wait(b.full(c), full_parity<DEPTH>(c));
    fence_proxy_async();
    const float end = gates[2 * CHUNK - 1];
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
    wgmma_begin<ROWS>(qS);
    times_square(qS, r, x.P[n]);
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
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) ring_scan(const struct gdn_ring_args a) {
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const forward_barriers<smem<K, W>::DEPTH> b(x.barriers);
    const int tiles = a.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.HV, split = blockIdx.x / tiles / a.HV % a.splits,
              s = blockIdx.x / tiles / a.HV / a.splits;
    if (threadIdx.x == 0) init_barriers<W>(b);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    struct chunk_range w = range_of(a, s, split, hv);
    w.tile = tile, w.col = tile * 64 * W;
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        producer_registers<K, W>();
        if (i < LOAD_THREADS) load_loop(x, b, a, w, i);
        else store_loop(x, b, a, w, i - LOAD_THREADS);
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
    launch_pdl(c, ring_scan<K, W>, (unsigned)(a->segs * a->splits * a->HV * (a->V / (64 * W))), (W + 1) * GROUP,
               sizeof(smem<K, W>) + TILES_ROOM, *a);
}
/* Lays out the scratch memory; returns its end. */
static char *carve(const struct hl_gdn *a, int64_t tiles, char *scratch, struct gdn_prep *p, struct gdn_ring_args *x) {
    const int64_t rows = a->rows->T * a->HV, states = x->splits > 1 ? x->segs * a->HV * x->splits * a->K : 0;
    p->P = (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2);
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
    run(backend, a, gdn_ring_splits(a), 1);
}
/* Wide tiles as long as they fill the GPU, as q and k are read once per tile. */
extern "C" void HL_OP(gdn_run_ring)(struct hl_backend *backend, const struct hl_gdn *a) {
    const int64_t blocks = a->rows->n * a->HV * (a->V / 64);
    run(backend, a, 1, a->V % 128 || blocks / 2 < GDN_FULL ? 1 : 2);
}
#endif
