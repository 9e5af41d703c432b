/* gdn.h -- the gated delta rule and the score used by the exact memory (paper eq. 1, 6).
 *
 *     S'    = exp(g_t) S_{t-1}
 *     e_t   = v_t - k_t^T S'                   what the state failed to predict
 *     S_t   = S' + beta_t k_t e_t^T
 *     out_t = K^{-1/2} q_t^T S_t               m_t = beta_t |e_t| (ranks only, carries no gradient)
 * Per value head; value head h reads the q, k of key head h / (HV/H). q and k are L2-normalised.
 * g NULL: no decay (DeltaNet).
 *
 * Chunked form (docs/math.md): chunks of HL_CHUNK rows from each segment's first row; the rows of v_new are beta_t e_t,
 * so m costs one row norm. A training pass keeps h, v_new and A. */
#ifndef HL_GDN_H
#define HL_GDN_H
#include "core/rows.h"

struct hl_backend;

struct hl_gdn {
    const struct hl_rows *rows;
    int64_t H, HV, K, V;   /* key heads, value heads, d_k, d_v */
    const void *q, *k, *v; /* [T][H][K], [T][H][K], [T][HV][V] */
    const real *g, *beta;  /* [T][HV] */
    void *out;             /* [T][HV][V] */
    real *m;               /* [T][HV]; may be NULL on a GPU: not needed */
    int64_t S_off;         /* byte offset into seg->state: real S[HV][K][V], read and written */
    /* for scores measured against the state: S after each block of `block` tokens (those of the exact memory) that ends
     * before its segment does. [blocks][HV][K][V], indexed by hl_blocks_before; other blocks' entries are undefined.
     * NULL: not needed. A GPU needs v_new for it. */
    real *block_S;
    int64_t block;
    /* kept for the backward pass by the chunked form; all NULL at inference. The reference needs none. */
    real *h;     /* [chunks][HV][K][V]: the state before each chunk (chunks: hl_chunks_before); NULL on a
                    GPU, which recomputes it from v_new in the backward pass */
    void *v_new; /* [T][HV][V] */
    void *A;     /* [T][HV][HL_CHUNK]: rows of (I + L)^-1 */
    /* backward. h0: initial states, NULL: empty; dht: gradients of the final states, NULL: none; dh0: gradient of h0,
     * written, NULL: not needed; all [n][HV][K][V], for the reference and on a GPU. */
    const void *dout;
    void *dq, *dk, *dv; /* written, not added */
    real *dg, *dbeta;   /* [T][HV]; dg NULL with g */
    const real *h0, *dht;
    real *dh0;
};

int64_t hl_gdn_scratch(int64_t K, int64_t V); /* bytes per worker, enough for forward and backward */

/* The kernels that a CUDA backend uses for these arguments, for tests and benchmarks. */
struct hl_gdn_form {
    const char *name, *when; /* when: one sentence on when they are fastest */
};
struct hl_gdn_form hl_cuda_gdn_form(struct hl_backend *backend, const struct hl_gdn *a, bool backward);
struct hl_gdn_form hl_cuda_f32_gdn_form(struct hl_backend *backend, const struct hl_gdn *a, bool backward);
#endif
