/* gdn_prep_cuda.cu -- the parallel half of the chunked delta rule (docs/math.md): per chunk and
 * value head
 *     A = (I + L)^-1,  L = stril(diag(beta) (k k^T) .* D)      P = K^{-1/2} tril((q k^T) .* D)
 * and the gates, all that does not depend on the state. Floor: k and q read once, A and P written once. */
#include "cuda/early.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"

enum { THREADS = 256, SCORE_THREADS = 256 };

struct args {
    const bf16 *q, *k;
    const float *g, *beta;
    bf16 *A, *P;
    float *gates;
    int *ready;
    const struct hl_piece *chunk;
    int H, HV;
};

template <int K> struct room {
    bf16 k[CHUNK * K];
    union {
        bf16 q[CHUNK * K];
        struct {
            float L[CHUNK * INVERSE_LD], A[CHUNK * INVERSE_LD]; /* L turned */
        };
    };
    struct gdn_decay d;
};

/* Scores of the warp's 16 rows of x (k or q) against all rows of k up to them: only tiles that reach the
 * diagonal. */
template <int K>
static __device__ __forceinline__ void scores(const bf16 *x, const bf16 *k, float acc[8][4]) {
    const int rows = threadIdx.x / 32 % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) acc[n][i] = 0.0f;
#pragma unroll 2
    for (int c = 0; c < K; c += 16) {
        uint32_t a[4], b[4];
        frag_a<K>(a, x, 16 * rows, c);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > rows) continue;
            frag_b_rows<K>(b, k, 16 * n, c);
            mma_bf16(acc[2 * n], a, b);
            mma_bf16(acc[2 * n + 1], a, b + 2);
        }
    }
}

/* P, of the warp's rows, to memory */
template <int K>
static __device__ __forceinline__ void write_P(const struct gdn_decay *d, float acc[8][4], bf16 *P,
                                               int64_t stride, int len) {
    const int rows = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float scale = 1.0f / sqrtf((float)K);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = 16 * rows + g + 8 * h, j = 8 * n + 2 * t;
            float x = 0.0f, y = 0.0f;
            if (n / 2 <= rows && i >= j) x = scale * decay_between(d, i, j) * acc[n][2 * h];
            if (n / 2 <= rows && i >= j + 1) y = scale * decay_between(d, i, j + 1) * acc[n][2 * h + 1];
            if (i < len) *(uint32_t *)(P + i * stride + j) = pack2(x, y);
        }
}

/* L, of the warp's rows, turned */
static __device__ __forceinline__ void write_L(const struct gdn_decay *d, float acc[8][4], float *turned) {
    const int rows = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 16 * rows + g + 8 * (i / 2), col = 8 * n + 2 * t + i % 2;
            if (n / 2 > rows) continue;
            turned[col * INVERSE_LD + row] =
                row > col ? d->beta[row] * decay_between(d, row, col) * acc[n][i] : 0.0f;
        }
}

/* ---- (I + L)^-1, in 16 x 16 blocks: A_ii by substitution, then A_ij = -A_ii sum_{j<=k<i} L_ik A_kj ---- */

/* warp b: block (b, b), a column of it in each of 16 lanes */
static __device__ __forceinline__ void invert_diagonal(const float *turned, float *A, int b) {
    const int col = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = i == col ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 15; j++)
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < 16; i += 4) { /* zeros come first where i <= j */
            const float4 L = *(const float4 *)(turned + (16 * b + j) * INVERSE_LD + 16 * b + i);
            x[i] -= L.x * x[j], x[i + 1] -= L.y * x[j], x[i + 2] -= L.z * x[j], x[i + 3] -= L.w * x[j];
        }
    if (threadIdx.x % 32 < 16)
#pragma unroll
        for (int i = 0; i < 16; i++) A[(16 * b + i) * INVERSE_LD + 16 * b + col] = x[i];
}

/* an operand of mma_tf32, rounded to the nearest: the unit would cut its last bits off */
static __device__ __forceinline__ uint32_t tf32(float x) { return __float_as_uint(x) + 0x1000u; }

/* acc += X Y, blocks of 16 x 16: X(r, c) at x[r * xr + c * xc], Y at rows of INVERSE_LD */
static __device__ __forceinline__ void block_product(float acc[2][4], const float *x, int xr, int xc,
                                                     const float *y) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < 16; c += 8) {
        const float *p = x + g * xr + (c + t) * xc;
        const uint32_t a[4] = {tf32(p[0]), tf32(p[8 * xr]), tf32(p[4 * xc]), tf32(p[8 * xr + 4 * xc])};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float *r = y + (c + t) * INVERSE_LD + 8 * n + g;
            const uint32_t b[2] = {tf32(r[0]), tf32(r[4 * INVERSE_LD])};
            mma_tf32(acc[n], a, b);
        }
    }
}
static __device__ __forceinline__ void write_block(float *A, const float acc[2][4], float sign) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            A[(g + i / 2 * 8) * INVERSE_LD + 8 * n + 2 * t + i % 2] = sign * acc[n][i];
    __syncwarp();
}
/* warp j: what is below block (j, j), downwards; the sum waits where its result will be */
static __device__ __forceinline__ void invert_below(const float *turned, float *A, int j) {
    for (int i = j + 1; i < 4; i++) {
        float *block = A + 16 * i * INVERSE_LD + 16 * j, acc[2][4] = {};
        for (int k = j; k < i; k++)
            block_product(acc, turned + 16 * k * INVERSE_LD + 16 * i, 1, INVERSE_LD,
                          A + 16 * k * INVERSE_LD + 16 * j);
        write_block(block, acc, 1.0f);
        float last[2][4] = {};
        block_product(last, A + 16 * i * INVERSE_LD + 16 * i, INVERSE_LD, 1, block);
        write_block(block, last, -1.0f);
    }
}

