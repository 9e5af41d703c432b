/* gdn_step_cuda.cuh -- the decoding kernels' arguments. */
#ifndef HL_GDN_STEP_CUDA_CUH
#define HL_GDN_STEP_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum { GDN_STEP_COLS = 32 }; /* columns of a tile */
struct gdn_step {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out;
    float *sums; /* [tiles][T][HV]: of the squares of what `score` is made of */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, V;
    /* instead of g and beta what they come from: rows of `ld` numbers; a, b NULL: no decay, beta 1 */
    bool raw;
    const act *a, *b;
    const float *A_log, *dt_bias;
    float top; /* of beta */
    int ld;
    enum hl_score_kind score;
};
static inline bool gdn_step_knows(int64_t K, int64_t V) {
    return (K == 64 || K == 128 || K == 256) && V % GDN_STEP_COLS == 0;
}

#endif
