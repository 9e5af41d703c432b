/* gdn_seqsplit_cuda.cu -- few, long segments, cut into parts that are walked at the same time
 * (gdn_trans_cuda.cuh): where each part ends, and the states at the cuts. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_walk_cuda.cuh"

#ifndef HL_CUDA_F32

/* ---- the walk for the state alone ---- */

template <int K, int W> struct stage { bf16 k[CHUNK * K], A[CHUNK * CHUNK], v[W * PANEL]; };
template <int K, int W> struct walk_room {
    enum { DEPTH = W == 1 ? 2 : 3, AHEAD = DEPTH - 1 };
    stage<K, W> s[DEPTH];
    float gates[DEPTH][GATES];
};

/* The group that copies. Barriers, of this group and one other: a chunk is there; the other group is done
 * with it. */
template <int K, int W>
static __device__ __forceinline__ void load_chunk(walk_room<K, W> &x, const struct gdn_walk &a, const struct way &w,
                                                  int c, int i) {
    const struct rows_of r = rows_at(a, w, c);
    const int64_t at = ((int64_t)(w.row + c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
    const int n = c % walk_room<K, W>::DEPTH;
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
static __device__ __forceinline__ void load_all(walk_room<K, W> &x, const struct gdn_walk &a, const struct way &w,
                                                int i) {
    enum { DEPTH = walk_room<K, W>::DEPTH, AHEAD = DEPTH - 1 };
    for (int c = -AHEAD; c <= w.chunks; c++) {
        const int next = c + AHEAD, done = c - 1;
        if (c >= 0 && c < w.chunks) {
            copy_wait<AHEAD - 1>();
            fence_proxy_async();
            for (int g = 0; g < W; g++) named_barrier_arrive(is_there<W>(c % DEPTH, g), 2 * GROUP);
        }
        for (int g = 0; g < W && c > 0; g++) named_barrier_sync(is_done<W>(done % DEPTH, g), 2 * GROUP);
        if (next < w.chunks) load_chunk(x, a, w, next, i);
        copy_commit();
    }
}

template <int K, int W>
static __device__ __forceinline__ void walk_chunk(const stage<K, W> &s, const float *gates, int group,
                                                  float S[K / 8][4]) {
    const float end = gates[2 * CHUNK - 1];
    float d[CHUNK / 8][4];
    uint32_t r[4][4], decayed[4][4];
    read_state<K>(d, S, s.k, NULL);
    residual(r, d, s.v + group * PANEL, gates);
    wgmma_hold_a<4>(r);
    zero(d);
    wgmma_begin<CHUNK / 8>(d);
    times_square(d, r, s.A);
    wgmma_end<CHUNK / 8>(d);
    wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], d + 2 * i);
    wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < K / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] *= end;
    scale_operands(decayed, r, gates + 2 * CHUNK, 1.0f);
    wgmma_hold_a<4>(decayed);
    wgmma_begin<K / 8>(S);
    write_state<K>(S, decayed, s.k);
    wgmma_end<K / 8>(S);
    wgmma_hold_a<4>(decayed);
}

/* Blocks: tiles of V's columns, then of K's (the identity's), of a part and a head. */
template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) walk_ends(const struct gdn_walk a) {
    walk_room<K, W> &x = *(walk_room<K, W> *)shared_tiles();
    const int values = a.V / (64 * W), tiles = values + K / (64 * W), tile = blockIdx.x % tiles;
    const int group = warpgroup_index(), hv = blockIdx.x / tiles % a.HV,
              part = blockIdx.x / tiles / a.HV % (a.parts - 1), s = blockIdx.x / tiles / a.HV / (a.parts - 1);
    named_barrier_init();
    pdl_wait();
    pdl_trigger();
    struct way w = way_of(a, s, part, hv);
    w.values = tile < values;
    w.col = (w.values ? tile : tile - values) * 64 * W;
    if (!w.values && part == 0) return;
    if (group == W) {
        registers_of_copier<K, W>();
        load_all(x, a, w, threadIdx.x - W * GROUP);
    } else {
        registers_of_walker<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        const float *kept = part == 0 ? kept_state(a.e, K, s, hv) : NULL;
        float S[K / 8][4];
        if (w.values) state_in<K>(S, kept ? kept + col : NULL, a.V);
        else state_one<K>(S, (int)col);
        for (int c = 0; c < w.chunks; c++) {
            named_barrier_sync(is_there<W>(c % walk_room<K, W>::DEPTH, group), 2 * GROUP);
            walk_chunk(x.s[c % walk_room<K, W>::DEPTH], x.gates[c % walk_room<K, W>::DEPTH], group, S);
            named_barrier_arrive(is_done<W>(c % walk_room<K, W>::DEPTH, group), 2 * GROUP);
        }
        if (w.values) state_out<K>(end_of(a.e, K, s, hv, part) + col, S, a.V);
        else state_out<K>(move_of(a.e, K, s, hv, part) + col, S, K);
    }
}

/* ---- the states at the cuts: a block has 16 columns of V, a warp 16 rows. bf16 operands in two parts each,
 * high and low, so that nothing is lost that a float has. ---- */

