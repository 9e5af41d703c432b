/* gdn_prep_cuda.cu -- the parallel half of the chunked delta rule (ARCHITECTURE sec. 4.1): per chunk and value head
 *     A = (I + L)^-1,  L = stril(diag(beta) (k k^T) .* D)      P = K^{-1/2} tril((q k^T) .* D)
 * and the gates, all that does not depend on the state. Floor: k and q read once, A and P written once. */
#include "ops/gdn/gdn_prep_cuda.cuh"

enum { THREADS = 128, SCORE_THREADS = 256 };

struct args {
    const bf16 *q, *k;
    const float *g, *beta;
    bf16 *A, *P;
    float *gates;
    const struct hl_piece *chunk;
    int H, HV;
};

/* Scores of the warp's 16 rows of k (and of q) against all earlier rows: only tiles that reach below the diagonal. */
template <int K>
static __device__ __forceinline__ void scores(const bf16 *k, const bf16 *q, bool both, float kk[8][4], float qk[8][4]) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) kk[n][i] = qk[n][i] = 0.0f;
#pragma unroll 2
    for (int c = 0; c < K; c += 16) {
        uint32_t ak[4], aq[4], b[4];
        frag_a<K>(ak, k, 16 * warp, c);
        if (both) frag_a<K>(aq, q, 16 * warp, c);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp) continue;
            frag_b_rows<K>(b, k, 16 * n, c);
            mma_bf16(kk[2 * n], ak, b), mma_bf16(kk[2 * n + 1], ak, b + 2);
            if (both) mma_bf16(qk[2 * n], aq, b), mma_bf16(qk[2 * n + 1], aq, b + 2);
        }
    }
}

/* Decays the warp's scores: P goes to memory, L turned to shared memory. */
template <int K>
static __device__ __forceinline__ void decay_scores(const struct args &a, const struct gdn_decay *d, float kk[8][4],
                                             float qk[8][4], bf16 *P, int len, float *turned) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float scale = 1.0f / sqrtf((float)K);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = 16 * warp + g + 8 * h, j = 8 * n + 2 * t;
            const float d0 = i >= j ? decay_between(d, i, j) : 0.0f;
            const float d1 = i >= j + 1 ? decay_between(d, i, j + 1) : 0.0f;
            if (P && i < len)
                *(uint32_t *)(P + i * (int64_t)(a.HV * CHUNK) + j) =
                    pack2(scale * d0 * qk[n][2 * h], scale * d1 * qk[n][2 * h + 1]);
            turned[j * INVERSE_LD + i] = i > j ? d->beta[i] * d0 * kk[n][2 * h] : 0.0f;
            turned[(j + 1) * INVERSE_LD + i] = i > j + 1 ? d->beta[i] * d1 * kk[n][2 * h + 1] : 0.0f;
        }
}

template <int K> static __global__ void __launch_bounds__(THREADS) prep_chunk(const struct args a) {
    __shared__ struct gdn_decay d;
    const int hv = blockIdx.x % a.HV, hk = hv / (a.HV / a.H), warp = threadIdx.x / 32;
    const int64_t c = blockIdx.x / a.HV;
    const struct hl_piece p = a.chunk[c];
    const int64_t b = (int64_t)p.row * a.HV + hv;
    bf16 *k = (bf16 *)shared_memory(), *q = k + CHUNK * K;
    float *turned = (float *)shared_memory(); /* over k and q, when these are done with */
    const int64_t qk_at = ((int64_t)p.row * a.H + hk) * K;
    load_tile<K, THREADS>(k, a.k + qk_at, (int64_t)a.H * K, p.len);
    if (a.P) load_tile<K, THREADS>(q, a.q + qk_at, (int64_t)a.H * K, p.len);
    copy_commit();
    if (warp == 0) load_decay(&d, a.g ? a.g + b : NULL, a.beta + b, a.HV, p.len);
    copy_wait<0>();
    __syncthreads();
    if (a.gates && threadIdx.x < CHUNK) {
        const int i = threadIdx.x;
        float *gates = a.gates + (c * a.HV + hv) * GATES;
        gates[i] = d.beta[i];
        gates[CHUNK + i] = decay_since_start(&d, i);
        gates[2 * CHUNK + i] = decay_between(&d, CHUNK - 1, i);
    }
    float kk[8][4], qk[8][4];
    scores<K>(k, q, a.P != NULL, kk, qk);
    __syncthreads();
    decay_scores<K>(a, &d, kk, qk, a.P ? a.P + b * CHUNK : NULL, p.len, turned);
    __syncthreads();
    if (threadIdx.x >= CHUNK) return;
    float x[CHUNK];
    bf16 *A = a.A + b * CHUNK + threadIdx.x;
    invert_column(turned, x, threadIdx.x);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (i < p.len) put(A + i * (int64_t)(a.HV * CHUNK), x[i]);
}

template <int K> static void launch_prep(struct hl_cuda *c, const struct args *a, int64_t chunks) {
    const size_t tiles = 2 * CHUNK * K * sizeof(bf16), turned = CHUNK * INVERSE_LD * sizeof(float);
    launch(c, prep_chunk<K>, (unsigned)(chunks * a->HV), THREADS, tiles > turned ? tiles : turned, *a);
}

extern "C" bool HL_OP(gdn_prep)(struct hl_pool *pool, const struct hl_gdn *a, const struct gdn_prep *p) {
    const struct hl_dev_rows *rows = a->rows->dev;
    struct args x = {(const bf16 *)a->q, (const bf16 *)a->k, a->g,        a->beta,   (bf16 *)p->A,
                     (bf16 *)p->P,       p->gates,           rows->chunk, (int)a->H, (int)a->HV};
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
    if (i >= n) return;
    for (int64_t t = 0; t < tiles; t++) sum += sums[t * n + i];
    m[i] = sqrtf(sum);
}

extern "C" void HL_OP(gdn_scores)(struct hl_pool *pool, real *m, const float *sums, int64_t tiles, int64_t n) {
    launch(hl_cuda_of(pool), scores_from_sums, blocks_for(n, SCORE_THREADS), SCORE_THREADS, 0, m, sums, tiles, n);
}
