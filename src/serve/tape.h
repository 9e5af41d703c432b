/* tape.h -- what a sequence was fed: its ids, and where the calls began that fed them.
 *
 * Feeding the same ids in the same calls gives the same bits. A call that read a prompt may be cut into pieces of
 * multiples of 64 tokens from its own beginning, which changes no bit either, so only its beginning is noted. */
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
/* n ids that one call fed; begin: they are not the rest of the call before. Room was made. */
void hl_tape_add(struct hl_tape *t, const int32_t *ids, int64_t n, bool begin);
hola_status hl_tape_copy(struct hl_tape *to, const struct hl_tape *from, int64_t n); /* `to` is empty */
void hl_tape_free(struct hl_tape *t);

#endif
