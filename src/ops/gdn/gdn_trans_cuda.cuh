/* gdn_trans_cuda.cuh -- shared by the scans over a segment's chunks: forward (ring, seqsplit) and reverse for the
 * gradients (back_scan).
 *
 * A consumer warpgroup owns 64 columns of V and holds everything transposed: the state as [64][K] in fp32 accumulators,
 * 16 rows per warp, whose packed pairs are directly A operands of the next wgmma. Lane 4g + t holds rows g and g + 8
 * (columns of V), and there columns (rows of a chunk, or of K) 2t, 2t + 1 of every 8. One more warpgroup of the block
 * is the producer, which copies in and out.
 *
 * Sequence split: long segments are scanned in splits, several at the same time. A split maps its initial state S to M
 * S + B: B is its scan from an empty state, M that from the identity with no values. All of these are scanned in
 * parallel; the states between the splits then follow sequentially (gdn_join_splits), and the splits are scanned again
 * with their outputs. The gradients run in reverse: their first split is the last of the segment. */
#ifndef HL_GDN_TRANS_CUH
#define HL_GDN_TRANS_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "cuda/wgmma.cuh"

enum { GROUP = 128, PANEL = HL_CHUNK * 64 };

/* The states between splits, [segs][HV][n][K][V], and the transitions M, [segs][HV][n][K][K]: states[p] is the initial
 * state of split p + 1, the last entry that of the first; transitions[p] is M of split p, for all but the first and the
 * last. */
struct gdn_seqsplit {
    float *states, *transitions;
    const struct hl_seg *seg; /* the first split starts from their states; NULL: from empty states */
    int64_t segs, S_off;
    int HV, V, n; /* n: splits of a segment */
};
/* Blocks that fill a GPU: a fixed number, so that every GPU gives the same bits. */
enum { GDN_BUSY = 128, GDN_FULL = 96 }; /* FULL: more would not help */
/* The number of splits for a segment of `chunks` if `wanted` are requested: fewer than three, or very short ones, are
 * slower than one. */
static inline int gdn_num_splits(int64_t wanted, int64_t chunks) {
    enum { LEAST = 4 };
    const int64_t n = wanted < chunks / LEAST ? wanted : chunks / LEAST;
    return n < 3 ? 1 : (int)n;
}
/* the first chunk of split p of n */
static inline __host__ __device__ int gdn_split_start(int chunks, int p, int n) {
    return (int)((int64_t)chunks * p / n);
}
/* A block of the scan of all splits but the last: first those for B, by tile of V, head, split and segment, then those
 * for M, by tile of K, of all splits but the first. The former take longer. */
struct gdn_split_unit {
    bool values; /* of B */
    int tile, hv, split, s;
};
static inline int64_t gdn_split_units(const struct gdn_seqsplit *a, int tiles_V, int tiles_K) {
    return a->segs * a->HV * ((a->n - 1) * tiles_V + (a->n - 2) * tiles_K);
}
static __device__ __forceinline__ struct gdn_split_unit gdn_split_unit_of(const struct gdn_seqsplit &a, int block,
                                                                          int tiles_V, int tiles_K) {
    const int of_B = (int)a.segs * a.HV * (a.n - 1) * tiles_V;
    const bool values = block < of_B;
    const int i = values ? block : block - of_B, tiles = values ? tiles_V : tiles_K, splits = a.n - 1 - !values;
    return {values, i % tiles, i / tiles % a.HV, i / tiles / a.HV % splits + !values, i / tiles / a.HV / splits};
}
/* M is often 0 before its split ends: once decays have underflowed, it stays 0, and the rest of the split is skipped. The
 * consumer warps note every few chunks whether their part of it is 0, before they release a chunk; the producer reads
 * that when it reuses the buffer, and passes the end on in place of a chunk. */
