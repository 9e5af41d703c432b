/* gemv_cuda.cuh -- a few rows times all matrices of a linear layer: decoding. Every weight is read once, at
 * the speed of memory; one launch for all parts. */
#ifndef HL_GEMV_CUDA_CUH
#define HL_GEMV_CUDA_CUH
#include "cuda/early.cuh"

enum { GEMV_ROWS = 64, GEMV_THREADS = 256, GEMV_AHEAD = 4 }; /* 16-byte loads of W on their way */

struct gemv {
    int64_t M, K;
    const act *x;
    int n;
    bool out_real;
    int64_t end[HL_LINEAR_MAX]; /* output rows of the parts up to and with each */
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
/* A block owns 8 NT output rows; its warps split K, and add up in order. As in tiny_fwd, lane (g, t) loads 16
 * bytes of the rows g of W and of the EIGHTS rows g, g + 8, ... of x at column 32 k + 8 t, which are fragments
 * of two products: x is A, W is B. The order of the sum is that of K alone, whatever M is. W is loaded before
 * others are waited for. Many rows want many outputs of a block, as each reads all of x. */
template <int EIGHTS, int NT> struct gemv_room {
    enum {
        WARPS = GEMV_THREADS / 32,
        ROWS = 8 * EIGHTS,
        TILES = (EIGHTS + 1) / 2,                /* of 16 rows of x */
        LD = 8 * NT + (NT % 4 == 0 ? 8 : NT % 2 == 0 ? 24 : 0), /* four rows of sums in 32 banks */
        BYTES = WARPS * ROWS * LD * 4,
    };
};
template <int AHEAD, int EIGHTS, int NT>
static __global__ void __launch_bounds__(GEMV_THREADS) gemv_mma(struct gemv a) {
    typedef struct gemv_room<EIGHTS, NT> room;
    enum { WARPS = room::WARPS, TILES = room::TILES };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t first = (int64_t)blockIdx.x * 8 * NT, steps = (a.K + 31) / 32;
    const int from = (int)(steps * warp / WARPS), to = (int)(steps * (warp + 1) / WARPS);
    const act *W[NT], *x = a.x + g * a.K + 8 * t;
    const uint4 none = make_uint4(0, 0, 0, 0);
    float d[TILES][NT][4] = {}, *sums = (float *)shared_memory();
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int64_t i = min(first + n * 8 + g, a.end[a.n - 1] - 1);
        int p = 0;
        while (i >= a.end[p]) p++;
        W[n] = a.W[p] + (i - (a.end[p] - a.rows[p])) * a.K + 8 * t;
    }
    for (int k0 = from; k0 < to; k0 += AHEAD) {
        uint4 w[AHEAD][NT], u[AHEAD][2 * TILES];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int n = 0; n < NT; n++) {
                w[k][n] = none;
                if (k0 + k < to && (k0 + k) * 32 + 8 * t < a.K)
                    w[k][n] = *(const uint4 *)(W[n] + (k0 + k) * 32);
            }
        if (k0 == from) wait_for_others();
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                u[k][i] = none;
                if (i < EIGHTS && k0 + k < to && (k0 + k) * 32 + 8 * t < a.K && g + 8 * i < a.M)
                    u[k][i] = *(const uint4 *)(x + 8 * i * a.K + (k0 + k) * 32);
            }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (k0 + k >= to) break;
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint4 y = u[k][2 * i], z = u[k][2 * i + 1];
                const uint32_t one[4] = {y.x, z.x, y.y, z.y}, two[4] = {y.z, z.z, y.w, z.w};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint32_t b1[2] = {w[k][n].x, w[k][n].y}, b2[2] = {w[k][n].z, w[k][n].w};
                    mma_bf16(d[i][n], one, b1);
                    mma_bf16(d[i][n], two, b2);
                }
            }
        }
    }
    wait_for_others(); /* warps without work */
    let_others_start();
