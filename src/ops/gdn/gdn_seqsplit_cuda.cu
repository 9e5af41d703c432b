/* gdn_seqsplit_cuda.cu -- the states between the splits of long segments (gdn_trans_cuda.cuh), in two
 * kernels:
 *     scan_splits   for every split but the last: B, the scan from an empty state, and M, from the identity
 *     join_splits   S_p = M_p S_{p-1} + B_p, from split to split; with keys of 256 a kernel for each split
 * scan_splits: grid, gdn_split_units, tiles of 64 W columns. Block: W consumer warpgroups and a producer, of which one
 * thread copies (gdn_copy_cuda.cuh): all chunks have 64 rows, since the last split is not scanned. mbarriers of a ring of
 * DEPTH chunks: full (the copies, for the consumers), empty (the consumers, for the producer). */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_copy_cuda.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/gdn/gdn_ring_cuda.cuh"

#ifndef HL_CUDA_F32

struct maps {
    struct tensor_map k, v, A;
};
template <int K, int W> struct stage { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[W * PANEL]; };
template <int K, int W> struct smem {
    enum { DEPTH = K == 256 ? 3 : 4 };
    stage<K, W> s[DEPTH];
    float gates[DEPTH][GATES_READ];
    uint64_t barriers[2 * DEPTH];
    gdn_vanished<DEPTH, 4 * W> vanished;
};

template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const ring_barriers<0, smem<K, W>::DEPTH> &b,
                                                 const struct gdn_ring_args &a, const struct maps &maps,
                                                 const struct chunk_range &w) {
    enum { DEPTH = smem<K, W>::DEPTH };
    const int hk = w.hv / (a.HV / a.H) * K, bytes = 2 * CHUNK * (K + CHUNK + (w.values ? 64 * W : 0)) + 4 * GATES_READ;
    for (int c = 0; c < w.chunks; c++) {
        const int n = c % DEPTH, row = w.row + c * CHUNK;
        const mbarrier_t full = b.full(c);
        mbarrier_wait(b.empty(c), empty_parity<DEPTH>(c));
        if (!w.values && x.vanished.ends(c)) {
            mbarrier_arrive(full);
            return;
        }
        mbarrier_arrive_expect_tx(full, bytes);
        for (int p = 0; p < K / 64; p++) tensor_copy(x.s[n].k + p * PANEL, &maps.k, row, hk + 64 * p, full);
        bulk_copy(x.gates[n], a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES, 4 * GATES_READ, full, true);
        for (int g = 0; g < W && w.values; g++)
            tensor_copy(x.s[n].v + g * PANEL, &maps.v, row, w.hv * a.V + w.col + 64 * g, full);
        tensor_copy(x.s[n].A, &maps.A, row, w.hv * CHUNK, full);
    }
}

/* ---- consumer warpgroups ---- */

template <int K, int W>
static __device__ __forceinline__ void scan_chunk(const stage<K, W> &s, const float *gates, int group,
                                                  float S[K / 8][4]) {
    const float end = gates[2 * CHUNK - 1];
    float d[CHUNK / 8][4];
    uint32_t v_new[4][4], decayed[4][4];
    read_state<K>(d, S, s.k, NULL);
    solve_values(v_new, d, s.v + group * PANEL, s.A, gates);
    update_state<K>(S, decayed, v_new, s.k, gates, end);
    wgmma_end<K / 8>(S);
    wgmma_hold_a<4>(decayed);
}

