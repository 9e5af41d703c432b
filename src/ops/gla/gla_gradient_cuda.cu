/* gla_gradient_cuda.cu -- all gradients of a chunk, all chunks at once, after gla_walk has stored the states h before
 * it and the gradients dh of those after it (docs/math.md, "Decay per channel"):
 *     dA = tril(dO V^T)     X = dO h^T     Y = V dh^T     dV = A^T dO + ke dh
 *     dQ = scale exp(G - mq) (exp(mq) X + dA (K exp(mk - G)))
 *     dK = exp(mk - G) (exp(G_last - mk) Y + dA^T (scale Q exp(G - mq)))
 *     dG = Q dQ - K dK, and for the last row what the states add; dg: its sum over this and all later rows
 * Grid: a block per chunk and head. Block: 4 K threads, which own channels at the start and at the end
 * (gla_channels.cuh); in between, the first warpgroup has X, the second Y, the last but one dA and the last dV. V is
 * processed in panels of 64 columns. Shared memory: tiles, two panels; at the end X and Y in fp32 reuse their
 * memory. */
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/pdl.cuh"
#include "ops/gla/gla_frags.cuh"

#ifndef HL_CUDA_F32

struct args {
    struct chunk_source s; /* at row 0, head 0 */
    const bf16 *v, *dout, *ke, *h, *dh;
    bf16 *dq, *dk, *dv; /* dq NULL: not wanted */
    float *dg;
    int64_t ld_v;
    float scale;
    const struct hl_dev_span *chunk;
    int heads, V;
    bool add;     /* accumulate into dg; SLOTTED only */
    bool softmax; /* q is a softmax, and dq the gradient of its logits; SLOTTED only */
};
template <int K> struct panel {
    bf16 v[TILE], dout[TILE], h[K / 64][TILE], dh[K / 64][TILE]; /* v, then dV in the same memory */
};
template <int K> struct smem {
    enum { LD = K + 8 };
    bf16 A[TILE];                          /* then dA below the diagonal */
    bf16 q[K / 64][TILE], k[K / 64][TILE]; /* scale q exp(G - mq), k exp(mk - G); 0 where steep */
    bf16 ke[K / 64][TILE];
    struct panel<K> in[2];
    struct channels<K> x;
    float diagonal[CHUNK];     /* of dA */
    float rows[K / 64][CHUNK]; /* sums of q dq of 64 channels */
    uint64_t barrier[2];
    /* After the last panel, from q on. */
    __device__ __forceinline__ float *X() { return (float *)q; }
    __device__ __forceinline__ float *Y() { return X() + CHUNK * LD; }
    __device__ __forceinline__ float *sums(int n) { return Y() + CHUNK * LD + n * GROUPS * K; } /* [2][GROUPS][K] */
    __device__ __forceinline__ struct steep_channels<K> &steep() { return *(struct steep_channels<K> *)sums(2); }
};
struct place {
    int64_t id, row; /* of [chunks][heads]; the chunk's first row */
    int len, head;
};

/* Starts loading the panel of V at column 64 n, if it exists; the first comes with ke. */
template <int K>
static __device__ __forceinline__ void load_panel(struct smem<K> &x, mbarrier_t b, const struct args &a,
                                                  const struct place &p, int n) {
    enum { STATE = K * 64 };
    const int64_t tile = (p.id * (a.V / 64) + n) * STATE, ld = (int64_t)a.heads * a.V;
    struct panel<K> &to = x.in[n % 2];
    if (n < a.V / 64) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(b, (n ? 2 : 3) * STATE * 2);
            bulk_copy(to.h[0], a.h + tile, STATE * 2, b);
            bulk_copy(to.dh[0], a.dh + tile, STATE * 2, b);
            if (n == 0) bulk_copy(x.ke[0], a.ke + p.id * STATE, STATE * 2, b);
        }
        copy_panel<64, CHUNK, 4 * K>(to.v, a.v + p.row * a.ld_v + p.head * a.V + 64 * n, a.ld_v, p.len, threadIdx.x);
        copy_panel<64, CHUNK, 4 * K>(to.dout, a.dout + p.row * ld + p.head * a.V + 64 * n, ld, p.len, threadIdx.x);
    }
    copy_commit();
}

/* ---- fragments (gla_frags.cuh) ---- */

