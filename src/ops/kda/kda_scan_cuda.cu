/* kda_scan_cuda.cu -- the forward scan of KDA over chunks (kda_cuda.cuh), after kda_prep. Floor: tiles, A and v read
 * once, out and v_new written once.
 *
 * Grid: a block per segment, value head and 64 W columns of V (tiles fastest). Block: W consumer warpgroups with 64
 * columns each, which hold the transposed state in registers (gdn_trans_cuda.cuh), then one producer warpgroup, of
 * which LOAD_THREADS load and STORE_THREADS store. Shared memory: rings of DEPTH chunks of tiles and A, of VALUES
 * chunks of v, and v_new. mbarriers, by who arrives (who waits):
 *     full        loaders: tiles, A and v of a chunk are complete (consumers)
 *     empty       consumers have read tiles and A (loaders)
 *     new_full    consumers: v_new is complete (storers)
 *     new_empty   storers have read v_new (consumers)
 *     out_full    consumers: out is complete, in the place of v (storers)
 *     v_empty     storers have read out (loaders) */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_ring_store_cuda.cuh"
#include "ops/decay/pair_cuda.cuh"
#include "ops/kda/kda_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOAD_THREADS = GROUP / 2, VALUES = 3, DEPTH = 2 };

struct args {
    struct gdn_ring_args r; /* without q, k, P and gates */
    const void *tiles;
};
template <int K, int W> struct smem {
    struct kda_tiles<K> tiles[DEPTH];
    bf16 A[DEPTH][CHUNK * CHUNK];
    bf16 v[VALUES][W * PANEL], v_new[W * PANEL]; /* v, then out in its place; a panel for each consumer */
    uint64_t barriers[2 * DEPTH + 2 * VALUES + 2];
};
struct barriers {
    ring_barriers<0, DEPTH> in;
    ring_barriers<2 * DEPTH, VALUES> v; /* full: of out */
    ring_barriers<2 * DEPTH + 2 * VALUES, 1> v_new;
    __device__ __forceinline__ barriers(uint64_t *p) : in{mbarrier_base(p)}, v{in.first}, v_new{in.first} {}
};
/* by one thread */
template <int W> static __device__ __forceinline__ void init_barriers(const struct barriers &b) {
    for (int i = 0; i < DEPTH; i++)
        mbarrier_init(b.in.full(i), LOAD_THREADS + 1), mbarrier_init_warps(b.in.empty(i), 4 * W);
    for (int i = 0; i < VALUES; i++)
        mbarrier_init_warps(b.v.full(i), 4 * W), mbarrier_init(b.v.empty(i), STORE_THREADS);
    mbarrier_init_warps(b.v_new.full(0), 4 * W), mbarrier_init(b.v_new.empty(0), STORE_THREADS);
}

/* ---- producer warpgroup ---- */

template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const struct barriers &b, const struct args &a,
                                                 const struct chunk_range &w, int i) {
    const struct kda_tiles<K> *tiles = (const struct kda_tiles<K> *)a.tiles + (int64_t)w.first * a.r.HV + w.hv;
    for (int c = 0; c < w.chunks; c++) {
        const int n = c % DEPTH;
        const struct chunk_rows r = rows_of(a.r, w, c);
        mbarrier_wait(b.in.empty(c), empty_parity<DEPTH>(c));
        if (i == 0) {
            mbarrier_arrive_expect_tx(b.in.full(c), sizeof x.tiles[n]);
            bulk_copy(&x.tiles[n], tiles + (int64_t)c * a.r.HV, sizeof x.tiles[n], b.in.full(c), a.r.V > 64 * W);
        }
        copy_panel<CHUNK, CHUNK, LOAD_THREADS>(x.A[n], a.r.A + r.row * CHUNK, (int64_t)a.r.HV * CHUNK, r.len, i);
        mbarrier_wait(b.v.empty(c), empty_parity<VALUES>(c));
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.v[c % VALUES] + g * PANEL, a.r.v + r.row * a.r.V + w.col + 64 * g,
                                                (int64_t)a.r.HV * a.r.V, r.len, i);
        copy_async_arrive(b.in.full(c));
    }
}
template <int K, int W>
static __device__ __forceinline__ void store_loop(smem<K, W> &x, const struct barriers &b, const struct args &a,
                                                  const struct chunk_range &w, int i) {
    const row_store<W> p(i);
    for (int c = 0; c < w.chunks; c++) {
        mbarrier_wait(b.v_new.full(0), full_parity<1>(c));
        store_new<W>(x.v_new, a.r, w, p, c, i);
        mbarrier_arrive(b.v_new.empty(0));
        mbarrier_wait(b.v.full(c), full_parity<VALUES>(c));
        store_out<W>(x.v[c % VALUES], a.r, w, p, c);
        mbarrier_arrive(b.v.empty(c));
    }
}

/* ---- consumer warpgroups ---- */

