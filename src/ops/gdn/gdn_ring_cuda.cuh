/* gdn_ring_cuda.cuh -- one chunk of the forward scan (docs/math.md, "The delta rule", in chunks).
 *
 * With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}, A from gdn_prep:
 *     r = beta (v - exp(G) k S)    v_new = A r (= beta e)    out = s exp(G) q S + P v_new
 *     S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * A consumer warpgroup owns 64 columns of V and holds everything transposed (gdn_trans_cuda.cuh): S as [64][K] in fp32
 * accumulators, whose packed pairs are directly the operands of (k S) and (q S); so are those of r, of v_new and of
 * v_new decayed. No product waits for another warp, and only out and v_new go through shared memory. The W consumers of
 * a block share a chunk's inputs. gdn_ring_cuda.cu is the scan with outputs, gdn_seqsplit_cuda.cu the scan for only the
 * state at the end of a split. */
#ifndef HL_GDN_RING_CUH
#define HL_GDN_RING_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

struct gdn_ring_args {
    const bf16 *q, *k, *v, *A, *P; /* P NULL: formed by the scan */
    const float *gates;
    bf16 *out, *v_new; /* v_new NULL: not kept */
    float *m, *sums;   /* sums: [tiles][T][HV], of squares of v_new; NULL: one tile, m is written */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off, T, segs;
    int H, HV, V, splits; /* of a segment; split p of n chunks starts at n p / splits */
    struct gdn_seqsplit split;
};
extern "C" {
/* whether the GPU supports the tensor-core variants (Hopper), and they support these head sizes */
bool HL_OP(gdn_ring_fits)(struct hl_cuda *c, int64_t K, int64_t V);
/* the states between the splits */
void HL_OP(gdn_split_states)(struct hl_cuda *c, const struct gdn_ring_args *a, int64_t K);
}
/* The variant ring_split: the number of splits per segment, as many as fill the GPU, and the columns of V of its blocks,
 * 64 W. Wide blocks halve what is read per chunk, but need twice as many splits, and joining those takes longest with
 * few heads or large keys. */
struct gdn_ring_plan {
    int splits, W;
};
static inline struct gdn_ring_plan gdn_ring_plan_of(const struct hl_gdn *a) {
    enum { LEAST = 8 };
    const int64_t heads = a->rows->n * a->HV, chunks = hl_pieces(a->rows->dev->longest, CHUNK);
    const int W = a->K == 128 && a->V % 128 == 0 && heads * (a->V / 128) >= LEAST ? 2 : 1;
    return {gdn_num_splits(GDN_BUSY / (heads * (a->V / (64 * W))), chunks), W};
}

/* The chunks that a block scans. */
struct chunk_range {
    int row, rows, first; /* the split's first row, the rows from there on; first chunk */
    int hv, col, tile, chunks;
    bool values; /* else v is 0 */
};
static __device__ __forceinline__ struct chunk_range range_of(const struct gdn_ring_args &a, int s, int split, int hv) {
    const int all = a.chunk_first[s + 1] - a.chunk_first[s];
    const int first = gdn_split_start(all, split, a.splits), chunks = gdn_split_start(all, split + 1, a.splits) - first;
    const int row = (int)a.seg[s].row + first * CHUNK, rows = (int)a.seg[s].len - first * CHUNK;
    return {row, rows, a.chunk_first[s] + first, hv, 0, 0, chunks, true};
}

/* The rows of chunk c of a range, computed rather than loaded: a load would stall every step. */
struct chunk_rows {
    int64_t row; /* of [T][HV] */
    int len;
};
static __device__ __forceinline__ struct chunk_rows rows_of(const struct gdn_ring_args &a, const struct chunk_range &w,
                                                            int c) {
    const int left = w.rows - c * CHUNK;
    return {(int64_t)(w.row + c * CHUNK) * a.HV + w.hv, left < CHUNK ? left : CHUNK};
}

/* r = beta (v - exp(G) k S), as A operands */
static __device__ __forceinline__ void residual(uint32_t r[4][4], const float kS[CHUNK / 8][4], const bf16 *v,
                                                const float *gates) {
    const int t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        tile_load_a_trans<64>(r[c], v, 16 * c, 16 * warp);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = 16 * c + 8 * (i / 2) + 2 * t;
            const float2 beta = *(const float2 *)(gates + j), eG = *(const float2 *)(gates + CHUNK + j);
            const float *y = kS[2 * c + i / 2] + i % 2 * 2;
            r[c][i] = pack2(beta.x * (low(r[c][i]) - eG.x * y[0]), beta.y * (high(r[c][i]) - eG.y * y[1]));
        }
    }
}
/* d += x T^T, T [64][64] */
static __device__ __forceinline__ void times_square(float d[CHUNK / 8][4], const uint32_t x[4][4], const bf16 *T) {
#pragma unroll
    for (int c = 0; c < 4; c++) wgmma_rs<CHUNK>(d, x[c], operand<CHUNK, false>{T, 0, 16 * c});
}
/* v_new = A r as A operands, from d = k S; d is overwritten */
static __device__ __forceinline__ void solve_values(uint32_t v_new[4][4], float d[CHUNK / 8][4], const bf16 *v,
                                                    const bf16 *A, const float *gates) {
    residual(v_new, d, v, gates);
    wgmma_hold_a<4>(v_new);
    zero(d);
    wgmma_begin<CHUNK / 8>(d);
    times_square(d, v_new, A);
    wgmma_end<CHUNK / 8>(d);
    wgmma_hold_a<4>(v_new);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(v_new[i], d + 2 * i);
    wgmma_hold_a<4>(v_new);
}
/* S = end S + k^T (eL v_new), started, not waited for; decayed: the operand, live until completion. end: exp(G_last); k
 * in panels that are STRIDE apart */
template <int K, int STRIDE = PANEL>
static __device__ __forceinline__ void update_state(float S[K / 8][4], uint32_t decayed[4][4],
                                                    const uint32_t v_new[4][4], const bf16 *k, const float *gates,
                                                    float end) {
#pragma unroll
    for (int i = 0; i < K / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] *= end;
    scale_operands(decayed, v_new, gates + 2 * CHUNK, 1.0f);
    wgmma_hold_a<4>(decayed);
    wgmma_begin<K / 8>(S);
    write_state<K, STRIDE>(S, decayed, k);
}

#endif
