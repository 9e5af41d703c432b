/* raw_cuda.cuh -- what the ops on raw pointers share: tables of rows that the device makes itself, copies of states. */
#ifndef HL_RAW_CUDA_CUH
#define HL_RAW_CUDA_CUH
#include "ops/cuda_ops.cuh"
extern "C" {
#include "ops/raw/raw.h"
}

/* The rows of a call, as the ops take them. */
struct raw_rows {
    struct hl_rows rows;
    struct hl_dev_rows dev;
    struct hl_seg *seg;
    int32_t *row_seg, *chunk_first, *block_first;
    struct hl_dev_span *chunk, *block;
    const void *cu;
    int cu_bits;
    int64_t C;    /* rows of a block of the exact memory; 0: there are none */
    float *state; /* of the first segment, NULL: they have none */
    int64_t state_floats;
};
extern "C" {
/* Fills *x but for `state`, with the tables at *p, which moves behind them; from NULL on it only counts. */
void HL_OP(raw_rows_layout)(struct raw_rows *x, const hola_rows *r, int64_t C, char **p);
/* Two kernels: the segments, and then what they are cut into. The second is to be the last before an op: kernels of the
 * ops read segments and states, not spans, before they wait for the kernel ahead of them (cuda/pdl.cuh). */
void HL_OP(raw_cut_segments)(struct hl_cuda *c, const struct raw_rows *x);
void HL_OP(raw_cut_spans)(struct hl_cuda *c, const struct raw_rows *x);
/* For ops whose kernels read spans as well before they wait: a kernel that does nothing and waits for those before. */
void HL_OP(raw_settle)(struct hl_cuda *c);
/* to[n] = from[n], or 0 where from is NULL */
void HL_OP(raw_copy)(struct hl_cuda *c, float *to, const float *from, int64_t n);
}

/* Takes `bytes` of the memory at *p, rounded up to 256; from NULL on it only counts. */
static inline void *raw_carve(char **p, int64_t bytes) {
    void *at = *p;
    *p += (bytes + 255) / 256 * 256;
    return at;
}
#endif
