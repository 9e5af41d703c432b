/* gsa_weigh_cuda.cu -- the softmax over the slots, all chunks at once, after gla_walk has stored the first half's
 * states h before each chunk, and the operands of the second half (gsa_cuda.cuh):
 *     z = exp(F - mq) (exp(mq) q h^T + tril(q k^T) (s exp(mk - F)))      p = softmax(z)
 *     qe = p exp(F)                                                      A = pair(p, s)
 * Grid: a block per chunk and head. Block: 4 M threads, which own slots at the start and at the end (gla_channels.cuh:
 * M is its K); in between, the first warpgroup has q h^T and the second q k^T. The keys' columns are streamed in panels
 * of 64. Shared memory: tiles, two panels; then z in fp32 in their place, then the factors of A. */
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/pdl.cuh"
#include "ops/gla/gla_frags.cuh"
#include "ops/gsa/gsa_cuda.cuh"

#ifndef HL_CUDA_F32

struct args {
    struct chunk_source s; /* at row 0, head 0; q: p, which this kernel writes */
    const bf16 *q, *k, *h;
    bf16 *p, *qe, *A;
    const struct hl_dev_span *chunk;
    int heads, K;
};
template <int M> struct panel { bf16 q[TILE], k[TILE], h[M / 64][TILE]; };
template <int M> struct smem {
    enum { LD = M + 8 };
    bf16 P[TILE];         /* q k^T, then A */
    bf16 s[M / 64][TILE]; /* s exp(mk - F); 0 where steep */
    struct panel<M> in[2];
    struct channels<M> x;
    struct steep_channels<M> steep;
    uint64_t barrier[2];
    __device__ __forceinline__ float *z() { return (float *)in; }     /* [64][LD] */
    __device__ __forceinline__ bf16 (*p())[TILE] { return &in[1].q; } /* p exp(F - mq); 0 where steep */
};

template <int M>
static __device__ __forceinline__ void load_panel(struct smem<M> &x, mbarrier_t b, const struct args &a, int64_t row,
                                                  int len, int n) {
    const int64_t ld = (int64_t)a.heads * a.K, at = row * ld + blockIdx.x % a.heads * a.K + 64 * n;
    struct panel<M> &to = x.in[n % 2];
    if (n < a.K / 64) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(b, M * 64 * 2);
            bulk_copy(to.h[0], a.h + ((int64_t)blockIdx.x * (a.K / 64) + n) * M * 64, M * 64 * 2, b);
        }
        copy_panel<64, CHUNK, 4 * M>(to.q, a.q + at, ld, len, threadIdx.x);
        copy_panel<64, CHUNK, 4 * M>(to.k, a.k + at, ld, len, threadIdx.x);
    }
    copy_commit();
}
/* From the first panel on until z but for exp(F - mq) is in shared memory; FIRST: q h^T, else q k^T. */
template <int M, bool FIRST, bool SECOND>
static __device__ __forceinline__ void walk_panels(struct smem<M> &x, mbarrier_t b, const struct args &a, int64_t row,
                                                   int len) {
    float z[FIRST ? M / 8 : 1][4] = {}, P[SECOND ? 8 : 1][4] = {};
    for (int n = 0; n < a.K / 64; n++) {
        struct panel<M> &in = x.in[n % 2];
        copy_wait<1>();
        fence_proxy_async();
        mbarrier_wait(mbarrier_at(b, n % 2), n / 2 & 1);
        __syncthreads();
        if constexpr (FIRST) times_states<M>(z, in.q, in.h[0]);
        if constexpr (SECOND) times_values(P, in.q, in.k);
        __syncthreads(); /* the panel may be overwritten */
        load_panel<M>(x, mbarrier_at(b, n % 2), a, row, len, n + 2);
    }
    if constexpr (SECOND) store_frags<64, NOT_ABOVE>(x.P, P, 0);
    if constexpr (FIRST) scale_channels<M, true>(z, x.x);
    __syncthreads(); /* P is complete */
    if constexpr (FIRST) {
        wgmma_begin<M / 8>(z);
#pragma unroll
        for (int c = 0; c < CHUNK; c += 16)
            wgmma_ss<M>(z, operand<64, false>{x.P, 0, c}, operand<64, true, TILE>{x.s[0], c, 0});
        wgmma_end<M / 8>(z);
        stage_frags<M>(x.z(), z);
    }
    __syncthreads();
}

