/* cache_view.h -- a look into the exact memory: how much every token of a text surprised every head, what each head
 * keeps when the text ends, and what one token, the query, read when its turn came. */
#ifndef HL_VIEW_H
#define HL_VIEW_H
#include "core/status.h"

struct hl_cache_view_head { /* one value head of one layer */
    float *m;               /* [n]: the write magnitude of every token */
    /* what it holds after the text, ascending; score: what the eviction rule compares, if that is not the position
     * (hl_evict_score_name); lola's are those of the last complete block's end */
    int64_t kept, *pos;
    float *score;
    float *alike; /* [kept]: the largest cosine of its key with that of another kept row; -1: there is none */
    /* what the query saw: the rows kept at its time, its block up to itself, the sink; they sum to 1 */
    int64_t seen, *seen_pos;
    float *p;           /* [seen], the block's rows last */
    int64_t seen_kept;  /* how many of them were kept rows */
    float p_sink, gate; /* gate: sigma of the head's, by which the read is multiplied */
    float added;        /* norm of what the query's read added, over that of what the state gave */
};

struct hl_cache_view {
    int64_t n, layers, heads, query;
    struct hl_cache_view_head *head; /* [layers][heads] */
    void *block;                     /* all arrays above */
};

/* Feeds ids to an empty state. Models with an exact memory only. */
hola_status hl_cache_view_make(struct hl_cache_view *out, hola_model *m, const int32_t *ids, int64_t n, int64_t query);
void hl_cache_view_free(struct hl_cache_view *v);

/* The positions that value head `head` of layer `layer` of a session keeps, ascending, into pos (room for
 * cache_window), and their number; into score, where it is not NULL, what the eviction rule compares (recency aside). The tokens of the open block, the last position % cache_chunk, are seen as
 * well and not among them. */
hola_status hl_session_kept(const hola_session *y, int64_t layer, int64_t head, int64_t *pos, float *score,
                            int64_t *count);

#endif
