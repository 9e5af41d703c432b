/* gdn_back_walk_cuda.cuh -- parts of gdn_back_walk_cuda.cu: shared memory, where blocks start, and the groups
 * that do not multiply. */
#ifndef HL_GDN_BACK_WALK_CUDA_CUH
#define HL_GDN_BACK_WALK_CUDA_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"

/* sums over K of a row: those of dg from the row on and before it (KU), and of dbeta */
enum { UP, KU, DB, DOTS };
/* KT rows of the state, 64 for each group that multiplies, and all V columns. Operands are panels of 64
 * columns, rings of them: dO and X2 of STAGES chunks, v_new of NEW, q and k of KEYS; SLOTS panels of dh, each
 * 64 columns of V, as they lie in memory. Where V is 256 there is room for one chunk of each: what is done
 * with makes room as early as it can, panel by panel. dQ leaves from the place of dO, dK from that of q. */
template <int KT_, int V_> struct walk_room {
    enum { KT = KT_, V = V_, W = KT / 64, WARPS = 4 * W, PANELS = V / 64 };
    enum {
        STAGES = V == 256 ? 1 : 2,
        NEW = V == 64 ? 2 : 1,
        KEYS = V == 256 ? 1 : 2,
        SLOTS = V == 256 ? 4 : 2,
        BLOCK = KT * 64,
        ALL_GATES = STAGES + 1,
        SUM_ROWS = V == 256 ? 32 : 64
    };
    bf16 dO[STAGES][C * (V > KT ? V : KT)], X2[STAGES][C * V], v_new[NEW][C * V], dh[SLOTS][BLOCK];
    bf16 q[KEYS][C * KT], k[KEYS][C * KT], dS[C * C], N[C * C];
    bf16 diagonal[C * C]; /* of dS, without decay; all else is 0 */
    float gates[ALL_GATES][GATES], dot[KEYS][WARPS][DOTS][C], vx[2][C], hdh[WARPS];
    float scale, bits; /* s, and its logarithm to the base 2: here they take no registers */
    uint64_t barriers[6 + 3 * STAGES + 2 * KEYS + NEW * (PANELS + 1) + 2 * SLOTS];
};
/* THERE: what was copied; FREE: its place. A: dO, X2 and the gates. */
template <class R> struct marks {
    enum {
        S = R::STAGES,
        A_AT = 6,
        QK_AT = A_AT + 3 * S,
        V_AT = QK_AT + 2 * R::KEYS,
        V_PANELS = R::NEW * R::PANELS,
        DH_AT = V_AT + R::NEW + V_PANELS
    };
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t at(int i) const { return mbarrier_at(first, i); }
    __device__ __forceinline__ mbarrier_t v_ready() const { return at(0); } /* v_new times eL */
    __device__ __forceinline__ mbarrier_t dk_there() const { return at(1); }
    __device__ __forceinline__ mbarrier_t scores_done() const { return at(2); } /* of v_new */
    __device__ __forceinline__ mbarrier_t n_done() const { return at(3); }
    __device__ __forceinline__ mbarrier_t dq_there(int c) const { return at(4 + c % 2); }
    __device__ __forceinline__ mbarrier_t a_there(int c) const { return at(A_AT + c % S); }
    __device__ __forceinline__ mbarrier_t x_free(int c) const { return at(A_AT + S + c % S); }     /* X2's */
    __device__ __forceinline__ mbarrier_t o_free(int c) const { return at(A_AT + 2 * S + c % S); } /* dO's */
    __device__ __forceinline__ mbarrier_t qk_there(int c) const { return at(QK_AT + c % R::KEYS); }
    __device__ __forceinline__ mbarrier_t qk_free(int c) const { return at(QK_AT + R::KEYS + c % R::KEYS); }
    __device__ __forceinline__ mbarrier_t v_there(int c) const { return at(V_AT + c % R::NEW); }
    /* n counts panels, as of dh */
    __device__ __forceinline__ mbarrier_t v_free(int n) const { return at(V_AT + R::NEW + n % V_PANELS); }
    __device__ __forceinline__ mbarrier_t dh_there(int n) const { return at(DH_AT + n % R::SLOTS); }
    __device__ __forceinline__ mbarrier_t dh_free(int n) const { return at(DH_AT + R::SLOTS + n % R::SLOTS); }
};
/* By one thread. No barrier can be lapped: whoever waits for a phase must arrive, itself or through one that
 * waits for it, before the next one can end. */
