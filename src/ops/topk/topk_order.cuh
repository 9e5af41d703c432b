/* topk_order.cuh -- a logit and its id as one 64-bit key, larger for better ranks; keys are distinct and nonzero. */
#ifndef HL_TOPK_ORDER_CUH
#define HL_TOPK_ORDER_CUH
#include "ops/cuda_ops.cuh"

static __device__ __forceinline__ uint64_t order_of(float x, int32_t id) {
    const uint32_t u = __float_as_uint(x + 0.0f), key = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)key << 32 | (uint32_t)~id;
}
static __device__ __forceinline__ struct hl_candidate candidate_of(uint64_t v) {
    const uint32_t key = (uint32_t)(v >> 32);
    struct hl_candidate c = {__uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key), (int32_t) ~(uint32_t)v};
    return c;
}
static __device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

#endif
