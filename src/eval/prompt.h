/* prompt.h -- requests as token ids: the boundary of context and continuation, BOS, windows. */
#ifndef HL_PROMPT_H
#define HL_PROMPT_H
#include "eval/eval.h"

/* Rows to feed: next[i] is scored after ids[..i] from i = prefix on (negative: not asked). */
struct hl_item {
    int64_t request;
    int32_t *ids;
    const int32_t *next;
    int64_t n, prefix;
};
struct hl_items {
    struct hl_item *item;
    int64_t n, room;
    int32_t **blocks; /* the memory of the ids */
    int64_t n_blocks, room_blocks;
    bool cut; /* a context was truncated at the start */
};
void hl_items_free(struct hl_items *p);
/* The items of request i, which is not of kind generate; a text without tokens has none. */
hola_status hl_items_add(struct hl_items *p, const struct hl_eval_opts *o, const struct hl_request *r, int64_t i);

/* Appends all of `more` to *p. */
hola_status hl_items_join(struct hl_items *p, struct hl_items *more);

/* The prompt of a generate request: the last max_length - max_new tokens. */
hola_status hl_prompt_ids(const struct hl_eval_opts *o, const struct hl_request *r, struct hl_ids *out, bool *cut);
/* A text's ids, with BOS if `special` and the mode require it. *out must be empty. */
hola_status hl_prompt_encode(const struct hl_eval_opts *o, struct hl_span text, bool special, struct hl_ids *out);

#endif
