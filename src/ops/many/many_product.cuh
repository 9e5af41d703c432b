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

enum { PRODUCT_THREADS = 256, MANY_ROWS = 64, PANEL = 64, PANELS = 8, STAGE = 4, SPLITS = 8, SQUARES = 32 };
enum { NORM_ROOM = PANELS * PANEL * 4 }; /* the norm's weights */

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

/* The first warpgroup has the first FIRST outputs, the second the others. The sums take the place of the tiles. */
template <int NB> struct product_room {
    enum {
        X = MANY_ROWS * PANEL,
        W = NB * PANEL,
        LD = NB + 8,
        SUMS = MANY_ROWS * LD,
        FIRST = NB == 176 ? 96 : NB / 2,
    };
};
static inline int panels_of(const struct many_linear &a) { return (a.K + PANEL - 1) / PANEL; }
template <int NB> static size_t product_bytes(const struct many_linear &a) {
    typedef struct product_room<NB> room;
    const size_t n = (size_t)(panels_of(a) + a.splits - 1) / a.splits, tiles = n * (room::X + room::W) * 2,
                 sums = room::SUMS * 4;
#ifdef HL_CUDA_EMU
    return NORM_ROOM + TILES_ROOM + tiles + a.splits * sums;
#else
    return NORM_ROOM + TILES_ROOM + (tiles > sums ? tiles : sums);
#endif
}

/* Where row r of a block's weights lies; NULL: past the end. */
template <int NB, int KIND>
static __device__ __forceinline__ const bf16 *weights_at(const struct many_linear &a, int tile, int r) {
    const int half = KIND == GATED ? NB / 2 : NB, row = tile * half + r % half;
    return row < a.N ? (r < half ? a.W : a.W2) + (int64_t)row * a.K : NULL;
}

