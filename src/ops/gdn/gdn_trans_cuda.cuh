/* gdn_trans_cuda.cuh -- what the walks along a segment share, the forward one and that of the gradients.
 *
 * A warpgroup owns 64 columns of V and has everything trans: the state as [64][K] in fp32 accumulators, 16
 * rows a warp, whose packed pairs are operands as they are. Lane 4g + t holds rows g and g + 8 (columns of
 * V), and there columns (rows of a chunk, or of K) 2t, 2t + 1 of every 8. One more group of the block copies.
 *
 * Long segments are walked in parts. What a part makes of the state it starts from is linear, M S + B: B is
 * the walk from an empty state, M that from the identity with no values. All of these are walked at once
 * (`walk for the ends`); the states at the cuts then follow one from another (gdn_join), and from there the
 * parts are walked again. The gradients go the other way, their first part is the last of the segment. */
#ifndef HL_GDN_TRANS_CUH
#define HL_GDN_TRANS_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/wgmma.cuh"

enum { GROUP = 128, PANEL = HL_CHUNK * 64 };

/* The states at the cuts, [segs][HV][parts][K][V] and [K][K]: ends[p] is where part p + 1 starts, the last
 * one where the first does; moves[p] is M, of all but the first and the last. */
struct gdn_ends {
    float *ends, *moves;
    const struct hl_seg *seg; /* the first part starts from their states; NULL: from nothing */
    int64_t segs, S_off;
    int HV, V, parts;
};
/* blocks that keep a chip busy: a fixed number, so that every chip gives the same bits */
enum { GDN_BUSY = 128, GDN_FULL = 96 }; /* FULL: where more would not pay */
/* In how many parts a segment of `chunks` is walked where so many are `wanted`: fewer than three are slower
 * than one, and so are very short ones. */
static inline int gdn_parts(int64_t wanted, int64_t chunks) {
    enum { LEAST = 4 };
    const int64_t n = wanted < chunks / LEAST ? wanted : chunks / LEAST;
    return n < 3 ? 1 : (int)n;
}
/* the first chunk of part p of `chunks` */
static inline __host__ __device__ int gdn_cut(int chunks, int p, int parts) {
    return (int)((int64_t)chunks * p / parts);
}
/* ends[p] = moves[p] ends[p - 1] + ends[p] */
extern "C" void HL_OP(gdn_join)(struct hl_cuda *c, const struct gdn_ends *e, int64_t K);

/* where a group's 64 columns start, of the states kept between parts */
static __device__ __forceinline__ float *end_of(const struct gdn_ends &a, int64_t K, int s, int hv, int part) {
    return a.ends + (((int64_t)s * a.HV + hv) * a.parts + part) * K * a.V;
}
static __device__ __forceinline__ float *move_of(const struct gdn_ends &a, int64_t K, int s, int hv, int part) {
    return a.moves + (((int64_t)s * a.HV + hv) * a.parts + part) * K * K;
}
static __device__ __forceinline__ float *kept_state(const struct gdn_ends &a, int64_t K, int s, int hv) {
    return a.seg && a.seg[s].state ? (float *)(a.seg[s].state + a.S_off) + hv * K * a.V : NULL;
}

/* Barriers of the group that copies and one other, which has chunk n of those in shared memory: it is there;
 * the other group is done with it. */
template <int W> static __device__ __forceinline__ int is_there(int n, int group) { return 1 + 2 * (n * W + group); }
template <int W> static __device__ __forceinline__ int is_done(int n, int group) { return 2 + 2 * (n * W + group); }

/* the registers of the block's threads, moved to where they are needed */
template <int K, int W> static __device__ __forceinline__ void registers_of_copier() {
    if (W == 2) setmaxnreg_dec<K == 256 ? 56 : 88>();
}
template <int K, int W> static __device__ __forceinline__ void registers_of_walker() {
    if (W == 2) setmaxnreg_inc<K == 256 ? 224 : 208>();
}

/* ---- products ---- */

/* d[..][n] times x[n] */
static __device__ __forceinline__ void scale_columns(float d[HL_CHUNK / 8][4], const float *x, float all) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < HL_CHUNK / 8; n++) {
        const float2 y = *(const float2 *)(x + 8 * n + 2 * t);
        d[n][0] *= all * y.x, d[n][1] *= all * y.y, d[n][2] *= all * y.x, d[n][3] *= all * y.y;
    }
}

