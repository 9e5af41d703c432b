/* gdn_step_cuda.cuh -- arguments of the decoding kernels, both the op's and the fused ones. */
#ifndef HL_GDN_STEP_CUDA_CUH
#define HL_GDN_STEP_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum { GDN_STEP_COLS = 32, GDN_STEP_ROWS = 8 }; /* columns of a tile; tokens of a segment, at most */
struct gdn_step {
    const act *q, *k, *v;
    const float *g, *beta;
    act *out;
    float *sums; /* [tiles][T][HV]: sums of squares for `score` */
    const struct hl_seg *seg;
    int64_t S_off, T;
    int H, HV, V;
    /* raw: instead of g and beta, the projections they are computed from, in rows of `ld` numbers; a, b NULL: no decay,
     * beta 1 */
    bool raw;
    const act *a, *b;
    const float *A_log, *dt_bias;
    float beta_scale; /* 2 with allow_neg_eigval, else 1 */
    int ld;
    enum hl_score_kind score;
};
static inline bool gdn_step_knows(int64_t K, int64_t V) {
    return (K == 64 || K == 128 || K == 256) && V % GDN_STEP_COLS == 0;
}

#endif
