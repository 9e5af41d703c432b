/* decode_one_cuda.cuh -- what the parts of the decoding kernel share: arguments, words handed from block to
 * block, tasks.
 *
 * One thread block per multiprocessor runs through all layers. What takes time is the chain of results that
 * the blocks need of each other, six exchanges a layer, so what stands between two of them must be little:
 * weights, which do not depend on the data, are in shared memory before they are needed (decode_stream.cuh);
 * results come as words with a number in them (decode.h), and the reader looks until the number is right; a
 * warp looks for no more than the columns that it multiplies. */
#ifndef HL_DECODE_CUDA_CUH
#define HL_DECODE_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/topk/topk_order.cuh"
extern "C" {
#include "cuda/device.h"
#include "fused/decode_one/decode_one.h"
}

enum {
    WARPS = HL_DECODE_WARPS,
    THREADS = WARPS * 32, /* that compute */
    COLS = HL_DECODE_COLS,
    LAPS = HL_DECODE_LAPS,
    ROWS = HL_DECODE_ONE_ROWS,
    COUNTER = 16, /* words before the rows' */
    BEST = 4,     /* of these */
    NEXT = 8
};
/* The phases of a layer: products, and the two memories between the first two; behind the layers the head. */
enum kind { IN, MEMORIES, OUT, MLP, DOWN, PHASES, HEAD = PHASES };

/* Sizes and kinds of a model: numbers that come with the arguments, or constants, which make less code and leave
 * no register spilled: where shared memory leaves the first-level cache no room, a spilled number comes from the
 * second. rows: of the state, a warp's share; width, apart, part: hl_decode_shared's chunk, stride, each; a_at to
 * in_rows: rows of all matrices of IN together: q, k, v, a, b, z; whole: a warp's columns of the heads' outputs are
 * of one head; each: slots of the cache that a lane reads, of all warps but one, an even number */
struct any_sizes {
    int d, I, H, HV, K, V, qk, vv, a_at, b_at, z_at, in_rows, tiles, group, rows, width, apart, part;
    bool gated, decay, beta, cache, rms, whole;
    float one_d, one_K, one_V; /* 1 / d */
    static constexpr int chunks = HL_DECODE_CHUNKS, each = 20;
    static constexpr bool once = false, sparing = false;
    static constexpr int in_groups = 0, mlp_groups = 0, out_groups = 0; /* of a block; 0: any number */
};
struct any_one : any_sizes {
    static constexpr int M = 1, most = 1; /* rows, and how many there is room for */
};
struct any_some : any_sizes {
    static constexpr int most = ROWS;
    int M;
};
/* one row, the exact memory; ONCE: on a chip of SMS multiprocessors or more, where a block has one task of the
 * memories at most and is known to have few groups of a product: without code for more, what a layer runs through is
 * shorter by a fifth. SPARING: decode_sparing.cuh. */
enum { SMS = 132 };
template <int D, int INNER, int HEAD_SIZE, bool GATE, bool ONCE, bool SPARING> struct preset {
    static constexpr int M = 1, most = 1, d = D, I = INNER, H = D / HEAD_SIZE, HV = H, K = HEAD_SIZE, V = K;
    static constexpr int qk = D, vv = D, a_at = 3 * D, b_at = a_at + HV, z_at = b_at + HV,
                         in_rows = z_at + GATE * vv;
    static constexpr int tiles = V / COLS, group = 1, rows = K / WARPS;
    static constexpr int width = D, apart = 2 * D + 64, part = D / 32 / WARPS, chunks = (I + D - 1) / D,
                         each = 12;
    static constexpr bool gated = GATE, decay = true, beta = true, cache = true, rms = true, whole = true;
    static constexpr bool once = ONCE, sparing = SPARING;
    static constexpr int in_groups = ONCE * ((in_rows + 8 * SMS - 1) / (8 * SMS)),
                         mlp_groups = ONCE * ((2 * I + 8 * SMS - 1) / (8 * SMS)),
                         out_groups = ONCE * ((D + 8 * SMS - 1) / (8 * SMS)); /* of DOWN, too */
    static_assert(HV * tiles <= SMS || !ONCE, "once");
    static_assert(V % (32 * part) == 0, "whole");
    static constexpr float one_d = 1.0f / D, one_K = 1.0f / K, one_V = 1.0f / V;
};
struct arguments {
    int L, vocab, window, chunk, slots, even_slots, share, shares;
    struct hl_policy policy;
    float top, eps;
    int64_t S, tail_q, tail_k, tail_v, cache_at, layer_bytes;
    struct hl_cache_layout at;
    int w_in, w_ab, w_z, w_o, w_h, w_x, w_act, row; /* hl_decode_words */
    int64_t scores;
    struct hl_decode_shared s;
    struct hl_seg seg[ROWS];
    int32_t ids[ROWS];
    const struct hl_decode_layer *layer;
    const bf16 *embed, *head;
    const float *final_norm;
    float *logits;
    uint32_t tag;      /* the last bit of every logit */
    uint64_t *best;    /* [ROWS]: of the largest logits of all blocks, 0 before and after a token */
    uint64_t *verdict; /* or NULL: [ROWS], on the host, the largest ones themselves */
    uint64_t *words;
    struct hl_prelaunch_slot mail;
};
template <class sizes> struct decode : sizes, arguments {};

/* Which row, value head and part of it a task is. */
struct task {
    int m, h, part;
};