template <class R> static __device__ __forceinline__ void open_marks(const marks<R> &b) {
    mbarrier_init_warps(b.scores_done(), R::WARPS), mbarrier_init_warps(b.n_done(), R::WARPS);
    mbarrier_init_warps(b.dk_there(), R::WARPS), mbarrier_init_warps(b.v_ready(), 4);
    for (int i = 0; i < 2; i++) mbarrier_init_warps(b.dq_there(i), R::WARPS);
    for (int i = 0; i < R::STAGES; i++) {
        mbarrier_init(b.a_there(i), GROUP + 1);
        mbarrier_init_warps(b.x_free(i), R::WARPS + 4), mbarrier_init_warps(b.o_free(i), 4);
    }
    for (int i = 0; i < R::KEYS; i++) mbarrier_init(b.qk_there(i), GROUP), mbarrier_init_warps(b.qk_free(i), 4);
    for (int i = 0; i < R::NEW; i++) mbarrier_init(b.v_there(i), GROUP);
    for (int i = 0; i < R::NEW * R::PANELS; i++) mbarrier_init_warps(b.v_free(i), R::WARPS);
    for (int i = 0; i < R::SLOTS; i++) mbarrier_init(b.dh_there(i), 1), mbarrier_init_warps(b.dh_free(i), R::WARPS);
}

/* What a block walks along: chunks of a segment, one value head, KT columns of K. Rows are counted, not
 * looked up. */
struct walk {
    int s, hv, part, tile;
    int chunk, chunks, last; /* the first one, how many, the segment's last */
    int row, rows;           /* of the first chunk, and those from there on */
};
static __device__ __forceinline__ walk walk_of(const struct gdn_back &a, int tiles) {
    const int tile = blockIdx.x % tiles, hv = blockIdx.x / tiles % a.HV, part = blockIdx.x / tiles / a.HV % a.cuts,
              s = blockIdx.x / tiles / a.HV / a.cuts;
    const int first = a.chunk_first[s], n = a.chunk_first[s + 1] - first, from = gdn_cut(n, part, a.cuts);
    return {s,
            hv,
            part,
            tile,
            first + from,
            gdn_cut(n, part + 1, a.cuts) - from,
            first + n - 1,
            (int)a.seg[s].row + from * C,
            (int)a.seg[s].len - from * C};
}
static __device__ __forceinline__ int rows_of(const walk &w, int c) {
    const int left = w.rows - c * C;
    return left < C ? left : C;
}
static __device__ __forceinline__ int64_t row_of(const struct gdn_back &a, const walk &w, int c) {
    return (int64_t)(w.row + c * C) * a.HV + w.hv;
}

/* where a part starts */
template <class R>
static __device__ __forceinline__ void start(const struct gdn_back &a, const walk &w, int group, float S[R::V / 8][4]) {
    const int t = threadIdx.x % 4;
    const float *from = NULL;
    if (w.part > 0) from = a.starts + (((int64_t)w.s * a.HV + w.hv) * a.cuts + w.part - 1) * R::V * a.K;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = w.tile * R::KT + group * 64 + own_row(i / 2);
#pragma unroll
        for (int n = 0; n < R::V / 8; n++) S[n][i] = from ? from[(8 * n + 2 * t + i % 2) * a.K + k] : 0.0f;
    }
}

/* ---- the group that copies ---- */

/* Panel n of dh, counted from the first chunk on, from its place in memory; that of the segment's last chunk
 * is 0. */
