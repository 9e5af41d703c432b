/* weight_stream.cuh -- the weights on their way into shared memory.
 *
 * Which weights a block multiplies, and when, does not depend on the data: one warp walks through the products
 * of all layers ahead of the others and has the copy engine bring them into a ring. A piece is 8 rows of a
 * matrix, or of the MLP 4 of gate and the same 4 of up, by as many columns as a place of the ring holds. So
 * memory stays busy while the blocks wait for each other's results. What the memories' tasks need is brought by another
 * warp, to a place of its own. */
#ifndef HL_DECODE_STREAM_CUH
#define HL_DECODE_STREAM_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/cache_logits.cuh"

template <class D> static __device__ __forceinline__ int inner(const D &a, int kind) {
    return kind == OUT ? a.vv : kind == DOWN ? a.I : a.d;
}
/* groups of 8 rows */
template <class D> static __device__ __forceinline__ int units_of(const D &a, int kind) {
    return kind == IN         ? (a.in_rows + 7) / 8
           : kind == MEMORIES ? 0
           : kind == MLP      ? a.I / 4
           : kind == HEAD     ? (a.logits || a.verdict ? (a.vocab + 7) / 8 : 0)
                              : a.d / 8;
}
template <class D> static __device__ __forceinline__ int kind_of(const D &a, int phase) {
    return phase == PHASES * a.L ? (int)HEAD : phase % PHASES;
}
/* The groups go round the blocks, from another one in every phase: who has one more is not always the same. */
static __device__ __forceinline__ void open_groups(struct block &b, int phase) {
    b.skip = 11 % gridDim.x;
    b.first = (int)((blockIdx.x + (unsigned)b.skip * (unsigned)phase) % gridDim.x);
}
static __device__ __forceinline__ void next_groups(struct block &b) {
    b.first += b.skip;
    if (b.first >= (int)gridDim.x) b.first -= gridDim.x;
}

/* A place comes in two halves of 4 rows. */
static __device__ __forceinline__ mbarrier_t full(const struct block &b, int half) {
    return mbarrier_at(b.barriers, 3 * b.place + half);
}
static __device__ __forceinline__ mbarrier_t empty(const struct block &b) {
    return mbarrier_at(b.barriers, 3 * b.place + 2);
}
template <class D> static __device__ __forceinline__ char *place_at(const D &a, const struct block &b) {
    return b.shared + a.s.ring + b.place * 8 * a.apart;
}
template <class D> static __device__ __forceinline__ void next_place(const D &a, struct block &b) {
    if (++b.place == a.s.depth) b.place = 0, b.lap ^= 1;
}
/* The place for tasks of the memories. */
template <class D>
static __device__ __forceinline__ mbarrier_t tasks_full(const D &a, const struct block &b) {
    return mbarrier_at(b.barriers, 3 * a.s.depth);
}
template <class D>
static __device__ __forceinline__ mbarrier_t tasks_empty(const D &a, const struct block &b) {
    return mbarrier_at(b.barriers, 3 * a.s.depth + 1);
}
/* One thread. */
template <class D> static __device__ __forceinline__ void open_ring(const D &a, const struct block &b) {
    mbarrier_init(tasks_full(a, b), 32);
    mbarrier_init_warps(tasks_empty(a, b), WARPS);
    for (int i = 0; i < a.s.depth; i++) {
        mbarrier_init(mbarrier_at(b.barriers, 3 * i), 1);
        mbarrier_init(mbarrier_at(b.barriers, 3 * i + 1), 1);
        mbarrier_init_warps(mbarrier_at(b.barriers, 3 * i + 2), WARPS);
    }
}

