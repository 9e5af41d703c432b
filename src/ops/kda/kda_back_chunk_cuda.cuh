/* kda_back_chunk_cuda.cuh -- for kda_back_chunk_cuda.cu: shared memory, and a chunk's q, k and decays as fragments. */
#ifndef HL_KDA_BACK_CHUNK_CUDA_CUH
#define HL_KDA_BACK_CHUNK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/decay/pair_cuda.cuh"
#include "ops/kda/kda_back_cuda.cuh"

enum { STAGES = 2, COLS = 32 /* channels of a warpgroup */ };

/* 64 columns of V: a chunk's inputs for them */
template <int K> struct slice {
    bf16 h[64 * K], dh[64 * K]; /* [K / 32] panels of [64][32] */
    bf16 dO[PANEL], X2[PANEL], v_new[PANEL], v[PANEL];
};
template <int K> struct smem {
    slice<K> stage[STAGES];
    bf16 qa[CHUNK * K], ka[CHUNK * K], kb[CHUNK * K]; /* q a, beta k a, k b of pair_cuda.cuh */
    bf16 own[CHUNK * K]; /* operands of the diagonal blocks, in turn, each used by its own warp */
    bf16 dS[CHUNK * CHUNK], N[CHUNK * CHUNK];
    struct pair_decay<K> d;                                   /* first: later the sums of blocks */
    float to_middle[PAIR_BLOCKS][K], to_next[PAIR_BLOCKS][K]; /* log2 decays: r_I to row 8; row 8 to r_{I+1} */
    float kU[PAIR_BLOCKS][K];                                 /* sums of K U over a block */
    float last[K], hdh[K], beta[CHUNK], diagonal[CHUNK], vx[CHUNK], ke[K / COLS][CHUNK]; /* last: e^{G_last} */
    uint64_t full[STAGES];
};

/* A thread's part of the chunk: rows 16 I + g + 8 h, channels c0 + 8 n + 2 t and the next, at [h][n] or as accumulators
 * [n][2 h + e]. */
struct fragments {
    uint32_t q[2][4], k[2][4];
    float m[4][4];    /* log2 of m */
    uint32_t bounded; /* bit 4 n + i: the row's decay exceeds what m allows */
};

/* Prevents the compiler from keeping every exponential and unpacked number for its next use, and spilling. */
static __device__ __forceinline__ void compute_again(struct fragments &f) {
    wgmma_hold<4>(f.m), wgmma_hold_a<2>(f.q), wgmma_hold_a<2>(f.k);
}

static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}
/* Eight adjacent channels of a row, c0 + 8 t.., become channels c0 + 8 n + 2 t, + 1 of four tiles. */
static __device__ __forceinline__ void load_pairs(uint32_t w[4], const bf16 *from, bool in) {
    uint4 u = make_uint4(0u, 0u, 0u, 0u);
    if (in) u = *(const uint4 *)from;
    w[0] = u.x, w[1] = u.y, w[2] = u.z, w[3] = u.w;
    gather_columns(w);
}
static __device__ __forceinline__ void load_floats(uint32_t even[4], uint32_t odd[4], const float *from, bool in) {
    float4 u = make_float4(0.0f, 0.0f, 0.0f, 0.0f), v = u;
    if (in) u = *(const float4 *)from, v = *(const float4 *)(from + 4);
    even[0] = __float_as_uint(u.x), even[1] = __float_as_uint(u.z), even[2] = __float_as_uint(v.x);
    even[3] = __float_as_uint(v.z), odd[0] = __float_as_uint(u.y), odd[1] = __float_as_uint(u.w);
    odd[2] = __float_as_uint(v.y), odd[3] = __float_as_uint(v.w);
    gather_columns(even), gather_columns(odd);
}
/* the reverse: dg */
static __device__ __forceinline__ void store_floats(float *to, uint32_t even[4], uint32_t odd[4], bool in) {
    gather_columns(even), gather_columns(odd);
    if (!in) return;
    *(uint4 *)to = make_uint4(even[0], odd[0], even[1], odd[1]);
    *(uint4 *)(to + 4) = make_uint4(even[2], odd[2], even[3], odd[3]);
}

/* Computes m from the log2 decays in m; block sums go to shared memory, and a warpgroup barrier must follow. In the
 * backward pass all decays are bounded like those of m, so b is derived from m. */
