/* gdn_out_cuda.cu -- the outputs of the variant `scan`, all chunks at once, from the states that the scan stores:
 *     out = K^{-1/2} exp(G) q h + P v_new
 * Grid: a block per chunk, value head and VT columns of V (tiles fastest). Block: 8 warps, each 16 rows and
 * half of the columns. It starts while the scan is running and polls `ready` for its window of chunks. Floor:
 * h is read once. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_cuda.cuh"

#ifndef HL_CUDA_F32

enum { THREADS = 256, VT = 64 };

struct args {
    struct gdn_out p;
    const bf16 *q;
    bf16 *out;
    const struct hl_dev_span *chunk;
    const int32_t *chunk_first;
    int H, HV, V;
};

/* The scan may still be running; it does not wait for this kernel, and all of its blocks are resident. */
static __device__ __forceinline__ void wait_ready(const int *ready, int tiles) {
    if (threadIdx.x == 0) spin_acquire(ready, tiles);
    __syncthreads();
}

template <int K> struct smem { bf16 q[CHUNK * K], h[K * VT], v_new[CHUNK * VT], P[CHUNK * CHUNK]; };

/* RAGGED: chunks past the last one have no rows, and their `ready` is never set. */
template <int K, bool RAGGED> static __global__ void __launch_bounds__(THREADS) read_out(const struct args a) {
    struct smem<K> &x = *(struct smem<K> *)shared_memory();
    const int tiles = a.V / VT, col = blockIdx.x % tiles * VT, hv = blockIdx.x / tiles % a.HV;
    const int64_t c = blockIdx.x / tiles / a.HV;
    const struct hl_dev_span p = a.chunk[c];
    if constexpr (RAGGED)
        if (p.len == 0) {
            if (blockIdx.x + 1 == gridDim.x) pdl_wait();
            return;
        }
    const int64_t at = (int64_t)p.row * a.HV + hv, stride = (int64_t)a.HV * a.V;
    const int warp = threadIdx.x / 32, rows = warp % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    load_tile<K, THREADS>(x.q, a.q + ((int64_t)p.row * a.H + hv / (a.HV / a.H)) * K, (int64_t)a.H * K, p.len);
    load_tile<CHUNK, THREADS>(x.P, a.p.P + at * CHUNK, (int64_t)a.HV * CHUNK, p.len);
    const int first = a.chunk_first[p.seg];
    wait_ready(a.p.ready + (first + gdn_window((int)c - first)) * (int64_t)a.HV + hv, a.p.tiles);
    for (int n = 0; n < K; n += CHUNK)
        load_tile<VT, THREADS>(x.h + n * VT, a.p.h + ((c * a.HV + hv) * K + n) * a.V + col, a.V, CHUNK);
    load_tile<VT, THREADS>(x.v_new, a.p.v_new + at * a.V + col, stride, p.len);
    copy_commit();
    const float *eG = a.p.gates + (c * a.HV + hv) * GATES + CHUNK + 16 * rows + g;
    const float s[2] = {eG[0] / sqrtf((float)K), eG[8] / sqrtf((float)K)};
    copy_wait<0>();
    __syncthreads();
    float acc[4][4] = {};
#pragma unroll 4
    for (int k = 0; k < K; k += 16) {
        uint32_t f[4], b[4][2];
        tile_load_a<K>(f, x.q, 16 * rows, k);
        frags<VT>(b, x.h, k, warp / 4 * (VT / 2));
#pragma unroll
        for (int n = 0; n < 4; n++) mma_bf16(acc[n], f, b[n]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] *= s[i / 2];
    triangle<VT>(x.P, x.v_new, acc);
    __syncthreads(); /* v_new's tile is free for out */
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(x.v_new + tile_at<VT>(16 * rows + g + 8 * h, warp / 4 * (VT / 2) + 8 * n + 2 * t)) =
                pack2(acc[n][2 * h], acc[n][2 * h + 1]);
    __syncwarp();
    store_rows<VT>(a.out + at * a.V + col, x.v_new, stride, p.len);
    if (blockIdx.x + 1 < gridDim.x) return;
    pdl_wait(); /* waiting for the end of this kernel then includes the scan */
}

template <int K> static void launch_out(struct hl_cuda *c, const struct args *a, const struct hl_rows *rows) {
    launch_pdl(c, rows->ragged ? read_out<K, true> : read_out<K, false>,
               (unsigned)(rows->dev->chunks * a->HV * (a->V / VT)), THREADS, sizeof(struct smem<K>), *a);
}
extern "C" void HL_OP(gdn_out)(struct hl_backend *backend, const struct hl_gdn *a, const struct gdn_out *p) {
    struct args x = {*p, (const bf16 *)a->q, (bf16 *)a->out, a->rows->dev->chunk, a->rows->dev->chunk_first};
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    if (a->K == 128) launch_out<128>(hl_cuda_of(backend), &x, a->rows);
    else launch_out<256>(hl_cuda_of(backend), &x, a->rows);
}
#endif
