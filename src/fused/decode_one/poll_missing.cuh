/* poll_missing.cuh -- wait_for() for models where words that have arrived are not polled again: less
 * polling traffic for the words to come, but longer rounds. Which is faster depends on the model (preset's
 * POLL_MISSING). These are separate functions and not a flag of wait_for(), because what the compiler
 * makes of the loops matters more than either: 3 to 10 % of a token. */
#ifndef HL_POLL_MISSING_CUH
#define HL_POLL_MISSING_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

static __device__ __forceinline__ bool is_current(const struct word_pair &w, uint32_t epoch) {
    return is_current(w.x, epoch) && is_current(w.y, epoch);
}
template <int N>
static __device__ __forceinline__ void wait_for_missing(uint32_t (&v)[N], const uint64_t *p, int stride,
                                                        int n, uint32_t epoch) {
    uint64_t w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = i < n ? 0 : (uint64_t)epoch << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!is_current(w[i], epoch)) w[i] = poll(p + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++) there = there && is_current(w[i], epoch);
        if (warp_all(there)) break;
        spin();
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = (uint32_t)w[i];
}
template <int N>
static __device__ __forceinline__ void wait_for_missing(uint2 (&v)[N], const uint64_t *p, int stride, int n,
                                                        uint32_t epoch) {
    struct word_pair w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i].x = w[i].y = i < n ? 0 : (uint64_t)epoch << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!is_current(w[i], epoch)) w[i] = poll_pair(p + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++) there = there && is_current(w[i], epoch);
        if (warp_all(there)) break;
        spin();
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = make_uint2((uint32_t)w[i].x, (uint32_t)w[i].y);
}
/* Pairs of C pieces, each with its own n. */
template <int C, int N>
static __device__ __forceinline__ void wait_for_missing(uint2 (&v)[C][N], const uint64_t *p, int apart,
                                                        int stride, const int (&n)[C], uint32_t epoch) {
    struct word_pair w[C][N];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) w[c][i].x = w[c][i].y = i < n[c] ? 0 : (uint64_t)epoch << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (!is_current(w[c][i], epoch)) w[c][i] = poll_pair(p + c * apart + i * stride);
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++) there = there && is_current(w[c][i], epoch);
        if (warp_all(there)) break;
        spin();
    }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) v[c][i] = make_uint2((uint32_t)w[c][i].x, (uint32_t)w[c][i].y);
}

#endif
