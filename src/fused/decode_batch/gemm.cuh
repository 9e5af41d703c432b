/* gemm.cuh -- up to 64 rows times a matrix, for sessions decoded side by side; every weight is read once.
 *
 * What such a product costs is the way of x: so the outputs are cut into tiles of NB and K into parts, which the
 * blocks of a cluster have, W is there before others are waited for, and x comes in panels, each multiplied when it
 * is there. Every block of a cluster adds up some rows over all parts, in order, which the others have sent to its
 * shared memory. How a product is cut follows from its shape alone, so the number of rows changes no bit.
 *
 * A norm before a product is in two places: its weights are in x already, which the kernel that made x put there; the
 * row's factor comes to the sums, from sums of squares over 32 columns that the same kernel left. */
#ifndef HL_DECODE_BATCH_PRODUCT_CUH
#define HL_DECODE_BATCH_PRODUCT_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/cluster.cuh"
#include "cuda/fastmath.cuh"
#include "fused/decode_batch/head_schedule.cuh"
#include "fused/decode_batch/panel.cuh"

enum { PRODUCT_THREADS = 256, W_THREADS = 192, PANELS = 12, SPLITS = 8, SQUARES = 32 };
enum { OF_PRODUCTS = 1 };  /* a barrier */
enum { HEAD_ROOM = 1024 }; /* the rows' factors, then a barrier a panel and one for the sums */

/* NORMED: out = norm(x) W^T; GATED: panels of silu(norm(x) W^T) (norm(x) W2^T); JOINED: out = from + x W^T, and panels
 * of out times `weight` */
enum product_kind { NORMED, GATED, JOINED };
/* What the memories will read first, to the chip's cache while memory is idle: AHEAD columns of some states, and the
 * convolutions' last inputs of all sessions. */
enum { AHEAD = 64, CHIP = 132 };
struct ahead {
    const struct hl_seg *seg;
    int64_t at, tails; /* from a session's start */
    int blocks, heads; /* of that kernel, 0: none; of all sessions */
    int HV, rows, columns;
    int tail_bytes; /* 0: not those */
};
struct many_linear {
    struct panels x;
    const bf16 *W, *W2;
    int M, K, N;
    const float *squares; /* [M][K / SQUARES] */
    float eps;
    const bf16 *from;
    const float *weight; /* JOINED: [N] */
    float *squares_out;  /* JOINED: [M][N / SQUARES] */
    void *out;           /* [M][ld] */
    struct panels panels;
    int ld, splits;
    struct ahead ahead;
    struct weights soon;
};

template <int NB> struct product_room {
    enum {
        W = NB * PANEL,
        LD = NB % 32 == 24 ? NB + 16 : NB + 8,
    };
};
template <int NB> static size_t product_bytes(const struct many_linear &a) {
    typedef struct product_room<NB> room;
    const size_t n = (size_t)(panels_of(a.K) + a.splits - 1) / a.splits, x = n * a.x.rows * PANEL * 2,
                 W = n * room::W * 2, sums = a.x.rows * room::LD * 4;
#ifdef HL_CUDA_EMU
    return HEAD_ROOM + TILES_ROOM + x + W + a.splits * sums;
#else
    return HEAD_ROOM + W + x + sums + NAMED_BARRIER_BYTES;
#endif
}

/* Where row r of a block's weights lies; NULL: past the end. */
template <int NB, int KIND>
static __device__ __forceinline__ const bf16 *weights_at(const struct many_linear &a, int tile, int r) {
    const int half = KIND == GATED ? NB / 2 : NB, row = tile * half + r % half;
    return row < a.N ? (r < half ? a.W : a.W2) + (int64_t)row * a.K : NULL;
}

struct part { /* of K: panels [first, first + n) */
    int rank, first, n;
};
/* A thread brings 16 bytes, one column of eight, of some rows of every panel. The first W_THREADS. */
template <int NB, int KIND>
static __device__ __forceinline__ void bring_weights(const struct many_linear &a, const struct part &b,
                                                     int tile, bf16 *W) {
    const int unit = threadIdx.x % 8 * 8, first = b.first * PANEL + unit;
    for (int r = threadIdx.x / 8; r < NB; r += W_THREADS / 8) {
        const bf16 *row = weights_at<NB, KIND>(a, tile, r), *from = (row ? row : a.W) + first;
        bf16 *to = W + tile_at<PANEL>(r, unit);
#pragma unroll 4
        for (int p = 0; p < b.n; p++) {
            const bool there = row && first + p * PANEL < a.K;
            copy_async(to + p * product_room<NB>::W, there ? from + p * PANEL : a.W, there ? 16 : 0);
        }
    }
}
/* The factors of the block's rows, some threads a row: as many as 64 rows would have, so that the order of the sums is
 * always the same. A warpgroup. */
