/* weight_stream.cuh -- the producer warps, which copy weights and task data into shared memory.
 *
 * Which weights a block multiplies, and when, does not depend on data. So WEIGHT_WARP iterates over the products of all
 * layers ahead of the compute warps, and its bulk copies fill a ring of stages. A stage holds a piece: a unit (8 rows
 * of a matrix; in the MLP 4 of gate and the same 4 of up) by `width` columns. This keeps memory busy while the blocks
 * wait for each other's words. TASK_WARP copies the data of the mixer's first tasks to a separate buffer. */
#ifndef HL_WEIGHT_STREAM_CUH
#define HL_WEIGHT_STREAM_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/cache_logits.cuh"

template <class D> static __device__ __forceinline__ int inner_size(const D &a, int kind) {
    return kind == OUT ? a.vv : kind == DOWN ? a.I : a.d;
}
/* Units of 8 rows of a phase's matrix. */
template <class D> static __device__ __forceinline__ int units_of(const D &a, int kind) {
    return kind == IN      ? (a.in_rows + 7) / 8
           : kind == MIXER ? 0
           : kind == MLP   ? a.I / 4
           : kind == HEAD  ? (a.logits || a.host_argmax ? (a.vocab + 7) / 8 : 0)
                           : a.d / 8;
}
template <class D> static __device__ __forceinline__ int phase_kind(const D &a, int phase) {
    return phase == PHASES * a.L ? (int)HEAD : phase % PHASES;
}
/* Units are assigned to blocks round robin, starting at a different block in every phase, so that the extra unit does
 * not always go to the same blocks. */
static __device__ __forceinline__ void first_units(struct block &b, int phase) {
    b.unit_skip = 11 % gridDim.x;
    b.first_unit = (int)((blockIdx.x + (unsigned)b.unit_skip * (unsigned)phase) % gridDim.x);
}
static __device__ __forceinline__ void next_units(struct block &b) {
    b.first_unit += b.unit_skip;
    if (b.first_unit >= (int)gridDim.x) b.first_unit -= gridDim.x;
}

/* A stage is filled in two halves of 4 rows, each with its mbarrier. */
static __device__ __forceinline__ mbarrier_t full(const struct block &b, int half) {
    return mbarrier_at(b.barriers, 3 * b.stage + half);
}
static __device__ __forceinline__ mbarrier_t empty(const struct block &b) {
    return mbarrier_at(b.barriers, 3 * b.stage + 2);
}
template <class D> static __device__ __forceinline__ char *stage_at(const D &a, const struct block &b) {
    return b.shared + a.s.ring + b.stage * 8 * a.stride;
}
template <class D> static __device__ __forceinline__ void next_stage(const D &a, struct block &b) {
    if (++b.stage == a.s.depth) b.stage = 0, b.parity ^= 1;
}
/* The mbarriers of the task data. */
template <class D> static __device__ __forceinline__ mbarrier_t tasks_full(const D &a, const struct block &b) {
    return mbarrier_at(b.barriers, 3 * a.s.depth);
}
template <class D> static __device__ __forceinline__ mbarrier_t tasks_empty(const D &a, const struct block &b) {
    return mbarrier_at(b.barriers, 3 * a.s.depth + 1);
}
/* One thread. */
template <class D> static __device__ __forceinline__ void init_ring(const D &a, const struct block &b) {
    mbarrier_init(tasks_full(a, b), 32);
    mbarrier_init_warps(tasks_empty(a, b), WARPS);
    for (int i = 0; i < a.s.depth; i++) {
        mbarrier_init(mbarrier_at(b.barriers, 3 * i), 1);
        mbarrier_init(mbarrier_at(b.barriers, 3 * i + 1), 1);
        mbarrier_init_warps(mbarrier_at(b.barriers, 3 * i + 2), WARPS);
    }
}

/* A row of the products of IN; with low-rank projections the matrices are not contiguous. */
template <class D>
static __device__ __forceinline__ const void *in_row(const D &a, const struct hl_decode_layer &y, int row) {
    const bf16 *W = (const bf16 *)y.in;
    if constexpr (D::rule != HL_DECODE_DELTA) {
        if (row >= a.b_at) W = (const bf16 *)y.b, row -= a.b_at;
        else if (row >= a.z_at) W = (const bf16 *)y.z, row -= a.z_at;
        else if (row >= a.a_at) W = (const bf16 *)y.low, row -= a.a_at;
    }
    return W + (int64_t)row * a.d;
}
/* This lane's row of a unit. */
template <class D>
static __device__ __forceinline__ const bf16 *weight_row(const D &a, const struct block &b, int kind, int l, int unit) {
    const struct hl_decode_layer &y = layer_of(a, b, kind == HEAD ? 0 : l);
    const int g = b.lane % 8, row = kind == MLP ? unit * 4 + g % 4 : unit * 8 + g;
    if (kind == IN) return (const bf16 *)in_row(a, y, row);
    const void *W = kind == OUT    ? y.o
                    : kind == DOWN ? y.down
                    : kind == HEAD ? (const void *)a.head
                    : g < 4        ? y.gate
                                   : y.up;
    return (const bf16 *)W + (int64_t)row * inner_size(a, kind);
}
/* Prefetches into L2 what the blocks load directly: from memory it would take as long as an exchange. The lines are
 * spread over the blocks. */
