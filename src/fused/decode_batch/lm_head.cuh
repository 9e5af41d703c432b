/* lm_head.cuh -- the head's product for up to 64 rows: a wave of blocks, each with up to HEAD_COLS columns and all of K,
 * whose weights and x pass by in a ring of panels. The first weights are asked for before others are waited for. */
#ifndef HL_DECODE_BATCH_HEAD_CUH
#define HL_DECODE_BATCH_HEAD_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_batch/gemm.cuh"

enum {
    HEAD_THREADS = 256,
    HEAD_COLS = 256,
    HEAD_SLOTS = 5,
    /* as wait_for_panel() counts */ GROUP_COLS = HEAD_COLS / (HEAD_THREADS / 128)
};
struct head_room {
    struct {
        bf16 x[MANY_ROWS * PANEL], W[HEAD_COLS * PANEL];
    } slot[HEAD_SLOTS];
    float factor[MANY_ROWS];
};

/* Panels [p, end) of `own` rows of W from row `first` on, a row's at once: memory is slow in pieces of 128 bytes; the
 * other rows are zeros. */
static __device__ __forceinline__ void bring_head_weights(const struct many_linear &a, struct head_room *m,
                                                          int p, int end, int first, int own) {
    enum { STEP = HEAD_THREADS / 8 };
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8 * 8;
    const bf16 *from = a.W + (int64_t)(first + row) * a.K + unit;
#pragma unroll
    for (int r = 0; r < HEAD_COLS; r += STEP, from += (int64_t)STEP * a.K)
        for (int i = p; i < end; i++)
            copy_async(m->slot[i % HEAD_SLOTS].W + r * PANEL + tile_at<PANEL>(row, unit),
                       row + r < own ? from + i * PANEL : a.W, row + r < own ? 16 : 0);
}
/* Panel p of x; products are always of 64 rows. */
static __device__ __forceinline__ void bring_head_rows(const struct many_linear &a, struct head_room *m,
                                                       int p) {
    const int size = a.x.rows * PANEL;
    const bf16 *from = a.x.at + p * size;
#pragma unroll
    for (int i = threadIdx.x * 8; i < MANY_ROWS * PANEL; i += HEAD_THREADS * 8)
        copy_async(m->slot[p % HEAD_SLOTS].x + i, from + (i < size ? i : 0), i < size ? 16 : 0);
}
/* The rows' factors: four threads each, whatever the number of rows, so that the sums' order is the same. */
static __device__ __forceinline__ void find_factors(const struct many_linear &a, float *factor) {
    enum { EACH = HEAD_THREADS / MANY_ROWS };
    const int n = a.K / SQUARES, row = threadIdx.x / EACH;
    float s = 0.0f;
#pragma unroll 8
    for (int j = threadIdx.x % EACH; j < n; j += EACH) s += row < a.M ? a.squares[row * n + j] : 0.0f;
    for (int j = 1; j < EACH; j *= 2) s += __shfl_xor_sync(0xffffffffu, s, j);
    if (threadIdx.x % EACH == 0) factor[row] = rsqrtf(s / (float)a.K + a.eps);
}

/* What a thread has of the warpgroup's sums: neighbours in pairs. Columns of [0, own) of the block. */
static __device__ __forceinline__ void put_logits(const struct many_linear &a, const float (*d)[4],
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

/* After the first HEAD_SLOTS panels a group of copies is two of them. */
static __device__ __forceinline__ void wait_for_panel(int p) {
    if (p == 0) copy_wait<4>();
    else if (p == 1) copy_wait<3>();
    else if (p < 4) copy_wait<2>();
    else copy_wait<1>();
}

/* each: columns of a block, a multiple of 8 */
static __global__ void __launch_bounds__(HEAD_THREADS, 1) many_head(const struct many_linear a, int each) {
    struct head_room *m = (struct head_room *)shared_tiles();
    const int panels = a.K / PANEL, first = blockIdx.x * each, own = min(each, a.N - first);
    float d[GROUP_COLS / 8][4] = {};
    bring_head_weights(a, m, 0, min(panels, (int)HEAD_SLOTS), first, own);
    pdl_trigger(), pdl_wait();
    for (int p = 0; p < HEAD_SLOTS; p++) {
        if (p < panels) bring_head_rows(a, m, p);
        copy_commit();
    }
    find_factors(a, m->factor);
    wgmma_begin<GROUP_COLS / 8>(d);
    for (int p = 0; p < panels; p++) {
        wait_for_panel(p);
        fence_proxy_async();
        __syncthreads();       /* the panel is there, and those before are done with */
        if (p % 2 == 0 && p) { /* two at a time */
            const int next = p + HEAD_SLOTS - 2, end = min(panels, next + 2);
            bring_head_weights(a, m, next, end, first, own);
            for (int i = next; i < end; i++) bring_head_rows(a, m, i);
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
    put_logits(a, d, m->factor, first, own);
}

static inline void start_head(struct hl_cuda *c, const struct many_linear &a) {
    const int units = (a.N + 7) / 8, sms = hl_cuda_sms(c), most = HEAD_COLS / 8;
    const int waves = (units + most * sms - 1) / (most * sms),
              each = (units + waves * sms - 1) / (waves * sms);
    launch_pdl(c, many_head, blocks_for(units, each), HEAD_THREADS, sizeof(struct head_room) + TILES_ROOM, a,
               each * 8);
}

#endif
