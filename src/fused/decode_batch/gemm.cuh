/* gemm.cuh -- up to 64 rows times a matrix, for batched decoding; every weight is read once.
 *
 * The cost is dominated by loading x, so the outputs are cut into tiles of NB columns and K is split over the blocks of
 * a cluster (split-K). W is loaded before pdl_wait; x arrives in panels by bulk copies, and each is multiplied as it
 * arrives. Each block of a cluster sums some of the rows over all splits, in order; the others send their sums to its
 * shared memory. The tiling depends on the shape of W alone, so the number of rows does not change a bit of the result.
 *
 * Grid: tiles * splits, clusters of `splits`; block: 8 warps, of which W_THREADS load W, the other two x, and the first
 * warpgroup multiplies. For norms before a product see decode_batch.h. */
#ifndef HL_BATCH_GEMM_CUH
#define HL_BATCH_GEMM_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/cluster.cuh"
#include "cuda/fastmath.cuh"
#include "fused/decode_batch/head_schedule.cuh"
#include "fused/decode_batch/panel.cuh"

enum { GEMM_THREADS = 256, W_THREADS = 192, PANELS = 12, SPLITS = 8, SQUARES = 32 };
enum { MMA_BARRIER = 1 };     /* named barrier of the first warpgroup */
enum { HEADER_BYTES = 1024 }; /* in shared memory: the rows' factors, then an mbarrier per panel and one for the sums */

/* NORMED: out = norm(x) W^T. GATED: panels = silu(norm(x) W^T) (norm(x) W2^T). RESIDUAL: out = from + x W^T,
 * and panels = out times `weight`. */
enum gemm_kind { NORMED, GATED, RESIDUAL };
/* The mixer's first reads, prefetched into L2 while memory is idle: PREFETCH_COLS columns of each mixer block's first
 * state, and the conv tails of all sessions. */
enum { PREFETCH_COLS = 64, SMS = 132 };
struct state_prefetch {
    const struct hl_seg *seg;
    int64_t at, tails; /* offsets in a session's state */
    int blocks, heads; /* of the mixer's grid, 0: no prefetch; heads of all sessions */
    int HV, rows, columns;
    int tail_bytes; /* 0: no tails */
};
struct batch_linear {
    struct panels x;
    const bf16 *W, *W2;
    int M, K, N;
    const float *squares; /* [M][K / SQUARES] */
    float eps;
    const bf16 *from;
    const float *weight; /* RESIDUAL: [N] */
    float *squares_out;  /* RESIDUAL: [M][N / SQUARES] */
    void *out;           /* [M][ld] */
    struct panels panels;
    int ld, splits;
    struct state_prefetch state;
    struct weight_prefetch prefetch;
};

template <int NB> struct gemm_smem {
    enum {
        W = NB * PANEL,
        LD = NB % 32 == 24 ? NB + 16 : NB + 8,
    };
};
template <int NB> static size_t gemm_smem_bytes(const struct batch_linear &a) {
    typedef struct gemm_smem<NB> smem;
    const size_t n = (size_t)(panels_of(a.K) + a.splits - 1) / a.splits, x = n * a.x.rows * PANEL * 2,
                 W = n * smem::W * 2, sums = a.x.rows * smem::LD * 4;
#ifdef HL_CUDA_EMU
    return HEADER_BYTES + TILES_ROOM + x + W + a.splits * sums;
#else
    return HEADER_BYTES + W + x + sums + NAMED_BARRIER_BYTES;
#endif
}

/* Row r of a block's weights; NULL: past the end. */
template <int NB, int KIND>
static __device__ __forceinline__ const bf16 *weights_at(const struct batch_linear &a, int tile, int r) {
    const int half = KIND == GATED ? NB / 2 : NB, row = tile * half + r % half;
    return row < a.N ? (r < half ? a.W : a.W2) + (int64_t)row * a.K : NULL;
}

struct part { /* a split of K: panels [first, first + n) */
    int rank, first, n;
};
/* Each thread copies 16 bytes, an eighth of a panel row, of some rows of every panel. The first W_THREADS. */
template <int NB, int KIND>
static __device__ __forceinline__ void load_weights(const struct batch_linear &a, const struct part &b, int tile,
                                                    bf16 *W) {
    const int unit = threadIdx.x % 8 * 8, first = b.first * PANEL + unit;
    for (int r = threadIdx.x / 8; r < NB; r += W_THREADS / 8) {
        const bf16 *row = weights_at<NB, KIND>(a, tile, r), *from = (row ? row : a.W) + first;
        bf16 *to = W + tile_at<PANEL>(r, unit);
#pragma unroll 4
        for (int p = 0; p < b.n; p++) {
            const bool there = row && first + p * PANEL < a.K;
            copy_async(to + p * gemm_smem<NB>::W, there ? from + p * PANEL : a.W, there ? 16 : 0);
        }
    }
}
/* The norm's factors of the block's rows. Always uses as many threads per row as for 64 rows, so that the order of the
 * sum is the same. One warpgroup. */
