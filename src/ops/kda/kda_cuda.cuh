/* kda_cuda.cuh -- shared by the KDA kernels: entry points, and the tiles that kda_prep writes for the scans.
 *
 * Per value head and chunk of 64 rows (docs/math.md), with G the cumulated log decay of a channel, h the state before
 * the chunk, s = K^{-1/2}:
 *     kg = K e^G     qg = s Q e^G     ke = K e^{G_last - G}     P = s pair(Q, K, G)     A = (I + beta pair(K, K, G))^-1
 *     r = beta (v - kg h)     v_new = A r     out = qg h + P v_new     h' = e^{G_last} h + ke^T v_new
 * With the decays folded into kg, qg and ke, the scan is that of the gated delta rule without decays. */
#ifndef HL_KDA_CUDA_CUH
#define HL_KDA_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

/* A chunk and value head, in its shared memory layout: one bulk copy. Tiles are panels of 64 columns; rows past the
 * chunk's end are 0. The size is a multiple of 1024 for both K, as swizzled panels in shared memory require of an
 * array's stride. */
template <int K> struct __align__(16) kda_tiles {
    bf16 kq[K / 64][2 * PANEL]; /* kg above qg, so that both are one product with the state */
    bf16 ke[K / 64][PANEL];
    bf16 P[HL_CHUNK * HL_CHUNK];         /* 0 above the diagonal */
    float beta[HL_CHUNK], one[HL_CHUNK]; /* gates in the form gdn_ring_cuda.cuh expects */
    float end[128];                      /* e^{G_last}, K of them */
};
static_assert(sizeof(struct kda_tiles<64>) % 1024 == 0 && sizeof(struct kda_tiles<128>) % 1024 == 0, "stride");
static inline int64_t kda_tiles_bytes(int64_t K) {
    return K == 64 ? sizeof(struct kda_tiles<64>) : sizeof(struct kda_tiles<128>);
}

/* decoding: most tokens per segment; columns of a tile of the state */
enum { KDA_STEP_ROWS = 8, KDA_STEP_COLS = 32 };
static inline bool kda_step_knows(int64_t K, int64_t V) {
    return (K == 64 || K == 128 || K == 256) && V % KDA_STEP_COLS == 0;
}

extern "C" {
/* The variants of the forward pass, in the order they are tried (kda_cuda.cu). */
void HL_OP(kda_run_step)(struct hl_backend *backend, const struct hl_kda *a);
void HL_OP(kda_run_scan)(struct hl_backend *backend, const struct hl_kda *a);
void HL_OP(kda_run_plain)(struct hl_backend *backend, const struct hl_kda *a);
bool HL_OP(kda_scan_fits)(struct hl_cuda *c, int64_t K, int64_t V);
/* tiles: [chunks][HV] of kda_tiles<K>; A: [T][HV][64], NULL: not wanted */
void HL_OP(kda_prep)(struct hl_backend *backend, const struct hl_kda *a, void *tiles, void *A);
}

#endif
