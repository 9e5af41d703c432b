/* gdn_back_states_cuda.cu -- the states recomputed from v_new: h, before each chunk, S <- exp(G_last) S + K^T
 * (eL v_new).
 *
 * Grid: (segments x HV x splits, V / 16 W, K / KT). Block: W warps with a tile of 16 W x KT of the transposed state, 16
 * columns of V per warp, as fp32 accumulators; DEPTH chunks in shared memory, one __syncthreads per chunk. Long
 * segments are split along the sequence: a first scan gives each split's final state from an empty start, and its total
 * decay; a split's initial state is then the decayed sum of the earlier final states. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
/* The chunks [from, end) of a segment and value head that a block scans. Rows are computed rather than loaded: a load
 * would stall every step. */
struct chunk_range {
    int hv, first, from, end, split;
    int64_t row, place; /* the segment's first row; of [segs][HV][splits] */
};
static __device__ __forceinline__ chunk_range range_of(const struct gdn_back &a, int splits) {
    const int split = blockIdx.x % splits, hv = blockIdx.x / splits % a.HV, seg = blockIdx.x / splits / a.HV;
    const int first = a.chunk_first[seg], n = a.chunk_first[seg + 1] - first;
    const int from = gdn_split_start(n, split, a.split.n), end = gdn_split_start(n, split + 1, a.split.n);
    return {hv,
            first,
            first + from,
            first + (end < n - 1 ? end : n - 1),
            split,
            a.seg[seg].row,
            ((int64_t)seg * a.HV + hv) * a.split.n};
}

/* One warp's [16][8 n] accumulators, packed, as 16 rows of h. 8 rows of 32 columns are adjacent in memory: a
 * warp writes 512 contiguous bytes. */
template <int n> static __device__ __forceinline__ void store_h(bf16 *to, int ld, const float (*S)[4]) {
    to += threadIdx.x % 32 * 8;
#pragma unroll
    for (int x = 0; x < n / 4; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * x + i][2 * half], S[4 * x + i][2 * half + 1]);
            gather_columns(w);
            *(uint4 *)(to + 8 * half * ld + 256 * x) = make_uint4(w[0], w[1], w[2], w[3]);
        }
}

/* Rows [0, n) of `columns` numbers into shared memory, the rest of `rows` as zeros (zero-byte copies read nothing); the
 * caller calls copy_commit. */
template <int threads, int rows, int columns>
static __device__ __forceinline__ void copy_rows(bf16 *tile, int ld, const bf16 *from, int64_t stride, int n) {
    enum { UNITS = columns / 8, STEP = threads / UNITS }; /* a step is whole rows */
    const int r0 = threadIdx.x / UNITS, x = threadIdx.x % UNITS * 8;
    from += r0 * stride + x;
    tile += r0 * ld + x;
#pragma unroll
    for (int r = 0; r < rows; r += STEP) {
        if (rows % STEP == 0 || r0 + r < rows) copy_async(tile + r * ld, from, r0 + r < n ? 16 : 0);
        from += STEP * stride;
    }
}

enum { DEPTH = 3 };
template <int KT, int W> struct stage {
    bf16 k[C * (KT + 8)], v[C * (16 * W + 8)];
    float eL[C], eG[C];
};

template <int KT, int W>
static __device__ __forceinline__ void load_chunk(const struct gdn_back &a, const chunk_range &w, stage<KT, W> *s,
                                                  int c) {
    const int hv = w.hv;
    const int64_t row = w.row + (int64_t)(c - w.first) * C; /* never the last chunk: it has all C rows */
    const float *gates = a.gates + ((int64_t)c * a.HV + hv) * BACK_GATES;
    copy_rows<32 * W, C, KT>(s->k, KT + 8, a.k + (row * a.H + hv / a.group) * a.K + blockIdx.z * KT, a.H * a.K, C);
    copy_rows<32 * W, C, 16 * W>(s->v, 16 * W + 8, a.v_new + (row * a.HV + hv) * a.V + blockIdx.y * 16 * W, a.HV * a.V,
                                 C);
    if (threadIdx.x < C / 4) {
        copy_async(s->eL + 4 * threadIdx.x, gates + EL + 4 * threadIdx.x);
        copy_async(s->eG + 4 * threadIdx.x, gates + EG + 4 * threadIdx.x);
    }
}

