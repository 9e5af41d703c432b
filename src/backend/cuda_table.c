/* cuda_table.c -- the table of ops of a CUDA backend; compiled for HL_ISA=cuda (bf16 activations) and cuda_f32. */
#include "ops/ops.h"

#define ENTRY(name, arg, need, where) where(name)
#define ALL(name) .name = HL_OP(name),
#define HOST(name)
#define REF(name)
#define PLAIN(name) .name = HL_OP(name),
#define DEVICE(name) .name = HL_OP(name),
#ifdef HL_CUDA_F32
#define NAME "cuda-f32"
#define BF16(name)
#else
#define NAME "cuda"
#define BF16(name) .name = HL_OP(name),
#endif
extern const struct hl_ops HL_OP(ops);
const struct hl_ops HL_OP(ops) = {.name = NAME, HL_OPS_LIST(ENTRY)};
