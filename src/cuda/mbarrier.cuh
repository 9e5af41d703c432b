/* mbarrier.cuh -- runs of bytes that the chip's copy engine brings to shared memory, and the barriers in shared
 * memory that say when they are there (Hopper and later; hl_cuda_compiled_for_sm90 asks).
 *
 * A barrier's phase ends when all arrivals have come and all bytes that were announced are there; waiting for
 * parity p returns once phase number p, p + 2, ... is over, so a fresh barrier lets the waiters for parity 1
 * through. */
#ifndef HL_BULK_CUH
#define HL_BULK_CUH
#include "cuda/named_barrier.cuh"

#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HL_BULK 1
#endif

/* A barrier as the instructions name it: an address in shared memory, made once; what the compiler makes of a
 * pointer each time is longer. */
#ifdef HL_CUDA_EMU
typedef uint64_t *mbarrier_t;
static inline mbarrier_t mbarrier_base(uint64_t *p) { return p; }
static inline mbarrier_t mbarrier_at(mbarrier_t first, int i) { return first + i; }
#else
typedef uint32_t mbarrier_t;
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ mbarrier_t mbarrier_base(uint64_t *p) {
    mbarrier_t b;
    asm volatile("mov.u32 %0, %1;" : "=r"(b) : "r"(shared_address(p)));
    return b;
}
static __device__ __forceinline__ mbarrier_t mbarrier_at(mbarrier_t first, int i) { return first + 8 * i; }
#endif
/* One thread; a __syncthreads must follow. */
static __device__ __forceinline__ void mbarrier_init(mbarrier_t b, int arrivals) {
#ifdef HL_CUDA_EMU
    emu_mbarrier_init(b, arrivals);
#elif HL_BULK
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* An arrival that announces bytes. */
static __device__ __forceinline__ void mbarrier_arrive_expect_tx(mbarrier_t b, int bytes) {
#ifdef HL_CUDA_EMU
    emu_mbarrier_arrive(b, bytes);
#elif HL_BULK
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
#endif
}
static __device__ __forceinline__ void mbarrier_arrive(mbarrier_t b) {
#ifdef HL_CUDA_EMU
    emu_mbarrier_arrive(b, 0);
#elif HL_BULK
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
#endif
}
static __device__ __forceinline__ void mbarrier_wait(mbarrier_t b, uint32_t parity) {
#ifdef HL_CUDA_EMU
    emu_mbarrier_wait(b, parity);
#elif HL_BULK
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(b), "r"(parity)
                     : "memory");
#endif
}
/* Arrivals of whole warps: one thread's for all, which racecheck takes for that thread's alone. */
#ifdef HL_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
static __device__ __forceinline__ void mbarrier_init_warps(mbarrier_t b, int warps) {
    mbarrier_init(b, warps * WARP_ARRIVALS);
}
/* The warp is done with something, or has left something. */
static __device__ __forceinline__ void mbarrier_arrive_warp(mbarrier_t b, int lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS) mbarrier_arrive(b);
}
static __device__ __forceinline__ void mbarrier_arrive_warp(mbarrier_t b) {
    mbarrier_arrive_warp(b, threadIdx.x % 32);
}
/* An arrival once all of this thread's asynchronous copies are there. */
static __device__ __forceinline__ void copy_async_arrive(mbarrier_t b) {
#ifdef HL_CUDA_EMU
    emu_copy_commit();
    emu_copy_wait(0);
    emu_mbarrier_arrive(b, 0);
#elif HL_BULK && defined(HL_RACECHECK) /* it does not know the other instruction */
    asm volatile("cp.async.wait_all;" ::: "memory");
    mbarrier_arrive(b);
#elif HL_BULK
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
#endif
}
/* bytes: a multiple of 16, both ends on 16. What is read once goes first from the chip's cache. */
static __device__ __forceinline__ void bulk_copy(void *shared, const void *global, int bytes, mbarrier_t b,
                                                 bool again = false) {
#ifdef HL_CUDA_EMU
    emu_bulk_copy(shared, global, bytes, b);
#elif HL_BULK
    uint64_t once;
    if (again) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(shared)),
            "l"(global), "r"(bytes), "r"(b)
            : "memory");
        return;
    }
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(b), "l"(once)
                 : "memory");
#endif
}

/* Bytes that will be wanted soon, from memory to the chip's cache; a multiple of 16, on 16. */
static __device__ __forceinline__ void prefetch_l2(const void *global, int bytes) {
#if HL_BULK
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

#endif
