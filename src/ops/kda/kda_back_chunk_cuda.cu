/* kda_back_chunk_cuda.cu -- the backward pass except for the scans, from h, dh and X2 (kda_back_cuda.cuh), for all
 * chunks in parallel.
 *
 * Persistent kernel: one block per SM, which takes every gridDim-th (chunk, value head). Block: K / 32 warpgroups with
 * 32 channels each; warp w of a warpgroup has rows 16 w.. of the chunk. V comes in slices of 64 columns, two of them in
 * shared memory; later ones are copied in during the rest. Per item:
 *     slices     dO h^T, X2 h^T, v_new dh^T of the channels (wgmma); dO v_new^T, X2 v_new^T shared among the
 *                warpgroups; beside them dV, V.X2, sum_v h dh and the operands of the pair products
 *     pairs      rows and columns of both pair products (mma, pair_cuda.cuh), after a __syncthreads
 *     results    dQ, dK, and dg by sums over the rows, which the warps of a warpgroup exchange
 * mbarrier full of a stage: all threads and the bulk copies arrive, all threads wait. Floor: q, k, v, g, dO, v_new, X2,
 * h, dh read once, dQ, dK, dV, dg written once. */
#include "ops/cuda_ops.cuh"
#include "ops/kda/kda_back_chunk_cuda.cuh"

#ifndef HL_CUDA_F32

/* A chunk and value head. */
struct item {
    int row, len, hv;
    int64_t n, head; /* of [chunks][HV]; of [T][HV] */
};
static __device__ __forceinline__ struct item item_of(const struct kda_back &a, int64_t n) {
    const struct hl_dev_span p = a.chunk[n / a.HV];
    const int hv = (int)(n % a.HV);
    return {p.row, p.len, hv, n, (int64_t)p.row * a.HV + hv};
}

/* Starts copying the block's slice number `load`, counted over all its items. All threads. */
template <int K> static __device__ __forceinline__ void load_slice(smem<K> &x, const struct kda_back &a, int load) {
    enum { THREADS = K / COLS * GROUP };
    const int slices = a.V / 64, v = load % slices, i = threadIdx.x;
    const int64_t n = blockIdx.x + (int64_t)(load / slices) * gridDim.x, stride = (int64_t)a.HV * a.V;
    if (n >= a.chunks * a.HV) return;
    const struct item p = item_of(a, n);
    slice<K> &s = x.stage[load % STAGES];
    const mbarrier_t full = mbarrier_at(mbarrier_base(x.full), load % STAGES);
    const int64_t at = p.head * a.V + 64 * v, tile = (n * slices + v) * 64;
    if (i == 0) {
        mbarrier_arrive_expect_tx(full, sizeof s.h + sizeof s.dh + sizeof s.X2);
        bulk_copy(s.h, (const bf16 *)a.h + tile * K, sizeof s.h, full);
        bulk_copy(s.dh, (const bf16 *)a.dh + tile * K, sizeof s.dh, full);
        bulk_copy(s.X2, (const bf16 *)a.X2 + tile * 64, sizeof s.X2, full);
    }
    if (v == 0 && i < p.len) { /* what load_fragments will read */
        const int64_t row = p.row + i, qk = (row * a.H + p.hv / a.group) * K;
        prefetch_l2(a.g + (row * a.HV + p.hv) * K, 4 * K);
        prefetch_l2(a.k + qk, 2 * K);
        prefetch_l2(a.q + qk, 2 * K);
    }
    copy_panel<64, CHUNK, THREADS>(s.dO, a.dout + at, stride, p.len, i);
    copy_panel<64, CHUNK, THREADS>(s.v_new, a.v_new + at, stride, p.len, i);
    copy_panel<64, CHUNK, THREADS>(s.v, a.v + at, stride, p.len, i);
    copy_async_arrive(full);
}