/* final states of splits: floats [V][K] of each, at the lane's elements of the tile */
template <int KT, int W> static __device__ __forceinline__ float *end_at(const struct gdn_back &a, int64_t place) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, v = (blockIdx.y * W + threadIdx.x / 32) * 16 + g;
    return a.split.states + (place * a.V + v) * a.K + blockIdx.z * KT + 2 * t;
}
template <int KT, int W>
static __device__ __forceinline__ void start_from_ends(const struct gdn_back &a, const chunk_range &w, float (*S)[4]) {
    for (int p = 0; p < w.split; p++) {
        const float *end = end_at<KT, W>(a, w.place + p), decay = a.decays[w.place + p];
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 y = *(const float2 *)(end + (int64_t)8 * h * a.K + 8 * n);
                S[n][2 * h] = decay * S[n][2 * h] + y.x, S[n][2 * h + 1] = decay * S[n][2 * h + 1] + y.y;
            }
    }
}
template <int KT, int W>
static __device__ __forceinline__ void store_end(const struct gdn_back &a, const chunk_range &w, const float (*S)[4],
                                                 float decay) {
    float *end = end_at<KT, W>(a, w.place + w.split);
#pragma unroll
    for (int n = 0; n < KT / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(end + (int64_t)8 * h * a.K + 8 * n) = make_float2(S[n][2 * h], S[n][2 * h + 1]);
    if (blockIdx.y + blockIdx.z + threadIdx.x == 0) a.decays[w.place + w.split] = decay;
}

/* h0, at the lane's elements of the tile */
template <int KT, int W>
static __device__ __forceinline__ void start_from_h0(const struct gdn_back &a, const float *h0, float (*S)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, v = (blockIdx.y * W + threadIdx.x / 32) * 16 + g;
#pragma unroll
    for (int n = 0; n < KT / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            S[n][i] = h0[(int64_t)(blockIdx.z * KT + 8 * n + 2 * t + i % 2) * a.V + v + i / 2 * 8];
}

/* FINAL: stores h of all splits; otherwise the final states of all but the last */
template <int KT, int W, bool FINAL, bool STATES>
static __global__ void __launch_bounds__(32 * W, 2) back_states(const struct gdn_back a) {
    stage<KT, W> *stages = (stage<KT, W> *)shared_memory();
    const chunk_range w = range_of(a, FINAL ? a.split.n : a.split.n - 1);
    const int warp = threadIdx.x / 32;
    float S[KT / 8][4] = {}, decay = 1.0f;
    pdl_wait();
    pdl_trigger();
    for (int i = 0; i < DEPTH - 1; i++) {
        if (w.from + i < w.end) load_chunk(a, w, stages + i, w.from + i);
        copy_commit();
    }
    if (FINAL) start_from_ends<KT, W>(a, w, S);
    if constexpr (STATES)
        if (a.h0 && w.split == 0) {
            start_from_h0<KT, W>(a, a.h0 + w.place / a.split.n * a.K * a.V, S);
            const int64_t to = (((int64_t)w.first * a.HV + w.hv) * a.V + (blockIdx.y * W + warp) * 16) * a.K;
            if (FINAL && w.end >= w.from) store_h<KT / 8>((bf16 *)a.h + to + blockIdx.z * KT * 8, a.K, S);
        }
    for (int c = w.from; c < w.end; c++) {
        const stage<KT, W> *s = stages + (c - w.from) % DEPTH;
        copy_wait<DEPTH - 2>();
        __syncthreads(); /* the chunk is complete, and all warps are done with the previous one */
        if (c + DEPTH - 1 < w.end) load_chunk(a, w, stages + (c - w.from + DEPTH - 1) % DEPTH, c + DEPTH - 1);
        copy_commit();
        const float end = s->eG[C - 1];
        decay *= end;
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] *= end;
#pragma unroll
        for (int i = 0; i < C; i += 16) {
            uint32_t x[4], y[4];
            mma_load_a_trans(x, s->v, 16 * W + 8, i, 16 * warp);
            scale_columns(x, s->eL, i, 1.0f);
#pragma unroll
            for (int n = 0; n < KT / 16; n++) {
                mma_load_b_trans(y, s->k, KT + 8, i, 16 * n);
                mma_bf16(S[2 * n], x, y), mma_bf16(S[2 * n + 1], x, y + 2);
            }
        }
        const int64_t to = (((int64_t)(c + 1) * a.HV + w.hv) * a.V + (blockIdx.y * W + warp) * 16) * a.K;
        if (FINAL) store_h<KT / 8>((bf16 *)a.h + to + blockIdx.z * KT * 8, a.K, S);
    }
    if (!FINAL) store_end<KT, W>(a, w, S, decay);
}

/* ends[p] = decays[p] ends[p - 1] + ends[p]: the splits' initial states. Four elements of the state per thread. */
static __global__ void __launch_bounds__(256) join_ends(const struct gdn_back a) {
    const int64_t n = (int64_t)a.K * a.V / 4, i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    if (i >= a.segs * a.HV * n) return;
    const int64_t place = i / n * a.split.n;
    float4 *end = (float4 *)a.split.states + place * n + i % n, S = *end, next = end[n];
    for (int p = 1; p < a.split.n - 1; p++) {
        const float decay = a.decays[place + p];
        const float4 y = next;
        if (p + 2 < a.split.n) next = end[(p + 1) * n]; /* before the store, which it might follow otherwise */
        S.x = decay * S.x + y.x, S.y = decay * S.y + y.y, S.z = decay * S.z + y.z, S.w = decay * S.w + y.w;
        end[p * n] = S;
    }
}

template <int KT, int W> static void launch_ends(struct hl_cuda *c, const struct gdn_back *a) {
    const dim3 grid((unsigned)(a->segs * a->HV * (a->split.n - 1)), (unsigned)(a->V / (16 * W)), (unsigned)(a->K / KT));
    launch_pdl(c, back_states_given(a) ? back_states<KT, W, false, true> : back_states<KT, W, false, false>, grid,
               32 * W, DEPTH * sizeof(stage<KT, W>), *a);
}
template <int KT, int W> static void launch_states(struct hl_cuda *c, const struct gdn_back *a) {
    const unsigned heads = (unsigned)(a->segs * a->HV), splits = (unsigned)a->split.n;
    const unsigned high = (unsigned)(a->V / (16 * W)), wide = (unsigned)(a->K / KT);
    const size_t bytes = DEPTH * sizeof(stage<KT, W>);
    if (splits > 1) launch_ends<KT, W>(c, a);
    launch_pdl(c, back_states_given(a) ? back_states<KT, W, true, true> : back_states<KT, W, true, false>,
               dim3(heads * splits, high, wide), 32 * W, bytes, *a);
}
extern "C" void HL_OP(gdn_back_states)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    if (a->K % 128 == 0) (wide ? launch_states<128, 8> : launch_states<128, 4>)(c, a);
    else (wide ? launch_states<64, 8> : launch_states<64, 4>)(c, a);
}
extern "C" void HL_OP(gdn_back_fused_states)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    struct gdn_back x = *a;
    x.split.n = a->state_splits, x.split.states = a->fused_states;
    if (a->K % 128 == 0) (wide ? launch_ends<128, 8> : launch_ends<128, 4>)(c, &x);
    else (wide ? launch_ends<64, 8> : launch_ends<64, 4>)(c, &x);
    if (x.split.n > 2) launch_pdl(c, join_ends, blocks_for(a->segs * a->HV * a->K * a->V / 4, 256), 256, 0, x);
}
#endif
