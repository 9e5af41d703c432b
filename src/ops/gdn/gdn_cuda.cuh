/* gdn_cuda.cuh -- shared by the forward kernels of the delta rule: entry points, tiles in shared memory and their
 * fragments, the decays of a chunk. */
#ifndef HL_GDN_CUDA_CUH
#define HL_GDN_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/fastmath.cuh"
#include "cuda/wgmma.cuh"

enum { CHUNK = HL_CHUNK, GATES = 4 * HL_CHUNK, GATES_READ = 3 * HL_CHUNK }; /* READ: by those that do not form P */

/* Results of gdn_prep, for every chunk and value head. P has A's shape and its zeros. */
struct gdn_prep {
    act *A, *P;   /* [T][HV][64]: (I + L)^-1; K^{-1/2} (q k^T) decayed, with the diagonal. P NULL: not needed */
    float *gates; /* [chunks][HV][4][64]: beta, exp(G), exp(G_last - G), G / ln 2; past the chunk's rows beta is 0 */
    int *ready;   /* [chunks][HV], set to 0; NULL: not needed */
};
/* Stored by the variant `scan` for gdn_out. */
struct gdn_out {
    const bf16 *h, *v_new, *P; /* h: [chunks][HV][K][V], the state before each chunk */
    const float *gates;
    const int *ready; /* [chunks][HV], at a window's first chunk: `tiles` once its h and v_new are in memory */
    int tiles;
};
/* the first chunk of c's window, both counted from the segment's first chunk */
enum { GDN_WINDOW = 8 };
static inline __host__ __device__ int gdn_window(int c) { return c / GDN_WINDOW * GDN_WINDOW; }
extern "C" {
/* The variants of the forward pass, in the order in which they are tried (gdn_cuda.cu). */
void HL_OP(gdn_run_step)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_run_ring_split)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_run_scan)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_run_ring)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_run_chunk)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_run_plain)(struct hl_backend *backend, const struct hl_gdn *a);
/* the variant of the backward pass (gdn_back_cuda.cu) */
struct hl_gdn_form HL_OP(gdn_back_form)(struct hl_cuda *c, const struct hl_gdn *a);
/* their kernels */
void HL_OP(gdn_prep)(struct hl_backend *backend, const struct hl_gdn *a, const struct gdn_prep *p);
void HL_OP(gdn_out)(struct hl_backend *backend, const struct hl_gdn *a, const struct gdn_out *p);
/* block_S, where blocks end inside segments: first copies the initial states */
void HL_OP(gdn_keep_start)(struct hl_backend *backend, const struct hl_gdn *a);
void HL_OP(gdn_block_states)(struct hl_backend *backend, const struct hl_gdn *a);
/* m from the sums of squares that the tiles left, [tiles][n], added in the tiles' order */
void HL_OP(gdn_scores)(struct hl_backend *backend, real *m, const float *sums, int64_t tiles, int64_t n);
/* sum[n] = the sums over a key head's `group` value heads of head [..][group][K], in order */
void HL_OP(gdn_sum_heads)(struct hl_cuda *c, const act *head, act *sum, int64_t n, int K, int group);
}

/* Scratch memory: takes `bytes` of it, rounded up to 256. Starting from NULL, it only counts. */
static inline void *gdn_carve(char **scratch, int64_t bytes) {
    void *p = *scratch;
    *scratch += (bytes + 255) / 256 * 256;
    return p;
}

/* a single B fragment */
template <int WIDTH>
static __device__ __forceinline__ void frag_b_one(uint32_t b[2], const bf16 *tile, int k0, int n0) {
    ldmatrix2_trans(b, tile + tile_at<WIDTH>(k0 + threadIdx.x % 16, n0));
}

/* ---- tiles [64][VT] shared by 8 warps: 16 rows from 16 (w % 4), VT/2 columns from (w / 4) VT/2 each ---- */

/* B fragments of 16 rows from k0 of a tile [..][VT], the warp's VT/2 columns from n0 */
template <int VT>
static __device__ __forceinline__ void frags(uint32_t b[VT / 16][2], const bf16 *tile, int k0, int n0) {
    if (VT == 16) frag_b_one<VT>(b[0], tile, k0, n0);
    else
#pragma unroll
        for (int n = 0; n + 1 < VT / 16; n += 2) tile_load_b<VT>(b[n], tile, k0, n0 + 8 * n);
}

