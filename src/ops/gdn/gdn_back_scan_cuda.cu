/* gdn_back_scan_cuda.cu -- the two walks along a segment: the states again, and their gradients.
 *
 * A warp owns 16 columns of V for the whole walk and keeps its part of the turned state, [16][K], as fp32
 * accumulators. Turned, because packed accumulators are A fragments: K dh needs dh as an operand, and so no warp
 * waits for another's part of it. Warps share only the rows of the chunk, copied ahead into the other half of
 * shared memory. */
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
/* One warp's [16][8 n] accumulators, packed, as 16 rows of the stored state */
template <int n> static __device__ __forceinline__ void store_state(bf16 *to, int ld, const float (*S)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < n / 4; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * x + i][2 * half], S[4 * x + i][2 * half + 1]);
            gather_columns(w);
            *(uint4 *)(to + (int64_t)(g + 8 * half) * ld + 32 * x + 8 * t) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
}

/* ---- h: state before each chunk, S <- exp(G_last) S + K^T (eL v_new) ----
 * grid (segments x HV, V / 16 W, K / KT): W warps, a tile of 16 W x KT of the turned state, three chunks deep. */

enum { DEPTH = 3 };
template <int KT, int W> struct state_stage {
    bf16 k[C * (KT + 8)], v[C * (16 * W + 8)];
    float eL[C], eG[C];
};

template <int KT, int W>
static __device__ __forceinline__ void load_states(const struct gdn_back &a, state_stage<KT, W> *s, int c,
                                                   int hv) {
    const int row = a.chunk[c].row; /* never a segment's last chunk: all C rows are there */
    const float *gates = a.gates + ((int64_t)c * a.HV + hv) * GATES;
    copy_rows<32 * W>(s->k, KT + 8, a.k + ((int64_t)row * a.H + hv / a.group) * a.K + blockIdx.z * KT,
                      a.H * a.K, C, KT, C);
    copy_rows<32 * W>(s->v, 16 * W + 8, a.v_new + ((int64_t)row * a.HV + hv) * a.V + blockIdx.y * 16 * W,
                      a.HV * a.V, C, 16 * W, C);
    if (threadIdx.x < C / 4) {
        copy_async(s->eL + 4 * threadIdx.x, gates + EL + 4 * threadIdx.x);
        copy_async(s->eG + 4 * threadIdx.x, gates + EG + 4 * threadIdx.x);
    }
}

