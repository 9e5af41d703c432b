/* gdn_back_walk_cuda.cu -- the walk forward along a segment, after that of the gradients: the states again,
 *     S <- exp(G_last) S + K^T (eL v_new),
 * and all gradients of a chunk while its state is there. So no state is ever in memory.
 *
 * A warpgroup owns 64 rows of K and all columns of V: S as [64][V] in fp32 accumulators, whose packed pairs
 * are operands of dO h^T and X2 h^T as they are. Everything as wide as K is trans, [64][rows of the chunk].
 * Two such groups share a block, one more copies and one takes along v.X2, dv and what leaves.
 *
 * Sums over K, of a row's products, are those of the block's tile of K; gates_end adds the tiles. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_walk_cuda.cuh"

#ifndef HL_CUDA_F32

/* columns 8 n.. and 8 n + 8.. of the warp's 16 rows to a tile */
static __device__ __forceinline__ void store_rows(bf16 *tile, const float y[2][4], int n) {
    const uint32_t x[4] = {pack2(y[0][0], y[0][1]), pack2(y[0][2], y[0][3]), pack2(y[1][0], y[1][1]),
                           pack2(y[1][2], y[1][3])};
#if HL_WGMMA
    const int l = threadIdx.x % 32;
    const bf16 *row = tile + tile_at<C>(threadIdx.x / 32 % 4 * 16 + l % 16, 8 * n + l / 16 * 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#else
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(tile + tile_at<C>(own_row(i % 2), 8 * (n + i / 2) + threadIdx.x % 4 * 2)) = x[i];
#endif
}
/* dS and its diagonal from dO v_new^T, -N from X2 v_new^T; the first group has dS. */
template <class R> static __device__ __forceinline__ void form_scores(R &m, const marks<R> &b, int c, int which) {
    const float *gates = m.gates[c % R::ALL_GATES];
    const bf16 *x = which ? m.X2[c % R::STAGES] : m.dO[c % R::STAGES], *v_new = m.v_new[c % R::NEW];
    const int t = threadIdx.x % 4, row[2] = {own_row(0), own_row(1)};
    const float whole[2] = {gates[WHOLE + row[0]], gates[WHOLE + row[1]]}, more = which ? 0.0f : m.bits;
    const float part[2] = {gates[PART + row[0]] + more, gates[PART + row[1]] + more};
    float f[C / 8][4] = {}, own[2];
    wgmma_begin<C / 8>(f);
#pragma unroll
    for (int v = 0; v < R::V; v += 16)
        wgmma_ss<C>(f, operand<64, false>{x + v / 64 * PANEL, 0, v % 64},
                    operand<64, false>{v_new + v / 64 * PANEL, 0, v % 64});
    wgmma_end<C / 8>(f);
#pragma unroll
    for (int n = 0; n < C / 8; n++) { /* all loads before the stores, which might be to the same place */
        const float2 w = *(const float2 *)(gates + WHOLE + 8 * n + 2 * t),
                     p = *(const float2 *)(gates + PART + 8 * n + 2 * t);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row[h], j = 8 * n + 2 * t;
            float *y = f[n] + 2 * h;
            if (i / 8 == n) own[h] = i % 2 ? y[1] : y[0]; /* the diagonal's, in lanes t == i % 8 / 2 */
            y[0] = j < i ? y[0] * fast_exp2((whole[h] - w.x) + (part[h] - p.x)) : 0.0f;
            y[1] = j + 1 < i ? y[1] * fast_exp2((whole[h] - w.y) + (part[h] - p.y)) : 0.0f;
        }
    }
    mbarrier_wait(b.n_done(), empty<1>(c)); /* with those of the chunk before */
#pragma unroll
    for (int n = 0; n < C / 8; n += 2) store_rows(which ? m.N : m.dS, f + n, n);
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (!which && t == row[h] % 8 / 2) put(m.diagonal + tile_at<C>(row[h], row[h]), m.scale * own[h]);
    fence_proxy_async();
}

