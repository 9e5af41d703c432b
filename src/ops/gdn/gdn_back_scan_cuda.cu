/* gdn_back_scan_cuda.cu -- the two walks along a segment: the states again, and their gradients.
 *
 * A warp owns 16 columns of V for the whole walk and keeps its part of the turned state, [16][K], as fp32
 * accumulators. Turned, because packed accumulators are A fragments: K dh needs dh as an operand, and so no
 * warp waits for another's part of it. Warps share only the rows of the chunk, copied ahead. */
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
/* One warp's [16][8 n] accumulators, packed, as 16 rows of the stored state. Every 32 columns lie in the
 * order in which lanes have them: 16 bytes of a lane are columns 2t, 2t + 1 of four tiles. */
template <int n> static __device__ __forceinline__ void store_state(bf16 *to, int ld, const float (*S)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < n / 4; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * x + i][2 * half], S[4 * x + i][2 * half + 1]);
            *(uint4 *)(to + (int64_t)(g + 8 * half) * ld + 32 * x + 8 * t) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
}

/* What a block walks along: the chunks of a segment, one value head. Rows are counted, not looked up: a load
 * from memory in every step would be waited for. */
struct walk {
    int hv, first, last; /* chunks */
    int64_t row, len;    /* of the segment */
};
static __device__ __forceinline__ walk walk_of(const struct gdn_back &a) {
    const int seg = blockIdx.x / a.HV;
    return {(int)(blockIdx.x % a.HV), a.chunk_first[seg], a.chunk_first[seg + 1] - 1, a.seg[seg].row,
            a.seg[seg].len};
}

/* ---- h: state before each chunk, S <- exp(G_last) S + K^T (eL v_new) ----
 * grid (segments x HV, V / 16 W, K / KT): W warps, a tile of 16 W x KT of the turned state, DEPTH chunks. */

enum { DEPTH = 3 };
template <int KT, int W> struct state_stage {
    bf16 k[C * (KT + 8)], v[C * (16 * W + 8)];
    float eL[C], eG[C];
};

template <int KT, int W>
static __device__ __forceinline__ void load_states(const struct gdn_back &a, const walk &w,
                                                   state_stage<KT, W> *s, int c) {
    const int hv = w.hv;
    const int64_t row = w.row + (int64_t)(c - w.first) * C; /* never the last chunk: all C rows are there */
    const float *gates = a.gates + ((int64_t)c * a.HV + hv) * GATES;
    copy_rows<32 * W, C, KT>(s->k, KT + 8, a.k + (row * a.H + hv / a.group) * a.K + blockIdx.z * KT,
                             a.H * a.K, C);
    copy_rows<32 * W, C, 16 * W>(s->v, 16 * W + 8, a.v_new + (row * a.HV + hv) * a.V + blockIdx.y * 16 * W,
                                 a.HV * a.V, C);
    if (threadIdx.x < C / 4) {
        copy_async(s->eL + 4 * threadIdx.x, gates + EL + 4 * threadIdx.x);
        copy_async(s->eG + 4 * threadIdx.x, gates + EG + 4 * threadIdx.x);
    }
}

template <int KT, int W>
static __global__ void __launch_bounds__(32 * W) back_states(const struct gdn_back a) {
    state_stage<KT, W> *stage = (state_stage<KT, W> *)shared_memory();
    const walk w = walk_of(a);
    const int hv = w.hv, first = w.first, last = w.last, warp = threadIdx.x / 32;
    float S[KT / 8][4] = {};
    for (int i = 0; i < DEPTH - 1; i++) {
        if (first + i < last) load_states(a, w, stage + i, first + i);
        copy_commit();
    }
    for (int c = first; c < last; c++) {
        const state_stage<KT, W> *s = stage + (c - first) % DEPTH;
        copy_wait<DEPTH - 2>();
        __syncthreads(); /* the chunk is there, and the one before it is done with */
        if (c + DEPTH - 1 < last) load_states(a, w, stage + (c - first + DEPTH - 1) % DEPTH, c + DEPTH - 1);
        copy_commit();
        const float end = s->eG[C - 1];
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] *= end;
#pragma unroll
        for (int i = 0; i < C; i += 16) {
            uint32_t x[4], y[4];
            fragment_a_turned(x, s->v, 16 * W + 8, i, 16 * warp);
            scale_columns(x, s->eL, i, 1.0f);
#pragma unroll
            for (int n = 0; n < KT / 16; n++) {
                fragment_b_turned(y, s->k, KT + 8, i, 16 * n);
                mma_bf16(S[2 * n], x, y), mma_bf16(S[2 * n + 1], x, y + 2);
            }
        }
        const int64_t to = (((int64_t)(c + 1) * a.HV + hv) * a.V + (blockIdx.y * W + warp) * 16) * a.K;
        store_state<KT / 8>((bf16 *)a.h + to + blockIdx.z * KT, a.K, S);
    }
}

