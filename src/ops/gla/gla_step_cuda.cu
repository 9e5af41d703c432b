/* gla_step_cuda.cu -- decoding: segments of at most STEP_ROWS tokens with a state, which is read once and written once.
 *
 * Grid: a block per segment, key head and COLS columns of V (tiles fastest). Block: THREADS; a thread has 4 adjacent
 * columns of every (THREADS / QUADS)-th row of the state in registers. It starts loading before pdl_wait: the previous
 * kernel writes no states. Shared memory: the warps' sums of q^T S. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gla/gla_cuda.cuh"

enum { STEP_ROWS = 8, THREADS = 256, WARPS = THREADS / 32 };

template <int K, int COLS>
static __global__ void __launch_bounds__(THREADS) step_tokens(const struct gla_view a, const struct hl_seg *segs) {
    enum { QUADS = COLS / 4, LANES = THREADS / QUADS, R = K / LANES };
    __shared__ float sums[WARPS][COLS];
    const int tiles = (int)a.V / COLS, hk = (int)(blockIdx.x / tiles % a.HK), group = (int)(a.H / a.HK);
    const struct hl_seg seg = segs[blockIdx.x / tiles / a.HK];
    const int col = blockIdx.x % tiles * COLS + threadIdx.x % QUADS * 4, first = threadIdx.x / QUADS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *state = (float *)(seg.state + a.S_off) + ((int64_t)hk * K + first) * a.V + col;
    float4 S[R];
#pragma unroll
    for (int i = 0; i < R; i++) S[i] = *(const float4 *)(state + i * LANES * a.V);
    pdl_wait(), pdl_trigger();
    for (int64_t t = seg.row; t < seg.row + seg.len; t++) {
        const float *g = a.g + (t * a.HK + hk) * K + first;
        const act *k = a.k ? a.k + t * a.ld_k + hk * K + first : NULL, *v = a.v + t * a.ld_v + hk * a.V + col;
        const float4 y = make_float4(f32(v[0]), f32(v[1]), f32(v[2]), f32(v[3]));
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float decay = expf(g[i * LANES]), x = k ? f32(k[i * LANES]) : -expm1f(g[i * LANES]);
            S[i].x = decay * S[i].x + x * y.x, S[i].y = decay * S[i].y + x * y.y;
            S[i].z = decay * S[i].z + x * y.z, S[i].w = decay * S[i].w + x * y.w;
        }
        for (int h = hk * group; h < (hk + 1) * group; h++) {
            const act *q = a.q + t * a.ld_q + h * K + first;
            float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float x = f32(q[i * LANES]);
                o[0] += x * S[i].x, o[1] += x * S[i].y, o[2] += x * S[i].z, o[3] += x * S[i].w;
            }
#pragma unroll
            for (int n = QUADS; n < 32; n *= 2)
#pragma unroll
                for (int j = 0; j < 4; j++) o[j] += __shfl_xor_sync(0xffffffffu, o[j], n);
            __syncthreads(); /* the previous sums have been read */
            if (lane < QUADS) *(float4 *)(sums[warp] + 4 * lane) = make_float4(o[0], o[1], o[2], o[3]);
            __syncthreads();
            if (threadIdx.x < COLS) {
                float sum = sums[0][threadIdx.x];
#pragma unroll
                for (int w = 1; w < WARPS; w++) sum += sums[w][threadIdx.x];
                put(a.out + (t * a.H + h) * a.V + blockIdx.x % tiles * COLS + threadIdx.x, a.scale * sum);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++) *(float4 *)(state + i * LANES * a.V) = S[i];
}

template <int K> static void launch_step(struct hl_cuda *c, const struct gla_view *a) {
    const int64_t heads = a->rows->n * a->HK;
    const bool wide = a->V % 32 == 0 && heads * (a->V / 32) >= hl_cuda_sms(c);
    launch_pdl(c, wide ? step_tokens<K, 32> : step_tokens<K, 16>, (unsigned)(heads * (a->V / (wide ? 32 : 16))),
               THREADS, 0, *a, a->rows->dev->seg);
}
extern "C" bool HL_OP(gla_step_fits)(const struct gla_view *a) {
    if ((a->K != 64 && a->K != 128 && a->K != 256) || a->V % 16 || a->trans || a->rows->dev->longest > STEP_ROWS)
        return false;
    if (a->rows->on_device) return a->rows->states && !a->rows->ragged;
    for (int64_t s = 0; s < a->rows->n; s++)
        if (!a->rows->seg[s].state || (uintptr_t)(a->rows->seg[s].state + a->S_off) % 16) return false;
    return true;
}
extern "C" void HL_OP(gla_run_step)(struct hl_backend *backend, const struct gla_view *a) {
    (a->K == 64 ? launch_step<64> : a->K == 128 ? launch_step<128> : launch_step<256>)(hl_cuda_of(backend), a);
}
