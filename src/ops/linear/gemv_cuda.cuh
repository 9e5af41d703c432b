/* gemv_cuda.cuh -- up to 16 rows times all matrices of a linear layer: decoding. Every weight is read once, at memory
 * bandwidth; one launch for all parts.
 *
 * Block: GEMV_THREADS. gemv_mma (bf16), grid outputs / 8: a block owns 8 outputs, its warps split K. gemv_kernel (any
 * type), grid outputs / 8: a warp owns one output. */
#ifndef HL_GEMV_CUDA_CUH
#define HL_GEMV_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum { GEMV_ROWS = 16, GEMV_THREADS = 256, GEMV_AHEAD = 4 }; /* 16-byte loads of W in flight */

struct gemv {
    int64_t M, K;
    const act *x;
    int n;
    bool out_real;
    int64_t end[HL_LINEAR_MAX]; /* output rows of the parts up to and including each */
    int64_t rows[HL_LINEAR_MAX];
    const act *W[HL_LINEAR_MAX];
    void *out[HL_LINEAR_MAX];
    const void *from[HL_LINEAR_MAX];
};

static __device__ __forceinline__ void gemv_put(const struct gemv &a, int p, int64_t at, float s) {
    if (a.out_real) {
        const float *from = (const float *)a.from[p];
        ((float *)a.out[p])[at] = from ? from[at] + s : s;
    } else {
        const act *from = (const act *)a.from[p];
        put((act *)a.out[p] + at, from ? f32(from[at]) + s : s);
    }
}

#ifndef HL_CUDA_F32
/* A block owns 8 output rows; its warps split K, and their sums are reduced in order. As in small_n_fwd, lane (g, t)
 * loads 16 bytes of row g of W and of rows g and g + 8 of x at column 32 k + 8 t, which are fragments of two mma: x is
 * A, W is B. The summation order depends only on K, not on M. W is prefetched before pdl_wait. */
template <int AHEAD, bool many> static __global__ void __launch_bounds__(GEMV_THREADS) gemv_mma(struct gemv a) {
    enum { WARPS = GEMV_THREADS / 32 };
    __shared__ float sums[WARPS][GEMV_ROWS][8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t i = min((int64_t)blockIdx.x * 8 + g, a.end[a.n - 1] - 1), steps = (a.K + 31) / 32;
    const int from = (int)(steps * warp / WARPS), to = (int)(steps * (warp + 1) / WARPS);
    int p = 0;
    while (i >= a.end[p]) p++;
    const act *W = a.W[p] + (i - (a.end[p] - a.rows[p])) * a.K + 8 * t, *x = a.x + g * a.K + 8 * t;
    const uint4 none = make_uint4(0, 0, 0, 0);
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k0 = from; k0 < to; k0 += AHEAD) {
        uint4 w[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            w[k] = none;
            if (k0 + k < to && (k0 + k) * 32 + 8 * t < a.K) w[k] = *(const uint4 *)(W + (k0 + k) * 32);
        }
        if (k0 == from) pdl_wait();
        uint4 u[AHEAD], v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const bool in = k0 + k < to && (k0 + k) * 32 + 8 * t < a.K;
            u[k] = v[k] = none;
            if (in && g < a.M) u[k] = *(const uint4 *)(x + (k0 + k) * 32);
            if (many && in && g + 8 < a.M) v[k] = *(const uint4 *)(x + 8 * a.K + (k0 + k) * 32);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const uint32_t one[4] = {u[k].x, v[k].x, u[k].y, v[k].y}, two[4] = {u[k].z, v[k].z, u[k].w, v[k].w};
            const uint32_t b1[2] = {w[k].x, w[k].y}, b2[2] = {w[k].z, w[k].w};
            if (k0 + k >= to) break;
            mma_bf16(d, one, b1);
            mma_bf16(d, two, b2);
        }
    }
    pdl_wait(); /* warps without work */
    pdl_trigger();
    for (int e = 0; e < (many ? 4 : 2); e++) sums[warp][g + e / 2 * 8][2 * t + e % 2] = d[e];
    __syncthreads();
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x % 8, m = threadIdx.x / 8;
    if (m >= a.M || row >= a.end[a.n - 1]) return;
    float s = 0.0f;
    for (int w = 0; w < WARPS; w++) s += sums[w][m][threadIdx.x % 8];
    for (p = 0; row >= a.end[p];) p++;
    gemv_put(a, p, m * a.rows[p] + row - (a.end[p] - a.rows[p]), s);
}
#endif

