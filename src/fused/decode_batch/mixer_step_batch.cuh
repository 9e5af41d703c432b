/* mixer_step_batch.cuh -- a decoding step of a layer's mixer (delta rule and cache) and its output norm, for all
 * sessions: arguments and launch. */
#ifndef HL_MIXER_STEP_BATCH_CUH
#define HL_MIXER_STEP_BATCH_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"
#include "fused/decode_batch/head_schedule.cuh"
#include "fused/decode_batch/panel.cuh"
#include "fused/decode_batch/prologue.cuh"

/* y = norm(o + gated read) silu(z), where o is the delta rule's output. The delta rule also gives the scores of the new
 * rows (c.a.score is NULL). */
struct mixer_epilogue {
    const float *norm; /* [V] */
    float eps;
    const act *z; /* rows `ld` apart; NULL: no gate */
    int ld;
    struct panels y;                 /* HV V columns */
    struct weight_prefetch prefetch; /* weights of the next kernel */
};
/* p: the prologue, run first if H = HV; units 0: it has already run. a: the delta rule, one token per segment, raw
 * gates, no outputs in global memory. c: the cache; chunk 0: none. K = V: 64, 128 or 256; at most 64 rows; HV V at most
 * HL_DECODE_BATCH_K; bf16. All have the same segments, sorted by rows in the cache, most first. The segments are read
 * before pdl_wait, except in the first launch after they are written (`first`). */
void HL_OP(mixer_step_batch)(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                             const struct cache_dev *c, const struct mixer_epilogue *e, bool first);

/* The grid size: the heads of all sessions are divided among the blocks that can be resident at once, or among more
 * blocks if each would get too many columns. */
enum { MIXER_COLUMNS = 1024, MIXER_K = 256 /* K at which one block fills an SM */ };
static inline int mixer_blocks(struct hl_cuda *cuda, int64_t K, int heads) {
    const int most = (int)(MIXER_K / K) * hl_cuda_sms(cuda), each = (int)(MIXER_COLUMNS / K),
              few = (heads + each - 1) / each;
    return heads < most ? heads : most > few ? most : few;
}

#endif