/* What a warp knows of its block. */
struct block {
    char *shared;
    int warp, lane;
    uint32_t number;        /* of layer 0's words */
    uint64_t passes;        /* tokens before this one */
    uint64_t *now, *before; /* words of row 0, of this layer and of the last */
    struct task look, tile; /* its first tasks */
    int first, skip;        /* its first group of the phase; how far that moves from phase to phase */
    int place;              /* the ring: where it stands */
    uint32_t lap;           /* ... its parity */
    uint32_t tasks;         /* the same for the place of the memories' tasks */
    mbarrier_t barriers;    /* ... a place is full, is empty */
    int turn, norm;         /* which half of the sums and of the squares is in use */
    uint64_t best;          /* of this lane's logits, as top_order.cuh has them */
};

/* All threads that compute. */
static __device__ __forceinline__ void sync_block() { named_barrier_sync<1, THREADS>(); }
/* Between phases: what a phase writes to shared memory waits for words that other blocks give once they have this
 * one's, and those are given when the last phase's numbers are no longer in use. racecheck does not follow an order
 * through memory, so for it there is a barrier as well. */
static __device__ __forceinline__ void next_phase() {
#ifdef HL_RACECHECK
    sync_block();
#endif
}

template <class D>
static __device__ __forceinline__ const struct hl_decode_layer &layer_of(const D &a, const struct block &b,
                                                                         int l) {
    return ((const struct hl_decode_layer *)(b.shared + a.s.layers))[l];
}
template <class D>
static __device__ __forceinline__ const struct hl_seg &seg_of(const D &a, const struct block &b, int m) {
    return ((const struct hl_seg *)(b.shared + a.s.seg))[m];
}
template <class D>
static __device__ __forceinline__ char *state_of(const D &a, const struct block &b, int l, int m) {
    return seg_of(a, b, m).state + l * a.layer_bytes;
}
/* a number of a value head of a layer */
enum scalar { DECAY, BIAS, SCALE, SINK, LAMBDA, SCALARS };
template <class D>
static __device__ __forceinline__ float *scalars_of(const D &a, const struct block &b, int l, int h) {
    return (float *)(b.shared + a.s.scalars) + (l * a.HV + h) * SCALARS;
}

/* ---- words ---- */

template <class D> static __device__ __forceinline__ uint64_t *words_of(const D &a, int l) {
    return a.words + COUNTER + (int64_t)(l % LAPS) * ROWS * a.row;
}
static __device__ __forceinline__ void give(uint64_t *p, uint32_t value, uint32_t number) {
    const uint64_t word = (uint64_t)number << 32 | value;
#ifdef HL_CUDA_EMU
    *p = word;
#else
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
#endif
}
static __device__ __forceinline__ uint64_t look(const uint64_t *p) {
#ifdef HL_CUDA_EMU
    return *p;
#else
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    return word;
#endif
}
struct two {
    uint64_t x, y;
};
static __device__ __forceinline__ struct two look_two(const uint64_t *p) {
    struct two w;
#ifdef HL_CUDA_EMU
    w.x = p[0], w.y = p[1];
#else
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(w.x), "=l"(w.y) : "l"(p) : "memory");
#endif
    return w;
}
static __device__ __forceinline__ bool fresh(uint64_t word, uint32_t number) {
    return (uint32_t)(word >> 32) == number;
}
static __device__ __forceinline__ void look_again() {
#ifdef HL_CUDA_EMU
    fprintf(stderr, "decode: a word was never written\n"), abort();
#endif
}
/* Whether it is so for all lanes. They look again together: lanes that went on alone would have to be brought
 * together at every exchange between them that follows. */
static __device__ __forceinline__ bool all_lanes(bool x) { return __all_sync(0xffffffffu, x); }
/* Waits for the first n of N words, or of N pairs of neighbouring ones, each `stride` after the last. All are
 * asked for before any is looked at. All lanes. */
template <int N>
static __device__ __forceinline__ void take(uint32_t (&v)[N], const uint64_t *p, int stride, int n,
                                            uint32_t number) {
    for (;;) {
        uint64_t w[N];
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i] = (uint64_t)number << 32;
            if (i < n) w[i] = look(p + i * stride);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = (uint32_t)w[i];
            there = there && fresh(w[i], number);
        }
        if (all_lanes(there)) return;
        look_again();
    }
}
template <int N>
static __device__ __forceinline__ void take_pairs(uint2 (&v)[N], const uint64_t *p, int stride, int n,
                                                  uint32_t number) {
    for (;;) {
        struct two w[N];
        bool there = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i].x = w[i].y = (uint64_t)number << 32;
            if (i < n) w[i] = look_two(p + i * stride);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = make_uint2((uint32_t)w[i].x, (uint32_t)w[i].y);
            there = there && fresh(w[i].x, number) && fresh(w[i].y, number);
        }
        if (all_lanes(there)) return;
        look_again();
    }
}
static __device__ __forceinline__ uint32_t take_one(const uint64_t *p, uint32_t number) {
    uint64_t w = look(p);
    while (!fresh(w, number)) {
        look_again();
        w = look(p);
    }
    return (uint32_t)w;
}
static __device__ __forceinline__ float square(uint32_t v) { return low(v) * low(v) + high(v) * high(v); }
/* Without care for numbers that an epsilon keeps away. */
static __device__ __forceinline__ float fast_rsqrt(float x) {
#ifdef HL_CUDA_EMU
    return rsqrtf(x);
#else
    asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#endif
}
/* A division is a dozen instructions more than this. */
static __device__ __forceinline__ float fast_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
/* Where a row's word lies in x, h, o and act: those that one lane multiplies are neighbours. */
static __device__ __forceinline__ int swapped(int word) {
    return (word & ~3) | (word & 1) << 1 | (word >> 1 & 1);
}

#endif