/* dV = beta X2 and the sums V.X2 of the slice; `first`: of the item's slices */
template <int K>
static __device__ __forceinline__ void write_dV(smem<K> &x, const slice<K> &s, const struct kda_back &a,
                                                const struct item &p, int v, bool first) {
    enum { THREADS = K / COLS * GROUP };
    const int col = threadIdx.x % 8 * 8;
#pragma unroll
    for (int row = threadIdx.x / 8; row < CHUNK; row += THREADS / 8) {
        const int at = tile_at<64>(row, col);
        const float beta = x.beta[row];
        float y[8], z[8], sum = 0.0f;
        load_wide(y, s.X2 + at), load_wide(z, s.v + at);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += y[i] * z[i], y[i] *= beta;
        if (row < p.len) store_wide(a.dv + (p.head + (int64_t)row * a.HV) * a.V + 64 * v + col, y);
#pragma unroll
        for (int n = 1; n < 8; n *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
        if (col == 0) x.vx[row] = first ? sum : x.vx[row] + sum;
    }
}
/* sum_v h dh of the slice, 8 channels a warp, two rows of V a lane */
template <int K> static __device__ __forceinline__ void sum_hdh(smem<K> &x, const slice<K> &s, bool first) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[8] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int at = warp / 4 * 64 * 32 + tile_at<32>(lane + 32 * r, warp % 4 * 8);
        float y[8], z[8];
        load_wide(y, s.h + at), load_wide(z, s.dh + at);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += y[i] * z[i];
    }
    /* a butterfly: each step halves how many sums a lane has */
#pragma unroll
    for (int m = 4; m > 0; m /= 2) {
        const bool upper = lane & m;
#pragma unroll
        for (int i = 0; i < m; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, upper ? sum[i] : sum[m + i], m);
            sum[i] = (upper ? sum[m + i] : sum[i]) + other;
        }
    }
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 8);
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 16);
    if (lane < 8) x.hdh[8 * warp + lane] = first ? sum[0] : x.hdh[8 * warp + lane] + sum[0];
}

/* dS with its diagonal, or N, from the row products: columns from `col` on */
template <int K, int TILES>
static __device__ __forceinline__ void write_scores(smem<K> &x, const float (*d)[4], int col, bool second) {
    const int t = threadIdx.x % 4;
    const float scale = second ? -1.0f : 1.0f / sqrtf((float)K);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = own_row(h), j = col + 8 * n + 2 * t, at = tile_at<CHUNK>(i, j);
            const float y = scale * d[n][2 * h], z = scale * d[n][2 * h + 1];
            const float below = j < i ? y : 0.0f, next = j + 1 < i ? z : 0.0f;
            *(uint32_t *)((second ? x.N : x.dS) + at) = pack2(below, next);
            if (!second && (i == j || i == j + 1)) x.diagonal[i] = i == j ? y : z;
        }
}

/* Products with the chunk's states, and row-by-row products. */
template <int K>
static __device__ __forceinline__ void multiply_slice(const slice<K> &s, int group, float dQ[4][4], float E[4][4],
                                                      float U[4][4], float (*D)[4]) {
    enum { N = K == 128 ? 32 : 64 };
    const bf16 *h = s.h + group * 64 * COLS, *dh = s.dh + group * 64 * COLS;
    const bf16 *left = group < K / COLS / 2 ? s.dO : s.X2;
    const int first = N == 32 ? group % 2 * 32 : 0;
    wgmma_hold<4>(dQ), wgmma_hold<4>(E), wgmma_hold<4>(U);
    wgmma_begin<N / 8>(D);
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
        wgmma_ss<COLS>(dQ, operand<64, false>{s.dO, 0, k}, operand<COLS, true>{h, k, 0});
        wgmma_ss<COLS>(E, operand<64, false>{s.X2, 0, k}, operand<COLS, true>{h, k, 0});
        wgmma_ss<COLS>(U, operand<64, false>{s.v_new, 0, k}, operand<COLS, true>{dh, k, 0});
        wgmma_ss<N>(D, operand<64, false>{left, 0, k}, operand<64, false>{s.v_new, first, k});
    }
    wgmma_commit_wait<1>();
}

