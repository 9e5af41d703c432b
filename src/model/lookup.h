/* lookup.h -- prompt-lookup drafts: what followed the last ids at an earlier occurrence.
 *
 * A hash table with chains finds the latest occurrences of the last n-gram; among a few of them, the one with the
 * longest matching context is followed until it mispredicts, and where nothing else matches, one id further, since
 * copies often differ in one place. The hit rate is known without drafting, because every
 * chosen token is compared with the predicted one. It sets the length of the next draft, which is 0 if drafting does
 * not pay. Drafts affect only speed, never the text. */
#ifndef HL_LOOKUP_H
#define HL_LOOKUP_H
#include "core/rows.h"

enum { HL_LOOKUP_MOST = 64, HL_LOOKUP_RESUMED = 4, HL_LOOKUP_KINDS }; /* the longest n-gram; classes of `right` */

/* What checking a draft takes, in steps of one token. These are constants and not timings: on a device passes of
 * different lengths round differently, and the same seed shall give the same text. */
struct hl_draft_cost {
    double pass;       /* a pass without the draft's rows */
    double row;        /* each token of the draft */
    double wrong;      /* to take back a draft that is wrong somewhere */
    double pass_alone; /* and, if no draft follows, a pass that only feeds its accepted tokens again, beyond one step */
};
extern const struct hl_draft_cost hl_draft_on_cpu;

struct hl_lookup {
    int64_t gram;      /* ids that must match */
    int64_t n, room;   /* ids, starting with those of the source */
    int32_t *id;       /* [room] */
    int64_t *before;   /* [room]: the previous position where the n-gram ending here ended; -1: none */
    int64_t *last;     /* [slots]: the latest position where an n-gram with this hash ended; -1: none */
    int64_t slots;     /* a power of two */
    int64_t from, len; /* the predicted next token is id[from], after `len` matching ids. from -1: no prediction */
    double right[HL_LOOKUP_KINDS]; /* recent hit rate, by len; RESUMED: len < gram */
    double goes_on;                /* how often another prediction follows a wrong one */
    struct hl_draft_cost cost;     /* hl_draft_on_cpu, unless set */
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
