/* gdn_back_fused_cuda.cu -- a forward scan after the reverse one: it recomputes the states from v_new,
 *     S <- exp(G_last) S + K^T (eL v_new),
 * and computes all gradients of a chunk while its state is in registers (gdn_back_cuda.cuh). No state goes to
 * memory.
 *
 * Grid: a block per segment, split, value head and KT rows of K (tiles fastest). Block: KT/64 consumer
 * warpgroups, then a producer, then an auxiliary one (gdn_back_fused_cuda.cuh). A consumer owns 64 rows of K
 * and all columns of V: S as [64][V] in fp32 accumulators, whose packed pairs are operands of dO h^T and X2
 * h^T as they are. Everything as wide as K is transposed, [64][rows of the chunk]. Named barriers: 1, all
 * consumers: dS and N are complete; 2 and 3, one consumer; 4, the auxiliary warpgroup; 5, the producer.
 *
 * Sums over K, of a row's products, cover the block's rows of K; finish_gates adds the tiles. */
#include "ops/cuda_ops.cuh"
#include "cuda/epilogue.cuh"
#include "ops/gdn/gdn_back_fused_cuda.cuh"

#ifndef HL_CUDA_F32

/* columns 8 n.. and 8 n + 8.. of the warp's 16 rows to a tile */
static __device__ __forceinline__ void store_columns(bf16 *tile, const float y[2][4], int n) {
    uint32_t x[4];
    pack_a(x, y);
    tile_stmatrix(tile, threadIdx.x / 32 % 4 * 16, 8 * n, x);
}
/* dS and its diagonal from dO v_new^T (which = 0), -N from X2 v_new^T (which = 1) */
template <class R>
static __device__ __forceinline__ void form_scores(R &m, const fused_barriers<R> &b, int c, int which) {
    const float *gates = m.gates[c % R::GATE_STAGES];
    const bf16 *x = which ? m.X2[c % R::STAGES] : m.dO[c % R::STAGES], *v_new = m.v_new[c % R::V_STAGES];
    const int t = threadIdx.x % 4, row[2] = {own_row(0), own_row(1)};
    const float whole[2] = {gates[G_INT + row[0]], gates[G_INT + row[1]]}, more = which ? 0.0f : m.bits;
    const float frac[2] = {gates[G_FRAC + row[0]] + more, gates[G_FRAC + row[1]] + more};
    float f[C / 8][4] = {}, own[2];
    wgmma_begin<C / 8>(f);
#pragma unroll
    for (int v = 0; v < R::V; v += 16)
        wgmma_ss<C>(f, operand<64, false>{x + v / 64 * PANEL, 0, v % 64},
                    operand<64, false>{v_new + v / 64 * PANEL, 0, v % 64});
    wgmma_end<C / 8>(f);
#pragma unroll
    for (int n = 0; n < C / 8; n++) { /* all loads before the stores, which the compiler must assume may alias */
        const float2 w = *(const float2 *)(gates + G_INT + 8 * n + 2 * t),
                     p = *(const float2 *)(gates + G_FRAC + 8 * n + 2 * t);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row[h], j = 8 * n + 2 * t;
            float *y = f[n] + 2 * h;
            if (i / 8 == n) own[h] = i % 2 ? y[1] : y[0]; /* the diagonal's, in lanes t == i % 8 / 2 */
            y[0] = j < i ? y[0] * fast_exp2((whole[h] - w.x) + (frac[h] - p.x)) : 0.0f;
            y[1] = j + 1 < i ? y[1] * fast_exp2((whole[h] - w.y) + (frac[h] - p.y)) : 0.0f;
        }
    }
    mbarrier_wait(b.scores_empty(), empty_parity<1>(c)); /* of the previous chunk */
#pragma unroll
    for (int n = 0; n < C / 8; n += 2) store_columns(which ? m.N : m.dS, f + n, n);
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (!which && t == row[h] % 8 / 2) put(m.diagonal + tile_at<C>(row[h], row[h]), m.scale * own[h]);
    fence_proxy_async();
}

