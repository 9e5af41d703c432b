/* cache_back_tiles_cuda.cuh -- the steps of cache_back_block_cuda.cu and cache_back_block256_cuda.cu on tiles in
 * shared memory: dout.read of the queries, p and ds of a tile of queries and a tile of keys, sums over queries. */
#ifndef HL_CACHE_BACK_TILES_CUDA_CUH
#define HL_CACHE_BACK_TILES_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "ops/cache/cache_back_block_cuda.cuh"

static const float LOG2E = 1.44269504f;

/* ---- before the keys: dout.read of every query ---- */

/* A thread's loads of `read` for its warp's rows, ahead of use. The i-th is row row_of(i) of the warp: rows eight
 * apart, which have the same swizzle in shared memory, are consecutive. */
template <int D> struct loaded_reads {
    enum {
        CHUNKS = D / 8,
        PER_STEP = 32 / CHUNKS,
        ROWS = back_smem<D>::ROWS,
        ALIKE = ROWS / 8,
        EACH = ROWS / PER_STEP
    };
    uint4 x[EACH];
    float lse;
    static __device__ __forceinline__ int row_of(int i) { return i % ALIKE * 8 + i / ALIKE * PER_STEP; }
};
template <int D>
static __device__ __forceinline__ void prefetch_reads(struct loaded_reads<D> &r, const struct cache_dev &c,
                                                      const struct item &x, int h) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * r.ROWS, row = first + lane / loaded_reads<D>::CHUNKS;
    const int ld = (int)c.a.HV * D;
    const bf16 *from =
        (const bf16 *)c.a.read + (int64_t)(x.row + row) * ld + h * D + lane % loaded_reads<D>::CHUNKS * 8;
#pragma unroll
    for (int i = 0; i < loaded_reads<D>::EACH; i++) {
        r.x[i] = make_uint4(0, 0, 0, 0);
        if (row + r.row_of(i) < x.len) r.x[i] = *(const uint4 *)(from + r.row_of(i) * ld);
    }
    const bool there = lane < r.ROWS && first + lane < x.len;
    r.lse = there ? c.a.lse[(int64_t)(x.row + first + lane) * c.a.HV + h] : 0.0f;
}
/* Sums of N numbers over N lanes, the i-th in lane i: a butterfly that halves the numbers in each step. */
template <int N> static __device__ __forceinline__ float sums_by_lane(float *x) {
    if constexpr (N > 1) {
        const bool upper = threadIdx.x & N / 2;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float mine = upper ? x[i + N / 2] : x[i], other = upper ? x[i] : x[i + N / 2];
            x[i] = mine + __shfl_xor_sync(0xffffffffu, other, N / 2);
        }
        return sums_by_lane<N / 2>(x);
    }
    return x[0];
}
/* m->rowdot, m->lse, and the warp's summands of dgate and dsink. Needs a barrier before and after. */
template <int D>
static __device__ __forceinline__ void row_dots(struct back_smem<D> *m, const struct cache_dev &c,
                                                const struct loaded_reads<D> &read, const struct item &x, int h,
                                                float part[2]) {
    enum {
        CHUNKS = D / 8,
        PER_STEP = loaded_reads<D>::PER_STEP,
        ALIKE = loaded_reads<D>::ALIKE,
        EACH = loaded_reads<D>::EACH
    };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * read.ROWS, chunk = lane % CHUNKS,
              row = first + lane / CHUNKS;
    const bf16 *dout = m->dout[first / TILE] + chunk / 8 * SQUARE;
    float sums[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float a[8], b[8];
        load_wide(a, (const bf16 *)&read.x[i]);
        load_wide(b, dout + tile_at<64>(row % TILE + i / ALIKE * PER_STEP, chunk % 8 * 8) + i % ALIKE * 8 * 64);
        sums[i] = 0;
        for (int j = 0; j < 8; j++) sums[i] += a[j] * b[j];
    }
    float sum = sums_by_lane<EACH>(sums);
    for (int j = CHUNKS / 2; j >= EACH; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
    if (chunk < EACH) m->rowdot[row + read.row_of(chunk)] = sum;
    __syncwarp();
    const bool own = lane < read.ROWS, there = own && first + lane < x.len;
    const float rowdot = there ? m->rowdot[first + lane] : 0.0f;
    if (own && !there) m->rowdot[first + lane] = 0;
    const float open = there ? gate_of(c.a, x.row + first + lane, h) : 0.0f,
                lambda = lambda_of(c.a, open, sigmoid(open));
    const float dgate = slope_of(c.a, lambda) * rowdot;
    if (own) m->lse[first + lane] = there ? read.lse * LOG2E - log2f(lambda) : INFINITY; /* not there: p = 0 */
    if (there && c.a.dtoken_gate) put((act *)c.a.dtoken_gate + (int64_t)(x.row + first + lane) * c.a.HV + h, dgate);
    const float gate = warp_sum(dgate), sink = warp_sum(there ? lambda * expf(c.a.sink[h] - read.lse) * rowdot : 0.0f);
    if (lane == 0) part[0] = gate, part[1] = -sink;
}

/* ---- a tile of queries and a tile of keys ---- */

/* scores and their gradients: s = q k^T, dp = dout v^T */
template <int D>
static __device__ __forceinline__ void score(float (*s)[4], float (*dp)[4], const struct back_smem<D> *m, int i) {
    wgmma_hold<8>(dp);
    wgmma_begin<8>(s);
#pragma unroll
    for (int x = 0; x < D; x += 16) {
        const int panel = x / 64 * SQUARE;
        wgmma_ss<TILE>(s, operand<64, false>{m->q[i] + panel, 0, x % 64}, operand<64, false>{m->k + panel, 0, x % 64});
        wgmma_ss<TILE>(dp, operand<64, false>{m->dout[i] + panel, 0, x % 64},
                       operand<64, false>{m->v + panel, 0, x % 64});
    }
    wgmma_end<8>(s);
    wgmma_hold<8>(dp);
}

/* The mask: keys from `keys` on, and if `causal` those after their query, both relative to their tiles. */
struct mask {
    int keys;
    bool causal;
};
static __device__ __forceinline__ bool hidden(const struct mask &e, int query, int key) {
    return key >= e.keys || (e.causal && key > query);
}

/* s becomes lambda p and dp the gradient of q.k; TAU: returns the thread's part of the sum of ds s. */
template <int D, bool TAU>
static __device__ __forceinline__ float weigh(float (*s)[4], float (*dp)[4], const struct back_smem<D> *m, int i,
                                              float tau, const struct mask &e) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float lse[2] = {m->lse[i * TILE + row], m->lse[i * TILE + row + 8]};
    const float rowdot[2] = {m->rowdot[i * TILE + row], m->rowdot[i * TILE + row + 8]};
    const float scale = tau * LOG2E, less[2] = {tau * rowdot[0], tau * rowdot[1]};
    const bool masked = e.causal || e.keys < TILE;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p = fast_exp2(s[n][j] * scale - lse[j / 2]);
            if (TAU) {
                if (masked && hidden(e, row + j / 2 * 8, n * 8 + 2 * t + j % 2)) p = 0;
                const float ds = p * (dp[n][j] - rowdot[j / 2]);
                sum += ds * s[n][j];
                dp[n][j] = ds * tau;
            } else dp[n][j] = p * (dp[n][j] * tau - less[j / 2]);
            s[n][j] = p;
        }
    if constexpr (!TAU) {
        if (!masked) return 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (hidden(e, row + j / 2 * 8, n * 8 + 2 * t + j % 2)) s[n][j] = dp[n][j] = 0;
    }
    return sum;
}

