/* cache_step_cuda.cuh -- a decoding step of the exact memory, and what a layer does next, in the same launches. */
#ifndef HL_CACHE_STEP_CUDA_CUH
#define HL_CACHE_STEP_CUDA_CUH
#include "cuda/early.cuh"
#include "ops/cache/cache_cuda.cuh"
#include "ops/many/many_panel.cuh"

/* Where y is there: y = norm(o + gated read) [silu(z)] instead of out, and the new rows' scores come from `sums`
 * (c.a.score is NULL). V <= 256. The kernel just before made o and sums, and the one before that q, k and v. */
struct cache_finish {
    const float *o;    /* [T][HV][V] */
    const float *sums; /* [T][HV][tiles]: their roots are the scores */
    int tiles;
    const float *norm; /* [V] */
    float eps;
    const act *z; /* rows of `ld` numbers; NULL: no gate */
    int ld;
    struct panels y; /* HV V columns */
};
/* chunk 0: no exact memory. scratch: cache_step_scratch() bytes, of which the first n HV words are 0; they will be
 * again. */
void HL_OP(cache_step_with)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch,
                            const struct cache_finish *e);

#endif