/* z += what the steep slots' pairs add. A separate function, like those of gla_steep.cuh. */
template <int M>
static __device__ __attribute__((noinline)) void add_steep_logits(struct smem<M> &x, struct chunk_source s) {
    struct steep_channels<M> &list = x.steep;
    s.q = NULL;
    list_steep<M>(list, x.x);
    for (int from = 0; from < list.all; from += SLOTS) {
        const int many = load_steep<M>(list, s, from), slot = threadIdx.x / CHUNK, i = threadIdx.x % CHUNK;
        if (slot >= many) continue;
        float sum = 0.0f;
        for (int j = 0; j <= i; j++)
            sum += f32(x.P[tile_at<64>(i, j)]) * list.k[slot][j] * fast_exp2(list.G[slot][i] - list.G[slot][j]);
        x.z()[i * smem<M>::LD + list.channel[from + slot]] += sum;
    }
    __syncthreads();
}
/* Softmax of the rows of z: M / 16 adjacent threads share a row. */
template <int M> static __device__ __forceinline__ void softmax_rows(float *z) {
    enum { SHARE = M / 16 };
    float *row = z + threadIdx.x / SHARE * smem<M>::LD + threadIdx.x % SHARE * 2, most = -INFINITY, sum = 0.0f, x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = row[i / 2 * 2 * SHARE + i % 2], most = fmaxf(most, x[i]);
#pragma unroll
    for (int n = 1; n < SHARE; n *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, n));
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = __expf(x[i] - most), sum += x[i];
#pragma unroll
    for (int n = 1; n < SHARE; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < 16; i++) row[i / 2 * 2 * SHARE + i % 2] = inverse * x[i];
}

template <int M> static __global__ void __launch_bounds__(4 * M, 128 / M) weigh_chunk(const struct args a) {
    struct smem<M> &x = *(struct smem<M> *)shared_tiles();
    const mbarrier_t b = mbarrier_base(x.barrier);
    const struct hl_dev_span span = a.chunk[blockIdx.x / a.heads];
    const int head = blockIdx.x % a.heads, group = warpgroup_index(), c = own_channel<M>(), row = own_first_row<M>();
    const struct chunk_source s = chunk_of<M>(a.s, span, head);
    uint32_t p[ROWS], k[ROWS];
    struct decays d;
    if (threadIdx.x == 0) mbarrier_init(b, 1), mbarrier_init(mbarrier_at(b, 1), 1);
    __syncthreads();
    pdl_wait(), pdl_trigger();
    load_panel<M>(x, b, a, span.row, span.len, 0);
    load_panel<M>(x, mbarrier_at(b, 1), a, span.row, span.len, 1);
    struct chunk_source slots = s;
    slots.q = NULL;
    const bool steep = load_chunk<M, true>(p, k, d, x.x, slots);
    decay_pairs<M, false>(NULL, x.s, k, d, 1.0f);
    fence_proxy_async();
    if (group == 0) walk_panels<M, true, false>(x, b, a, span.row, span.len);
    else if (group == 1) walk_panels<M, false, true>(x, b, a, span.row, span.len);
    else walk_panels<M, false, false>(x, b, a, span.row, span.len);
    float *z = x.z() + row * smem<M>::LD + c;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) z[i * smem<M>::LD + j] *= fast_exp2(d.G[i][j] - d.mq[j]);
    if (steep) add_steep_logits<M>(x, s);
    else __syncthreads();
    softmax_rows<M>(x.z());
    __syncthreads();
    bf16 *to = a.p + span.row * a.s.ld_q + head * M;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const bool in = row + i < span.len;
        const float2 y = *(const float2 *)(z + i * smem<M>::LD);
        p[i] = in ? pack2(y.x, y.y) : 0u;
        if (in) *(uint32_t *)(to + (row + i) * a.s.ld_q + c) = p[i];
    }
    __syncthreads(); /* z has been read */
    decay_pairs<M, true>(a.qe + (int64_t)blockIdx.x * CHUNK * M, x.p(), p, d, 1.0f);
    fence_proxy_async();
    __syncthreads();
    multiply_pairs<M>(x.P, x.p(), x.s, group);
    if (steep) add_steep<M>(x.P, (float *)x.in, x.steep, x.x, s, 1.0f);
    __syncthreads();
    uint4 *A = (uint4 *)(a.A + (int64_t)blockIdx.x * TILE);
#pragma unroll
    for (int i = threadIdx.x; i < TILE / 8; i += 4 * M) A[i] = ((const uint4 *)x.P)[i];
}

template <int M> static void launch_weigh(struct hl_cuda *c, const struct args *a, int64_t chunks) {
    launch_pdl(c, weigh_chunk<M>, (unsigned)(chunks * a->heads), 4 * M, sizeof(struct smem<M>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(gsa_weigh)(struct hl_cuda *c, const struct hl_gsa *a, const bf16 *h, bf16 *p,
                                 const struct gla_operands *o) {
    struct args x = {{p, NULL, a->f, a->H * a->M, 0, a->HK * a->M, 0}, (const bf16 *)a->q, (const bf16 *)a->k, h, p};
    x.qe = o->qe, x.A = o->A, x.chunk = a->rows->dev->chunk, x.heads = (int)a->HK, x.K = (int)a->K;
    (a->M == 64 ? launch_weigh<64> : launch_weigh<128>)(c, &x, a->rows->dev->chunks);
}
#endif
