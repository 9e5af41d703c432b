/* named_barrier.cuh -- named barriers: bar.sync and bar.arrive of some of a block's warps. `threads` threads take part
 * in barrier `id`, 1 to 15 (0 is __syncthreads): sync waits for the others, arrive does not. A kernel that uses them
 * begins with named_barrier_init, in all threads.
 *
 * HL_RACECHECK, for compute-sanitizer only (make sanitize): racecheck treats a named barrier as part of __syncthreads
 * and reports false races. In that build named barriers are mbarriers, which it supports, in the last
 * NAMED_BARRIER_BYTES of the block's dynamic shared memory (part of TILES_ROOM, or requested in addition). As the
 * number of threads is given at each use, a phase is SHARES arrivals and a thread arrives with SHARES / threads. */
#ifndef HL_NAMED_BARRIER_CUH
#define HL_NAMED_BARRIER_CUH
#include "cuda/common.cuh"

#if defined(HL_RACECHECK) && !defined(HL_CUDA_EMU)
enum { NAMED_BARRIER_BYTES = 17 * 8, SHARES = 322560 /* 1024 * 9 * 5 * 7 */ };
static __device__ __forceinline__ uint32_t named_barrier_address(int id) {
    uint32_t bytes;
    asm volatile("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
    return ((uint32_t)__cvta_generic_to_shared(shared_memory()) + bytes - NAMED_BARRIER_BYTES + 7) / 8 * 8 + 8 * id;
}
static __device__ __forceinline__ void named_barrier_init() {
    if (threadIdx.x < 16)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(named_barrier_address(threadIdx.x)), "r"(SHARES)
                     : "memory");
    __syncthreads();
}
static __device__ __forceinline__ uint64_t named_barrier_arrive(int id, int threads) {
    uint64_t phase;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(phase)
                 : "r"(named_barrier_address(id)), "r"(SHARES / threads)
                 : "memory");
    return phase;
}
static __device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    const uint64_t phase = named_barrier_arrive(id, threads);
    uint32_t complete = 0;
    while (!complete)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(complete)
                     : "r"(named_barrier_address(id)), "l"(phase)
                     : "memory");
}
#else
enum { NAMED_BARRIER_BYTES = 0 };
static __device__ __forceinline__ void named_barrier_init() {
#ifdef HL_CUDA_EMU
    emu_named_barrier_init();
#endif
}
static __device__ __forceinline__ void named_barrier_sync(int id, int threads) {
#ifdef HL_CUDA_EMU
    emu_named_barrier(id, threads, true);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
static __device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
#ifdef HL_CUDA_EMU
    emu_named_barrier(id, threads, false);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
#endif
/* The same with compile-time operands. */
template <int id, int threads> static __device__ __forceinline__ void named_barrier_sync() {
    named_barrier_sync(id, threads);
}
template <int id, int threads> static __device__ __forceinline__ void named_barrier_arrive() {
    named_barrier_arrive(id, threads);
}

#endif