static __device__ __forceinline__ void row_factors(const struct batch_linear &a, int rank, float *factor) {
    const int n = a.K / SQUARES, each = 128 * a.splits / BATCH_ROWS, rows = a.x.rows / a.splits;
    const int i = threadIdx.x % 128, row = rank * rows + i / each;
    const bool mine = i / each < rows;
    float s = 0.0f;
#pragma unroll 8
    for (int j = i % each; j < n; j += each) s += mine && row < a.M ? a.squares[row * n + j] : 0.0f;
    for (int j = 1; j < each; j *= 2) s += __shfl_xor_sync(0xffffffffu, s, j);
    if (mine && i % each == 0) factor[row] = rsqrtf(s / (float)a.K + a.eps);
}

/* Sends the sums over this split to the blocks that own the rows: [splits][rows of a block][LD] in their shared memory,
 * through `mine`, [rows][LD] here. One warpgroup; a warp has 16 rows, of one or two owners. (Sending from registers, 16
 * bytes per lane, takes three times as long.) */
template <int NB>
static __device__ __forceinline__ void send_sums(const struct batch_linear &a, const float (*d)[4], int rank,
                                                 float *mine, float *P, mbarrier_t sums_full) {
    enum { LD = gemm_smem<NB>::LD, WARP_ROWS = 16 };
    const int lane = threadIdx.x % 32, rows = a.x.rows / a.splits, first = threadIdx.x / 32 % 4 * WARP_ROWS;
    const int row = first + lane / 4;
    if (first >= a.x.rows) return; /* (wgmma always has 64 rows) */
#ifdef HL_CUDA_EMU
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < NB / 8; n++) {
            const int r = row + 8 * i;
            float *to = P + (r / rows * a.x.rows + rank * rows + r % rows) * LD + n * 8 + lane % 4 * 2;
            to[0] = d[n][2 * i], to[1] = d[n][2 * i + 1];
        }
    (void)mine, (void)sums_full;
#else
    float *at = (a.splits > 1 ? mine : P) + row * LD + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < NB / 8; n++) {
        *(float2 *)(at + n * 8) = make_float2(d[n][0], d[n][1]);
        *(float2 *)(at + n * 8 + 8 * LD) = make_float2(d[n][2], d[n][3]);
    }
    fence_proxy_async();
    __syncwarp();
    const int each = min(rows, (int)WARP_ROWS), from = first + lane * each; /* a lane sends one block's rows */
    if (a.splits == 1 || lane * each >= WARP_ROWS) return;
    const uint32_t to = cluster_address(shared_address(P + (rank * rows + from % rows) * LD), from / rows);
    cluster_copy(to, shared_address(mine + from * LD), each * LD * 4, cluster_address(sums_full, from / rows));
#endif
}

/* The residual that the outputs are added to, loaded before the sums are complete. */
template <int NB> struct residual_in {
    uint2 u[BATCH_ROWS * NB / 4 / GEMM_THREADS];
    float4 weight; /* of the thread's columns, the same for all its rows */
};
template <int NB>
static __device__ __forceinline__ void load_residual(struct residual_in<NB> &old, const struct batch_linear &a,
                                                     int tile, int rank) {
    const int rows = a.x.rows / a.splits, first = tile * NB + threadIdx.x % (NB / 4) * 4;
    if (first < a.N) old.weight = *(const float4 *)(a.weight + first);
#pragma unroll
    for (int j = 0; j < BATCH_ROWS * NB / 4 / GEMM_THREADS; j++) {
        const int i = threadIdx.x + j * GEMM_THREADS, row = rank * rows + i / (NB / 4),
                  n = tile * NB + i % (NB / 4) * 4;
        old.u[j] = make_uint2(0, 0);
        if (i < rows * (NB / 4) && row < a.M && n < a.N) old.u[j] = *(const uint2 *)(a.from + (int64_t)row * a.ld + n);
    }
}

