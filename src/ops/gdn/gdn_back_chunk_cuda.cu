/* gdn_back_chunk_cuda.cu -- all gradients of a chunk, once the states and their gradients on both sides are known.
 *
 * grid (chunks x HV), 8 warps, two blocks on a multiprocessor. dO, X2, v_new and the states come through shared
 * memory in slices of 32 columns of V, three deep, in one line of steps:
 *     scores        dO v_new^T and X2 v_new^T  ->  dS and N in shared memory
 *     per tile of KT columns of K:
 *       before      Y1 and Y2 with h           ->  dQ and E; dQ is written
 *       after       U with dh                  ->  W; dK is written
 * so that no more than two tiles of accumulators are alive. */
#include "ops/gdn/gdn_back_cuda.cuh"

#ifndef HL_CUDA_F32
enum { WARPS = 8, THREADS = 32 * WARPS, SLICE = 32, LS = SLICE + 8, DEPTH = 3 };
enum { QDQ, KE, KU, KW, DOTS }; /* products of rows: q.dQ, k.E, k.U, k.W */

template <int KT> struct slice { /* steps of `scores` hold v_new in state */
    bf16 x[2][C * LS], state[SLICE * (KT + 8) > C *LS ? SLICE *(KT + 8) : C *LS];
};
template <int KT> struct room {
    slice<KT> stage[DEPTH];
    bf16 q[C * (KT + 8)], k[C * (KT + 8)], dS[C * LC], N[C * LC];
    union {
        float gates[2 * C];                    /* until dS and N are formed */
        float dot[DOTS][KT == 128 ? 4 : 2][C]; /* by warps side by side */
    };
    float eG[C], eL[C], beta[C], diagonal[C], vx[C], hdh[WARPS];
};

/* what a block works on */
struct place {
    int c, hv, n;      /* chunk, value head, rows */
    int64_t row, head; /* of [T][HV], of [chunks][HV] */
    int before, after; /* steps per tile: 0 where the state is zero */
    int slices;        /* of V */
};

/* Copies what step i needs. */
template <int KT>
static __device__ __forceinline__ void load_step(const struct gdn_back &a, const place &p, room<KT> *m,
                                                 int i) {
    slice<KT> *s = m->stage + i % DEPTH;
    const int64_t at = p.row * a.V, stride = (int64_t)a.HV * a.V;
    const bf16 *X2 = (const bf16 *)a.X2 + at, *state = (const bf16 *)a.h;
    if (i < p.slices) {
        copy_rows<THREADS>(s->x[0], LS, a.dout + at + i * SLICE, stride, C, SLICE, p.n);
        copy_rows<THREADS>(s->x[1], LS, X2 + i * SLICE, stride, C, SLICE, p.n);
        copy_rows<THREADS>(s->state, LS, a.v_new + at + i * SLICE, stride, C, SLICE, p.n);
        return;
    }
    const int steps = p.before + p.after, tile = (i - p.slices) / max(steps, 1);
    int j = (i - p.slices) - tile * steps;
    if (tile * KT >= a.K || steps == 0) return;
    if (j < p.before) {
        copy_rows<THREADS>(s->x[0], LS, a.dout + at + j * SLICE, stride, C, SLICE, p.n);
        copy_rows<THREADS>(s->x[1], LS, X2 + j * SLICE, stride, C, SLICE, p.n);
    } else {
        j -= p.before;
        state = (const bf16 *)a.dh;
        copy_rows<THREADS>(s->x[0], LS, a.v_new + at + j * SLICE, stride, C, SLICE, p.n);
    }
    copy_rows<THREADS>(s->state, KT + 8, state + (p.head * a.V + j * SLICE) * a.K + tile * KT, a.K, SLICE, KT,
                       SLICE);
}
/* Step i is there; the next but one is on its way. */
template <int KT>
static __device__ __forceinline__ const slice<KT> *begin_step(const struct gdn_back &a, const place &p,
                                                              room<KT> *m, int i) {
    copy_wait<DEPTH - 2>();
    __syncthreads();
    load_step(a, p, m, i + DEPTH - 1);
    copy_commit();
    return m->stage + i % DEPTH;
}