/* This lane's row of weights of a group. */
template <class D>
static __device__ __forceinline__ const bf16 *row_of(const D &a, const struct block &b, int kind, int l,
                                                     int unit) {
    const struct hl_decode_layer &y = layer_of(a, b, kind == HEAD ? 0 : l);
    const int g = b.lane % 8, row = kind == MLP ? unit * 4 + g % 4 : unit * 8 + g;
    const void *W = kind == IN     ? y.in
                    : kind == OUT  ? y.o
                    : kind == DOWN ? y.down
                    : kind == HEAD ? (const void *)a.head
                    : g < 4        ? y.gate
                                   : y.up;
    return (const bf16 *)W + (int64_t)row * inner(a, kind);
}
/* Small things that the blocks load themselves, into the chip's cache ahead of that: from memory they would take as
 * long as an exchange does. The lines go round the blocks. */
static __device__ __forceinline__ void warm(const struct block &b, const void *p, int bytes) {
#if !defined(HL_CUDA_EMU)
    for (int at = (blockIdx.x + b.lane * gridDim.x) * 128; at < bytes; at += 32 * gridDim.x * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + at));
#endif
}
template <class D>
static __device__ __forceinline__ void warm_layer(const D &a, const struct block &b, int l) {
    const struct hl_decode_layer &y = layer_of(a, b, l);
    warm(b, y.attn_norm, a.d * 4);
    warm(b, y.mlp_norm, a.d * 4);
    warm(b, y.o_norm, a.V * 4);
    if (a.cache && a.rms) warm(b, y.q_norm, a.K * 4), warm(b, y.k_norm, a.K * 4);
    for (int i = 0; i < 3; i++) warm(b, y.conv[i], (i < 2 ? a.qk : a.vv) * 16);
    for (int m = 0; m < a.M; m++) {
        const char *state = state_of(a, b, l, m);
        warm(b, state + a.tail_q, a.qk * 12);
        warm(b, state + a.tail_k, a.qk * 12);
        warm(b, state + a.tail_v, a.vv * 12);
    }
}
/* The warp that brings what the memories' tasks of layers [from, to) need: beside the weights' warp, since to ask for
 * many small pieces takes long. */
template <class D>
static __device__ __forceinline__ void stream_tasks(const D &a, struct block &b, int from, int to) {
#pragma unroll 1
    for (int l = from; l < to; l++) {
        warm_layer(a, b, l);
        if (!has_task(a, b)) continue;
        mbarrier_wait(tasks_empty(a, b), b.tasks ^ 1);
        fetch_ahead(a, b, l);
        copy_async_arrive(tasks_full(a, b));
        b.tasks ^= 1;
    }
}
/* The warp that brings the weights of phases [from, to). */
template <class D>
static __device__ __forceinline__ void stream(const D &a, struct block &b, int from, int to) {
    struct block old = b; /* `flight` halves before: no more are on their way at once */
    int halves = 0, old_half = 0;
#pragma unroll 1
    for (int phase = from; phase < to; phase++, next_groups(b)) {
        const int kind = kind_of(a, phase), l = phase / PHASES, K = inner(a, kind), units = units_of(a, kind);
        const int rows = kind == IN ? a.in_rows : kind == HEAD ? a.vocab : units * 8;
#pragma unroll 1
        for (int unit = b.first; unit < units; unit += gridDim.x) {
            const bf16 *W = row_of(a, b, kind, l, unit);
            const int some = min(8, rows - unit * 8);
#pragma unroll 1
            for (int c = 0; c < K; c += a.width) {
                const int bytes = 2 * min(K - c, a.width);
                mbarrier_wait(empty(b), b.lap ^ 1);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (kind != HEAD && halves++ >= a.s.flight) {
                        mbarrier_wait(full(old, old_half), old.lap);
                        if (old_half) next_place(a, old);
                        old_half ^= 1;
                    }
                    const int n = max(0, min(4, some - half * 4));
                    if (b.lane == 0) mbarrier_arrive_expect_tx(full(b, half), n * bytes);
                    __syncwarp();
                    if (b.lane / 4 == half && b.lane < some)
                        bulk_copy(place_at(a, b) + b.lane * a.apart, W + c, bytes, full(b, half));
                }
                next_place(a, b);
            }
        }
    }
}

#endif
