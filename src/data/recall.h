/* recall.h -- a synthetic task: recall of facts hidden in filler, which an exact memory is for.
 *
 *   0  filler.. k v filler.. k v ..  filler (distance)  1 k v  1 k v ..
 *
 * A sequence begins with token 0. `facts` key-value pairs are at random places in the first part, each key at most
 * once; then come `distance` tokens of filler; then, `queries` times, token 1, one of those keys, and its value: the
 * answer. The filler is one cycle of a few tokens that continues after every interruption, so a state soon predicts it
 * and only the facts surprise: a memory of the w most surprising tokens keeps w/2 facts or more, while a state of d_k x
 * d_v holds about d_k of them and mixes up the rest. If facts > d_k summed over heads, 2 facts <= w, and distance
 * exceeds the memory's block (cache_chunk), the state alone must fail and the exact memory can succeed.
 *
 * Ids: 0 begins, 1 queries, then fillers, then keys, then values. */
#ifndef HL_RECALL_H
#define HL_RECALL_H
#include "core/status.h"

enum { HL_RECALL_BEGIN, HL_RECALL_ASK, HL_RECALL_FIRST_FILLER };

struct hl_recall {
    int64_t fillers, keys, values; /* how many ids of each kind */
    int64_t facts, queries;        /* queries <= facts: each queries a different key */
    int64_t length, distance;      /* length: of the whole sequence; distance: filler between facts and queries */
};
struct hl_recall hl_recall_default(void); /* 32 facts of 64 x 64 in 1024 tokens, 16 queries, 256 apart */
hola_status hl_recall_check(const struct hl_recall *r);
int64_t hl_recall_vocab(const struct hl_recall *r);
/* Sequence `index` of a seed. ids [length]; mask [length], or NULL: 1 where ids[i] is an answer, to be predicted from
 * the tokens before it. */
hola_status hl_recall_make(const struct hl_recall *r, uint64_t seed, int64_t index, int32_t *ids, uint8_t *mask);

#endif
