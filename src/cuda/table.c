/* table.c -- the table of a CUDA backend; compiled for HL_ISA=cuda and cuda_f32 (see dev.cuh). */
#include "ops/ops.h"

#define ENTRY(name, arg) .name = HL_OP(name),
extern const struct hl_memory HL_OP(memory);
extern const struct hl_ops HL_OP(ops);
#ifdef HL_CUDA_F32
#define NAME "cuda-f32"
#else
#define NAME "cuda"
#endif
const struct hl_ops HL_OP(ops) = {.name = NAME, .mem = &HL_OP(memory), HL_OPS_LIST(ENTRY)};
