/* kda_prep_cuda.cu -- the part of chunked KDA that is independent of the state (kda_cuda.cuh), for every chunk and
 * value head in parallel: kg, qg, ke and P in tiles, A in rows.
 *
 * Grid: a block per chunk and value head (heads fastest). Block: 2 K threads. First each thread has two channels of a
 * block of 16 rows (pair_cuda.cuh): it loads q, k and g once, stores kg, qg and ke, and leaves the operands of both
 * pair products in shared memory. Then warp w of a warpgroup has rows 16 w.. of a product: the first warpgroup of
 * pair(K, K), which it inverts, the last one of pair(Q, K); with K = 64 they are the same. Floor: q, k, g read once,
 * the tiles and A written once. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/decay/pair_cuda.cuh"
#include "ops/gdn/gdn_inverse_cuda.cuh"
#include "ops/kda/kda_cuda.cuh"

#ifndef HL_CUDA_F32

struct args {
    const bf16 *q, *k;
    const float *g, *beta;
    void *tiles;
    bf16 *A;
    const struct hl_dev_span *chunk;
    int H, HV;
};

template <int K> struct smem {
    union {
        struct {
            bf16 qa[CHUNK * K], ka[CHUNK * K], qm[CHUNK * K], km[CHUNK * K]; /* operands: q a, k a, q m, k m, */
            bf16 kb[CHUNK * K], kd[CHUNK * K];                               /* k b, k / m */
        };
        struct {
            float L[CHUNK * INVERSE_LD], A[CHUNK * INVERSE_LD]; /* L transposed */
            bf16 P[CHUNK * CHUNK];
        };
    };
    struct pair_decay<K> d;
    float beta[CHUNK];
};

static __device__ __forceinline__ uint32_t times(uint32_t pair, float2 x) {
    return pack2(low(pair) * x.x, high(pair) * x.y);
}
static __device__ __forceinline__ float2 product(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }

/* The thread's two channels of q and k, of its block of rows; from: at the chunk's first row and the head. */
template <int K>
static __device__ __forceinline__ void load_rows(uint32_t x[PAIR_ROWS], const bf16 *from, int64_t stride, int len) {
    const int row = threadIdx.x / (K / 2) * PAIR_ROWS;
    from += row * stride + threadIdx.x % (K / 2) * 2;
#pragma unroll
    for (int i = 0; i < PAIR_ROWS; i++) {
        x[i] = row + i < len ? *(const uint32_t *)from : 0u;
        from += stride;
    }
}

/* Operands to shared memory, tiles to global memory. */
template <int K>
static __device__ __forceinline__ void write_tiles(smem<K> &x, struct kda_tiles<K> *to, const float2 g[PAIR_ROWS],
                                                   const uint32_t q[PAIR_ROWS], const uint32_t k[PAIR_ROWS]) {
    const int I = threadIdx.x / (K / 2), c = threadIdx.x % (K / 2) * 2, panel = c / 64 * PANEL;
    const float scale = 1.0f / sqrtf((float)K);
    const float2 start = pair_exp2(pair_start<K>(x.d, I, c)), end = pair_exp2(pair_end<K>(x.d, I, c));
    float2 p = make_float2(0.0f, 0.0f), m = p; /* log2 of a and m */
    pair_rho<K>(x.d);
#pragma unroll
    for (int i = 1; i <= PAIR_MIDDLE; i++) m.x -= pair_bounded(g[i]).x, m.y -= pair_bounded(g[i]).y;
#pragma unroll
    for (int i = 0; i < PAIR_ROWS; i++) {
        const int at = tile_at<64>(PAIR_ROWS * I + i, c % 64);
        if (i > 0) p = pair_add(p, g[i]), m = pair_add(m, pair_bounded(g[i]));
        const float2 a = pair_exp2(p), eG = product(a, start), middle = pair_exp2(m);
        *(uint32_t *)(x.qa + panel + at) = times(q[i], a);
        *(uint32_t *)(x.ka + panel + at) = times(k[i], a);
        *(uint32_t *)(x.qm + panel + at) = times(q[i], middle);
        *(uint32_t *)(x.km + panel + at) = times(k[i], middle);
        *(uint32_t *)(x.kd + panel + at) = times(k[i], pair_exp2(make_float2(-m.x, -m.y)));
        *(uint32_t *)(to->kq[c / 64] + at) = times(k[i], eG);
        *(uint32_t *)(to->kq[c / 64] + PANEL + at) = times(q[i], make_float2(scale * eG.x, scale * eG.y));
    }
    p = *(const float2 *)(x.d.first[I + 1] + c);
#pragma unroll
    for (int i = PAIR_ROWS - 1; i >= 0; i--) {
        const int at = tile_at<64>(PAIR_ROWS * I + i, c % 64);
        const float2 b = pair_exp2(p);
        *(uint32_t *)(x.kb + panel + at) = times(k[i], b);
        *(uint32_t *)(to->ke[c / 64] + at) = times(k[i], product(b, end));
        p = pair_add(p, g[i]);
    }
    if (I == 0) *(float2 *)(to->end + c) = pair_exp2(pair_add(pair_end<K>(x.d, 0, c), p)); /* p: up to r_1 */
}