template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1)
    scan_splits(const struct gdn_ring_args a, const __grid_constant__ struct maps maps) {
    enum { DEPTH = smem<K, W>::DEPTH };
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const ring_barriers<0, DEPTH> b = {mbarrier_base(x.barriers)};
    const struct gdn_split_unit u = gdn_split_unit_of(a.split, blockIdx.x, a.V / (64 * W), K / (64 * W));
    const int group = warpgroup_index(), hv = u.hv, split = u.split, s = u.s;
    if (threadIdx.x == 0)
        for (int i = 0; i < DEPTH; i++) mbarrier_init(b.full(i), 1), mbarrier_init_warps(b.empty(i), 4 * W);
    if (!u.values) /* v is 0 */
        for (int i = threadIdx.x; i < DEPTH * W * PANEL / 8; i += (W + 1) * GROUP)
            ((uint4 *)x.s[i / (W * PANEL / 8)].v)[i % (W * PANEL / 8)] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    struct chunk_range w = range_of(a, s, split, hv);
    w.values = u.values, w.col = u.tile * 64 * W;
    if (group == W) {
        producer_registers<K, W>();
        if (threadIdx.x == W * GROUP) load_loop(x, b, a, maps, w);
    } else {
        consumer_registers<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        const float *session = split == 0 ? session_state(a.split, K, s, hv) : NULL;
        float S[K / 8][4];
        if (w.values) load_state<K>(S, session ? session + col : NULL, a.V);
        else identity_state<K>(S, (int)col);
        for (int c = 0; c < w.chunks; c++) {
            mbarrier_wait(b.full(c), full_parity<DEPTH>(c));
            if (!w.values && x.vanished.end[c % DEPTH]) break;
            scan_chunk(x.s[c % DEPTH], x.gates[c % DEPTH], group, S);
            if (!w.values) x.vanished.template note<K>(S, c);
            mbarrier_arrive_warp(b.empty(c));
        }
        if (w.values) store_state<K>(split_state(a.split, K, s, hv, split) + col, S, a.V);
        else store_state<K>(split_transition(a.split, K, s, hv, split) + col, S, K);
    }
}

/* ---- joining: a warp has 16 rows of the state of a segment and value head. Each fp32 operand is two bf16, high and low,
 * so that the product keeps its precision. ---- */

static __device__ __forceinline__ void split_pair(uint32_t *hi, uint32_t *lo, float x, float y) {
    *hi = pack2(x, y);
    *lo = pack2(x - low(*hi), y - high(*hi));
}
/* B fragments of the state with its rows permuted: of every 16 columns of M a lane loads 4t to 4t + 3, 16 bytes at
 * once, where an A fragment has 2t, 2t + 1, 2t + 8 and 2t + 9; the rows of the state use the same order. */
template <int COLS>
static __device__ __forceinline__ void load_state_rows(uint32_t b[4], const bf16 *tile, int k0, int col) {
    const int l = threadIdx.x % 32, row = l % 8 / 2 * 4 + l / 8 % 2 * 2 + l % 2;
    ldmatrix4_trans(b, tile + tile_at<COLS>(k0 + row, col + l / 16 * 8));
}
/* 16 rows of M, in that order */
template <int K> struct transition {
    float4 m[K / 16][2];
    __device__ __forceinline__ void load(const float *M, int row) {
        M += (row + threadIdx.x % 32 / 4) * K + threadIdx.x % 4 * 4;
#pragma unroll
        for (int k = 0; k < K / 16; k++)
            m[k][0] = *(const float4 *)(M + 16 * k), m[k][1] = *(const float4 *)(M + 8 * K + 16 * k);
    }
    /* S += M x, of a tile's columns */
    template <int COLS>
    __device__ __forceinline__ void apply(float S[COLS / 8][4], const bf16 *x_hi, const bf16 *x_lo) const {
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t hi[4], lo[4], y[4], z[4];
            split_pair(&hi[0], &lo[0], m[k][0].x, m[k][0].y), split_pair(&hi[2], &lo[2], m[k][0].z, m[k][0].w);
            split_pair(&hi[1], &lo[1], m[k][1].x, m[k][1].y), split_pair(&hi[3], &lo[3], m[k][1].z, m[k][1].w);
#pragma unroll
            for (int n = 0; n < COLS / 8; n += 2) {
                load_state_rows<COLS>(y, x_hi, 16 * k, 8 * n), load_state_rows<COLS>(z, x_lo, 16 * k, 8 * n);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_bf16(S[n + i], hi, y + 2 * i);
                    mma_bf16(S[n + i], lo, y + 2 * i);
                    mma_bf16(S[n + i], hi, z + 2 * i);
                }
            }
        }
    }
};
/* the lane's part of a state's rows from memory, NULL: 0, and to memory */
template <int COLS>
static __device__ __forceinline__ void load_rows(float S[COLS / 8][4], const float *from, int64_t V) {
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) {
        float2 y = make_float2(0.0f, 0.0f);
        if (from) y = *(const float2 *)(from + i % 2 * 8 * V + i / 2 * 8);
        S[i / 2][i % 2 * 2] = y.x, S[i / 2][i % 2 * 2 + 1] = y.y;
    }
}
template <int COLS> static __device__ __forceinline__ void put_rows(float *to, const float S[COLS / 8][4], int64_t V) {
#pragma unroll
    for (int i = 0; i < COLS / 4; i++)
        *(float2 *)(to + i % 2 * 8 * V + i / 2 * 8) = make_float2(S[i / 2][i % 2 * 2], S[i / 2][i % 2 * 2 + 1]);
}

