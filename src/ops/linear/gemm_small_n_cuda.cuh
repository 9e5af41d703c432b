/* gemm_small_n_cuda.cuh -- GEMM of small N: matrices with few outputs (decay and write strength: one per head).
 * Separate products would each read x, or read and write dx; combined into one matrix of up to 32 outputs, x is read
 * once forward and once for the weight gradients, and dx is written in one pass. bf16.
 *
 * Block: SMALL_N_THREADS. small_n_fwd, grid M / 128: a warp owns 16 rows and all outputs. small_n_dx, a persistent
 * grid: a warp owns 16 rows at a time, the weights are in shared memory. small_n_dw, grid (K / 512, parts of M): a warp
 * owns 64 columns; partial sums go to scratch memory and are reduced by sum_partials (split-K). */
#ifndef HL_GEMM_SMALL_N_CUDA_CUH
#define HL_GEMM_SMALL_N_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/reduce.cuh"

enum { SMALL_N_ROWS = 16, SMALL_N_ALL = 32, SMALL_N_K = 4096, SMALL_N_THREADS = 256 }; /* outputs of one part, of all */

struct small_n { /* the concatenated outputs of all small-N parts */
    int64_t M, K;
    int n;
    const act *x;
    act *dx;
    bool out_real;
    const act *W[SMALL_N_ALL];
    void *out[SMALL_N_ALL];        /* at row 0; row stride `width` */
    const void *from[SMALL_N_ALL]; /* the same layout; NULL: nothing is added */
    const act *dout[SMALL_N_ALL];  /* the same layout */
    float *dW[SMALL_N_ALL];
    int width[SMALL_N_ALL];
    float *part; /* [blocks][n][K] */
};

#ifndef HL_CUDA_F32

static struct small_n small_n_open(const struct hl_linear *l, const bool *is_small_n) {
    struct small_n t = {l->M, l->K};
    const int64_t size = l->out_real ? sizeof(float) : sizeof(act);
    t.x = (const act *)l->x, t.dx = (act *)l->dx;
    t.out_real = l->out_real;
    for (int p = 0; p < l->n; p++) {
        const struct hl_linear_part *part = &l->part[p];
        for (int64_t i = 0; is_small_n[p] && i < part->W.rows; i++, t.n++) {
            t.W[t.n] = (const act *)part->W.data + i * l->K;
            t.out[t.n] = (char *)part->out + i * size;
            t.from[t.n] = part->from ? (const char *)part->from + i * size : NULL;
            t.dout[t.n] = part->dout ? (const act *)part->dout + i : NULL;
            t.dW[t.n] = part->dW ? part->dW + i * l->K : NULL;
            t.width[t.n] = (int)part->W.rows;
        }
    }
    return t;
}

static __device__ __forceinline__ void small_n_put(const struct small_n &a, int64_t m, int j, float s) {
    if (m >= a.M || j >= a.n) return;
    const int64_t at = m * a.width[j];
    if (a.out_real) {
        const float *from = (const float *)a.from[j];
        ((float *)a.out[j])[at] = from ? from[at] + s : s;
    } else {
        const act *from = (const act *)a.from[j];
        put((act *)a.out[j] + at, from ? f32(from[at]) + s : s);
    }
}

/* A warp owns 16 rows of x and all 8 N outputs. Lane (g, t) loads 16 bytes of rows g, g + 8 and of weights g at column
 * 32 k + 8 t: because the order of a sum over K is free, these are the fragments of two mma. */
template <int N> static __global__ void __launch_bounds__(SMALL_N_THREADS) small_n_fwd(struct small_n a) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t m = ((int64_t)blockIdx.x * (SMALL_N_THREADS / 32) + threadIdx.x / 32) * 16 + g;
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
        for (int i = 0; i < 4; i++) small_n_put(a, m + i / 2 * 8, n * 8 + 2 * t + i % 2, d[n][i]);
}