template <int KT, int W> static void launch_states(struct hl_cuda *c, const struct gdn_back *a) {
    const dim3 grid((unsigned)(a->segs * a->HV), (unsigned)(a->V / (16 * W)), (unsigned)(a->K / KT));
    launch(c, back_states<KT, W>, grid, 32 * W, DEPTH * sizeof(state_stage<KT, W>), *a);
}
extern "C" void HL_OP(gdn_back_states)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    if (a->K % 128 == 0) (wide ? launch_states<128, 8> : launch_states<128, 4>)(c, a);
    else (wide ? launch_states<64, 8> : launch_states<64, 4>)(c, a);
}

/* ---- dh: gradient of the state after each chunk, and X2 ----
 * grid (segments x HV, V / 16 W): W warps, two chunks in shared memory. */

template <int K, int W> struct scan_stage {
    bf16 q[C * (K + 8)], k[C * (K + 8)], P[C * LC], A[C * LC];
    bf16 out[C * (16 * W + 8)]; /* dO, then X2 on its way out: each warp uses its own columns only */
    float eG[C], eL[C], beta[C];
};

template <int K, int W>
static __device__ __forceinline__ void load_scan(const struct gdn_back &a, const walk &w, scan_stage<K, W> *s,
                                                 int c) {
    const int64_t t = w.row + (int64_t)(c - w.first) * C, head = (int64_t)c * a.HV + w.hv;
    const int64_t row = t * a.HV + w.hv, qk = (t * a.H + w.hv / a.group) * K;
    const int n = c < w.last ? C : (int)(w.row + w.len - t);
    copy_rows<32 * W, C, K>(s->k, K + 8, a.k + qk, a.H * K, n);
    copy_rows<32 * W, C, K>(s->q, K + 8, a.q + qk, a.H * K, n);
    copy_rows<32 * W, C, C>(s->P, LC, a.P + head * C * C, C, C);
    copy_rows<32 * W, C, C>(s->A, LC, a.A + row * C, a.HV * C, n);
    copy_rows<32 * W, C, 16 * W>(s->out, 16 * W + 8, a.dout + row * a.V + blockIdx.y * 16 * W, a.HV * a.V, n);
    if (threadIdx.x < 3 * C / 4) { /* EG, EL and BETA lie one after another on both sides */
        copy_async(s->eG + 4 * threadIdx.x, a.gates + head * GATES + EG + 4 * threadIdx.x);
    }
}

/* d[16][C] += x T[16 i..][C] with T lower triangular */
static __device__ __forceinline__ void times_lower_rows(float (*d)[4], const uint32_t x[4], const bf16 *T,
                                                        int i) {
#pragma unroll
    for (int j = 0; j <= i; j++) {
        uint32_t y[4];
        fragment_b_turned(y, T, LC, 16 * i, 16 * j);
        mma_bf16(d[2 * j], x, y), mma_bf16(d[2 * j + 1], x, y + 2);
    }
}
/* d[16][K] += x Y[16 i..][K] */
template <int K>
static __device__ __forceinline__ void times_rows(float (*d)[4], const uint32_t x[4], const bf16 *Y, int i) {
#pragma unroll
    for (int n = 0; n < K / 16; n++) {
        uint32_t y[4];
        fragment_b_turned(y, Y, K + 8, 16 * i, 16 * n);
        mma_bf16(d[2 * n], x, y), mma_bf16(d[2 * n + 1], x, y + 2);
    }
}
static __device__ __forceinline__ void pack_a(uint32_t a[4], const float d[2][4]) {
    a[0] = pack2(d[0][0], d[0][1]), a[1] = pack2(d[0][2], d[0][3]);
    a[2] = pack2(d[1][0], d[1][1]), a[3] = pack2(d[1][2], d[1][3]);
}

/* of -eG beta d, by columns */
static __device__ __forceinline__ void pack_scaled(uint32_t a[4], const float d[2][4], const float *eG,
                                                   const float *beta) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 e = *(const float2 *)(eG + 8 * n + 2 * t), b = *(const float2 *)(beta + 8 * n + 2 * t);
        const float x = -e.x * b.x, y = -e.y * b.y;
        a[2 * n] = pack2(x * d[n][0], y * d[n][1]), a[2 * n + 1] = pack2(x * d[n][2], y * d[n][3]);
    }
}

