/* many_product.cuh -- up to 64 rows times a matrix, for sessions decoded side by side; every weight is read once.
 *
 * What limits such products is how much a multiprocessor can take in, so K is cut as well as the outputs: a
 * block has NB outputs of some panels of 64 columns, of W and of x, all in shared memory at once, W before
 * others are waited for. The blocks of a cluster have the parts of K, and each adds up a part of the rows over
 * all of them, in order. How a product is cut follows from its shape alone, so the number of rows changes no
 * bit.
 *
 * x is normed on its way where the product wants it so, from sums of squares over 32 columns, which the product
 * that made x has left. */
#ifndef HL_MANY_PRODUCT_CUH
#define HL_MANY_PRODUCT_CUH
#include "cuda/cluster.cuh"
#include "cuda/quick.cuh"
#include "cuda/wgmma.cuh"

enum { PRODUCT_THREADS = 256, MANY_ROWS = 64, PANEL = 64, PANELS = 8, SPLITS = 8, SQUARES = 32 };

/* NORMED: out = norm(x) W^T; LOGITS: the same as floats; GATED: out = silu(norm(x) W^T) (norm(x) W2^T);
 * JOINED: out = from + x W^T */
enum product_kind { NORMED, LOGITS, GATED, JOINED };
struct many_linear {
    const bf16 *x; /* [M][K] */
    const bf16 *W, *W2;
    int M, K, N;
    const float *norm, *squares; /* [K], [M][K / SQUARES] */
    float eps;
    const bf16 *from;
    float *squares_out; /* JOINED: [M][N / SQUARES] */
    void *out;          /* [M][ld] */
    int ld, splits;
};

template <int NB> struct product_room {
    enum { X = MANY_ROWS * PANEL, W = NB * PANEL, LD = NB + 8, SUMS = MANY_ROWS * LD };
};
static inline int panels_of(const struct many_linear &a) { return (a.K + PANEL - 1) / PANEL; }
template <int NB> static size_t product_bytes(const struct many_linear &a) {
    typedef struct product_room<NB> room;
    const int n = (panels_of(a) + a.splits - 1) / a.splits;
#ifdef HL_CUDA_EMU
    const int sums = a.splits;
#else
    const int sums = 1;
#endif
    return TILES_ROOM + (size_t)n * (room::X + room::W) * 2 + (size_t)n * PANEL * 4 +
           (size_t)sums * room::SUMS * 4;
}

/* Where row r of a block's weights lies; NULL: past the end. */
template <int NB, int KIND>
static __device__ __forceinline__ const bf16 *weights_at(const struct many_linear &a, int tile, int r) {
    const int half = KIND == GATED ? NB / 2 : NB, row = tile * half + r % half;
    return row < a.N ? (r < half ? a.W : a.W2) + (int64_t)row * a.K : NULL;
}

/* d += x W^T over a panel. A warpgroup. */
template <int NB>
static __device__ __forceinline__ void product_panel(float (*d)[4], const bf16 *x, const bf16 *W) {
#pragma unroll
    for (int k = 0; k < PANEL; k += 16) {
        const struct operand<PANEL, false> A = {x, 0, k}, B = { W, 0, k };
        const struct operand<PANEL, false> B2 = { W, NB == 96 ? 64 : 32, k };
        if constexpr (NB == 32) product<32>(d, A, B);
        if constexpr (NB == 48) product<32>(d, A, B), product<16>(d + 4, A, B2);
        if constexpr (NB == 64) product<64>(d, A, B);
        if constexpr (NB == 96) product<64>(d, A, B), product<32>(d + 8, A, B2);
    }
}

