/* pdl.cuh -- kernels that start while the one before them still works: of many small ones, as in
 * decoding, the start is most of the time. Such a kernel calls pdl_wait before it touches anything
 * that others write or read, and then pdl_trigger; what it may load before is weights, which the
 * kernel just before it never writes. A kernel that is launched in the usual way waits for these to the
 * end, as ever. */
#ifndef HL_EARLY_CUH
#define HL_EARLY_CUH
#include "cuda/common.cuh"

static __device__ __forceinline__ void pdl_wait() {
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void pdl_trigger() {
#if !defined(HL_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef HL_CUDA_EMU
template <class... P, class... A>
static void launch_pdl(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                       A... args) {
    launch(c, kernel, grid, block, shared, args...);
}
#else
template <class... P, class... A>
static void launch_pdl(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                       A... args) {
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    /* compiled for an older chip, a kernel has no waits in it */
    const bool waits = hl_cuda_compiled_for_sm90(c, (const void *)kernel);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    config.stream = hl_cuda_stream(c), config.attrs = &early, config.numAttrs = waits;
    if (shared > 48 << 10) hl_cuda_allow_shared(c, (const void *)kernel, shared);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, kernel, P(args)...));
}
#endif

#endif
