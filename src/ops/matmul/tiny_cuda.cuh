/* tiny_cuda.cuh -- matrices of a few rows (decay and write strength: one row per head), which a product of their
 * own would read x or dx for again and again. All of them together are one matrix of up to 32 rows: x is read
 * once for the outputs, once for the gradients of the weights, and dx takes them all in one pass. bf16. */
#ifndef HL_TINY_CUDA_CUH
#define HL_TINY_CUDA_CUH
#include "cuda/dev.cuh"
#include "cuda/partials.cuh"

enum { TINY_ROWS = 16, TINY_ALL = 32, TINY_THREADS = 256 }; /* rows of one such matrix, of all */

struct tiny { /* row j of all: row `row[j]` of its part */
    int64_t M, K;
    int n;
    const act *x;
    act *dx;
    bool out_real, add, dx_add;
    const act *W[TINY_ALL];
    void *out[TINY_ALL];       /* of row 0; the next one's is `width` further on */
    const act *dout[TINY_ALL]; /* the same */
    float *dW[TINY_ALL];
    int width[TINY_ALL];
    float *part; /* [blocks][n][K] */
};

static struct tiny tiny_open(const struct hl_linear *l, const bool *is_tiny) {
    struct tiny t = {l->M, l->K};
    t.x = (const act *)l->x, t.dx = (act *)l->dx;
    t.out_real = l->out_real, t.add = l->add, t.dx_add = l->dx_add;
    for (int p = 0; p < l->n; p++) {
        const struct hl_linear_part *part = &l->part[p];
        for (int64_t i = 0; is_tiny[p] && i < part->W.rows; i++, t.n++) {
            t.W[t.n] = (const act *)part->W.data + i * l->K;
            t.out[t.n] = l->out_real ? (void *)((float *)part->out + i) : (void *)((act *)part->out + i);
            t.dout[t.n] = part->dout ? (const act *)part->dout + i : NULL;
            t.dW[t.n] = part->dW ? part->dW + i * l->K : NULL;
            t.width[t.n] = (int)part->W.rows;
        }
    }
    return t;
}

#ifndef HL_CUDA_F32

static __device__ __forceinline__ void tiny_put(const struct tiny &a, int64_t m, int j, float s) {
    if (m >= a.M || j >= a.n) return;
    if (a.out_real) {
        float *out = (float *)a.out[j] + m * a.width[j];
        *out = a.add ? *out + s : s;
    } else {
        act *out = (act *)a.out[j] + m * a.width[j];
        put(out, a.add ? f32(*out) + s : s);
    }
}

/* A warp owns 16 rows of x and all 8 N outputs. Lane (g, t) loads 16 bytes of rows g, g + 8 and of weights g at
 * column 32 k + 8 t: as the order within a sum is ours to choose, those are the fragments of two products. */
template <int N> static __global__ void __launch_bounds__(TINY_THREADS) tiny_fwd(struct tiny a) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t m = ((int64_t)blockIdx.x * (TINY_THREADS / 32) + threadIdx.x / 32) * 16 + g;
    const act *x0 = a.x + min(m, a.M - 1) * a.K + 8 * t, *x1 = a.x + min(m + 8, a.M - 1) * a.K + 8 * t;
    const act *W[N];
    float d[N][4];
    for (int n = 0; n < N; n++) {
        W[n] = a.W[min(n * 8 + g, a.n - 1)] + 8 * t;
        d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
    }
#pragma unroll 4
    for (int64_t k = 0; k < a.K; k += 32) {
        uint4 u = make_uint4(0, 0, 0, 0), v = u;
        const bool in = k + 8 * t < a.K;
        if (in) u = *(const uint4 *)(x0 + k), v = *(const uint4 *)(x1 + k);
        const uint32_t one[4] = {u.x, v.x, u.y, v.y}, two[4] = {u.z, v.z, u.w, v.w};
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint4 w = make_uint4(0, 0, 0, 0);
            if (in) w = *(const uint4 *)(W[n] + k);
            const uint32_t b1[2] = {w.x, w.y}, b2[2] = {w.z, w.w};
            mma_bf16(d[n], one, b1);
            mma_bf16(d[n], two, b2);
        }
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) tiny_put(a, m + i / 2 * 8, n * 8 + 2 * t + i % 2, d[n][i]);
}

/* dx += sum of dout_j W_j over j0 <= j < j0 + N: a thread keeps 8 columns of these W and walks down rows */
template <int N>
static __global__ void __launch_bounds__(TINY_THREADS) tiny_dx(struct tiny a, int j0, bool add) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDE;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    uint4 w[N];
    if (c >= a.K) return;