/* A tile of q, k or dh, trans: the warp's columns, as operands and beside accumulators */
static __device__ __forceinline__ void take_rows(uint32_t x[4][4], const bf16 *tile) {
#pragma unroll
    for (int i = 0; i < 4; i++) tile_load_a_trans<64>(x[i], tile, 16 * i, threadIdx.x / 32 % 4 * 16);
}
/* the chunk's row whose sum over the warp's rows a lane has, of 32 half.. */
static __device__ __forceinline__ int row_of_sum(int half) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return 32 * half + g / 2 * 8 + 2 * t + g % 2;
}
/* Sums over the warp's rows of x d, x: a tile of q or k: two for each lane. ROWS of them at once: as
 * registers allow. */
template <int ROWS>
static __device__ __forceinline__ void times_rows(float to[2], const float d[C / 8][4], const bf16 *x) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < C; r += ROWS) {
        float sum[ROWS / 32][8];
        uint32_t y[ROWS / 16][4];
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) tile_load_a_trans<64>(y[i], x, r + 16 * i, threadIdx.x / 32 % 4 * 16);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            const uint32_t lo = y[i / 2][i % 2 * 2], hi = y[i / 2][i % 2 * 2 + 1];
            const float *e = d[r / 8 + i];
            sum[i / 4][i % 4 * 2] = low(lo) * e[0] + low(hi) * e[2];
            sum[i / 4][i % 4 * 2 + 1] = high(lo) * e[1] + high(hi) * e[3];
        }
#pragma unroll
        for (int m = 4; m > 0; m /= 2)
#pragma unroll
            for (int i = 0; i < m; i++)
#pragma unroll
                for (int h = 0; h < ROWS / 32; h++) {
                    const bool up = g & m;
                    const float got = __shfl_xor_sync(0xffffffffu, up ? sum[h][i] : sum[h][i + m], 4 * m);
                    sum[h][i] = (up ? sum[h][i + m] : sum[h][i]) + got;
                }
#pragma unroll
        for (int h = 0; h < ROWS / 32; h++) to[r / 32 + h] = sum[h][0];
    }
}
/* d += x times the diagonal of dS */
static __device__ __forceinline__ void times_diagonal(float d[C / 8][4], const bf16 *x, const bf16 *diagonal) {
    wgmma_begin<C / 8>(d);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_ss<C>(d, operand<64, true>{x, 16 * i, 0}, operand<C, false>{diagonal, 0, 16 * i});
    wgmma_end<C / 8>(d);
}
/* d += x T, T [64][64], or its transpose where it is TRANS: begun, not waited for */
template <bool TRANS>
static __device__ __forceinline__ void times_square(float d[C / 8][4], uint32_t x[4][4], const bf16 *T) {
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<C>(d, x[i], operand<C, TRANS>{T, TRANS ? 16 * i : 0, TRANS ? 0 : 16 * i});
}
/* dQ: d holds s eG (dO h^T), and leaves in the place of dO. That q has come says that the sums which were in
 * the place of this chunk's have been taken. */
template <class R>
static __device__ __forceinline__ void finish_queries(R &m, const marks<R> &b, int c, int group, float d[C / 8][4]) {
    const bf16 *q = m.q[c % R::KEYS] + group * PANEL, *k = m.k[c % R::KEYS] + group * PANEL;
    uint32_t x[4][4];
    float up[2];
    wgmma_begin<C / 8>(d);
#pragma unroll
    for (int j = 0; j < C; j += 16) wgmma_ss<C>(d, operand<64, true>{k, j, 0}, operand<C, false>{m.dS, 0, j});
    wgmma_end<C / 8>(d);
    times_rows<R::SUM_ROWS>(up, d, q);
    times_diagonal(d, k, m.diagonal);
    for (int half = 0; half < 2; half++) m.dot[c % R::KEYS][threadIdx.x / 32][UP][row_of_sum(half)] = up[half];
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    leave(m.dO[c % R::STAGES] + group * PANEL, x);
    mbarrier_arrive_warp(b.dq_there(c));
}
/* dK: d holds X2 h^T, and becomes -E, beta E, beta E + U, dK; what the products of rows with k grow by is
 * what they are with each of these. So dK is in one place all the time: there are no registers for two. */
