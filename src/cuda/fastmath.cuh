/* fastmath.cuh -- approximate math (ex2.approx, rcp.approx, rsqrt.approx) for kernels that would otherwise be
 * compute-bound instead of memory-bound. */
#ifndef HL_FASTMATH_CUH
#define HL_FASTMATH_CUH
#include "cuda/common.cuh"

/* Accurate to a few ulp, in four instructions. */
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
/* 2^x, accurate to 2 ulp; denormal results are flushed to 0 */
static __device__ __forceinline__ float fast_exp2(float x) {
#ifdef HL_CUDA_EMU
    return exp2f(x);
#else
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
#endif
}
/* 1 / sqrt(x), accurate to 2 ulp, for x kept away from denormals by an epsilon */
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