/* A tile of q, k or dh transposed, the warp's columns, as A operands */
static __device__ __forceinline__ void load_trans(uint32_t x[4][4], const bf16 *tile) {
#pragma unroll
    for (int i = 0; i < 4; i++) tile_load_a_trans<64>(x[i], tile, 16 * i, threadIdx.x / 32 % 4 * 16);
}
/* of rows 32 half.. of the chunk, the one whose sum over the warp's rows this lane has */
static __device__ __forceinline__ int row_of_sum(int half) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return 32 * half + g / 2 * 8 + 2 * t + g % 2;
}
/* Sums over the warp's rows of x d, x: a tile of q or k; two for each lane. ROWS of them at once: as
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
/* d += x T, T [64][64], or its transpose where it is TRANS: started, not waited for */
template <bool TRANS>
static __device__ __forceinline__ void times_square(float d[C / 8][4], uint32_t x[4][4], const bf16 *T) {
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs<C>(d, x[i], operand<C, TRANS>{T, TRANS ? 16 * i : 0, TRANS ? 0 : 16 * i});
}
/* dQ: d holds s eG (dO h^T); the result goes to the buffer of dO. qk_full implies that the previous sums in this
 * chunk's slot have been read. */
template <class R>
static __device__ __forceinline__ void finish_queries(R &m, const fused_barriers<R> &b, int c, int group,
                                                      float d[C / 8][4]) {
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
    store_trans(m.dO[c % R::STAGES] + group * PANEL, x);
    mbarrier_arrive_warp(b.dq_full(c));
}
/* dK: d holds X2 h^T, and becomes -E, beta E, beta E + U, dK in place: there are not enough registers for two. Its row
 * products with k after each step give those with E, U and W as differences. */
