/* gdn_back_fused_cuda.cuh -- for gdn_back_fused_cuda.cu: shared memory, barriers, a block's work, and the producer and
 * auxiliary warpgroups. */
#ifndef HL_GDN_BACK_FUSED_CUDA_CUH
#define HL_GDN_BACK_FUSED_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"

/* sums over K of a row: those of dg from the row on and before it (KU), and of dbeta */
enum { UP, KU, DB, DOTS };
/* KT rows of the state, 64 for each consumer, and all V columns. Operands are panels of 64 columns, in rings:
 * dO and X2 of STAGES chunks, v_new of V_STAGES, q and k of KEYS; SLOTS panels of dh, each 64 columns of V,
 * laid out as in global memory. With V = 256 only one chunk of each fits: buffers are released as early as
 * possible, panel by panel. dQ is stored from the buffer of dO, dK from that of q. */
template <int KT_, int V_, bool STATES_> struct smem {
    enum { KT = KT_, V = V_, STATES = STATES_, W = KT / 64, WARPS = 4 * W, PANELS = V / 64 };
    enum {
        STAGES = V == 256 ? 1 : 2,
        V_STAGES = V == 64 ? 2 : 1,
        KEYS = V == 256 ? 1 : 2,
        SLOTS = V == 256 ? 4 : 2,
        DH_PANEL = KT * 64,
        GATE_STAGES = STAGES + 1,
        SUM_ROWS = V == 256 ? 32 : 64
    };
    bf16 dO[STAGES][C * (V > KT ? V : KT)], X2[STAGES][C * V], v_new[V_STAGES][C * V], dh[SLOTS][DH_PANEL];
    bf16 q[KEYS][C * KT], k[KEYS][C * KT], dS[C * C], N[C * C];
    bf16 diagonal[C * C]; /* of dS, without decay; all else is 0 */
    float gates[GATE_STAGES][BACK_GATES], dot[KEYS][WARPS][DOTS][C], vx[2][C], hdh[WARPS];
    float scale, bits; /* s and log2(s), here to save registers */
    uint64_t barriers[6 + 3 * STAGES + 2 * KEYS + V_STAGES * (PANELS + 1) + 2 * SLOTS];
};
/* full: the data is complete; empty: its buffer may be overwritten. in: dO, X2 and the gates. v_empty and
 * dh_* count panels, the others chunks. */
template <class R> struct fused_barriers {
    enum {
        S = R::STAGES,
        IN_AT = 6,
        QK_AT = IN_AT + 3 * S,
        V_AT = QK_AT + 2 * R::KEYS,
        V_PANELS = R::V_STAGES * R::PANELS,
        DH_AT = V_AT + R::V_STAGES + V_PANELS
    };
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t at(int i) const { return mbarrier_at(first, i); }
    __device__ __forceinline__ mbarrier_t v_scaled() const { return at(0); } /* v_new is now eL v_new */
    __device__ __forceinline__ mbarrier_t dk_full() const { return at(1); }
    __device__ __forceinline__ mbarrier_t v_scored() const { return at(2); }     /* the scores have read v_new */
    __device__ __forceinline__ mbarrier_t scores_empty() const { return at(3); } /* dS and N */
    __device__ __forceinline__ mbarrier_t dq_full(int c) const { return at(4 + c % 2); }
    __device__ __forceinline__ mbarrier_t in_full(int c) const { return at(IN_AT + c % S); }
    __device__ __forceinline__ mbarrier_t x2_empty(int c) const { return at(IN_AT + S + c % S); }
    __device__ __forceinline__ mbarrier_t do_empty(int c) const { return at(IN_AT + 2 * S + c % S); }
    __device__ __forceinline__ mbarrier_t qk_full(int c) const { return at(QK_AT + c % R::KEYS); }
    __device__ __forceinline__ mbarrier_t qk_empty(int c) const { return at(QK_AT + R::KEYS + c % R::KEYS); }
    __device__ __forceinline__ mbarrier_t v_full(int c) const { return at(V_AT + c % R::V_STAGES); }
    __device__ __forceinline__ mbarrier_t v_empty(int n) const { return at(V_AT + R::V_STAGES + n % V_PANELS); }
    __device__ __forceinline__ mbarrier_t dh_full(int n) const { return at(DH_AT + n % R::SLOTS); }
    __device__ __forceinline__ mbarrier_t dh_empty(int n) const { return at(DH_AT + R::SLOTS + n % R::SLOTS); }
};
/* By one thread. No waiter can miss a phase: each waiter must arrive, directly or through another thread that waits for
 * it, before the next phase can complete. */