/* dv_new turned += eL (K dh), turned */
template <int K>
static __device__ __forceinline__ void through_state(float (*dv)[4], const float (*dh)[4], const bf16 *k,
                                                     const float *eL) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++) {
        uint32_t x[4], y[4];
        pack_a(x, dh + 2 * kk);
#pragma unroll
        for (int j = 0; j < C / 16; j++) {
            fragment_b(y, k, K + 8, 16 * j, 16 * kk);
            mma_bf16(dv[2 * j], x, y), mma_bf16(dv[2 * j + 1], x, y + 2);
        }
    }
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const float2 e = *(const float2 *)(eL + 8 * j + 2 * t);
        dv[j][0] *= e.x, dv[j][1] *= e.y, dv[j][2] *= e.x, dv[j][3] *= e.y;
    }
}

/* X2 turned, [16][C], to its rows; room: the warp's columns of the tile in shared memory */
template <int ld>
static __device__ __forceinline__ void store_X2(bf16 *to, int64_t stride, int n, const float (*X2)[4],
                                                bf16 *room) {
    const int l = threadIdx.x % 32, g = l / 4, t = l % 4;
    __syncwarp(); /* all lanes have read what was in the room */
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) put(room + (8 * j + 2 * t + i % 2) * ld + g + i / 2 * 8, X2[j][i]);
    __syncwarp();
    to += l / 2 * stride + l % 2 * 8, room += l / 2 * ld + l % 2 * 8;
#pragma unroll
    for (int r = 0; r < C; r += 16)
        if (l / 2 + r < n) *(uint4 *)(to + r * stride) = *(const uint4 *)(room + r * ld);
}

template <int K, int W>
static __global__ void __launch_bounds__(32 * W, 1) back_scan(const struct gdn_back a) {
    scan_stage<K, W> *stage = (scan_stage<K, W> *)shared_memory();
    const walk w = walk_of(a);
    const int hv = w.hv, first = w.first, last = w.last, warp = threadIdx.x / 32;
    const int64_t v0 = blockIdx.y * 16 * W + 16 * warp;
    const float scale = 1.0f / sqrtf((float)K);
    float dh[K / 8][4] = {};
    if (last >= first) load_scan(a, w, stage, last);
    copy_commit();
    for (int c = last; c >= first; c--) {
        scan_stage<K, W> *s = stage + (last - c) % 2;
        copy_wait<0>();
        __syncthreads(); /* the chunk is there, and the one after it is done with */
        if (c > first) load_scan(a, w, stage + (last - c + 1) % 2, c - 1);
        copy_commit();
        float dv[C / 8][4] = {}, X2[C / 8][4] = {};
        uint32_t x[C / 16][4];
        if (c < last) {
            store_state<K / 8>((bf16 *)a.dh + (((int64_t)c * a.HV + hv) * a.V + v0) * K, K, dh);
            through_state<K>(dv, dh, s->k, s->eL);
            const float end = s->eG[C - 1];
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) dh[n][i] *= end;
        }
#pragma unroll
        for (int i = 0; i < C / 16; i++) { /* both uses of dO at once: P^T dO and Q^T (s eG dO) */
            uint32_t dO[4];
            fragment_a_turned(dO, s->out, 16 * W + 8, 16 * i, 16 * warp);
            times_lower_rows(dv, dO, s->P, i);
            scale_columns(dO, s->eG, 16 * i, scale);
            if (c > first) times_rows<K>(dh, dO, s->q, i);
        }
#pragma unroll
        for (int i = 0; i < C / 16; i++) pack_a(x[i], dv + 2 * i);
#pragma unroll
        for (int i = 0; i < C / 16; i++) times_lower_rows(X2, x[i], s->A, i);
        const int64_t t = w.row + (int64_t)(c - first) * C;
        store_X2<16 * W + 8>((bf16 *)a.X2 + (t * a.HV + hv) * a.V + v0, a.HV * a.V,
                             c < last ? C : (int)(w.row + w.len - t), X2, s->out + 16 * warp);
        if (c > first) {
#pragma unroll
            for (int i = 0; i < C / 16; i++) {
                pack_scaled(x[i], X2 + 2 * i, s->eG + 16 * i, s->beta + 16 * i);
                times_rows<K>(dh, x[i], s->k, i);
            }
        }
    }
}

template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct gdn_back *a) {
    const dim3 grid((unsigned)(a->segs * a->HV), (unsigned)(a->V / (16 * W)));
    launch(c, back_scan<K, W>, grid, 32 * W, 2 * sizeof(scan_stage<K, W>), *a);
}
extern "C" void HL_OP(gdn_back_scan)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    if (a->K == 256) (wide ? launch_scan<256, 8> : launch_scan<256, 4>)(c, a);
    else if (a->K == 128) (wide ? launch_scan<128, 8> : launch_scan<128, 4>)(c, a);
    else (wide ? launch_scan<64, 8> : launch_scan<64, 4>)(c, a);
}
#endif