template <class R> static __device__ __forceinline__ void finish_errors(R &m, int c, int group, float d[C / 8][4]) {
    const float *gates = m.gates[c % R::ALL_GATES];
    const bf16 *k = m.k[c % R::KEYS] + group * PANEL;
    uint32_t x[4][4];
    float ke[2];
    scale_columns(d, gates + EG, 1.0f);
    take_rows(x, k);
    wgmma_hold_a<4>(x);
    wgmma_begin<C / 8>(d);
    times_square<false>(d, x, m.N);
    wgmma_end<C / 8>(d);
    wgmma_hold_a<4>(x);
    times_rows<R::SUM_ROWS>(ke, d, k);
    for (int half = 0; half < 2; half++) m.dot[c % R::KEYS][threadIdx.x / 32][DB][row_of_sum(half)] = -ke[half];
    scale_columns(d, gates + BETA, -1.0f);
}
template <class R>
static __device__ __forceinline__ void finish_keys(R &m, const marks<R> &b, int c, int group, float d[C / 8][4]) {
    const float *beta = m.gates[c % R::ALL_GATES] + BETA;
    float(*dot)[C] = m.dot[c % R::KEYS][threadIdx.x / 32], kd[2], all[2];
    bf16 *q = m.q[c % R::KEYS] + group * PANEL, *k = m.k[c % R::KEYS] + group * PANEL;
    uint32_t x[4][4];
    times_rows<R::SUM_ROWS>(kd, d, k);
    take_rows(x, k);
#pragma unroll
    for (int i = 0; i < 4; i++) scale_columns(x[i], beta, 16 * i, -1.0f);
    wgmma_hold_a<4>(x);
    wgmma_begin<C / 8>(d);
#pragma unroll
    for (int j = 0; j < C; j += 16) wgmma_ss<C>(d, operand<64, true>{q, j, 0}, operand<C, true>{m.dS, j, 0});
    times_square<true>(d, x, m.N);
    wgmma_end<C / 8>(d);
    wgmma_hold_a<4>(x);
    times_rows<R::SUM_ROWS>(all, d, k);
    times_diagonal(d, q, m.diagonal);
    mbarrier_arrive_warp(b.n_done());
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    named_barrier_sync(2 + group, GROUP); /* the group is done with q */
    leave(q, x);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row_of_sum(half);
        const float y = beta[row] * dot[DB][row];
        dot[KU][row] = kd[half] - y;
        dot[UP][row] += y + (kd[half] - all[half]);
    }
    mbarrier_arrive_warp(b.dk_there());
}
/* h.dh of 64 columns of V, the warp's rows */
static __device__ __forceinline__ float dot_state(const float S[8][4], const uint32_t dh[4][4]) {
    float x = 0, y = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int z = 0; z < 4; z++) {
            const float *s = S[2 * j + z / 2] + z % 2 * 2;
            x += low(dh[j][z]) * s[0], y += high(dh[j][z]) * s[1];
        }
    return x + y;
}
/* read_state once more. The compiler would rather keep what it packed the first time, and run out of
 * registers: so it gets to see other pairs, that are then trans about. */