/* A thread brings 16 bytes, column `unit` of eight, of every 32nd row of a panel. */
struct bring {
    int unit, row, first, n; /* first panel, panels */
    float r[2];              /* what norms its two rows of x */
};
template <int NB, int KIND>
static __device__ __forceinline__ void bring_weights(const struct many_linear &a, const struct bring &b,
                                                     int tile, bf16 *W) {
    for (int r = b.row; r < NB; r += 32) {
        const bf16 *from = weights_at<NB, KIND>(a, tile, r);
        for (int p = 0; p < b.n; p++) {
            const int col = (b.first + p) * PANEL + b.unit * 8;
            const bool there = from && col < a.K;
            copy_async(W + p * product_room<NB>::W + tile_at<PANEL>(r, b.unit * 8), there ? from + col : a.W,
                       there ? 16 : 0);
        }
    }
}
static __device__ __forceinline__ void bring_rows(const struct many_linear &a, const struct bring &b, int p,
                                                  bf16 *x) {
    const int col = (b.first + p) * PANEL + b.unit * 8;
    for (int i = 0; i < 2; i++) {
        const bool there = b.row + 32 * i < a.M && col < a.K;
        copy_async(x + tile_at<PANEL>(b.row + 32 * i, b.unit * 8),
                   there ? a.x + (int64_t)(b.row + 32 * i) * a.K + col : a.x, there ? 16 : 0);
    }
}
/* The factors of the thread's two rows; eight threads add up one. */
static __device__ __forceinline__ void bring_norms(const struct many_linear &a, struct bring &b) {
    const int n = a.K / SQUARES;
    for (int i = 0; i < 2; i++) {
        const int row = b.row + 32 * i;
        float s = 0.0f;
        for (int j = b.unit; row < a.M && j < n; j += 8) s += a.squares[row * n + j];
        for (int j = 1; j < 8; j *= 2) s += __shfl_xor_sync(0xffffffffu, s, j);
        b.r[i] = row < a.M ? rsqrtf(s / (float)a.K + a.eps) : 0.0f;
    }
}
/* What the thread has brought of x, in place. */
static __device__ __forceinline__ void norm_rows(const struct bring &b, bf16 *x, const float *w) {
    for (int i = 0; i < 2; i++) {
        bf16 *at = x + tile_at<PANEL>(b.row + 32 * i, b.unit * 8);
        float v[8];
        load_wide(v, at);
        for (int j = 0; j < 8; j++) v[j] = b.r[i] * v[j] * w[b.unit * 8 + j];
        store_wide(at, v);
    }
}

/* until the thread's copies of x up to panel p are there */
static __device__ __forceinline__ void wait_panel(int p) {
    static_assert(PANELS == 8, "a case each");
    switch (p) {
    case 0: return copy_wait<7>();
    case 1: return copy_wait<6>();
    case 2: return copy_wait<5>();
    case 3: return copy_wait<4>();
    case 4: return copy_wait<3>();
    case 5: return copy_wait<2>();
    case 6: return copy_wait<1>();
    default: return copy_wait<0>();
    }
}

/* One part of K: the block's sums to P [64][LD]. All threads; a barrier must follow. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_part(const struct many_linear &a, int tile, int rank,
                                                    char *shared, int most, float *P) {
    typedef struct product_room<NB> room;
    enum { TILES = NB / 8 };
    const int panels = (a.K + PANEL - 1) / PANEL, wg = group_of_warps();
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, col = lane % 4 * 2;
    bf16 *X = (bf16 *)shared, *W = X + most * room::X;
    float *norm = (float *)(W + most * room::W), d[TILES][4] = {};
    struct bring b = {(int)threadIdx.x % 8, (int)threadIdx.x / 8, panels * rank / a.splits};
    b.n = panels * (rank + 1) / a.splits - b.first;
    bring_weights<NB, KIND>(a, b, tile, W);
    copy_commit();
    for (int i = threadIdx.x; KIND != JOINED && i < b.n * PANEL; i += PRODUCT_THREADS)
        norm[i] = b.first * PANEL + i < a.K ? a.norm[b.first * PANEL + i] : 0.0f;
    wait_for_others(), let_others_start();
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        if (p < b.n) bring_rows(a, b, p, X + p * room::X);
        copy_commit();
    }
    if (KIND != JOINED) bring_norms(a, b);
    __syncthreads(); /* the norm's weights */
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        if (p >= b.n) break;
        wait_panel(p);
        if (KIND != JOINED) norm_rows(b, X + p * room::X, norm + p * PANEL);
        operands_written();
        __syncthreads();
        if (p % 2 != wg) continue;
        products_begin<TILES>(d);
        product_panel<NB>(d, X + p * room::X, W + p * room::W);
        products_end<TILES, PANELS - 1>(d);
    }
    products_wait<TILES>(d);
    for (int turn = 1; turn >= 0; turn--) { /* the second half of the warps first */
#pragma unroll
        for (int n = 0; n < TILES && wg == turn; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 *to = (float2 *)(P + (row + 8 * i) * room::LD + n * 8 + col);
                const float2 old = turn ? make_float2(0.0f, 0.0f) : *to;
                *to = make_float2(d[n][2 * i] + old.x, d[n][2 * i + 1] + old.y);
            }
        if (turn) __syncthreads();
    }
}

