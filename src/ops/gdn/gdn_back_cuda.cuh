/* gdn_back_cuda.cuh -- what the kernels of the delta rule's backward pass share.
 *
 * Names and formulas are those of gdn_chunk_bwd_cpu.c. Per value head and chunk of C rows; dh: gradient of
 * the state after the chunk; s = K^{-1/2}; eG = exp(G), eL = exp(G_last - G):
 *     dv_new = P^T dO + eL (K dh)              X2 = A^T dv_new           dV = beta X2
 *     dS = s stril(dO v_new^T) D               N = -stril(X2 v_new^T) D
 *     Y1 = s eG (dO h^T)     Y2 = -eG (X2 h^T)     U = eL (v_new dh^T)
 *     dQ = Y1 + dS K                           E = Y2 + N K              W = U + dS^T Q + (beta N)^T K
 *     dK = beta E + W                          dbeta = V.X2 + K.E
 *     dh before the chunk = exp(G_last) dh + Q^T (s eG dO) - K^T (eG beta X2)
 *     dg_t = sum_{i>=t} (Q.dQ + beta K.E - K.(W - U))_i + sum_{i<t} (K.U)_i + exp(G_last) h.dh
 * The diagonal of the scores has no decay: it is left out of dS, and s (dO.v_new)_i times k_i, q_i is added
 * to dQ, dK after the row products for dg are taken. So dg is exactly 0 where decay wipes everything.
 *
 * In order: gates and P of every chunk (scores), the states again (states), the gradients of the states from
 * the last chunk to the first (scan), everything else, chunk by chunk (rest). Where chips can, states and
 * rest are one walk from the first chunk to the last, after the scan, and no state is in memory. */
#ifndef HL_GDN_BACK_CUDA_CUH
#define HL_GDN_BACK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mma.cuh"
#include "cuda/fastmath.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

enum {
    C = HL_CHUNK,
    GATES = 5 * C, /* floats kept of a chunk's gates, each C of them: */
    WHOLE = 0,
    PART = C,
    EG = 2 * C,
    EL = 3 * C,
    BETA = 4 * C, /* G = WHOLE + PART, to the base 2; exp(G), exp(G_last - G), beta */
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
    /* scratch; states are trans, [chunks][HV][V][K]: bf16, h in the order of store_state, dh in that of
     * read_state; or float in the plain form */
    float *gates;           /* [chunks][HV][GATES] */
    act *P;                 /* [chunks][HV][C][C] */
    void *h, *dh;           /* the first chunk of a segment has h = 0, the last one dh = 0: not stored */
    void *X2;               /* [T][HV][V], as the states; [chunks][HV] of tiles where it `walks` */
    act *dq_head, *dk_head; /* [T][HV][K]: dq, dk themselves when a key head has one value head */
    struct gdn_ends e;      /* of the parts of long segments */
    float *decays;          /* [segs][HV][parts]: of the state, over a part */
    /* of the walk forward: its parts, where they start, [segs][HV][cuts][V][K]; sums over K of each tile's
     * rows, [tiles][chunks][HV][SUMS] */
    int cuts;
    float *starts, *sums;
    bool walks; /* then X2 lies in memory as in shared memory, by 64 columns, and is copied in one piece */
};

extern "C" {
void HL_OP(gdn_back_states)(struct hl_cuda *c, const struct gdn_back *a);
void HL_OP(gdn_back_scan)(struct hl_cuda *c, const struct gdn_back *a);
/* the same on chips with barriers in shared memory, which gdn_back_fits tells: P not needed, and segments
 * may have parts */
void HL_OP(gdn_back_parts)(struct hl_cuda *c, const struct gdn_back *a);
bool HL_OP(gdn_back_fits)(struct hl_cuda *c, int64_t K);
void HL_OP(gdn_back_rest)(struct hl_cuda *c, const struct gdn_back *a);
/* states and rest in one on such chips, for values of these widths; h not needed */
bool HL_OP(gdn_back_walks)(struct hl_cuda *c, int64_t V);
void HL_OP(gdn_back_starts)(struct hl_cuda *c, const struct gdn_back *a); /* where cuts > 1 */
void HL_OP(gdn_back_walk)(struct hl_cuda *c, const struct gdn_back *a);
void HL_OP(gdn_back_plain)(struct hl_cuda *c, const struct gdn_back *a);
}

/* Lane 4g + t holds columns 2t, 2t + 1 of every 8, of rows g and g + 8 of the warp's 16. */
static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}
/* exp(G_i - G_j) and exp(G_i - G_{j+1}), j even; garbage where i comes before j. The differences of whole
 * numbers are exact, so nothing is lost in a sum of -4000. */
static __device__ __forceinline__ float2 decay(const float *gates, int i, int j) {
    const float whole = gates[WHOLE + i], part = gates[PART + i];
    const float2 w = *(const float2 *)(gates + WHOLE + j), p = *(const float2 *)(gates + PART + j);
    return make_float2(fast_exp2((whole - w.x) + (part - p.x)), fast_exp2((whole - w.y) + (part - p.y)));
}

/* ---- fragments ---- */

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
/* One warp's [16][8 n] accumulators, packed, as 16 rows of the stored state. Of that, 8 rows of 32 columns
 * lie together: a warp writes 512 bytes in one piece. */
template <int n> static __device__ __forceinline__ void store_state(bf16 *to, int ld, const float (*S)[4]) {
    to += threadIdx.x % 32 * 8;
#pragma unroll
    for (int x = 0; x < n / 4; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * x + i][2 * half], S[4 * x + i][2 * half + 1]);
            gather_columns(w);
            *(uint4 *)(to + 8 * half * ld + 256 * x) = make_uint4(w[0], w[1], w[2], w[3]);
        }
}

/* Rows [0, n) of `columns` numbers into shared memory, the rest of `rows` as zeros (copies of no bytes read
 * nothing); copy_commit is the caller's. */
template <int threads, int rows, int columns>
static __device__ __forceinline__ void copy_rows(bf16 *tile, int ld, const bf16 *from, int64_t stride, int n) {
    enum { PIECES = columns / 8, STEP = threads / PIECES }; /* a step: whole rows */
    const int r0 = threadIdx.x / PIECES, x = threadIdx.x % PIECES * 8;
    from += r0 * stride + x;
    tile += r0 * ld + x;
#pragma unroll
    for (int r = 0; r < rows; r += STEP) {
        if (rows % STEP == 0 || r0 + r < rows) copy_async(tile + r * ld, from, r0 + r < n ? 16 : 0);
        from += STEP * stride;
    }
}
#endif
