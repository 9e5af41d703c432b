/* mixer.cuh -- the mixer of a decoding step: the tasks of a block, in two parts (decode_one.h: MIXER). */
#ifndef HL_DECODE_MIXER_CUH
#define HL_DECODE_MIXER_CUH
#include "ops/cuda_ops.cuh"
#include "fused/decode_one/slots.cuh"

/* Copies the data of a task after the first, which TASK_WARP did not prefetch. */
template <int part, class D>
static __device__ __forceinline__ void fetch_task(const D &a, const struct block &b, int l, const struct task &p) {
    sync_block();                                         /* the previous task is done with its data */
    if constexpr (D::rule == HL_DECODE_ATTENTION) return; /* read as they come */
    if (part) fetch_tile(a, b, l, p, threadIdx.x, THREADS);
    else fetch_keys(a, b, l, p, threadIdx.x, THREADS);
    copy_commit();
    copy_wait<0>();
    sync_block();
}
/* The mixer of a layer: all logits, then all tiles. The emulator runs the two parts as two launches. */
template <class D>
static __device__ __forceinline__ void mixer(const D &a, struct block &b, int l, bool first, bool second) {
    const bool fetched = has_task(a, b);
    const int logits_tasks = first ? a.M * a.HV * a.slot_tasks : 0, tiles = second ? a.M * a.HV * a.tiles : 0;
    bool have = false; /* q and k of the tile's head have arrived, with the logits */
    struct qk_pair mine = {};
    if (fetched) mbarrier_wait(tasks_full(a, b), b.task_parity);
#pragma unroll 1
    for (int t = blockIdx.x; t < logits_tasks; t += gridDim.x) {
        const struct task p = t == (int)blockIdx.x ? b.logits_task : task_at(a, t, a.slot_tasks);
        if (!D::one_task && t >= (int)gridDim.x) fetch_task<0>(a, b, l, p);
        if constexpr (D::rule == HL_DECODE_ATTENTION) attention_split(a, b, l, p);
        else if constexpr (D::rule == HL_DECODE_GSA) slot_logits(a, b, l, p);
        else {
            mine = cache_logits(a, b, l, p);
            have = D::one_task && p.h == b.tile_task.h;
        }
        if (D::one_task) break;
    }
#pragma unroll 1
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const struct task p = t == (int)blockIdx.x ? b.tile_task : task_at(a, t, a.tiles);
        if (!D::one_task && t >= (int)gridDim.x) fetch_task<1>(a, b, l, p);
        if constexpr (D::rule == HL_DECODE_ATTENTION) attention_combine(a, b, l, p);
        else if constexpr (D::rule == HL_DECODE_GSA) slot_tile(a, b, l, p);
        else {
            if (!have) mine = wait_for_qk(a, b, l, p);
            mixer_tile(a, b, l, p, mine);
        }
        if (D::one_task) break;
    }
    if (!fetched) return;
    mbarrier_arrive_warp(tasks_empty(a, b), b.lane);
    b.task_parity ^= 1;
}

#endif