template <int ROWS = HL_CHUNK> static __device__ __forceinline__ void zero(float d[ROWS / 8][4]) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[n][i] = 0.0f;
}
/* Lane t of four holds columns 2t, 2t+1 of four tiles; after it, the eight columns of tile t. */
static __device__ __forceinline__ void gather_columns(uint32_t w[4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 1; m < 4; m *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & m)) {
                const bool up = t & m;
                const uint32_t got = __shfl_xor_sync(0xffffffffu, up ? w[i] : w[i | m], m);
                if (up) w[i] = got;
                else w[i | m] = got;
            }
}

/* d = rows S, rows: k or q; in batches of STEP rows of S, of which two are under way. AGAIN: S is packed
 * anew. The compiler would rather keep what it packed the first time, and run out of registers: so it gets
 * to see other numbers, though they are the same. `to`, or NULL: S is left there as well, from the
 * warp's first row on in panels of 64 rows of V and 64 columns, as tiles in shared memory have them. */
template <int K, bool AGAIN = false, int ROWS = HL_CHUNK, int STRIDE = PANEL, int STEP = ROWS == HL_CHUNK ? 32 : 16>
static __device__ __forceinline__ void read_state(float d[ROWS / 8][4], const float S[K / 8][4], const bf16 *rows,
                                                  bf16 *to) {
    enum { N = STEP / 16 };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float one = __int_as_float(0x3f800000 + (int)blockIdx.z);
    uint32_t x[2][N][4];
    zero<ROWS>(d);
    wgmma_hold<ROWS / 8>(d);
#pragma unroll
    for (int b = 0; b < K / STEP; b++) {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            const float *y = S[STEP / 8 * b + i / 2] + i % 2 * 2;
            x[b % 2][i / 4][i % 4] = AGAIN ? pack2(one * y[0], one * y[1]) : pack2(y[0], y[1]);
        }
        if constexpr (N == 2)
            if (to)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t w[4] = {x[b % 2][0][h], x[b % 2][0][2 + h], x[b % 2][1][h], x[b % 2][1][2 + h]};
                    gather_columns(w);
                    *(uint4 *)(to + b / 2 * PANEL + tile_at<64>(g + 8 * h, b % 2 * 32 + 8 * t)) =
                        make_uint4(w[0], w[1], w[2], w[3]);
                }
        wgmma_hold_a<N>(x[b % 2]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int col = STEP * b + 16 * i;
            wgmma_rs<ROWS>(d, x[b % 2][i], operand<64, false>{rows + col / 64 * STRIDE, 0, col % 64});
        }
        wgmma_commit_wait<1>();
        if (b > 0) wgmma_hold_a<N>(x[(b + 1) % 2]);
    }
    wgmma_wait_all<ROWS / 8>(d);
    wgmma_hold_a<N>(x[1]);
}
/* S += x k, k in panels that are STRIDE apart */
template <int K, int STRIDE = PANEL>
static __device__ __forceinline__ void write_state(float S[K / 8][4], const uint32_t x[4][4], const bf16 *k) {
    enum { N = K < 128 ? K : 128 };
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int n = 0; n < K; n += N)
            wgmma_rs<N>(S + n / 8, x[c], operand<64, true, STRIDE>{k + n / 64 * STRIDE, 16 * c, 0});
}

/* trans to the group's tile, [64][64] */
static __device__ __forceinline__ void leave(bf16 *tile, const uint32_t x[4][4]) {
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) tile_store_trans<64>(tile, x[i], 16 * i, 16 * warp);
}
/* operands times y[column] */
static __device__ __forceinline__ void scale_operands(uint32_t x[4][4], const uint32_t v[4][4], const float *y,
                                                      float all) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 z = *(const float2 *)(y + i / 2 * 8 + 2 * t);
        const uint32_t p = v[i / 4][i % 4];
        x[i / 4][i % 4] = pack2(all * z.x * low(p), all * z.y * high(p));
    }
}

/* S between registers and memory: float [K][V] at the warp's first column */
template <int K> static __device__ __forceinline__ void state_in(float S[K / 8][4], const float *from, int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = from ? from[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] : 0.0f;
}
template <int K> static __device__ __forceinline__ void state_out(float *to, const float S[K / 8][4], int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] = S[n][i];
}
/* rows from `first` on of the identity */
template <int K> static __device__ __forceinline__ void state_one(float S[K / 8][4], int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = 8 * n + 2 * t + i % 2 == first + g + i / 2 * 8 ? 1.0f : 0.0f;
}

#endif
