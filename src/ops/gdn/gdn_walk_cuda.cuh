/* gdn_walk_cuda.cuh -- from chunk to chunk (docs/math.md).
 *
 * With S the state before a chunk, G the cumulated log-decay inside it, s = K^{-1/2}, A and P from
 * gdn_prep:
 *     r = beta (v - exp(G) k S)    v_new = A r (= beta e)    out = s exp(G) q S + P v_new
 *     S = exp(G_last) S + k^T (exp(G_last - G) v_new)
 * A warpgroup owns 64 columns of V and has everything trans: S as [64][K] in fp32 accumulators, whose packed
 * pairs are operands of (k S) and (q S) as they are; so are those of r, of v_new and of v_new decayed. No
 * product waits for another warp, and nothing but out and v_new passes through shared memory. W such groups
 * of a block share what a chunk reads; one more group copies. gdn_ring_cuda.cu is the walk with its outputs,
 * gdn_split_cuda.cu that for the state alone, at the end. */
#ifndef HL_GDN_WALK_CUH
#define HL_GDN_WALK_CUH
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_prep_cuda.cuh"
#include "ops/gdn/gdn_trans_cuda.cuh"

/* Long sequences are cut into parts (gdn_split_cuda.cu); part p of n chunks has those from n p / parts on. */
struct gdn_walk {
    const bf16 *q, *k, *v, *A, *P;
    const float *gates;
    bf16 *out, *v_new; /* v_new NULL: not kept */
    float *m, *sums;   /* sums: [tiles][T][HV], of squares of v_new; NULL: one tile, m is written */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off, T, segs;
    int H, HV, V, parts;
    struct gdn_ends e;
};
extern "C" {
/* whether the chip can walk in a ring */
bool HL_OP(gdn_ring_fits)(struct hl_cuda *c, int64_t K, int64_t V);
/* the walk of all parts, from the states at the cuts; W 64 columns of V a block, 1 or 2 */
void HL_OP(gdn_ring)(struct hl_cuda *c, const struct gdn_walk *a, int64_t K, int W);
}

/* One block's way. */
struct way {
    int row, rows, first; /* the part's first row, the rows from there on; first chunk */
    int hv, col, tile, chunks;
    bool values; /* else there are none: v is 0 */
};
static __device__ __forceinline__ struct way way_of(const struct gdn_walk &a, int s, int part, int hv) {
    const int all = a.chunk_first[s + 1] - a.chunk_first[s];
    const int first = gdn_cut(all, part, a.parts), chunks = gdn_cut(all, part + 1, a.parts) - first;
    const int row = (int)a.seg[s].row + first * CHUNK, rows = (int)a.seg[s].len - first * CHUNK;
    return {row, rows, a.chunk_first[s] + first, hv, 0, 0, chunks, true};
}

/* Chunk c of the way: rows are counted, not looked up. */
struct rows_of {
    int64_t row; /* of [T][HV] */
    int len;
};
static __device__ __forceinline__ struct rows_of rows_at(const struct gdn_walk &a, const struct way &w, int c) {
    const int left = w.rows - c * CHUNK;
    return {(int64_t)(w.row + c * CHUNK) * a.HV + w.hv, left < CHUNK ? left : CHUNK};
}

/* ---- of 16 rows (columns of V) a warp, lane 4g + t holds g and g + 8, and there columns (rows
 * of the chunk) 2t, 2t + 1 of every 8 ---- */

/* r = beta (v - exp(G) k S), as operands */
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

#endif
