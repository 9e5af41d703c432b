/* swiglu_cuda.cuh -- the gradients of one number, for swiglu_backward and for kernels that do more with them. */
#ifndef HL_SWIGLU_CUDA_CUH
#define HL_SWIGLU_CUDA_CUH
#include "cuda/fastmath.cuh"

/* *g, *u: gate and up, replaced by their gradients */
static __device__ __forceinline__ void swiglu_gradients(float *g, float *u, float dy) {
    const float s = fast_sigmoid(*g), gate = *g, dys = dy * s;
    *g = dys * *u * (1.0f + gate * (1.0f - s));
    *u = dys * gate;
}

#endif
