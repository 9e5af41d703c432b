/* conv_cuda.cuh -- what the convolution's kernels share: a thread owns V neighbouring channels and walks
 * down a stretch of rows with the last W rows in registers, so that x is read once. */
#ifndef HL_CONV_CUDA_CUH
#define HL_CONV_CUDA_CUH
#include "cuda/quick.cuh"
#include "cuda/raw.cuh"

enum { THREADS = 128, LEAST = 16 }; /* LEAST: rows of a thread, if there are so many */

struct conv {
    int64_t T, n, C, W;
    const struct hl_seg *seg;
    const int32_t *row_seg;
    const act *x, *dy;
    const float *w; /* NULL: W = 1, weight 1 */
    act *y, *dx;
    float *part; /* [blocks][C][W] */
    int64_t tail_off;
};

static inline struct conv open_conv(const struct hl_conv *a) {
    struct conv c = {a->rows->T, a->rows->n, a->C, a->w ? a->W : 1, a->rows->dev->seg, a->rows->dev->row_seg};
    c.x = (const act *)a->x, c.dy = (const act *)a->dy, c.y = (act *)a->y, c.dx = (act *)a->dx;
    c.w = a->w, c.tail_off = a->tail_off;
    return c;
}

/* Thread (x, y) of all: channels from V x, the y-th of equal stretches of rows. As many as are at work at
 * once. */
static inline void conv_shape(struct hl_cuda *c, const struct conv *a, int V, int per_sm, dim3 *grid,
                              dim3 *block) {
    unsigned across = 8;
    while (across < THREADS && across * V < a->C) across *= 2;
    *block = dim3(across, THREADS / across);
    grid->x = blocks_for(a->C, across * V);
    grid->y = min(blocks_for(a->T, LEAST * (int64_t)block->y), blocks_for(per_sm * hl_cuda_sms(c), grid->x));
}
static __device__ __forceinline__ int64_t stretch_begin(int64_t T, int ahead) {
    const int64_t all = (int64_t)gridDim.y * blockDim.y;
    return T * ((int64_t)blockIdx.y * blockDim.y + threadIdx.y + ahead) / all;
}

/* the channels' weights, turned: w[i][v] goes with the row W - 1 - i before */
template <int V, int W>
static __device__ __forceinline__ void load_weights(float (*w)[V], const float *from, int64_t c) {
    for (int v = 0; v < V; v++)
        for (int i = 0; i < W; i++) w[i][v] = from ? from[(c + v) * W + i] : 1.0f;
}
template <int V> static __device__ __forceinline__ void load_row(float *x, const act *p) {
    unpack(x, *(const typename raw_of<V>::type *)p);
}

#endif