/* number q of two rows of 8, as a pair */
static __device__ __forceinline__ uint32_t pick(uint4 u, uint4 v, int q) {
    const uint32_t x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
    return q % 2 ? (x[q / 2] >> 16) | (y[q / 2] & 0xffff0000u) : (x[q / 2] & 0xffffu) | (y[q / 2] << 16);
}
/* one column of all dout */
struct small_n_column {
    const act *at; /* NULL: zeros */
    int64_t width;
};
static __device__ __forceinline__ struct small_n_column column_of(const struct small_n &a, int j) {
    struct small_n_column c = {j < a.n ? a.dout[j] : NULL, j < a.n ? a.width[j] : 0};
    return c;
}
static __device__ __forceinline__ float small_n_dout(const struct small_n &a, struct small_n_column c, int64_t m) {
    return c.at && m < a.M ? f32(c.at[m * c.width]) : 0.0f;
}

/* dx (= or +=) sum of dout_j W_j over j0 <= j < j0 + 16. A warp owns 16 rows: dout is A, W is B. Four tiles
 * of 8 columns are arranged so that lane (g, t) gets 8 neighbours, 32 k + 8 t, of rows g and g + 8: column
 * n of tile q is column 8 (n / 2) + 2 q + n % 2 of the 32. */
static __global__ void __launch_bounds__(SMALL_N_THREADS) small_n_dx(struct small_n a, int j0, bool add) {
    uint32_t *W = (uint32_t *)shared_memory(); /* [8][K + 2]: pairs (j, j + 1) of column k */
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, pad = (int)a.K + 2;
    const int64_t step = (int64_t)gridDim.x * (SMALL_N_THREADS / 32) * 16;
    struct small_n_column dout[4]; /* 2 t, 2 t + 1, 2 t + 8, 2 t + 9 */
    for (int i = 0; i < 4; i++) dout[i] = column_of(a, j0 + 2 * t + i / 2 * 8 + i % 2);
    for (int i = 0; i < 8; i++) {
        const act *one = j0 + 2 * i < a.n ? a.W[j0 + 2 * i] : NULL,
                  *two = j0 + 2 * i + 1 < a.n ? a.W[j0 + 2 * i + 1] : NULL;
        for (int k = threadIdx.x; k < a.K; k += SMALL_N_THREADS)
            W[i * pad + k] = pack2(one ? f32(one[k]) : 0.0f, two ? f32(two[k]) : 0.0f);
    }
    __syncthreads();
    for (int64_t m = ((int64_t)blockIdx.x * (SMALL_N_THREADS / 32) + threadIdx.x / 32) * 16 + g; m - g < a.M;
         m += step) {
        uint32_t A[4];
        for (int i = 0; i < 4; i++) {
            const int64_t row = m + i % 2 * 8;
            A[i] = pack2(small_n_dout(a, dout[i / 2 * 2], row), small_n_dout(a, dout[i / 2 * 2 + 1], row));
        }
        act *top = a.dx + m * a.K + 8 * t, *bottom = top + 8 * a.K;
#pragma unroll 2
        for (int k = 0; k < a.K; k += 32) {
            const bool in = k + 8 * t < a.K, upper = in && m < a.M, lower = in && m + 8 < a.M;
            float d[4][4], x[8], y[8];
            for (int v = 0; v < 8; v++) x[v] = y[v] = 0.0f;
            if (add && upper) load_wide(x, top + k);
            if (add && lower) load_wide(y, bottom + k);
            for (int q = 0; q < 4; q++) {
                const int column = min(k + 8 * (g / 2) + 2 * q + g % 2, (int)a.K - 1);
                const uint32_t B[2] = {W[t * pad + column], W[(t + 4) * pad + column]};
                d[q][0] = x[2 * q], d[q][1] = x[2 * q + 1], d[q][2] = y[2 * q], d[q][3] = y[2 * q + 1];
                mma_bf16(d[q], A, B);
                x[2 * q] = d[q][0], x[2 * q + 1] = d[q][1], y[2 * q] = d[q][2], y[2 * q + 1] = d[q][3];
            }
            if (upper) store_wide(top + k, x);
            if (lower) store_wide(bottom + k, y);
        }
    }
}

/* part[y][j] = sum of dout_j x over the rows of block y, j0 <= j < j0 + 16. A warp owns 64 columns and takes 16 rows at
 * a time: dout transposed is A, x is B. Lane (g, t) loads columns 8 g .. 8 g + 7 of rows 2 t, 2 t + 1, 2 t + 8, 2 t +
 * 9: tile q consists of columns 8 g + q. */
