/* gdn_back_states_cuda.cu -- the states again: h, before each chunk, S <- exp(G_last) S + K^T (eL v_new).
 *
 * A warp owns 16 columns of V and keeps its part of the trans state, [16][KT], as fp32 accumulators. Long
 * segments are walked in parts: once for where each part ends when it starts from nothing, and by how much it
 * decays what was before; a part's start is then the sum of the ends before it, decayed. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
/* What a block walks along: chunks [from, end) of a segment, one value head. Rows are counted, not looked up:
 * a load from memory in every step would be waited for. */
struct walk {
    int hv, first, from, end, part;
    int64_t row, place; /* the segment's first row; [segs][HV][parts] */
};
static __device__ __forceinline__ walk walk_of(const struct gdn_back &a, int parts) {
    const int part = blockIdx.x % parts, hv = blockIdx.x / parts % a.HV, seg = blockIdx.x / parts / a.HV;
    const int first = a.chunk_first[seg], n = a.chunk_first[seg + 1] - first;
    const int from = gdn_cut(n, part, a.e.parts), end = gdn_cut(n, part + 1, a.e.parts);
    return {hv,
            first,
            first + from,
            first + (end < n - 1 ? end : n - 1),
            part,
            a.seg[seg].row,
            ((int64_t)seg * a.HV + hv) * a.e.parts};
}

/* grid (segments x HV x parts, V / 16 W, K / KT): W warps, a tile of 16 W x KT of the trans state, DEPTH
 * chunks. */

enum { DEPTH = 3 };
template <int KT, int W> struct state_stage {
    bf16 k[C * (KT + 8)], v[C * (16 * W + 8)];
    float eL[C], eG[C];
};

template <int KT, int W>
static __device__ __forceinline__ void load_states(const struct gdn_back &a, const walk &w, state_stage<KT, W> *s,
                                                   int c) {
    const int hv = w.hv;
    const int64_t row = w.row + (int64_t)(c - w.first) * C; /* never the last chunk: all C rows are there */
    const float *gates = a.gates + ((int64_t)c * a.HV + hv) * GATES;
    copy_rows<32 * W, C, KT>(s->k, KT + 8, a.k + (row * a.H + hv / a.group) * a.K + blockIdx.z * KT, a.H * a.K, C);
    copy_rows<32 * W, C, 16 * W>(s->v, 16 * W + 8, a.v_new + (row * a.HV + hv) * a.V + blockIdx.y * 16 * W, a.HV * a.V,
                                 C);
    if (threadIdx.x < C / 4) {
        copy_async(s->eL + 4 * threadIdx.x, gates + EL + 4 * threadIdx.x);
        copy_async(s->eG + 4 * threadIdx.x, gates + EG + 4 * threadIdx.x);
    }
}

