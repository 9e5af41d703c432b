/* tape.h -- what a sequence was fed: its ids, and where each call began.
 *
 * Feeding the same ids in the same calls gives the same bits. A prompt call may be split at multiples of 64 tokens from
 * its start without changing any bit, so only its start is recorded. */
#ifndef HL_TAPE_H
#define HL_TAPE_H
#include "core/status.h"
#include <stdint.h>

struct hl_tape {
    int32_t *ids;
    uint8_t *begins; /* 1: a call began there */
    int64_t n, room;
};
hola_status hl_tape_room(struct hl_tape *t, int64_t more);
/* n ids fed by one call; begin: false if they continue the previous call. Room must be reserved. */
void hl_tape_add(struct hl_tape *t, const int32_t *ids, int64_t n, bool begin);
hola_status hl_tape_copy(struct hl_tape *to, const struct hl_tape *from, int64_t n); /* `to` is empty */
void hl_tape_free(struct hl_tape *t);

#endif