template <int K> static __device__ __forceinline__ void scan_decays(struct fragments &f, smem<K> &x, int c0) {
    const int I = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    f.bounded = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float *p = f.m[n], mid[2];
        const int c = c0 + 8 * n + 2 * t;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f.bounded |= (uint32_t)(p[i] < PAIR_LEAST) << (4 * n + i);
            p[i] = fmaxf(p[i], PAIR_LEAST);
        }
        if (g == 0) *(float2 *)(x.d.first[I] + c) = make_float2(p[0], p[1]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (g == 0) p[e] = 0.0f;
            pair_prefix(p[e], p[2 + e]);
            mid[e] = __shfl_sync(0xffffffffu, p[2 + e], t); /* of row 8 */
        }
        if (g == 7) *(float2 *)(x.d.rest[I] + c) = make_float2(p[2], p[3]);
        if (g == 0) *(float2 *)(x.to_middle[I] + c) = make_float2(mid[0], mid[1]);
        p[0] -= mid[0], p[1] -= mid[1], p[2] -= mid[0], p[3] -= mid[1];
    }
}
/* After that barrier: rho, e^{G_last}, and the inputs of b. */
template <int K> static __device__ __forceinline__ void finish_decays(smem<K> &x, int c0) {
    const int I = threadIdx.x / 32 % 4, c = c0 + threadIdx.x % 32;
    const float rest = x.d.rest[I][c], next = x.d.first[I + 1][c];
    x.d.rho[I][c] = fast_exp2(rest + next);
    x.to_next[I][c] = rest - x.to_middle[I][c] + next;
    if (I == 0) { /* the whole chunk */
        float sum = x.d.first[0][c] + rest;
#pragma unroll
        for (int J = 1; J < PAIR_BLOCKS; J++) sum += x.d.first[J][c] + x.d.rest[J][c];
        x.last[c] = fast_exp2(sum);
    }
    __syncwarp(); /* to_next is the warp's own */
}
static __device__ __forceinline__ uint32_t scaled(uint32_t pair, float x, float y) {
    return pack2(low(pair) * x, high(pair) * y);
}
/* 2^(sign m + y) of the thread's elements of tile n; y: at the warpgroup's first channel */
static __device__ __forceinline__ void decays_of(float d[4], const struct fragments &f, float sign, const float *y,
                                                 int n) {
    const float2 z = *(const float2 *)(y + 8 * n + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = fast_exp2(sign * f.m[n][i] + (i % 2 ? z.y : z.x));
}
/* the operands of the pair products of different blocks */
template <int K> static __device__ __forceinline__ void write_operands(smem<K> &x, struct fragments &f, int c0) {
    const int I = threadIdx.x / 32 % 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float a[4], b[4];
        decays_of(a, f, 1.0f, x.to_middle[I] + c0, n);
        decays_of(b, f, -1.0f, x.to_next[I] + c0, n);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float beta = x.beta[own_row(h)];
            const int at = pair_at(own_row(h), c0 + 8 * n + 2 * t);
            *(uint32_t *)(x.qa + at) = scaled(f.q[h][n], a[2 * h], a[2 * h + 1]);
            *(uint32_t *)(x.ka + at) = scaled(f.k[h][n], beta * a[2 * h], beta * a[2 * h + 1]);
            *(uint32_t *)(x.kb + at) = scaled(f.k[h][n], b[2 * h], b[2 * h + 1]);
        }
    }
    compute_again(f);
}
/* An operand of the diagonal block: y m^sign, y being q or k, times beta if requested. Read only by this warp. */
template <int K, bool BETA>
static __device__ __forceinline__ void write_own(smem<K> &x, struct fragments &f, const uint32_t y[2][4], float sign,
                                                 int c0) {
    const int t = threadIdx.x % 4;
    compute_again(f);
    __syncwarp(); /* the previous one has been read */
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float by = BETA ? x.beta[own_row(h)] : 1.0f;
            *(uint32_t *)(x.own + pair_at(own_row(h), c0 + 8 * n + 2 * t)) =
                scaled(y[h][n], by * fast_exp2(sign * f.m[n][2 * h]), by * fast_exp2(sign * f.m[n][2 * h + 1]));
        }
    __syncwarp();
}

#endif
