/* lte_back_cuda.cu -- the learned score, backward (lte.h). Training only: no block has rows in a state.
 *
 *   back_layers   du, and each block's share of the small tensors' gradients: grid (blocks HV), THREADS threads: 16
 *                 channels x 16 rows at a time; a thread recomputes all that its row needs from nine values of u. Shared
 *                 memory: the threads' sums.
 *   back_rows     dk, dv += du W_in, v's through its norm: grid (rows / ROWS, H), a warp has EACH rows of a key head and
 *                 goes over its value heads. Shared memory: du, and a row's gradients.
 *   back_weights  shares of dW_in: grid (HV channel groups, SPLITS, columns / THREADS): a thread has one column of x and
 *                 CHANNELS channels; a split is every SPLITS-th block.
 *   add_shares    sums the shares in order. A thread has one element of the gradients. */
#include "ops/lte/lte_cuda.cuh"
#include "core/carve.h"

enum { THREADS = 256, ROW_THREADS = 128, EACH = 4, ROWS = ROW_THREADS / 32 * EACH, SPLITS = 64, SUMS = 9 };

struct lte_back {
    float *du;      /* [T][HV][r] */
    float *norm;    /* [T][HV]: 1 / sqrt(mean(v^2) + eps) */
    float *small;   /* [blocks][HV][r][SUMS]: taps and bias of conv1, of conv2, w_out */
    float *out;     /* [blocks][HV]: b_out */
    float *weights; /* [SPLITS][HV][r][K + V] */
};

static __global__ void __launch_bounds__(THREADS) back_layers(const struct lte_dev d, const struct lte_back g) {
    __shared__ float smem[16][CHANNELS * SUMS + 1];
    const struct lte_block b = lte_block_of(d, blockIdx.x / d.a.HV, blockIdx.x % d.a.HV);
    const int C = (int)d.a.chunk, r = (int)d.a.r, lane = threadIdx.x % CHANNELS, first = threadIdx.x / CHANNELS;
    float total = 0.0f; /* of b_out: a thread's rows, of the first channel */
    for (int c0 = 0; c0 < r; c0 += CHANNELS) {
        const int c = c0 + lane;
        const struct lte_taps t = lte_taps_of(d, b.h * r + min(c, r - 1));
        float sum[SUMS] = {};
        for (int j = first; b.complete && c < r && j < C; j += 16) {
            float u[9], a[7], dc[5], da[3], c_here = 0.0f;
            const float score = d.a.dscore[(int64_t)(b.row + j) * d.a.HV + b.h];
#pragma unroll
            for (int i = 0; i < 9; i++) { /* u at j - 8, ..., j + 8 */
                const int at = j + 2 * i - 8;
                u[i] = at >= 0 && at < C ? u_of(d, b, at)[c] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 7; i++) { /* a at j - 6, ..., j + 6 */
                const int at = j + 2 * i - 6;
                a[i] = at >= 0 && at < C ? lte_silu(lte_conv(t.conv1, t.bias1, u + i)) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 5; i++) { /* gradient of c before silu, at j - 4, ..., j + 4 */
                const int at = j + 2 * i - 4;
                const float pre = lte_conv(t.conv2, t.bias2, a + i);
                const bool in = at >= 0 && at < C;
                dc[i] = in ? d.a.dscore[(int64_t)(b.row + at) * d.a.HV + b.h] * t.out * lte_dsilu(pre) : 0.0f;
                if (i == 2) c_here = lte_silu(pre);
            }
#pragma unroll
            for (int i = 0; i < 3; i++) { /* gradient of a before silu, at j - 2, j, j + 2 */
                const int at = j + 2 * i - 2;
                const float x = t.conv2[2] * dc[i] + t.conv2[1] * dc[i + 1] + t.conv2[0] * dc[i + 2];
                da[i] = at >= 0 && at < C ? x * lte_dsilu(lte_conv(t.conv1, t.bias1, u + i + 2)) : 0.0f;
            }
            g.du[((int64_t)(b.row + j) * d.a.HV + b.h) * r + c] =
                t.conv1[2] * da[0] + t.conv1[1] * da[1] + t.conv1[0] * da[2];
#pragma unroll
            for (int i = 0; i < 3; i++) sum[i] += da[1] * u[3 + i], sum[4 + i] += dc[2] * a[2 + i];
            sum[3] += da[1], sum[7] += dc[2], sum[8] += score * c_here;
            if (c == 0) total += score;
        }
        __syncthreads();
        for (int i = 0; i < SUMS; i++) smem[first][lane * SUMS + i] = sum[i];
        __syncthreads();
        for (int i = threadIdx.x; i < CHANNELS * SUMS; i += THREADS) {
            float all = 0.0f;
            for (int n = 0; n < 16; n++) all += smem[n][i];
            if (c0 + i / SUMS < r)
                g.small[((int64_t)blockIdx.x * r + c0 + i / SUMS) * SUMS + i % SUMS] = b.complete ? all : 0.0f;
        }
    }
    __syncthreads();
    if (lane == 0) smem[first][0] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (int n = 0; n < 16; n++) all += smem[n][0];
        g.out[blockIdx.x] = all;
    }
}

