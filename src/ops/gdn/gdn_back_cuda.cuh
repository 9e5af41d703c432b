/* gdn_back_cuda.cuh -- shared by the kernels of the delta rule's backward pass.
 *
 * Names and formulas are those of docs/math.md ("The delta rule", backward) and gdn_chunk_back_cpu.c. Per
 * value head and chunk of C rows; dh: gradient of the state after the chunk; s = K^{-1/2}; eG = exp(G), eL =
 * exp(G_last - G):
 *     dv_new = P^T dO + eL (K dh)              X2 = A^T dv_new           dV = beta X2
 *     dS = s stril(dO v_new^T) D               N = -stril(X2 v_new^T) D
 *     Y1 = s eG (dO h^T)     Y2 = -eG (X2 h^T)     U = eL (v_new dh^T)
 *     dQ = Y1 + dS K                           E = Y2 + N K              W = U + dS^T Q + (beta N)^T K
 *     dK = beta E + W                          dbeta = V.X2 + K.E
 *     dh before the chunk = exp(G_last) dh + Q^T (s eG dO) - K^T (eG beta X2)
 *     dg_t = sum_{i>=t} (Q.dQ + beta K.E - K.(W - U))_i + sum_{i<t} (K.U)_i + exp(G_last) h.dh
 * The diagonal of the scores has no decay: it is left out of dS, and s (dO.v_new)_i times k_i, q_i is added to dQ, dK
 * after the row products for dg are taken. So dg is exactly 0 where the decay erases everything.
 *
 * Kernels, in order: the gates of every chunk (gdn_back_cuda.cu); a reverse scan that stores dh and X2 of every chunk
 * (gdn_back_scan_cuda.cu); and either a forward scan that recomputes the states in registers and computes everything
 * else along the way (gdn_back_fused_cuda.cu), or a scan that writes the states to memory (gdn_back_states_cuda.cu),
 * then everything else for all chunks in parallel (gdn_back_chunk_cuda.cu). gdn_back_plain_cuda.cu does all of it with
 * plain loops. */
#ifndef HL_GDN_BACK_CUDA_CUH
#define HL_GDN_BACK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mma.cuh"
#include "cuda/fastmath.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

enum {
    C = HL_CHUNK,
    BACK_GATES = 5 * C, /* floats of a chunk's gates, C each: */
    G_INT = 0,          /* G / ln 2 as integer and fraction */
    G_FRAC = C,
    EG = 2 * C, /* exp(G) */
    EL = 3 * C, /* exp(G_last - G) */
    BETA = 4 * C,
    SUMS = 3 * C + 4
};

struct gdn_back {
    int64_t T, segs, chunks;
    int H, HV, K, V, group, items; /* items: chunks x HV */
    const act *q, *k, *v, *dout, *v_new, *A;
    const float *g, *beta;
    act *dq, *dk, *dv;
    float *dg, *dbeta;
    const struct hl_seg *seg;
    const struct hl_dev_span *chunk;
    const int32_t *chunk_first;
    /* scratch; states are transposed, [chunks][HV][V][K]: bf16, h in the order of store_h, dh in that of
     * read_state; float in the plain form */
    float *gates;              /* [chunks][HV][BACK_GATES] */
    void *h, *dh;              /* not stored where zero: h of a segment's first chunk without h0, dh of its last
                                * chunk without dht */
    void *X2;                  /* [T][HV][V], of the states' type; fused: [chunks][HV] tiles */
    act *dq_head, *dk_head;    /* [T][HV][K]: dq, dk themselves when a key head has one value head */
    struct gdn_seqsplit split; /* of the reverse scan, and of the states to memory */
    float *decays;             /* [segs][HV][splits]: decay of the state over a split */
    /* of the fused scan: splits of a segment; the states after each of `state_splits`, a multiple of them,
     * [segs][HV][state_splits][V][K]; sums over K of each tile's rows, [tiles][chunks][HV][SUMS] */
    int fused_splits, state_splits;
    float *fused_states, *sums;
    bool fused;            /* X2 is laid out as in shared memory, in panels of 64 columns, for bulk copies */
    const float *h0, *dht; /* [segs][HV][K][V], or NULL: then h and dh are 0 there */
    float *dh0;
};
/* Whether kernels support h0, dht and dh0: template argument STATES, so that training, which has none, does not pay for
 * them. */
static inline bool back_states_given(const struct gdn_back *a) { return a->h0 || a->dht || a->dh0; }
/* of segment s and value head hv, or NULL */
template <class T> static __device__ __forceinline__ T *end_state(const struct gdn_back &a, T *states, int s, int hv) {
    return states ? states + ((int64_t)s * a.HV + hv) * a.K * a.V : NULL;
}

extern "C" {
/* dh and X2. Long segments are split. */
bool HL_OP(gdn_back_scan_fits)(struct hl_cuda *c, int64_t K);
void HL_OP(gdn_back_scan)(struct hl_cuda *c, const struct gdn_back *a);
/* h of every chunk */
void HL_OP(gdn_back_states)(struct hl_cuda *c, const struct gdn_back *a);
/* everything else, from h and dh */
void HL_OP(gdn_back_chunks)(struct hl_cuda *c, const struct gdn_back *a);
/* everything else, with h recomputed; if fused_splits > 1, first the states between the splits */
bool HL_OP(gdn_back_fused_fits)(struct hl_cuda *c, int64_t V);
void HL_OP(gdn_back_fused_states)(struct hl_cuda *c, const struct gdn_back *a);
void HL_OP(gdn_back_fused)(struct hl_cuda *c, const struct gdn_back *a);
void HL_OP(gdn_back_plain)(struct hl_cuda *c, const struct gdn_back *a);
}

/* Lane 4g + t holds columns 2t, 2t + 1 of every 8, of rows g and g + 8 of the warp's 16. */
static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}
/* exp(G_i - G_j) and exp(G_i - G_{j+1}), j even; garbage where i comes before j. The differences of integers
 * are exact, so no precision is lost where sums reach -4000. */
static __device__ __forceinline__ float2 decay(const float *gates, int i, int j) {
    const float whole = gates[G_INT + i], frac = gates[G_FRAC + i];
    const float2 w = *(const float2 *)(gates + G_INT + j), f = *(const float2 *)(gates + G_FRAC + j);
    return make_float2(fast_exp2((whole - w.x) + (frac - f.x)), fast_exp2((whole - w.y) + (frac - f.y)));
}

/* pairs along the row of an A fragment's column k: [k] times x0, [k + 1] times x1 */
static __device__ __forceinline__ uint32_t scale_pair(uint32_t pair, float x0, float x1) {
    return pack2(low(pair) * x0, high(pair) * x1);
}
/* columns k0.. of an A fragment times x[k0..] */
static __device__ __forceinline__ void scale_columns(uint32_t a[4], const float *x, int k0, float all) {
    const int t = threadIdx.x % 4;
    const float2 lo = *(const float2 *)(x + k0 + 2 * t), hi = *(const float2 *)(x + k0 + 8 + 2 * t);
    a[0] = scale_pair(a[0], all * lo.x, all * lo.y), a[1] = scale_pair(a[1], all * lo.x, all * lo.y);
    a[2] = scale_pair(a[2], all * hi.x, all * hi.y), a[3] = scale_pair(a[3], all * hi.x, all * hi.y);
}

#endif
