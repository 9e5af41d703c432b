/* tape.c -- see tape.h. */
#include "serve/tape.h"
#include <stdlib.h>
#include <string.h>

hola_status hl_tape_room(struct hl_tape *t, int64_t more) {
    int64_t room = t->room;
    if (t->n + more <= room) return HOLA_OK;
    while (room < t->n + more) room = room + room / 2 + 64;
    int32_t *ids = realloc(t->ids, (size_t)room * sizeof *ids);
    if (ids) t->ids = ids;
    uint8_t *begins = ids ? realloc(t->begins, (size_t)room) : NULL;
    if (!begins) return hl_fail(HOLA_ENOMEM, "no memory for %lld ids", (long long)room);
    t->begins = begins;
    t->room = room;
    return HOLA_OK;
}

void hl_tape_add(struct hl_tape *t, const int32_t *ids, int64_t n, bool begin) {
    HL_ASSERT(t->n + n <= t->room);
    if (n < 1) return;
    memcpy(t->ids + t->n, ids, (size_t)n * sizeof *ids);
    memset(t->begins + t->n, 0, (size_t)n);
    t->begins[t->n] = begin;
    t->n += n;
}

hola_status hl_tape_copy(struct hl_tape *to, const struct hl_tape *from, int64_t n) {
    hola_status s = hl_tape_room(to, n);
    if (s != HOLA_OK || n < 1) return s;
    memcpy(to->ids, from->ids, (size_t)n * sizeof *to->ids);
    memcpy(to->begins, from->begins, (size_t)n);
    to->n = n;
    return HOLA_OK;
}

void hl_tape_free(struct hl_tape *t) {
    free(t->ids), free(t->begins);
    *t = (struct hl_tape){0};
}