/* the tile's ends, floats [V][K] of each part */
template <int KT, int W> static __device__ __forceinline__ float *end_at(const struct gdn_back &a, int64_t place) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, v = (blockIdx.y * W + threadIdx.x / 32) * 16 + g;
    return a.e.ends + (place * a.V + v) * a.K + blockIdx.z * KT + 2 * t;
}
template <int KT, int W>
static __device__ __forceinline__ void start_from_ends(const struct gdn_back &a, const walk &w, float (*S)[4]) {
    for (int p = 0; p < w.part; p++) {
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
static __device__ __forceinline__ void leave_end(const struct gdn_back &a, const walk &w, const float (*S)[4],
                                                 float decay) {
    float *end = end_at<KT, W>(a, w.place + w.part);
#pragma unroll
    for (int n = 0; n < KT / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(end + (int64_t)8 * h * a.K + 8 * n) = make_float2(S[n][2 * h], S[n][2 * h + 1]);
    if (blockIdx.y + blockIdx.z + threadIdx.x == 0) a.decays[w.place + w.part] = decay;
}

/* KEPT: h of all parts; else where all but the last end */
template <int KT, int W, bool KEPT>
static __global__ void __launch_bounds__(32 * W, 2) back_states(const struct gdn_back a) {
    state_stage<KT, W> *stage = (state_stage<KT, W> *)shared_memory();
    const walk w = walk_of(a, KEPT ? a.e.parts : a.e.parts - 1);
    const int warp = threadIdx.x / 32;
    float S[KT / 8][4] = {}, decay = 1.0f;
    pdl_wait();
    pdl_trigger();
    for (int i = 0; i < DEPTH - 1; i++) {
        if (w.from + i < w.end) load_states(a, w, stage + i, w.from + i);
        copy_commit();
    }
    if (KEPT) start_from_ends<KT, W>(a, w, S);
    for (int c = w.from; c < w.end; c++) {
        const state_stage<KT, W> *s = stage + (c - w.from) % DEPTH;
        copy_wait<DEPTH - 2>();
        __syncthreads(); /* the chunk is there, and the one before it is done with */
        if (c + DEPTH - 1 < w.end) load_states(a, w, stage + (c - w.from + DEPTH - 1) % DEPTH, c + DEPTH - 1);
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
        if (KEPT) store_state<KT / 8>((bf16 *)a.h + to + blockIdx.z * KT * 8, a.K, S);
    }
    if (!KEPT) leave_end<KT, W>(a, w, S, decay);
}

/* ends[p] = decays[p] ends[p - 1] + ends[p]: where parts start. Four numbers of the state a thread. */
static __global__ void __launch_bounds__(256) join_starts(const struct gdn_back a) {
    const int64_t n = (int64_t)a.K * a.V / 4, i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    if (i >= a.segs * a.HV * n) return;
    const int64_t place = i / n * a.e.parts;
    float4 *end = (float4 *)a.e.ends + place * n + i % n, S = *end;
    for (int p = 1; p < a.e.parts - 1; p++) {
        const float decay = a.decays[place + p];
        const float4 y = end[p * n];
        S.x = decay * S.x + y.x, S.y = decay * S.y + y.y, S.z = decay * S.z + y.z, S.w = decay * S.w + y.w;
        end[p * n] = S;
    }
}

template <int KT, int W> static void launch_ends(struct hl_cuda *c, const struct gdn_back *a) {
    const dim3 grid((unsigned)(a->segs * a->HV * (a->e.parts - 1)), (unsigned)(a->V / (16 * W)), (unsigned)(a->K / KT));
    launch_pdl(c, back_states<KT, W, false>, grid, 32 * W, DEPTH * sizeof(state_stage<KT, W>), *a);
}
template <int KT, int W> static void launch_states(struct hl_cuda *c, const struct gdn_back *a) {
    const unsigned heads = (unsigned)(a->segs * a->HV), parts = (unsigned)a->e.parts;
    const unsigned high = (unsigned)(a->V / (16 * W)), wide = (unsigned)(a->K / KT);
    const size_t room = DEPTH * sizeof(state_stage<KT, W>);
    if (parts > 1) launch_ends<KT, W>(c, a);
    launch_pdl(c, back_states<KT, W, true>, dim3(heads * parts, high, wide), 32 * W, room, *a);
}
extern "C" void HL_OP(gdn_back_states)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    if (a->K % 128 == 0) (wide ? launch_states<128, 8> : launch_states<128, 4>)(c, a);
    else (wide ? launch_states<64, 8> : launch_states<64, 4>)(c, a);
}
extern "C" void HL_OP(gdn_back_starts)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    struct gdn_back x = *a;
    x.e.parts = a->cuts, x.e.ends = a->starts;
    if (a->K % 128 == 0) (wide ? launch_ends<128, 8> : launch_ends<128, 4>)(c, &x);
    else (wide ? launch_ends<64, 8> : launch_ends<64, 4>)(c, &x);
    if (a->cuts > 2) launch_pdl(c, join_starts, blocks_for(a->segs * a->HV * a->K * a->V / 4, 256), 256, 0, x);
}
#endif