template <class R> static __device__ __forceinline__ void init_barriers(const fused_barriers<R> &b) {
    mbarrier_init_warps(b.v_scored(), R::WARPS), mbarrier_init_warps(b.scores_empty(), R::WARPS);
    mbarrier_init_warps(b.dk_full(), R::WARPS), mbarrier_init_warps(b.v_scaled(), 4);
    for (int i = 0; i < 2; i++) mbarrier_init_warps(b.dq_full(i), R::WARPS);
    for (int i = 0; i < R::STAGES; i++) {
        mbarrier_init(b.in_full(i), GROUP + 1);
        mbarrier_init_warps(b.x2_empty(i), R::WARPS + 4), mbarrier_init_warps(b.do_empty(i), 4);
    }
    for (int i = 0; i < R::KEYS; i++) mbarrier_init(b.qk_full(i), GROUP), mbarrier_init_warps(b.qk_empty(i), 4);
    for (int i = 0; i < R::V_STAGES; i++) mbarrier_init(b.v_full(i), GROUP);
    for (int i = 0; i < R::V_STAGES * R::PANELS; i++) mbarrier_init_warps(b.v_empty(i), R::WARPS);
    for (int i = 0; i < R::SLOTS; i++) mbarrier_init(b.dh_full(i), 1), mbarrier_init_warps(b.dh_empty(i), R::WARPS);
}

/* The chunks of a segment and value head that a block scans, and its KT columns of K. Rows are computed rather than
 * loaded. */
struct chunk_range {
    int s, hv, split, tile;
    int chunk, chunks, last; /* first chunk, count, the segment's last chunk (with dht the one after it) */
    int row, rows;           /* of the first chunk, and those from there on */
};
static __device__ __forceinline__ chunk_range range_of(const struct gdn_back &a, int tiles) {
    const int tile = blockIdx.x % tiles, hv = blockIdx.x / tiles % a.HV,
              split = blockIdx.x / tiles / a.HV % a.fused_splits, s = blockIdx.x / tiles / a.HV / a.fused_splits;
    const int first = a.chunk_first[s], n = a.chunk_first[s + 1] - first,
              from = gdn_split_start(n, split, a.fused_splits);
    return {s,
            hv,
            split,
            tile,
            first + from,
            gdn_split_start(n, split + 1, a.fused_splits) - from,
            first + n - 1,
            (int)a.seg[s].row + from * C,
            (int)a.seg[s].len - from * C};
}
static __device__ __forceinline__ int rows_of(const chunk_range &w, int c) {
    const int left = w.rows - c * C;
    return left < C ? left : C;
}
static __device__ __forceinline__ int64_t row_of(const struct gdn_back &a, const chunk_range &w, int c) {
    return (int64_t)(w.row + c * C) * a.HV + w.hv;
}

/* the state at the start of a split */
template <class R>
static __device__ __forceinline__ void load_start(const struct gdn_back &a, const chunk_range &w, int group,
                                                  float S[R::V / 8][4]) {
    const int t = threadIdx.x % 4;
    const float *from = NULL;
    const int n = a.state_splits, before = w.split * (n / a.fused_splits) - 1;
    if (w.split > 0) from = a.fused_states + (((int64_t)w.s * a.HV + w.hv) * n + before) * R::V * a.K;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = w.tile * R::KT + group * 64 + own_row(i / 2);
#pragma unroll
        for (int n = 0; n < R::V / 8; n++) S[n][i] = from ? from[(8 * n + 2 * t + i % 2) * a.K + k] : 0.0f;
    }
    if constexpr (R::STATES)
        if (a.h0 && w.split == 0) {
            const float *h0 = end_state(a, a.h0, w.s, w.hv);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int k = w.tile * R::KT + group * 64 + own_row(i / 2);
#pragma unroll
                for (int n = 0; n < R::V / 8; n++) S[n][i] = h0[(int64_t)k * R::V + 8 * n + 2 * t + i % 2];
            }
        }
}

