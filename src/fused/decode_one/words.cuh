/* words.cuh -- the words that blocks exchange in the decoding kernel: epoch << 32 | value, published by one thread and
 * polled by others until the expected epoch appears. Value and epoch are one 8-byte word, so no memory ordering or flag
 * reset is needed. */
#ifndef HL_WORDS_CUH
#define HL_WORDS_CUH
#include "ops/cuda_ops.cuh"

static __device__ __forceinline__ void publish(uint64_t *p, uint32_t value, uint32_t epoch) {
    const uint64_t word = (uint64_t)epoch << 32 | value;
#ifdef HL_CUDA_EMU
    *p = word;
#else
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
#endif
}
static __device__ __forceinline__ uint64_t poll(const uint64_t *p) {
#ifdef HL_CUDA_EMU
    return *p;
#else
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    return word;
#endif
}
struct word_pair {
    uint64_t x, y;
};
static __device__ __forceinline__ struct word_pair poll_pair(const uint64_t *p) {
    struct word_pair w;
#ifdef HL_CUDA_EMU
    w.x = p[0], w.y = p[1];
#else
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(w.x), "=l"(w.y) : "l"(p) : "memory");
#endif
    return w;
}
static __device__ __forceinline__ bool is_current(uint64_t word, uint32_t epoch) {
    return (uint32_t)(word >> 32) == epoch;
}
static __device__ __forceinline__ bool is_current(const struct word_pair &w, uint32_t epoch) {
    return is_current(w.x, epoch) && is_current(w.y, epoch);
}
/* The emulator runs blocks sequentially, so a word is either present or never will be. */
static __device__ __forceinline__ void spin() {
#ifdef HL_CUDA_EMU
    fprintf(stderr, "decode: a word was never written\n"), abort();
#endif
}
/* Polling loops end for all lanes of a warp together: lanes leaving one by one would have to reconverge at every later
 * shuffle. */
static __device__ __forceinline__ bool warp_all(bool x) { return __all_sync(0xffffffffu, x); }
static __device__ __forceinline__ uint32_t wait_for_one(const uint64_t *p, uint32_t epoch) {
    uint64_t w = poll(p);
    while (!is_current(w, epoch)) {
        spin();
        w = poll(p);
    }
    return (uint32_t)w;
}

/* The value of a word is a uint32_t, that of a pair of adjacent words a uint2. */
template <class V> struct word_type { typedef uint64_t type; };
template <> struct word_type<uint2> { typedef struct word_pair type; };
static __device__ __forceinline__ void poll_into(uint64_t &w, const uint64_t *p) { w = poll(p); }
static __device__ __forceinline__ void poll_into(struct word_pair &w, const uint64_t *p) { w = poll_pair(p); }
static __device__ __forceinline__ void set_word(uint64_t &w, uint64_t word) { w = word; }
static __device__ __forceinline__ void set_word(struct word_pair &w, uint64_t word) { w.x = w.y = word; }
static __device__ __forceinline__ uint32_t value_of(uint64_t w) { return (uint32_t)w; }
static __device__ __forceinline__ uint2 value_of(const struct word_pair &w) {
    return make_uint2((uint32_t)w.x, (uint32_t)w.y);
}
/* Waits for the first n of N words or pairs, `stride` apart. All are loaded before any is tested. All lanes. (Merging
 * these into one template changed the code of the kernel for several rows.) */
template <int N>
static __device__ __forceinline__ void wait_for_all(uint32_t (&v)[N], const uint64_t *p, int stride, int n,
                                                    uint32_t epoch) {
    for (;;) {
        uint64_t w[N];
        bool current = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i] = (uint64_t)epoch << 32;
            if (i < n) w[i] = poll(p + i * stride);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = (uint32_t)w[i];
            current = current && is_current(w[i], epoch);
        }
        if (warp_all(current)) return;
        spin();
    }
}
template <int N>
static __device__ __forceinline__ void wait_for_all(uint2 (&v)[N], const uint64_t *p, int stride, int n,
                                                    uint32_t epoch) {
    for (;;) {
        struct word_pair w[N];
        bool current = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i].x = w[i].y = (uint64_t)epoch << 32;
            if (i < n) w[i] = poll_pair(p + i * stride);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = make_uint2((uint32_t)w[i].x, (uint32_t)w[i].y);
            current = current && is_current(w[i].x, epoch) && is_current(w[i].y, epoch);
        }
        if (warp_all(current)) return;
        spin();
    }
}
/* The same for C pieces, `apart` apart, the first n[c] of piece c; but words that have arrived are not polled again:
 * less polling traffic to delay the missing words, but longer rounds. Which is faster depends on the model (preset's
 * POLL_MISSING). Not one function with a condition: how the compiler schedules the loops matters more than either
 * choice, 3 to 10 % of a token. */
template <int C, int N, class V>
static __device__ __forceinline__ void wait_for_missing(V (&v)[C][N], const uint64_t *p, int apart, int stride,
                                                        const int (&n)[C], uint32_t epoch) {
    typename word_type<V>::type w[C][N];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) set_word(w[c][i], i < n[c] ? 0 : (uint64_t)epoch << 32);
    for (;;) {
        bool current = true;
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (!is_current(w[c][i], epoch)) poll_into(w[c][i], p + c * apart + i * stride);
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < N; i++) current = current && is_current(w[c][i], epoch);
        if (warp_all(current)) break;
        spin();
    }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < N; i++) v[c][i] = value_of(w[c][i]);
}
/* The variant chosen by the model D. */
template <class D, int N, class V>
static __device__ __forceinline__ void wait_for(V (&v)[N], const uint64_t *p, int stride, int n, uint32_t epoch) {
    if constexpr (D::poll_missing) {
        V w[1][N];
        const int m[1] = {n};
        wait_for_missing(w, p, 0, stride, m, epoch);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = w[0][i];
    } else wait_for_all(v, p, stride, n, epoch);
}

#endif
