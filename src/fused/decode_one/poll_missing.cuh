/* poll_missing.cuh -- waiting for words without asking again for those that have come: the words that are still to
 * come pass fewer who ask, but a round takes longer. What is better depends on the model: preset's SPARING. The plain
 * ways are beside it, not one function with a condition: what the compiler makes of the loops is worth more than either
 * (3 to 10 % of a token). */
#ifndef HL_DECODE_SPARING_CUH
#define HL_DECODE_SPARING_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/decode_one_cuda.cuh"

static __device__ __forceinline__ bool fresh(const struct two &w, uint32_t number) {
    return fresh(w.x, number) && fresh(w.y, number);
}
template <int N>
static __device__ __forceinline__ void take_missing(uint32_t (&v)[N], const uint64_t *p, int stride, int n,
                                                    uint32_t number) {
    uint64_t w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = i < n ? 0 : (uint64_t)number << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!fresh(w[i], number)) w[i] = look(p + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++) there = there && fresh(w[i], number);
        if (all_lanes(there)) break;
        look_again();
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = (uint32_t)w[i];
}
template <int N>
static __device__ __forceinline__ void take_missing(uint2 (&v)[N], const uint64_t *p, int stride, int n,
                                                    uint32_t number) {
    struct two w[N];
#pragma unroll
    for (int i = 0; i < N; i++) w[i].x = w[i].y = i < n ? 0 : (uint64_t)number << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!fresh(w[i], number)) w[i] = look_two(p + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++) there = there && fresh(w[i], number);
        if (all_lanes(there)) break;
        look_again();
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = make_uint2((uint32_t)w[i].x, (uint32_t)w[i].y);
}
/* Pairs of C chunks, each with its own n. */
template <int C, int N>
static __device__ __forceinline__ void take_missing(uint2 (&v)[C][N], const uint64_t *p, int apart,
                                                    int stride, const int (&n)[C], uint32_t number) {
    struct two w[C][N];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) w[c][i].x = w[c][i].y = i < n[c] ? 0 : (uint64_t)number << 32;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (!fresh(w[c][i], number)) w[c][i] = look_two(p + c * apart + i * stride);
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++) there = there && fresh(w[c][i], number);
        if (all_lanes(there)) break;
        look_again();
    }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) v[c][i] = make_uint2((uint32_t)w[c][i].x, (uint32_t)w[c][i].y);
}

#endif