template <class R>
static __device__ __forceinline__ void load_dh(R &m, const marks<R> &b, const walk &w, const bf16 *from, int n, int i) {
    const int bytes = R::BLOCK * (int)sizeof(bf16), c = w.chunk + n / R::PANELS;
    if (i > 0 && c < w.last) return;
    if (i == 0) mbarrier_wait(b.dh_free(n), empty<R::SLOTS>(n));
    if (c == w.last) {
        named_barrier_sync(5, GROUP); /* one thread has waited, for all */
        for (int j = i; j < R::BLOCK / 8; j += GROUP) ((uint4 *)m.dh[n % R::SLOTS])[j] = make_uint4(0, 0, 0, 0);
        fence_proxy_async();
        named_barrier_sync(5, GROUP);
    }
    if (i > 0) return;
    if (c == w.last) mbarrier_arrive(b.dh_there(n));
    else mbarrier_arrive_expect_tx(b.dh_there(n), bytes), bulk_copy(m.dh[n % R::SLOTS], from, bytes, b.dh_there(n));
}
/* q and k of chunk c, at `at` of both */
template <class R>
static __device__ __forceinline__ void load_qk(R &m, const marks<R> &b, const struct gdn_back &a, int64_t at, int n,
                                               int c, int i) {
    const int stride = a.H * a.K, s = c % R::KEYS;
    mbarrier_wait(b.qk_free(c), empty<R::KEYS>(c));
#pragma unroll 1
    for (int j = 0; j < 2 * R::W; j++)
        copy_panel<64, C, GROUP>((j % 2 ? m.q[s] : m.k[s]) + j / 2 * PANEL,
                                 (const bf16 *)(j % 2 ? a.q : a.k) + at + j / 2 * 64, stride, n, i);
    copy_async_arrive(b.qk_there(c));
}
/* dO, X2 and the gates of chunk c; those panels of dO last that dQ leaves from */
template <class R>
static __device__ __forceinline__ void load_outer(R &m, const marks<R> &b, const struct gdn_back &a, int64_t at,
                                                  int item, int n, int c, int i) {
    enum { PANELS = R::PANELS, LEAVES = R::W < PANELS ? R::W : PANELS, BYTES = C * R::V * (int)sizeof(bf16) };
    const int s = c % R::STAGES;
    mbarrier_wait(b.x_free(c), empty<R::STAGES>(c));
    if (i == 0) {
        mbarrier_arrive_expect_tx(b.a_there(c), BYTES);
        bulk_copy(m.X2[s], (const bf16 *)a.X2 + (int64_t)item * C * R::V, BYTES, b.a_there(c), true);
    }
#pragma unroll 1
    for (int j = 0; j < PANELS; j++) {
        const int p = (j + LEAVES) % PANELS;
        if (j == PANELS - LEAVES) mbarrier_wait(b.o_free(c), empty<R::STAGES>(c));
        copy_panel<64, C, GROUP>(m.dO[s] + p * PANEL, (const bf16 *)a.dout + at + 64 * p, a.HV * R::V, n, i);
    }
    if (i < GATES / 4) copy_async(m.gates[c % R::ALL_GATES] + 4 * i, a.gates + (int64_t)item * GATES + 4 * i);
    copy_async_arrive(b.a_there(c));
}
/* In the order in which places become free: those of q and k before dh's and v_new's, where there are two. */
template <class R>
static __device__ __forceinline__ void load_all(R &m, const marks<R> &b, const struct gdn_back &a, const walk &w,
                                                int i) {
    enum { PANELS = R::PANELS };
    const int panel = 64 * a.K;
    int64_t at_k = ((int64_t)w.row * a.H + w.hv / a.group) * a.K + w.tile * R::KT;
    const bf16 *dh = (const bf16 *)a.dh + ((int64_t)w.chunk * a.HV + w.hv) * R::V * a.K + w.tile * R::BLOCK;
    for (int c = 0; c < w.chunks; c++) {
        const int n = rows_of(w, c);
        const int64_t at = row_of(a, w, c) * R::V;
        load_outer<R>(m, b, a, at, (w.chunk + c) * a.HV + w.hv, n, c, i);
        if (R::KEYS == 2) load_qk<R>(m, b, a, at_k, n, c, i);
#pragma unroll 1
        for (int p = 0; p < PANELS; p++) {
            const int x = c * PANELS + p;
            load_dh<R>(m, b, w, dh + p * panel, x, i);
            mbarrier_wait(b.v_free(x), empty<marks<R>::V_PANELS>(x));
            copy_panel<64, C, GROUP>(m.v_new[c % R::NEW] + p * PANEL, (const bf16 *)a.v_new + at + 64 * p, a.HV * R::V,
                                     n, i);
        }
        copy_async_arrive(b.v_there(c));
        if (R::KEYS == 1) load_qk<R>(m, b, a, at_k, n, c, i);
        at_k += (int64_t)C * a.H * a.K;
        dh += (int64_t)a.HV * PANELS * panel;
        if (i < PANELS && w.chunk + c + 1 < w.last) prefetch_l2(dh + i * panel, R::BLOCK * (int)sizeof(bf16));
    }
}

