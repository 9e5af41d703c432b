/* kept.h -- a look into the exact memory: which tokens of a text a head holds at its end. */
#ifndef HL_KEPT_H
#define HL_KEPT_H
#include "core/status.h"

/* Reads ids [n] from an empty state, then writes the positions of the rows that value head `head` of layer
 * `layer` keeps, ascending, into pos (room for cache_window), and their number into *count. The tokens of the
 * open block, the last n % cache_chunk, are seen as well and not among them. Models with an exact memory only. */
hola_status hl_model_kept(hola_model *m, const int32_t *ids, int64_t n, int64_t layer, int64_t head,
                          int64_t *pos, int64_t *count);

#endif
