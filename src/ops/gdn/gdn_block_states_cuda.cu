/* gdn_block_states_cuda.cu -- block_S (gdn.h): the state after every block of the exact memory that ends inside its
 * segment, from v_new: S <- exp(g_t) S + k_t v_new_t^T.
 *
 *   keep_start    before the delta rule, which overwrites the sessions' states: copies each to the slot of its
 *                 segment's first block. grid (segments HV).
 *   block_states  after it: grid (segments HV, K / SIDE, V / SIDE), 256 threads. A thread block has a tile SIDE x SIDE
 *                 of the state, a thread 4 x 4 of it in registers, and processes the rows of its segment, at most STEP
 *                 at a time and never past the end of a block. Shared memory: STEP rows of k and of v_new, the latter
 *                 decayed to the last of them. Two barriers per step. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_cuda.cuh"

enum { THREADS = 256, SIDE = 64, STEP = 16 };

struct args {
    const act *k, *v_new;
    const float *g;
    float *S;
    const struct hl_seg *seg;
    const int32_t *block_first;
    int64_t S_off;
    int H, HV, K, V, block;
};

/* The segment's rows up to the last block end that is followed by more rows; 0: none. */
static __device__ __forceinline__ int64_t rows_until(const struct args &a, const struct hl_seg &s) {
    const int64_t last = (s.pos + s.len - 1) / a.block * a.block; /* start of the last block */
    return last > s.pos ? last - s.pos : 0;
}

static __global__ void keep_start(const struct args a) {
    const int64_t n = blockIdx.x / a.HV, h = blockIdx.x % a.HV, size = (int64_t)a.K * a.V;
    const struct hl_seg s = a.seg[n];
    if (!s.state || rows_until(a, s) == 0) return;
    const float *from = (const float *)(s.state + a.S_off) + h * size;
    float *to = a.S + (a.block_first[n] * (int64_t)a.HV + h) * size;
    for (int64_t i = threadIdx.x; i < size; i += THREADS) to[i] = from[i];
}

static __global__ void __launch_bounds__(THREADS) block_states(const struct args a) {
    __shared__ __align__(16) float k[STEP][SIDE], v[STEP][SIDE], decay[STEP + 1];
    const int64_t n = blockIdx.x / a.HV, size = (int64_t)a.K * a.V;
    const int h = blockIdx.x % a.HV, hk = h / (a.HV / a.H), k0 = blockIdx.y * SIDE, v0 = blockIdx.z * SIDE;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4; /* the thread's elements of the tile */
    const struct hl_seg s = a.seg[n];
    const int64_t until = rows_until(a, s);
    float *to = a.S + (a.block_first[n] * (int64_t)a.HV + h) * size, S[4][4] = {};
    if (until == 0) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (s.state && k0 + row + i < a.K && v0 + col + j < a.V)
                S[i][j] = to[(int64_t)(k0 + row + i) * a.V + v0 + col + j];
    for (int64_t t = 0; t < until;) {
        const int left = a.block - (int)((s.pos + t) % a.block), rows = min((int)STEP, left); /* to the end of the
                                                                                               * block */
        __syncthreads();
        if (threadIdx.x <= rows) { /* exp of the decays after row i; the last entry is that of all rows */
            float sum = 0.0f;
            for (int i = threadIdx.x == rows ? 0 : (int)threadIdx.x + 1; a.g && i < rows; i++)
                sum += a.g[(s.row + t + i) * a.HV + h];
            decay[threadIdx.x] = expf(sum);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows * SIDE; i += THREADS) {
            const int r = i / SIDE, x = i % SIDE;
            const int64_t at = s.row + t + r;
            k[r][x] = k0 + x < a.K ? f32(a.k[(at * a.H + hk) * a.K + k0 + x]) : 0.0f;
            v[r][x] = v0 + x < a.V ? decay[r] * f32(a.v_new[(at * a.HV + h) * a.V + v0 + x]) : 0.0f;
        }
        __syncthreads();
        const float all = decay[rows];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) S[i][j] *= all;
        for (int r = 0; r < rows; r++) {
            const float4 x = *(const float4 *)&k[r][row], y = *(const float4 *)&v[r][col];
            const float kx[4] = {x.x, x.y, x.z, x.w}, vy[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) S[i][j] += kx[i] * vy[j];
        }
        t += rows;
        if (left > rows) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (k0 + row + i < a.K && v0 + col + j < a.V)
                    to[(int64_t)(k0 + row + i) * a.V + v0 + col + j] = S[i][j];
        to += a.HV * size;
    }
}

static struct args args_of(const struct hl_gdn *a) {
    struct args x = {(const act *)a->k, (const act *)a->v_new, a->g,
                     a->block_S,        a->rows->dev->seg,     a->rows->dev->block_first};
    x.S_off = a->S_off, x.H = (int)a->H, x.HV = (int)a->HV, x.K = (int)a->K, x.V = (int)a->V, x.block = (int)a->block;
    return x;
}
extern "C" void HL_OP(gdn_keep_start)(struct hl_backend *backend, const struct hl_gdn *a) {
    launch(hl_cuda_of(backend), keep_start, (unsigned)(a->rows->n * a->HV), THREADS, 0, args_of(a));
}
extern "C" void HL_OP(gdn_block_states)(struct hl_backend *backend, const struct hl_gdn *a) {
    const dim3 grid((unsigned)(a->rows->n * a->HV), blocks_for(a->K, SIDE), blocks_for(a->V, SIDE));
    launch(hl_cuda_of(backend), block_states, grid, THREADS, 0, args_of(a));
}
