/* hola_ops.h -- hola's operations on raw device pointers, for programs that have arrays and a stream of their own: the
 * gated delta rule, the read of the exact memory, Kimi Delta Attention, gated linear attention and softmax attention.
 * C11 and C++17. docs/cuda.md has an example.
 *
 * A call puts work on the caller's stream and returns. It allocates nothing, waits for nothing, copies nothing from the
 * host and keeps no state, so that it can be captured into a CUDA graph. Any thread may call. The device named is made
 * current and put back. Wrong arguments are HOLA_EINVAL, and shapes that there are no kernels for HOLA_ENOTSUP, both
 * before anything is launched; hola_last_error() has the reason, on the thread that called. The same input gives the
 * same bits.
 *
 * Arrays are dense, row-major and in device memory. Those of `dtype` and the states begin on 16 bytes, `work` on 256.
 * Zero the structs first, then set `size` to their sizeof: so they can grow. */
#ifndef HOLA_OPS_H
#define HOLA_OPS_H
#include "hola.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a call runs. work: memory on the device that the call may overwrite, as many bytes as the op's _work_bytes says;
 * it may be used again by whatever follows on the same stream. Device -1 (the CPU) is HOLA_ENOTSUP. */
typedef struct hola_where {
    int32_t size, device; /* device: as CUDA numbers them */
    void *stream;         /* cudaStream_t; NULL: the default stream */
    void *work;
    int64_t work_bytes;
} hola_where;

/* T rows of N sequences, one after another. cu, in device memory, N + 1 integers of cu_bits (32 or 64): sequence i has
 * rows [cu[i], cu[i + 1]); it may be empty. cu NULL: T / N rows each. cu is read by the kernels alone. Values are brought
 * between 0 and T, and into ascending order: wrong ones give wrong numbers and no fault, and what belongs to rows that no
 * sequence has is not defined. longest: about how many rows the longest sequence has, for choosing kernels; 0: not
 * known. */
typedef struct hola_rows {
    int64_t T, N, longest;
    const void *cu;
    int32_t cu_bits;
} hola_rows;

/* ---- the gated delta rule ----
 *
 *     S'    = exp(g_t) S_{t-1}                      S_0 = h0
 *     e_t   = v_t - k_t^T S'
 *     S_t   = S' + beta_t k_t e_t^T                 ht = S after the last row of its sequence
 *     out_t = scale q_t^T S_t                       m_t = beta_t |e_t|, which carries no gradient
 *
 * q, k [T][H][K]; v, out [T][HV][V], HV a multiple of H, value head h reads key head h / (HV / H); g, beta, m [T][HV];
 * states [N][HV][K][V]. K up to 256, V up to 512. */
enum {
    HOLA_GDN_NORM = 1,    /* q and k become x / sqrt(sum x^2 + 1e-6) first */
    HOLA_GDN_GATE = 2,    /* g becomes -exp(A_log) softplus(g + dt_bias) first */
    HOLA_GDN_SIGMOID = 4, /* beta becomes sigmoid(beta) first */
    HOLA_GDN_NEG = 8      /* with SIGMOID: 2 sigmoid(beta) */
};
typedef struct hola_gdn_args {
    int32_t size, flags;
    hola_rows rows;
    int64_t H, HV, K, V;
    hola_dtype dtype;      /* of q, k, v, out and dout, dq, dk, dv: HOLA_F32 or HOLA_BF16 */
    hola_dtype gate_dtype; /* of g and beta: HOLA_F32 or HOLA_BF16 */
    float scale;           /* 0: K^-1/2 */
    const void *q, *k, *v;
    const void *g, *beta;         /* g NULL: no decay */
    const float *A_log, *dt_bias; /* [HV], with HOLA_GDN_GATE; dt_bias NULL: 0 */
    const float *h0;              /* NULL: 0 */
    /* Written by the forward call; each may be NULL. Where out is NULL, the call needs hola_gdn_out_bytes() of work more.
     * kept: hola_gdn_kept_bytes(), what the backward call needs. ht may be h0. */
    void *out;
    float *ht, *m;
    void *kept;
    /* For the backward call, beside all inputs of the forward one and what it kept. dht NULL: 0. */
    const void *dout;
    const float *dht;
    /* Written by it, not added to: dq, dk, dv, dbeta, and dg where there is g; the others may be NULL. dg and dbeta are
     * the gradients of g and beta as they were given. */
    void *dq, *dk, *dv;
    float *dg, *dbeta, *dh0, *dA_log, *ddt_bias;
} hola_gdn_args;

