/* gdn_prep_cuda.cu -- the state-independent part of the chunked delta rule (docs/math.md, "The delta rule", in chunks),
 * for every chunk and value head in parallel: the gates, and
 *     A = (I + L)^-1,  L = stril(diag(beta) (k k^T) .* D)      P = K^{-1/2} tril((q k^T) .* D)
 * Persistent kernel, each block processes every gridDim-th (chunk, value head), 16 rows per warp. With P, 2 or 3 blocks
 * per SM of two warpgroups: the first has k k^T and inverts, the second has q k^T, P and the gates. Without P, 6 blocks
 * per SM of one. Once the products are done, k and q of the block's next item are copied during the rest. Floor: k, and q
 * for P, read once, A and P written once. Also here: m from the sums of squares that the tiles of a scan leave. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_copy_cuda.cuh"
#include "ops/gdn/gdn_inverse_cuda.cuh"

enum { SCORE_THREADS = 256 };

#ifndef HL_CUDA_F32
enum { HALF = 128, PANEL = CHUNK * 64 };

struct maps {
    struct tensor_map q, k;
};
struct args {
    const float *g, *beta;
    bf16 *A, *P;
    float *gates;
    int *ready;
    const struct hl_dev_span *chunk;
    int H, HV, items; /* chunks times HV */
};

template <int K, bool SCORES> struct smem {
    enum { THREADS = SCORES ? 2 * HALF : HALF, BLOCKS = SCORES ? K == 256 ? 2 : 3 : 6 };
    bf16 k[CHUNK * K], q[SCORES ? CHUNK * K : 8], P[SCORES ? CHUNK * CHUNK : 8]; /* k and q in panels of 64 columns */
    __align__(16) float A[CHUNK * INVERSE_LD];                                   /* first L, transposed */
    struct gdn_decay d[2];
    uint64_t full; /* k and q are complete */
};

/* A chunk and value head. */
struct item {
    int row, len, hv;
};
static __device__ __forceinline__ struct item item_of(const struct args &a, int n) {
    const struct hl_dev_span p = a.chunk[n / a.HV];
    return {(int)p.row, p.len, n % a.HV};
}
/* by one thread */
template <int K, bool SCORES>
static __device__ __forceinline__ void load_item(smem<K, SCORES> &x, mbarrier_t full, const struct args &a,
                                                 const struct maps &maps, const struct item &p) {
    const int col = p.hv / (a.HV / a.H) * K;
    mbarrier_arrive_expect_tx(full, (1 + SCORES) * CHUNK * K * 2);
    for (int n = 0; n < K / 64; n++) {
        tensor_copy(x.k + n * PANEL, &maps.k, p.row, col + 64 * n, full);
        if (SCORES) tensor_copy(x.q + n * PANEL, &maps.q, p.row, col + 64 * n, full);
    }
}
/* by one warp */
static __device__ __forceinline__ struct gdn_gates load_gates(const struct args &a, const struct item &p) {
    const int64_t at = (int64_t)p.row * a.HV + p.hv;
    return gdn_read_gates(a.g ? a.g + at : NULL, a.beta + at, a.HV, p.len);
}

