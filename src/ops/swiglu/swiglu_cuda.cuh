/* swiglu_cuda.cuh -- SwiGLU of one number and its gradients, for the ops of SwiGLU and for kernels that do more with the
 * results; so both have the same bits. */
#ifndef HL_SWIGLU_CUDA_CUH
#define HL_SWIGLU_CUDA_CUH
#include "cuda/fastmath.cuh"

static __device__ __forceinline__ float swiglu(float gate, float up) { return fast_silu(gate) * up; }
/* *g, *u: gate and up, replaced by their gradients */
static __device__ __forceinline__ void swiglu_gradients(float *g, float *u, float dy) {
    const float s = fast_sigmoid(*g), gate = *g, dys = dy * s;
    *g = dys * *u * (1.0f + gate * (1.0f - s));
    *u = dys * gate;
}

#endif