/* rows of A to memory, 32 bytes a thread; zeros right of the diagonal blocks */
static __device__ __forceinline__ void write_A(const float *A, bf16 *to, int64_t stride, int len) {
    const int row = threadIdx.x / 4, block = threadIdx.x % 4;
    if (row >= len) return;
    uint32_t x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 p = *(const float2 *)(A + row * INVERSE_LD + 16 * block + 2 * i);
        x[i] = block <= row / 16 ? pack2(p.x, p.y) : 0u;
    }
    uint4 *p = (uint4 *)(to + row * stride + 16 * block);
    p[0] = make_uint4(x[0], x[1], x[2], x[3]);
    p[1] = make_uint4(x[4], x[5], x[6], x[7]);
}

/* Warps 0 to 3 have the scores of k, 4 to 7 those of q, 16 rows each. */
template <int K>
static __global__ void __launch_bounds__(THREADS, K == 256 ? 3 : 4) prep_chunk(const struct args a) {
    struct room<K> &x = *(struct room<K> *)shared_memory();
    const int hv = blockIdx.x % a.HV, hk = hv / (a.HV / a.H), warp = threadIdx.x / 32;
    const int64_t c = blockIdx.x / a.HV;
    const struct hl_piece p = a.chunk[c];
    let_others_start();
    const int64_t b = (int64_t)p.row * a.HV + hv, qk = ((int64_t)p.row * a.H + hk) * K;
    load_tile<K, THREADS>(x.k, a.k + qk, (int64_t)a.H * K, p.len);
    if (a.P) load_tile<K, THREADS>(x.q, a.q + qk, (int64_t)a.H * K, p.len);
    copy_commit();
    if (warp == 0) load_decay(&x.d, a.g ? a.g + b : NULL, a.beta + b, a.HV, p.len);
    copy_wait<0>();
    __syncthreads();
    float acc[8][4];
    if (warp < 4) scores<K>(x.k, x.k, acc);
    else if (a.P) scores<K>(x.q, x.k, acc);
    __syncthreads(); /* q is done with: L and A take its place */
    if (warp < 4) write_L(&x.d, acc, x.L);
    else if (threadIdx.x < THREADS / 2 + CHUNK) {
        const int i = threadIdx.x - THREADS / 2;
        float *gates = a.gates + (c * a.HV + hv) * GATES;
        const float eG = decay_since_start(&x.d, i), eL = decay_between(&x.d, CHUNK - 1, i);
        if (i == 0 && a.ready) a.ready[c * a.HV + hv] = 0;
        gates[i] = x.d.beta[i], gates[CHUNK + i] = eG, gates[2 * CHUNK + i] = eL;
    }
    __syncthreads();
    if (warp < 4) invert_diagonal(x.L, x.A, warp);
    __syncthreads();
    if (warp < 3) invert_below(x.L, x.A, warp);
    if (warp >= 4 && a.P) write_P<K>(&x.d, acc, a.P + b * CHUNK, (int64_t)a.HV * CHUNK, p.len);
    __syncthreads();
    write_A(x.A, a.A + b * CHUNK, (int64_t)a.HV * CHUNK, p.len);
}

template <int K> static void launch_prep(struct hl_cuda *c, const struct args *a, int64_t chunks) {
    launch(c, prep_chunk<K>, (unsigned)(chunks * a->HV), THREADS, sizeof(struct room<K>), *a);
}

extern "C" bool HL_OP(gdn_prep)(struct hl_pool *pool, const struct hl_gdn *a, const struct gdn_prep *p) {
    const struct hl_dev_rows *rows = a->rows->dev;
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, a->g,    a->beta,
                     (bf16 *)p->A,       (bf16 *)p->P,       p->gates};
    x.ready = p->ready, x.chunk = rows->chunk, x.H = (int)a->H, x.HV = (int)a->HV;
    struct hl_cuda *c = hl_cuda_of(pool);
    if (HL_ACT_DTYPE != HOLA_BF16) return false;
    if (a->K == 64) launch_prep<64>(c, &x, rows->chunks);
    else if (a->K == 128) launch_prep<128>(c, &x, rows->chunks);
    else if (a->K == 256) launch_prep<256>(c, &x, rows->chunks);
    else return false;
    return true;
}

static __global__ void scores_from_sums(float *m, const float *sums, int64_t tiles, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * SCORE_THREADS + threadIdx.x;
    float sum = 0.0f;
    wait_for_others();
    let_others_start();
    if (i >= n) return;
    for (int64_t t = 0; t < tiles; t++) sum += sums[t * n + i];
    m[i] = sqrtf(sum);
}

extern "C" void HL_OP(gdn_scores)(struct hl_pool *pool, real *m, const float *sums, int64_t tiles,
                                  int64_t n) {
    launch_early(hl_cuda_of(pool), scores_from_sums, blocks_for(n, SCORE_THREADS), SCORE_THREADS, 0, m, sums,
                 tiles, n);
}