/* Scores of the warp's 16 rows of x (k or q) against all rows of k. */
template <int K> static __device__ __forceinline__ void scores(const bf16 *x, const bf16 *k, float acc[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0.0f;
    wgmma_begin<8>(acc);
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        wgmma_ss<CHUNK>(acc, operand<64, false>{x + n / 4 * PANEL, 0, n % 4 * 16},
                        operand<64, false>{k + n / 4 * PANEL, 0, n % 4 * 16});
    wgmma_end<8>(acc);
}

/* Columns 16 m.. to 16 m + 15 of the warp's rows of the scores, times their decays; 0 right of the diagonal, and on it
 * unless DIAGONAL. No element branches: each would wait for its own loads and exponential. */
template <bool DIAGONAL>
static __device__ __forceinline__ void decay_scores(const struct gdn_decay *d, float (*acc)[4], int m,
                                                    const float times[2]) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int j = 16 * m + 8 * n + 2 * t;
        const float2 whole = *(const float2 *)(d->whole + j), frac = *(const float2 *)(d->frac + j);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row + 8 * h;
            const float x = fast_exp2((d->whole[i] - whole.x) + (d->frac[i] - frac.x)) * (times[h] * acc[n][2 * h]);
            const float y = fast_exp2((d->whole[i] - whole.y) + (d->frac[i] - frac.y)) * (times[h] * acc[n][2 * h + 1]);
            acc[n][2 * h] = i >= j + !DIAGONAL ? x : 0.0f;
            acc[n][2 * h + 1] = i >= j + 1 + !DIAGONAL ? y : 0.0f;
        }
    }
}
/* the warp's rows of P to memory through `tile` */
template <int K>
static __device__ __forceinline__ void write_P(const struct gdn_decay *d, float acc[8][4], bf16 *tile, bf16 *P,
                                               int64_t stride, int len) {
    const int l = threadIdx.x % 32, rows = threadIdx.x / 32 % 4;
    const float scale = 1.0f / sqrtf((float)K), times[2] = {scale, scale};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t x[4] = {};
        if (m <= rows) {
            decay_scores<true>(d, acc + 2 * m, m, times);
            pack_a(x, acc + 2 * m);
        }
        tile_store<CHUNK>(tile, x, 16 * rows, 16 * m);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int row = 16 * rows + 4 * n + l / 8, col = l % 8 * 8;
        if (row < len) *(uint4 *)(P + row * stride + col) = *(const uint4 *)(tile + tile_at<CHUNK>(row, col));
    }
}

/* the warp's rows of L, transposed */
static __device__ __forceinline__ void write_L(const struct gdn_decay *d, float acc[8][4], float *L_t) {
    const int rows = threadIdx.x / 32 % 4, row = 16 * rows + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float beta[2] = {d->beta[row], d->beta[row + 8]};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        if (m > rows) continue;
        decay_scores<false>(d, acc + 2 * m, m, beta);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int col = 16 * m + i / 4 * 8 + 2 * t + i % 2;
            L_t[col * INVERSE_LD + row + i % 4 / 2 * 8] = acc[2 * m + i / 4][i % 4];
        }
    }
}

/* A from the scores of k, by the first warpgroup */
static __device__ __forceinline__ void invert(const struct gdn_decay *d, float acc[8][4], float *A, bf16 *to,
                                              int64_t stride, int len) {
    write_L(d, acc, A);
    invert_unit(A, A);
    write_A(A, to, stride, len);
}
/* by 64 threads i */
static __device__ __forceinline__ void write_gates(const struct gdn_decay *d, float *gates, int *ready, int i) {
    if (i == 0 && ready) *ready = 0;
    if (i >= CHUNK) return;
    gates[i] = d->beta[i], gates[CHUNK + i] = decay_since_start(d, i);
    gates[2 * CHUNK + i] = decay_between(d, CHUNK - 1, i), gates[3 * CHUNK + i] = d->whole[i] + d->frac[i];
}

