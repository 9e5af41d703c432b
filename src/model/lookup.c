/* lookup.c -- see lookup.h. */
#include "model/lookup.h"
#include <stdlib.h>
#include <string.h>

enum {
    TRIES = 8,  /* occurrences compared */
    FAR = 32,   /* most ids compared per occurrence */
    FORGET = 8, /* rates are averages over about this many tokens */
    ROOM = 2048
};
/* Low estimates from docs/speed.md: too much drafting is noticed quickly. */
const struct hl_draft_cost hl_draft_on_cpu = {.pass = 1, .row = 0.12, .wrong = 0.2};

/* Classes of `right`: an n-gram seen twice means little, a long copy tends to continue. */
static int kind_of(const struct hl_lookup *l, int64_t len) {
    return len < l->gram ? HL_LOOKUP_RESUMED : len < 4 ? 0 : len < 8 ? 1 : len < 16 ? 2 : 3;
}

static int64_t slot_of(const struct hl_lookup *l, int64_t end) {
    uint64_t h = 0;
    for (int64_t i = end - l->gram; i < end; i++) h = (h + (uint32_t)l->id[i] + 1) * 0x9e3779b97f4a7c15u;
    return (int64_t)(h >> 32) & (l->slots - 1);
}

/* Adds the n-gram that ends before position `end` to the table. */
static void note(struct hl_lookup *l, int64_t end) {
    int64_t *last = &l->last[slot_of(l, end)];
    l->before[end - 1] = *last;
    *last = end;
}

/* Makes room for more ids; grows the table too. */
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
    *out = (struct hl_lookup){.gram = gram,
                              .room = ROOM / 2,
                              .from = -1,
                              .right = {0.4, 0.5, 0.6, 0.7, 0.3},
                              .goes_on = 0.5,
                              .cost = hl_draft_on_cpu};
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

/* How many ids before `at` match those before the end. */
static int64_t agree(const struct hl_lookup *l, int64_t at) {
    int64_t k = 0;
    while (k < FAR && k < at && l->id[at - 1 - k] == l->id[l->n - 1 - k]) k++;
    return k;
}

/* Among the latest occurrences of the last n-gram, picks the longest match; ties: the latest. */
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

static void learn(double *rate, bool hit) { *rate += ((hit ? 1.0 : 0.0) - *rate) / FORGET; }

hola_status hl_lookup_add(struct hl_lookup *l, int32_t id) {
    const int64_t at = l->from, len = l->len;
    const bool knew = at >= 0, right = knew && l->id[at] == id;
    if (knew) learn(&l->right[kind_of(l, len)], right);
    hola_status s = append(l, id);
    if (s != HOLA_OK) return s;
    if (right) l->from++, l->len++;
    else search(l);
    if (knew && !right && l->from < 0 && len >= l->gram) l->from = at + 1; /* a copy in which one id differs */
    if (knew && !right) learn(&l->goes_on, l->from >= 0);
    if (l->n >= l->gram) note(l, l->n);
    return HOLA_OK;
}

/* Picks the length with the most tokens per time. A draft may run past the end: then it repeats itself. */
int64_t hl_lookup_draft(const struct hl_lookup *l, int32_t *draft, int64_t most) {
    const double wrong = l->cost.wrong + l->cost.pass_alone * (1 - l->goes_on);
    double best = 1, tokens = 1, all = 1;
    int64_t pays = 0;
    if (l->from < 0) return 0;
    for (int64_t k = 0; k < most; k++) {
        const int64_t at = l->from + k;
        draft[k] = at < l->n ? l->id[at] : draft[at - l->n];
        all *= l->right[kind_of(l, l->len + k)];
        tokens += all;
        const double rate = tokens / (l->cost.pass + l->cost.row * (double)(k + 1) + wrong * (1 - all));
        if (rate > best) best = rate, pays = k + 1;
    }
    return pays;
}