/* d += x W^T over a panel and N outputs. A warpgroup. */
template <int N>
static __device__ __forceinline__ void product_panel(float (*d)[4], const bf16 *x, const bf16 *W) {
#pragma unroll
    for (int k = 0; k < PANEL; k += 16) {
        const struct operand<PANEL, false> A = {x, 0, k}, B = { W, 0, k };
        if constexpr (N == 32 || N == 64) product<N>(d, A, B);
        if constexpr (N == 48) {
            const struct operand<PANEL, false> C = { W, 32, k };
            product<32>(d, A, B), product<16>(d + 4, A, C);
        }
        if constexpr (N == 80 || N == 96) {
            const struct operand<PANEL, false> C = { W, 64, k };
            product<64>(d, A, B), product<N - 64>(d + 8, A, C);
        }
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

/* Panels [from, to) of x are there: normed, then multiplied. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_stage(const struct bring &b, float (*d)[4], bf16 *X,
                                                     const bf16 *W, const float *norm, int from, int to) {
    typedef struct product_room<NB> room;
    enum { FIRST = room::FIRST, SECOND = NB - FIRST, TILES = FIRST / 8 };
#pragma unroll
    for (int p = 0; p < STAGE; p++)
        if (KIND != JOINED && from + p < to)
            norm_rows(b, X + (from + p) * room::X, norm + (from + p) * PANEL);
    operands_written();
    __syncthreads();
    products_begin<TILES>(d);
    if (group_of_warps() == 0) {
#pragma unroll
        for (int p = 0; p < STAGE; p++)
            if (from + p < to) product_panel<FIRST>(d, X + (from + p) * room::X, W + (from + p) * room::W);
    } else {
#pragma unroll
        for (int p = 0; p < STAGE; p++)
            if (from + p < to)
                product_panel<SECOND>(d, X + (from + p) * room::X, W + (from + p) * room::W + FIRST * PANEL);
    }
    products_end<TILES>(d);
}

/* One part of K: the block's sums to P [64][LD]. All threads; a barrier must follow. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_part(const struct many_linear &a, int tile, int rank,
                                                    char *shared, int most, float *P) {
    typedef struct product_room<NB> room;
    const int panels = (a.K + PANEL - 1) / PANEL, wg = group_of_warps();
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, col = lane % 4 * 2;
    float *norm = (float *)shared, d[room::FIRST / 8][4] = {};
    bf16 *X = (bf16 *)(shared + NORM_ROOM), *W = X + most * room::X;
    struct bring b = {(int)threadIdx.x % 8, (int)threadIdx.x / 8, panels * rank / a.splits};
    b.n = panels * (rank + 1) / a.splits - b.first;
    bring_weights<NB, KIND>(a, b, tile, W);
    copy_commit();
    for (int i = threadIdx.x; KIND != JOINED && i < b.n * PANEL; i += PRODUCT_THREADS)
        norm[i] = b.first * PANEL + i < a.K ? a.norm[b.first * PANEL + i] : 0.0f;
    wait_for_others(), let_others_start();
    for (int p = 0; p < b.n; p++) bring_rows(a, b, p, X + p * room::X);
    copy_commit();
    if (KIND != JOINED) bring_norms(a, b);
    copy_wait<0>();
    __syncthreads(); /* the norm's weights */
    for (int p = 0; p < b.n; p += STAGE)
        product_stage<NB, KIND>(b, d, X, W, norm, p, min(b.n, p + (int)STAGE));
    __syncthreads(); /* the tiles' place */
#pragma unroll
    for (int n = 0; n < room::FIRST / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (wg == 0 || n < (NB - room::FIRST) / 8)
                *(float2 *)(P + (row + 8 * i) * room::LD + wg * room::FIRST + n * 8 + col) =
                    make_float2(d[n][2 * i], d[n][2 * i + 1]);
}

/* Four neighbours of the sum over the parts at P [row][col], in order. */
template <int NB>
static __device__ __forceinline__ float4 product_sum(const struct many_linear &a, const float *P, int at) {
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f), x[SPLITS];
#pragma unroll
    for (int r = 0; r < SPLITS; r++) {
        x[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#ifdef HL_CUDA_EMU
        if (r < a.splits) x[r] = *(const float4 *)(P + r * product_room<NB>::SUMS + at);
#else
        if (r < a.splits) x[r] = cluster_floats(P + at, r);
#endif
    }
#pragma unroll
    for (int r = 0; r < SPLITS; r++) s.x += x[r].x, s.y += x[r].y, s.z += x[r].z, s.w += x[r].w;
    return s;
}
/* Four neighbours to the outputs, or those of them that there are. */
static __device__ __forceinline__ void put_four(const struct many_linear &a, bf16 *out, int n,
                                                const float *y) {
    if (n + 4 <= a.N && a.ld % 4 == 0) *(uint2 *)out = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
    else
        for (int j = 0; j < 4 && n + j < a.N; j++) put(out + j, y[j]);
}
/* Rows [from, to) of the outputs. All threads. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_out(const struct many_linear &a, int tile, const float *P,
                                                   int from, int to) {
    enum { LD = product_room<NB>::LD, OUT = KIND == GATED ? NB / 2 : NB, FOURS = OUT / 4 };
    for (int i = threadIdx.x; i < (to - from) * FOURS; i += PRODUCT_THREADS) {
        const int row = from + i / FOURS, col = i % FOURS * 4, n = tile * OUT + col;
        const bool there = row < a.M && n < a.N;
        const int64_t at = (int64_t)row * a.ld + n;
        uint2 old = make_uint2(0, 0);
        if (KIND == JOINED && there) old = *(const uint2 *)(a.from + at);
        const float4 s = product_sum<NB>(a, P, row * LD + col);
        float y[4] = {s.x, s.y, s.z, s.w};
        if (KIND == GATED) {
            const float4 u = product_sum<NB>(a, P, row * LD + col + NB / 2);
            y[0] = quick_silu(y[0]) * u.x, y[1] = quick_silu(y[1]) * u.y;
            y[2] = quick_silu(y[2]) * u.z, y[3] = quick_silu(y[3]) * u.w;
        }
        if (KIND == LOGITS && n + 4 <= a.N && a.ld % 4 == 0) {
            if (there) *(float4 *)((float *)a.out + at) = make_float4(y[0], y[1], y[2], y[3]);
        } else if (KIND == LOGITS)
            for (int j = 0; j < 4 && there && n + j < a.N; j++) ((float *)a.out)[at + j] = y[j];
        if ((KIND == NORMED || KIND == GATED) && there) put_four(a, (bf16 *)a.out + at, n, y);
        if (KIND == JOINED) { /* eight threads have SQUARES columns of a row; all warps are whole here */
            const uint2 z = make_uint2(pack2(y[0] + low(old.x), y[1] + high(old.x)),
                                       pack2(y[2] + low(old.y), y[3] + high(old.y)));
            float squares =
                low(z.x) * low(z.x) + high(z.x) * high(z.x) + low(z.y) * low(z.y) + high(z.y) * high(z.y);
            for (int j = 1; j < 8; j *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
            if (there) *(uint2 *)((bf16 *)a.out + at) = z;
            if (there && col % SQUARES == 0) a.squares_out[row * (a.N / SQUARES) + n / SQUARES] = squares;
        }
    }
}

