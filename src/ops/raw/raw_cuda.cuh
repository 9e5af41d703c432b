/* raw_cuda.cuh -- shared by the ops on raw pointers: tables of rows built on the device, copies of states,
 * the norm of q and k. */
#ifndef HL_RAW_CUDA_CUH
#define HL_RAW_CUDA_CUH
#include "ops/cuda_ops.cuh"
extern "C" {
#include "ops/raw/raw.h"
}

/* The rows of a call in the form the ops expect. */
struct raw_rows {
    struct hl_rows rows;
    struct hl_dev_rows dev;
    struct hl_seg *seg;
    int32_t *row_seg, *chunk_first, *block_first;
    struct hl_dev_span *chunk, *block;
    const void *cu;
    int cu_bits;
    int64_t C;    /* rows per block of the exact memory; 0: none */
    float *state; /* of the first segment; NULL: no states */
    int64_t state_floats;
};
/* q and k of a call, [rows][K] each, as an op takes them: of unit length if `norm`, q times `factor`. Without the norm
 * only q is copied. */
struct raw_norm {
    const act *q, *k;
    act *to_q, *to_k;
    float *rq, *rk; /* [rows]: 1 / the lengths, for the backward pass; NULL: not wanted */
    int64_t rows;
    int K;
    bool norm;
    float factor;
};
extern "C" {
/* Fills *x except `state`, with the tables at *p, which is advanced past them; from NULL on it only counts. */
void HL_OP(raw_rows_layout)(struct raw_rows *x, const hola_rows *r, int64_t C, char **p);
/* Two kernels: the segments, and then their division. The second must be the last before an op: the op's kernels read
 * segments and states, not spans, before they wait for the previous kernel (cuda/pdl.cuh). */
void HL_OP(raw_cut_segments)(struct hl_cuda *c, const struct raw_rows *x);
void HL_OP(raw_cut_spans)(struct hl_cuda *c, const struct raw_rows *x);
/* For ops whose kernels also read spans before waiting: an empty kernel that waits for the previous ones. */
void HL_OP(raw_settle)(struct hl_cuda *c);
/* to[n] = from[n], or 0 if from is NULL */
void HL_OP(raw_copy)(struct hl_cuda *c, float *to, const float *from, int64_t n);
void HL_OP(raw_norm)(struct hl_cuda *c, const struct raw_norm *x);
/* dq and dk, in place; reads to_q, to_k, rq and rk. Without the norm only dq. */
void HL_OP(raw_norm_back)(struct hl_cuda *c, const struct raw_norm *x, act *dq, act *dk);
}

/* Takes `bytes` of the memory at *p, rounded up to 256; from NULL on it only counts. */
static inline void *raw_carve(char **p, int64_t bytes) {
    void *at = *p;
    *p += (bytes + 255) / 256 * 256;
    return at;
}
/* The factor of q by which an op with a scale of K^-1/2 has another; scale 0: that one. */
static inline float raw_factor(float scale, int64_t K) {
    const float factor = scale * sqrtf((float)K);
    return scale == 0.0f || fabsf(factor - 1.0f) < 1e-6f ? 1.0f : factor;
}
#endif