/* dV of a panel */
template <int K>
static __device__ __forceinline__ void value_gradients(float dv[8][4], const struct smem<K> &x,
                                                       const struct panel<K> &in) {
    wgmma_begin<8>(dv);
#pragma unroll
    for (int c = 0; c < 64; c += 16) wgmma_ss<64>(dv, operand<64, true>{x.A, c, 0}, operand<64, true>{in.dout, c, 0});
#pragma unroll
    for (int c = 0; c < K; c += 16)
        wgmma_ss<64>(dv, operand<64, false>{x.ke[c / 64], 0, c % 64}, operand<64, false>{in.dh[c / 64], 0, c % 64});
    wgmma_end<8>(dv);
}
/* sums ke Y over a warp's rows, to sums(1) */
template <int K> static __device__ __forceinline__ void add_keys(struct smem<K> &x, const float Y[K / 8][4]) {
    const int t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++) {
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t ke = *(const uint32_t *)(x.ke[n / 8] + tile_at<64>(own_row(h), n % 8 * 8 + 2 * t));
            sum[0] += low(ke) * Y[n][2 * h], sum[1] += high(ke) * Y[n][2 * h + 1];
        }
#pragma unroll
        for (int m = 4; m < 32; m *= 2)
#pragma unroll
            for (int j = 0; j < 2; j++) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], m);
        if (threadIdx.x % 32 < 4) *(float2 *)(x.sums(1) + warp * K + 8 * n + 2 * t) = make_float2(sum[0], sum[1]);
    }
}
/* ---- channels ---- */

/* sums h dh over some of the panel's columns, for the thread's channels */
template <int K> static __device__ __forceinline__ void add_states(float sum[2], const struct panel<K> &in) {
    const int c = own_channel<K>(), row = own_first_row<K>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int at = tile_at<64>(row + i, c % 64);
        const uint32_t x = *(const uint32_t *)(in.h[c / 64] + at), y = *(const uint32_t *)(in.dh[c / 64] + at);
        sum[0] += low(x) * low(y), sum[1] += high(x) * high(y);
    }
}
/* X and Y become dQ and dK, in place */
template <int K>
static __device__ __forceinline__ void finish_sides(struct smem<K> &x, const struct decays &d, float scale) {
    const int at = own_first_row<K>() * smem<K>::LD + own_channel<K>();
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x.X()[at + i * smem<K>::LD + j] *= scale * fast_exp2(d.G[i][j] - d.mq[j]);
            x.Y()[at + i * smem<K>::LD + j] *= fast_exp2(d.mk[j] - d.G[i][j]);
        }
}
/* dq, dk and dg of the thread's rows and channels */
template <int K, bool SLOTTED>
static __device__ __forceinline__ void write_gradients(struct smem<K> &x, const struct args &a, const struct place &p,
                                                       const uint32_t q[ROWS], const uint32_t k[ROWS],
                                                       struct decays &d) {
    enum { LD = smem<K>::LD };
    const int c = own_channel<K>(), row = own_first_row<K>(), group = row / ROWS;
    float *X = x.X() + row * LD + c, *Y = x.Y() + row * LD + c;
    const int64_t first = p.row + row, col = p.head * K + c;
    float sum[2] = {0.0f, 0.0f}, later[2];
#pragma unroll
    for (int j = 0; j < 2; j++) { /* of the states, to the last row */
        float states = 0.0f, keys = 0.0f;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) states += x.sums(0)[n * K + c + j];
#pragma unroll
        for (int n = 0; n < 4; n++) keys += x.sums(1)[n * K + c + j];
        later[j] = fast_exp2(d.last[j]) * states + keys;
    }
