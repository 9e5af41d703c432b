/* hola_ops.h -- hola's operations on raw device pointers, for programs that manage their own arrays and streams: the
 * gated delta rule, the read of the exact memory, Kimi Delta Attention, gated linear attention and softmax attention.
 * C11 and C++17. docs/cuda.md has an example.
 *
 * A call enqueues work on the caller's stream and returns. It does not allocate, synchronize, copy from the host or
 * keep state, so it can be captured into a CUDA graph. Calls are thread-safe. The given device is made current for the
 * call and the previous one restored. Invalid arguments return HOLA_EINVAL and shapes without kernels HOLA_ENOTSUP,
 * both before anything is launched; hola_last_error() on the calling thread has the reason. Results are bitwise
 * reproducible.
 *
 * Arrays are dense, row-major and in device memory. Arrays of `dtype` and the states are 16-byte aligned, `work` is
 * 256-byte aligned. Zero each struct, then set `size` to its sizeof, so that structs can grow in later versions. */
#ifndef HOLA_OPS_H
#define HOLA_OPS_H
#include "hola.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a call runs. work: device memory that the call may overwrite, as many bytes as the op's _work_bytes returns;
 * later work on the same stream may reuse it. Device -1 (the CPU) returns HOLA_ENOTSUP. */
typedef struct hola_where {
    int32_t size, device; /* device: the CUDA ordinal */
    void *stream;         /* cudaStream_t; NULL: the default stream */
    void *work;
    int64_t work_bytes;
} hola_where;

/* T rows of N sequences, back to back. cu (device memory, N + 1 integers of cu_bits, 32 or 64): sequence i has rows
 * [cu[i], cu[i + 1]) and may be empty. cu NULL: T / N rows each. Only the kernels read cu. Values are clamped to [0, T]
 * and to ascending order: bad ones give wrong numbers but no fault, and results of rows outside every sequence are
 * undefined. longest: approximate length of the longest sequence, used to choose kernels; 0: unknown. */
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
    /* Written by the forward call; each may be NULL. If out is NULL, the call needs hola_gdn_out_bytes() more bytes of
     * work. kept: hola_gdn_kept_bytes() bytes for the backward call. ht may alias h0. */
    void *out;
    float *ht, *m;
    void *kept;
    /* For the backward call, in addition to all forward inputs and kept. dht NULL: 0. */
    const void *dout;
    const float *dht;
    /* Written by the backward call, not accumulated: dq, dk, dv, dbeta, and dg if g is given; the others may be NULL.
     * dg and dbeta are gradients with respect to g and beta as passed in. */
    void *dq, *dk, *dv;
    float *dg, *dbeta, *dh0, *dA_log, *ddt_bias;
} hola_gdn_args;

/* Bytes of kept, out and work. They depend only on size, flags, T, N, longest, whether cu is NULL, H, HV, K, V, dtype,
 * gate_dtype and scale; no other pointer is read. -1: invalid arguments, see hola_last_error(). */
HOLA_API int64_t hola_gdn_kept_bytes(const hola_gdn_args *a);
HOLA_API int64_t hola_gdn_out_bytes(const hola_gdn_args *a);
HOLA_API int64_t hola_gdn_work_bytes(const hola_gdn_args *a, int device, bool backward);
HOLA_API hola_status hola_gdn_forward(const hola_where *w, const hola_gdn_args *a);
HOLA_API hola_status hola_gdn_backward(const hola_where *w, const hola_gdn_args *a);
/* The kernels that a call would use, as one word ("ring", "fused", "plain", ...); NULL: invalid arguments. */
HOLA_API const char *hola_gdn_kernels(const hola_gdn_args *a, int device, bool backward);

/* ---- the exact memory ----
 *
 * The rows of a sequence are divided into blocks of `chunk`, counted from its first row. For the block that contains
 * row t, sel is the `window` rows of earlier blocks with the largest score (ties: the older row), or the latest rows
 * (HOLA_EVICT_RECENCY). With J = sel and the rows of this block up to t:
 *
 *     z_j = scale tau q_t.k_j, j in J      z_sink = sink      p = softmax over J and the sink
 *     out_t = sigmoid(gate) sum_J p_j v_j
 *
 * Per value head; shapes as above, score [T][HV], sink, tau, gate [HV]. The selection has no gradient. window up to
 * 512, chunk up to 1024. */
typedef struct hola_cache_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HV, K, V, window, chunk;
    hola_dtype dtype; /* HOLA_F32 or HOLA_BF16 */
    hola_evict evict; /* HOLA_EVICT_BETAE: by the given score; HOLA_EVICT_RECENCY: by position */
    float scale;      /* 0: K^-1/2 */
    const void *q, *k, *v;
    const float *score;             /* NULL with HOLA_EVICT_RECENCY */
    const float *sink, *tau, *gate; /* tau NULL: 1; gate NULL: no gating */
    /* Written by the forward call. kept: hola_cache_kept_bytes() bytes for the backward call; NULL: no backward call
     * follows. */
    void *out, *kept;
    /* For the backward call, in addition to all inputs and kept. The gradients are written, not accumulated; the last
     * three may be NULL. */
    const void *dout;
    void *dq, *dk, *dv;
    float *dsink, *dtau, *dgate;
} hola_cache_args;

/* Sizes in bytes, as for the delta rule. */
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
 * Shapes as for the delta rule, but g [T][HV][K], g <= 0. */
enum { HOLA_KDA_NORM = 1 }; /* q and k become x / sqrt(sum x^2 + 1e-6) first */
typedef struct hola_kda_args {
    int32_t size, flags;
    hola_rows rows;
    int64_t H, HV, K, V;
    hola_dtype dtype; /* of q, k, v, out and dout, dq, dk, dv: HOLA_F32 or HOLA_BF16 */
    float scale;      /* 0: K^-1/2 */
    const void *q, *k, *v;
    const float *g, *beta, *h0; /* h0 NULL: 0 */
    /* Written by the forward call. ht, m and kept may be NULL; kept: hola_kda_kept_bytes() bytes for the backward
     * call. */
    void *out;
    float *ht, *m;
    void *kept;
    /* For the backward call, in addition to all inputs and kept. Gradients are written, not accumulated. dht NULL: 0;
     * dh0 may be NULL. */
    const void *dout;
    const float *dht;
    void *dq, *dk, *dv;
    float *dg, *dbeta, *dh0;
} hola_kda_args;

/* Sizes in bytes, as for the delta rule. */
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
    /* For the backward call, in addition to all inputs. Gradients are written, not accumulated. dht NULL: 0; dh0 may be
     * NULL. */
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
 * q, out [T][H][D], k, v [T][HK][D], H a multiple of HK, query head h reads key head h / (H / HK); t and j are
 * positions in a sequence; lse [T][H]. D up to 512. */
typedef struct hola_attention_args {
    int32_t size, flags; /* flags: 0 */
    hola_rows rows;
    int64_t H, HK, D, window; /* window: keys that a query sees, including its own; 0: all */
    hola_dtype dtype;         /* HOLA_F32 or HOLA_BF16 */
    float scale;              /* 0: D^-1/2 */
    const void *q, *k, *v;
    /* Written by the forward call, read by the backward call. lse NULL: no backward call follows. */
    void *out;
    float *lse;
    /* For the backward call, in addition to all of the above. dq, dk and dv are written, not accumulated. */
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
