/* conv_session_cuda.cuh -- the tail of a session: the last rows of its input, needed by the next convolution. */
#ifndef HL_CONV_SESSION_CUDA_CUH
#define HL_CONV_SESSION_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/conv/conv_cuda.cuh"

/* After the convolution, which reads the old tails: a thread per segment and channel. Entry i comes from the row len +
 * i of (old tail, new rows), which is later than i, so this order overwrites nothing too early. */
static __global__ void conv_tails(struct conv a) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const struct hl_seg s = a.seg[blockIdx.y];
    if (c >= a.C || !s.state || s.len == 0) return;
    float *tail = (float *)(s.state + a.tail_off) + c;
    for (int64_t i = 0; i < a.W - 1; i++) look_back<1>(tail + i * a.C, a, s, s.row + s.len - a.W + 1 + i, c);
}

static bool all_single(const struct hl_rows *r) {
    if (r->T != r->n) return false;
    for (int64_t i = 0; i < r->n; i++)
        if (r->seg[i].len != 1) return false;
    return true;
}
static bool any_state(const struct hl_rows *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (r->seg[i].state) return true;
    return false;
}
static void keep_tails(struct hl_cuda *c, const struct conv *a, const struct hl_rows *rows) {
    if (a->W > 1 && any_state(rows))
        launch(c, conv_tails, dim3(blocks_for(a->C, THREADS), (unsigned)a->n), THREADS, 0, *a);
}

#endif
