/* gdn_back_rows_cuda.cuh -- parts of gdn_back_chunk_cuda.cu: shared memory, the rows of a finished tile. */
#ifndef HL_GDN_BACK_ROWS_CUDA_CUH
#define HL_GDN_BACK_ROWS_CUDA_CUH
#include "ops/gdn/gdn_back_cuda.cuh"

enum { SLICE = 32, LS = SLICE + 8 };
/* products of rows; dg takes QDQ + UP from row i on, with UP = beta k.E - k.(W - U) */
enum { QDQ, KE, KU, UP, DOTS };

/* W warps lie on a [C][KT] tile in rows of SIDE; each has MT times 16 rows and 32 columns of it. On the
 * [C][C] scores it has the same rows and SJ columns. DEPTH slices are in shared memory. */
template <int KT, int W> struct part {
    enum {
        SIDE = KT / 32,
        MT = SIDE * C / (16 * W),
        SJ = C / SIDE,
        THREADS = 32 * W,
        DEPTH = W == 8 ? 4 : 2
    };
    float d[MT][4][4];
};
template <int KT, int W> struct scores {
    float dO[part<KT, W>::MT][part<KT, W>::SJ / 8][4], X2[part<KT, W>::MT][part<KT, W>::SJ / 8][4];
};

template <int KT> struct slice {
    bf16 dO[C * LS], X2[C * LS], v_new[C * LS], v[C * LS], h[SLICE * (KT + 8)], dh[SLICE * (KT + 8)];
};
template <int KT, int W> struct room {
    slice<KT> stage[part<KT, W>::DEPTH];
    bf16 q[C * (KT + 8)], k[C * (KT + 8)], dS[C * LC], N[C * LC], bN[C * LC]; /* bN: beta N */
    float gates[GATES], dot[DOTS][part<KT, W>::SIDE][C], diagonal[C], vx[C], hdh[W];
};

/* where a warp lies */
struct spot {
    int i0, n0, j0, side; /* first row, first column of the tile and of the scores */
};
template <int KT, int W> static __device__ __forceinline__ spot spot_of() {
    const int warp = threadIdx.x / 32, side = warp % part<KT, W>::SIDE;
    return {warp / part<KT, W>::SIDE * 16 * part<KT, W>::MT, 32 * side, part<KT, W>::SJ * side, side};
}

/* d[32 columns] += x y */
static __device__ __forceinline__ void mma_row(float (*d)[4], const uint32_t x[4], const uint32_t y[2][4]) {
    mma_bf16(d[0], x, y[0]), mma_bf16(d[1], x, y[0] + 2);
    mma_bf16(d[2], x, y[1]), mma_bf16(d[3], x, y[1] + 2);
}
/* dS and N, strictly below the diagonal */
template <int KT, int W>
static __device__ __forceinline__ void store_scores(const scores<KT, W> *f, room<KT, W> *m, float scale,
                                                    int i0, int j0) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int y = 0; y < part<KT, W>::SJ / 8; y++)
#pragma unroll
        for (int x = 0; x < 2 * part<KT, W>::MT; x++) {
            const int i = i0 + 8 * x + g, j = j0 + 8 * y + 2 * t;
            const float *dO = f->dO[x / 2][y] + x % 2 * 2, *X2 = f->X2[x / 2][y] + x % 2 * 2;
            float2 D = decay(m->gates, i, j);
            D.x = j < i ? D.x : 0.0f, D.y = j + 1 < i ? D.y : 0.0f;
            *(uint32_t *)(m->dS + i * LC + j) = pack2(scale * dO[0] * D.x, scale * dO[1] * D.y);
            const float n0 = -X2[0] * D.x, n1 = -X2[1] * D.y, beta = m->gates[BETA + i];
            *(uint32_t *)(m->N + i * LC + j) = pack2(n0, n1);
            *(uint32_t *)(m->bN + i * LC + j) = pack2(beta * n0, beta * n1);
            if (i == j) m->diagonal[i] = scale * dO[0];
            if (i == j + 1) m->diagonal[i] = scale * dO[1];
        }
}

/* Columns 8 i + 2 t, + 1 of every 32 go to 8 t + 2 i: where states have them. A thread takes 32 columns. */
template <int KT, int W> static __device__ __forceinline__ void reorder(bf16 *tile) {
#pragma unroll
    for (int i = 0; i < C * KT / 32; i += part<KT, W>::THREADS) {
        const int x = i + threadIdx.x;
        uint4 *p = (uint4 *)(tile + x / (KT / 32) * (KT + 8) + x % (KT / 32) * 32);
        const uint4 a = p[0], b = p[1], c = p[2], d = p[3];
        p[0] = make_uint4(a.x, b.x, c.x, d.x), p[1] = make_uint4(a.y, b.y, c.y, d.y);
        p[2] = make_uint4(a.z, b.z, c.z, d.z), p[3] = make_uint4(a.w, b.w, c.w, d.w);
    }
}

