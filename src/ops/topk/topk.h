/* topk.h -- the k largest logits of every row, in order, for greedy decoding and top-k sampling. */
#ifndef HL_TOPK_H
#define HL_TOPK_H
#include "core/real.h"
#include "core/status.h"

enum { HL_TOPK_MOST = 128 };
struct hl_candidate {
    float logit;
    int32_t id;
};
struct hl_topk {
    int64_t M, V, k;          /* 1 <= k <= V, HL_TOPK_MOST */
    const real *logits;       /* [M][V] */
    struct hl_candidate *out; /* [M][k], largest first, ties to the lowest id; rows with a NaN or infinity have -1 as
                               * first id */
};
#endif