static __device__ __forceinline__ void prefetch(const struct block &b, const void *p, int bytes) {
#if !defined(HL_CUDA_EMU)
    for (int at = (blockIdx.x + b.lane * gridDim.x) * 128; at < bytes; at += 32 * gridDim.x * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + at));
#endif
}
template <class D> static __device__ __forceinline__ void prefetch_layer(const D &a, const struct block &b, int l) {
    const struct hl_decode_layer &y = layer_of(a, b, l);
    prefetch(b, y.attn_norm, a.d * 4);
    prefetch(b, y.mlp_norm, a.d * 4);
    if (D::rule != HL_DECODE_ATTENTION) prefetch(b, y.o_norm, (D::rule == HL_DECODE_GSA ? a.d : a.V) * 4);
    if (a.cache && a.rms) prefetch(b, y.q_norm, a.K * 4), prefetch(b, y.k_norm, a.K * 4);
    if (has_low_rank<D>) prefetch(b, y.decay_bias, a.qk * 4);
    if (D::rule == HL_DECODE_KDA) prefetch(b, y.z_bias, a.vv * 4);
    if constexpr (has_conv<D>) {
        for (int i = 0; i < 3; i++) prefetch(b, y.conv[i], (i < 2 ? a.qk : a.vv) * 16);
        for (int m = 0; m < a.M; m++) {
            const char *state = state_of(a, b, l, m);
            prefetch(b, state + a.tail_q, a.qk * 12);
            prefetch(b, state + a.tail_k, a.qk * 12);
            prefetch(b, state + a.tail_v, a.vv * 12);
        }
    }
}
/* TASK_WARP, for layers [from, to). A separate warp, because issuing many small copies is slow. */
template <class D>
static __device__ __forceinline__ void stream_task_data(const D &a, struct block &b, int from, int to) {
#pragma unroll 1
    for (int l = from; l < to; l++) {
        prefetch_layer(a, b, l);
        if (!has_task(a, b)) continue;
        mbarrier_wait(tasks_empty(a, b), b.task_parity ^ 1);
        fetch_first_tasks(a, b, l);
        copy_async_arrive(tasks_full(a, b));
        b.task_parity ^= 1;
    }
}
/* WEIGHT_WARP, for phases [from, to). */
template <class D>
static __device__ __forceinline__ void stream_weights(const D &a, struct block &b, int from, int to) {
    struct block old = b; /* the stage in_flight halves earlier, which limits the copies in flight */
    int halves = 0, old_half = 0;
#pragma unroll 1
    for (int phase = from; phase < to; phase++, next_units(b)) {
        const int kind = phase_kind(a, phase), l = phase / PHASES, K = inner_size(a, kind), units = units_of(a, kind);
        const int rows = kind == IN ? a.in_rows : kind == HEAD ? a.vocab : units * 8;
#pragma unroll 1
        for (int unit = b.first_unit; unit < units; unit += gridDim.x) {
            const bf16 *W = weight_row(a, b, kind, l, unit);
            const int some = min(8, rows - unit * 8);
#pragma unroll 1
            for (int c = 0; c < K; c += a.width) {
                const int bytes = 2 * min(K - c, a.width);
                mbarrier_wait(empty(b), b.parity ^ 1);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (kind != HEAD && halves++ >= a.s.in_flight) {
                        mbarrier_wait(full(old, old_half), old.parity);
                        if (old_half) next_stage(a, old);
                        old_half ^= 1;
                    }
                    const int n = max(0, min(4, some - half * 4));
                    if (b.lane == 0) mbarrier_arrive_expect_tx(full(b, half), n * bytes);
                    __syncwarp();
                    if (b.lane / 4 == half && b.lane < some)
                        bulk_copy(stage_at(a, b) + b.lane * a.stride, W + c, bytes, full(b, half));
                }
                next_stage(a, b);
            }
        }
    }
}

#endif
