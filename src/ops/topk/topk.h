/* topk.h -- the largest logits of every row, in order, for a choice that needs no others. */
#ifndef HL_TOP_H
#define HL_TOP_H
#include "core/real.h"
#include "core/status.h"

enum { HL_TOPK_MOST = 128 };
struct hl_candidate {
    float logit;
    int32_t id;
};
struct hl_topk {
    int64_t M, V, k;          /* k <= V, HL_TOPK_MOST */
    const real *logits;       /* [M][V] */
    struct hl_candidate *out; /* [M][k], the largest first, of equals the lowest id; a row that is not finite
                               * has -1 as its first id */
};
#endif