/* ---- any type and K ---- */

/* A warp owns one output row (one row of one W): lane l takes pieces l, l + 32, ... of V numbers. The summation order
 * depends only on K, not on M. */
template <int V, int rows> static __global__ void __launch_bounds__(GEMV_THREADS) gemv_kernel(struct gemv a) {
    const int64_t i = (int64_t)blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32, pieces = a.K / V;
    const int lane = threadIdx.x % 32;
    int p = 0;
    if (i >= a.end[a.n - 1]) return;
    while (i >= a.end[p]) p++;
    const int64_t row = i - (a.end[p] - a.rows[p]);
    const act *W = a.W[p] + row * a.K;
    pdl_wait();
    pdl_trigger();
    float sum[rows];
    for (int m = 0; m < rows; m++) sum[m] = 0.0f;
    for (int64_t k0 = lane; k0 < pieces; k0 += 32 * GEMV_AHEAD) {
        float w[GEMV_AHEAD][V];
#pragma unroll
        for (int u = 0; u < GEMV_AHEAD; u++) {
            const int64_t k = k0 + 32 * u;
            for (int v = 0; v < V; v++) w[u][v] = 0.0f;
            if (k >= pieces) continue;
            if (V > 1) load_wide(w[u], W + k * V);
            else w[u][0] = f32(W[k]);
        }
#pragma unroll
        for (int u = 0; u < GEMV_AHEAD; u++) {
            const int64_t k = k0 + 32 * u;
            if (k >= pieces) break;
#pragma unroll
            for (int m = 0; m < rows; m++) {
                float x[V];
                if (m >= a.M) break;
                if (V > 1) load_wide(x, a.x + m * a.K + k * V);
                else x[0] = f32(a.x[m * a.K + k]);
                for (int v = 0; v < V; v++) sum[m] += w[u][v] * x[v];
            }
        }
    }
#pragma unroll
    for (int m = 0; m < rows; m++) {
        const float s = warp_sum(sum[m]);
        if (lane == 0 && m < a.M) gemv_put(a, p, m * a.rows[p] + row, s);
    }
}

template <int V> static void gemv_launch(struct hl_cuda *c, const struct gemv *a) {
    const unsigned blocks = blocks_for(a->end[a->n - 1], GEMV_THREADS / 32);
    if (a->M == 1) launch_pdl(c, gemv_kernel<V, 1>, blocks, GEMV_THREADS, 0, *a);
    else if (a->M == 2) launch_pdl(c, gemv_kernel<V, 2>, blocks, GEMV_THREADS, 0, *a);
    else if (a->M <= 4) launch_pdl(c, gemv_kernel<V, 4>, blocks, GEMV_THREADS, 0, *a);
    else launch_pdl(c, gemv_kernel<V, 8>, blocks, GEMV_THREADS, 0, *a);
}

/* whether the rows are few enough */
static bool gemv_fits(const struct hl_linear *l) {
    return l->M <= (HL_ACT_DTYPE == HOLA_BF16 && l->K % WIDE == 0 ? (int)GEMV_ROWS : 8);
}
static struct gemv gemv_open(const struct hl_linear *l) {
    struct gemv a = {l->M, l->K, (const act *)l->x, l->n, l->out_real};
    int64_t end = 0;
    for (int p = 0; p < l->n; p++) {
        a.rows[p] = l->part[p].W.rows;
        a.end[p] = end += a.rows[p];
        a.W[p] = (const act *)l->part[p].W.data;
        a.out[p] = l->part[p].out;
        a.from[p] = l->part[p].from;
    }
    return a;
}
static void gemv(struct hl_cuda *c, const struct hl_linear *l) {
    const struct gemv a = gemv_open(l);
    const int64_t end = a.end[a.n - 1];
    if (end == 0) return;
#ifndef HL_CUDA_F32
    if (l->K % WIDE == 0) {
        launch_pdl(c, l->M <= 8 ? (l->K <= 1024 ? gemv_mma<4, false> : gemv_mma<8, false>) : gemv_mma<4, true>,
                   blocks_for(end, 8), GEMV_THREADS, 0, a);
        return;
    }
#endif
    if (l->K % WIDE == 0) gemv_launch<WIDE>(c, &a);
    else gemv_launch<1>(c, &a);
}

#endif