template <int KT, int W>
static __device__ __forceinline__ void scale_rows(part<KT, W> *p, const float *x, float all, int i0) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < part<KT, W>::MT; i++) {
        const float lo = all * x[i0 + 16 * i + g], hi = all * x[i0 + 16 * i + 8 + g];
#pragma unroll
        for (int n = 0; n < 4; n++)
            p->d[i][n][0] *= lo, p->d[i][n][1] *= lo, p->d[i][n][2] *= hi, p->d[i][n][3] *= hi;
    }
}
/* d += T k: through dS or N, lower triangular, to the keys */
template <int KT, int W>
static __device__ __forceinline__ void down_keys(part<KT, W> *p, const bf16 *T, const bf16 *k, int i0,
                                                 int n0) {
#pragma unroll
    for (int j = 0; j < C / 16; j++) {
        uint32_t y[2][4], x[4];
        fragment_b_turned(y[0], k, KT + 8, 16 * j, n0), fragment_b_turned(y[1], k, KT + 8, 16 * j, n0 + 16);
#pragma unroll
        for (int i = 0; i < part<KT, W>::MT; i++) {
            fragment_a(x, T, LC, i0 + 16 * i, 16 * j);
            mma_row(p->d[i], x, y);
        }
    }
}
/* W - U, 16 rows: back from the queries and keys of later rows */
template <int KT, int W>
static __device__ __forceinline__ void up_keys(float (*d)[4], const room<KT, W> *m, int i0, int n0) {
#pragma unroll
    for (int j = 0; j < C / 16; j++) {
        uint32_t y[2][4], x[4];
        fragment_b_turned(y[0], m->q, KT + 8, 16 * j, n0),
            fragment_b_turned(y[1], m->q, KT + 8, 16 * j, n0 + 16);
        fragment_a_turned(x, m->dS, LC, 16 * j, i0);
        mma_row(d, x, y);
        fragment_b_turned(y[0], m->k, KT + 8, 16 * j, n0),
            fragment_b_turned(y[1], m->k, KT + 8, 16 * j, n0 + 16);
        fragment_a_turned(x, m->bN, LC, 16 * j, i0);
        mma_row(d, x, y);
    }
}

static __device__ __forceinline__ float sum_quad(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
/* dot: a row's product over this warp's columns, added up from the first tile on; in lane 0 of four */
static __device__ __forceinline__ void add_dot(float *dot, float x, bool first) {
    x = sum_quad(x);
    if (threadIdx.x % 4 == 0) *dot = first ? x : *dot + x;
}
/* Rows of dQ, and q.dQ */
template <int KT, int W>
static __device__ __forceinline__ void finish_dQ(const part<KT, W> *dQ, room<KT, W> *m, bf16 *to,
                                                 int64_t stride, int rows, spot in, bool first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * part<KT, W>::MT; i++) {
        const int row = in.i0 + 8 * i + g, at = row * (KT + 8) + in.n0 + 2 * t;
        const float diagonal = m->diagonal[row];
        uint32_t out[4];
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t q = *(const uint32_t *)(m->q + at + 8 * n),
                           k = *(const uint32_t *)(m->k + at + 8 * n);
            const float *d = dQ->d[i / 2][n] + i % 2 * 2;
            sum += low(q) * d[0];
            sum += high(q) * d[1];
            out[n] = pack2(d[0] + diagonal * low(k), d[1] + diagonal * high(k));
        }
        if (row < rows)
            *(uint4 *)(to + row * stride + in.n0 + 8 * t) = make_uint4(out[0], out[1], out[2], out[3]);
        add_dot(&m->dot[QDQ][in.side][row], sum, first);
    }
}
/* Rows of dK = beta E + U + W, and the row products; W without U, which is still without eL */
template <int KT, int W>
static __device__ __forceinline__ void finish_dK(const part<KT, W> *E, const part<KT, W> *U, room<KT, W> *m,
                                                 bf16 *to, int64_t stride, int rows, spot in, bool first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float later[4][4];
#pragma unroll
    for (int i = 0; i < 2 * part<KT, W>::MT; i++) {
        if (i % 2 == 0) {
#pragma unroll
            for (int n = 0; n < 16; n++) later[n / 4][n % 4] = 0;
            up_keys<KT, W>(later, m, in.i0 + 8 * i, in.n0);
        }
        const int row = in.i0 + 8 * i + g, at = row * (KT + 8) + in.n0 + 2 * t;
        const float diagonal = m->diagonal[row], beta = m->gates[BETA + row], eL = m->gates[EL + row];
        float ke = 0, ku = 0, up = 0;
        uint32_t out[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t qq = *(const uint32_t *)(m->q + at + 8 * n),
                           kk = *(const uint32_t *)(m->k + at + 8 * n);
            const float q[2] = {low(qq), high(qq)}, k[2] = {low(kk), high(kk)};
            float d[2];
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int y = i % 2 * 2 + x;
                const float e = E->d[i / 2][n][y], u = eL * U->d[i / 2][n][y], l = later[n][y];
                ke += k[x] * e;
                ku += k[x] * u;
                up += k[x] * (beta * e - l);
                d[x] = (beta * e + l) + (u + diagonal * q[x]);
            }
            out[n] = pack2(d[0], d[1]);
        }
        if (row < rows)
            *(uint4 *)(to + row * stride + in.n0 + 8 * t) = make_uint4(out[0], out[1], out[2], out[3]);
        add_dot(&m->dot[KE][in.side][row], ke, first);
        add_dot(&m->dot[KU][in.side][row], ku, first);
        add_dot(&m->dot[UP][in.side][row], up, first);
    }
}
#endif
