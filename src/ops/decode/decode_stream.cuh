/* decode_stream.cuh -- the weights on their way into shared memory.
 *
 * Which weights a block multiplies, and when, does not depend on the data: one warp walks through the products
 * of all layers ahead of the others and has the copy engine bring them into a ring. A piece is 8 rows of a
 * matrix, or of the MLP 4 of gate and the same 4 of up, by as many columns as a place of the ring holds. So
 * memory stays busy while the blocks wait for each other's results. */
#ifndef HL_DECODE_STREAM_CUH
#define HL_DECODE_STREAM_CUH
#include "ops/decode/decode_cuda.cuh"

template <class D> static __device__ __forceinline__ int inner(const D &a, int kind) {
    return kind == OUT ? a.vv : kind == DOWN ? a.I : a.d;
}
/* groups of 8 rows */
template <class D> static __device__ __forceinline__ int units_of(const D &a, int kind) {
    return kind == IN         ? (a.in_rows + 7) / 8
           : kind == MEMORIES ? 0
           : kind == MLP      ? a.I / 4
           : kind == HEAD     ? (a.logits ? (a.vocab + 7) / 8 : 0)
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

static __device__ __forceinline__ barrier_at full(const struct block &b) {
    return barrier_number(b.barriers, 2 * b.place);
}
static __device__ __forceinline__ barrier_at empty(const struct block &b) {
    return barrier_number(b.barriers, 2 * b.place + 1);
}
template <class D> static __device__ __forceinline__ char *place_at(const D &a, const struct block &b) {
    return b.shared + a.s.ring + b.place * 8 * a.apart;
}
template <class D> static __device__ __forceinline__ void next_place(const D &a, struct block &b) {
    if (++b.place == a.s.depth) b.place = 0, b.lap ^= 1;
}
/* One thread. */
template <class D> static __device__ __forceinline__ void open_ring(const D &a, const struct block &b) {
    for (int i = 0; i < a.s.depth; i++) {
        barrier_open(barrier_number(b.barriers, 2 * i), 1);
        barrier_open(barrier_number(b.barriers, 2 * i + 1), WARPS);
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
/* The warp that brings the weights of phases [from, to). */
template <class D>
static __device__ __forceinline__ void stream(const D &a, struct block &b, int from, int to) {
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
                barrier_wait(empty(b), b.lap ^ 1);
                if (b.lane == 0) barrier_expect(full(b), some * bytes);
                __syncwarp();
                if (b.lane < some) copy_bulk(place_at(a, b) + b.lane * a.apart, W + c, bytes, full(b));
                next_place(a, b);
            }
        }
    }
}

#endif
