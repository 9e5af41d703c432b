/* token_wait.cuh -- waiting for the token of a prelaunched kernel (cuda/prelaunch.c): block 0 polls the host for it and
 * publishes it to the other blocks. */
#ifndef HL_TOKEN_WAIT_CUH
#define HL_TOKEN_WAIT_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

/* The token, with one row; a copy per warp. */
template <class D> static __device__ __forceinline__ int32_t *token_id(const D &a, const struct block &b) {
    return (int32_t *)(b.shared + a.s.id) + b.warp;
}

#ifdef HL_CUDA_EMU
template <class D> static void wait_for_token(const D &, const struct block &) {}
#else
/* The token's id, or HL_PRELAUNCH_STOP if there is none. One thread; both words are in host memory. */
static __device__ __forceinline__ uint32_t poll_host(const struct hl_prelaunch_slot &m) {
    uint64_t word, begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(m.request) : "memory");
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (!is_current(word, m.number) && now - begin < m.timeout_ns);
    const uint32_t id = is_current(word, m.number) ? (uint32_t)word : (uint32_t)HL_PRELAUNCH_STOP;
    word = (uint64_t)m.number << 32 | id;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(m.reply), "l"(word) : "memory");
    return id;
}
/* All lanes of a warp; the kernel exits here if there is no token. Not inlined: its registers would cost the caller 12
 * of 300 microseconds. */
static __device__ __noinline__ uint32_t receive_token(const struct hl_prelaunch_slot m, uint64_t *next) {
    uint64_t word;
    if (blockIdx.x == 0 && threadIdx.x == 0) publish(next, poll_host(m), m.number);
    __syncwarp();
    do word = poll(next);
    while (!warp_all(is_current(word, m.number)));
    if ((uint32_t)word == HL_PRELAUNCH_STOP) asm volatile("exit;");
    return (uint32_t)word;
}
template <class D> static __device__ __forceinline__ void wait_for_token(const D &a, const struct block &b) {
    if (D::max_rows > 1 || !a.request.request) return;
    const uint32_t id = receive_token(a.request, a.words + TOKEN_WORD);
    if (b.lane == 0 && b.warp < WARPS) *token_id(a, b) = (int32_t)id;
    __syncwarp();
}
#endif

#endif
