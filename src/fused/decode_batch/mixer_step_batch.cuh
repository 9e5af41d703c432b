/* mixer_step_batch.cuh -- a decoding step of both memories of a layer, and its output norm. */
#ifndef HL_MEMORY_CUH
#define HL_MEMORY_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"
#include "fused/decode_batch/head_schedule.cuh"
#include "fused/decode_batch/panel.cuh"
#include "fused/decode_batch/prologue.cuh"

/* y = norm(o + gated read) [silu(z)], where o is the delta rule's output; the new rows' scores come from there as well
 * (c.a.score is NULL). */
struct cache_finish {
    const float *norm; /* [V] */
    float eps;
    const act *z; /* rows of `ld` numbers; NULL: no gate */
    int ld;
    struct panels y;     /* HV V columns */
    struct weights soon; /* those of the kernel after this */
};
/* p: q, k and v are made first, H = HV; units 0: they are there. a: one token a segment, raw; no outputs. c:
 * chunk 0: no exact memory. K = V: 64, 128 or 256; 64 rows HV V / HL_DECODE_BATCH_K at most. bf16. All have the same segments, those
 * with the most rows in the exact memory first; they are read at once, but by the first kernel after that which wrote them. */
void HL_OP(memory_step)(struct hl_cuda *cuda, const struct batch_prologue *p, const struct gdn_step *a,
                        const struct cache_dev *c, const struct cache_finish *e, bool first);

/* Blocks that deal out the heads of all sessions: as many as find room at once, unless one would have too many columns. */
enum { MEMORY_COLUMNS = 1024, MEMORY_K = 256 /* with which a block is alone on a multiprocessor */ };
static inline int memory_blocks(struct hl_cuda *cuda, int64_t K, int heads) {
    const int most = (int)(MEMORY_K / K) * hl_cuda_sms(cuda), each = (int)(MEMORY_COLUMNS / K),
              few = (heads + each - 1) / each;
    return heads < most ? heads : most > few ? most : few;
}

#endif