#pragma unroll
    for (int i = ROWS - 1; i >= 0; i--) {
        float2 dq = *(const float2 *)(X + i * LD), dk = *(const float2 *)(Y + i * LD);
        const bool in = row + i < p.len;
        sum[0] += low(q[i]) * dq.x - low(k[i]) * dk.x, sum[1] += high(q[i]) * dq.y - high(k[i]) * dk.y;
        /* the pair of a row with itself, which does not decay and would have to cancel in the sum */
        const float self = a.scale * x.diagonal[row + i];
        dq.x += self * low(k[i]), dq.y += self * high(k[i]);
        dk.x += self * low(q[i]), dk.y += self * high(q[i]);
        if (SLOTTED && a.softmax) {
            const float all = warp_sum(low(q[i]) * dq.x + high(q[i]) * dq.y);
            if (threadIdx.x % 32 == 0) x.rows[c / 64][row + i] = all;
            *(float2 *)(X + i * LD) = dq;
        } else if (in && a.dq) *(uint32_t *)(a.dq + (first + i) * a.s.ld_q + col) = pack2(dq.x, dq.y);
        if (in && !SLOTTED) *(uint32_t *)(a.dk + (first + i) * a.s.ld_k + col) = pack2(dk.x, dk.y);
        if (SLOTTED) *(float2 *)(Y + i * LD) = dk;
        d.G[i][0] = sum[0], d.G[i][1] = sum[1]; /* G is no longer needed */
    }
    x.x.sums[group][c] = sum[0], x.x.sums[group][c + 1] = sum[1];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int n = 1; n < GROUPS; n++) later[j] += n > group ? x.x.sums[n][c + j] : 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (row + i >= p.len) break;
        const int64_t at = (first + i) * a.s.ld_g + col;
        float2 dg = make_float2(d.G[i][0] + later[0], d.G[i][1] + later[1]);
        if (SLOTTED) { /* through k = 1 - exp(g), too */
            const float2 g = *(const float2 *)(a.s.g + at), dk = *(const float2 *)(Y + i * LD);
            dg.x -= expf(g.x) * dk.x, dg.y -= expf(g.y) * dk.y;
            if (a.softmax) {
                const float2 dq = *(const float2 *)(X + i * LD);
                float all = 0.0f;
                for (int n = 0; n < K / 64; n++) all += x.rows[n][row + i];
                *(uint32_t *)(a.dq + (first + i) * a.s.ld_q + col) =
                    pack2(low(q[i]) * (dq.x - all), high(q[i]) * (dq.y - all));
            }
            const float2 before = a.add ? *(const float2 *)(a.dg + at) : make_float2(0.0f, 0.0f);
            dg.x += before.x, dg.y += before.y;
        }
        *(float2 *)(a.dg + at) = dg;
    }
}

/* The work of a warpgroup with these ROLES from the first panel until X and Y are in shared memory. All roles use the
 * same block barriers. */
enum { ROLE_X = 1, ROLE_Y = 2, ROLE_DA = 4, ROLE_DV = 8 };
template <int K, int ROLES>
static __device__ __forceinline__ void walk_panels(struct smem<K> &x, mbarrier_t b, const struct args &a,
                                                   const struct place &p) {
    enum { SIDE = ROLES & (ROLE_X | ROLE_Y) };
    float acc[SIDE ? K / 8 : 1][4] = {}, dA[ROLES & ROLE_DA ? 8 : 1][4] = {}, states[2] = {0.0f, 0.0f};
    for (int n = 0; n < a.V / 64; n++) {
        struct panel<K> &in = x.in[n % 2];
        float dv[ROLES & ROLE_DV ? 8 : 1][4] = {};
        copy_wait<1>();
        fence_proxy_async();
        mbarrier_wait(mbarrier_at(b, n % 2), n / 2 & 1);
        __syncthreads();
        if constexpr (SIDE == ROLE_X) times_states<K>(acc, in.dout, in.h[0]);
        if constexpr (SIDE == ROLE_Y) times_states<K>(acc, in.v, in.dh[0]);
        if constexpr (ROLES & ROLE_DA) times_values(dA, in.dout, in.v);
        if constexpr (ROLES & ROLE_DV) value_gradients<K>(dv, x, in);
        add_states<K>(states, in);
        __syncthreads(); /* v is no longer read */
        if constexpr (ROLES & ROLE_DV) store_frags<64, ALL>(in.v, dv, 0);
        __syncthreads();
        bf16 *to = a.dv + p.row * a.ld_v + p.head * a.V + 64 * n;
#pragma unroll
        for (int i = threadIdx.x; i < TILE / 8; i += 4 * K)
            if (i / 8 < p.len)
                *(uint4 *)(to + i / 8 * a.ld_v + i % 8 * 8) = *(const uint4 *)(in.v + tile_at<64>(i / 8, i % 8 * 8));
        __syncthreads(); /* the panel may be overwritten */
        load_panel<K>(x, mbarrier_at(b, n % 2), a, p, n + 2);
    }
    if constexpr (ROLES & ROLE_DA) store_frags<64, BELOW>(x.A, dA, 0), store_diagonal(x.diagonal, dA);
    *(float2 *)(x.sums(0) + own_first_row<K>() / ROWS * K + own_channel<K>()) = make_float2(states[0], states[1]);
    if constexpr (SIDE == ROLE_X) scale_channels<K, true>(acc, x.x);
    if constexpr (SIDE == ROLE_Y) add_keys<K>(x, acc), scale_channels<K, false>(acc, x.x);
    __syncthreads(); /* dA is complete */
    if constexpr (SIDE != 0) {
        wgmma_begin<K / 8>(acc);
#pragma unroll
        for (int c = 0; c < CHUNK; c += 16)
            if constexpr (SIDE == ROLE_X)
                wgmma_ss<K>(acc, operand<64, false>{x.A, 0, c}, operand<64, true, TILE>{x.k[0], c, 0});
            else wgmma_ss<K>(acc, operand<64, true>{x.A, c, 0}, operand<64, true, TILE>{x.q[0], c, 0});
        wgmma_end<K / 8>(acc);
    }
    __syncthreads(); /* q and k are no longer read */
    if constexpr (SIDE != 0) stage_frags<K>(SIDE == ROLE_Y ? x.Y() : x.X(), acc);
    __syncthreads();
}