#pragma unroll
    for (int i = 0; i < EIGHTS; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            *(float2 *)(sums + (warp * room::ROWS + 8 * i + g) * room::LD + 8 * n + 2 * t) =
                make_float2(d[i / 2][n][i % 2 * 2], d[i / 2][n][i % 2 * 2 + 1]);
    __syncthreads();
    for (int j = threadIdx.x; j < room::ROWS * 8 * NT; j += GEMV_THREADS) {
        const int64_t m = j / (8 * NT), row = first + j % (8 * NT);
        if (m >= a.M || row >= a.end[a.n - 1]) continue;
        float s = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) s += sums[(w * room::ROWS + m) * room::LD + j % (8 * NT)];
        int p = 0;
        while (row >= a.end[p]) p++;
        gemv_put(a, p, m * a.rows[p] + row - (a.end[p] - a.rows[p]), s);
    }
}

template <int AHEAD, int EIGHTS, int NT> static void gemv_start(struct hl_cuda *c, const struct gemv *a) {
    launch_early(c, gemv_mma<AHEAD, EIGHTS, NT>, blocks_for(a->end[a->n - 1], 8 * NT), GEMV_THREADS,
                 (size_t)gemv_room<EIGHTS, NT>::BYTES, *a);
}
/* As many outputs of a block as leave most multiprocessors something to do. */
template <int EIGHTS> static void gemv_many(struct hl_cuda *c, const struct gemv *a) {
    const int64_t each = a->end[a->n - 1] / (hl_cuda_sms(c) * 8 * 7 / 8);
    if (each >= 4) gemv_start<2, EIGHTS, 4>(c, a);
    else if (each == 3) gemv_start<2, EIGHTS, 3>(c, a);
    else if (each == 2) gemv_start<2, EIGHTS, 2>(c, a);
    else gemv_start<4, EIGHTS, 1>(c, a);
}
#endif

/* ---- any type and K ---- */

/* A warp owns one output row (one row of one W): lane l takes the pieces l, l + 32, ... of V numbers. The
 * order of the sum is that of K alone, whatever M is. */
template <int V, int rows> static __global__ void __launch_bounds__(GEMV_THREADS) gemv_kernel(struct gemv a) {
    const int64_t i = (int64_t)blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32, pieces = a.K / V;
    const int lane = threadIdx.x % 32;
    int p = 0;
    if (i >= a.end[a.n - 1]) return;
    while (i >= a.end[p]) p++;
    const int64_t row = i - (a.end[p] - a.rows[p]);
    const act *W = a.W[p] + row * a.K;
    wait_for_others();
    let_others_start();
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
    if (a->M == 1) launch_early(c, gemv_kernel<V, 1>, blocks, GEMV_THREADS, 0, *a);
    else if (a->M == 2) launch_early(c, gemv_kernel<V, 2>, blocks, GEMV_THREADS, 0, *a);
    else if (a->M <= 4) launch_early(c, gemv_kernel<V, 4>, blocks, GEMV_THREADS, 0, *a);
    else launch_early(c, gemv_kernel<V, 8>, blocks, GEMV_THREADS, 0, *a);
}

/* whether there are few enough rows */
static bool gemv_fits(const struct hl_linear *l) {
    return l->M <= (HL_ACT_DTYPE == HOLA_BF16 && l->K % WIDE == 0 ? (int)GEMV_ROWS : 8);
}
static void gemv(struct hl_cuda *c, const struct hl_linear *l) {
    struct gemv a = {l->M, l->K, (const act *)l->x, l->n, l->out_real};
    int64_t end = 0;
    for (int p = 0; p < l->n; p++) {
        a.rows[p] = l->part[p].W.rows;
        a.end[p] = end += a.rows[p];
        a.W[p] = (const act *)l->part[p].W.data;
        a.out[p] = l->part[p].out;
        a.from[p] = l->part[p].from;
    }
    if (end == 0) return;
#ifndef HL_CUDA_F32
    if (l->K % WIDE == 0) {
        if (l->M <= 8 && l->K <= 1024) gemv_start<4, 1, 1>(c, &a);
        else if (l->M <= 8) gemv_start<8, 1, 1>(c, &a);
        else if (l->M <= 16) gemv_start<4, 2, 1>(c, &a);
        else if (l->M <= 32) gemv_many<4>(c, &a);
        else gemv_many<8>(c, &a);
        return;
    }
#endif
    if (l->K % WIDE == 0) gemv_launch<WIDE>(c, &a);
    else gemv_launch<1>(c, &a);
}

#endif