static __global__ void __launch_bounds__(SMALL_N_THREADS) small_n_dw(struct small_n a, int j0) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t c = ((int64_t)blockIdx.x * (SMALL_N_THREADS / 32) + threadIdx.x / 32) * 64,
                  at = min(c + 8 * g, a.K - 8);
    const int64_t tiles = (a.M + 15) / 16, from = tiles * blockIdx.y / gridDim.y,
                  to = tiles * (blockIdx.y + 1) / gridDim.y;
    float d[8][4];
    if (c >= a.K) return;
    const struct small_n_column dout[2] = {column_of(a, j0 + g), column_of(a, j0 + g + 8)};
    for (int q = 0; q < 8; q++) d[q][0] = d[q][1] = d[q][2] = d[q][3] = 0.0f;
#pragma unroll 2
    for (int64_t m = from * 16; m < to * 16; m += 16) {
        uint32_t A[4];
        uint4 x[4];
        for (int i = 0; i < 4; i++) {
            const int64_t row = m + 2 * t + i / 2 * 8 + i % 2;
            x[i] = make_uint4(0, 0, 0, 0);
            if (row < a.M) x[i] = *(const uint4 *)(a.x + row * a.K + at);
        }
        for (int i = 0; i < 4; i++) {
            const int64_t row = m + 2 * t + i / 2 * 8;
            A[i] = pack2(small_n_dout(a, dout[i % 2], row), small_n_dout(a, dout[i % 2], row + 1));
        }
#pragma unroll
        for (int q = 0; q < 8; q++) {
            const uint32_t B[2] = {pick(x[0], x[1], q), pick(x[2], x[3], q)};
            mma_bf16(d[q], A, B);
        }
    }
    for (int q = 0; q < 8; q++)
        for (int i = 0; i < 4; i++) { /* columns 2 t, 2 t + 1 of tile q; weights g, g + 8 */
            const int64_t column = c + 8 * (2 * t + i % 2) + q;
            const int j = j0 + g + i / 2 * 8;
            if (j < a.n && column < a.K) a.part[((int64_t)blockIdx.y * a.n + j) * a.K + column] = d[q][i];
        }
}

static void small_n_forward(struct hl_cuda *c, const struct small_n *t) {
    const unsigned blocks = blocks_for(t->M, 16 * (SMALL_N_THREADS / 32));
    if (t->n <= 8) launch(c, small_n_fwd<1>, blocks, SMALL_N_THREADS, 0, *t);
    else if (t->n <= 16) launch(c, small_n_fwd<2>, blocks, SMALL_N_THREADS, 0, *t);
    else launch(c, small_n_fwd<4>, blocks, SMALL_N_THREADS, 0, *t);
}

/* The weight gradients of one part are contiguous, but not those of two parts. */
static void small_n_dw_sums(struct hl_cuda *c, const struct small_n *t, int64_t P) {
    for (int j = 0; j < t->n; j += t->width[j])
        if (t->dW[j]) sum_partials(c, t->dW[j], t->part + j * t->K, P, t->width[j] * t->K, t->n * t->K);
}

/* Runs before the other products, which then always accumulate into dx: so dx need not be read here. */
static void small_n_backward_x(struct hl_cuda *c, const struct small_n *t, bool dx_add) {
    const unsigned rows = blocks_for(t->M, 16 * (SMALL_N_THREADS / 32)), most = 4 * (unsigned)hl_cuda_sms(c);
    const size_t shared = 8 * (size_t)(t->K + 2) * sizeof(uint32_t);
    for (int j = 0; j < t->n; j += 16)
        launch(c, small_n_dx, min(rows, most), SMALL_N_THREADS, shared, *t, j, dx_add || j > 0);
}
static void small_n_backward_w(struct hl_cuda *c, struct small_n *t) {
    const unsigned wide = blocks_for(t->K, 64 * (SMALL_N_THREADS / 32)), most = 4 * (unsigned)hl_cuda_sms(c);
    const unsigned high = min(blocks_for(t->M, 64), blocks_for(most, wide));
    bool any = false;
    for (int j = 0; j < t->n; j++) any = any || t->dW[j];
    if (!any) return;
    t->part = (float *)hl_cuda_scratch(c, (int64_t)high * t->n * t->K * (int64_t)sizeof(float));
    if (!t->part) return;
    for (int j = 0; j < t->n; j += 16) launch(c, small_n_dw, dim3(wide, high), SMALL_N_THREADS, 0, *t, j);
    small_n_dw_sums(c, t, high);
}

#endif
#endif
