/* cache_back_cuda.cuh -- shared by the files of the backward pass: scratch memory and the tiles of ds. */
#ifndef HL_CACHE_BACK_CUDA_CUH
#define HL_CACHE_BACK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"

struct cache_back {
    float *R;         /* [T][HV]: lambda dout.read */
    float *gate_sink; /* [n_gate_sink][HV][2]: summands of dgate and dsink */
    float *tau;       /* [n_tau][HV]: of dtau */
    float *kept;      /* [blocks][HV][window][K + V]: gradients of kept rows, block by block */
    float *own;       /* row by row: [T][HV][K + V], gradients of a block's own rows */
    float *bias;      /* HL_SCORE_LEARNED: [blocks][HV][window], sums of ds over a block's queries */
    void *ds;         /* back_kv, for back_q: [blocks][HV][ds_tiles][64 keys][64 queries] */
    int64_t n_gate_sink, n_tau;
};
/* on tensor cores, three kernels: R and the sums of dgate, dsink; dk, dv, kept and ds; dq from ds */
void HL_OP(cache_back_rowdot)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
void HL_OP(cache_back_kv)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
void HL_OP(cache_back_q)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
bool HL_OP(cache_back_fits)(struct hl_cuda *cuda, const struct hl_cache *a); /* whether they fit this device's shared
                                                                              * memory */
/* the same in one kernel, which writes `kept` and needs neither R nor ds */
void HL_OP(cache_back_block)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
bool HL_OP(cache_back_block_fits)(struct hl_cuda *cuda, const struct hl_cache *a);
enum { BLOCK_WARPS = 8 }; /* each warp writes a summand of a block's scalars */
/* the same for heads of 256: the number of summands per block; 0: this shape or device is not supported */
void HL_OP(cache_back_block256)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
int64_t HL_OP(cache_back_block256_shares)(struct hl_cuda *cuda, const struct hl_cache *a);

enum { TILE = 64 }; /* keys and queries of a tile of the backward pass */
static inline __host__ __device__ int tiles_of(int64_t n) { return (int)((n + TILE - 1) / TILE); }
/* tiles of ds of one block: kept keys with all queries, own keys with the queries of their tile and later ones */
static inline int64_t ds_tiles(const struct hl_cache *a) {
    const int64_t kepts = tiles_of(a->window), owns = tiles_of(a->chunk);
    return kepts * owns + owns * (owns + 1) / 2;
}

#endif