/* Bytes of kept, of out, and of work: of size, flags, T, N, longest, whether there is cu, H, HV, K, V, dtype, gate_dtype
 * and scale alone; no other pointer is looked at. -1: wrong arguments, hola_last_error() says which. */
HOLA_API int64_t hola_gdn_kept_bytes(const hola_gdn_args *a);
HOLA_API int64_t hola_gdn_out_bytes(const hola_gdn_args *a);
HOLA_API int64_t hola_gdn_work_bytes(const hola_gdn_args *a, int device, bool backward);
HOLA_API hola_status hola_gdn_forward(const hola_where *w, const hola_gdn_args *a);
HOLA_API hola_status hola_gdn_backward(const hola_where *w, const hola_gdn_args *a);
/* The kernels that a call takes, one word ("ring", "fused", "plain", ...); NULL: wrong arguments. */
HOLA_API const char *hola_gdn_kernels(const hola_gdn_args *a, int device, bool backward);

/* ---- the exact memory ----
 *
 * Rows of a sequence lie in blocks of `chunk` from its first. For the block that row t stands in, sel is the `window` rows
 * of earlier blocks with the largest score (of equal ones the older), or the latest rows (HOLA_EVICT_RECENCY). With J =
 * sel and the rows of this block up to t:
 *
 *     z_j = scale tau q_t.k_j, j in J      z_sink = sink      p = softmax over J and the sink
 *     out_t = sigmoid(gate) sum_J p_j v_j
 *
 * Per value head; shapes as above, score [T][HV], sink, tau, gate [HV]. The selection has no gradient. window up to 512,
 * chunk up to 1024. */
typedef struct hola_cache_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HV, K, V, window, chunk;
    hola_dtype dtype; /* HOLA_F32 or HOLA_BF16 */
    hola_evict evict; /* HOLA_EVICT_BETAE: by score, whatever it is; HOLA_EVICT_RECENCY: by position */
    float scale;      /* 0: K^-1/2 */
    const void *q, *k, *v;
    const float *score;             /* NULL with HOLA_EVICT_RECENCY */
    const float *sink, *tau, *gate; /* tau NULL: 1; gate NULL: out is the read alone */
    /* Written by the forward call. kept: hola_cache_kept_bytes(), for the backward call; NULL: there is none. */
    void *out, *kept;
    /* For the backward call, beside all inputs and kept; written, not added to. The last three may be NULL. */
    const void *dout;
    void *dq, *dk, *dv;
    float *dsink, *dtau, *dgate;
} hola_cache_args;

/* Bytes of shapes, as for the delta rule. */
HOLA_API int64_t hola_cache_kept_bytes(const hola_cache_args *a);
HOLA_API int64_t hola_cache_work_bytes(const hola_cache_args *a, int device, bool backward);
HOLA_API hola_status hola_cache_forward(const hola_where *w, const hola_cache_args *a);
HOLA_API hola_status hola_cache_backward(const hola_where *w, const hola_cache_args *a);

/* ---- Kimi Delta Attention: the delta rule with a decay per key channel ----
 *
 *     S'    = diag(exp(g_t)) S_{t-1}                S_0 = h0
 *     e_t   = v_t - k_t^T S'
 *     S_t   = S' + beta_t k_t e_t^T                 ht = S after the last row of its sequence
 *     out_t = scale q_t^T S_t                       m_t = beta_t |e_t|, which carries no gradient
 *
 * Shapes as those of the delta rule, but g [T][HV][K], g <= 0. */
