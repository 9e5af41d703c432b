/* decode_batch.h -- one token of each of many sessions, through all layers and the head: the same function as decode.h's,
 * for more rows than one kernel can take. Each product is a launch, with the norm before it and what follows it
 * inside; between the products a layer has one, of both memories (memory.cuh). */
#ifndef HL_DECODE_BATCH_H
#define HL_DECODE_BATCH_H
#include "fused/decode_one/decode_one.h"

enum {
    HL_DECODE_BATCH_ROWS = 64,
    HL_DECODE_BATCH_D = 3072,
    HL_DECODE_BATCH_K = 4096
}; /* rows; hidden size; the longest other sums */

/* Whether sizes and kinds are ones that the op knows. */
bool hl_decode_batch_takes(const struct hl_decode *a);

#endif
