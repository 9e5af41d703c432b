/* kda_cpu.h -- shared by the chunked forms of KDA: one chunk of one value head (docs/math.md, "KDA"). */
#ifndef HL_KDA_CPU_H
#define HL_KDA_CPU_H
#include "ops/decay/pair_cpu.h"

/* reals of scratch for the forward and backward arrays */
static inline int64_t kda_scratch_reals(int64_t K, int64_t V) {
    return HL_SMALL_GEMM_SCRATCH + pair_reals(K) + K * V + 16 + 7 * HL_CHUNK * gdn_ld(K) + 6 * HL_CHUNK * gdn_ld(V) +
           10 * HL_CHUNK * HL_CHUNK;
}

struct kda_chunk {
    struct gdn_chunk x; /* n, row, hv, beta; P = K^{-1/2} pair(Q, K), M = pair(K, K) below the diagonal */
    struct pair p;      /* X: q, then k; Y: k */
    real *scores;       /* [2 x HL_CHUNK][HL_CHUNK] */
    real *E;            /* [2 x HL_CHUNK][p.ld]: Q exp(G), K exp(G), laid out like p.X */
};

#ifdef HL_ISA
/* Takes a chunk's arrays from *mem. */
struct kda_chunk HL_OP(kda_chunk_carve)(const struct hl_kda *a, real **mem);
void HL_OP(kda_chunk_load)(struct kda_chunk *k, const struct hl_kda *a, int64_t row, int64_t n, int64_t hv);
void HL_OP(kda_step)(struct hl_pool *pool, const struct hl_kda *a);
#endif

#endif
