/* gla_prep_cuda.cu -- a chunk's inputs besides v and the state (struct gla_operands), all chunks at once.
 *
 * Grid: a block per chunk and head. Block: 4 K threads, which first own channels (gla_channels.cuh) and then, for A, a
 * warp 16 rows and 2048 / K columns. Shared memory: q and k decayed to the middle of the chunk, the factors of A.
 * Floor: q, k and g are read once, the operands written once. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "ops/gla/gla_steep.cuh"

#ifndef HL_CUDA_F32

struct args {
    struct chunk_source s; /* at row 0, head 0 */
    float scale;
    struct gla_operands o;
    const struct hl_dev_span *chunk;
    int heads;
};
template <int K> struct smem {
    bf16 q[K / 64][TILE], k[K / 64][TILE]; /* then A in q's place; before that, the steep channels' part */
    struct channels<K> x;
    struct steep_channels<K> steep;
};

/* A: the warp's rows and columns */
template <int K, int WIDTH>
static __device__ __forceinline__ void multiply(float acc[WIDTH / 8][4], const struct smem<K> &x, int r0, int c0) {
#pragma unroll 4
    for (int c = 0; c < K; c += 16) {
        uint32_t a[4], b[4];
        tile_load_a<64>(a, x.q[c / 64], r0, c % 64);
#pragma unroll
        for (int n = 0; n < WIDTH; n += 16) {
            if (c0 + n > r0) continue;
            tile_load_b_trans<64>(b, x.k[c / 64], c0 + n, c % 64);
            mma_bf16(acc[n / 8], a, b), mma_bf16(acc[n / 8 + 1], a, b + 2);
        }
    }
}

template <int K, bool SLOTTED>
static __global__ void __launch_bounds__(4 * K, K == 64 ? 3 : 2) prep_chunk(const struct args a) {
    enum { THREADS = 4 * K, WIDTH = 64 * 128 / THREADS };
    struct smem<K> &x = *(struct smem<K> *)shared_tiles();
    const int head = blockIdx.x % a.heads, warp = threadIdx.x / 32, r0 = warp % 4 * 16, c0 = warp / 4 * WIDTH;
    const struct hl_dev_span p = a.chunk[blockIdx.x / a.heads];
    const struct chunk_source s = chunk_of<K>(a.s, p, head);
    uint32_t q[ROWS], k[ROWS];
    struct decays d;
    pdl_wait(), pdl_trigger();
    const bool steep = load_chunk<K, SLOTTED>(q, k, d, x.x, s);
    if (threadIdx.x < K / 2)
        *(float2 *)(a.o.decay + (int64_t)blockIdx.x * K + own_channel<K>()) =
            make_float2(fast_exp2(d.last[0]), fast_exp2(d.last[1]));
    decay_pairs<K, false>(a.o.ke ? a.o.ke + (int64_t)blockIdx.x * CHUNK * K : NULL, x.k, k, d, 1.0f);
    if (!s.q) return;
    decay_pairs<K, true>(a.o.qe ? a.o.qe + (int64_t)blockIdx.x * CHUNK * K : NULL, x.q, q, d, a.scale);
    if (!a.o.A) return;
    __syncthreads();
    float acc[WIDTH / 8][4] = {}, *sum = (float *)x.q;
    multiply<K, WIDTH>(acc, x, r0, c0);
    __syncthreads(); /* q and k are no longer read */
    if (steep) steep_pairs<K>(sum, x.steep, x.x, s, a.scale);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int h = 0; h < 4; h++)
            if (steep) acc[n][h] += sum[(r0 + g + h / 2 * 8) * CHUNK + c0 + 8 * n + 2 * t + h % 2];
    if (steep) __syncthreads();
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = r0 + g + 8 * h, j = c0 + 8 * n + 2 * t;
            *(uint32_t *)(x.q[0] + tile_at<64>(i, j)) =
                pack2(j <= i ? acc[n][2 * h] : 0.0f, j < i ? acc[n][2 * h + 1] : 0.0f);
        }
    __syncthreads();
    uint4 *to = (uint4 *)(a.o.A + (int64_t)blockIdx.x * TILE);
#pragma unroll
    for (int i = threadIdx.x; i < TILE / 8; i += THREADS) to[i] = ((const uint4 *)x.q[0])[i];
}

template <int K> static void launch_prep(struct hl_cuda *c, const struct args *a, int64_t chunks) {
    launch_pdl(c, a->s.k ? prep_chunk<K, false> : prep_chunk<K, true>, (unsigned)(chunks * a->heads), 4 * K,
               sizeof(struct smem<K>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(gla_prep)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o) {
    const struct hl_dev_rows *rows = a->rows->dev;
    struct args x = {source_of(a), a->scale, *o, rows->chunk, (int)a->HK};
    if (!o->qe && !o->A) x.s.q = NULL;
    (a->K == 64 ? launch_prep<64> : launch_prep<128>)(c, &x, rows->chunks);
}
#endif