enum { COLS = 16 };
static __device__ __forceinline__ void split_pair(uint32_t *hi, uint32_t *lo, float x, float y) {
    *hi = pack2(x, y);
    *lo = pack2(x - low(*hi), y - high(*hi));
}
template <int K> struct ends_room { bf16 hi[2][K * COLS], lo[2][K * COLS]; };
/* the warp's rows, for the next step's products */
template <int K> static __device__ __forceinline__ void leave_state(ends_room<K> &x, int at, const float S[2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int to = tile_at<COLS>(threadIdx.x / 32 * 16 + g + 8 * h, 8 * n + 2 * t);
            split_pair((uint32_t *)(x.hi[at] + to), (uint32_t *)(x.lo[at] + to), S[n][2 * h], S[n][2 * h + 1]);
        }
}
/* Of every 16 columns a lane has 4t to 4t + 3, 16 bytes, where a fragment has 2t, 2t + 1, 2t + 8 and 2t + 9;
 * so of the state it gets those rows. */
static __device__ __forceinline__ void state_rows(uint32_t b[4], const bf16 *tile, int k0) {
    const int l = threadIdx.x % 32, row = l % 8 / 2 * 4 + l / 8 % 2 * 2 + l % 2;
    ldmatrix4_trans(b, tile + tile_at<COLS>(k0 + row, l / 16 * 8));
}
template <int K>
static __device__ __forceinline__ void move_state(float S[2][4], const float *move, const ends_room<K> &x, int at) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    move += (threadIdx.x / 32 * 16 + g) * K + 4 * t;
#pragma unroll 8
    for (int k = 0; k < K; k += 16) {
        const float4 m = *(const float4 *)(move + k), n = *(const float4 *)(move + 8 * K + k);
        uint32_t hi[4], lo[4], y[4], z[4];
        split_pair(&hi[0], &lo[0], m.x, m.y), split_pair(&hi[2], &lo[2], m.z, m.w);
        split_pair(&hi[1], &lo[1], n.x, n.y), split_pair(&hi[3], &lo[3], n.z, n.w);
        state_rows(y, x.hi[at], k), state_rows(z, x.lo[at], k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma_bf16(S[i], hi, y + 2 * i);
            mma_bf16(S[i], lo, y + 2 * i);
            mma_bf16(S[i], hi, z + 2 * i);
        }
    }
}
template <int K> static __global__ void __launch_bounds__(2 * K) join_ends(const struct gdn_ends a) {
    __shared__ __align__(128) char room[sizeof(ends_room<K>)];
    ends_room<K> &x = *(ends_room<K> *)room;
    const int tiles = a.V / COLS, hv = blockIdx.x / tiles % a.HV, s = blockIdx.x / tiles / a.HV;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t at = (int64_t)(threadIdx.x / 32 * 16 + g) * a.V + blockIdx.x % tiles * COLS + 2 * t;
    pdl_wait();
    pdl_trigger();
    const float *kept = kept_state(a, K, s, hv);
    for (int p = -1; p < a.parts - 1; p++) {
        float *end = end_of(a, K, s, hv, p < 0 ? a.parts - 1 : p) + at, S[2][4];
        const float *from = p < 0 ? kept ? kept + at : NULL : end;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 y = make_float2(0.0f, 0.0f);
            if (from) y = *(const float2 *)(from + i % 2 * 8 * a.V + i / 2 * 8);
            S[i / 2][i % 2 * 2] = y.x, S[i / 2][i % 2 * 2 + 1] = y.y;
        }
        if (p > 0) move_state<K>(S, move_of(a, K, s, hv, p), x, (p - 1) % 2);
        if (p != 0) /* the first part's end is there */
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(float2 *)(end + i % 2 * 8 * a.V + i / 2 * 8) =
                    make_float2(S[i / 2][i % 2 * 2], S[i / 2][i % 2 * 2 + 1]);
        if (p < 0) continue;
        leave_state<K>(x, p % 2, S);
        __syncthreads();
    }
}

template <int K, int W> static void launch_ends(struct hl_cuda *c, const struct gdn_walk *a) {
    const int64_t tiles = (a->V + K) / (64 * W);
    launch_pdl(c, walk_ends<K, W>, (unsigned)(a->segs * (a->parts - 1) * a->HV * tiles), (W + 1) * GROUP,
               sizeof(walk_room<K, W>) + TILES_ROOM, *a);
}
template <int K> static void launch_join(struct hl_cuda *c, const struct gdn_ends *a) {
    launch_pdl(c, join_ends<K>, (unsigned)(a->segs * a->HV * (a->V / COLS)), 2 * K, 0, *a);
}

#endif

extern "C" void HL_OP(gdn_join)(struct hl_cuda *c, const struct gdn_ends *e, int64_t K) {
#ifndef HL_CUDA_F32
    (K == 256 ? launch_join<256> : K == 128 ? launch_join<128> : launch_join<64>)(c, e);
#endif
}
extern "C" void HL_OP(gdn_split)(struct hl_cuda *c, const struct gdn_walk *a, int64_t K) {
#ifndef HL_CUDA_F32
    if (K == 256) (a->V % 128 ? launch_ends<256, 1> : launch_ends<256, 2>)(c, a);
    else if (K == 128) (a->V % 128 ? launch_ends<128, 1> : launch_ends<128, 2>)(c, a);
    else launch_ends<64, 1>(c, a);
    HL_OP(gdn_join)(c, &a->e, K);
#endif
}