#pragma unroll
    for (int j = 0; j < N; j++)
        w[j] = j0 + j < a.n ? *(const uint4 *)(a.W[j0 + j] + c) : make_uint4(0, 0, 0, 0);
    for (int64_t m = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; m < a.M; m += step) {
        float d[WIDE];
        act *dx = a.dx + m * a.K + c;
        for (int v = 0; v < WIDE; v++) d[v] = 0.0f;
        if (add) load_wide(d, dx);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j0 + j >= a.n) break;
            const float s = f32(a.dout[j0 + j][m * a.width[j0 + j]]);
            d[0] += s * low(w[j].x), d[1] += s * high(w[j].x), d[2] += s * low(w[j].y),
                d[3] += s * high(w[j].y);
            d[4] += s * low(w[j].z), d[5] += s * high(w[j].z), d[6] += s * low(w[j].w),
                d[7] += s * high(w[j].w);
        }
        store_wide(dx, d);
    }
}

/* part[y][j] = sum of dout_j x over the rows of block y, 8 columns and N weights a thread */
template <int N> static __global__ void __launch_bounds__(TINY_THREADS) tiny_dw(struct tiny a, int j0) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDE;
    const int64_t from = a.M * blockIdx.y / gridDim.y, to = a.M * (blockIdx.y + 1) / gridDim.y;
    float sum[N][WIDE];
    if (c >= a.K) return;
    for (int j = 0; j < N; j++)
        for (int v = 0; v < WIDE; v++) sum[j][v] = 0.0f;
#pragma unroll 4
    for (int64_t m = from; m < to; m++) {
        float x[WIDE];
        load_wide(x, a.x + m * a.K + c);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j0 + j >= a.n) break;
            const float s = f32(a.dout[j0 + j][m * a.width[j0 + j]]);
            for (int v = 0; v < WIDE; v++) sum[j][v] += s * x[v];
        }
    }
    for (int j = 0; j < N && j0 + j < a.n; j++)
        for (int v = 0; v < WIDE; v++) a.part[((int64_t)blockIdx.y * a.n + j0 + j) * a.K + c + v] = sum[j][v];
}
/* the partial sums of all rows' gradients, each to its place */
static __global__ void tiny_dw_sum(struct tiny a, int64_t P) {
    const int64_t c = (int64_t)blockIdx.x * TINY_THREADS + threadIdx.x;
    const int j = blockIdx.y;
    float s = 0.0f;
    if (c >= a.K || !a.dW[j]) return;
#pragma unroll 8
    for (int64_t p = 0; p < P; p++) s += a.part[(p * a.n + j) * a.K + c];
    a.dW[j][c] += s;
}

static void tiny_forward(struct hl_cuda *c, const struct tiny *t) {
    const unsigned blocks = blocks_for(t->M, 16 * (TINY_THREADS / 32));
    if (t->n <= 8) launch(c, tiny_fwd<1>, blocks, TINY_THREADS, 0, *t);
    else if (t->n <= 16) launch(c, tiny_fwd<2>, blocks, TINY_THREADS, 0, *t);
    else launch(c, tiny_fwd<4>, blocks, TINY_THREADS, 0, *t);
}

/* dx_add: dx holds something already */
static void tiny_backward(struct hl_cuda *c, struct tiny *t, bool dx_add) {
    enum { EACH = 8 };
    unsigned across = 32;
    while (across < TINY_THREADS && across * WIDE < t->K) across *= 2;
    const unsigned wide = blocks_for(t->K, across * WIDE), most = blocks_for(8 * hl_cuda_sms(c), wide);
    const dim3 block(across, TINY_THREADS / across);
    for (int j = 0; t->dx && j < t->n; j += EACH)
        launch(c, tiny_dx<EACH>, dim3(wide, min(blocks_for(t->M, block.y * 4), most)), block, 0, *t, j,
               dx_add || j > 0);
    bool any = false;
    for (int j = 0; j < t->n; j++) any = any || t->dW[j];
    if (!any) return;
    const unsigned high = min(blocks_for(t->M, 32), blocks_for(2 * hl_cuda_sms(c), wide));
    t->part = (float *)hl_cuda_scratch(c, (int64_t)high * t->n * t->K * (int64_t)sizeof(float));
    if (!t->part) return;
    for (int j = 0; j < t->n; j += EACH) launch(c, tiny_dw<EACH>, dim3(wide, high), across, 0, *t, j);
    launch(c, tiny_dw_sum, dim3(blocks_for(t->K, TINY_THREADS), t->n), TINY_THREADS, 0, *t, (int64_t)high);
}

#endif
#endif
