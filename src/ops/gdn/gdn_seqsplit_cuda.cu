/* gdn_seqsplit_cuda.cu -- the states between the splits of long segments (gdn_trans_cuda.cuh), in two
 * kernels:
 *     scan_splits   for every split but the last: B, the scan from an empty state, and M, from the identity
 *     join_splits   S_p = M_p S_{p-1} + B_p, from split to split
 * scan_splits: grid, a block per segment, split, value head and 64 W columns of V, then of K (the
 * identity's). W consumer warpgroups, one producer. Named barriers of the producer and one consumer, a pair
 * for each buffer: stage_full (the producer arrives), stage_empty (the consumer arrives). */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_ring_cuda.cuh"

#ifndef HL_CUDA_F32

template <int K, int W> struct stage { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[W * PANEL]; };
template <int K, int W> struct smem {
    enum { DEPTH = W == 1 ? 2 : 3, AHEAD = DEPTH - 1 };
    stage<K, W> s[DEPTH];
    float gates[DEPTH][GATES];
};

/* Named barriers of the producer and consumer `group` for buffer n */
template <int W> static __device__ __forceinline__ int stage_full(int n, int group) { return 1 + 2 * (n * W + group); }
template <int W> static __device__ __forceinline__ int stage_empty(int n, int group) { return 2 + 2 * (n * W + group); }

/* ---- producer warpgroup ---- */