template <int V>
static __device__ __forceinline__ void read_again(float d[C / 8][4], const float S[V / 8][4], const bf16 *rows) {
    uint32_t x[2][1][4];
    zero(d);
    wgmma_hold<C / 8>(d);
#pragma unroll
    for (int b = 0; b < V / 16; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *y = S[2 * b + i / 2] + i % 2 * 2;
            const uint32_t trans = pack2(y[1], y[0]);
            x[b % 2][0][i] = trans << 16 | trans >> 16;
        }
        wgmma_hold_a<1>(x[b % 2]);
        wgmma_fence();
        wgmma_rs<C>(d, x[b % 2][0], operand<64, false>{rows + b / 4 * PANEL, 0, b % 4 * 16});
        wgmma_commit_wait<1>();
        if (b > 0) wgmma_hold_a<1>(x[(b + 1) % 2]);
    }
    wgmma_wait_all<C / 8>(d);
    wgmma_hold_a<1>(x[1]);
}
/* d += dh (eL v_new)^T, and the state after the chunk; v_new times eL is there. */
template <class R>
static __device__ __forceinline__ float next_state(R &m, const marks<R> &b, int c, int group, float d[C / 8][4],
                                                   float S[R::V / 8][4]) {
    const bf16 *k = m.k[c % R::KEYS] + group * PANEL;
    float hdh = 0;
    wgmma_hold<C / 8>(d);
#pragma unroll
    for (int p = 0; p < R::PANELS; p++) {
        const int n = c * R::PANELS + p;
        const bf16 *dh = m.dh[n % R::SLOTS] + group * PANEL, *v = m.v_new[c % R::NEW] + p * PANEL;
        float(*s)[4] = S + 8 * p;
        uint32_t x[4][4];
        mbarrier_wait(b.dh_there(n), full<R::SLOTS>(n));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 64; j += 16) wgmma_ss<C>(d, operand<64, true>{dh, j, 0}, operand<64, false>{v, 0, j});
        wgmma_commit_wait<1>();
        take_rows(x, dh);
        if (p > 0) mbarrier_arrive_warp(b.v_free(n - 1));
        hdh += dot_state(s, x);
        wgmma_commit_wait<0>();
        mbarrier_arrive_warp(b.dh_free(n));
        const float end = m.gates[c % R::ALL_GATES][EG + C - 1];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[j][i] *= end;
        wgmma_begin<8>(s);
#pragma unroll
        for (int j = 0; j < C; j += 16) wgmma_ss<64>(s, operand<64, true>{k, j, 0}, operand<64, true>{v, j, 0});
        wgmma_commit_wait<1>();
    }
    wgmma_commit_wait<0>();
#pragma unroll
    for (int p = 0; p < R::PANELS; p++) wgmma_hold<8>(S + 8 * p);
    mbarrier_arrive_warp(b.v_free(c * R::PANELS + R::PANELS - 1));
    wgmma_hold<C / 8>(d);
    return hdh;
}
template <class R>
static __device__ __forceinline__ void walk_chunk(R &m, const marks<R> &b, int c, int group, float S[R::V / 8][4]) {
    float d[C / 8][4];
    mbarrier_wait(b.a_there(c), full<R::STAGES>(c));
    mbarrier_wait(b.v_there(c), full<R::NEW>(c));
    fence_proxy_async();
    for (int which = group; which < 2; which += R::W) form_scores<R>(m, b, c, which);
    mbarrier_arrive_warp(b.scores_done());
    read_state<R::V, false, C, PANEL, 16>(d, S, m.dO[c % R::STAGES], NULL);
    scale_columns(d, m.gates[c % R::ALL_GATES] + EG, m.scale);
    mbarrier_wait(b.qk_there(c), full<R::KEYS>(c));
    fence_proxy_async();
    named_barrier_sync(1, R::W * GROUP); /* dS and N are there, and dO is done with */
    finish_queries<R>(m, b, c, group, d);
    read_again<R::V>(d, S, m.X2[c % R::STAGES]);
    mbarrier_arrive_warp(b.x_free(c));
    finish_errors<R>(m, c, group, d);
    mbarrier_wait(b.v_ready(), full<1>(c));
    const float hdh = warp_sum(next_state<R>(m, b, c, group, d, S));
    if (threadIdx.x % 32 == 0) m.hdh[threadIdx.x / 32] = hdh;
    finish_keys<R>(m, b, c, group, d);
}

