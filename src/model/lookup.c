/* lookup.c -- see lookup.h. */
#include "model/lookup.h"
#include <stdlib.h>
#include <string.h>

enum {
    TRIES = 8,  /* occurrences that are compared */
    FAR = 32,   /* ids that the comparison goes back */
    FORGET = 8, /* `right` is about the last so many tokens */
    ROOM = 2048
};
/* What a draft costs, in passes over one token: a row of the pass, and a draft that turned out wrong: the rows fed
 * again and the state restored. On the cheap side of what docs/speed.md has: a draft too many is soon noticed. */
static const double row_cost = 0.12, wrong_cost = 0.2;

/* The kinds of `right`: an n-gram seen twice says little, a long copy goes on. */
static int kind_of(int64_t len) { return len < 4 ? 0 : len < 8 ? 1 : len < 16 ? 2 : 3; }

static int64_t slot_of(const struct hl_lookup *l, int64_t end) {
    uint64_t h = 0;
    for (int64_t i = end - l->gram; i < end; i++) h = (h + (uint32_t)l->id[i] + 1) * 0x9e3779b97f4a7c15u;
    return (int64_t)(h >> 32) & (l->slots - 1);
}

/* The n-gram before position `end` goes into the table. */
static void note(struct hl_lookup *l, int64_t end) {
    int64_t *last = &l->last[slot_of(l, end)];
    l->before[end - 1] = *last;
    *last = end;
}

/* Room for more ids; the table grows with them. */
static hola_status grow(struct hl_lookup *l) {
    const int64_t room = 2 * l->room;
    int32_t *id = realloc(l->id, (size_t)room * sizeof *id);
    if (id) l->id = id;
    int64_t *before = id ? realloc(l->before, (size_t)room * sizeof *before) : NULL;
    if (before) l->before = before;
    int64_t *last = before ? realloc(l->last, (size_t)room * sizeof *last) : NULL;
    if (!last) return hl_fail(HOLA_ENOMEM, "look-up: no memory for %lld ids", (long long)room);
    l->last = last;
    l->slots = l->room = room;
    memset(l->last, 0xff, (size_t)room * sizeof *last); /* -1 */
    for (int64_t end = l->gram; end <= l->n; end++) note(l, end);
    return HOLA_OK;
}

hola_status hl_lookup_new(struct hl_lookup *out, int64_t gram) {
    HL_ASSERT(gram >= 1 && gram <= HL_LOOKUP_MOST);
    *out = (struct hl_lookup){.gram = gram, .room = ROOM / 2, .from = -1, .right = {0.4, 0.5, 0.6, 0.7}};
    hola_status s = grow(out);
    if (s != HOLA_OK) hl_lookup_free(out);
    return s;
}

void hl_lookup_free(struct hl_lookup *l) {
    free(l->id), free(l->before), free(l->last);
    *l = (struct hl_lookup){0};
}

static hola_status append(struct hl_lookup *l, int32_t id) {
    hola_status s = l->n == l->room ? grow(l) : HOLA_OK;
    if (s != HOLA_OK) return s;
    l->id[l->n++] = id;
    return HOLA_OK;
}

/* How many ids before `at` are those before the end. */
static int64_t agree(const struct hl_lookup *l, int64_t at) {
    int64_t k = 0;
    while (k < FAR && k < at && l->id[at - 1 - k] == l->id[l->n - 1 - k]) k++;
    return k;
}

/* Of the latest occurrences of the last n-gram, the one that agrees farthest back; of equals the latest. */
static void search(struct hl_lookup *l) {
    l->from = -1, l->len = 0;
    if (l->n < l->gram) return;
    int64_t at = l->last[slot_of(l, l->n)];
    for (int tries = 0; at >= 0 && tries < TRIES; tries++, at = l->before[at - 1]) {
        const int64_t k = agree(l, at);
        if (k >= l->gram && k > l->len) l->from = at, l->len = k;
    }
}

hola_status hl_lookup_source(struct hl_lookup *l, const int32_t *ids, int64_t n) {
    hola_status s = HOLA_OK;
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        s = append(l, ids[i]);
        if (s == HOLA_OK && l->n >= l->gram) note(l, l->n);
    }
    l->from = -1;
    return s;
}

hola_status hl_lookup_add(struct hl_lookup *l, int32_t id) {
    const bool knew = l->from >= 0, right = knew && l->id[l->from] == id;
    if (knew) l->right[kind_of(l->len)] += ((right ? 1.0 : 0.0) - l->right[kind_of(l->len)]) / FORGET;
    hola_status s = append(l, id);
    if (s != HOLA_OK) return s;
    if (right) l->from++, l->len++;
    else search(l);
    if (l->n >= l->gram) note(l, l->n);
    return HOLA_OK;
}

/* The length with the most tokens for its time. A draft may run past the end: then it repeats itself. */
int64_t hl_lookup_draft(const struct hl_lookup *l, int32_t *draft, int64_t most) {
    double best = 1, tokens = 1, all = 1;
    int64_t pays = 0;
    if (l->from < 0) return 0;
    for (int64_t k = 0; k < most; k++) {
        const int64_t at = l->from + k;
        draft[k] = at < l->n ? l->id[at] : draft[at - l->n];
        all *= l->right[kind_of(l->len + k)];
        tokens += all;
        const double rate = tokens / (1 + row_cost * (double)(k + 1) + wrong_cost * (1 - all));
        if (rate > best) best = rate, pays = k + 1;
    }
    return pays;
}
