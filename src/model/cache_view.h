/* cache_view.h -- inspecting the exact memory: how much each token of a text surprised each head, what each head keeps
 * at the end, and what one token, the query, read. */
#ifndef HL_VIEW_H
#define HL_VIEW_H
#include "core/status.h"

struct hl_cache_view_head { /* one value head of one layer */
    float *m;               /* [n]: write magnitude of each token */
    /* rows kept at the end of the text, ascending; score: what the eviction rule compares, unless that is the position
     * (hl_evict_score_name); for lola, as of the end of the last complete block */
    int64_t kept, *pos;
    float *score;
    float *alike; /* [kept]: the largest cosine of its key with any other kept key; -1: none */
    /* what the query saw: the rows kept at that time, its block up to itself, and the sink; weights sum to 1 */
    int64_t seen, *seen_pos;
    float *p;           /* [seen], the rows of its block last */
    int64_t seen_kept;  /* how many of these are kept rows */
    float p_sink, gate; /* gate: sigmoid of the head's gate, which scales the read */
    float added;        /* norm of the query's scaled read divided by the norm of the state's output */
};

struct hl_cache_view {
    int64_t n, layers, heads, query;
    struct hl_cache_view_head *head; /* [layers][heads] */
    void *block;                     /* all arrays above */
};

/* Feeds ids to an empty state. Only for models with an exact memory. */
hola_status hl_cache_view_make(struct hl_cache_view *out, hola_model *m, const int32_t *ids, int64_t n, int64_t query);
void hl_cache_view_free(struct hl_cache_view *v);

/* Writes the positions kept by value head `head` of layer `layer` to pos (room for cache_window), ascending, and
 * returns their number; score, if not NULL, receives what the eviction rule compares (except recency). Tokens of the
 * open block, the last position % cache_chunk, are visible too but not included. */
hola_status hl_session_kept(const hola_session *y, int64_t layer, int64_t head, int64_t *pos, float *score,
                            int64_t *count);

#endif
