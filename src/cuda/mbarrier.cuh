/* mbarrier.cuh -- mbarriers and bulk asynchronous copies (cp.async.bulk, by the TMA unit), for pipelines of a producer
 * and its consumers. Hopper and later (hl_cuda_compiled_for_sm90).
 *
 * A phase of an mbarrier completes when all arrivals have happened and all expected bytes (expect_tx) have been copied.
 * mbarrier_wait of parity p returns once phase p, p + 2, ... is complete, so on a newly initialised mbarrier a wait for
 * parity 1 returns immediately: a ring of empty stages needs no special case. */
#ifndef HL_MBARRIER_CUH
#define HL_MBARRIER_CUH
#include "cuda/named_barrier.cuh"

#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HL_BULK 1
#endif

/* An mbarrier as used by PTX: a 32-bit shared memory address, converted once, since the compiler would convert a
 * pointer at every use. */
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
/* By one thread; a __syncthreads must follow. */
static __device__ __forceinline__ void mbarrier_init(mbarrier_t b, int arrivals) {
#ifdef HL_CUDA_EMU
    emu_mbarrier_init(b, arrivals);
#elif HL_BULK
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* The producer's arrival, which expects `bytes` bytes to be copied. */
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
    uint32_t complete = 0;
    while (!complete)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(complete)
                     : "r"(b), "r"(parity)
                     : "memory");
#endif
}
/* One thread arrives for its warp. racecheck counts that for this thread alone, so in its build all lanes arrive. */
#ifdef HL_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
static __device__ __forceinline__ void mbarrier_init_warps(mbarrier_t b, int warps) {
    mbarrier_init(b, warps * WARP_ARRIVALS);
}
/* For a consumer warp that has read a stage, or a producer warp that has written one. */
static __device__ __forceinline__ void mbarrier_arrive_warp(mbarrier_t b, int lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS) mbarrier_arrive(b);
}
static __device__ __forceinline__ void mbarrier_arrive_warp(mbarrier_t b) { mbarrier_arrive_warp(b, threadIdx.x % 32); }
/* An arrival that takes effect when all of this thread's cp.async copies have completed. */
static __device__ __forceinline__ void copy_async_arrive(mbarrier_t b) {
#ifdef HL_CUDA_EMU
    emu_copy_commit();
    emu_copy_wait(0);
    emu_mbarrier_arrive(b, 0);
#elif HL_BULK && defined(HL_RACECHECK) /* it does not support cp.async.mbarrier.arrive */
    asm volatile("cp.async.wait_all;" ::: "memory");
    mbarrier_arrive(b);
#elif HL_BULK
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
#endif
}
/* Global to shared memory: bytes a multiple of 16, both addresses 16-byte aligned, complete_tx on b. By one thread.
 * Evict-first in L2 unless the data will be read again. */
static __device__ __forceinline__ void bulk_copy(void *shared, const void *global, int bytes, mbarrier_t b,
                                                 bool again = false) {
#ifdef HL_CUDA_EMU
    emu_bulk_copy(shared, global, bytes, b);
#elif HL_BULK
    uint64_t evict_first;
    if (again) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(b)
                     : "memory");
        return;
    }
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(b), "l"(evict_first)
                 : "memory");
#endif
}
/* Shared to global memory, by one thread, as a separate bulk group: a multiple of 16, both addresses 16-byte aligned.
 * The threads that wrote the shared memory must have called fence_proxy_async (wgmma.cuh). */
static __device__ __forceinline__ void bulk_store(void *global, const void *shared, int bytes) {
#ifdef HL_CUDA_EMU
    emu_bulk_store(global, shared, bytes, false);
#elif HL_BULK
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
                 "cp.async.bulk.commit_group;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
#endif
}
/* The same, adding floats to those in global memory. */
static __device__ __forceinline__ void bulk_add(float *global, const float *shared, int bytes) {
#ifdef HL_CUDA_EMU
    emu_bulk_store(global, shared, bytes, true);
#elif HL_BULK
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n\t"
                 "cp.async.bulk.commit_group;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
#endif
}
/* Returns when all of this thread's groups are in global memory; other threads see them after a fence. */
static __device__ __forceinline__ void bulk_store_wait() {
#ifdef HL_CUDA_EMU
    emu_bulk_store_wait(0);
#elif HL_BULK
    asm volatile("cp.async.bulk.wait_group 0;\n\tfence.proxy.async;" ::: "memory");
#endif
}
/* Returns when all but the last `left` of this thread's groups have read their shared memory. */
template <int left> static __device__ __forceinline__ void bulk_store_wait_read() {
#ifdef HL_CUDA_EMU
    emu_bulk_store_wait(left);
#elif HL_BULK
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
#endif
}
/* Returns when all of this thread's groups have completed: their memory is written. */
static __device__ __forceinline__ void bulk_store_wait_all() {
#ifdef HL_CUDA_EMU
    emu_bulk_store_wait(0);
#elif HL_BULK
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
/* Prefetch to L2: a multiple of 16 bytes, 16-byte aligned. */
static __device__ __forceinline__ void prefetch_l2(const void *global, int bytes) {
#if HL_BULK
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

#endif