/* dv = beta X2, and v.X2 */
static __device__ __forceinline__ void value_rows(const struct gdn_back &a, const place &p, float *vx) {
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < p.n; r += WARPS) {
        const int64_t at = (p.row + (int64_t)r * a.HV) * a.V;
        const float beta = a.beta[p.row + (int64_t)r * a.HV];
        float sum = 0;
        for (int j = 8 * lane; j < a.V; j += 256) {
            float v[8], x[8];
            load_wide(v, a.v + at + j), load_wide(x, (const bf16 *)a.X2 + at + j);
            for (int i = 0; i < 8; i++) sum += v[i] * x[i], x[i] *= beta;
            store_wide(a.dv + at + j, x);
        }
        sum = warp_sum(sum);
        if (lane == 0) vx[r] = sum;
    }
}

/* dS and N from dO v_new^T and X2 v_new^T: a warp has 32 x 16 of both, none above the diagonal. Its steps are the
 * first ones. */
template <int KT>
static __device__ __forceinline__ void scores(const struct gdn_back &a, const place &p, room<KT> *m) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int i0 = warp / 4 * 32, j0 = warp % 4 * 16;
    float d[2][2][2][4] = {}; /* dO or X2; 16 rows; 8 columns */
    for (int step = 0; step < p.slices; step++) {
        const slice<KT> *s = begin_step(a, p, m, step);
        if (j0 >= i0 + 32) continue;
#pragma unroll
        for (int v = 0; v < SLICE; v += 16) {
            uint32_t x[4], y[4];
            frag_b_turned(y, s->state, LS, v, j0);
#pragma unroll
            for (int which = 0; which < 2; which++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    frag_a(x, s->x[which], LS, i0 + 16 * i, v);
                    mma_bf16(d[which][i][0], x, y), mma_bf16(d[which][i][1], x, y + 2);
                }
        }
    }
    const float scale = 1.0f / sqrtf((float)a.K);
#pragma unroll
    for (int x = 0; x < 8; x++) { /* pairs of columns */
        const int i = i0 + x / 4 * 16 + x / 2 % 2 * 8 + g, j = j0 + x % 2 * 8 + 2 * t;
        const float *dO = d[0][x / 4][x % 2] + x / 2 % 2 * 2, *X2 = d[1][x / 4][x % 2] + x / 2 % 2 * 2;
        const float D0 = j < i ? decay(m->gates, i, j) : 0.0f,
                    D1 = j + 1 < i ? decay(m->gates, i, j + 1) : 0.0f;
        *(uint32_t *)(m->dS + i * LC + j) = pack2(scale * dO[0] * D0, scale * dO[1] * D1);
        *(uint32_t *)(m->N + i * LC + j) = pack2(-X2[0] * D0, -X2[1] * D1);
        if (i == j) m->diagonal[i] = scale * dO[0];
        if (i == j + 1) m->diagonal[i] = scale * dO[1];
    }
}

/* A warp's part of a [C][KT] tile: MT times 16 rows from i0, 32 columns from n0 */
template <int KT> struct part {
    enum { MT = KT == 128 ? 2 : 1, SIDE = KT == 128 ? 4 : 2 };
    float d[MT][4][4];
};

