/* lookup.h -- drafts from the text itself: what followed the last ids where they stood before.
 *
 * An n-gram of ids leads to its latest occurrences by a hash table with chains; of a few of these, the one that agrees
 * with the text farthest back is followed until it is wrong. How often it is right is known without trying: every token
 * that is chosen is compared with the one that would have been drafted, whether it was or not. The length of the
 * next draft follows from that, and it is 0 where drafts do not pay. None of this touches the text, only its speed. */
#ifndef HL_LOOKUP_H
#define HL_LOOKUP_H
#include "core/rows.h"

enum { HL_LOOKUP_MOST = 64 }; /* the longest n-gram */

struct hl_lookup {
    int64_t gram;      /* ids that must agree */
    int64_t n, room;   /* ids, those of the source first */
    int32_t *id;       /* [room] */
    int64_t *before;   /* [room]: where the n-gram that ends here ended before; -1: nowhere */
    int64_t *last;     /* [slots]: where an n-gram of this hash ended last; -1: nowhere */
    int64_t slots;     /* a power of two */
    int64_t from, len; /* the next token is expected to be id[from]; so many ids before it agree. from -1: unknown */
    double right[4];   /* how often it was right lately, by len */
};

/* gram: 1 to HL_LOOKUP_MOST. */
hola_status hl_lookup_new(struct hl_lookup *out, int64_t gram);
void hl_lookup_free(struct hl_lookup *l);
/* Text that only serves as a source. What was expected next is forgotten. */
hola_status hl_lookup_source(struct hl_lookup *l, const int32_t *ids, int64_t n);
/* The next id of the text. */
hola_status hl_lookup_add(struct hl_lookup *l, int32_t id);
/* A draft of what comes next, of up to `most` ids; returns how many pay to be checked. */
int64_t hl_lookup_draft(const struct hl_lookup *l, int32_t *draft, int64_t most);

#endif