template <int DEPTH, int WARPS> struct gdn_vanished {
    enum { EVERY = 4 };
    int zero[DEPTH][WARPS];
    int end[DEPTH]; /* of each buffer: from this chunk on all are skipped */
    /* by each consumer warp after chunk c */
    template <int K> __device__ __forceinline__ void note(const float S[K / 8][4], int c) {
        bool zeros = false;
        if (c % EVERY == EVERY - 1) {
            bool any = false;
#pragma unroll
            for (int i = 0; i < K / 2; i++) any |= S[i / 4][i % 4] != 0.0f;
            zeros = __all_sync(0xffffffffu, !any);
        }
        if (threadIdx.x % 32 == 0) zero[c % DEPTH][threadIdx.x / 32] = zeros;
    }
    /* by the producer, before it copies chunk c in the place of chunk c - DEPTH */
    __device__ __forceinline__ bool ends(int c) {
        bool all = c >= DEPTH;
        for (int i = 0; i < WARPS && all; i++) all = zero[c % DEPTH][i];
        end[c % DEPTH] = all;
        return all;
    }
};
/* states[p] = transitions[p] states[p - 1] + states[p] */
extern "C" void HL_OP(gdn_join_splits)(struct hl_cuda *c, const struct gdn_seqsplit *a, int64_t K);

static __device__ __forceinline__ float *split_state(const struct gdn_seqsplit &a, int64_t K, int s, int hv,
                                                     int split) {
    return a.states + (((int64_t)s * a.HV + hv) * a.n + split) * K * a.V;
}
static __device__ __forceinline__ float *split_transition(const struct gdn_seqsplit &a, int64_t K, int s, int hv,
                                                          int split) {
    return a.transitions + (((int64_t)s * a.HV + hv) * a.n + split) * K * K;
}
/* a session's state, or NULL */
static __device__ __forceinline__ float *session_state(const struct gdn_seqsplit &a, int64_t K, int s, int hv) {
    return a.seg && a.seg[s].state ? (float *)(a.seg[s].state + a.S_off) + hv * K * a.V : NULL;
}

/* setmaxnreg: the producer warpgroup gives up registers, the consumers take them */
template <int K, int W> static __device__ __forceinline__ void producer_registers() {
    if (W == 2) setmaxnreg_dec<K == 256 ? 56 : 88>();
}
template <int K, int W> static __device__ __forceinline__ void consumer_registers() {
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

/* d = rows S, rows: k or q; in batches of STEP rows of S, of which two are in flight. AGAIN: S is packed a second time.
 * The compiler would keep the first packing and run out of registers, so the values are multiplied by a one that is
 * opaque to it. `to`, or NULL: S is stored there as well, from the warp's first row on, in panels of 64 rows of V and
 * 64 columns, swizzled as tiles in shared memory are. */
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
/* S += x k, k in panels that are STRIDE apart; started, not waited for */
template <int K, int STRIDE = PANEL>
static __device__ __forceinline__ void write_state(float S[K / 8][4], const uint32_t x[4][4], const bf16 *k) {
    enum { N = K < 128 ? K : 128 };
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int n = 0; n < K; n += N)
            wgmma_rs<N>(S + n / 8, x[c], operand<64, true, STRIDE>{k + n / 64 * STRIDE, 16 * c, 0});
}

/* x, transposed, to the warpgroup's tile [64][64] */
static __device__ __forceinline__ void store_trans(bf16 *tile, const uint32_t x[4][4]) {
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

/* S between registers and global memory: float [K][V] at the warp's first column */
template <int K> static __device__ __forceinline__ void load_state(float S[K / 8][4], const float *from, int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = from ? from[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] : 0.0f;
}
template <int K> static __device__ __forceinline__ void store_state(float *to, const float S[K / 8][4], int64_t V) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[(8 * n + 2 * t + i % 2) * V + g + i / 2 * 8] = S[n][i];
}
/* rows from `first` on of the identity */
template <int K> static __device__ __forceinline__ void identity_state(float S[K / 8][4], int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = 8 * n + 2 * t + i % 2 == first + g + i / 2 * 8 ? 1.0f : 0.0f;
}

#endif