/* p and ds of query tile i with the current keys, to shared memory; dq += ds k */
template <int D, bool TAU>
static __device__ __forceinline__ float score_tile(float (*dq)[4], struct back_smem<D> *m, int i, float tau,
                                                   const struct mask &e) {
    float s[8][4] = {}, dp[8][4] = {};
    uint32_t x[4][4], y[4][4];
    score<D>(s, dp, m, i);
    const float sum = weigh<D, TAU>(s, dp, m, i, tau, e);
    pack_square(x, dp), pack_square(y, s);
    wgmma_hold_a<4>(x);
    wgmma_begin<D / 8>(dq);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int col = 0; col < D; col += back_smem<D>::COLUMNS)
            wgmma_rs<back_smem<D>::COLUMNS>(dq + col / 8, x[j],
                                            operand<64, true, SQUARE>{m->k + col / 64 * SQUARE, 16 * j, 0});
    wgmma_commit_wait<1>(); /* continues while these are stored */
    store_square(m->p[i], y), store_square(m->ds[i], x);
    wgmma_wait_all<D / 8>(dq);
    wgmma_hold_a<4>(x);
    return sum;
}

/* d (64 keys, columns from `col` on) = p^T x over the tiles [first, end) of queries */
template <int D>
static __device__ __forceinline__ void sum_queries(float (*d)[4], const bf16 (*p)[SQUARE], const bf16 (*x)[TILE * D],
                                                   int col, int first, int end) {
    enum { N = back_smem<D>::COLUMNS };
    for (int i = first; i < end; i++) {
        wgmma_begin<N / 8>(d);
#pragma unroll
        for (int j = 0; j < TILE; j += 16)
            wgmma_ss<N>(d, operand<64, true>{p[i], j, 0}, operand<64, true, SQUARE>{x[i] + col / 64 * SQUARE, j, 0});
        wgmma_end<N / 8, 1>(d); /* those of the previous tile */
    }
    wgmma_wait_all<N / 8>(d);
}

#endif