/* q, k and the decays of the item's rows and channels; asynchronous */
static __device__ __forceinline__ void load_fragments(struct fragments &f, const struct kda_back &a,
                                                      const struct item &p, int K, int c0) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = own_row(h), at = ((p.row + row) * a.H + p.hv / a.group) * K + c0 + 8 * t;
        const bool in = row < p.len;
        uint32_t even[4], odd[4];
        load_floats(even, odd, a.g + (p.head + row * a.HV) * K + c0 + 8 * t, in);
        load_pairs(f.k[h], a.k + at, in);
        load_pairs(f.q[h], a.q + at, in);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            f.m[n][2 * h] = PAIR_LOG2_E * __uint_as_float(even[n]);
            f.m[n][2 * h + 1] = PAIR_LOG2_E * __uint_as_float(odd[n]);
        }
    }
}
/* What comes from outside the chunk: dQ and E relative to the chunk's first row. U stays relative to its last one; the
 * sums of K U over the block's rows. */
template <int K>
static __device__ __forceinline__ void scale_outside(smem<K> &x, struct fragments &f, int c0, float dQ[4][4],
                                                     float E[4][4], const float U[4][4]) {
    const int I = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float scale = 1.0f / sqrtf((float)K);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int c = c0 + 8 * n + 2 * t;
        const float2 first = pair_exp2(*(const float2 *)(x.d.first[0] + c)), end = pair_exp2(pair_end<K>(x.d, I, c));
        float b[4], sum[2];
        decays_of(b, f, -1.0f, x.to_next[I] + c0, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dQ[n][i] *= scale * (i % 2 ? first.y : first.x);
            E[n][i] *= -(i % 2 ? first.y : first.x);
        }
        sum[0] = end.x * (low(f.k[0][n]) * b[0] * U[n][0] + low(f.k[1][n]) * b[2] * U[n][2]);
        sum[1] = end.y * (high(f.k[0][n]) * b[1] * U[n][1] + high(f.k[1][n]) * b[3] * U[n][3]);
#pragma unroll
        for (int m = 4; m < 32; m *= 2)
#pragma unroll
            for (int e = 0; e < 2; e++) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], m);
        if (g == 0) *(float2 *)(x.kU[I] + c) = make_float2(sum[0], sum[1]);
    }
    compute_again(f);
}
/* acc += m^sign times a block of D on the diagonal, or its transpose, times what write_own left */
template <int K, bool TRANS>
static __device__ __forceinline__ void add_diagonal(float acc[4][4], const smem<K> &x, const bf16 *D,
                                                    struct fragments &f, float sign, int c0) {
    const int row = threadIdx.x / 32 % 4 * PAIR_ROWS;
    uint32_t y[4];
    if (TRANS) tile_load_a_trans<CHUNK>(y, D, row, row);
    else tile_load_a<CHUNK>(y, D, row, row);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
        float own[2][4] = {};
        pair_times_rows<2>(own, y, x.own, row, c0 + 8 * n);
        compute_again(f);
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[n + i / 4][i % 4] += fast_exp2(sign * f.m[n + i / 4][i % 4]) * own[i / 4][i % 4];
    }
}
/* dQ, E and U + W of the thread's elements, without the diagonal of the scores; on entry W is U */
template <int K>
static __device__ __forceinline__ void add_pairs(smem<K> &x, struct fragments &f, int c0, float dQ[4][4], float E[4][4],
                                                 float W[4][4]) {
    const int I = threadIdx.x / 32 % 4;
    pair_row_sides<4, K>(dQ, x.dS, E, x.N, x.kb, x.d, I, c0);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float a[4];
        decays_of(a, f, 1.0f, x.to_middle[I] + c0, n);
#pragma unroll
        for (int i = 0; i < 4; i++) dQ[n][i] *= a[i], E[n][i] *= a[i];
    }
    write_own<K, false>(x, f, f.k, -1.0f, c0);
    add_diagonal<K, false>(dQ, x, x.dS, f, 1.0f, c0);
    add_diagonal<K, false>(E, x, x.N, f, 1.0f, c0);
    pair_column_side<4, K>(W, x.dS, x.qa, x.N, x.ka, x.d, I, c0);
    compute_again(f);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float b[4];
        decays_of(b, f, -1.0f, x.to_next[I] + c0, n);
