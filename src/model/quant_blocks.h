/* quant_blocks.h -- Q8_0 and Q4_0, the blocks in which GGUF files keep matrices of small integers.
 *
 * A block is 32 columns of a row: an F16 scale, then 32 signed bytes (Q8_0), or 16 bytes of which byte j has column j
 * in its low half and column j + 16 in its high half, each as code + 8 (Q4_0). Our codes have a BF16 scale for 128 or 64
 * columns: written as blocks that scale is repeated, and blocks with such scales are read as the same codes again. */
#ifndef HL_QUANT_BLOCKS_H
#define HL_QUANT_BLOCKS_H
#include "model/safetensors.h"
#include "ops/linear/quant.h"

enum { HL_BLOCK = 32 };
static inline int64_t hl_block_bytes(hola_dtype t) { return t == HOLA_INT8 ? 34 : 18; }

void hl_blocks_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out);
/* The type of our codes that the blocks of a matrix are exactly; HOLA_DTYPE_COUNT: none. */
hola_dtype hl_blocks_type(const struct hl_st_tensor *t);
/* Those codes; *c has room for them. */
void hl_blocks_take(const struct hl_st_tensor *t, const struct hl_quant *c);
/* Row i of codes as blocks. A scale that no F16 is becomes the nearest, with the codes that fit it best: a number then
 * changes by at most 2^-17. false: a scale beyond all F16. */
bool hl_blocks_write(const struct hl_quant *c, int64_t i, char *out);

#endif
