/* some.cuh -- barriers of some of a block's warps: `threads` of them come to barrier `id`, 1 to 15 (0 is that of
 * __syncthreads). Those that meet wait for the others; those that come only say so and go on. Kernels begin with
 * open_some, in all threads.
 *
 * HL_RACECHECK, for compute-sanitizer alone (docs/cuda.md): racecheck takes these barriers for a part of
 * __syncthreads and reports what is in order. There they lie in shared memory, where it follows them; every
 * thread has 1 / threads of what ends a phase, whatever the barrier. */
#ifndef HL_SOME_CUH
#define HL_SOME_CUH
#include "cuda/dev.cuh"

#if defined(HL_RACECHECK) && !defined(HL_CUDA_EMU)
enum { SHARES = 322560 }; /* 1024 * 9 * 5 * 7 */
static __device__ __forceinline__ uint32_t some_at(int id) {
    static __shared__ uint64_t some[16];
    return (uint32_t)__cvta_generic_to_shared(some + id);
}
static __device__ __forceinline__ void open_some() {
    if (threadIdx.x < 16)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(some_at(threadIdx.x)), "r"(SHARES)
                     : "memory");
    __syncthreads();
}
static __device__ __forceinline__ uint64_t come(int id, int threads) {
    uint64_t phase;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(phase)
                 : "r"(some_at(id)), "r"(SHARES / threads)
                 : "memory");
    return phase;
}
static __device__ __forceinline__ void meet(int id, int threads) {
    const uint64_t phase = come(id, threads);
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(some_at(id)), "l"(phase)
                     : "memory");
}
#else
static __device__ __forceinline__ void open_some() {}
static __device__ __forceinline__ void meet(int id, int threads) {
#ifdef HL_CUDA_EMU
    emu_sync_some(id, threads, true);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
static __device__ __forceinline__ void come(int id, int threads) {
#ifdef HL_CUDA_EMU
    emu_sync_some(id, threads, false);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
#endif

#endif
