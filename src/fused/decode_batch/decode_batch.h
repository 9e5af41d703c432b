/* decode_batch.h -- one token of each of up to 64 sessions, through all layers and the head: like decode_one.h, for
 * more rows than its kernel supports. A token is 5 launches per layer (6 if H != HV), one before and one after. All but
 * the first use programmatic dependent launch: a kernel starts while its predecessor still runs, and loads weights and
 * other data that the predecessor does not write before it waits.
 *
 *   launch                reads                           writes
 *   batch_embed           the embeddings of ids           x, xw (x times layer 0's norm), squares_x; sessions
 *                                                         sorted by how many rows their caches hold
 *   each layer:
 *   batch_gemm NORMED     xw, squares_x                   in: q k v a b z before the convolution
 *   prologue_kernel       in, conv tails                  q k v, qt kt, conv tails; only if H != HV, else
 *                                                         mixer_kernel does this for its own heads
 *   mixer_kernel          in (or q k v qt kt), S, cache   S, cache, conv tails, y = norm(o + read) silu(z)
 *   batch_gemm RESIDUAL   y, x                            h, hw (h times mlp_norm), squares_h
 *   batch_gemm GATED      hw, squares_h                   act
 *   batch_gemm RESIDUAL   act, h                          x, xw (x times the next norm), squares_x
 *   after the last layer:
 *   batch_lm_head         xw, squares_x                   logits
 *
 * An RMSNorm is split over two launches: the one that computes x also writes xw, x times the norm's weights, and the
 * sum of squares of every 32 columns; the one that multiplies xw applies the row's factor to its sums. xw, hw, y and
 * act are panels (panel.cuh). */
#ifndef HL_DECODE_BATCH_H
#define HL_DECODE_BATCH_H
#include "fused/decode_one/decode_one.h"

enum {
    HL_DECODE_BATCH_ROWS = 64,
    HL_DECODE_BATCH_D = 3072, /* maximum hidden size */
    HL_DECODE_BATCH_K = 4096  /* maximum inner size of the other products */
};

/* Whether the kernels support these sizes and options; checks only what hl_decode_one_takes does. */
bool hl_decode_batch_takes(const struct hl_decode *a);

#endif