#pragma unroll
        for (int i = 0; i < 4; i++) W[n][i] *= b[i];
    }
    write_own<K, false>(x, f, f.q, 1.0f, c0);
    add_diagonal<K, true>(W, x, x.dS, f, -1.0f, c0);
    write_own<K, true>(x, f, f.k, 1.0f, c0);
    add_diagonal<K, true>(W, x, x.N, f, -1.0f, c0);
}

/* dq and dk to memory; up: what dg sums over the rows from its own on; the rows' K.E. W: U + W */
template <int K>
static __device__ __forceinline__ void write_rows(smem<K> &x, const struct kda_back &a, const struct item &p,
                                                  const struct fragments &f, int group, const float dQ[4][4],
                                                  const float E[4][4], const float W[4][4], float up[4][4]) {
    const int t = threadIdx.x % 4, c0 = group * COLS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = own_row(h);
        const float beta = x.beta[row], diagonal = x.diagonal[row];
        uint32_t dq[4], dk[4];
        float ke = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float y[2], z[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int i = 2 * h + e;
                const float q = e ? high(f.q[h][n]) : low(f.q[h][n]), k = e ? high(f.k[h][n]) : low(f.k[h][n]);
                const float bE = beta * E[n][i];
                ke += k * E[n][i];
                up[n][i] = q * dQ[n][i] + k * (bE - W[n][i]);
                y[e] = dQ[n][i] + diagonal * k;
                z[e] = bE + W[n][i] + diagonal * q;
            }
            dq[n] = pack2(y[0], y[1]), dk[n] = pack2(z[0], z[1]);
        }
        gather_columns(dq), gather_columns(dk);
        const int64_t to = (p.head + (int64_t)row * a.HV) * K + c0 + 8 * t;
        if (row < p.len) {
            *(uint4 *)(a.dq_head + to) = make_uint4(dq[0], dq[1], dq[2], dq[3]);
            *(uint4 *)(a.dk_head + to) = make_uint4(dk[0], dk[1], dk[2], dk[3]);
        }
        ke += __shfl_xor_sync(0xffffffffu, ke, 1);
        ke += __shfl_xor_sync(0xffffffffu, ke, 2);
        if (t == 0) x.ke[group][row] = ke;
    }
}
/* dg: up summed over the rows from its own on, and what does not depend on the row; 0 where the decay is bounded */
template <int K>
static __device__ __forceinline__ void write_dg(smem<K> &x, const struct kda_back &a, const struct item &p, int group,
                                                uint32_t bounded, float up[4][4]) {
    const int I = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, c0 = group * COLS;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float lo = up[n][e], hi = up[n][2 + e];
            pair_suffix(lo, hi);
            up[n][e] += lo, up[n][2 + e] += hi;
            if (g == 0) x.d.first[I][c0 + 8 * n + 2 * t + e] = up[n][e]; /* the block's sum */
        }
    named_barrier_sync(1 + group, GROUP); /* the sums of all blocks are ready */
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int c = c0 + 8 * n + 2 * t + e;
            float rest = x.last[c] * x.hdh[c];
#pragma unroll
            for (int J = 0; J < PAIR_BLOCKS; J++) {
                rest += x.kU[J][c];
                if (J > I) rest += x.d.first[J][c];
            }
            up[n][e] += rest, up[n][2 + e] += rest;
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t even[4], odd[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            even[n] = bounded >> (4 * n + 2 * h) & 1 ? 0u : __float_as_uint(up[n][2 * h]);
            odd[n] = bounded >> (4 * n + 2 * h + 1) & 1 ? 0u : __float_as_uint(up[n][2 * h + 1]);
        }
        store_floats(a.dg + (p.head + (int64_t)own_row(h) * a.HV) * K + c0 + 8 * t, even, odd, own_row(h) < p.len);
    }
}