template <int KT, int V>
static __global__ void __launch_bounds__(2 * GROUP + 2 * KT, 1) back_walk(const struct gdn_back a) {
    typedef walk_room<KT, V> R;
    static_assert(sizeof(R) + TILES_ROOM <= 227 << 10, "the most of a block");
    R &m = *(R *)shared_tiles();
    const marks<R> b = {mbarrier_base(m.barriers)};
    const int group = warpgroup_index();
    named_barrier_init();
    if (threadIdx.x == 0) {
        open_marks<R>(b);
        m.scale = 1.0f / sqrtf((float)a.K), m.bits = log2f(m.scale);
    }
    for (int i = threadIdx.x; i < C * C / 8; i += blockDim.x) ((uint4 *)m.diagonal)[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const walk w = walk_of(a, a.K / KT);
    if (group >= R::W) {
        const int i = threadIdx.x % GROUP;
        if (group > R::W) {
            setmaxnreg_dec<R::W == 1 ? 120 : V == 256 ? 56 : 72>();
            take_along<R>(m, b, a, w, i);
        } else {
            setmaxnreg_dec<R::W == 1 ? 120 : V == 256 ? 40 : 72>();
            load_all<R>(m, b, a, w, i);
        }
        return;
    }
    setmaxnreg_inc<R::W == 1 ? 240 : V == 256 ? 208 : 184>();
    float S[V / 8][4];
    start<R>(a, w, group, S);
    for (int c = 0; c < w.chunks; c++) walk_chunk<R>(m, b, c, group, S);
}

/* One warp: dbeta and dg of a chunk, dg from the sums over the rows before and after; two rows a lane */
static __global__ void __launch_bounds__(GROUP) gates_end(const struct gdn_back a, int tiles) {
    const int lane = threadIdx.x % 32, item = blockIdx.x * (GROUP / 32) + threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    if (item >= a.items) return;
    const struct hl_dev_span p = a.chunk[item / a.HV];
    const int64_t row = (int64_t)p.row * a.HV + item % a.HV;
    float x[2][DOTS] = {}, hdh = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const float *sums = a.sums + ((int64_t)tile * a.items + item) * SUMS;
        hdh += sums[DOTS * C];
        for (int d = 0; d < DOTS; d++) {
            const float2 y = *(const float2 *)(sums + d * C + 2 * lane);
            x[0][d] += y.x, x[1][d] += y.y;
        }
    }
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        if (r >= p.len) x[i][UP] = x[i][KU] = 0;
        else a.dbeta[row + (int64_t)r * a.HV] = x[i][DB];
    }
    float after = x[0][UP] + x[1][UP], before = x[0][KU] + x[1][KU]; /* from this lane on, up to it */
    for (int d = 1; d < 32; d *= 2) {
        const float y = __shfl_down_sync(0xffffffffu, after, d), z = __shfl_up_sync(0xffffffffu, before, d);
        if (lane + d < 32) after += y;
        if (lane >= d) before += z;
    }
    const float skipped = __shfl_up_sync(0xffffffffu, before, 1), base = lane ? skipped : 0.0f;
    const float later = __shfl_down_sync(0xffffffffu, after, 1), tail = lane < 31 ? later : 0.0f;
    if (!a.dg) return;
    if (2 * lane < p.len) a.dg[row + (int64_t)(2 * lane) * a.HV] = x[0][UP] + (x[1][UP] + tail) + base + hdh;
    if (2 * lane + 1 < p.len) a.dg[row + (int64_t)(2 * lane + 1) * a.HV] = x[1][UP] + tail + (base + x[0][KU]) + hdh;
}

template <int KT, int V> static void launch_walk(struct hl_cuda *c, const struct gdn_back *a) {
    const int tiles = a->K / KT;
    launch_pdl(c, back_walk<KT, V>, (unsigned)(a->segs * a->cuts * a->HV * tiles), 2 * GROUP + 2 * KT,
               sizeof(walk_room<KT, V>) + TILES_ROOM, *a);
    launch_pdl(c, gates_end, (unsigned)((a->items + GROUP / 32 - 1) / (GROUP / 32)), GROUP, 0, *a, tiles);
}
template <int KT> static void walk_of_tile(struct hl_cuda *c, const struct gdn_back *a) {
    (a->V == 256 ? launch_walk<KT, 256> : a->V == 128 ? launch_walk<KT, 128> : launch_walk<KT, 64>)(c, a);
}
extern "C" bool HL_OP(gdn_back_walks)(struct hl_cuda *c, int64_t V) {
    return (V == 64 || V == 128 || V == 256) && hl_cuda_compiled_for_sm90(c, (const void *)back_walk<128, 256>) &&
           sizeof(walk_room<128, 256>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" void HL_OP(gdn_back_walk)(struct hl_cuda *c, const struct gdn_back *a) {
    (a->K == 64 ? walk_of_tile<64> : walk_of_tile<128>)(c, a);
}
#endif
