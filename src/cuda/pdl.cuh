/* pdl.cuh -- programmatic dependent launch (PDL): a kernel starts while the previous one in the stream still runs,
 * which hides its launch latency; for the many small kernels of decoding, that latency dominates.
 *
 * A kernel launched by launch_pdl calls pdl_wait before it reads what an earlier kernel wrote, or writes what an
 * earlier kernel reads, and then pdl_trigger, which lets the next kernel start. Before pdl_wait it may load weights,
 * which the previous kernel never writes. A kernel launched by launch waits for all earlier kernels to finish, as
 * usual. Hopper and later; elsewhere both calls do nothing and launch_pdl is launch. */
#ifndef HL_PDL_CUH
#define HL_PDL_CUH
#include "cuda/common.cuh"

static __device__ __forceinline__ void pdl_wait() {
#ifdef HL_CUDA_EMU
    emu_pdl_wait();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void pdl_trigger() {
#ifdef HL_CUDA_EMU
    emu_pdl_trigger();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef HL_CUDA_EMU
template <class... P, class... A>
static void launch_pdl(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
    emu_pdl_launch();
    launch(c, kernel, grid, block, shared, args...);
}
#else
template <class... P, class... A>
static void launch_pdl(struct hl_cuda *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args) {
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    /* a kernel compiled for an older architecture contains no griddepcontrol.wait */
    const bool waits = hl_cuda_compiled_for_sm90(c, (const void *)kernel);
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    config.stream = hl_cuda_stream(c), config.attrs = &pdl, config.numAttrs = waits;
    if (shared > 48 << 10) hl_cuda_allow_shared(c, (const void *)kernel, shared);
    hl_cuda_launched(c, cudaLaunchKernelEx(&config, kernel, P(args)...));
}
#endif

#endif
