/* raw_cuda.cuh -- shared by the ops on raw pointers: tables of rows built on the device, copies of states. */
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
}

/* Takes `bytes` of the memory at *p, rounded up to 256; from NULL on it only counts. */
static inline void *raw_carve(char **p, int64_t bytes) {
    void *at = *p;
    *p += (bytes + 255) / 256 * 256;
    return at;
}
#endif