/* ---- the group that takes along what is not products ---- */

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
    const float *eL = m.gates[c % R::ALL_GATES] + EL;
    bf16 *v = m.v_new[c % R::NEW];
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
/* dv = beta X2 and v.X2, of half of the rows where two blocks share the chunk. A thread has 16 bytes of every
 * 32 columns of a row, of which ON_WAY are on their way from memory. */
template <class R> struct values {
    enum { SLICES = R::V / 32, ON_WAY = SLICES < 4 ? SLICES : 4 };
    uint4 v[ON_WAY];
    /* where a thread's first piece is, of v and dv; -1: nowhere */
    static __device__ __forceinline__ int64_t place(const struct gdn_back &a, const walk &w, int c, int row, int i) {
        if (c >= w.chunks || row >= rows_of(w, c)) return -1;
        return (row_of(a, w, c) + (int64_t)row * a.HV) * R::V + i % 4 * 8;
    }
    static __device__ __forceinline__ int first_row(const walk &w, int i) { return w.tile * (C / 2) + i / 4; }
    /* the first ones of chunk c */
    __device__ __forceinline__ void ask(const struct gdn_back &a, const walk &w, int c, int i) {
        const int64_t at = place(a, w, c, first_row(w, i), i);
#pragma unroll
        for (int j = 0; j < ON_WAY; j++) v[j] = at < 0 ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(a.v + at + 32 * j);
    }
    __device__ __forceinline__ void take(R &m, const struct gdn_back &a, const walk &w, int c, int i) {
        const float *beta = m.gates[c % R::ALL_GATES] + BETA;
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
                const int j = x % ON_WAY, col = 32 * x + i % 4 * 8;
                const uint32_t u[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
                const int64_t then = x + ON_WAY < SLICES ? at : next;
                if (then >= 0) v[j] = *(const uint4 *)(a.v + then + 32 * (x + ON_WAY) % R::V);
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
/* sums over the block's columns of K, for gates_end */
template <class R> static __device__ __forceinline__ void leave_sums(R &m, float *sums, int c, int i) {
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
    sums[DOTS * C] = x * m.gates[c % R::ALL_GATES][EG + C - 1];
}
template <class R>
static __device__ __forceinline__ void take_along(R &m, const marks<R> &b, const struct gdn_back &a, const walk &w,
                                                  int i) {
    const int64_t stride = (int64_t)a.HV * a.K;
    values<R> v;
    m.vx[i / C][i % C] = 0;
    v.ask(a, w, 0, i);
    named_barrier_sync(4, GROUP); /* the sums start from 0 */
    for (int c = 0; c < w.chunks; c++) {
        const int n = rows_of(w, c);
        const int64_t item = (int64_t)(w.chunk + c) * a.HV + w.hv;
        const int64_t out = row_of(a, w, c) * a.K + w.tile * R::KT;
        mbarrier_wait(b.a_there(c), full<R::STAGES>(c));
        v.take(m, a, w, c, i);
        mbarrier_arrive_warp(b.x_free(c));
        mbarrier_wait(b.scores_done(), full<1>(c));
        scale_values<R>(m, c, i);
        mbarrier_arrive_warp(b.v_ready());
        mbarrier_wait(b.dq_there(c), full<2>(c));
        store_panels<R::W>(a.dq_head + out, m.dO[c % R::STAGES], stride, n, i);
        mbarrier_arrive_warp(b.o_free(c));
        named_barrier_sync(4, GROUP); /* v.X2 is there */
        v.ask(a, w, c + 1, i);
        mbarrier_wait(b.dk_there(), full<1>(c));
        store_panels<R::W>(a.dk_head + out, m.q[c % R::KEYS], stride, n, i);
        leave_sums<R>(m, a.sums + ((int64_t)w.tile * a.items + item) * SUMS, c, i);
        mbarrier_arrive_warp(b.qk_free(c));
    }
}
#endif
