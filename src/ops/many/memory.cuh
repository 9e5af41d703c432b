/* memory.cuh -- a decoding step of both memories of a layer, and its output norm. */
#ifndef HL_MEMORY_CUH
#define HL_MEMORY_CUH
#include "ops/cache/cache_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"
#include "ops/many/many_panel.cuh"
#include "ops/many/many_prepare.cuh"

/* y = norm(o + gated read) [silu(z)], where o is the delta rule's output; the new rows' scores come from `sums` (c.a.score
 * is NULL). */
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
/* p: q, k and v are made first, H = HV; units 0: they are there. a: one token a segment, raw; out32 and sums are e's. c:
 * chunk 0: no exact memory. K = V: 64, 128 or 256; 64 rows HV V / HL_MANY_K at most. bf16. All have the same segments, those
 * with the most rows in the exact memory first; they are read at once, but by the first kernel after that which wrote them. */
void HL_OP(memory_step)(struct hl_cuda *cuda, const struct many_prepare *p, const struct gdn_step *a,
                        const struct cache_dev *c, const struct cache_finish *e, bool first);

#endif
