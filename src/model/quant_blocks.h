/* quant_blocks.h -- Q8_0 and Q4_0, the quantised block formats of GGUF.
 *
 * A block is 32 columns of a row: an F16 scale, then 32 signed bytes (Q8_0), or 16 bytes whose byte j has column j in
 * its low half and column j + 16 in its high half, each as code + 8 (Q4_0). Our codes have one BF16 scale per 128 or 64
 * columns: writing repeats that scale in each block, and reading blocks with such scales restores the same codes. */
#ifndef HL_QUANT_BLOCKS_H
#define HL_QUANT_BLOCKS_H
#include "model/safetensors.h"
#include "ops/linear/quant.h"

enum { HL_BLOCK = 32 };
static inline int64_t hl_block_bytes(hola_dtype t) { return t == HOLA_INT8 ? 34 : 18; }

void hl_blocks_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out);
/* The type of our codes that represents a matrix's blocks exactly; HOLA_DTYPE_COUNT: none. */
hola_dtype hl_blocks_type(const struct hl_st_tensor *t);
/* Converts to those codes; *c has room for them. */
void hl_blocks_take(const struct hl_st_tensor *t, const struct hl_quant *c);
/* Writes row i of codes as blocks. A scale that F16 cannot represent is rounded to the nearest, and the codes are
 * refitted to it: a number then changes by at most 2^-17. false: a scale out of F16 range. */
bool hl_blocks_write(const struct hl_quant *c, int64_t i, char *out);

#endif
