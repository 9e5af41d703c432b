/* kda_back_scan_cuda.cu -- the reverse scan of the gradients of the states (kda_back_cuda.cuh):
 *     dv_new = P^T dO + ke dh     X2 = A^T dv_new     dh before = e^{G_last} dh + qg^T dO - kg^T (beta X2)
 * starting from dht. It stores dh after every chunk, X2, and dh0. Floor: tiles, A and dO read once, dh and X2 written
 * once.
 *
 * Grid: a block per segment, value head and 64 W columns of V (tiles fastest). Block: W consumer warpgroups with 64
 * columns each, which hold the transposed dh in registers (gdn_trans_cuda.cuh), then one producer warpgroup, of which
 * LOAD_THREADS load and one thread stores X2. Step c takes chunk chunks - 1 - c. mbarriers, by who arrives (who waits):
 *     full        loaders: tiles, A and dO of a chunk are complete (consumers)
 *     empty       consumers have read them (loaders)
 *     X2_full     consumers: X2 is complete (storer)
 *     X2_empty    X2 has been read (consumers) */
#include "ops/cuda_ops.cuh"
#include "ops/decay/pair_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/kda/kda_back_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOAD_THREADS = GROUP / 2, DEPTH = 2 };

template <int K, int W> struct smem {
    struct kda_tiles<K> tiles[DEPTH];
    bf16 A[DEPTH][CHUNK * CHUNK], dO[DEPTH][W * PANEL], X2[W * PANEL]; /* a panel for each consumer */
    uint64_t barriers[2 * DEPTH + 2];
};
struct barriers {
    ring_barriers<0, DEPTH> in;
    ring_barriers<2 * DEPTH, 1> X2;
    __device__ __forceinline__ barriers(uint64_t *p) : in{mbarrier_base(p)}, X2{in.first} {}
};
/* The segment, head and columns scanned by a block. */
struct place {
    int row, rows, first, chunks, hv, tile;
};

template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const struct barriers &b, const struct kda_back &a,
                                                 const struct place &w, int i) {
    for (int step = 0; step < w.chunks; step++) {
        const int n = step % DEPTH, c = w.chunks - 1 - step, len = min((int)CHUNK, w.rows - c * CHUNK);
        const int64_t row = (int64_t)(w.row + c * CHUNK) * a.HV + w.hv;
        mbarrier_wait(b.in.empty(step), empty_parity<DEPTH>(step));
        if (i == 0) {
            mbarrier_arrive_expect_tx(b.in.full(step), sizeof x.tiles[n]);
            bulk_copy(&x.tiles[n], (const struct kda_tiles<K> *)a.tiles + (int64_t)(w.first + c) * a.HV + w.hv,
                      sizeof x.tiles[n], b.in.full(step), a.V > 64 * W);
        }
        copy_panel<CHUNK, CHUNK, LOAD_THREADS>(x.A[n], a.A + row * CHUNK, (int64_t)a.HV * CHUNK, len, i);
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.dO[n] + g * PANEL, a.dout + row * a.V + 64 * (w.tile * W + g),
                                                (int64_t)a.HV * a.V, len, i);
        copy_async_arrive(b.in.full(step));
    }
}
/* by one thread */
template <int K, int W>
static __device__ __forceinline__ void store_loop(smem<K, W> &x, const struct barriers &b, const struct kda_back &a,
                                                  const struct place &w) {
    for (int step = 0; step < w.chunks; step++) {
        const int64_t head = (int64_t)(w.first + w.chunks - 1 - step) * a.HV + w.hv;
        mbarrier_wait(b.X2.full(0), full_parity<1>(step));
        bulk_store((bf16 *)a.X2 + (head * (a.V / 64) + w.tile * W) * PANEL, x.X2, sizeof x.X2);
        bulk_store_wait_read<0>();
        mbarrier_arrive(b.X2.empty(0));
    }
    bulk_store_wait_all();
}