/* Multiplies the panels of x by W as they arrive and sends the sums. A warpgroup. */
template <int NB>
static __device__ __forceinline__ void multiply(const struct batch_linear &a, const struct part &b, int tile,
                                                const bf16 *X, bf16 *W, float *P, mbarrier_t full) {
    float d[NB / 8][4] = {};
    wgmma_begin<NB / 8>(d);
    for (int i = 0; i < b.n; i++) {
        const int p = (i + tile) % b.n;
        mbarrier_wait(mbarrier_at(full, p), 0);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PANEL; k += 16) {
            const struct operand<PANEL, false> x = {X + p * a.x.rows * PANEL, 0, k}, w = {
                W + p *gemm_smem<NB>::W, 0, k
            };
            wgmma_ss<NB>(d, x, w);
        }
    }
    wgmma_end<NB / 8>(d);
    if (a.splits > 1) cluster_wait();
    named_barrier_sync(MMA_BARRIER, 128); /* W and x have been read */
    send_sums<NB>(a, d, b.rank, (float *)W, P, mbarrier_at(full, b.n));
}

static __device__ __forceinline__ void prefetch_line(const void *global) {
#ifdef HL_CUDA_EMU
    (void)global;
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}
static __device__ __forceinline__ void prefetch_states(const struct state_prefetch &a) { /* a warpgroup */
    enum { SECTOR = 8, EACH = PREFETCH_COLS / SECTOR };                                  /* columns */
    for (int i = blockIdx.x; a.tail_bytes && i < a.heads / a.HV && threadIdx.x % 128 == 0; i += gridDim.x)
        prefetch_l2(a.seg[i].state + a.tails, a.tail_bytes);
    for (int b = blockIdx.x; b < min(a.blocks, (int)SMS); b += gridDim.x) {
        const struct head_schedule schedule = {b, a.blocks, a.heads};
        const int x = schedule.head(0);
        const float *state = (const float *)(a.seg[x / a.HV].state + a.at) + (int64_t)(x % a.HV) * a.rows * a.columns;
        for (int i = threadIdx.x % 128; i < a.rows * EACH; i += 128)
            prefetch_line(state + i / EACH * a.columns + i % EACH * SECTOR);
    }
}

/* One split of K, until the sums of the block's rows are complete. Two warps issue the copies of x, since issuing one
 * takes 0.1 microseconds. All threads. */
enum { X_WARPS = (GEMM_THREADS - W_THREADS) / 32 };
template <int NB, int KIND>
static __device__ __forceinline__ void gemm_part(const struct batch_linear &a, int tile, int rank, char *shared,
                                                 int most, float *P, struct residual_in<NB> &old) {
    const int panels = panels_of(a.K), size = a.x.rows * PANEL;
    struct part b = {rank, panels * rank / a.splits};
    b.n = panels * (rank + 1) / a.splits - b.first;
    const mbarrier_t full = mbarrier_base((uint64_t *)(shared + BATCH_ROWS * 4));
    bf16 *W = (bf16 *)(shared + HEADER_BYTES), *X = W + most * gemm_smem<NB>::W;
    const int turn = ((int)threadIdx.x - W_THREADS) / 32, lane = threadIdx.x % 32; /* of the warps that copy x */
    if (threadIdx.x < W_THREADS) load_weights<NB, KIND>(a, b, tile, W), copy_commit();
    else if (X_WARPS * lane + turn < b.n) mbarrier_init(mbarrier_at(full, (X_WARPS * lane + turn + tile) % b.n), 1);
    if (threadIdx.x == GEMM_THREADS - 1) {
        mbarrier_init(mbarrier_at(full, b.n), 1);
        if (a.splits > 1) mbarrier_arrive_expect_tx(mbarrier_at(full, b.n), a.x.rows * gemm_smem<NB>::LD * 4);
    }
    __syncwarp();
    if (a.splits > 1) cluster_arrive(); /* no block may send to one that has not started */
    pdl_trigger(), pdl_wait();
    for (int i = turn; threadIdx.x >= W_THREADS && lane == 0 && i < b.n; i += X_WARPS) {
        const int p = (i + tile) % b.n; /* blocks start with different panels */
        mbarrier_arrive_expect_tx(mbarrier_at(full, p), size * 2);
        bulk_copy(X + p * size, a.x.at + (b.first + p) * size, size * 2, mbarrier_at(full, p), true);
    }
    if (KIND == RESIDUAL) load_residual<NB>(old, a, tile, rank);
    copy_wait<0>();
    fence_proxy_async();
    __syncthreads(); /* W is complete */
    if (warpgroup_index() == 0) multiply<NB>(a, b, tile, X, W, P, full);
    else if (a.splits > 1) cluster_wait();
    if (KIND != RESIDUAL && warpgroup_index() == 1) row_factors(a, rank, (float *)shared);
    if (warpgroup_index() == 1) {
        for (int p = 0; p < b.n; p++) mbarrier_wait(mbarrier_at(full, p), 0); /* x has priority */
        prefetch_states(a.state);
        if (threadIdx.x == 128) a.prefetch.issue();
    }
    __syncthreads(); /* the factors; without splits, also the sums */
#ifndef HL_CUDA_EMU
    if (a.splits > 1) mbarrier_wait(mbarrier_at(full, b.n), 0), cluster_arrive();
#endif
}