template <int K, int W>
static __device__ __forceinline__ void scan_chunk(smem<K, W> &x, const struct barriers &b, int c, int group,
                                                  float S[K / 8][4]) {
    enum { ROWS = CHUNK / 8 };
    const struct kda_tiles<K> &y = x.tiles[c % DEPTH];
    bf16 *v = x.v[c % VALUES] + group * PANEL;
    float d[2 * ROWS][4], qS[ROWS][4];
    uint32_t r[4][4];
    mbarrier_wait(b.in.full(c), full_parity<DEPTH>(c));
    fence_proxy_async();
    read_state<K, false, 2 * CHUNK, 2 * PANEL>(d, S, y.kq[0], NULL); /* kg S, then qg S */
    solve_values(r, d, v, x.A[c % DEPTH], y.beta);
    mbarrier_wait(b.v_new.empty(0), empty_parity<1>(c));
    store_trans(x.v_new + group * PANEL, r);
    mbarrier_arrive_warp(b.v_new.full(0));
    /* accumulators of one product cannot be reused in place for the other: half of them are moved, by multiplying by a
     * one that the compiler cannot see */
    const float one = __int_as_float(0x3f800000 + (int)blockIdx.z);
#pragma unroll
    for (int i = 0; i < 4 * ROWS; i++) qS[i / 4][i % 4] = one * d[ROWS + i / 4][i % 4];
    wgmma_begin<ROWS>(qS);
    times_square(qS, r, y.P);
    wgmma_commit_wait<1>();
    pair_scale<K / 8>(S, y.end);
    wgmma_begin<K / 8>(S);
    write_state<K>(S, r, y.ke[0]);
    wgmma_commit_wait<1>(); /* out is complete */
    wgmma_hold<ROWS>(qS);
    uint32_t out[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(out[i], qS + 2 * i);
    store_trans(v, out);
    mbarrier_arrive_warp(b.v.full(c));
    wgmma_wait_all<K / 8>(S);
    wgmma_hold_a<4>(r);
    mbarrier_arrive_warp(b.in.empty(c));
}

template <int K, int W> static __global__ void __launch_bounds__((W + 1) * GROUP, 1) scan_chunks(const struct args a) {
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const struct barriers b(x.barriers);
    const int tiles = a.r.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.r.HV, s = blockIdx.x / tiles / a.r.HV;
    if (threadIdx.x == 0) init_barriers<W>(b);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    struct chunk_range w = range_of(a.r, s, 0, hv);
    w.tile = tile, w.col = tile * 64 * W;
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        producer_registers<K, W>();
        if (i < LOAD_THREADS) load_loop(x, b, a, w, i);
        else store_loop(x, b, a, w, i - LOAD_THREADS);
    } else {
        consumer_registers<K, W>();
        float S[K / 8][4], *session = session_state(a.r.split, K, s, hv);
        if (session) session += w.col + threadIdx.x / 32 * 16;
        load_state<K>(S, session, a.r.V);
        for (int c = 0; c < w.chunks; c++) scan_chunk(x, b, c, group, S);
        if (session) store_state<K>(session, S, a.r.V);
    }
}

template <int K, int W> static bool fits(struct hl_cuda *c) {
    return hl_cuda_compiled_for_sm90(c, (const void *)scan_chunks<K, W>) &&
           sizeof(smem<K, W>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" bool HL_OP(kda_scan_fits)(struct hl_cuda *c, int64_t K, int64_t V) {
    if (V % 64) return false;
    return K == 128 ? fits<128, 2>(c) : K == 64 && fits<64, 2>(c);
}
template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct args *a) {
    launch_pdl(c, scan_chunks<K, W>, (unsigned)(a->r.segs * a->r.HV * (a->r.V / (64 * W))), (W + 1) * GROUP,
               sizeof(smem<K, W>) + TILES_ROOM, *a);
}
/* Lays out the scratch memory; returns its end. */
static char *carve(const struct hl_kda *a, int64_t tiles, char *scratch, struct args *x) {
    const int64_t rows = a->rows->T * a->HV;
    x->tiles = a->tiles;
    if (!a->tiles) x->tiles = gdn_carve(&scratch, a->rows->dev->chunks * a->HV * kda_tiles_bytes(a->K));
    x->r.A = a->A ? (bf16 *)a->A : (bf16 *)gdn_carve(&scratch, rows * CHUNK * 2);
    x->r.sums = tiles > 1 ? (float *)gdn_carve(&scratch, tiles * rows * 4) : NULL;
    return scratch;
}
extern "C" void HL_OP(kda_run_scan)(struct hl_backend *backend, const struct hl_kda *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    /* wide tiles if they still fill the chip, because a chunk's tiles are read once per tile of V */
    const bool wide = a->V % 128 == 0 && a->rows->n * a->HV * (a->V / 128) >= GDN_FULL;
    const int64_t tiles = a->V / (wide ? 128 : 64);
    struct args x = {};
    const int64_t bytes = carve(a, tiles, NULL, &x) - (char *)NULL; /* 0 in training: everything is kept */
    char *scratch = (char *)hl_cuda_scratch(c, bytes > 0 ? bytes : 1);
    if (!scratch) return;
    carve(a, tiles, scratch, &x);
    HL_OP(kda_prep)(backend, a, (void *)x.tiles, (void *)x.r.A);
    x.r.v = (const bf16 *)a->v, x.r.out = (bf16 *)a->out, x.r.v_new = (bf16 *)a->v_new, x.r.m = a->m;
    x.r.seg = a->rows->dev->seg, x.r.chunk_first = a->rows->dev->chunk_first;
    x.r.T = a->rows->T, x.r.segs = a->rows->n, x.r.splits = 1;
    x.r.H = (int)a->H, x.r.HV = (int)a->HV, x.r.V = (int)a->V;
    x.r.split.seg = x.r.seg, x.r.split.S_off = a->S_off, x.r.split.HV = x.r.HV, x.r.split.V = x.r.V;
    if (a->K == 128) (wide ? launch_scan<128, 2> : launch_scan<128, 1>)(c, &x);
    else (wide ? launch_scan<64, 2> : launch_scan<64, 1>)(c, &x);
    if (tiles > 1) HL_OP(gdn_scores)(backend, a->m, x.r.sums, tiles, a->rows->T * a->HV);
}
#endif
