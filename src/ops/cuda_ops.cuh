/* cuda_ops.cuh -- what every kernel of an op includes first: the kernels' common code and the ops' structs. */
#ifndef HL_CUDA_OPS_CUH
#define HL_CUDA_OPS_CUH
#include "cuda/common.cuh"
extern "C" {
#include "ops/ops.h"
struct hl_cuda *hl_cuda_of(const struct hl_backend *b); /* the device of a backend */
}

#endif