static __device__ __forceinline__ void bring_norms(const struct many_linear &a, int rank, float *factor) {
    const int n = a.K / SQUARES, each = 128 * a.splits / MANY_ROWS, rows = a.x.rows / a.splits;
    const int i = threadIdx.x % 128, row = rank * rows + i / each;
    const bool mine = i / each < rows;
    float s = 0.0f;
#pragma unroll 8
    for (int j = i % each; j < n; j += each) s += mine && row < a.M ? a.squares[row * n + j] : 0.0f;
    for (int j = 1; j < each; j *= 2) s += __shfl_xor_sync(0xffffffffu, s, j);
    if (mine && i % each == 0) factor[row] = rsqrtf(s / (float)a.K + a.eps);
}

/* The block's sums over its part, to where they are added up: [blocks][rows of each][LD] in the shared memory of the
 * block that has the row, by way of `mine`, [rows][LD] here. A warpgroup; a warp has 16 rows, which one block or two
 * want. (Sent from registers, 16 bytes a lane, they take three times as long.) */
template <int NB>
static __device__ __forceinline__ void send_sums(const struct many_linear &a, const float (*d)[4], int rank,
                                                 float *mine, float *P, mbarrier_t come) {
    enum { LD = product_room<NB>::LD, WARP_ROWS = 16 };
    const int lane = threadIdx.x % 32, rows = a.x.rows / a.splits, first = threadIdx.x / 32 % 4 * WARP_ROWS;
    const int row = first + lane / 4;
    if (first >= a.x.rows) return; /* (the products are always of 64 rows) */
#ifdef HL_CUDA_EMU
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < NB / 8; n++) {
            const int r = row + 8 * i;
            float *to = P + (r / rows * a.x.rows + rank * rows + r % rows) * LD + n * 8 + lane % 4 * 2;
            to[0] = d[n][2 * i], to[1] = d[n][2 * i + 1];
        }
    (void)mine, (void)come;
#else
    float *at = (a.splits > 1 ? mine : P) + row * LD + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < NB / 8; n++) {
        *(float2 *)(at + n * 8) = make_float2(d[n][0], d[n][1]);
        *(float2 *)(at + n * 8 + 8 * LD) = make_float2(d[n][2], d[n][3]);
    }
    fence_proxy_async();
    __syncwarp();
    const int each = min(rows, (int)WARP_ROWS),
              from = first + lane * each; /* a lane sends a block its rows */
    if (a.splits == 1 || lane * each >= WARP_ROWS) return;
    const uint32_t to = cluster_address(shared_address(P + (rank * rows + from % rows) * LD), from / rows);
    cluster_copy(to, shared_address(mine + from * LD), each * LD * 4, cluster_address(come, from / rows));
#endif
}

/* What the outputs are added to, asked for before the sums are there. */
template <int NB> struct old_outputs {
    uint2 u[MANY_ROWS * NB / 4 / PRODUCT_THREADS];
    float4 weight; /* of the thread's columns, which are the same in all its rows */
};
template <int NB>
static __device__ __forceinline__ void load_old(struct old_outputs<NB> &old, const struct many_linear &a,
                                                int tile, int rank) {
    const int rows = a.x.rows / a.splits, first = tile * NB + threadIdx.x % (NB / 4) * 4;
    if (first < a.N) old.weight = *(const float4 *)(a.weight + first);
#pragma unroll
    for (int j = 0; j < MANY_ROWS * NB / 4 / PRODUCT_THREADS; j++) {
        const int i = threadIdx.x + j * PRODUCT_THREADS, row = rank * rows + i / (NB / 4),
                  n = tile * NB + i % (NB / 4) * 4;
        old.u[j] = make_uint2(0, 0);
        if (i < rows * (NB / 4) && row < a.M && n < a.N)
            old.u[j] = *(const uint2 *)(a.from + (int64_t)row * a.ld + n);
    }
}