template <int K, int W>
static __device__ __forceinline__ void load_chunk(smem<K, W> &x, const struct gdn_ring_args &a,
                                                  const struct chunk_range &w, int c, int i) {
    const struct chunk_rows r = rows_of(a, w, c);
    const int64_t at = ((int64_t)(w.row + c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
    const int n = c % smem<K, W>::DEPTH;
    stage<K, W> &s = x.s[n];
#pragma unroll 1
    for (int p = 0; p < K / 64; p++)
        copy_panel<64, CHUNK, GROUP>(s.k + p * PANEL, a.k + at + 64 * p, (int64_t)a.H * K, r.len, i);
    copy_panel<CHUNK, CHUNK, GROUP>(s.A, a.A + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
    if (i < GATES / 4) copy_async(x.gates[n] + 4 * i, a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES + 4 * i);
#pragma unroll 1
    for (int g = 0; g < W; g++)
        copy_panel<64, CHUNK, GROUP>(s.v + g * PANEL, a.v + (w.values ? r.row * a.V + w.col + 64 * g : 0),
                                     (int64_t)a.HV * a.V, w.values ? r.len : 0, i);
}
template <int K, int W>
static __device__ __forceinline__ void load_loop(smem<K, W> &x, const struct gdn_ring_args &a,
                                                 const struct chunk_range &w, int i) {
    enum { DEPTH = smem<K, W>::DEPTH, AHEAD = DEPTH - 1 };
    for (int c = -AHEAD; c <= w.chunks; c++) {
        const int next = c + AHEAD, done = c - 1;
        if (c >= 0 && c < w.chunks) {
            copy_wait<AHEAD - 1>();
            fence_proxy_async();
            for (int g = 0; g < W; g++) named_barrier_arrive(stage_full<W>(c % DEPTH, g), 2 * GROUP);
        }
        for (int g = 0; g < W && c > 0; g++) named_barrier_sync(stage_empty<W>(done % DEPTH, g), 2 * GROUP);
        if (next < w.chunks) load_chunk(x, a, w, next, i);
        copy_commit();
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
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) scan_splits(const struct gdn_ring_args a) {
    smem<K, W> &x = *(smem<K, W> *)shared_tiles();
    const int values = a.V / (64 * W), tiles = values + K / (64 * W), tile = blockIdx.x % tiles;
    const int group = warpgroup_index(), hv = blockIdx.x / tiles % a.HV,
              split = blockIdx.x / tiles / a.HV % (a.splits - 1), s = blockIdx.x / tiles / a.HV / (a.splits - 1);
    named_barrier_init();
    pdl_wait();
    pdl_trigger();
    struct chunk_range w = range_of(a, s, split, hv);
    w.values = tile < values;
    w.col = (w.values ? tile : tile - values) * 64 * W;
    if (!w.values && split == 0) return;
    if (group == W) {
        producer_registers<K, W>();
        load_loop(x, a, w, threadIdx.x - W * GROUP);
    } else {
        consumer_registers<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        const float *session = split == 0 ? session_state(a.split, K, s, hv) : NULL;
        float S[K / 8][4];
        if (w.values) load_state<K>(S, session ? session + col : NULL, a.V);
        else identity_state<K>(S, (int)col);
        for (int c = 0; c < w.chunks; c++) {
            named_barrier_sync(stage_full<W>(c % smem<K, W>::DEPTH, group), 2 * GROUP);
            scan_chunk(x.s[c % smem<K, W>::DEPTH], x.gates[c % smem<K, W>::DEPTH], group, S);
            named_barrier_arrive(stage_empty<W>(c % smem<K, W>::DEPTH, group), 2 * GROUP);
        }
        if (w.values) store_state<K>(split_state(a.split, K, s, hv, split) + col, S, a.V);
        else store_state<K>(split_transition(a.split, K, s, hv, split) + col, S, K);
    }
}

/* ---- join_splits: a block has 16 columns of V of a segment and value head, a warp 16 rows of K. Each fp32
 * operand is two bf16, high and low, so that the product keeps its precision. ---- */

enum { COLS = 16 };
static __device__ __forceinline__ void split_pair(uint32_t *hi, uint32_t *lo, float x, float y) {
    *hi = pack2(x, y);
    *lo = pack2(x - low(*hi), y - high(*hi));
}
template <int K> struct join_smem { bf16 hi[2][K * COLS], lo[2][K * COLS]; };
/* the warp's rows to shared memory, for the next split's product */
template <int K> static __device__ __forceinline__ void store_join_state(join_smem<K> &x, int at, const float S[2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int to = tile_at<COLS>(threadIdx.x / 32 * 16 + g + 8 * h, 8 * n + 2 * t);
            split_pair((uint32_t *)(x.hi[at] + to), (uint32_t *)(x.lo[at] + to), S[n][2 * h], S[n][2 * h + 1]);
        }
}
/* B fragments of the state with its rows permuted: of every 16 columns of M a lane loads 4t to 4t + 3, 16 bytes at
 * once, where an A fragment has 2t, 2t + 1, 2t + 8 and 2t + 9; the rows of the state use the same order. */
static __device__ __forceinline__ void load_state_rows(uint32_t b[4], const bf16 *tile, int k0) {
    const int l = threadIdx.x % 32, row = l % 8 / 2 * 4 + l / 8 % 2 * 2 + l % 2;
    ldmatrix4_trans(b, tile + tile_at<COLS>(k0 + row, l / 16 * 8));
}
template <int K>
static __device__ __forceinline__ void apply_transition(float S[2][4], const float *M, const join_smem<K> &x, int at) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    M += (threadIdx.x / 32 * 16 + g) * K + 4 * t;
#pragma unroll 8
    for (int k = 0; k < K; k += 16) {
        const float4 m = *(const float4 *)(M + k), n = *(const float4 *)(M + 8 * K + k);
        uint32_t hi[4], lo[4], y[4], z[4];
        split_pair(&hi[0], &lo[0], m.x, m.y), split_pair(&hi[2], &lo[2], m.z, m.w);
        split_pair(&hi[1], &lo[1], n.x, n.y), split_pair(&hi[3], &lo[3], n.z, n.w);
        load_state_rows(y, x.hi[at], k), load_state_rows(z, x.lo[at], k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma_bf16(S[i], hi, y + 2 * i);
            mma_bf16(S[i], lo, y + 2 * i);
            mma_bf16(S[i], hi, z + 2 * i);
        }
    }
}
template <int K> static __global__ void __launch_bounds__(2 * K) join_splits(const struct gdn_seqsplit a) {
    __shared__ __align__(128) char bytes[sizeof(join_smem<K>)];
    join_smem<K> &x = *(join_smem<K> *)bytes;
    const int tiles = a.V / COLS, hv = blockIdx.x / tiles % a.HV, s = blockIdx.x / tiles / a.HV;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t at = (int64_t)(threadIdx.x / 32 * 16 + g) * a.V + blockIdx.x % tiles * COLS + 2 * t;
    pdl_wait();
    pdl_trigger();
    const float *session = session_state(a, K, s, hv);
    for (int p = -1; p < a.n - 1; p++) {
        float *end = split_state(a, K, s, hv, p < 0 ? a.n - 1 : p) + at, S[2][4];
        const float *from = p < 0 ? session ? session + at : NULL : end;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 y = make_float2(0.0f, 0.0f);
            if (from) y = *(const float2 *)(from + i % 2 * 8 * a.V + i / 2 * 8);
            S[i / 2][i % 2 * 2] = y.x, S[i / 2][i % 2 * 2 + 1] = y.y;
        }
        if (p > 0) apply_transition<K>(S, split_transition(a, K, s, hv, p), x, (p - 1) % 2);
        if (p != 0) /* the first split's result is final */
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(float2 *)(end + i % 2 * 8 * a.V + i / 2 * 8) =
                    make_float2(S[i / 2][i % 2 * 2], S[i / 2][i % 2 * 2 + 1]);
        if (p < 0) continue;
        store_join_state<K>(x, p % 2, S);
        __syncthreads();
    }
}

template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct gdn_ring_args *a) {
    const int64_t tiles = (a->V + K) / (64 * W);
    launch_pdl(c, scan_splits<K, W>, (unsigned)(a->segs * (a->splits - 1) * a->HV * tiles), (W + 1) * GROUP,
               sizeof(smem<K, W>) + TILES_ROOM, *a);
}
template <int K> static void launch_join(struct hl_cuda *c, const struct gdn_seqsplit *a) {
    launch_pdl(c, join_splits<K>, (unsigned)(a->segs * a->HV * (a->V / COLS)), 2 * K, 0, *a);
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