/* ---- producer warpgroup: threads i of GROUP ---- */

/* Panel n of dh, counted from the split's first chunk; 0 for the segment's last chunk. */
template <class R>
static __device__ __forceinline__ void load_dh(R &m, const fused_barriers<R> &b, const chunk_range &w, const bf16 *from,
                                               int n, int i) {
    const int bytes = R::DH_PANEL * (int)sizeof(bf16), c = w.chunk + n / R::PANELS;
    if (i > 0 && c < w.last) return;
    if (i == 0) mbarrier_wait(b.dh_empty(n), empty_parity<R::SLOTS>(n));
    if (c == w.last) {
        named_barrier_sync(5, GROUP); /* one thread has waited for the whole warpgroup */
        for (int j = i; j < R::DH_PANEL / 8; j += GROUP) ((uint4 *)m.dh[n % R::SLOTS])[j] = make_uint4(0, 0, 0, 0);
        fence_proxy_async();
        named_barrier_sync(5, GROUP);
    }
    if (i > 0) return;
    if (c == w.last) mbarrier_arrive(b.dh_full(n));
    else mbarrier_arrive_expect_tx(b.dh_full(n), bytes), bulk_copy(m.dh[n % R::SLOTS], from, bytes, b.dh_full(n));
}
/* q and k of chunk c, at `at` of both */
template <class R>
static __device__ __forceinline__ void load_qk(R &m, const fused_barriers<R> &b, const struct gdn_back &a, int64_t at,
                                               int n, int c, int i) {
    const int stride = a.H * a.K, s = c % R::KEYS;
    mbarrier_wait(b.qk_empty(c), empty_parity<R::KEYS>(c));
#pragma unroll 1
    for (int j = 0; j < 2 * R::W; j++)
        copy_panel<64, C, GROUP>((j % 2 ? m.q[s] : m.k[s]) + j / 2 * PANEL,
                                 (const bf16 *)(j % 2 ? a.q : a.k) + at + j / 2 * 64, stride, n, i);
    copy_async_arrive(b.qk_full(c));
}
/* dO, X2 and the gates of chunk c; the panels of dO from which dQ is stored come last */
template <class R>
static __device__ __forceinline__ void load_outer(R &m, const fused_barriers<R> &b, const struct gdn_back &a,
                                                  int64_t at, int item, int n, int c, int i) {
    enum { PANELS = R::PANELS, LEAVES = R::W < PANELS ? R::W : PANELS, BYTES = C * R::V * (int)sizeof(bf16) };
    const int s = c % R::STAGES;
    mbarrier_wait(b.x2_empty(c), empty_parity<R::STAGES>(c));
    if (i == 0) {
        mbarrier_arrive_expect_tx(b.in_full(c), BYTES);
        bulk_copy(m.X2[s], (const bf16 *)a.X2 + (int64_t)item * C * R::V, BYTES, b.in_full(c), true);
    }
#pragma unroll 1
    for (int j = 0; j < PANELS; j++) {
        const int p = (j + LEAVES) % PANELS;
        if (j == PANELS - LEAVES) mbarrier_wait(b.do_empty(c), empty_parity<R::STAGES>(c));
        copy_panel<64, C, GROUP>(m.dO[s] + p * PANEL, (const bf16 *)a.dout + at + 64 * p, a.HV * R::V, n, i);
    }
    if (i < BACK_GATES / 4)
        copy_async(m.gates[c % R::GATE_STAGES] + 4 * i, a.gates + (int64_t)item * BACK_GATES + 4 * i);
    copy_async_arrive(b.in_full(c));
}
/* In the order in which buffers become empty: q and k before dh and v_new if there are two. */
template <class R>
static __device__ __forceinline__ void load_loop(R &m, const fused_barriers<R> &b, const struct gdn_back &a,
                                                 const chunk_range &w, int i) {
    enum { PANELS = R::PANELS };
    const int panel = 64 * a.K;
    int64_t at_k = ((int64_t)w.row * a.H + w.hv / a.group) * a.K + w.tile * R::KT;
    const bf16 *dh = (const bf16 *)a.dh + ((int64_t)w.chunk * a.HV + w.hv) * R::V * a.K + w.tile * R::DH_PANEL;
    for (int c = 0; c < w.chunks; c++) {
        const int n = rows_of(w, c);
        const int64_t at = row_of(a, w, c) * R::V;
        load_outer<R>(m, b, a, at, (w.chunk + c) * a.HV + w.hv, n, c, i);
        if (R::KEYS == 2) load_qk<R>(m, b, a, at_k, n, c, i);
#pragma unroll 1
        for (int p = 0; p < PANELS; p++) {
            const int x = c * PANELS + p;
            load_dh<R>(m, b, w, dh + p * panel, x, i);
            mbarrier_wait(b.v_empty(x), empty_parity<fused_barriers<R>::V_PANELS>(x));
            copy_panel<64, C, GROUP>(m.v_new[c % R::V_STAGES] + p * PANEL, (const bf16 *)a.v_new + at + 64 * p,
                                     a.HV * R::V, n, i);
        }
        copy_async_arrive(b.v_full(c));
        if (R::KEYS == 1) load_qk<R>(m, b, a, at_k, n, c, i);
        at_k += (int64_t)C * a.H * a.K;
        dh += (int64_t)a.HV * PANELS * panel;
        if (i < PANELS && w.chunk + c + 1 < w.last) prefetch_l2(dh + i * panel, R::DH_PANEL * (int)sizeof(bf16));
    }
}