/* The panels of x as they come, times W, and the sums on their way. A warpgroup. */
template <int NB>
static __device__ __forceinline__ void multiply(const struct many_linear &a, const struct part &b, int tile,
                                                const bf16 *X, bf16 *W, float *P, mbarrier_t there) {
    float d[NB / 8][4] = {};
    wgmma_begin<NB / 8>(d);
    for (int i = 0; i < b.n; i++) {
        const int p = (i + tile) % b.n;
        mbarrier_wait(mbarrier_at(there, p), 0);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PANEL; k += 16) {
            const struct operand<PANEL, false> x = {X + p * a.x.rows * PANEL, 0, k}, w = {
                W + p *product_room<NB>::W, 0, k
            };
            wgmma_ss<NB>(d, x, w);
        }
    }
    wgmma_end<NB / 8>(d);
    if (a.splits > 1) cluster_wait();
    named_barrier_sync(OF_PRODUCTS, 128); /* W and x are done with */
    send_sums<NB>(a, d, b.rank, (float *)W, P, mbarrier_at(there, b.n));
}

static __device__ __forceinline__ void ask_near(const void *global) {
#ifdef HL_CUDA_EMU
    (void)global;
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}
static __device__ __forceinline__ void bring_near(const struct ahead &a) { /* a warpgroup */
    enum { SECTOR = 8, EACH = AHEAD / SECTOR };                            /* columns */
    for (int i = blockIdx.x; a.tail_bytes && i < a.heads / a.HV && threadIdx.x % 128 == 0; i += gridDim.x)
        prefetch_l2(a.seg[i].state + a.tails, a.tail_bytes);
    for (int b = blockIdx.x; b < min(a.blocks, (int)CHIP); b += gridDim.x) {
        const struct deal deal = {b, a.blocks, a.heads};
        const int x = deal.head(0);
        const float *state =
            (const float *)(a.seg[x / a.HV].state + a.at) + (int64_t)(x % a.HV) * a.rows * a.columns;
        for (int i = threadIdx.x % 128; i < a.rows * EACH; i += 128)
            ask_near(state + i / EACH * a.columns + i % EACH * SECTOR);
    }
}

/* One part of K, until the sums of the block's rows are there. Most warps bring W and some x, at once where others have
 * ended already: to ask for a panel takes 0.1 microseconds. The first warpgroup multiplies. All threads. */
enum { X_WARPS = (PRODUCT_THREADS - W_THREADS) / 32 };
template <int NB, int KIND>
static __device__ __forceinline__ void product_part(const struct many_linear &a, int tile, int rank,
                                                    char *shared, int most, float *P,
                                                    struct old_outputs<NB> &old) {
    const int panels = panels_of(a.K), size = a.x.rows * PANEL;
    struct part b = {rank, panels * rank / a.splits};
    b.n = panels * (rank + 1) / a.splits - b.first;
    const mbarrier_t there = mbarrier_base((uint64_t *)(shared + MANY_ROWS * 4));
    bf16 *W = (bf16 *)(shared + HEAD_ROOM), *X = W + most * product_room<NB>::W;
    const int turn = ((int)threadIdx.x - W_THREADS) / 32, lane = threadIdx.x % 32; /* of those that bring x */
    if (threadIdx.x < W_THREADS) bring_weights<NB, KIND>(a, b, tile, W), copy_commit();
    else if (X_WARPS * lane + turn < b.n)
        mbarrier_init(mbarrier_at(there, (X_WARPS * lane + turn + tile) % b.n), 1);
    if (threadIdx.x == PRODUCT_THREADS - 1) {
        mbarrier_init(mbarrier_at(there, b.n), 1);
        if (a.splits > 1)
            mbarrier_arrive_expect_tx(mbarrier_at(there, b.n), a.x.rows * product_room<NB>::LD * 4);
    }
    __syncwarp();
    if (a.splits > 1) cluster_arrive(); /* nothing is sent to a block that has not begun */
    pdl_trigger(), pdl_wait();
    for (int i = turn; threadIdx.x >= W_THREADS && lane == 0 && i < b.n; i += X_WARPS) {
        const int p = (i + tile) % b.n; /* not all blocks the same at once */
        mbarrier_arrive_expect_tx(mbarrier_at(there, p), size * 2);
        bulk_copy(X + p * size, a.x.at + (b.first + p) * size, size * 2, mbarrier_at(there, p), true);
    }
    if (KIND == JOINED) load_old<NB>(old, a, tile, rank);
    copy_wait<0>();
    fence_proxy_async();
    __syncthreads(); /* W is there */
    if (warpgroup_index() == 0) multiply<NB>(a, b, tile, X, W, P, there);
    else if (a.splits > 1) cluster_wait();
    if (KIND != JOINED && warpgroup_index() == 1) bring_norms(a, rank, (float *)shared);
    if (warpgroup_index() == 1) {
        for (int p = 0; p < b.n; p++) mbarrier_wait(mbarrier_at(there, p), 0); /* x goes first */
        bring_near(a.ahead);
        if (threadIdx.x == 128) a.soon.ask();
    }
    __syncthreads(); /* the factors; the sums of a block alone */
#ifndef HL_CUDA_EMU
    if (a.splits > 1) mbarrier_wait(mbarrier_at(there, b.n), 0), cluster_arrive();
#endif
}