/* Keys of up to 128: a block has all rows of JOIN_COLS columns and goes through the splits. The next split's M and B are
 * loaded before this one's state is complete. */
enum { JOIN_COLS = 16 };
template <int K> static __global__ void __launch_bounds__(2 * K) join_splits(const struct gdn_seqsplit a) {
    enum { COLS = JOIN_COLS };
    __shared__ __align__(128) char bytes[4 * K * COLS * sizeof(bf16)];
    bf16 *x = (bf16 *)bytes; /* the state, high and low, of two splits in turn */
    const int tiles = a.V / COLS, hv = blockIdx.x / tiles % a.HV, s = blockIdx.x / tiles / a.HV;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 * 16;
    const int64_t at = (int64_t)(row + g) * a.V + blockIdx.x % tiles * COLS + 2 * t;
    transition<K> M;
    float S[2][4], next[2][4];
    pdl_wait();
    pdl_trigger();
    const float *session = session_state(a, K, s, hv);
    load_rows<COLS>(next, split_state(a, K, s, hv, 0) + at, a.V);
    load_rows<COLS>(S, session ? session + at : NULL, a.V); /* the first split's initial state */
    put_rows<COLS>(split_state(a, K, s, hv, a.n - 1) + at, S, a.V);
    for (int p = 0; p < a.n - 1; p++) {
        bf16 *hi = x + p % 2 * 2 * K * COLS, *lo = hi + K * COLS;
        const bf16 *last = x + (p + 1) % 2 * 2 * K * COLS;
#pragma unroll
        for (int i = 0; i < 8; i++) S[i / 4][i % 4] = next[i / 4][i % 4];
        if (p > 0) M.template apply<COLS>(S, last, last + K * COLS);
        if (p + 2 < a.n) {
            M.load(split_transition(a, K, s, hv, p + 1), row);
            load_rows<COLS>(next, split_state(a, K, s, hv, p + 1) + at, a.V);
        }
        if (p > 0) put_rows<COLS>(split_state(a, K, s, hv, p) + at, S, a.V); /* the first split's result is final */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = tile_at<COLS>(row + g + i % 2 * 8, i / 2 * 8 + 2 * t);
            split_pair((uint32_t *)(hi + to), (uint32_t *)(lo + to), S[i / 2][i % 2 * 2], S[i / 2][i % 2 * 2 + 1]);
        }
        __syncthreads();
    }
}

/* Keys of 256: M would take a block of join_splits too long to read. A launch for each split p; a block has STEP_ROWS rows
 * and STEP_COLS columns. M is loaded before the previous launch is complete, as it is older. */