/* beta times the warp's rows of pair(K, K), transposed */
static __device__ __forceinline__ void write_L(float *L_t, const float *beta, const float acc[CHUNK / 8][4]) {
    const int rows = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 16 * rows + g + 8 * (i / 2), col = 8 * n + 2 * t + i % 2;
            L_t[col * INVERSE_LD + row] = row > col ? beta[row] * acc[n][i] : 0.0f;
        }
}
/* the warp's rows of P, through `tile` */
static __device__ __forceinline__ void write_P(bf16 *to, bf16 *tile, const float acc[CHUNK / 8][4], float scale) {
    const int l = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, g = l / 4, t = l % 4;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = 16 * rows + g + 8 * h, j = 8 * n + 2 * t;
            *(uint32_t *)(tile + tile_at<CHUNK>(i, j)) =
                pack2(i >= j ? scale * acc[n][2 * h] : 0.0f, i >= j + 1 ? scale * acc[n][2 * h + 1] : 0.0f);
        }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int at = 16 * rows * CHUNK + (32 * n + l) * 8;
        *(uint4 *)(to + at) = *(const uint4 *)(tile + at);
    }
}

template <int K> static __global__ void __launch_bounds__(2 * K, K == 64 ? 4 : 2) prep_chunks(const struct args a) {
    smem<K> &x = *(smem<K> *)shared_tiles();
    enum { SAME = K == 64 };
    const int hv = blockIdx.x % a.HV, hk = hv / (a.HV / a.H), group = warpgroup_index(), I = threadIdx.x / 32 % 4;
    const struct hl_dev_span p = a.chunk[blockIdx.x / a.HV];
    const int64_t head = (int64_t)p.row * a.HV + hv, qk = ((int64_t)p.row * a.H + hk) * K;
    const int64_t ld = (int64_t)a.H * K, ld_g = (int64_t)a.HV * K;
    struct kda_tiles<K> *to = (struct kda_tiles<K> *)a.tiles + blockIdx.x;
    named_barrier_init();
    pdl_wait();
    pdl_trigger();
    {
        float2 g[PAIR_ROWS];
        uint32_t q[PAIR_ROWS], k[PAIR_ROWS];
        pair_load_decays<K>(g, a.g + head * K, ld_g, p.len);
        load_rows<K>(k, a.k + qk, ld, p.len);
        load_rows<K>(q, a.q + qk, ld, p.len);
        if (threadIdx.x < CHUNK) {
            const float beta = (int)threadIdx.x < p.len ? a.beta[head + (int64_t)threadIdx.x * a.HV] : 0.0f;
            x.beta[threadIdx.x] = to->beta[threadIdx.x] = beta;
            to->one[threadIdx.x] = 1.0f;
        }
        pair_totals<K>(x.d, g);
        __syncthreads();
        write_tiles<K>(x, to, g, q, k);
    }
    __syncthreads(); /* the operands are complete */
    float L[CHUNK / 8][4] = {}, P[CHUNK / 8][4] = {};
    if (group == 0 && a.A) pair_products<K>(L, x.ka, x.km, x.kb, x.kd, x.d, I);
    if (group == 1 || SAME) pair_products<K>(P, x.qa, x.qm, x.kb, x.kd, x.d, I);
    __syncthreads(); /* both products are done with the operands; L, A and P reuse their memory */
    if (group == 1 || SAME) write_P(to->P, x.P, P, 1.0f / sqrtf((float)K));
    if (group == 0 && a.A) {
        write_L(x.L, x.beta, L);
        invert_unit(x.L, x.A);
        write_A(x.A, a.A + head * CHUNK, (int64_t)a.HV * CHUNK, p.len);
    }
}

template <int K> static void launch_prep(struct hl_cuda *c, const struct args *a, int64_t items) {
    launch_pdl(c, prep_chunks<K>, (unsigned)items, 2 * K, sizeof(smem<K>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(kda_prep)(struct hl_backend *backend, const struct hl_kda *a, void *tiles, void *A) {
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, a->g, a->beta, tiles, (bf16 *)A, a->rows->dev->chunk};
    x.H = (int)a->H, x.HV = (int)a->HV;
    (a->K == 64 ? launch_prep<64> : launch_prep<128>)(hl_cuda_of(backend), &x, a->rows->dev->chunks * a->HV);
}
#endif
