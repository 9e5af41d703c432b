/* policy.h -- which rows the exact memory keeps, as data.
 *
 * A policy is resolved once, on the host, from the configuration. Ops and kernels see these fields and an array of
 * scores, never a name: a new policy that the fields can express is just another row of the table in policy.c. */
#ifndef HL_CACHE_POLICY_H
#define HL_CACHE_POLICY_H
#include "hola.h"

/* The score of a new row: from the delta rule's write magnitude m = beta |e|, its beta, and the row's value; or
 * computed at the end of the row's block. */
enum hl_score_kind {
    HL_SCORE_WRITE,    /* m */
    HL_SCORE_RESIDUAL, /* |e| = m / beta */
    HL_SCORE_VALUE,    /* beta |v| */
    HL_SCORE_NONE,     /* 0 */
    HL_SCORE_RECALL,   /* |v - k^T S|, S after the block; kept rows are measured again at the end of every block */
    HL_SCORE_LEARNED   /* from op lte, for whole blocks; log sigma(score) is added to the logits of kept rows */
};

struct hl_policy {
    enum hl_score_kind score;
    bool by_position;      /* keeps the latest rows, regardless of score */
    bool moves_with_reads; /* every read adds a row's softmax weight to its score */
    bool layer_set;        /* all heads of a layer keep the same rows, ranked by the norm of their scores */
    double redundancy;     /* not by_position; > 0: the largest cosine of two keys that are not near-duplicates */
    int64_t sinks;         /* by_position only: number of first rows of the sequence that are never evicted */
};

/* A row's score is known when it is written and then fixed. */
static inline bool hl_policy_scores_writes(const struct hl_policy *p) {
    return p->score == HL_SCORE_WRITE || p->score == HL_SCORE_RESIDUAL || p->score == HL_SCORE_VALUE;
}
/* Scores are known with the row, are independent of reads and of other heads, and alone decide the ranking: required by
 * the fused decoding kernels. */
static inline bool hl_policy_is_plain(const struct hl_policy *p) {
    return !p->moves_with_reads && p->score != HL_SCORE_RECALL && p->score != HL_SCORE_LEARNED && !p->redundancy &&
           !p->layer_set;
}

/* A short description of the policy's score for tables; NULL: the position. */
const char *hl_evict_score_name(hola_evict e);
/* false: cache_evict is none, no exact memory. */
bool hl_policy_of(struct hl_policy *out, const hola_config *cfg);

#endif