/* d += X[rows][SLICE] Y[SLICE][columns] */
template <int KT>
static __device__ __forceinline__ void product(part<KT> *p, const bf16 *x, const uint32_t y[2][4], int i0,
                                               int v) {
#pragma unroll
    for (int i = 0; i < part<KT>::MT; i++) {
        uint32_t f[4];
        frag_a(f, x, LS, i0 + 16 * i, v);
        mma_bf16(p->d[i][0], f, y[0]), mma_bf16(p->d[i][1], f, y[0] + 2);
        mma_bf16(p->d[i][2], f, y[1]), mma_bf16(p->d[i][3], f, y[1] + 2);
    }
}
template <int KT>
static __device__ __forceinline__ void scale_rows(part<KT> *p, const float *x, float all, int i0) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < part<KT>::MT; i++) {
        const float lo = all * x[i0 + 16 * i + g], hi = all * x[i0 + 16 * i + 8 + g];
#pragma unroll
        for (int n = 0; n < 4; n++)
            p->d[i][n][0] *= lo, p->d[i][n][1] *= lo, p->d[i][n][2] *= hi, p->d[i][n][3] *= hi;
    }
}
/* dot[row] += rows of y times rows of p, this warp's columns */
template <int KT>
static __device__ __forceinline__ void dot_rows(float *dot, const part<KT> *p, const bf16 *y, int i0,
                                                int n0) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * part<KT>::MT; i++) {
        const int row = i0 + 8 * i + g;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t w = *(const uint32_t *)(y + row * (KT + 8) + n0 + 8 * n + 2 * t);
            const float *d = p->d[i / 2][n] + i % 2 * 2;
            sum += low(w) * d[0] + high(w) * d[1];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) dot[row] += sum;
    }
}
/* rows of p + diagonal y, as far as there are rows */
template <int KT>
static __device__ __forceinline__ void store_rows(bf16 *to, int64_t stride, int n_rows, const part<KT> *p,
                                                  const float *diagonal, const bf16 *y, int i0, int n0) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * part<KT>::MT; i++) {
        const int row = i0 + 8 * i + g;
        uint32_t w[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t x = *(const uint32_t *)(y + row * (KT + 8) + n0 + 8 * n + 2 * t);
            const float *d = p->d[i / 2][n] + i % 2 * 2;
            w[n] = pack2(d[0] + diagonal[row] * low(x), d[1] + diagonal[row] * high(x));
        }
        gather_columns(w);
        if (row < n_rows) *(uint4 *)(to + row * stride + n0 + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* Y1 and Y2 become dQ and E: through dS and N to the keys */
template <int KT>
static __device__ __forceinline__ void down_keys(part<KT> *dQ, part<KT> *E, const room<KT> *m, int i0,
                                                 int n0) {
#pragma unroll
    for (int j = 0; j < C / 16; j++) {
        uint32_t y[2][4], x[4];
        if (16 * j >= i0 + 16 * part<KT>::MT) continue; /* above the diagonal */
        frag_b(y[0], m->k, KT + 8, 16 * j, n0), frag_b(y[1], m->k, KT + 8, 16 * j, n0 + 16);
#pragma unroll
        for (int i = 0; i < part<KT>::MT; i++) {
            frag_a(x, m->dS, LC, i0 + 16 * i, 16 * j);
            mma_bf16(dQ->d[i][0], x, y[0]), mma_bf16(dQ->d[i][1], x, y[0] + 2);
            mma_bf16(dQ->d[i][2], x, y[1]), mma_bf16(dQ->d[i][3], x, y[1] + 2);
            frag_a(x, m->N, LC, i0 + 16 * i, 16 * j);
            mma_bf16(E->d[i][0], x, y[0]), mma_bf16(E->d[i][1], x, y[0] + 2);
            mma_bf16(E->d[i][2], x, y[1]), mma_bf16(E->d[i][3], x, y[1] + 2);
        }
    }
}
/* U becomes W: back from the queries and keys of later rows */
template <int KT>
static __device__ __forceinline__ void up_keys(part<KT> *W, const room<KT> *m, int i0, int n0) {
#pragma unroll
    for (int j = 0; j < C / 16; j++) {
        uint32_t q[2][4], k[2][4], x[4];
        if (16 * j + 16 <= i0) continue;
        frag_b(q[0], m->q, KT + 8, 16 * j, n0), frag_b(q[1], m->q, KT + 8, 16 * j, n0 + 16);
        frag_b(k[0], m->k, KT + 8, 16 * j, n0), frag_b(k[1], m->k, KT + 8, 16 * j, n0 + 16);
#pragma unroll
        for (int i = 0; i < part<KT>::MT; i++) {
            frag_a_turned(x, m->dS, LC, i0 + 16 * i, 16 * j);
            mma_bf16(W->d[i][0], x, q[0]), mma_bf16(W->d[i][1], x, q[0] + 2);
            mma_bf16(W->d[i][2], x, q[1]), mma_bf16(W->d[i][3], x, q[1] + 2);
            frag_a_turned(x, m->N, LC, i0 + 16 * i, 16 * j);
            scale_columns(x, m->beta, 16 * j, 1.0f);
            mma_bf16(W->d[i][0], x, k[0]), mma_bf16(W->d[i][1], x, k[0] + 2);
            mma_bf16(W->d[i][2], x, k[1]), mma_bf16(W->d[i][3], x, k[1] + 2);
        }
    }
}

/* h.dh over one slice: rows of both against each other, of which the diagonal of d counts. The order of columns
 * does not matter, so 16 bytes of a row are two fragments' worth. dh is in shared memory, h in device memory. */
template <int KT> struct state_dot {
    enum { PIECES = SLICE * KT / 8 / THREADS };
    uint4 h[PIECES];
};
template <int KT> static __device__ __forceinline__ void dot_load(state_dot<KT> *s, const bf16 *h, int K) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < state_dot<KT>::PIECES; i++) {
        const int x = warp * state_dot<KT>::PIECES + i; /* 8 rows and 32 columns */
        s->h[i] = *(const uint4 *)(h + (int64_t)(x % 4 * 8 + g) * K + x / 4 * 32 + 8 * t);
    }
}
template <int KT>
static __device__ __forceinline__ void dot_add(float d[4], const state_dot<KT> *s, const bf16 *dh) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < state_dot<KT>::PIECES; i++) {
        const int x = warp * state_dot<KT>::PIECES + i;
        const uint4 y = *(const uint4 *)(dh + (x % 4 * 8 + g) * (KT + 8) + x / 4 * 32 + 8 * t);
        const uint32_t a0[4] = {s->h[i].x, 0, s->h[i].y, 0}, a1[4] = {s->h[i].z, 0, s->h[i].w, 0};
        const uint32_t b0[2] = {y.x, y.y}, b1[2] = {y.z, y.w};
        mma_bf16(d, a0, b0), mma_bf16(d, a1, b1);
    }
}

