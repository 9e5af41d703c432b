/* gdn_back_scan_cuda.cu -- the walk back along a segment: the gradients of the states, on chips without
 * barriers in shared memory.
 *
 * A warp owns 16 columns of V for the whole walk and keeps its part of the trans state, [16][K], as fp32
 * accumulators. Turned, because packed accumulators are A fragments: K dh needs dh as an operand, and so no
 * warp waits for another's part of it. Warps share only the rows of the chunk, copied ahead. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
/* What a block walks along: the chunks of a segment, one value head. Rows are counted, not looked up: a load
 * from memory in every step would be waited for. */
struct walk {
    int hv, first, last; /* chunks */
    int64_t row, len;    /* of the segment */
};
static __device__ __forceinline__ walk walk_of(const struct gdn_back &a) {
    const int seg = blockIdx.x / a.HV;
    return {(int)(blockIdx.x % a.HV), a.chunk_first[seg], a.chunk_first[seg + 1] - 1, a.seg[seg].row, a.seg[seg].len};
}

/* ---- dh: gradient of the state after each chunk, and X2 ----
 * grid (segments x HV, V / 16 W): W warps, two chunks in shared memory; products of warpgroups. Operands as
 * wide as K are panels of 64 columns, dO a panel for each group. */

template <int K, int W> struct scan_stage {
    bf16 q[C * K], k[C * K], P[C * C], A[C * C];
    bf16 out[C * 16 * W]; /* dO, then X2 on its way out: each warp uses its own columns only */
};
template <int K, int W> struct scan_room {
    scan_stage<K, W> stage[2];
    float gates[2][3 * C]; /* exp(G), exp(G_last - G), beta */
};

template <int K, int W>
static __device__ __forceinline__ void load_scan(const struct gdn_back &a, const walk &w, scan_room<K, W> *m, int at,
                                                 int c) {
    const int64_t t = w.row + (int64_t)(c - w.first) * C, head = (int64_t)c * a.HV + w.hv;
    const int64_t row = t * a.HV + w.hv, qk = (t * a.H + w.hv / a.group) * K;
    const int n = c < w.last ? C : (int)(w.row + w.len - t), i = threadIdx.x;
    scan_stage<K, W> *s = m->stage + at;
#pragma unroll
    for (int p = 0; p < K / 64; p++) {
        copy_panel<64, C, 32 * W>(s->k + p * PANEL, a.k + qk + 64 * p, a.H * K, n, i);
        copy_panel<64, C, 32 * W>(s->q + p * PANEL, a.q + qk + 64 * p, a.H * K, n, i);
    }
    copy_panel<C, C, 32 * W>(s->P, a.P + head * C * C, C, C, i);
    copy_panel<C, C, 32 * W>(s->A, a.A + row * C, a.HV * C, n, i);
#pragma unroll
    for (int p = 0; p < W / 4; p++)
        copy_panel<64, C, 32 * W>(s->out + p * PANEL, a.dout + row * a.V + blockIdx.y * 16 * W + 64 * p, a.HV * a.V, n,
                                  i);
    if (i < 3 * C / 4) /* EG, EL and BETA lie one after another on both sides */
        copy_async(m->gates[at] + 4 * i, a.gates + head * GATES + EG + 4 * i);
}

/* d[16 rows a warp][K] += x Y[16 i..][K] */
template <int K>
static __device__ __forceinline__ void times_rows(float (*d)[4], const uint32_t x[4], const bf16 *Y, int i) {
    enum { N = K < 128 ? K : 128 };
#pragma unroll
    for (int n = 0; n < K; n += N) wgmma_rs<N>(d + n / 8, x, operand<64, true, PANEL>{Y + n / 64 * PANEL, 16 * i, 0});
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

/* dv_new trans = eL (K dh), trans */
template <int K>
static __device__ __forceinline__ void through_state(float (*dv)[4], const float (*dh)[4], const bf16 *k,
                                                     const float *eL) {
    enum { BATCH = 4 };
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int p = 0; p < K / 16; p += BATCH) { /* a panel */
        uint32_t x[BATCH][4];
#pragma unroll
        for (int i = 0; i < BATCH; i++) pack_a(x[i], dh + 2 * (p + i));
        wgmma_hold_a<BATCH>(x);
        wgmma_begin<C / 8>(dv);
#pragma unroll
        for (int i = 0; i < BATCH; i++) wgmma_rs<C>(dv, x[i], operand<64, false>{k + p / 4 * PANEL, 0, 16 * i});
        wgmma_end<C / 8>(dv);
        wgmma_hold_a<BATCH>(x);
    }
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const float2 e = *(const float2 *)(eL + 8 * j + 2 * t);
        dv[j][0] *= e.x, dv[j][1] *= e.y, dv[j][2] *= e.x, dv[j][3] *= e.y;
    }
}
/* both uses of dO: dv += P^T dO and, where there is a state, dh += Q^T (s eG dO) */
template <int K>
static __device__ __forceinline__ void through_out(float (*dv)[4], float (*dh)[4], const bf16 *dO, const bf16 *P,
                                                   const bf16 *q, const float *eG, float scale, bool state) {
    uint32_t x[C / 16][4], y[C / 16][4];
#pragma unroll
    for (int i = 0; i < C / 16; i++) {
        tile_load_a_trans<64>(x[i], dO, 16 * i, threadIdx.x / 32 % 4 * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) y[i][j] = x[i][j];
        scale_columns(y[i], eG, 16 * i, scale);
    }
    wgmma_hold_a<C / 16>(x);
    wgmma_begin<C / 8>(dv);
#pragma unroll
    for (int i = 0; i < C / 16; i++) wgmma_rs<C>(dv, x[i], operand<C, true>{P, 16 * i, 0});
    wgmma_end<C / 8>(dv);
    wgmma_hold_a<C / 16>(x);
    if (!state) return;
    wgmma_hold_a<C / 16>(y);
    wgmma_begin<K / 8>(dh);
#pragma unroll
    for (int i = 0; i < C / 16; i++) times_rows<K>(dh, y[i], q, i);
    wgmma_end<K / 8>(dh);
    wgmma_hold_a<C / 16>(y);
}

