/* token_wait.cuh -- a decoding kernel that was launched ahead of its token (cuda/prelaunch.c): the first block asks the
 * host for it, all others take its word. */
#ifndef HL_DECODE_AHEAD_CUH
#define HL_DECODE_AHEAD_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

/* The token, where there is one row. */
template <class D> static __device__ __forceinline__ int32_t *id_of(const D &a, const struct block &b) {
    return (int32_t *)(b.shared + a.s.id) + b.warp;
}

#ifdef HL_CUDA_EMU
template <class D> static void await_token(const D &, const struct block &) {}
#else
/* The token's id, or HL_PRELAUNCH_STOP: it does not come. One thread; the words are the host's memory. */
static __device__ __forceinline__ uint32_t ask_host(const struct hl_prelaunch_slot &m) {
    uint64_t word, begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(m.request) : "memory");
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (!fresh(word, m.number) && now - begin < m.timeout_ns);
    const uint32_t id = fresh(word, m.number) ? (uint32_t)word : (uint32_t)HL_PRELAUNCH_STOP;
    word = (uint64_t)m.number << 32 | id;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(m.reply), "l"(word) : "memory");
    return id;
}
/* All lanes of a warp; the kernel ends here where there is none. Not a part of the caller: what it would do to the
 * registers there costs 12 of 300 microseconds. */
static __device__ __noinline__ uint32_t token_of(const struct hl_prelaunch_slot m, uint64_t *next) {
    uint64_t word;
    if (blockIdx.x == 0 && threadIdx.x == 0) give(next, ask_host(m), m.number);
    __syncwarp();
    do word = look(next);
    while (!all_lanes(fresh(word, m.number)));
    if ((uint32_t)word == HL_PRELAUNCH_STOP) asm volatile("exit;");
    return (uint32_t)word;
}
template <class D> static __device__ __forceinline__ void await_token(const D &a, const struct block &b) {
    if (D::most > 1 || !a.request.request) return;
    const uint32_t id = token_of(a.request, a.words + NEXT);
    if (b.lane == 0 && b.warp < WARPS) *id_of(a, b) = (int32_t)id;
    __syncwarp();
}
#endif

#endif