template <int K, int W>
static __device__ __forceinline__ void scan_chunk(smem<K, W> &x, const struct barriers &b, int step, int group,
                                                  float S[K / 8][4]) {
    const int n = step % DEPTH, warp = threadIdx.x / 32 % 4;
    const struct kda_tiles<K> &y = x.tiles[n];
    float d[CHUNK / 8][4], e[CHUNK / 8][4];
    uint32_t dO[4][4], r[4][4];
    mbarrier_wait(b.in.full(step), full_parity<DEPTH>(step));
    fence_proxy_async();
    read_state<K>(d, S, y.ke[0], NULL); /* ke dh */
#pragma unroll
    for (int i = 0; i < 4; i++) tile_load_a_trans<64>(dO[i], x.dO[n] + group * PANEL, 16 * i, 16 * warp);
    wgmma_hold_a<4>(dO);
    wgmma_begin<CHUNK / 8>(d);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<CHUNK>(d, dO[i], operand<CHUNK, true>{y.P, 16 * i, 0});
    wgmma_end<CHUNK / 8>(d);
    wgmma_hold_a<4>(dO);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], d + 2 * i); /* dv_new */
    zero(e);
    wgmma_hold_a<4>(r);
    wgmma_begin<CHUNK / 8>(e);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<CHUNK>(e, r[i], operand<CHUNK, true>{x.A[n], 16 * i, 0});
    wgmma_commit_wait<1>();
    pair_scale<K / 8>(S, y.end);
    wgmma_begin<K / 8>(S);
    write_state<K, 2 * PANEL>(S, dO, y.kq[0] + PANEL);
    wgmma_commit_wait<1>(); /* X2 is complete */
    wgmma_hold<CHUNK / 8>(e), wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], e + 2 * i);
    mbarrier_wait(b.X2.empty(0), empty_parity<1>(step));
    store_trans(x.X2 + group * PANEL, r);
    fence_proxy_async();
    mbarrier_arrive_warp(b.X2.full(0));
    scale_operands(r, r, y.beta, -1.0f);
    wgmma_wait_all<K / 8>(S);
    wgmma_hold_a<4>(dO), wgmma_hold_a<4>(r);
    wgmma_begin<K / 8>(S);
    write_state<K, 2 * PANEL>(S, r, y.kq[0]);
    wgmma_end<K / 8>(S);
    wgmma_hold_a<4>(r);
    mbarrier_arrive_warp(b.in.empty(step));
}

template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) scan_gradients(const struct kda_back a) {
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const struct barriers b(x.barriers);
    const int tiles = a.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.HV, s = blockIdx.x / tiles / a.HV;
    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++)
            mbarrier_init(b.in.full(i), LOAD_THREADS + 1), mbarrier_init_warps(b.in.empty(i), 4 * W);
        mbarrier_init_warps(b.X2.full(0), 4 * W), mbarrier_init(b.X2.empty(0), 1);
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const int first = a.chunk_first[s];
    const struct place w = {(int)a.seg[s].row, (int)a.seg[s].len, first, a.chunk_first[s + 1] - first, hv, tile};
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        producer_registers<K, W>();
        if (i < LOAD_THREADS) load_loop(x, b, a, w, i);
        else if (i == LOAD_THREADS) store_loop(x, b, a, w);
    } else {
        consumer_registers<K, W>();
        const int col = 64 * (tile * W + group);
        const float *dht = kda_end_state(a, a.dht, s, hv);
        float S[K / 8][4], *dh0 = kda_end_state(a, a.dh0, s, hv);
        bf16 *to = (bf16 *)a.dh + col * K;
        load_state<K>(S, dht ? dht + col + threadIdx.x / 32 % 4 * 16 : NULL, a.V);
        for (int step = 0; step < w.chunks; step++) {
            kda_store_state<K>(to + ((int64_t)(first + w.chunks - 1 - step) * a.HV + hv) * a.V * K, S);
            scan_chunk(x, b, step, group, S);
        }
        if (dh0) store_state<K>(dh0 + col + threadIdx.x / 32 % 4 * 16, S, a.V);
    }
}

template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct kda_back *a) {
    launch_pdl(c, scan_gradients<K, W>, (unsigned)(a->segs * a->HV * (a->V / (64 * W))), (W + 1) * GROUP,
               sizeof(smem<K, W>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(kda_back_scan)(struct hl_cuda *c, const struct kda_back *a) {
    const bool wide = a->V % 128 == 0 && a->segs * a->HV * (a->V / 128) >= GDN_FULL;
    if (a->K == 128) (wide ? launch_scan<128, 2> : launch_scan<128, 1>)(c, a);
    else (wide ? launch_scan<64, 2> : launch_scan<64, 1>)(c, a);
}
#endif
