/* lte_cuda.cu -- the learned score (lte.h), forward.
 *
 *   project  u = W_in x: grid (blocks HV, rows of a block / ROWS), THREADS threads: a warp has EACH rows and CHANNELS
 *            channels at a time, its lanes the numbers of x. No shared memory.
 *   score    the convolutions: grid (blocks HV, rows of a block / THREADS), a thread has one row and loops over the
 *            channels, which are independent: each depends only on nine values of u around the row.
 * Blocks that their segment does not complete: `project` does nothing, `score` writes 0. */
#include "ops/lte/lte_cuda.cuh"
#include "cuda/pdl.cuh"

enum { THREADS = 256, EACH = 4, ROWS = THREADS / 32 * EACH };

static __global__ void __launch_bounds__(THREADS) project(const struct lte_dev d) {
    const struct lte_block b = lte_block_of(d, blockIdx.x / d.a.HV, blockIdx.x % d.a.HV);
    const int C = (int)d.a.chunk, K = (int)d.a.K, V = (int)d.a.V, r = (int)d.a.r, lane = threadIdx.x % 32;
    const int first = blockIdx.y * ROWS + threadIdx.x / 32 * EACH;
    const float *w = d.a.w_in + b.h * r * (K + V);
    float norm[EACH];
    pdl_wait(), pdl_trigger();
    if (!b.complete || first >= C) return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const act *v = value_of(d, b, min(first + i, C - 1));
        float sum = 0.0f;
        for (int x = lane; x < V; x += 32) sum += f32(v[x]) * f32(v[x]);
        norm[i] = rsqrtf(warp_sum(sum) / (float)V + d.a.eps);
    }
    for (int c0 = 0; c0 < r; c0 += CHANNELS) {
        float u[EACH][CHANNELS] = {};
        for (int x = lane; x < K + V; x += 32) {
            float in[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int j = min(first + i, C - 1);
                in[i] = x < K ? f32(key_of(d, b, j)[x]) : norm[i] * f32(value_of(d, b, j)[x - K]);
            }
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) {
                const float y = c0 + c < r ? w[(int64_t)(c0 + c) * (K + V) + x] : 0.0f;
#pragma unroll
                for (int i = 0; i < EACH; i++) u[i][c] += y * in[i];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) {
                const float sum = warp_sum(u[i][c]);
                if (lane == c && c0 + c < r && first + i < C) u_of(d, b, first + i)[c0 + c] = sum;
            }
    }
}

static __global__ void __launch_bounds__(THREADS) score(const struct lte_dev d) {
    const struct lte_block b = lte_block_of(d, blockIdx.x / d.a.HV, blockIdx.x % d.a.HV);
    const int C = (int)d.a.chunk, r = (int)d.a.r, j = blockIdx.y * THREADS + threadIdx.x;
    float sum = 0.0f;
    pdl_wait(), pdl_trigger();
    if (j >= C || (!b.complete && (j < b.skip || j >= b.skip + b.len))) return;
    for (int c = 0; b.complete && c < r; c++) {
        const struct lte_taps t = lte_taps_of(d, b.h * r + c);
        float u[5], a[3];
#pragma unroll
        for (int i = 0; i < 5; i++) {
            const int at = j + 2 * i - 4;
            u[i] = at >= 0 && at < C ? u_of(d, b, at)[c] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int at = j + 2 * i - 2;
            a[i] = at >= 0 && at < C ? lte_silu(lte_conv(t.conv1, t.bias1, u + i)) : 0.0f;
        }
        sum += t.out * lte_silu(lte_conv(t.conv2, t.bias2, a));
    }
    if (b.complete) sum += d.a.b_out[b.h];
    if (j < b.skip) b.score[j] = sum;
    else d.a.score[(int64_t)(b.row + j - b.skip) * d.a.HV + b.h] = sum;
}

extern "C" void HL_OP(lte_forward)(struct hl_backend *backend, const struct hl_lte *a) {
    struct hl_cuda *cuda = hl_cuda_of(backend);
    struct lte_dev d = lte_dev_of(a);
    const unsigned heads = (unsigned)(d.rows.blocks * a->HV);
    if (a->rows->T == 0) return;
    d.open = (float *)hl_cuda_scratch(cuda, a->rows->n * a->HV * a->chunk * a->r * 4);
    if (!d.open) return;
    launch_pdl(cuda, project, dim3(heads, blocks_for(a->chunk, ROWS)), THREADS, 0, d);
    launch_pdl(cuda, score, dim3(heads, blocks_for(a->chunk, THREADS)), THREADS, 0, d);
}