/* Shared memory of a warp: du of EACH rows [r][EACH], dk [EACH][K], dx [EACH][V]. */
static inline __host__ __device__ int64_t row_floats(const struct hl_lte &a) { return EACH * (a.r + a.K + a.V); }

static __global__ void __launch_bounds__(ROW_THREADS) back_rows(const struct lte_dev d, const struct lte_back g) {
    const int K = (int)d.a.K, V = (int)d.a.V, r = (int)d.a.r, C = (int)d.a.chunk, lane = threadIdx.x % 32;
    const int block = blockIdx.x, row0 = blockIdx.y * ROWS + threadIdx.x / 32 * EACH, hk = blockIdx.z;
    float *du = (float *)shared_memory() + threadIdx.x / 32 * row_floats(d.a), *dk = du + EACH * r, *dx = dk + EACH * K;
    const struct hl_dev_span p = d.rows.block[block];
    if (p.len < C || row0 >= C) return;
    for (int i = lane; i < EACH * K; i += 32) dk[i] = 0.0f;
    for (int h = hk * (int)d.group; h < (hk + 1) * (int)d.group; h++) {
        const float *w = d.a.w_in + (int64_t)h * r * (K + V);
        __syncwarp();
        for (int i = lane; i < EACH * r; i += 32) {
            const int row = row0 + i % EACH;
            du[i] = row < C ? g.du[((int64_t)(p.row + row) * d.a.HV + h) * r + i / EACH] : 0.0f;
        }
        __syncwarp();
        for (int x = lane; x < K + V; x += 32) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int c = 0; c < r; c++) {
                const float y = w[(int64_t)c * (K + V) + x];
                const float4 e = *(const float4 *)(du + c * EACH);
                sum.x += e.x * y, sum.y += e.y * y, sum.z += e.z * y, sum.w += e.w * y;
            }
            const float all[EACH] = {sum.x, sum.y, sum.z, sum.w};
            for (int i = 0; i < EACH; i++)
                if (x < K) dk[i * K + x] += all[i];
                else dx[i * V + x - K] = all[i];
        }
        __syncwarp();
        for (int i = 0; i < EACH && row0 + i < C; i++) { /* dv = norm (dx - xh mean(xh dx)), xh = norm v */
            const int64_t at = (int64_t)(p.row + row0 + i) * d.a.HV + h;
            const act *v = (const act *)d.a.v + at * V;
            act *dv = (act *)d.a.dv + at * V;
            float squares = 0.0f, along = 0.0f;
            for (int x = lane; x < V; x += 32) squares += f32(v[x]) * f32(v[x]), along += f32(v[x]) * dx[i * V + x];
            squares = warp_sum(squares), along = warp_sum(along);
            const float norm = rsqrtf(squares / (float)V + d.a.eps), mean = along * norm * norm / (float)V;
            for (int x = lane; x < V; x += 32) put(dv + x, f32(dv[x]) + norm * (dx[i * V + x] - f32(v[x]) * mean));
            if (lane == 0) g.norm[at] = norm;
        }
    }
    __syncwarp();
    for (int i = 0; i < EACH && row0 + i < C; i++) {
        act *to = (act *)d.a.dk + ((int64_t)(p.row + row0 + i) * d.a.H + hk) * K;
        for (int x = lane; x < K; x += 32) put(to + x, f32(to[x]) + dk[i * K + x]);
    }
}

