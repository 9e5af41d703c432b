/* cluster.cuh -- thread block clusters: blocks that run at the same time and access each other's (distributed) shared
 * memory. Hopper and later. The emulator runs blocks sequentially and has no clusters. */
#ifndef HL_CLUSTER_CUH
#define HL_CLUSTER_CUH
#include "cuda/pdl.cuh"

#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HL_CLUSTER 1
#else
#define HL_CLUSTER 0
#endif

static __device__ __forceinline__ int cluster_rank() {
    uint32_t r = 0;
#if HL_CLUSTER
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return (int)r;
}
/* The barrier of all threads of the cluster. Arrival is relaxed: it orders no memory accesses. */
static __device__ __forceinline__ void cluster_arrive() {
#if HL_CLUSTER
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait() {
#if HL_CLUSTER
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/* Maps address `own` of this block's shared memory to the same location in block `rank`. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t own, int rank) {
    uint32_t at = 0;
#if HL_CLUSTER
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
#else
    (void)own, (void)rank;
#endif
    return at;
}
/* A bulk copy of this block's shared memory to another's, with complete_tx on an mbarrier there (mbarrier.cuh); a
 * multiple of 16 bytes, both addresses 16-byte aligned. The block must not exit before it has completed. */
static __device__ __forceinline__ void cluster_copy(uint32_t at, uint32_t from, int bytes, uint32_t barrier) {
#if HL_CLUSTER
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
#else
    (void)at, (void)from, (void)bytes, (void)barrier;
#endif
}

#ifndef HL_CUDA_EMU
/* launch_pdl in clusters of `size` neighbouring blocks */
template <class... P, class... A>
static void launch_clusters(struct hl_cuda *c, void (*kernel)(P...), unsigned size, dim3 grid, dim3 block,
                            size_t shared, A... args) {
    cudaLaunchAttribute at[2] = {};
    cudaLaunchConfig_t config = {};
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    at[1].id = cudaLaunchAttributeClusterDimension;
    at[1].val.clusterDim.x = size, at[1].val.clusterDim.y = at[1].val.clusterDim.z = 1;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    config.stream = hl_cuda_stream(c), config.attrs = at, config.numAttrs = size > 1 ? 2 : 1;
    if (shared > 48 << 10) hl_cuda_allow_shared(c, (const void *)kernel, shared);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, kernel, P(args)...));
}
#endif

#endif
