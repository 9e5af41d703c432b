/* packed.cuh -- V adjacent activations kept packed in registers: half the registers of floats, for values that are
 * prefetched or used twice. */
#ifndef HL_PACKED_CUH
#define HL_PACKED_CUH
#include "cuda/common.cuh"

template <int V> struct packed_of { typedef act type; /* V = 1 */ };
template <> struct packed_of<WIDE> { typedef uint4 type; };
#ifdef HL_CUDA_F32
static __device__ __forceinline__ void unpack(float *x, uint4 u) {
    x[0] = __uint_as_float(u.x), x[1] = __uint_as_float(u.y);
    x[2] = __uint_as_float(u.z), x[3] = __uint_as_float(u.w);
}
#else
template <> struct packed_of<4> { typedef uint2 type; };
static __device__ __forceinline__ void unpack(float *x, uint4 u) {
    x[0] = low(u.x), x[1] = high(u.x), x[2] = low(u.y), x[3] = high(u.y);
    x[4] = low(u.z), x[5] = high(u.z), x[6] = low(u.w), x[7] = high(u.w);
}
static __device__ __forceinline__ void unpack(float *x, uint2 u) {
    x[0] = low(u.x), x[1] = high(u.x), x[2] = low(u.y), x[3] = high(u.y);
}
static __device__ __forceinline__ void store_packed(uint2 *p, const float *x) {
    *p = make_uint2(pack2(x[0], x[1]), pack2(x[2], x[3]));
}
#endif
static __device__ __forceinline__ void unpack(float *x, act u) { x[0] = f32(u); }
static __device__ __forceinline__ void store_packed(uint4 *p, const float *x) { store_wide((act *)p, x); }
static __device__ __forceinline__ void store_packed(act *p, const float *x) { put(p, x[0]); }

#endif
