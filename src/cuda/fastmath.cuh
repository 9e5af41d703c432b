/* fastmath.cuh -- functions for kernels that would otherwise spend more time on them than on memory. */
#ifndef HL_QUICK_CUH
#define HL_QUICK_CUH
#include "cuda/common.cuh"

/* Good to a few units in the last place, in four instructions. */
static __device__ __forceinline__ float fast_sigmoid(float x) {
    const float y = x * -1.4426950408889634f; /* log2 of e */
#ifdef HL_CUDA_EMU
    return 1.0f / (1.0f + exp2f(y));
#else
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(y));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
#endif
}
/* 2^x, good to two units in the last place; 0 where the result would not be a normal number */
static __device__ __forceinline__ float fast_exp2(float x) {
#ifdef HL_CUDA_EMU
    return exp2f(x);
#else
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
#endif
}
/* 1 / sqrt(x), good to two units in the last place; x must be a normal number */
static __device__ __forceinline__ float fast_rsqrt(float x) {
#ifdef HL_CUDA_EMU
    return rsqrtf(x);
#else
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}
static __device__ __forceinline__ float fast_silu(float x) { return x * fast_sigmoid(x); }

#endif
