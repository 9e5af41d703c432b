/* lm_head.cuh -- the head's product for up to 64 rows. Grid: one wave of blocks, each with up to HEAD_COLS
 * columns and all of K; block: two warpgroups, each with half of the columns. W and x pass through a ring
 * of panels in shared memory. The first panels of W are loaded before pdl_wait. */
#ifndef HL_LM_HEAD_CUH
#define HL_LM_HEAD_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_batch/gemm.cuh"

enum {
    HEAD_THREADS = 256,
    HEAD_COLS = 256,
    HEAD_SLOTS = 5,
    /* wait_for_panel() relies on it */ GROUP_COLS = HEAD_COLS / (HEAD_THREADS / 128)
};
struct lm_head_smem {
    struct {
        bf16 x[BATCH_ROWS * PANEL], W[HEAD_COLS * PANEL];
    } slot[HEAD_SLOTS];
    float factor[BATCH_ROWS];
};

/* Panels [p, end) of `own` rows of W from row `first` on; the other rows are zeros. Loads all panels of a row together:
 * memory is slow with 128-byte pieces. */
static __device__ __forceinline__ void load_head_weights(const struct batch_linear &a, struct lm_head_smem *m, int p,
                                                         int end, int first, int own) {
    enum { STEP = HEAD_THREADS / 8 };
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8 * 8;
    const bf16 *from = a.W + (int64_t)(first + row) * a.K + unit;
#pragma unroll
    for (int r = 0; r < HEAD_COLS; r += STEP, from += (int64_t)STEP * a.K)
        for (int i = p; i < end; i++)
            copy_async(m->slot[i % HEAD_SLOTS].W + r * PANEL + tile_at<PANEL>(row, unit),
                       row + r < own ? from + i * PANEL : a.W, row + r < own ? 16 : 0);
}
/* Panel p of x, padded to 64 rows. */
static __device__ __forceinline__ void load_head_x(const struct batch_linear &a, struct lm_head_smem *m, int p) {
    const int size = a.x.rows * PANEL;
    const bf16 *from = a.x.at + p * size;
#pragma unroll
    for (int i = threadIdx.x * 8; i < BATCH_ROWS * PANEL; i += HEAD_THREADS * 8)
        copy_async(m->slot[p % HEAD_SLOTS].x + i, from + (i < size ? i : 0), i < size ? 16 : 0);
}
/* The norm's factor of every row. Always four threads per row, so that the order of the sum does not depend on the
 * number of rows. */
static __device__ __forceinline__ void head_row_factors(const struct batch_linear &a, float *factor) {
    enum { EACH = HEAD_THREADS / BATCH_ROWS };
    const int n = a.K / SQUARES, row = threadIdx.x / EACH;
    float s = 0.0f;
#pragma unroll 8
    for (int j = threadIdx.x % EACH; j < n; j += EACH) s += row < a.M ? a.squares[row * n + j] : 0.0f;
    for (int j = 1; j < EACH; j *= 2) s += __shfl_xor_sync(0xffffffffu, s, j);
    if (threadIdx.x % EACH == 0) factor[row] = rsqrtf(s / (float)a.K + a.eps);
}

/* Stores a thread's accumulators, pairs of adjacent columns; the block has columns [0, own). */
static __device__ __forceinline__ void store_logits(const struct batch_linear &a, const float (*d)[4],
                                                    const float *factor, int first, int own) {
    const int lane = threadIdx.x % 32, from = warpgroup_index() * GROUP_COLS + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * i;
        const float f = factor[row];
        float *out = (float *)a.out + (int64_t)row * a.ld + first;
        if (row >= a.M) break;
#pragma unroll
        for (int n = 0; n < GROUP_COLS / 8; n++) {
            const int col = from + n * 8;
            const float x = f * d[n][2 * i], y = f * d[n][2 * i + 1];
            if (col + 2 <= own && a.ld % 2 == 0) *(float2 *)(out + col) = make_float2(x, y);
            else if (col < own) {
                out[col] = x;
                if (col + 1 < own) out[col + 1] = y;
            }
        }
    }
}

/* After the first HEAD_SLOTS panels, a group of copies is two panels. */
static __device__ __forceinline__ void wait_for_panel(int p) {
    if (p == 0) copy_wait<4>();
    else if (p == 1) copy_wait<3>();
    else if (p < 4) copy_wait<2>();
    else copy_wait<1>();
}

/* each: columns per block, a multiple of 8 */
static __global__ void __launch_bounds__(HEAD_THREADS, 1) batch_lm_head(const struct batch_linear a, int each) {
    struct lm_head_smem *m = (struct lm_head_smem *)shared_tiles();
    const int panels = a.K / PANEL, first = blockIdx.x * each, own = min(each, a.N - first);
    float d[GROUP_COLS / 8][4] = {};
    load_head_weights(a, m, 0, min(panels, (int)HEAD_SLOTS), first, own);
    pdl_trigger(), pdl_wait();
    for (int p = 0; p < HEAD_SLOTS; p++) {
        if (p < panels) load_head_x(a, m, p);
        copy_commit();
    }
    head_row_factors(a, m->factor);
    wgmma_begin<GROUP_COLS / 8>(d);
    for (int p = 0; p < panels; p++) {
        wait_for_panel(p);
        fence_proxy_async();
        __syncthreads();       /* the panel is complete, and the previous ones have been read */
        if (p % 2 == 0 && p) { /* load two panels at a time */
            const int next = p + HEAD_SLOTS - 2, end = min(panels, next + 2);
            load_head_weights(a, m, next, end, first, own);
            for (int i = next; i < end; i++) load_head_x(a, m, i);
            copy_commit();
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PANEL; k += 16) {
            const struct operand<PANEL, false> x = {m->slot[p % HEAD_SLOTS].x, 0, k}, w = {
                m->slot[p % HEAD_SLOTS].W, warpgroup_index() * GROUP_COLS, k
            };
            wgmma_ss<GROUP_COLS>(d, x, w);
        }
        wgmma_commit_wait<0>();
    }
    wgmma_wait_all<GROUP_COLS / 8>(d);
    store_logits(a, d, m->factor, first, own);
}

static inline void launch_lm_head(struct hl_cuda *c, const struct batch_linear &a) {
    const int units = (a.N + 7) / 8, sms = hl_cuda_sms(c), most = HEAD_COLS / 8;
    const int waves = (units + most * sms - 1) / (most * sms), each = (units + waves * sms - 1) / (waves * sms);
    launch_pdl(c, batch_lm_head, blocks_for(units, each), HEAD_THREADS, sizeof(struct lm_head_smem) + TILES_ROOM, a,
               each * 8);
}

#endif
