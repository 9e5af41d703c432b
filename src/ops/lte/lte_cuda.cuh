/* lte_cuda.cuh -- shared by the kernels of the learned score: arguments, locations of a block's rows, the layers. */
#ifndef HL_LTE_CUDA_CUH
#define HL_LTE_CUDA_CUH
#include "ops/cuda_ops.cuh"

enum { CHANNELS = 16 }; /* channels computed together */

struct lte_dev {
    struct hl_lte a; /* a.rows is on the host: kernels use `rows` */
    struct hl_dev_rows rows;
    struct hl_cache_layout at;
    int64_t group; /* value heads of a key head */
    float *open;   /* [n][HV][C][r]: u of rows stored in session states */
};
static inline struct lte_dev lte_dev_of(const struct hl_lte *a) {
    struct lte_dev d = {};
    d.a = *a;
    d.rows = *a->rows->dev;
    d.at = hl_cache_layout(a->K, a->V, a->window, a->chunk, sizeof(act), false);
    d.group = a->HV / a->H;
    return d;
}

/* One value head of one block. */
struct lte_block {
    int row, len, skip; /* rows of the batch; rows of the block that are in the state */
    int64_t h, hk;
    bool complete;
    const act *k, *v; /* the state's open rows */
    float *score, *u; /* theirs */
};
static __device__ __forceinline__ struct lte_block lte_block_of(const struct lte_dev &d, int64_t block, int64_t h) {
    const struct hl_dev_span p = d.rows.block[block];
    const struct hl_seg s = d.rows.seg[p.seg];
    struct lte_block b = {p.row, p.len, p.skip, h,   h / d.group, p.skip + p.len == (int)d.a.chunk,
                          NULL,  NULL,  NULL,   NULL};
    if (!s.state || p.skip == 0) return b;
    char *state = s.state + d.a.state_off + h * d.at.bytes;
    b.k = (const act *)(state + d.at.k) + d.a.window * d.a.K;
    b.v = (const act *)(state + d.at.v) + d.a.window * d.a.V;
    b.score = (float *)(state + d.at.score) + d.a.window;
    b.u = d.open + (p.seg * d.a.HV + h) * d.a.chunk * d.a.r;
    return b;
}
/* k, v and u of the block's row j */
static __device__ __forceinline__ const act *key_of(const struct lte_dev &d, const struct lte_block &b, int j) {
    if (j < b.skip) return b.k + (int64_t)j * d.a.K;
    return (const act *)d.a.k + ((int64_t)(b.row + j - b.skip) * d.a.H + b.hk) * d.a.K;
}
static __device__ __forceinline__ const act *value_of(const struct lte_dev &d, const struct lte_block &b, int j) {
    if (j < b.skip) return b.v + (int64_t)j * d.a.V;
    return (const act *)d.a.v + ((int64_t)(b.row + j - b.skip) * d.a.HV + b.h) * d.a.V;
}
static __device__ __forceinline__ float *u_of(const struct lte_dev &d, const struct lte_block &b, int j) {
    if (j < b.skip) return b.u + (int64_t)j * d.a.r;
    return d.a.u + ((int64_t)(b.row + j - b.skip) * d.a.HV + b.h) * d.a.r;
}

/* One channel's taps and biases. */
struct lte_taps {
    float conv1[3], conv2[3], bias1, bias2, out;
};
static __device__ __forceinline__ struct lte_taps lte_taps_of(const struct lte_dev &d, int64_t at) { /* h r + c */
    const struct hl_lte &a = d.a;
    struct lte_taps t = {{a.conv1[at * 3], a.conv1[at * 3 + 1], a.conv1[at * 3 + 2]},
                         {a.conv2[at * 3], a.conv2[at * 3 + 1], a.conv2[at * 3 + 2]},
                         a.bias1[at],
                         a.bias2[at],
                         a.w_out[at]};
    return t;
}
static __device__ __forceinline__ float lte_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static __device__ __forceinline__ float lte_silu(float x) { return x * lte_sigmoid(x); }
static __device__ __forceinline__ float lte_dsilu(float x) {
    const float s = lte_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}
/* x[0], x[1], x[2]: two rows before, here, two rows after */
static __device__ __forceinline__ float lte_conv(const float w[3], float bias, const float *x) {
    return bias + w[0] * x[0] + w[1] * x[1] + w[2] * x[2];
}

#endif