/* SCORES: also P */
template <int K, bool SCORES>
static __global__ void __launch_bounds__(smem<K, SCORES>::THREADS, smem<K, SCORES>::BLOCKS)
    prep_chunks(const struct args a, const __grid_constant__ struct maps maps) {
    enum { THREADS = smem<K, SCORES>::THREADS, LAST = THREADS - HALF, GATE_WARP = LAST / 32 };
    smem<K, SCORES> &x = *(smem<K, SCORES> *)shared_tiles();
    const mbarrier_t full = mbarrier_base(&x.full);
    const int warp = threadIdx.x / 32, group = SCORES ? warpgroup_index() : 0;
    struct item p = item_of(a, blockIdx.x);
    struct gdn_gates gates;
    named_barrier_init();
    pdl_trigger();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        load_item<K, SCORES>(x, full, a, maps, p);
    }
    if (warp == GATE_WARP) gates = load_gates(a, p), gdn_sum_gates(&x.d[0], &gates);
    __syncthreads();
    for (int n = blockIdx.x, i = 0; n < a.items; n += gridDim.x, i ^= 1) {
        const bool more = n + (int)gridDim.x < a.items;
        const struct item now = p;
        float acc[8][4];
        if (more) p = item_of(a, n + gridDim.x);
        mbarrier_wait(full, i);
        if (now.len < CHUNK) { /* rows of other segments */
            for (int z = now.len * 8 + (int)threadIdx.x; z < CHUNK * 8; z += THREADS)
                for (int m = 0; m < K / 64; m++) {
                    *(uint4 *)(x.k + m * PANEL + 8 * z) = make_uint4(0, 0, 0, 0);
                    if (SCORES) *(uint4 *)(x.q + m * PANEL + 8 * z) = make_uint4(0, 0, 0, 0);
                }
            fence_proxy_async();
        }
        __syncthreads();
        scores<K>(SCORES && group ? x.q : x.k, x.k, acc);
        __syncthreads(); /* the products are done with k and q */
        if (more && threadIdx.x == LAST) load_item<K, SCORES>(x, full, a, maps, p);
        if (more && warp == GATE_WARP) gates = load_gates(a, p);
        const int64_t at = (int64_t)now.row * a.HV + now.hv, stride = (int64_t)a.HV * CHUNK;
        if (group == SCORES)
            write_gates(&x.d[i], a.gates + (int64_t)n * GATES, a.ready ? a.ready + n : NULL, (int)threadIdx.x - LAST);
        if (group == 0) invert(&x.d[i], acc, x.A, a.A + at * CHUNK, stride, now.len);
        else write_P<K>(&x.d[i], acc, x.P, a.P + at * CHUNK, stride, now.len);
        if (more && warp == GATE_WARP) gdn_sum_gates(&x.d[i ^ 1], &gates);
    }
}

template <int K, bool SCORES>
static void launch_prep(struct hl_cuda *c, const struct args *a, const struct maps *maps) {
    typedef smem<K, SCORES> M;
    const int most = hl_cuda_sms(c) * M::BLOCKS;
    launch(c, prep_chunks<K, SCORES>, (unsigned)(a->items < most ? a->items : most), M::THREADS, sizeof(M) + TILES_ROOM,
           *a, *maps);
}

extern "C" void HL_OP(gdn_prep)(struct hl_backend *backend, const struct hl_gdn *a, const struct gdn_prep *p) {
    const struct hl_dev_rows *rows = a->rows->dev;
    const struct maps maps = {gdn_map(a->q, a->rows->T, a->H * a->K), gdn_map(a->k, a->rows->T, a->H * a->K)};
    struct args x = {a->g, a->beta, p->A, p->P, p->gates};
    struct hl_cuda *c = hl_cuda_of(backend);
    x.ready = p->ready, x.chunk = rows->chunk, x.H = (int)a->H, x.HV = (int)a->HV;
    x.items = (int)(rows->chunks * a->HV);
    if (a->K == 256) launch_prep<256, true>(c, &x, &maps);
    else if (a->K == 128) (p->P ? launch_prep<128, true> : launch_prep<128, false>)(c, &x, &maps);
    else (p->P ? launch_prep<64, true> : launch_prep<64, false>)(c, &x, &maps);
}
#endif

static __global__ void scores_from_sums(float *m, const float *sums, int64_t tiles, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * SCORE_THREADS + threadIdx.x;
    float sum = 0.0f;
    pdl_wait();
    pdl_trigger();
    if (i >= n) return;
    for (int64_t t = 0; t < tiles; t++) sum += sums[t * n + i];
    m[i] = sqrtf(sum);
}

extern "C" void HL_OP(gdn_scores)(struct hl_backend *backend, real *m, const float *sums, int64_t tiles, int64_t n) {
    launch_pdl(hl_cuda_of(backend), scores_from_sums, blocks_for(n, SCORE_THREADS), SCORE_THREADS, 0, m, sums, tiles,
               n);
}
