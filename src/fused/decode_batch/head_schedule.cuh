/* head_schedule.cuh -- what a block has a share of: heads of all sessions, in the memories' kernel, and weights to ask for. */
#ifndef HL_DECODE_BATCH_DEAL_CUH
#define HL_DECODE_BATCH_DEAL_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"

/* Heads are dealt out to and fro, so that no block has more than others where those that take long are first; a block
 * ends with what it was dealt first. */
struct deal {
    int block, blocks, heads;
    __device__ __forceinline__ int own() const {
        const int each = heads / blocks;
        return each + ((each % 2 ? blocks - 1 - block : block) < heads % blocks);
    }
    __device__ __forceinline__ int head(int n) const { /* session HV + h */
        const int turn = own() - 1 - n;
        return turn * blocks + (turn % 2 ? blocks - 1 - block : block);
    }
};

/* Weights of a kernel that will start too late to have them in time; each block asks for a share of them. */
struct weights {
    const void *at;
    int64_t bytes;                                /* 0: none */
    __device__ __forceinline__ void ask() const { /* a thread */
        const int64_t each = (bytes + gridDim.x * 16 - 1) / (gridDim.x * 16) * 16, from = each * blockIdx.x;
        if (from < bytes)
            prefetch_l2((const char *)at + from, (int)(each < bytes - from ? each : bytes - from));
    }
};

#endif