/* Four neighbours of the sum over the parts at P [row][col], in order. */
template <int NB>
static __device__ __forceinline__ float4 product_sum(const struct many_linear &a, const float *P, int at) {
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < SPLITS; r++) {
        if (r >= a.splits) break;
        const float4 x = *(const float4 *)(P + r * (a.x.rows / a.splits) * product_room<NB>::LD + at);
        s.x += x.x, s.y += x.y, s.z += x.z, s.w += x.w;
    }
    return s;
}
/* Four neighbours to the outputs, or those of them that there are. */
static __device__ __forceinline__ void put_four(const struct many_linear &a, int64_t at, int n,
                                                const float *y) {
    bf16 *out = (bf16 *)a.out + at;
    if (n + 4 <= a.N && a.ld % 4 == 0) *(uint2 *)out = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
    else
        for (int j = 0; j < 4 && n + j < a.N; j++) put(out + j, y[j]);
}
/* Eight threads have SQUARES columns of a row; all warps are whole here. */
static __device__ __forceinline__ void put_joined(const struct many_linear &a, int row, int n, bool there,
                                                  const float *y, uint2 old, const float4 &w) {
    const uint2 z = make_uint2(pack2(y[0] + low(old.x), y[1] + high(old.x)),
                               pack2(y[2] + low(old.y), y[3] + high(old.y)));
    const float x[4] = {low(z.x), high(z.x), low(z.y), high(z.y)};
    float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
    for (int j = 1; j < 8; j *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
    if (!there) return;
    *(uint2 *)((bf16 *)a.out + (int64_t)row * a.ld + n) = z;
    *(uint2 *)panel_at(a.panels, row, n) =
        make_uint2(pack2(x[0] * w.x, x[1] * w.y), pack2(x[2] * w.z, x[3] * w.w));
    if (n % SQUARES == 0) a.squares_out[row * (a.N / SQUARES) + n / SQUARES] = squares;
}
/* The outputs of the block's rows. All threads. */
template <int NB, int KIND>
static __device__ __forceinline__ void product_out(const struct many_linear &a, int tile, int rank,
                                                   const float *factor, const float *P,
                                                   const struct old_outputs<NB> &old) {
    enum {
        LD = product_room<NB>::LD,
        OUT = KIND == GATED ? NB / 2 : NB,
        FOURS = OUT / 4,
        EACH = (MANY_ROWS * FOURS + PRODUCT_THREADS - 1) / PRODUCT_THREADS
    };
    const int rows = a.x.rows / a.splits;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = threadIdx.x + j * PRODUCT_THREADS, r = i / FOURS, row = rank * rows + r,
                  col = i % FOURS * 4, n = tile * OUT + col;
        if (r >= rows) break;
        const bool there = row < a.M && n < a.N;
        const float4 s = product_sum<NB>(a, P, r * LD + col);
        const float f = KIND == JOINED ? 1.0f : factor[row];
        float y[4] = {f * s.x, f * s.y, f * s.z, f * s.w};
        if (KIND == JOINED)
            put_joined(a, row, n, there, y, old.u[j % (MANY_ROWS * NB / 4 / PRODUCT_THREADS)], old.weight);
        if (KIND == NORMED && there) put_four(a, (int64_t)row * a.ld + n, n, y);
        if (KIND == GATED && row < a.M && n < panels_of(a.N) * PANEL) { /* zeros to the panel's end */
            const float4 u = product_sum<NB>(a, P, r * LD + col + NB / 2);
            y[0] = fast_silu(y[0]) * f * u.x, y[1] = fast_silu(y[1]) * f * u.y;
            y[2] = fast_silu(y[2]) * f * u.z, y[3] = fast_silu(y[3]) * f * u.w;
            *(uint2 *)panel_at(a.panels, row, n) = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
        }
    }
}