/* Four adjacent columns of the sum over the splits at P [row][col], in order. */
template <int NB>
static __device__ __forceinline__ float4 sum_splits(const struct batch_linear &a, const float *P, int at) {
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < SPLITS; r++) {
        if (r >= a.splits) break;
        const float4 x = *(const float4 *)(P + r * (a.x.rows / a.splits) * gemm_smem<NB>::LD + at);
        s.x += x.x, s.y += x.y, s.z += x.z, s.w += x.w;
    }
    return s;
}
/* Stores up to four adjacent outputs. */
static __device__ __forceinline__ void store_four(const struct batch_linear &a, int64_t at, int n, const float *y) {
    bf16 *out = (bf16 *)a.out + at;
    if (n + 4 <= a.N && a.ld % 4 == 0) *(uint2 *)out = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
    else
        for (int j = 0; j < 4 && n + j < a.N; j++) put(out + j, y[j]);
}
/* Eight threads share SQUARES columns of a row; called by all lanes of a warp. */
static __device__ __forceinline__ void store_residual(const struct batch_linear &a, int row, int n, bool there,
                                                      const float *y, uint2 old, const float4 &w) {
    const uint2 z =
        make_uint2(pack2(y[0] + low(old.x), y[1] + high(old.x)), pack2(y[2] + low(old.y), y[3] + high(old.y)));
    const float x[4] = {low(z.x), high(z.x), low(z.y), high(z.y)};
    float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
    for (int j = 1; j < 8; j *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
    if (!there) return;
    *(uint2 *)((bf16 *)a.out + (int64_t)row * a.ld + n) = z;
    *(uint2 *)panel_at(a.panels, row, n) = make_uint2(pack2(x[0] * w.x, x[1] * w.y), pack2(x[2] * w.z, x[3] * w.w));
    if (n % SQUARES == 0) a.squares_out[row * (a.N / SQUARES) + n / SQUARES] = squares;
}
/* The outputs of the block's rows. All threads. */
template <int NB, int KIND>
static __device__ __forceinline__ void gemm_epilogue(const struct batch_linear &a, int tile, int rank,
                                                     const float *factor, const float *P,
                                                     const struct residual_in<NB> &old) {
    enum {
        LD = gemm_smem<NB>::LD,
        OUT = KIND == GATED ? NB / 2 : NB,
        FOURS = OUT / 4,
        EACH = (BATCH_ROWS * FOURS + GEMM_THREADS - 1) / GEMM_THREADS
    };
    const int rows = a.x.rows / a.splits;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = threadIdx.x + j * GEMM_THREADS, r = i / FOURS, row = rank * rows + r, col = i % FOURS * 4,
                  n = tile * OUT + col;
        if (r >= rows) break;
        const bool there = row < a.M && n < a.N;
        const float4 s = sum_splits<NB>(a, P, r * LD + col);
        const float f = KIND == RESIDUAL ? 1.0f : factor[row];
        float y[4] = {f * s.x, f * s.y, f * s.z, f * s.w};
        if (KIND == RESIDUAL)
            store_residual(a, row, n, there, y, old.u[j % (BATCH_ROWS * NB / 4 / GEMM_THREADS)], old.weight);
        if (KIND == NORMED && there) store_four(a, (int64_t)row * a.ld + n, n, y);
        if (KIND == GATED && row < a.M && n < panels_of(a.N) * PANEL) { /* zeros up to the panel's end */
            const float4 u = sum_splits<NB>(a, P, r * LD + col + NB / 2);
            y[0] = fast_silu(y[0]) * f * u.x, y[1] = fast_silu(y[1]) * f * u.y;
            y[2] = fast_silu(y[2]) * f * u.z, y[3] = fast_silu(y[3]) * f * u.w;
            *(uint2 *)panel_at(a.panels, row, n) = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
        }
    }
}