template <class R> static __device__ __forceinline__ void finish_errors(R &m, int c, int group, float d[C / 8][4]) {
    const float *gates = m.gates[c % R::GATE_STAGES];
    const bf16 *k = m.k[c % R::KEYS] + group * PANEL;
    uint32_t x[4][4];
    float ke[2];
    scale_columns(d, gates + EG, 1.0f);
    load_trans(x, k);
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
static __device__ __forceinline__ void finish_keys(R &m, const fused_barriers<R> &b, int c, int group,
                                                   float d[C / 8][4]) {
    const float *beta = m.gates[c % R::GATE_STAGES] + BETA;
    float(*dot)[C] = m.dot[c % R::KEYS][threadIdx.x / 32], kd[2], all[2];
    bf16 *q = m.q[c % R::KEYS] + group * PANEL, *k = m.k[c % R::KEYS] + group * PANEL;
    uint32_t x[4][4];
    times_rows<R::SUM_ROWS>(kd, d, k);
    load_trans(x, k);
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
    mbarrier_arrive_warp(b.scores_empty());
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(x[i], d + 2 * i);
    named_barrier_sync(2 + group, GROUP); /* the warpgroup has read q */
    store_trans(q, x);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row_of_sum(half);
        const float y = beta[row] * dot[DB][row];
        dot[KU][row] = kd[half] - y;
        dot[UP][row] += y + (kd[half] - all[half]);
    }
    mbarrier_arrive_warp(b.dk_full());
}
/* h.dh of 64 columns of V, the warp's rows */
static __device__ __forceinline__ float dot_states(const float S[8][4], const uint32_t dh[4][4]) {
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
/* read_state again. The compiler would keep the first packing and run out of registers, so the pairs are packed in the
 * other order and then swapped. */
template <int V>
static __device__ __forceinline__ void read_state_again(float d[C / 8][4], const float S[V / 8][4], const bf16 *rows) {
    uint32_t x[2][1][4];
    zero(d);
    wgmma_hold<C / 8>(d);
#pragma unroll
    for (int b = 0; b < V / 16; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *y = S[2 * b + i / 2] + i % 2 * 2;
            const uint32_t swapped = pack2(y[1], y[0]);
            x[b % 2][0][i] = swapped << 16 | swapped >> 16;
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
/* d += dh (eL v_new)^T, and the state after the chunk; v_new is already scaled. Returns h.dh of the lane. */
template <class R>
static __device__ __forceinline__ float next_state(R &m, const fused_barriers<R> &b, int c, int group,
                                                   float d[C / 8][4], float S[R::V / 8][4]) {
    const bf16 *k = m.k[c % R::KEYS] + group * PANEL;
    float hdh = 0;
    wgmma_hold<C / 8>(d);
#pragma unroll
    for (int p = 0; p < R::PANELS; p++) {
        const int n = c * R::PANELS + p;
        const bf16 *dh = m.dh[n % R::SLOTS] + group * PANEL, *v = m.v_new[c % R::V_STAGES] + p * PANEL;
        float(*s)[4] = S + 8 * p;
        uint32_t x[4][4];
        mbarrier_wait(b.dh_full(n), full_parity<R::SLOTS>(n));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 64; j += 16) wgmma_ss<C>(d, operand<64, true>{dh, j, 0}, operand<64, false>{v, 0, j});
        wgmma_commit_wait<1>();
        load_trans(x, dh);
        if (p > 0) mbarrier_arrive_warp(b.v_empty(n - 1));
        hdh += dot_states(s, x);
        wgmma_commit_wait<0>();
        mbarrier_arrive_warp(b.dh_empty(n));
        const float end = m.gates[c % R::GATE_STAGES][EG + C - 1];
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
    mbarrier_arrive_warp(b.v_empty(c * R::PANELS + R::PANELS - 1));
    wgmma_hold<C / 8>(d);
    return hdh;
}
template <class R>
static __device__ __forceinline__ void scan_chunk(R &m, const fused_barriers<R> &b, int c, int group,
                                                  float S[R::V / 8][4]) {
    float d[C / 8][4];
    mbarrier_wait(b.in_full(c), full_parity<R::STAGES>(c));
    mbarrier_wait(b.v_full(c), full_parity<R::V_STAGES>(c));
    fence_proxy_async();
    for (int which = group; which < 2; which += R::W) form_scores<R>(m, b, c, which);
    mbarrier_arrive_warp(b.v_scored());
    read_state<R::V, false, C, PANEL, 16>(d, S, m.dO[c % R::STAGES], NULL);
    scale_columns(d, m.gates[c % R::GATE_STAGES] + EG, m.scale);
    mbarrier_wait(b.qk_full(c), full_parity<R::KEYS>(c));
    fence_proxy_async();
    named_barrier_sync(1, R::W * GROUP); /* dS and N are complete, and all have read dO */
    finish_queries<R>(m, b, c, group, d);
    read_state_again<R::V>(d, S, m.X2[c % R::STAGES]);
    mbarrier_arrive_warp(b.x2_empty(c));
    finish_errors<R>(m, c, group, d);
    mbarrier_wait(b.v_scaled(), full_parity<1>(c));
    const float hdh = warp_sum(next_state<R>(m, b, c, group, d, S));
    if (threadIdx.x % 32 == 0) m.hdh[threadIdx.x / 32] = hdh;
    finish_keys<R>(m, b, c, group, d);
}

template <int KT, int V, bool STATES>
static __global__ void __launch_bounds__(2 * GROUP + 2 * KT, 1) back_fused(const struct gdn_back a) {
    typedef smem<KT, V, STATES> R;
    static_assert(sizeof(R) + TILES_ROOM <= 227 << 10, "the limit per block on Hopper");
    R &m = *(R *)shared_tiles();
    const fused_barriers<R> b = {mbarrier_base(m.barriers)};
    const int group = warpgroup_index();
    named_barrier_init();
    if (threadIdx.x == 0) {
        init_barriers<R>(b);
        m.scale = 1.0f / sqrtf((float)a.K), m.bits = log2f(m.scale);
    }
    for (int i = threadIdx.x; i < C * C / 8; i += blockDim.x) ((uint4 *)m.diagonal)[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    chunk_range w = range_of(a, a.K / KT);
    if (STATES && a.dht) w.last++; /* dh of the last chunk is in memory */
    if (group >= R::W) {
        const int i = threadIdx.x % GROUP;
        if (group > R::W) {
            setmaxnreg_dec<R::W == 1 ? 120 : V == 256 ? 56 : 72>();
            aux_loop<R>(m, b, a, w, i);
        } else {
            setmaxnreg_dec<R::W == 1 ? 120 : V == 256 ? 40 : 72>();
            load_loop<R>(m, b, a, w, i);
        }
        return;
    }
    setmaxnreg_inc<R::W == 1 ? 240 : V == 256 ? 208 : 184>();
    float S[V / 8][4];
    load_start<R>(a, w, group, S);
    for (int c = 0; c < w.chunks; c++) scan_chunk<R>(m, b, c, group, S);
}

/* One warp: dbeta and dg of a chunk, dg from the sums over the rows before and after; two rows per lane. They are stored
 * by rows, as the block's chunks are usually those of adjacent heads. */
static __global__ void __launch_bounds__(GROUP) finish_gates(const struct gdn_back a, int tiles) {
    enum { ITEMS = GROUP / 32 };
    __shared__ float done[2][ITEMS][C + 8]; /* dg, dbeta */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * ITEMS, item = first + warp;
    float x[2][DOTS] = {}, hdh = 0;
    pdl_wait();
    pdl_trigger();
    for (int tile = 0; tile < tiles && item < a.items; tile++) {
        const float *sums = a.sums + ((int64_t)tile * a.items + item) * SUMS;
        hdh += sums[DOTS * C];
        for (int d = 0; d < DOTS; d++) {
            const float2 y = *(const float2 *)(sums + d * C + 2 * lane);
            x[0][d] += y.x, x[1][d] += y.y;
        }
    }
    const int len = item < a.items ? a.chunk[item / a.HV].len : 0;
    for (int i = 0; i < 2; i++) {
        done[1][warp][2 * lane + i] = x[i][DB];
        if (2 * lane + i >= len) x[i][UP] = x[i][KU] = 0;
    }
    float after = x[0][UP] + x[1][UP], before = x[0][KU] + x[1][KU]; /* from this lane on, up to it */
    for (int d = 1; d < 32; d *= 2) {
        const float y = __shfl_down_sync(0xffffffffu, after, d), z = __shfl_up_sync(0xffffffffu, before, d);
        if (lane + d < 32) after += y;
        if (lane >= d) before += z;
    }
    const float skipped = __shfl_up_sync(0xffffffffu, before, 1), base = lane ? skipped : 0.0f;
    const float later = __shfl_down_sync(0xffffffffu, after, 1), tail = lane < 31 ? later : 0.0f;
    done[0][warp][2 * lane] = x[0][UP] + (x[1][UP] + tail) + base + hdh;
    done[0][warp][2 * lane + 1] = x[1][UP] + tail + (base + x[0][KU]) + hdh;
    __syncthreads();
    const int n = threadIdx.x % ITEMS, mine = first + n;
    if (mine >= a.items) return;
    const struct hl_dev_span p = a.chunk[mine / a.HV];
    const int64_t row = (int64_t)p.row * a.HV + mine % a.HV;
    for (int r = threadIdx.x / ITEMS; r < p.len; r += GROUP / ITEMS) {
        if (a.dg) a.dg[row + (int64_t)r * a.HV] = done[0][n][r];
        a.dbeta[row + (int64_t)r * a.HV] = done[1][n][r];
    }
}

template <int KT, int V> static void launch_fused(struct hl_cuda *c, const struct gdn_back *a) {
    const int tiles = a->K / KT;
    launch_pdl(c, back_states_given(a) ? back_fused<KT, V, true> : back_fused<KT, V, false>,
               (unsigned)(a->segs * a->fused_splits * a->HV * tiles), 2 * GROUP + 2 * KT,
               sizeof(smem<KT, V, false>) + TILES_ROOM, *a);
    launch_pdl(c, finish_gates, (unsigned)((a->items + GROUP / 32 - 1) / (GROUP / 32)), GROUP, 0, *a, tiles);
}
template <int KT> static void launch_tile(struct hl_cuda *c, const struct gdn_back *a) {
    (a->V == 256 ? launch_fused<KT, 256> : a->V == 128 ? launch_fused<KT, 128> : launch_fused<KT, 64>)(c, a);
}
extern "C" bool HL_OP(gdn_back_fused_fits)(struct hl_cuda *c, int64_t V) {
    return (V == 64 || V == 128 || V == 256) &&
           hl_cuda_compiled_for_sm90(c, (const void *)back_fused<128, 256, false>) &&
           sizeof(smem<128, 256, false>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
extern "C" void HL_OP(gdn_back_fused)(struct hl_cuda *c, const struct gdn_back *a) {
    (a->K == 64 ? launch_tile<64> : launch_tile<128>)(c, a);
}
#endif
