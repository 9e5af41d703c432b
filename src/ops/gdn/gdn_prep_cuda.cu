/* gdn_prep_cuda.cu -- the state-independent part of the chunked delta rule (docs/math.md, "The delta rule", in chunks),
 * for every chunk and value head in parallel: the gates, and
 *     A = (I + L)^-1,  L = stril(diag(beta) (k k^T) .* D)      P = K^{-1/2} tril((q k^T) .* D)
 * Persistent kernel: 2 or 3 blocks per SM, each processes every gridDim-th (chunk, value head). Two warpgroups, 16 rows
 * per warp: the first has k k^T and inverts, the second has q k^T, P and the gates. Once both products are done, k and
 * q of the block's next item are copied during the rest. Floor: k and q read once, A and P written once. Also here: m
 * from the sums of squares that the tiles of a scan leave. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gdn/gdn_inverse_cuda.cuh"

enum { SCORE_THREADS = 256 };

#ifndef HL_CUDA_F32
enum { HALF = 128, THREADS = 2 * HALF, PANEL = CHUNK * 64 };

struct args {
    const bf16 *q, *k;
    const float *g, *beta;
    bf16 *A, *P;
    float *gates;
    int *ready;
    const struct hl_dev_span *chunk;
    int H, HV, items; /* chunks times HV */
};

template <int K> struct smem {
    bf16 k[CHUNK * K], q[CHUNK * K], P[CHUNK * CHUNK];  /* k and q in panels of 64 columns */
    float L[CHUNK * INVERSE_LD], A[CHUNK * INVERSE_LD]; /* L transposed */
    struct gdn_decay d[2];
};

/* A chunk and value head. */
struct item {
    int row, len, hv;
};
static __device__ __forceinline__ struct item item_of(const struct args &a, int n) {
    const struct hl_dev_span p = a.chunk[n / a.HV];
    return {(int)p.row, p.len, n % a.HV};
}
template <int K>
static __device__ __forceinline__ void load_item(smem<K> &x, const struct args &a, const struct item &p) {
    const int64_t at = ((int64_t)p.row * a.H + p.hv / (a.HV / a.H)) * K;
#pragma unroll 1
    for (int n = 0; n < K / 64; n++) {
        copy_panel<64, CHUNK, THREADS>(x.k + n * PANEL, a.k + at + 64 * n, (int64_t)a.H * K, p.len, threadIdx.x);
        if (a.P)
            copy_panel<64, CHUNK, THREADS>(x.q + n * PANEL, a.q + at + 64 * n, (int64_t)a.H * K, p.len, threadIdx.x);
    }
    copy_commit();
}
/* by one warp */
static __device__ __forceinline__ void load_gates(struct gdn_decay *d, const struct args &a, const struct item &p) {
    const int64_t at = (int64_t)p.row * a.HV + p.hv;
    load_decay(d, a.g ? a.g + at : NULL, a.beta + at, a.HV, p.len);
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

/* the warp's rows of P to memory through `tile` */
template <int K>
static __device__ __forceinline__ void write_P(const struct gdn_decay *d, float acc[8][4], bf16 *tile, bf16 *P,
                                               int64_t stride, int len) {
    const int l = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, g = l / 4, t = l % 4;
    const float scale = 1.0f / sqrtf((float)K);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = 16 * rows + g + 8 * h, j = 8 * n + 2 * t;
            float x = 0.0f, y = 0.0f;
            if (n / 2 <= rows && i >= j) x = scale * decay_between(d, i, j) * acc[n][2 * h];
            if (n / 2 <= rows && i >= j + 1) y = scale * decay_between(d, i, j + 1) * acc[n][2 * h + 1];
            *(uint32_t *)(tile + tile_at<CHUNK>(i, j)) = pack2(x, y);
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
    const int rows = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 16 * rows + g + 8 * (i / 2), col = 8 * n + 2 * t + i % 2;
            if (n / 2 > rows) continue;
            L_t[col * INVERSE_LD + row] = row > col ? d->beta[row] * decay_between(d, row, col) * acc[n][i] : 0.0f;
        }
}

/* A from the scores of k, by the first warpgroup */
static __device__ __forceinline__ void invert(const struct gdn_decay *d, float acc[8][4], float *L, float *A, bf16 *to,
                                              int64_t stride, int len) {
    write_L(d, acc, L);
    invert_unit(L, A);
    write_A(A, to, stride, len);
}
static __device__ __forceinline__ void write_gates(const struct gdn_decay *d, float *gates, int *ready) {
    const int i = threadIdx.x - HALF;
    if (i == 0 && ready) *ready = 0;
    if (i >= CHUNK) return;
    gates[i] = d->beta[i], gates[CHUNK + i] = decay_since_start(d, i);
    gates[2 * CHUNK + i] = decay_between(d, CHUNK - 1, i);
}

template <int K> static __global__ void __launch_bounds__(THREADS, K == 256 ? 2 : 3) prep_chunks(const struct args a) {
    smem<K> &x = *(smem<K> *)shared_tiles();
    const int warp = threadIdx.x / 32, group = warpgroup_index();
    const int64_t stride = (int64_t)a.HV * CHUNK;
    struct item p = item_of(a, blockIdx.x);
    named_barrier_init();
    pdl_trigger();
    load_item(x, a, p);
    if (warp == 4) load_gates(&x.d[0], a, p);
    for (int n = blockIdx.x, i = 0; n < a.items; n += gridDim.x, i ^= 1) {
        const bool more = n + (int)gridDim.x < a.items;
        const int64_t to = ((int64_t)p.row * a.HV + p.hv) * CHUNK;
        const int len = p.len;
        float acc[8][4];
        if (more) p = item_of(a, n + gridDim.x);
        copy_wait<0>();
        fence_proxy_async();
        __syncthreads();
        if (group == 0 || a.P) scores<K>(group == 0 ? x.k : x.q, x.k, acc);
        __syncthreads(); /* both products are done with k and q */
        if (more) load_item(x, a, p);
        if (group == 0) invert(&x.d[i], acc, x.L, x.A, a.A + to, stride, len);
        else {
            write_gates(&x.d[i], a.gates + (int64_t)n * GATES, a.ready ? a.ready + n : NULL);
            if (a.P) write_P<K>(&x.d[i], acc, x.P, a.P + to, stride, len);
            if (more && warp == 4) load_gates(&x.d[i ^ 1], a, p);
        }
    }
}

template <int K> static void launch_prep(struct hl_cuda *c, const struct args *a) {
    const int most = hl_cuda_sms(c) * (K == 256 ? 2 : 3);
    launch(c, prep_chunks<K>, (unsigned)(a->items < most ? a->items : most), THREADS, sizeof(smem<K>) + TILES_ROOM, *a);
}

extern "C" void HL_OP(gdn_prep)(struct hl_backend *backend, const struct hl_gdn *a, const struct gdn_prep *p) {
    const struct hl_dev_rows *rows = a->rows->dev;
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, a->g, a->beta, p->A, p->P, p->gates};
    x.ready = p->ready, x.chunk = rows->chunk, x.H = (int)a->H, x.HV = (int)a->HV;
    x.items = (int)(rows->chunks * a->HV);
    (a->K == 64 ? launch_prep<64> : a->K == 128 ? launch_prep<128> : launch_prep<256>)(hl_cuda_of(backend), &x);
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