/* acc += T x, T lower triangular [64][64], for the warp's rows and columns */
template <int VT> static __device__ __forceinline__ void triangle(const bf16 *T, const bf16 *x, float acc[VT / 16][4]) {
    const int warp = threadIdx.x / 32, rows = warp % 4;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t a[4], b[VT / 16][2];
        if (c > rows) continue;
        tile_load_a<CHUNK>(a, T, 16 * rows, 16 * c);
        frags<VT>(b, x, 16 * c, warp / 4 * (VT / 2));
#pragma unroll
        for (int n = 0; n < VT / 16; n++) mma_bf16(acc[n], a, b[n]);
    }
}

/* the warp's rows of `tile` to memory, 16 bytes per lane */
template <int VT>
static __device__ __forceinline__ void store_rows(bf16 *to, const bf16 *tile, int64_t stride, int len) {
    const int warp = threadIdx.x / 32, units = VT / 16;
#pragma unroll
    for (int i = threadIdx.x % 32; i < 16 * units; i += 32) {
        const int row = warp % 4 * 16 + i / units, col = warp / 4 * (VT / 2) + i % units * 8;
        if (row < len) *(uint4 *)(to + row * stride + col) = *(const uint4 *)(tile + tile_at<VT>(row, col));
    }
}

/* Rows of one head, `stride` apart, to a tile; rows past len become 0. Does not wait. */
template <int WIDTH, int THREADS>
static __device__ __forceinline__ void load_tile(bf16 *tile, const bf16 *from, int64_t stride, int len) {
    const int units = WIDTH / 8,
              pass = THREADS / units; /* rows at a time; a multiple of 8, so that the swizzle repeats */
    const int row = threadIdx.x / units, col = threadIdx.x % units * 8;
    static_assert(pass % 8 == 0, "a pass of whole groups of 8 rows");
    tile += tile_at<WIDTH>(row, col);
    const bf16 *p = from + row * stride + col;
#pragma unroll
    for (int n = 0; n < CHUNK / pass; n++) {
        const bool in = row + n * pass < len;
        copy_async(tile + n * pass * WIDTH, in ? p : from, in ? 16 : 0);
        p += pass * stride;
    }
}

/* ---- decays ----
 * Cumulative log decays of a chunk, in powers of two, as integer and fraction: one token may subtract a hundred while
 * adjacent ones differ by 1e-3. Differences are formed before exp2, and those of the integers are exact. exp(-128) is 0
 * in float, so smaller log decays would only make the sums larger. */
struct __align__(16) gdn_decay {
    float whole[HL_CHUNK], frac[HL_CHUNK], beta[HL_CHUNK];
};
static __device__ __forceinline__ float decay_between(const struct gdn_decay *d, int i, int j) {
    return fast_exp2((d->whole[i] - d->whole[j]) + (d->frac[i] - d->frac[j]));
}
static __device__ __forceinline__ float decay_since_start(const struct gdn_decay *d, int i) {
    return fast_exp2(d->whole[i] + d->frac[i]);
}
/* Two rows per lane of a warp; g and beta at the chunk's first row, HV apart. Rows past len: no decay, beta 0. */
struct gdn_gates {
    float g[2], beta[2];
};
static __device__ __forceinline__ struct gdn_gates gdn_read_gates(const float *g, const float *beta, int64_t HV,
                                                                  int len) {
    struct gdn_gates x;
    for (int j = 0; j < 2; j++) {
        const int i = threadIdx.x % 32 * 2 + j;
        x.g[j] = g && i < len ? g[i * HV] : 0.0f;
        x.beta[j] = i < len ? beta[i * HV] : 0.0f;
    }
    return x;
}
/* by one warp */
static __device__ __forceinline__ void gdn_sum_gates(struct gdn_decay *d, const struct gdn_gates *x) {
    const int l = threadIdx.x % 32;
    const double g[2] = {(double)fmaxf(x->g[0], -128.0f), (double)fmaxf(x->g[1], -128.0f)};
    double sum = g[0] + g[1];
    for (int n = 1; n < 32; n *= 2) {
        const double before = __shfl_up_sync(0xffffffffu, sum, n);
        if (l >= n) sum += before;
    }
    for (int j = 0; j < 2; j++) {
        const double G = (j ? sum : sum - g[1]) * 1.4426950408889634074, whole = rint(G); /* log2 of e */
        d->whole[2 * l + j] = (float)whole, d->frac[2 * l + j] = (float)(G - whole);
        d->beta[2 * l + j] = x->beta[j];
    }
}

/* L transposed (strictly upper; what is on and below the diagonal is never read) and the inverse are float
 * [64][INVERSE_LD] in shared memory. */
enum { INVERSE_LD = CHUNK + 4 };

#endif
