/* lookup.h -- prompt-lookup drafts: what followed the last ids at an earlier occurrence.
 *
 * A hash table with chains finds the latest occurrences of the last n-gram; among a few of them, the one with the
 * longest matching context is followed until it mispredicts. The hit rate is known without drafting, because every
 * chosen token is compared with the predicted one. It sets the length of the next draft, which is 0 if drafting does
 * not pay. Drafts affect only speed, never the text. */
#ifndef HL_LOOKUP_H
#define HL_LOOKUP_H
#include "core/rows.h"

enum { HL_LOOKUP_MOST = 64 }; /* the longest n-gram */

struct hl_lookup {
    int64_t gram;      /* ids that must match */
    int64_t n, room;   /* ids, starting with those of the source */
    int32_t *id;       /* [room] */
    int64_t *before;   /* [room]: the previous position where the n-gram ending here ended; -1: none */
    int64_t *last;     /* [slots]: the latest position where an n-gram with this hash ended; -1: none */
    int64_t slots;     /* a power of two */
    int64_t from, len; /* the predicted next token is id[from], after `len` matching ids. from -1: no prediction */
    double right[4];   /* recent hit rate, by len */
};

/* gram: 1 to HL_LOOKUP_MOST. */
hola_status hl_lookup_new(struct hl_lookup *out, int64_t gram);
void hl_lookup_free(struct hl_lookup *l);
/* Text used only as a source of drafts. Drops the current prediction. */
hola_status hl_lookup_source(struct hl_lookup *l, const int32_t *ids, int64_t n);
/* The next id of the text. */
hola_status hl_lookup_add(struct hl_lookup *l, int32_t id);
/* Drafts up to `most` ids; returns how many are worth checking. */
int64_t hl_lookup_draft(const struct hl_lookup *l, int32_t *draft, int64_t most);

#endif
