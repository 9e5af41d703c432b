/* kda_back_states_cuda.cu -- the states before every chunk, recomputed from v_new (kda_back_cuda.cuh):
 *     h' = e^{G_last} h + ke^T v_new
 * Grid: a block per segment, value head and 64 columns of V (tiles fastest). Block: a consumer warpgroup that holds the
 * transposed state in registers (gdn_trans_cuda.cuh), and a producer warp. Shared memory: a ring of DEPTH chunks of ke,
 * e^{G_last} and v_new. mbarriers: full (producer arrives, consumers wait) and empty (the other way round) of each.
 * Floor: ke and v_new read once, h written once. */
#include "ops/cuda_ops.cuh"
#include "ops/decay/pair_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/kda/kda_back_cuda.cuh"

#ifndef HL_CUDA_F32

enum { DEPTH = 3, LOAD_THREADS = 32 };

template <int K> struct smem {
    bf16 ke[DEPTH][K / 64 * PANEL], v[DEPTH][PANEL];
    float end[DEPTH][K];
    uint64_t barriers[2 * DEPTH];
};

template <int K> static __global__ void __launch_bounds__(GROUP + LOAD_THREADS) scan_states(const struct kda_back a) {
    smem<K> &x = *(smem<K> *)shared_tiles();
    const ring_barriers<0, DEPTH> ring = {mbarrier_base(x.barriers)};
    const int tiles = a.V / 64, tile = blockIdx.x % tiles, hv = blockIdx.x / tiles % a.HV,
              s = blockIdx.x / tiles / a.HV;
    if (threadIdx.x == 0)
        for (int i = 0; i < DEPTH; i++)
            mbarrier_init(ring.full(i), LOAD_THREADS + 1), mbarrier_init_warps(ring.empty(i), GROUP / 32);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const int first = a.chunk_first[s], chunks = a.chunk_first[s + 1] - first;
    const int64_t row = a.seg[s].row;
    if (threadIdx.x >= GROUP) {
        const int i = threadIdx.x - GROUP;
        for (int c = 0; c + 1 < chunks; c++) { /* all of these have 64 rows */
            const struct kda_tiles<K> *from = (const struct kda_tiles<K> *)a.tiles + (int64_t)(first + c) * a.HV + hv;
            const int n = c % DEPTH;
            mbarrier_wait(ring.empty(c), empty_parity<DEPTH>(c));
            if (i == 0) {
                mbarrier_arrive_expect_tx(ring.full(c), sizeof x.ke[n] + sizeof x.end[n]);
                bulk_copy(x.ke[n], from->ke, sizeof x.ke[n], ring.full(c), true);
                bulk_copy(x.end[n], from->end, sizeof x.end[n], ring.full(c), true);
            }
            const bf16 *v = a.v_new + ((row + (int64_t)c * HL_CHUNK) * a.HV + hv) * a.V + 64 * tile;
#pragma unroll
            for (int r = i / 8; r < HL_CHUNK; r += LOAD_THREADS / 8)
                copy_async(x.v[n] + tile_at<64>(r, i % 8 * 8), v + (int64_t)r * a.HV * a.V + i % 8 * 8);
            copy_async_arrive(ring.full(c));
        }
        return;
    }
    const float *h0 = kda_end_state(a, a.h0, s, hv);
    float S[K / 8][4];
    load_state<K>(S, h0 ? h0 + 64 * tile + threadIdx.x / 32 * 16 : NULL, a.V);
    for (int c = 0; c < chunks; c++) {
        const int n = c % DEPTH;
        uint32_t v[4][4];
        kda_store_state<K>((bf16 *)a.h + (((int64_t)(first + c) * a.HV + hv) * a.V + 64 * tile) * K, S);
        if (c + 1 == chunks) break;
        mbarrier_wait(ring.full(c), full_parity<DEPTH>(c));
        fence_proxy_async();
#pragma unroll
        for (int i = 0; i < 4; i++) tile_load_a_trans<64>(v[i], x.v[n], 16 * i, threadIdx.x / 32 * 16);
        pair_scale<K / 8>(S, x.end[n]);
        wgmma_hold_a<4>(v);
        wgmma_begin<K / 8>(S);
        write_state<K>(S, v, x.ke[n]);
        wgmma_end<K / 8>(S);
        wgmma_hold_a<4>(v);
        mbarrier_arrive_warp(ring.empty(c));
    }
}

extern "C" void HL_OP(kda_back_states)(struct hl_cuda *c, const struct kda_back *a) {
    const unsigned blocks = (unsigned)(a->segs * a->HV * (a->V / 64));
    if (a->K == 64) launch_pdl(c, scan_states<64>, blocks, GROUP + LOAD_THREADS, sizeof(smem<64>) + TILES_ROOM, *a);
    else launch_pdl(c, scan_states<128>, blocks, GROUP + LOAD_THREADS, sizeof(smem<128>) + TILES_ROOM, *a);
}
#endif