template <int NB, int KIND>
static __global__ void __launch_bounds__(GEMM_THREADS, 2) batch_gemm(const struct batch_linear a) {
    typedef struct gemm_smem<NB> smem;
    const int panels = panels_of(a.K), most = (panels + a.splits - 1) / a.splits;
    char *shared = shared_tiles();
    named_barrier_init();
    float *factor = (float *)shared, *P = (float *)(shared + HEADER_BYTES + most * (smem::W + a.x.rows * PANEL) * 2);
#ifdef HL_CUDA_EMU
    struct residual_in<NB> old[SPLITS];
    for (int rank = 0; rank < a.splits; rank++) gemm_part<NB, KIND>(a, blockIdx.x, rank, shared, most, P, old[rank]);
    for (int rank = 0; rank < a.splits; rank++)
        gemm_epilogue<NB, KIND>(a, blockIdx.x, rank, factor, P + rank * a.x.rows * smem::LD, old[rank]);
#else
    const int rank = a.splits > 1 ? cluster_rank() : 0, tile = blockIdx.x / a.splits;
    struct residual_in<NB> old;
    gemm_part<NB, KIND>(a, tile, rank, shared, most, P, old);
    gemm_epilogue<NB, KIND>(a, tile, rank, factor, P, old);
    if (a.splits > 1) cluster_wait(); /* the other blocks have received their sums */
#endif
}

/* ---- tiling ---- */

enum { SMS_WITH_CLUSTERS = 120, SHARED_MOST = 224 << 10 };
/* Estimated time of a tiling in nanoseconds; negative: it does not fit. Everything waits for x, W is partly loaded
 * before; then the sums are sent. Larger clusters fit on fewer SMs. */
template <int NB> static int64_t gemm_cost(struct batch_linear a, int kind, int splits) {
    const int out = kind == GATED ? NB / 2 : NB, n = (panels_of(a.K) + splits - 1) / splits;
    const int64_t blocks = (int64_t)((a.N + out - 1) / out) * splits,
                  chip = splits > 2 ? (int)SMS_WITH_CLUSTERS : (int)SMS;
    a.splits = splits, a.x.rows = BATCH_ROWS;
    if (n > PANELS || splits > panels_of(a.K) || gemm_smem_bytes<NB>(a) > SHARED_MOST) return -1;
    const int space = n * PANEL * 2 * (NB + BATCH_ROWS); /* space of W and x, reused for the sums */
    if (splits > 1 && space < BATCH_ROWS * gemm_smem<NB>::LD * 4) return -1;
    return (blocks + chip - 1) / chip * n * PANEL * 2 * (2 * BATCH_ROWS + NB) / 90 +
           BATCH_ROWS * NB * 4 * (splits - 1) / splits / 25 + splits * 100;
}
template <int NB, int KIND> static void launch_tiles(struct hl_cuda *c, const struct batch_linear &a) {
    const int out = KIND == GATED ? NB / 2 : NB;
    /* (gated outputs are padded to whole panels) */
    const int N = KIND == GATED ? panels_of(a.N) * PANEL : a.N;
#ifdef HL_CUDA_EMU
    launch(c, batch_gemm<NB, KIND>, blocks_for(N, out), GEMM_THREADS, gemm_smem_bytes<NB>(a), a);
#else
    launch_clusters(c, batch_gemm<NB, KIND>, (unsigned)a.splits, blocks_for(N, out) * (unsigned)a.splits, GEMM_THREADS,
                    gemm_smem_bytes<NB>(a), a);
#endif
}
/* The best split for tiles of NB, and its cost. */
template <int NB> static int64_t choose_splits(struct batch_linear &a, int kind) {
    int64_t least = -1;
    for (int splits = 1; splits <= SPLITS; splits *= 2) {
        const int64_t cost = gemm_cost<NB>(a, kind, splits);
        if (cost >= 0 && (least < 0 || cost < least)) least = cost, a.splits = splits;
    }
    return least;
}
/* Launches with the better of two tile widths. */
template <int NB, int NB2, int KIND> static void launch_gemm(struct hl_cuda *c, struct batch_linear a) {
    struct batch_linear b = a;
    const int64_t x = choose_splits<NB>(a, KIND), y = choose_splits<NB2>(b, KIND);
    if (y < 0 || (x >= 0 && x <= y)) launch_tiles<NB, KIND>(c, a);
    else launch_tiles<NB2, KIND>(c, b);
}

#endif