template <int K, bool SLOTTED>
static __global__ void __launch_bounds__(4 * K, K == 64 ? 2 : 1) gradient_chunk(const struct args a) {
    struct smem<K> &x = *(struct smem<K> *)shared_tiles();
    const mbarrier_t b = mbarrier_base(x.barrier);
    const struct hl_dev_span span = a.chunk[blockIdx.x / a.heads];
    const struct place p = {(int64_t)blockIdx.x, span.row, span.len, (int)(blockIdx.x % a.heads)};
    const struct chunk_source s = chunk_of<K>(a.s, span, p.head);
    const int group = warpgroup_index();
    uint32_t q[ROWS], k[ROWS];
    struct decays d;
    if (threadIdx.x == 0) mbarrier_init(b, 1), mbarrier_init(mbarrier_at(b, 1), 1);
    __syncthreads();
    pdl_wait(), pdl_trigger();
    load_panel<K>(x, b, a, p, 0);
    const bool steep = load_chunk<K, SLOTTED>(q, k, d, x.x, s);
    decay_pairs<K, false>(NULL, x.k, k, d, 1.0f);
    decay_pairs<K, true>(NULL, x.q, q, d, a.scale);
    fence_proxy_async();
    __syncthreads();
    struct panel<K> &lent = x.in[1];
    multiply_pairs<K>(x.A, x.q, x.k, group);
    if (steep) {
        add_steep<K>(x.A, (float *)lent.h, *(struct steep_channels<K> *)lent.v, x.x, s, a.scale);
        fence_proxy_async();
        __syncthreads();
    }
    load_panel<K>(x, mbarrier_at(b, 1), a, p, 1);
    if constexpr (K == 64) {
        if (group == 0) walk_panels<K, ROLE_X | ROLE_DA>(x, b, a, p);
        else walk_panels<K, ROLE_Y | ROLE_DV>(x, b, a, p);
    } else {
        if (group == 0) walk_panels<K, ROLE_X>(x, b, a, p);
        else if (group == 1) walk_panels<K, ROLE_Y>(x, b, a, p);
        else if (group == 2) walk_panels<K, ROLE_DA>(x, b, a, p);
        else walk_panels<K, ROLE_DV>(x, b, a, p);
    }
    finish_sides<K>(x, d, a.scale);
    if (steep) steep_sides<K, smem<K>::LD>(x.X(), x.Y(), x.A, x.steep(), x.x, s, a.scale);
    write_gradients<K, SLOTTED>(x, a, p, q, k, d);
}

template <int K> static void launch_gradient(struct hl_cuda *c, const struct args *a, int64_t chunks) {
    static_assert(2 * CHUNK * smem<K>::LD * 4 + 2 * GROUPS * K * 4 + sizeof(struct steep_channels<K>) <=
                      3 * K * CHUNK * 2 + 2 * sizeof(struct panel<K>),
                  "what is in the tiles' place in the end");
    launch_pdl(c, a->s.k ? gradient_chunk<K, false> : gradient_chunk<K, true>, (unsigned)(chunks * a->heads), 4 * K,
               sizeof(struct smem<K>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(gla_gradient)(struct hl_cuda *c, const struct gla_view *a, const bf16 *ke, const bf16 *h,
                                    const bf16 *dh, bool add, bool softmax) {
    struct args x = {source_of(a), a->v, a->dout, ke, h, dh, a->dq, a->dk, a->dv, a->dg, a->ld_v, a->scale};
    x.chunk = a->rows->dev->chunk, x.heads = (int)a->HK, x.V = (int)a->V, x.add = add;
    x.softmax = softmax;
    (a->K == 64 ? launch_gradient<64> : launch_gradient<128>)(c, &x, a->rows->dev->chunks);
}
#endif
