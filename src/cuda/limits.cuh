/* limits.cuh -- what this device allows. */
#ifndef HL_LIMITS_CUH
#define HL_LIMITS_CUH
#include "cuda/common.cuh"

/* the most shared memory of a thread block, in bytes */
static inline int shared_limit(void) {
#ifdef HL_CUDA_EMU
    return 227 << 10;
#else
    int device = 0, limit = 48 << 10;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return limit;
#endif
}

#endif
