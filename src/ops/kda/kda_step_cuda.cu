/* kda_step_cuda.cu -- decoding: segments of at most 8 tokens with a state (kda.h). With S the state before a token,
 * alpha = exp(g):
 *     e = v - (alpha k)^T S     out = K^{-1/2} ((alpha q)^T S + (q.k) beta e)     S = diag(alpha) S + k (beta e)^T
 * so a token costs one sum over the threads, and the state is read from memory once and written once.
 *
 * Grid: a block per segment, value head and COLS columns of V (tiles fastest). Block: K threads, each with 4 adjacent
 * columns of ROWS adjacent rows of the state in registers. Two __syncthreads a token. Floor: the states read once and
 * written once. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/kda/kda_cuda.cuh"

enum { COLS = KDA_STEP_COLS, QUADS = COLS / 4, ROWS = 8 };

struct args {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out;
    float *sums; /* [tiles][T][HV]: of the squares of beta e */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, V;
};

/* x: the thread's share of (alpha k)^T S, (alpha q)^T S and q.k; the sums over all threads go to `all`, in a fixed
 * order */
template <int WARPS>
static __device__ __forceinline__ void sum_rows(float x[9], float (*warp_sums)[2 * COLS + 1], float *all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = QUADS; n < 32; n *= 2)
#pragma unroll
        for (int j = 0; j < 9; j++) x[j] += __shfl_xor_sync(0xffffffffu, x[j], n);
    if (lane < QUADS) {
#pragma unroll
        for (int j = 0; j < 8; j++) warp_sums[warp][j / 4 * COLS + 4 * lane + j % 4] = x[j];
        if (lane == 0) warp_sums[warp][2 * COLS] = x[8];
    }
    __syncthreads();
    for (int i = threadIdx.x; i <= 2 * COLS; i += 32 * WARPS) {
        float s = warp_sums[0][i];
#pragma unroll
        for (int w = 1; w < WARPS; w++) s += warp_sums[w][i];
        all[i] = s;
    }
    __syncthreads();
}

template <int K> static __global__ void __launch_bounds__(K) step_tokens(const struct args a) {
    enum { WARPS = K / 32 };
    __shared__ float warp_sums[WARPS][2 * COLS + 1], all[2 * COLS + 1];
    const int tiles = a.V / COLS, tile = blockIdx.x % tiles, hv = blockIdx.x / tiles % a.HV;
    const int quad = threadIdx.x % QUADS, first = threadIdx.x / QUADS * ROWS, column = tile * COLS + 4 * quad;
    const struct hl_seg seg = a.seg[blockIdx.x / tiles / a.HV];
    float *state = (float *)(seg.state + a.S_off) + ((int64_t)hv * K + first) * a.V + column;
    const float scale = 1.0f / sqrtf((float)K);
    float4 S[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) S[i] = *(const float4 *)(state + i * a.V); /* the previous kernel writes no state */
    pdl_wait();
    pdl_trigger();
    for (int64_t row = seg.row; row < seg.row + seg.len; row++) {
        const int64_t b = row * a.HV + hv, qk = (row * a.H + hv / (a.HV / a.H)) * K + first;
        const act *v = a.v + b * a.V + column;
        float k[ROWS], q[ROWS], alpha[ROWS], x[9] = {}, r[4], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i += WIDE) load_wide(k + i, a.k + qk + i), load_wide(q + i, a.q + qk + i);
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const float4 g = *(const float4 *)(a.g + b * K + first + i);
            alpha[i] = __expf(g.x), alpha[i + 1] = __expf(g.y), alpha[i + 2] = __expf(g.z), alpha[i + 3] = __expf(g.w);
        }
        const float beta = a.beta[b], y[4] = {f32(v[0]), f32(v[1]), f32(v[2]), f32(v[3])};
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float ak = alpha[i] * k[i], aq = alpha[i] * q[i];
            x[0] += ak * S[i].x, x[1] += ak * S[i].y, x[2] += ak * S[i].z, x[3] += ak * S[i].w;
            x[4] += aq * S[i].x, x[5] += aq * S[i].y, x[6] += aq * S[i].z, x[7] += aq * S[i].w;
            x[8] += q[i] * k[i];
        }
        sum_rows<WARPS>(x, warp_sums, all);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            r[j] = beta * (y[j] - all[4 * quad + j]);
            sum += r[j] * r[j];
            if (threadIdx.x < QUADS)
                put(a.out + b * a.V + column + j, scale * (all[COLS + 4 * quad + j] + all[2 * COLS] * r[j]));
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            S[i].x = alpha[i] * S[i].x + k[i] * r[0], S[i].y = alpha[i] * S[i].y + k[i] * r[1];
            S[i].z = alpha[i] * S[i].z + k[i] * r[2], S[i].w = alpha[i] * S[i].w + k[i] * r[3];
        }
        if (threadIdx.x < 32) { /* adjacent lanes have adjacent columns */
#pragma unroll
            for (int n = 1; n < QUADS; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
            if (threadIdx.x == 0) a.sums[tile * a.T * a.HV + b] = sum;
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) __stcs((float4 *)(state + i * a.V), S[i]); /* not read again soon */
}

extern "C" void HL_OP(kda_run_step)(struct hl_backend *backend, const struct hl_kda *a) {
    const int64_t rows = a->rows->T * a->HV, tiles = a->V / COLS;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct args x = {(const act *)a->q, (const act *)a->k, (const act *)a->v, a->g, a->beta, (act *)a->out};
    x.sums = (float *)hl_cuda_scratch(c, tiles * rows * (int64_t)sizeof(float));
    if (!x.sums) return;
    x.seg = a->rows->dev->seg, x.S_off = a->S_off, x.T = a->rows->T;
    x.H = (int)a->H, x.HV = (int)a->HV, x.V = (int)a->V;
    launch_pdl(c,
               a->K == 64    ? step_tokens<64>
               : a->K == 128 ? step_tokens<128>
                             : step_tokens<256>,
               (unsigned)(a->rows->n * a->HV * tiles), (unsigned)a->K, 0, x);
    HL_OP(gdn_scores)(backend, a->m, x.sums, tiles, rows);
}
