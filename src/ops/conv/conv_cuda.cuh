/* conv_cuda.cuh -- shared by the convolution kernels. Grid (channels, ranges of rows): a thread owns V adjacent
 * channels and iterates over a range of rows with the last W rows in registers, so that x is read once. */
#ifndef HL_CONV_CUDA_CUH
#define HL_CONV_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/packed.cuh"

enum { THREADS = 128, LEAST = 16 }; /* LEAST: minimum rows per thread, if available */

struct conv {
    int64_t T, n, C, W, ld; /* ld: of x and dx */
    const struct hl_seg *seg;
    const int32_t *row_seg;
    const act *x, *dy;
    const float *w; /* NULL: W = 1, weight 1 */
    act *y, *dx;
    float *part; /* [blocks][C][W] */
    int64_t tail_off;
};

static inline struct conv open_conv(const struct hl_conv *a) {
    struct conv c = {a->rows->T, a->rows->n, a->C, a->w ? a->W : 1, a->ld ? a->ld : a->C};
    c.seg = a->rows->dev->seg, c.row_seg = a->rows->dev->row_seg;
    c.x = (const act *)a->x, c.dy = (const act *)a->dy, c.y = (act *)a->y, c.dx = (act *)a->dx;
    c.w = a->w, c.tail_off = a->tail_off;
    return c;
}

/* Thread (x, y): channels from V x, the y-th of equal ranges of rows. As many as run concurrently. */
static inline void conv_shape(struct hl_cuda *c, const struct conv *a, int V, int per_sm, dim3 *grid, dim3 *block) {
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

/* The convolution alone in the kernels of convnorm_cuda.cuh; false: they do not take it, and nothing was done. */
extern "C" bool HL_OP(conv_ring_forward)(struct hl_cuda *c, const struct hl_conv *p);
extern "C" bool HL_OP(conv_ring_backward)(struct hl_cuda *c, const struct hl_conv *p);

static inline bool conv_wide(const struct conv *a, int V) { return a->C % V == 0 && a->ld % V == 0; }

/* The sum of a row of u starts at 0 and takes its taps from the oldest row on, each rounded once. Written out, since of
 * two products that are added the compiler may fuse either one, and all kernels shall make the same bits of a row. */
static __device__ __forceinline__ float add_tap(float u, float w, float x) { return __fmaf_rn(w, x, u); }

/* the channels' weights, transposed: w[i][v] goes with the row W - 1 - i before */
template <int V, int W>
static __device__ __forceinline__ void load_weights(float (*w)[V], const float *from, int64_t c) {
    for (int v = 0; v < V; v++)
        for (int i = 0; i < W; i++) w[i][v] = from ? from[(c + v) * W + i] : 1.0f;
}
template <int V> static __device__ __forceinline__ void load_row(float *x, const act *p) {
    unpack(x, *(const typename packed_of<V>::type *)p);
}

/* Row t of the sequence of segment s, t in rows of the batch: before the segment, from its state. */
template <int V>
static __device__ __forceinline__ void look_back(float *x, const struct conv &a, const struct hl_seg &s, int64_t t,
                                                 int64_t c) {
    if (t >= s.row) {
        load_row<V>(x, a.x + t * a.ld + c);
        return;
    }
    const float *tail = (const float *)(s.state + a.tail_off) + (t - s.row + a.W - 1) * a.C + c;
    for (int v = 0; v < V; v++) x[v] = s.state && s.pos > 0 ? tail[v] : 0.0f;
}

/* The W - 1 rows before row t, oldest first, and the end of its segment. */
template <int V, int W>
static __device__ __forceinline__ int enter_segment(float (*h)[V], const struct conv &a, int t, int64_t c) {
    const struct hl_seg s = a.seg[a.row_seg[t]];
    for (int i = 0; i + 1 < W; i++) look_back<V>(h[i], a, s, t - W + 1 + i, c);
    return (int)(s.row + s.len);
}

#endif