/* grid (tiles splits), clusters of `splits` */
template <int NB, int KIND>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 1) many_product(const struct many_linear a) {
    const int panels = (a.K + PANEL - 1) / PANEL, most = (panels + a.splits - 1) / a.splits;
    char *shared = shared_tiles();
#ifdef HL_CUDA_EMU
    typedef struct product_room<NB> room;
    float *P = (float *)(shared + NORM_ROOM + most * (room::X + room::W) * 2);
    for (int rank = 0; rank < a.splits; rank++) {
        product_part<NB, KIND>(a, blockIdx.x, rank, shared, most, P + rank * room::SUMS);
        __syncthreads();
    }
    product_out<NB, KIND>(a, blockIdx.x, P, 0, MANY_ROWS);
#else
    const int rank = a.splits > 1 ? cluster_rank() : 0, tile = blockIdx.x / a.splits;
    const int rows = MANY_ROWS / a.splits;
    float *P = (float *)(shared + NORM_ROOM);
    product_part<NB, KIND>(a, tile, rank, shared, most, P);
    if (a.splits > 1) cluster_sync();
    else __syncthreads();
    product_out<NB, KIND>(a, tile, P, rank * rows, (rank + 1) * rows);
    if (a.splits > 1) cluster_sync(); /* others may be reading here */
#endif
}

/* ---- how a product is cut ---- */

enum { CHIP = 132, SHARED_MOST = 224 << 10, EACH = 100000 };
/* about what a multiprocessor takes in, in bytes, with what a block and a cluster's exchange cost beside it;
 * negative: no room */
template <int NB> static int64_t product_cost(struct many_linear a, int kind, int splits) {
    const int out = kind == GATED ? NB / 2 : NB, n = (panels_of(a) + splits - 1) / splits;
    const int64_t blocks = (int64_t)((a.N + out - 1) / out) * splits;
    a.splits = splits;
    if (n > PANELS || splits > panels_of(a) || product_bytes<NB>(a) > SHARED_MOST) return -1;
    return (blocks + CHIP - 1) / CHIP * (n * (MANY_ROWS + NB) * PANEL * 2 + EACH) +
           (splits > 1 ? splits * 1000 : 0);
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
template <int NB, int KIND> static void start_product(struct hl_cuda *c, struct many_linear a) {
    int64_t least = -1;
    for (int splits = 1; splits <= SPLITS; splits *= 2) {
        const int64_t cost = product_cost<NB>(a, KIND, splits);
        if (cost >= 0 && (least < 0 || cost < least)) least = cost, a.splits = splits;
    }
    product_start<NB, KIND>(c, a);
}

#endif