/* ---- auxiliary warpgroup: dv, v.X2, dQ, dK and sums to memory; threads i of GROUP ---- */

template <int PANELS>
static __device__ __forceinline__ void store_panels(bf16 *to, const bf16 *tile, int64_t stride, int n, int i) {
    const int row = i / 8, col = i % 8 * 8;
    tile += tile_at<64>(row, col), to += row * stride + col;
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int r = 0; r < C; r += GROUP / 8)
            store_if(to + r * stride + p * 64, *(const uint4 *)(tile + p * PANEL + r * 64), row + r < n);
}
/* v_new becomes eL v_new */
template <class R> static __device__ __forceinline__ void scale_values(R &m, int c, int i) {
    const float *eL = m.gates[c % R::GATE_STAGES] + EL;
    bf16 *v = m.v_new[c % R::V_STAGES];
#pragma unroll 1
    for (int r = i / 8; r < C; r += GROUP / 8) {
        const float e = eL[r];
#pragma unroll
        for (int p = 0; p < R::PANELS; p++) {
            float x[8];
            load_wide(x, v + p * PANEL + r * 64 + i % 8 * 8);
#pragma unroll
            for (int z = 0; z < 8; z++) x[z] *= e;
            store_wide(v + p * PANEL + r * 64 + i % 8 * 8, x);
        }
    }
    fence_proxy_async();
}
/* dv = beta X2 and v.X2, for half of the rows if two blocks share the chunk. A thread has 16 bytes of every 32 columns
 * of a row, with IN_FLIGHT loads in flight. */
