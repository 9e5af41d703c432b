/* kept.h -- a look into the exact memory: which tokens a head of a session holds. */
#ifndef HL_KEPT_H
#define HL_KEPT_H
#include "core/status.h"

/* Writes the positions of the rows that value head `head` of layer `layer` keeps, ascending, into pos (room for
 * cache_window), and their number into *count. The tokens of the open block, the last position % cache_chunk, are
 * seen as well and not among them. Models with an exact memory only. */
hola_status hl_session_kept(const hola_session *y, int64_t layer, int64_t head, int64_t *pos, int64_t *count);

#endif