/* dh, of the warp's 16 rows, as read_state leaves it */
template <int K> static __device__ __forceinline__ void store_dh(bf16 *to, const float (*dh)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < K / 32; x++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(dh[4 * x + i][2 * h], dh[4 * x + i][2 * h + 1]);
            gather_columns(w);
            *(uint4 *)(to + x / 2 * PANEL + tile_at<64>(g + 8 * h, x % 2 * 32 + 8 * t)) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
}

/* X2 trans, [16][C], to its rows; room: the group's panel of the tile in shared memory */
static __device__ __forceinline__ void store_X2(bf16 *to, int64_t stride, int n, const float (*X2)[4], bf16 *room) {
    const int l = threadIdx.x % 32, g = l / 4, t = l % 4, col = threadIdx.x / 32 % 4 * 16;
    __syncwarp(); /* all lanes have read what was in the room */
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) put(room + tile_at<64>(8 * j + 2 * t + i % 2, col + g + i / 2 * 8), X2[j][i]);
    __syncwarp();
    to += l / 2 * stride + l % 2 * 8;
#pragma unroll
    for (int r = 0; r < C; r += 16)
        if (l / 2 + r < n)
            *(uint4 *)(to + r * stride) = *(const uint4 *)(room + tile_at<64>(l / 2 + r, col + l % 2 * 8));
}

template <int K, int W> static __global__ void __launch_bounds__(32 * W, 1) back_scan(const struct gdn_back a) {
    scan_room<K, W> *m = (scan_room<K, W> *)shared_tiles();
    const walk w = walk_of(a);
    const int hv = w.hv, first = w.first, last = w.last, warp = threadIdx.x / 32;
    const int64_t v0 = blockIdx.y * 16 * W + 16 * warp;
    const float scale = 1.0f / sqrtf((float)K);
    float dh[K / 8][4] = {};
    if (last >= first) load_scan(a, w, m, 0, last);
    copy_commit();
    for (int c = last; c >= first; c--) {
        const int now = (last - c) % 2;
        scan_stage<K, W> *s = m->stage + now;
        const float *eG = m->gates[now], *eL = eG + C, *beta = eL + C;
        bf16 *out = s->out + warpgroup_index() * PANEL;
        copy_wait<0>();
        fence_proxy_async();
        __syncthreads(); /* the chunk is there, and the one after it is done with */
        if (c > first) load_scan(a, w, m, 1 - now, c - 1);
        copy_commit();
        float dv[C / 8][4] = {}, X2[C / 8][4] = {};
        uint32_t x[C / 16][4];
        if (c < last) {
            store_dh<K>((bf16 *)a.dh + (((int64_t)c * a.HV + hv) * a.V + v0 / 64 * 64) * K + v0 % 64 * 64, dh);
            through_state<K>(dv, dh, s->k, eL);
            const float end = eG[C - 1];
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) dh[n][i] *= end;
        }
        through_out<K>(dv, dh, out, s->P, s->q, eG, scale, c > first);
#pragma unroll
        for (int i = 0; i < C / 16; i++) pack_a(x[i], dv + 2 * i);
        wgmma_hold_a<C / 16>(x);
        wgmma_begin<C / 8>(X2);
#pragma unroll
        for (int i = 0; i < C / 16; i++) wgmma_rs<C>(X2, x[i], operand<C, true>{s->A, 16 * i, 0});
        wgmma_end<C / 8>(X2);
        wgmma_hold_a<C / 16>(x);
        const int64_t t = w.row + (int64_t)(c - first) * C;
        store_X2((bf16 *)a.X2 + (t * a.HV + hv) * a.V + v0, a.HV * a.V, c < last ? C : (int)(w.row + w.len - t), X2,
                 out);
        if (c > first) {
#pragma unroll
            for (int i = 0; i < C / 16; i++) pack_scaled(x[i], X2 + 2 * i, eG + 16 * i, beta + 16 * i);
            wgmma_hold_a<C / 16>(x);
            wgmma_begin<K / 8>(dh);
#pragma unroll
            for (int i = 0; i < C / 16; i++) times_rows<K>(dh, x[i], s->k, i);
            wgmma_end<K / 8>(dh);
            wgmma_hold_a<C / 16>(x);
        }
    }
}

template <int K, int W> static void launch_scan(struct hl_cuda *c, const struct gdn_back *a) {
    const dim3 grid((unsigned)(a->segs * a->HV), (unsigned)(a->V / (16 * W)));
    launch(c, back_scan<K, W>, grid, 32 * W, sizeof(scan_room<K, W>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(gdn_back_scan)(struct hl_cuda *c, const struct gdn_back *a) {
    const bool wide = a->V % 128 == 0;
    if (a->K == 256) (wide ? launch_scan<256, 8> : launch_scan<256, 4>)(c, a);
    else if (a->K == 128) (wide ? launch_scan<128, 8> : launch_scan<128, 4>)(c, a);
    else (wide ? launch_scan<64, 8> : launch_scan<64, 4>)(c, a);
}
#endif