enum { STEP_ROWS = 64, STEP_COLS = 32, STEP_THREADS = 2 * STEP_ROWS };
template <int K> static __global__ void __launch_bounds__(STEP_THREADS) join_split(const struct gdn_seqsplit a, int p) {
    enum { COLS = STEP_COLS };
    __shared__ __align__(128) char bytes[2 * K * COLS * sizeof(bf16)];
    bf16 *hi = (bf16 *)bytes, *lo = hi + K * COLS;
    const int tiles = a.V / COLS, parts = K / STEP_ROWS, col = blockIdx.x % tiles * COLS;
    const int hv = blockIdx.x / tiles / parts % a.HV, s = blockIdx.x / tiles / parts / a.HV;
    const int row = blockIdx.x / tiles % parts * STEP_ROWS + threadIdx.x / 32 * 16;
    const int64_t at = (int64_t)(row + threadIdx.x % 32 / 4) * a.V + col + threadIdx.x % 4 * 2;
    transition<K> M;
    float S[COLS / 8][4];
    if (p > 1) M.load(split_transition(a, K, s, hv, p), row);
    pdl_wait();
    pdl_trigger();
    if (p == 1) {
        const float *session = session_state(a, K, s, hv);
        M.load(split_transition(a, K, s, hv, p), row);
        load_rows<COLS>(S, session ? session + at : NULL, a.V); /* the first split's initial state */
        put_rows<COLS>(split_state(a, K, s, hv, a.n - 1) + at, S, a.V);
    }
    const float *last = split_state(a, K, s, hv, p - 1) + col;
#pragma unroll 8
    for (int i = threadIdx.x; i < K * COLS / 4; i += STEP_THREADS) {
        const int r = i / (COLS / 4), c = i % (COLS / 4) * 4, to = tile_at<COLS>(r, c);
        const float4 y = *(const float4 *)(last + (int64_t)r * a.V + c);
        split_pair((uint32_t *)(hi + to), (uint32_t *)(lo + to), y.x, y.y);
        split_pair((uint32_t *)(hi + to + 2), (uint32_t *)(lo + to + 2), y.z, y.w);
    }
    float *state = split_state(a, K, s, hv, p) + at;
    load_rows<COLS>(S, state, a.V);
    __syncthreads();
    M.template apply<COLS>(S, hi, lo);
    put_rows<COLS>(state, S, a.V);
}

template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct gdn_ring_args *a) {
    const struct maps maps = {gdn_map(a->k, a->T, a->H * K), gdn_map(a->v, a->T, a->HV * a->V),
                              gdn_map(a->A, a->T, a->HV * CHUNK)};
    launch_pdl(c, scan_splits<K, W>, (unsigned)gdn_split_units(&a->split, a->V / (64 * W), K / (64 * W)),
               (W + 1) * GROUP, sizeof(smem<K, W>) + TILES_ROOM, *a, maps);
}
template <int K> static void launch_join(struct hl_cuda *c, const struct gdn_seqsplit *a) {
    const int64_t heads = a->segs * a->HV;
    if constexpr (K <= 128) launch_pdl(c, join_splits<K>, (unsigned)(heads * (a->V / JOIN_COLS)), 2 * K, 0, *a);
    else
        for (int p = 1; p < a->n - 1; p++)
            launch_pdl(c, join_split<K>, (unsigned)(heads * (K / STEP_ROWS) * (a->V / STEP_COLS)), STEP_THREADS, 0, *a,
                       p);
}

extern "C" void HL_OP(gdn_join_splits)(struct hl_cuda *c, const struct gdn_seqsplit *a, int64_t K) {
    (K == 256 ? launch_join<256> : K == 128 ? launch_join<128> : launch_join<64>)(c, a);
}
extern "C" void HL_OP(gdn_split_states)(struct hl_cuda *c, const struct gdn_ring_args *a, int64_t K) {
    if (K == 256) (a->V % 128 ? launch_scan<256, 1> : launch_scan<256, 2>)(c, a);
    else if (K == 128) (a->V % 128 ? launch_scan<128, 1> : launch_scan<128, 2>)(c, a);
    else launch_scan<64, 1>(c, a);
    HL_OP(gdn_join_splits)(c, &a->split, K);
}
#endif
