/* pair_cuda.cuh -- products of rows with per-channel decay, for kernels on chunks of 64 rows:
 *     pair(X, Y, G)_ij = sum_c X_ic Y_jc exp(G_ic - G_jc), j <= i     and its gradients (docs/math.md)
 * on tensor cores (mma_bf16), for any decays.
 *
 * Rows are in blocks of 16. r_I: G at the first row of block I; r_4: G at the chunk's last row. Per row and channel
 *     a_i = exp(G_i - r_I) <= 1      b_i = exp(r_{I+1} - G_i) <= 1      rho_I = exp(r_{I+1} - r_I) = a_i b_i
 *     m_i = exp(G_i - G at the block's row 8)
 *     exp(G_i) = a_i exp(r_I)        exp(G_last - G_i) = b_i exp(G_last - r_{I+1})
 *     block (I, J), J < I:  (X a)_I (rho_{J+1} .. rho_{I-1}) (Y b)_J^T          block (I, I):  (X m)_I (Y / m)_I^T
 * m is on both sides of 1. It stays in range because in m, and only there, the decay of a row is clamped at 2^-15:
 * terms that a stronger decay would erase keep an error of 3e-5 of their previous size. All logarithms are base 2; each
 * exponent of a, b and rho is a sum of log decays, never a difference of sums, so strong decays do not cost adjacent
 * rows precision.
 *
 * Tiles are [64][K] in bf16: K / 64 panels of swizzled [64][64] (wgmma.cuh). Elements are owned in two ways:
 *     by channels   thread x of 2 K has channels 2 (x % (K/2)) and the next one, of all rows of block x / (K/2):
 *                   loads and stores of whole lines; sums over rows need no other thread
 *     by fragments  a warp has block I and some channels, as accumulators of mma_bf16: lane 4g + t rows g and g + 8 */
#ifndef HL_PAIR_CUDA_CUH
#define HL_PAIR_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/wgmma.cuh"

enum { PAIR_ROWS = 16, PAIR_BLOCKS = HL_CHUNK / PAIR_ROWS, PAIR_MIDDLE = 8 };
static constexpr float PAIR_LOG2_E = 1.4426950408889634f, PAIR_LEAST = -15.0f;

/* a chunk's decays, in shared memory */
template <int K> struct pair_decay {
    float first[PAIR_BLOCKS + 1][K]; /* log2 decay at the blocks' first rows; the last entry is 0 */
    float rest[PAIR_BLOCKS][K];      /* of their 15 other rows together */
    float rho[PAIR_BLOCKS][K];       /* no logarithms */
};
/* where element (row, col) of a tile is */
static __device__ __forceinline__ int pair_at(int row, int col) {
    return col / 64 * HL_CHUNK * 64 + tile_at<64>(row, col % 64);
}

/* ---- by channels ---- */

/* Log2 decays of the thread's rows. from: g at the chunk's first row, the head's first channel; rows past len have no
 * decay. */
template <int K>
static __device__ __forceinline__ void pair_load_decays(float2 g[PAIR_ROWS], const float *from, int64_t stride,
                                                        int len) {
    const int row = threadIdx.x / (K / 2) * PAIR_ROWS;
    from += row * stride + threadIdx.x % (K / 2) * 2;
#pragma unroll
    for (int i = 0; i < PAIR_ROWS; i++) {
        g[i] = row + i < len ? *(const float2 *)from : make_float2(0.0f, 0.0f);
        from += stride;
    }
}
/* Before a barrier: converts the loaded decays to base 2, and stores the parts of the blocks' totals. */
template <int K> static __device__ __forceinline__ void pair_totals(struct pair_decay<K> &d, float2 g[PAIR_ROWS]) {
    const int I = threadIdx.x / (K / 2), c = threadIdx.x % (K / 2) * 2;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < PAIR_ROWS; i++) g[i].x *= PAIR_LOG2_E, g[i].y *= PAIR_LOG2_E;
