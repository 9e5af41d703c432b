/* table.c -- the table of a CUDA backend; compiled for HL_ISA=cuda and cuda_f32 (see dev.cuh). */
#include "ops/ops.h"

#define ENTRY(name, arg) .name = HL_OP(name),
extern const struct hl_memory HL_OP(memory);
extern const struct hl_ops HL_OP(ops);
#ifdef HL_CUDA_F32
#define NAME "cuda-f32"
#define DECODE NULL
#define DECODE_MANY NULL
#else
#define NAME "cuda"
#define DECODE HL_OP(decode)
#define DECODE_MANY HL_OP(decode_many)
bool HL_OP(decode)(struct hl_pool *, const struct hl_decode *);
bool HL_OP(decode_many)(struct hl_pool *, const struct hl_decode *);
#endif
void HL_OP(top)(struct hl_pool *, const struct hl_top *);
void HL_OP(twonorm_forward)(struct hl_pool *, const struct hl_l2norm *, const struct hl_rmsnorm *);
void HL_OP(twonorm_backward)(struct hl_pool *, const struct hl_l2norm *, const struct hl_rmsnorm *);
void HL_OP(convnorm_forward)(struct hl_pool *, const struct hl_conv *, const struct hl_l2norm *,
                             const struct hl_rmsnorm *);
void HL_OP(convnorm_backward)(struct hl_pool *, const struct hl_conv *, const struct hl_l2norm *,
                              const struct hl_rmsnorm *);
const struct hl_ops HL_OP(ops) = {.name = NAME,
                                  .mem = &HL_OP(memory),
                                  HL_OPS_LIST(ENTRY).decode = DECODE,
                                  .decode_many = DECODE_MANY,
                                  .top = HL_OP(top),
                                  .twonorm_forward = HL_OP(twonorm_forward),
                                  .twonorm_backward = HL_OP(twonorm_backward),
                                  .convnorm_forward = HL_OP(convnorm_forward),
                                  .convnorm_backward = HL_OP(convnorm_backward)};