template <int KT, int W>
static __global__ void __launch_bounds__(32 * W) back_states(const struct gdn_back a) {
    state_stage<KT, W> *stage = (state_stage<KT, W> *)shared_memory();
    const int seg = blockIdx.x / a.HV, hv = blockIdx.x % a.HV, warp = threadIdx.x / 32;
    const int first = a.chunk_first[seg], last = a.chunk_first[seg + 1] - 1;
    float S[KT / 8][4] = {};
    for (int i = 0; i < DEPTH - 1; i++) {
        if (first + i < last) load_states(a, stage + i, first + i, hv);
        copy_commit();
    }
    for (int c = first; c < last; c++) {
        const state_stage<KT, W> *s = stage + (c - first) % DEPTH;
        copy_wait<DEPTH - 2>();
        __syncthreads(); /* the chunk is there, and the one before it is done with */
        if (c + DEPTH - 1 < last) load_states(a, stage + (c - first + DEPTH - 1) % DEPTH, c + DEPTH - 1, hv);
        copy_commit();
        const float end = s->eG[C - 1];
#pragma unroll
        for (int n = 0; n < KT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] *= end;
#pragma unroll
        for (int i = 0; i < C; i += 16) {
            uint32_t x[4], y[4];
            frag_a_turned(x, s->v, 16 * W + 8, 16 * warp, i);
            scale_columns(x, s->eL, i, 1.0f);
#pragma unroll
            for (int n = 0; n < KT / 16; n++) {
                frag_b(y, s->k, KT + 8, i, 16 * n);
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
static __device__ __forceinline__ void load_scan(const struct gdn_back &a, scan_stage<K, W> *s, int c,
                                                 int hv) {
    const struct hl_piece p = a.chunk[c];
    const int64_t head = (int64_t)c * a.HV + hv, row = (int64_t)p.row * a.HV + hv;
    const int64_t qk = ((int64_t)p.row * a.H + hv / a.group) * K;
    copy_rows<32 * W>(s->k, K + 8, a.k + qk, a.H * K, C, K, p.len);
    copy_rows<32 * W>(s->q, K + 8, a.q + qk, a.H * K, C, K, p.len);
    copy_rows<32 * W>(s->P, LC, a.P + head * C * C, C, C, C, C);
    copy_rows<32 * W>(s->A, LC, a.A + row * C, a.HV * C, C, C, p.len);
    copy_rows<32 * W>(s->out, 16 * W + 8, a.dout + row * a.V + blockIdx.y * 16 * W, a.HV * a.V, C, 16 * W,
                      p.len);
    if (threadIdx.x < 3 * C / 4) { /* EG, EL and BETA lie one after another on both sides */
        copy_async(s->eG + 4 * threadIdx.x, a.gates + head * GATES + EG + 4 * threadIdx.x);
    }
}

/* d[16][C] += X[16][C] T[C][C] with T lower triangular, X as A fragments */
static __device__ __forceinline__ void times_lower(float (*d)[4], const uint32_t (*x)[4], const bf16 *T) {
#pragma unroll
    for (int i = 0; i < C / 16; i++)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t y[4];
            frag_b(y, T, LC, 16 * i, 16 * j);
            mma_bf16(d[2 * j], x[i], y), mma_bf16(d[2 * j + 1], x[i], y + 2);
        }
}
static __device__ __forceinline__ void pack_a(uint32_t a[4], const float d[2][4]) {
    a[0] = pack2(d[0][0], d[0][1]), a[1] = pack2(d[0][2], d[0][3]);
    a[2] = pack2(d[1][0], d[1][1]), a[3] = pack2(d[1][2], d[1][3]);
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
            frag_b_turned(y, k, K + 8, 16 * kk, 16 * j);
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
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) put(room + (8 * j + 2 * t + i % 2) * ld + g + i / 2 * 8, X2[j][i]);
    __syncwarp();
    for (int r = l / 2; r < n; r += 16)
        *(uint4 *)(to + r * stride + l % 2 * 8) = *(const uint4 *)(room + r * ld + l % 2 * 8);
}

template <int K, int W>
static __global__ void __launch_bounds__(32 * W, 1) back_scan(const struct gdn_back a) {
    scan_stage<K, W> *stage = (scan_stage<K, W> *)shared_memory();
    const int seg = blockIdx.x / a.HV, hv = blockIdx.x % a.HV, warp = threadIdx.x / 32, t = threadIdx.x % 4;
    const int first = a.chunk_first[seg], last = a.chunk_first[seg + 1] - 1;
    const int64_t v0 = blockIdx.y * 16 * W + 16 * warp;
    const float scale = 1.0f / sqrtf((float)K);
    float dh[K / 8][4] = {};
    if (last >= first) load_scan(a, stage, last, hv);
    copy_commit();
    for (int c = last; c >= first; c--) {
        scan_stage<K, W> *s = stage + (last - c) % 2;
        if (c > first) load_scan(a, stage + (last - c + 1) % 2, c - 1, hv);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float dv[C / 8][4] = {}, X2[C / 8][4] = {};
        uint32_t x[C / 16][4], y[4], dO[C / 16][4];
        if (c < last) {
            store_state<K / 8>((bf16 *)a.dh + (((int64_t)c * a.HV + hv) * a.V + v0) * K, K, dh);
            through_state<K>(dv, dh, s->k, s->eL);
        }
#pragma unroll
        for (int i = 0; i < C / 16; i++) frag_a_turned(dO[i], s->out, 16 * W + 8, 16 * warp, 16 * i);
        times_lower(dv, dO, s->P);
#pragma unroll
        for (int i = 0; i < C / 16; i++) pack_a(x[i], dv + 2 * i);
        times_lower(X2, x, s->A);
        const struct hl_piece p = a.chunk[c];
        store_X2<16 * W + 8>((bf16 *)a.X2 + ((int64_t)p.row * a.HV + hv) * a.V + v0, a.HV * a.V, p.len, X2,
                             s->out + 16 * warp);
        if (c > first) {
            const float end = s->eG[C - 1];
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) dh[n][i] *= end;
#pragma unroll
            for (int i = 0; i < C / 16; i++) {
#pragma unroll
                for (int n = 2 * i; n < 2 * i + 2; n++) {
                    const float2 e = *(const float2 *)(s->eG + 8 * n + 2 * t);
                    const float2 b = *(const float2 *)(s->beta + 8 * n + 2 * t);
                    X2[n][0] *= -e.x * b.x, X2[n][1] *= -e.y * b.y;
                    X2[n][2] *= -e.x * b.x, X2[n][3] *= -e.y * b.y;
                }
                pack_a(x[i], X2 + 2 * i);
                scale_columns(dO[i], s->eG, 16 * i, scale);
#pragma unroll
                for (int n = 0; n < K / 16; n++) {
                    frag_b(y, s->q, K + 8, 16 * i, 16 * n);
                    mma_bf16(dh[2 * n], dO[i], y), mma_bf16(dh[2 * n + 1], dO[i], y + 2);
                    frag_b(y, s->k, K + 8, 16 * i, 16 * n);
                    mma_bf16(dh[2 * n], x[i], y), mma_bf16(dh[2 * n + 1], x[i], y + 2);
                }
            }
        }
        __syncthreads(); /* done with this chunk: the one after next may come */
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