/* The sum over the parts at P [row][col]. */
template <int NB>
static __device__ __forceinline__ float product_sum(const struct many_linear &a, const float *P, int at) {
    float s = 0.0f;
#ifdef HL_CUDA_EMU
    for (int r = 0; r < a.splits; r++) s += P[r * product_room<NB>::SUMS + at];
#else
    float x[SPLITS];
    if (a.splits == 1) return P[at];
#pragma unroll
    for (int r = 0; r < SPLITS; r++) x[r] = r < a.splits ? cluster_float(P + at, r) : 0.0f;
#pragma unroll
    for (int r = 0; r < SPLITS; r++) s += x[r];
#endif
    return s;
}
/* Rows [from, to) of the outputs. All threads. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_out(const struct many_linear &a, int tile, const float *P,
                                                   int from, int to) {
    enum { LD = product_room<NB>::LD, OUT = KIND == GATED ? NB / 2 : NB };
    for (int i = threadIdx.x; i < (to - from) * OUT; i += PRODUCT_THREADS) {
        const int row = from + i / OUT, col = i % OUT, n = tile * OUT + col;
        float y = product_sum<NB>(a, P, row * LD + col);
        const bool there = row < a.M && n < a.N;
        const int64_t at = (int64_t)row * a.ld + n;
        if (KIND == GATED) y = quick_silu(y) * product_sum<NB>(a, P, row * LD + col + NB / 2);
        if (KIND == LOGITS && there) ((float *)a.out)[at] = y;
        if (KIND == NORMED || KIND == GATED)
            if (there) put((bf16 *)a.out + at, y);
        if (KIND == JOINED) { /* a warp has 32 columns of a row */
            const bf16 z = __float2bfloat16(y + (there ? f32(a.from[at]) : 0.0f));
            const float squares = warp_sum(there ? f32(z) * f32(z) : 0.0f);
            if (there) ((bf16 *)a.out)[at] = z;
            if (there && threadIdx.x % 32 == 0) a.squares_out[row * (a.N / SQUARES) + n / SQUARES] = squares;
        }
    }
}

/* grid (tiles splits), clusters of `splits` */
template <int NB, int KIND>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 1) many_product(const struct many_linear a) {
    typedef struct product_room<NB> room;
    const int panels = (a.K + PANEL - 1) / PANEL, most = (panels + a.splits - 1) / a.splits;
    char *shared = shared_tiles();
    float *P = (float *)(shared + most * (room::X + room::W) * 2 + most * PANEL * 4);
#ifdef HL_CUDA_EMU
    for (int rank = 0; rank < a.splits; rank++) {
        product_part<NB, KIND>(a, blockIdx.x, rank, shared, most, P + rank * room::SUMS);
        __syncthreads();
    }
    product_out<NB, KIND>(a, blockIdx.x, P, 0, MANY_ROWS);
#else
    const int rank = a.splits > 1 ? cluster_rank() : 0, tile = blockIdx.x / a.splits;
    const int rows = MANY_ROWS / a.splits;
    product_part<NB, KIND>(a, tile, rank, shared, most, P);
    if (a.splits > 1) cluster_sync();
    else __syncthreads();
    product_out<NB, KIND>(a, tile, P, rank * rows, (rank + 1) * rows);
    if (a.splits > 1) cluster_sync(); /* others may be reading here */
#endif
}

/* ---- how a product is cut ---- */

enum { CHIP = 132, SHARED_MOST = 224 << 10 };
/* about what a multiprocessor takes in, in bytes, with what a cluster's exchange costs beside it; negative: no room */
template <int NB> static int64_t product_cost(struct many_linear a, int kind, int splits) {
    const int out = kind == GATED ? NB / 2 : NB, n = (panels_of(a) + splits - 1) / splits;
    const int64_t blocks = (int64_t)((a.N + out - 1) / out) * splits;
    a.splits = splits;
    if (n > PANELS || splits > panels_of(a) || product_bytes<NB>(a) > SHARED_MOST) return -1;
    return (blocks + CHIP - 1) / CHIP * n * (MANY_ROWS + NB) * PANEL * 2 + (splits > 1 ? splits * 1000 : 0);
}
template <int NB, int KIND> static void product_start(struct hl_cuda *c, const struct many_linear &a) {
    const int out = KIND == GATED ? NB / 2 : NB;
#ifdef HL_CUDA_EMU
    launch(c, many_product<NB, KIND>, blocks_for(a.N, out), PRODUCT_THREADS, product_bytes<NB>(a), a);
#else
    launch_clusters(c, many_product<NB, KIND>, (unsigned)a.splits, blocks_for(a.N, out) * (unsigned)a.splits,
                    PRODUCT_THREADS, product_bytes<NB>(a), a);
#endif
}
/* N1 or N2 outputs a block, whichever is less work */
template <int N1, int N2, int KIND> static void start_product(struct hl_cuda *c, struct many_linear a) {
    int64_t least = -1;
    bool second = false;
    for (int i = 0; i < 2; i++)
        for (int splits = 1; splits <= SPLITS; splits *= 2) {
            const int64_t cost = i ? product_cost<N2>(a, KIND, splits) : product_cost<N1>(a, KIND, splits);
            if (cost >= 0 && (least < 0 || cost < least)) least = cost, second = i, a.splits = splits;
        }
    if (second) product_start<N2, KIND>(c, a);
    else product_start<N1, KIND>(c, a);
}

#endif
