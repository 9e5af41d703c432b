/* cache_back_cuda.cuh -- what the files of the backward pass share: its scratch, and how ds is cut into
 * tiles. */
#ifndef HL_CACHE_BACK_CUDA_CUH
#define HL_CACHE_BACK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/cache/cache_cuda.cuh"

struct cache_back {
    float *R;    /* [T][HV]: lambda dout.read */
    float *part; /* [parts][HV][2]: shares of dgate and dsink */
    float *tau;  /* [taus][HV]: of dtau */
    float *kept; /* [blocks][HV][window][K + V]: gradients of kept rows, block by block */
    float *own;  /* [T][HV][K + V]: those of a block's own rows; tiles put them into dk and dv instead */
    void *ds;    /* tiles: [blocks][HV][ds_tiles][64 keys][64 queries] */
    int64_t parts, taus;
};
/* on tensor cores: R and its sums; dk and dv, leaving kept and ds; dq from ds */
void HL_OP(cache_back_along)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
void HL_OP(cache_back_kv)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
bool HL_OP(cache_back_fits)(struct hl_cuda *cuda, const struct hl_cache *a); /* in this device's shared memory */
void HL_OP(cache_back_q)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
/* the same in one kernel, which leaves kept and needs no R and no ds */
void HL_OP(cache_back_whole)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
bool HL_OP(cache_back_whole_fits)(struct hl_cuda *cuda, const struct hl_cache *a);
enum { WHOLE_SHARES = 8 }; /* its warps: shares of a block's sums */
/* the same for heads of 256, and its shares of a block; 0: not for this shape or device */
void HL_OP(cache_back_parts)(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b);
int64_t HL_OP(cache_back_parts_shares)(struct hl_cuda *cuda, const struct hl_cache *a);

enum { TILE = 64 }; /* keys and queries of a tile of the backward pass */
static inline __host__ __device__ int tiles_of(int64_t n) { return (int)((n + TILE - 1) / TILE); }
/* pairs of tiles of one block that see each other: kept keys all queries, own keys their own and later
 * ones */
static inline int64_t ds_tiles(const struct hl_cache *a) {
    const int64_t kepts = tiles_of(a->window), owns = tiles_of(a->chunk);
    return kepts * owns + owns * (owns + 1) / 2;
}

#endif