#pragma unroll
    for (int i = 1; i < PAIR_ROWS; i++) sum.x += g[i].x, sum.y += g[i].y;
    *(float2 *)(d.first[I] + c) = g[0];
    *(float2 *)(d.rest[I] + c) = sum;
    if (I == 0) *(float2 *)(d.first[PAIR_BLOCKS] + c) = make_float2(0.0f, 0.0f);
}
static __device__ __forceinline__ float2 pair_add(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
static __device__ __forceinline__ float2 pair_exp2(float2 x) { return make_float2(fast_exp2(x.x), fast_exp2(x.y)); }
/* After that barrier, before another. */
template <int K> static __device__ __forceinline__ void pair_rho(struct pair_decay<K> &d) {
    const int I = threadIdx.x / (K / 2), c = threadIdx.x % (K / 2) * 2;
    const float2 rest = *(const float2 *)(d.rest[I] + c), next = *(const float2 *)(d.first[I + 1] + c);
    *(float2 *)(d.rho[I] + c) = pair_exp2(pair_add(rest, next));
}
/* log2 decay of a row in m */
static __device__ __forceinline__ float2 pair_bounded(float2 g) {
    return make_float2(fmaxf(g.x, PAIR_LEAST), fmaxf(g.y, PAIR_LEAST));
}
/* log2 of exp(r_I) and of exp(G_last - r_{I+1}), at channels c and c + 1 */
template <int K> static __device__ __forceinline__ float2 pair_start(const struct pair_decay<K> &d, int I, int c) {
    float2 x = *(const float2 *)(d.first[0] + c);
#pragma unroll
    for (int J = 0; J < PAIR_BLOCKS - 1; J++)
        if (J < I) x = pair_add(x, pair_add(*(const float2 *)(d.rest[J] + c), *(const float2 *)(d.first[J + 1] + c)));
    return x;
}
template <int K> static __device__ __forceinline__ float2 pair_end(const struct pair_decay<K> &d, int I, int c) {
    float2 x = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int J = 1; J < PAIR_BLOCKS; J++)
        if (J > I) x = pair_add(x, pair_add(*(const float2 *)(d.rest[J] + c), *(const float2 *)(d.first[J + 1] + c)));
    return x;
}

/* ---- by fragments ---- */

/* Sums over the 16 rows of a block, of which a lane has `lo` (row g) and `hi` (row g + 8): over the rows up to and
 * with its own; over the rows after its own. */
static __device__ __forceinline__ void pair_prefix(float &lo, float &hi) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 4; n < 32; n *= 2) {
        const float x = __shfl_up_sync(0xffffffffu, lo, n), y = __shfl_up_sync(0xffffffffu, hi, n);
        if (lane >= n) lo += x, hi += y;
    }
    hi += __shfl_sync(0xffffffffu, lo, 28 + lane % 4);
}
static __device__ __forceinline__ void pair_suffix(float &lo, float &hi) {
    const int lane = threadIdx.x % 32;
    const float next = __shfl_sync(0xffffffffu, hi, lane % 4);
    lo = __shfl_down_sync(0xffffffffu, lo, 4), hi = __shfl_down_sync(0xffffffffu, hi, 4);
    if (lane >= 28) lo = next, hi = 0.0f;
#pragma unroll
    for (int n = 4; n < 32; n *= 2) {
        const float x = __shfl_down_sync(0xffffffffu, lo, n), y = __shfl_down_sync(0xffffffffu, hi, n);
        if (lane + n < 32) lo += x, hi += y;
    }
    lo += __shfl_sync(0xffffffffu, hi, lane % 4);
}

/* Rows of block I of pair(X, Y): acc += columns 16 J.. in acc[2 J], acc[2 J + 1], J <= I; those above the diagonal are
 * garbage. Xa, Xm, Yb, Yd: tiles of X a, X m, Y b, Y / m. */
template <int K>
static __device__ __forceinline__ void pair_products(float acc[HL_CHUNK / 8][4], const bf16 *Xa, const bf16 *Xm,
                                                     const bf16 *Yb, const bf16 *Yd, const struct pair_decay<K> &d,
                                                     int I) {
    const int t = threadIdx.x % 4;
#pragma unroll 2
    for (int k = 0; k < K; k += 16) {
        const int panel = k / 64 * HL_CHUNK * 64, col = k % 64;
        float2 lo = make_float2(1.0f, 1.0f), hi = lo;
        uint32_t x[4], y[4], own[4];
        tile_load_a<64>(own, Xm + panel, PAIR_ROWS * I, col);
        tile_load_a<64>(x, Xa + panel, PAIR_ROWS * I, col);
#pragma unroll
        for (int J = PAIR_BLOCKS - 1; J >= 0; J--) {
            if (J > I) continue;
            tile_load_b_trans<64>(y, (J == I ? Yd : Yb) + panel, PAIR_ROWS * J, col);
            if (J + 1 < I) {
                const float2 p = *(const float2 *)(d.rho[J + 1] + k + 2 * t);
                const float2 q = *(const float2 *)(d.rho[J + 1] + k + 8 + 2 * t);
                lo.x *= p.x, lo.y *= p.y, hi.x *= q.x, hi.y *= q.y;
                y[0] = pack2(low(y[0]) * lo.x, high(y[0]) * lo.y), y[1] = pack2(low(y[1]) * hi.x, high(y[1]) * hi.y);
                y[2] = pack2(low(y[2]) * lo.x, high(y[2]) * lo.y), y[3] = pack2(low(y[3]) * hi.x, high(y[3]) * hi.y);
            }
            if (J == I) mma_bf16(acc[2 * J], own, y), mma_bf16(acc[2 * J + 1], own, y + 2);
            else mma_bf16(acc[2 * J], x, y), mma_bf16(acc[2 * J + 1], x, y + 2);
        }
    }
}

