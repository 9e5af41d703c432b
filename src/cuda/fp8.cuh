/* fp8.cuh -- floats to FP8 codes in kernels: Hopper's instruction, elsewhere core/fp8.h, which has the same bits. */
#ifndef HL_FP8_CUH
#define HL_FP8_CUH
#include "cuda/common.cuh"
#include "core/fp8.h"

/* two codes, the first in the low byte */
template <int format> static __device__ __forceinline__ uint32_t fp8_pair(float lo, float hi) {
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint16_t r;
    if (format == HL_E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
#else
    return hl_to_fp8(lo, (enum hl_fp8)format) | (uint32_t)hl_to_fp8(hi, (enum hl_fp8)format) << 8;
#endif
}
/* eight, the first in the lowest byte */
template <int format> static __device__ __forceinline__ uint2 fp8_eight(const float *x) {
    return make_uint2(fp8_pair<format>(x[0], x[1]) | fp8_pair<format>(x[2], x[3]) << 16,
                      fp8_pair<format>(x[4], x[5]) | fp8_pair<format>(x[6], x[7]) << 16);
}

#endif
