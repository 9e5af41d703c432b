/* head_schedule.cuh -- how work is divided among blocks: the heads of all sessions in the mixer kernel, and weights to
 * prefetch. */
#ifndef HL_HEAD_SCHEDULE_CUH
#define HL_HEAD_SCHEDULE_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"

/* Heads are assigned to blocks in serpentine order (0..n-1, then n-1..0, ...). They are sorted, longest
 * first, so this balances the blocks. A block takes its longest head last. */
struct head_schedule {
    int block, blocks, heads;
    __device__ __forceinline__ int count() const { /* heads of this block */
        const int each = heads / blocks;
        return each + ((each % 2 ? blocks - 1 - block : block) < heads % blocks);
    }
    __device__ __forceinline__ int head(int n) const { /* head number n of the block, as session * HV + h */
        const int turn = count() - 1 - n;
        return turn * blocks + (turn % 2 ? blocks - 1 - block : block);
    }
};

/* Weights of a later kernel that will start too late to load them in time: each block prefetches a share into L2. */
struct weight_prefetch {
    const void *at;
    int64_t bytes;                                  /* 0: none */
    __device__ __forceinline__ void issue() const { /* one thread */
        const int64_t each = (bytes + gridDim.x * 16 - 1) / (gridDim.x * 16) * 16, from = each * blockIdx.x;
        if (from < bytes) prefetch_l2((const char *)at + from, (int)(each < bytes - from ? each : bytes - from));
    }
};

#endif