/* ---- gradients. D: the gradient of pair, a tile [64][64] that is 0 above the diagonal. A warp has N times 8 channels
 * from c0 on. ---- */

template <int N> static __device__ __forceinline__ void pair_scale(float acc[N][4], const float *x) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 y = *(const float2 *)(x + 8 * n + 2 * t);
        acc[n][0] *= y.x, acc[n][1] *= y.y, acc[n][2] *= y.x, acc[n][3] *= y.y;
    }
}
/* acc += x times 16 rows of a tile [64][K], from `row` on */
template <int N>
static __device__ __forceinline__ void pair_times_rows(float acc[N][4], const uint32_t x[4], const bf16 *tile, int row,
                                                       int c0) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const int c = c0 + 8 * n;
        uint32_t y[4];
        tile_load_b<64>(y, tile + c / 64 * HL_CHUNK * 64, row, c % 64);
        mma_bf16(acc[n], x, y), mma_bf16(acc[n + 1], x, y + 2);
    }
}
/* dX of block I is a times what this leaves in acc, plus m times D_II (Y / m). Before: what the rows get from before the
 * chunk, decayed to its first row. The same for acc2 and D2, with the same Y. */
template <int N, int K>
static __device__ __forceinline__ void pair_row_sides(float acc[N][4], const bf16 *D, float acc2[N][4], const bf16 *D2,
                                                      const bf16 *Yb, const struct pair_decay<K> &d, int I, int c0) {
#pragma unroll 1
    for (int J = 0; J < I; J++) {
        uint32_t x[4], z[4];
        pair_scale<N>(acc, d.rho[J] + c0), pair_scale<N>(acc2, d.rho[J] + c0);
        tile_load_a<HL_CHUNK>(x, D, PAIR_ROWS * I, PAIR_ROWS * J);
        tile_load_a<HL_CHUNK>(z, D2, PAIR_ROWS * I, PAIR_ROWS * J);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            const int c = c0 + 8 * n;
            uint32_t y[4];
            tile_load_b<64>(y, Yb + c / 64 * HL_CHUNK * 64, PAIR_ROWS * J, c % 64);
            mma_bf16(acc[n], x, y), mma_bf16(acc[n + 1], x, y + 2);
            mma_bf16(acc2[n], z, y), mma_bf16(acc2[n + 1], z, y + 2);
        }
    }
}
/* dY of block J is b times what this leaves in acc, plus 1 / m times D_JJ^T (X m). Before: what the rows get from after
 * the chunk, relative to its last row. A second gradient D2 of the same Y, with its own X, is added. */
template <int N, int K>
static __device__ __forceinline__ void pair_column_side(float acc[N][4], const bf16 *D, const bf16 *Xa, const bf16 *D2,
                                                        const bf16 *X2a, const struct pair_decay<K> &d, int J, int c0) {
#pragma unroll 1
    for (int I = PAIR_BLOCKS - 1; I > J; I--) {
        uint32_t x[4];
        pair_scale<N>(acc, d.rho[I] + c0);
        tile_load_a_trans<HL_CHUNK>(x, D, PAIR_ROWS * I, PAIR_ROWS * J);
        pair_times_rows<N>(acc, x, Xa, PAIR_ROWS * I, c0);
        tile_load_a_trans<HL_CHUNK>(x, D2, PAIR_ROWS * I, PAIR_ROWS * J);
        pair_times_rows<N>(acc, x, X2a, PAIR_ROWS * I, c0);
    }
}

#endif
