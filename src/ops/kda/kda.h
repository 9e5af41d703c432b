/* kda.h -- Kimi Delta Attention: the delta rule with a decay per key channel.
 *
 *     S'    = diag(exp(g_t)) S_{t-1}
 *     e_t   = v_t - k_t^T S'
 *     S_t   = S' + beta_t k_t e_t^T
 *     out_t = K^{-1/2} q_t^T S_t               m_t = beta_t |e_t| (ranks only, carries no gradient)
 * Per value head; value head h reads the q, k of key head h / (HV/H). q and k are L2-normalised.
 * Chunked form: docs/math.md; as with gdn.h, the rows of v_new are beta_t e_t. */
#ifndef HL_KDA_H
#define HL_KDA_H
#include "core/rows.h"

struct hl_kda {
    const struct hl_rows *rows;
    int64_t H, HV, K, V;   /* key heads, value heads, d_k, d_v */
    const void *q, *k, *v; /* [T][H][K], [T][H][K], [T][HV][V] */
    const real *g;         /* [T][HV][K]: log decay, <= 0 */
    const real *beta;      /* [T][HV] */
    void *out;             /* [T][HV][V] */
    real *m;               /* [T][HV] */
    int64_t S_off;         /* bytes into seg->state: real S[HV][K][V], read and written */
    /* kept for the backward pass by the chunked form; all NULL at inference. The reference needs none. */
    real *h;     /* [chunks][HV][K][V]; NULL on a device, which computes it again */
    void *v_new; /* [T][HV][V] */
    void *A;     /* [T][HV][HL_CHUNK]: rows of (I + L)^-1 */
    /* a device: the chunks' operands, [chunks][HV] of as many bytes as hl_backend's kda_kept says, 16-byte aligned; NULL:
     * the backward pass computes them again, to the same bits */
    void *tiles;
    /* backward. h0: where segments start, NULL: empty; dht: gradients of the final states, NULL: none; dh0: of h0,
     * written, NULL: not wanted; all [n][HV][K][V], for the reference and on a GPU. */
    const void *dout;
    void *dq, *dk, *dv; /* written, not added; dq, dk summed over the value heads of a key head */
    real *dg, *dbeta;   /* [T][HV][K], [T][HV] */
    const real *h0, *dht;
    real *dh0;
};
/* Which kernels a CUDA backend takes for these arguments, for tests and benchmarks. */
struct hl_backend;
const char *hl_cuda_kda_form(struct hl_backend *backend, const struct hl_kda *a);
const char *hl_cuda_f32_kda_form(struct hl_backend *backend, const struct hl_kda *a);
/* Bytes of `tiles` per chunk and value head; 0: heads that the kernels on chunks do not take. */
int64_t hl_cuda_kda_kept(struct hl_backend *backend, int64_t K, int64_t V);
int64_t hl_kda_scratch(int64_t K, int64_t V); /* bytes per worker, enough for forward and backward */
#endif