static __global__ void __launch_bounds__(THREADS) back_weights(const struct lte_dev d, const struct lte_back g) {
    enum { STEP = 32 };
    __shared__ __align__(16) float du[STEP][CHANNELS], norm[STEP];
    const int K = (int)d.a.K, V = (int)d.a.V, r = (int)d.a.r, C = (int)d.a.chunk,
              groups = (r + CHANNELS - 1) / CHANNELS;
    const int h = blockIdx.x / groups, c0 = blockIdx.x % groups * CHANNELS, x = blockIdx.z * THREADS + threadIdx.x;
    const int64_t hk = h / d.group;
    float sum[CHANNELS] = {};
    for (int64_t n = blockIdx.y; n < d.rows.blocks; n += SPLITS) {
        const struct hl_dev_span p = d.rows.block[n];
        if (p.len < C) continue;
        for (int j0 = 0; j0 < C; j0 += STEP) {
            const int rows = min((int)STEP, C - j0);
            __syncthreads();
            for (int i = threadIdx.x; i < rows * CHANNELS; i += THREADS) {
                const int64_t at = (int64_t)(p.row + j0 + i / CHANNELS) * d.a.HV + h;
                const int c = c0 + i % CHANNELS;
                du[i / CHANNELS][i % CHANNELS] = c < r ? g.du[at * r + c] : 0.0f;
                if (i % CHANNELS == 0) norm[i / CHANNELS] = g.norm[at];
            }
            __syncthreads();
            for (int j = 0; x < K + V && j < rows; j++) {
                const int64_t row = p.row + j0 + j;
                const float in = x < K ? f32(((const act *)d.a.k)[(row * d.a.H + hk) * K + x])
                                       : norm[j] * f32(((const act *)d.a.v)[(row * d.a.HV + h) * V + x - K]);
#pragma unroll
                for (int c = 0; c < CHANNELS; c += 4) {
                    const float4 e = *(const float4 *)&du[j][c];
                    sum[c] += e.x * in, sum[c + 1] += e.y * in, sum[c + 2] += e.z * in, sum[c + 3] += e.w * in;
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (x < K + V && c0 + c < r) g.weights[((blockIdx.y * d.a.HV + h) * r + c0 + c) * (K + V) + x] = sum[c];
}

/* *to += the sum of n numbers, `stride` apart */
static __device__ __forceinline__ void add_all(float *to, const float *from, int64_t n, int64_t stride) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += from[i * stride];
    *to += sum;
}
static __global__ void add_shares(const struct lte_dev d, const struct lte_back g) {
    const int64_t wide = d.a.HV * d.a.r * (d.a.K + d.a.V), channels = d.a.HV * d.a.r, blocks = d.rows.blocks;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < wide) {
        add_all(d.a.dw_in + i, g.weights + i, SPLITS, wide);
        return;
    }
    i -= wide;
    if (i < channels * SUMS) {
        const int64_t c = i / SUMS, which = i % SUMS;
        float *to = which < 3    ? d.a.dconv1 + c * 3 + which
                    : which == 3 ? d.a.dbias1 + c
                    : which < 7  ? d.a.dconv2 + c * 3 + which - 4
                    : which == 7 ? d.a.dbias2 + c
                                 : d.a.dw_out + c;
        add_all(to, g.small + i, blocks, channels * SUMS);
        return;
    }
    i -= channels * SUMS;
    if (i < d.a.HV) add_all(d.a.db_out + i, g.out + i, blocks, d.a.HV);
}

static float *carve_floats(struct hl_carve *c, int64_t n) { return (float *)hl_carve(c, n, 4); }

extern "C" void HL_OP(lte_backward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct hl_cuda *cuda = hl_cuda_of(backend);
    struct lte_dev d = lte_dev_of(a);
    struct lte_back g = {};
    struct hl_carve s = {NULL, 0, 256};
    const int64_t T = a->rows->T, heads = d.rows.blocks * a->HV, wide = a->HV * a->r * (a->K + a->V);
    if (T == 0) return;
    for (int pass = 0; pass < 2; pass++) { /* counts, then offsets */
        s.used = 0;
        g.du = carve_floats(&s, T * a->HV * a->r), g.norm = carve_floats(&s, T * a->HV);
        g.small = carve_floats(&s, heads * a->r * SUMS), g.out = carve_floats(&s, heads);
        g.weights = carve_floats(&s, SPLITS * wide);
        if (pass == 0) s.base = (char *)hl_cuda_scratch(cuda, s.used);
        if (!s.base) return;
    }
    launch(cuda, back_layers, (unsigned)heads, THREADS, 0, d, g);
    launch(cuda, back_rows, dim3((unsigned)d.rows.blocks, blocks_for(a->chunk, ROWS), (unsigned)a->H), ROW_THREADS,
           (size_t)(ROW_THREADS / 32 * row_floats(*a) * 4), d, g);
    launch(cuda, back_weights,
           dim3((unsigned)(a->HV * ((a->r + CHANNELS - 1) / CHANNELS)), SPLITS, blocks_for(a->K + a->V, THREADS)),
           THREADS, 0, d, g);
    launch(cuda, add_shares, blocks_for(wide + a->HV * (a->r * SUMS + 1), THREADS), THREADS, 0, d, g);
}