/* One tile of KT columns of K: dQ, E, W, their rows and row products. Returns the next step. */
template <int KT>
static __device__ __forceinline__ int through_tile(const struct gdn_back &a, const place &p, room<KT> *m,
                                                   int tile, int step, float hdh[4]) {
    const int warp = threadIdx.x / 32, side = warp % part<KT>::SIDE;
    const int i0 = warp / part<KT>::SIDE * 16 * part<KT>::MT, n0 = side * 32, hk = p.hv / a.group;
    const int64_t qk = ((p.row / a.HV) * a.H + hk) * a.K + tile * KT, out = p.row * a.K + tile * KT;
    __syncthreads(); /* the last tile's rows are done with */
    copy_rows<THREADS>(m->q, KT + 8, a.q + qk, a.H * a.K, C, KT, p.n);
    copy_rows<THREADS>(m->k, KT + 8, a.k + qk, a.H * a.K, C, KT, p.n);
    part<KT> E = {};
    {
        part<KT> dQ = {};
        for (int i = 0; i < p.before; i++, step++) {
            const slice<KT> *s = begin_step(a, p, m, step);
#pragma unroll
            for (int v = 0; v < SLICE; v += 16) {
                uint32_t y[2][4];
                frag_b(y[0], s->state, KT + 8, v, n0), frag_b(y[1], s->state, KT + 8, v, n0 + 16);
                product<KT>(&dQ, s->x[0], y, i0, v), product<KT>(&E, s->x[1], y, i0, v);
            }
        }
        copy_commit();
        copy_wait<0>(); /* q and k too */
        __syncthreads();
        scale_rows<KT>(&dQ, m->eG, 1.0f / sqrtf((float)a.K), i0);
        scale_rows<KT>(&E, m->eG, -1.0f, i0);
        down_keys<KT>(&dQ, &E, m, i0, n0);
        dot_rows<KT>(m->dot[QDQ][side], &dQ, m->q, i0, n0);
        dot_rows<KT>(m->dot[KE][side], &E, m->k, i0, n0);
        store_rows<KT>(a.dq_head + out, (int64_t)a.HV * a.K, p.n, &dQ, m->diagonal, m->k, i0, n0);
    }
    part<KT> W = {};
    for (int i = 0; i < p.after; i++, step++) {
        const slice<KT> *s = begin_step(a, p, m, step);
        state_dot<KT> dot;
        if (p.before)
            dot_load<KT>(&dot, (const bf16 *)a.h + (p.head * a.V + i * SLICE) * a.K + tile * KT, a.K);
#pragma unroll
        for (int v = 0; v < SLICE; v += 16) {
            uint32_t y[2][4];
            frag_b(y[0], s->state, KT + 8, v, n0), frag_b(y[1], s->state, KT + 8, v, n0 + 16);
            product<KT>(&W, s->x[0], y, i0, v);
        }
        if (p.before) dot_add<KT>(hdh, &dot, s->state);
    }
    scale_rows<KT>(&W, m->eL, 1.0f, i0);
    dot_rows<KT>(m->dot[KU][side], &W, m->k, i0, n0);
    up_keys<KT>(&W, m, i0, n0);
    dot_rows<KT>(m->dot[KW][side], &W, m->k, i0, n0);
    scale_rows<KT>(&E, m->beta, 1.0f, i0);
#pragma unroll
    for (int i = 0; i < part<KT>::MT; i++)
#pragma unroll
        for (int n = 0; n < 16; n++) W.d[i][n / 4][n % 4] += E.d[i][n / 4][n % 4];
    store_rows<KT>(a.dk_head + out, (int64_t)a.HV * a.K, p.n, &W, m->diagonal, m->q, i0, n0);
    return step;
}

