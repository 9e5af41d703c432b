/* prefix.h -- snapshots at points where a later sequence may continue: the ends of prompts and answers.
 *
 * A snapshot is a whole session and the ids that made it. Lookup finds the deepest snapshot whose ids are a prefix of
 * the prompt by hashing every prefix, then compares id by id: a conversation never gets another's state. */
#ifndef HL_PREFIX_H
#define HL_PREFIX_H
#include "serve/tape.h"

enum { HL_PREFIX_BUCKETS = 1 << 14 };
struct hl_prefix_point {
    struct hl_tape tape;
    hola_session *session;
    uint64_t hash;
    int64_t bytes;
    struct hl_prefix_point *chain;         /* hash chain */
    struct hl_prefix_point *newer, *older; /* in LRU order */
};
struct hl_prefix_cache {
    struct hl_prefix_point *bucket[HL_PREFIX_BUCKETS];
    struct hl_prefix_point *newest, *oldest;
    int64_t n, bytes;
};

/* The deepest one among the first n ids; with begins, only one fed with the same calls. Counts as a use. */
const struct hl_prefix_point *hl_prefix_find(struct hl_prefix_cache *p, const int32_t *ids, const uint8_t *begins,
                                             int64_t n);
/* Takes ownership of the session, whose tokens are the tape's; frees it if the same snapshot exists. */
hola_status hl_prefix_put(struct hl_prefix_cache *p, const struct hl_tape *tape, hola_session *s);
bool hl_prefix_drop_oldest(struct hl_prefix_cache *p); /* false: empty */
void hl_prefix_free(struct hl_prefix_cache *p);
/* Memory of a session: state, logits, recent ids. */
int64_t hl_session_cost(const hola_session *s, int64_t vocab);

#endif