template <int K> static __global__ void __launch_bounds__(K / COLS * GROUP, 1) back_chunks(const struct kda_back a) {
    enum { TILES = K == 128 ? 4 : 8 }; /* of the row-by-row products */
    smem<K> &x = *(smem<K> *)shared_tiles();
    const int slices = a.V / 64, group = warpgroup_index(), c0 = group * COLS;
    const mbarrier_t full = mbarrier_base(x.full);
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) mbarrier_init(mbarrier_at(full, i), K / COLS * GROUP + 1);
    if (threadIdx.x < K) x.d.first[PAIR_BLOCKS][threadIdx.x] = 0.0f;
    named_barrier_init();
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    for (int i = 0; i < STAGES; i++) load_slice(x, a, i);
    int load = 0; /* number of earlier slices */
    for (int64_t n = blockIdx.x; n < a.chunks * a.HV; n += gridDim.x) {
        const struct item p = item_of(a, n);
        float dQ[4][4] = {}, E[4][4] = {}, U[4][4] = {}, D[TILES][4] = {};
        struct fragments f;
        load_fragments(f, a, p, K, c0);
        if (threadIdx.x < CHUNK)
            x.beta[threadIdx.x] = (int)threadIdx.x < p.len ? a.beta[p.head + (int64_t)threadIdx.x * a.HV] : 0.0f;
        scan_decays<K>(f, x, c0);
        __syncthreads(); /* beta, and the sums of blocks */
        for (int v = 0; v < slices; v++, load++) {
            const slice<K> &s = x.stage[load % STAGES];
            mbarrier_wait(mbarrier_at(full, load % STAGES), load / STAGES & 1);
            fence_proxy_async();
            multiply_slice<K>(s, group, dQ, E, U, D);
            if (v == 0) {
                finish_decays<K>(x, c0);
                write_operands<K>(x, f, c0);
            }
            write_dV<K>(x, s, a, p, v, v == 0);
            sum_hdh<K>(x, s, v == 0);
            wgmma_wait_all<TILES>(D);
            wgmma_hold<4>(dQ), wgmma_hold<4>(E), wgmma_hold<4>(U);
            __syncthreads(); /* the slice has been read */
            load_slice(x, a, load + STAGES);
        }
        write_scores<K, TILES>(x, D, TILES == 4 ? group % 2 * 32 : 0, group >= K / COLS / 2);
        scale_outside<K>(x, f, c0, dQ, E, U);
        __syncthreads(); /* operands and scores are complete; the sums of blocks have been read */
        add_pairs<K>(x, f, c0, dQ, E, U);
        write_rows<K>(x, a, p, f, group, dQ, E, U, D);
        write_dg<K>(x, a, p, group, f.bounded, D);
        __syncthreads();
        if (threadIdx.x < p.len) {
            float sum = x.vx[threadIdx.x];
#pragma unroll
            for (int i = 0; i < K / COLS; i++) sum += x.ke[i][threadIdx.x];
            a.dbeta[p.head + (int64_t)threadIdx.x * a.HV] = sum;
        }
    }
}

template <int K> static bool fits(struct hl_cuda *c) {
    return hl_cuda_compiled_for_sm90(c, (const void *)back_chunks<K>) &&
           sizeof(smem<K>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" bool HL_OP(kda_back_fits)(struct hl_cuda *c, int64_t K, int64_t V) {
    return V % 64 == 0 && (K == 128 ? fits<128>(c) : K == 64 && fits<64>(c));
}
template <int K> static void launch_chunks(struct hl_cuda *c, const struct kda_back *a) {
    const int64_t items = a->chunks * a->HV, most = (int64_t)hl_cuda_sms(c) * (K == 64 ? 2 : 1);
    launch_pdl(c, back_chunks<K>, (unsigned)(items < most ? items : most), K / COLS * GROUP,
               sizeof(smem<K>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(kda_back_chunks)(struct hl_cuda *c, const struct kda_back *a) {
    (a->K == 64 ? launch_chunks<64> : launch_chunks<128>)(c, a);
}
#endif