/* One warp: dbeta, and dg from the sums over the rows before and after; two rows a lane */
template <int KT>
static __device__ __forceinline__ void gate_rows(const struct gdn_back &a, const place &p, room<KT> *m) {
    const int lane = threadIdx.x % 32;
    float up[2], down[2], hdh = 0;
    for (int i = 0; i < WARPS; i++) hdh += m->hdh[i];
    hdh *= m->eG[C - 1];
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        float dot[DOTS] = {};
        for (int d = 0; d < DOTS; d++)
            for (int side = 0; side < part<KT>::SIDE; side++) dot[d] += m->dot[d][side][r];
        up[i] = r < p.n ? dot[QDQ] + m->beta[r] * dot[KE] - (dot[KW] - dot[KU]) : 0.0f;
        down[i] = r < p.n ? dot[KU] : 0.0f;
        if (r < p.n) a.dbeta[p.row + (int64_t)r * a.HV] = m->vx[r] + dot[KE];
    }
    float after = up[0] + up[1], before = down[0] + down[1]; /* sums from this lane on, up to this lane */
    for (int d = 1; d < 32; d *= 2) {
        const float x = __shfl_down_sync(0xffffffffu, after, d), y = __shfl_up_sync(0xffffffffu, before, d);
        if (lane + d < 32) after += x;
        if (lane >= d) before += y;
    }
    const float skipped = __shfl_up_sync(0xffffffffu, before, 1), base = lane ? skipped : 0.0f;
    if (!a.dg) return;
    const float later = __shfl_down_sync(0xffffffffu, after, 1), tail = lane < 31 ? later : 0.0f;
    if (2 * lane < p.n) a.dg[p.row + (int64_t)(2 * lane) * a.HV] = up[0] + (up[1] + tail) + base + hdh;
    if (2 * lane + 1 < p.n)
        a.dg[p.row + (int64_t)(2 * lane + 1) * a.HV] = up[1] + tail + (base + down[0]) + hdh;
}

template <int KT> static __global__ void __launch_bounds__(THREADS, 2) back_rest(const struct gdn_back a) {
    room<KT> *m = (room<KT> *)shared_memory();
    const int tid = threadIdx.x;
    place p;
    p.c = blockIdx.x / a.HV, p.hv = blockIdx.x % a.HV;
    const struct hl_piece piece = a.chunk[p.c];
    p.n = piece.len, p.row = (int64_t)piece.row * a.HV + p.hv, p.head = (int64_t)p.c * a.HV + p.hv;
    p.slices = a.V / SLICE;
    p.before = p.c > a.chunk_first[piece.seg] ? p.slices : 0;
    p.after = p.c + 1 < a.chunk_first[piece.seg + 1] ? p.slices : 0;
    for (int i = 0; i < DEPTH - 1; i++) {
        load_step(a, p, m, i);
        copy_commit();
    }
    const float *gates = a.gates + p.head * GATES;
    for (int i = tid; i < 2 * C; i += THREADS) m->gates[i] = gates[WHOLE + i];
    for (int i = tid; i < C; i += THREADS)
        m->eG[i] = gates[EG + i], m->eL[i] = gates[EL + i], m->beta[i] = gates[BETA + i];
    value_rows(a, p, m->vx);
    scores<KT>(a, p, m);
    __syncthreads();
    for (int i = tid; i < DOTS * part<KT>::SIDE * C; i += THREADS) ((float *)m->dot)[i] = 0;
    float hdh[4] = {};
    int step = p.slices;
    for (int tile = 0; tile < a.K / KT; tile++) step = through_tile<KT>(a, p, m, tile, step, hdh);
    const int g = tid % 32 / 4, t = tid % 4;
    const float sum = warp_sum(2 * t == g ? hdh[0] : 2 * t + 1 == g ? hdh[1] : 0.0f);
    if (tid % 32 == 0) m->hdh[tid / 32] = sum;
    __syncthreads();
    if (tid < 32) gate_rows<KT>(a, p, m);
}

extern "C" void HL_OP(gdn_back_rest)(struct hl_cuda *c, const struct gdn_back *a) {
    const unsigned grid = (unsigned)(a->chunks * a->HV);
    if (a->K % 128 == 0) launch(c, back_rest<128>, grid, THREADS, sizeof(room<128>), *a);
    else launch(c, back_rest<64>, grid, THREADS, sizeof(room<64>), *a);
}
#endif