/* grid (tiles splits), clusters of `splits` */
template <int NB, int KIND>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) many_product(const struct many_linear a) {
    typedef struct product_room<NB> room;
    const int panels = panels_of(a.K), most = (panels + a.splits - 1) / a.splits;
    char *shared = shared_tiles();
    named_barrier_init();
    float *factor = (float *)shared,
          *P = (float *)(shared + HEAD_ROOM + most * (room::W + a.x.rows * PANEL) * 2);
#ifdef HL_CUDA_EMU
    struct old_outputs<NB> old[SPLITS];
    for (int rank = 0; rank < a.splits; rank++)
        product_part<NB, KIND>(a, blockIdx.x, rank, shared, most, P, old[rank]);
    for (int rank = 0; rank < a.splits; rank++)
        product_out<NB, KIND>(a, blockIdx.x, rank, factor, P + rank * a.x.rows * room::LD, old[rank]);
#else
    const int rank = a.splits > 1 ? cluster_rank() : 0, tile = blockIdx.x / a.splits;
    struct old_outputs<NB> old;
    product_part<NB, KIND>(a, tile, rank, shared, most, P, old);
    product_out<NB, KIND>(a, tile, rank, factor, P, old);
    if (a.splits > 1) cluster_wait(); /* the others have what was sent to them */
#endif
}

/* ---- how a product is cut ---- */

enum { CHIP_OF_CLUSTERS = 120, SHARED_MOST = 224 << 10 };
/* about the time of a cut in nanoseconds; negative: no room. x passes by while others wait, of W some was there before;
 * then the sums travel. Larger clusters find less room on the chip. */
template <int NB> static int64_t product_cost(struct many_linear a, int kind, int splits) {
    const int out = kind == GATED ? NB / 2 : NB, n = (panels_of(a.K) + splits - 1) / splits;
    const int64_t blocks = (int64_t)((a.N + out - 1) / out) * splits,
                  chip = splits > 2 ? (int)CHIP_OF_CLUSTERS : (int)CHIP;
    a.splits = splits, a.x.rows = MANY_ROWS;
    if (n > PANELS || splits > panels_of(a.K) || product_bytes<NB>(a) > SHARED_MOST) return -1;
    const int left = n * PANEL * 2 * (NB + MANY_ROWS); /* by W and x, for the sums */
    if (splits > 1 && left < MANY_ROWS * product_room<NB>::LD * 4) return -1;
    return (blocks + chip - 1) / chip * n * PANEL * 2 * (2 * MANY_ROWS + NB) / 90 +
           MANY_ROWS * NB * 4 * (splits - 1) / splits / 25 + splits * 100;
}
template <int NB, int KIND> static void product_start(struct hl_cuda *c, const struct many_linear &a) {
    const int out = KIND == GATED ? NB / 2 : NB;
    /* (gated outputs go on to the end of their last panel) */
    const int N = KIND == GATED ? panels_of(a.N) * PANEL : a.N;
#ifdef HL_CUDA_EMU
    launch(c, many_product<NB, KIND>, blocks_for(N, out), PRODUCT_THREADS, product_bytes<NB>(a), a);
#else
    launch_clusters(c, many_product<NB, KIND>, (unsigned)a.splits, blocks_for(N, out) * (unsigned)a.splits,
                    PRODUCT_THREADS, product_bytes<NB>(a), a);
#endif
}
/* The best cut into tiles of NB; its cost. */
template <int NB> static int64_t cut_product(struct many_linear &a, int kind) {
    int64_t least = -1;
    for (int splits = 1; splits <= SPLITS; splits *= 2) {
        const int64_t cost = product_cost<NB>(a, kind, splits);
        if (cost >= 0 && (least < 0 || cost < least)) least = cost, a.splits = splits;
    }
    return least;
}
/* In tiles of one of two sizes. */
template <int NB, int NB2, int KIND> static void start_product(struct hl_cuda *c, struct many_linear a) {
    struct many_linear b = a;
    const int64_t x = cut_product<NB>(a, KIND), y = cut_product<NB2>(b, KIND);
    if (y < 0 || (x >= 0 && x <= y)) product_start<NB, KIND>(c, a);
    else product_start<NB2, KIND>(c, b);
}

#endif