template <class R> struct values {
    enum { SLICES = R::V / 32, IN_FLIGHT = SLICES < 4 ? SLICES : 4 };
    uint4 v[IN_FLIGHT];
    /* the offset of a thread's first 16 bytes, in v and dv; -1: none */
    static __device__ __forceinline__ int64_t place(const struct gdn_back &a, const chunk_range &w, int c, int row,
                                                    int i) {
        if (c >= w.chunks || row >= rows_of(w, c)) return -1;
        return (row_of(a, w, c) + (int64_t)row * a.HV) * R::V + i % 4 * 8;
    }
    static __device__ __forceinline__ int first_row(const chunk_range &w, int i) { return w.tile * (C / 2) + i / 4; }
    /* starts loading v of chunk c */
    __device__ __forceinline__ void prefetch(const struct gdn_back &a, const chunk_range &w, int c, int i) {
        const int64_t at = place(a, w, c, first_row(w, i), i);
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++)
            v[j] = at < 0 ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(a.v + at + 32 * j);
    }
    __device__ __forceinline__ void run(R &m, const struct gdn_back &a, const chunk_range &w, int c, int i) {
        const float *beta = m.gates[c % R::GATE_STAGES] + BETA;
        const bf16 *X2 = m.X2[c % R::STAGES];
        const int passes = a.K == 2 * R::KT ? 1 : 2; /* of half of the rows */
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            const int row = first_row(w, i) + pass * (C / 2);
            const int64_t at = place(a, w, c, row, i), next = pass + 1 < passes ? place(a, w, c, row + C / 2, i) : -1;
            const float b = beta[row];
            float sum = 0;
#pragma unroll
            for (int x = 0; x < SLICES; x++) {
                const int j = x % IN_FLIGHT, col = 32 * x + i % 4 * 8;
                const uint32_t u[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
                const int64_t then = x + IN_FLIGHT < SLICES ? at : next;
                if (then >= 0) v[j] = *(const uint4 *)(a.v + then + 32 * (x + IN_FLIGHT) % R::V);
                float y[8];
                load_wide(y, X2 + col / 64 * PANEL + tile_at<64>(row, col % 64));
#pragma unroll
                for (int z = 0; z < 4; z++) sum += low(u[z]) * y[2 * z] + high(u[z]) * y[2 * z + 1];
#pragma unroll
                for (int z = 0; z < 8; z++) y[z] *= b;
                if (at >= 0) store_wide(a.dv + at + 32 * x, y);
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (i % 4 == 0) m.vx[c % 2][row] = sum;
        }
    }
};
/* sums over the block's columns of K, for finish_gates */
template <class R> static __device__ __forceinline__ void store_sums(R &m, float *sums, int c, int i) {
#pragma unroll 1
    for (int j = i; j < DOTS * C; j += GROUP) {
        float x = j / C == DB ? m.vx[c % 2][j % C] : 0.0f;
#pragma unroll
        for (int y = 0; y < R::WARPS; y++) x += m.dot[c % R::KEYS][y][j / C][j % C];
        sums[j] = x;
    }
    if (i > 0) return;
    float x = 0;
    for (int y = 0; y < R::WARPS; y++) x += m.hdh[y];
    sums[DOTS * C] = x * m.gates[c % R::GATE_STAGES][EG + C - 1];
}
template <class R>
static __device__ __forceinline__ void aux_loop(R &m, const fused_barriers<R> &b, const struct gdn_back &a,
                                                const chunk_range &w, int i) {
    const int64_t stride = (int64_t)a.HV * a.K;
    values<R> v;
    m.vx[i / C][i % C] = 0;
    v.prefetch(a, w, 0, i);
    named_barrier_sync(4, GROUP); /* vx is zero */
    for (int c = 0; c < w.chunks; c++) {
        const int n = rows_of(w, c);
        const int64_t item = (int64_t)(w.chunk + c) * a.HV + w.hv;
        const int64_t out = row_of(a, w, c) * a.K + w.tile * R::KT;
        mbarrier_wait(b.in_full(c), full_parity<R::STAGES>(c));
        v.run(m, a, w, c, i);
        mbarrier_arrive_warp(b.x2_empty(c));
        mbarrier_wait(b.v_scored(), full_parity<1>(c));
        scale_values<R>(m, c, i);
        mbarrier_arrive_warp(b.v_scaled());
        mbarrier_wait(b.dq_full(c), full_parity<2>(c));
        store_panels<R::W>(a.dq_head + out, m.dO[c % R::STAGES], stride, n, i);
        mbarrier_arrive_warp(b.do_empty(c));
        named_barrier_sync(4, GROUP); /* v.X2 is complete */
        v.prefetch(a, w, c + 1, i);
        mbarrier_wait(b.dk_full(), full_parity<1>(c));
        store_panels<R::W>(a.dk_head + out, m.q[c % R::KEYS], stride, n, i);
        store_sums<R>(m, a.sums + ((int64_t)w.tile * a.items + item) * SUMS, c, i);
        mbarrier_arrive_warp(b.qk_empty(c));
    }
}
#endif