typedef struct hola_kda_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HV, K, V;
    hola_dtype dtype; /* of q, k, v, out and dout, dq, dk, dv: HOLA_F32 or HOLA_BF16 */
    float scale;      /* 0: K^-1/2 */
    const void *q, *k, *v;
    const float *g, *beta, *h0; /* h0 NULL: 0 */
    /* Written by the forward call. ht, m, kept may be NULL; kept: hola_kda_kept_bytes(), for the backward call. */
    void *out;
    float *ht, *m;
    void *kept;
    /* For the backward call, beside all inputs and kept; written, not added to. dht NULL: 0; dh0 may be NULL. */
    const void *dout;
    const float *dht;
    void *dq, *dk, *dv;
    float *dg, *dbeta, *dh0;
} hola_kda_args;

/* Bytes of shapes, as for the delta rule. */
HOLA_API int64_t hola_kda_kept_bytes(const hola_kda_args *a);
HOLA_API int64_t hola_kda_work_bytes(const hola_kda_args *a, int device, bool backward);
HOLA_API hola_status hola_kda_forward(const hola_where *w, const hola_kda_args *a);
HOLA_API hola_status hola_kda_backward(const hola_where *w, const hola_kda_args *a);

/* ---- gated linear attention ----
 *
 *     S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T      S_0 = h0      out_t = scale q_t^T S_t
 *
 * q [T][H][K], k, g [T][HK][K], v [T][HK][V], out [T][H][V], H a multiple of HK, query head h reads key head
 * h / (H / HK); states [N][HK][K][V]; g <= 0. */
typedef struct hola_gla_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HK, K, V;
    hola_dtype dtype; /* HOLA_F32 or HOLA_BF16 */
    float scale;      /* 0: K^-1/2 */
    const void *q, *k, *v;
    const float *g, *h0; /* h0 NULL: 0 */
    /* Written by the forward call; ht may be NULL. */
    void *out;
    float *ht;
    /* For the backward call, beside all inputs; written, not added to. dht NULL: 0; dh0 may be NULL. */
    const void *dout;
    const float *dht;
    void *dq, *dk, *dv;
    float *dg, *dh0;
} hola_gla_args;

HOLA_API int64_t hola_gla_work_bytes(const hola_gla_args *a, int device, bool backward);
HOLA_API hola_status hola_gla_forward(const hola_where *w, const hola_gla_args *a);
HOLA_API hola_status hola_gla_backward(const hola_where *w, const hola_gla_args *a);

/* ---- causal softmax attention ----
 *
 *     z_tj = scale q_t.k_j, max(0, t - window + 1) <= j <= t      out_t = sum_j softmax_j(z_t) v_j
 *     lse_t = log sum_j exp(z_tj)
 *
 * q, out [T][H][D], k, v [T][HK][D], H a multiple of HK, query head h reads key head h / (H / HK); t and j count within a
 * sequence; lse [T][H]. D up to 512. */
typedef struct hola_attention_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HK, D, window; /* window: keys that a query sees, its own included; 0: all */
    hola_dtype dtype;         /* HOLA_F32 or HOLA_BF16 */
    float scale;              /* 0: D^-1/2 */
    const void *q, *k, *v;
    /* Written by the forward call, read by the backward one. lse NULL: there is none. */
    void *out;
    float *lse;
    /* For the backward call, beside all of that; dq, dk and dv are written, not added to. */
    const void *dout;
    void *dq, *dk, *dv;
} hola_attention_args;

HOLA_API int64_t hola_attention_work_bytes(const hola_attention_args *a, int device, bool backward);
HOLA_API hola_status hola_attention_forward(const hola_where *w, const hola_attention_args *a);
HOLA_API hola_status hola_attention_backward(const hola_where *w, const hola_attention_args *a);

#ifdef __cplusplus
}
#endif
#endif
