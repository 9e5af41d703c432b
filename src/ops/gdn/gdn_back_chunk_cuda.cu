/* gdn_back_chunk_cuda.cu -- all gradients of a chunk, once the states and their gradients around it are
 * known.
 *
 * Blocks stay on their multiprocessor and walk over (chunk, value head), and in each over tiles of KT columns
 * of K. Slices of 32 columns of V -- of dO, X2, v_new, v and the turned states -- come through shared memory,
 * DEPTH deep, without a stop between tiles or chunks: while a block finishes the rows of one tile, the next
 * is under way. In a slice: dO h^T, X2 h^T, v_new dh^T for the tile; h.dh; with the first tile dO v_new^T and
 * X2 v_new^T for dS and N, dv and v.X2. Where there is no state it is zeros. q and k are put into the order
 * of the states' columns (store_state), and so every lane ends up with eight neighbouring columns of dQ and
 * dK. */
#include "ops/gdn/gdn_back_rows_cuda.cuh"

#ifndef HL_CUDA_F32
/* What a block works on: chunk and value head, item = chunk x HV + hv */
struct place {
    int item, row;     /* row: of [T][HV] */
    int hv, n;         /* n rows */
    int before, after; /* bytes to copy at a time of h and dh: 16, or none where the state is zero */
};
static __device__ __forceinline__ place place_of(const struct gdn_back &a, int item) {
    const int c = item / a.HV, hv = item % a.HV;
    const struct hl_piece p = a.chunk[c];
    const bool first = c == a.chunk_first[p.seg], last = c + 1 == a.chunk_first[p.seg + 1];
    return {item, p.row * a.HV + hv, hv, p.len, first ? 0 : 16, last ? 0 : 16};
}

/* The slice to be copied next */
struct cursor {
    int item, row, before, after, n;
    int tile, slice, step;
};
static __device__ __forceinline__ void seek(const struct gdn_back &a, cursor *c, int item) {
    c->tile = c->slice = 0;
    c->item = item;
    if (item >= a.items) return;
    const place p = place_of(a, item);
    c->row = p.row, c->n = p.n, c->before = p.before, c->after = p.after;
}
template <int KT, int W>
static __device__ __forceinline__ void copy_slice(const struct gdn_back &a, cursor *c, slice<KT> *s) {
    enum { THREADS = part<KT, W>::THREADS, ROWS = THREADS / (KT / 8) };
    if (c->item >= a.items) return;
#pragma unroll
    for (int i = 0; i < C; i += THREADS / 4) {
        const int r = i + threadIdx.x / 4, y = threadIdx.x % 4 * 8, to = r * LS + y, fill = r < c->n ? 16 : 0;
        const int64_t x = (int64_t)(c->row + r * a.HV) * a.V + c->slice * SLICE + y;
        copy_async(s->dO + to, a.dout + x, fill);
        copy_async(s->X2 + to, (const bf16 *)a.X2 + x, fill);
        copy_async(s->v_new + to, a.v_new + x, fill);
        if (c->tile == 0) copy_async(s->v + to, a.v + x, fill);
    }
    const int r = threadIdx.x / (KT / 8), y = threadIdx.x % (KT / 8) * 8;
    int64_t state = ((int64_t)c->item * a.V + c->slice * SLICE + r) * a.K + c->tile * KT + y;
#pragma unroll
    for (int i = 0; i < SLICE; i += ROWS) {
        copy_async(s->h + (r + i) * (KT + 8) + y, (const bf16 *)a.h + state, c->before);
        copy_async(s->dh + (r + i) * (KT + 8) + y, (const bf16 *)a.dh + state, c->after);
        state += ROWS * a.K;
    }
    if (++c->slice < a.V / SLICE) return;
    c->slice = 0;
    if (++c->tile == a.K / KT) seek(a, c, c->item + gridDim.x);
}

/* q and k of the tile, and with the first one the gates */
template <int KT, int W>
static __device__ __forceinline__ void copy_tile(const struct gdn_back &a, const place &p, room<KT, W> *m,
                                                 int tile) {
    enum { THREADS = part<KT, W>::THREADS };
    const int64_t qk = ((int64_t)(p.row / a.HV) * a.H + p.hv / a.group) * a.K + tile * KT;
    copy_rows<THREADS, C, KT>(m->q, KT + 8, a.q + qk, a.H * a.K, p.n);
    copy_rows<THREADS, C, KT>(m->k, KT + 8, a.k + qk, a.H * a.K, p.n);
    if (tile == 0 && threadIdx.x < GATES / 4)
        copy_async(m->gates + 4 * threadIdx.x, a.gates + (int64_t)p.item * GATES + 4 * threadIdx.x);
}

/* dO h^T, X2 h^T, v_new dh^T */
template <int KT, int W>
static __device__ __forceinline__ void products(const slice<KT> *s, int i0, int n0, part<KT, W> *dQ,
                                                part<KT, W> *E, part<KT, W> *U) {
#pragma unroll
    for (int v = 0; v < SLICE; v += 16) {
        uint32_t h[2][4], dh[2][4], x[4];
        fragment_b_turned(h[0], s->h, KT + 8, v, n0), fragment_b_turned(h[1], s->h, KT + 8, v, n0 + 16);
        fragment_b_turned(dh[0], s->dh, KT + 8, v, n0), fragment_b_turned(dh[1], s->dh, KT + 8, v, n0 + 16);
#pragma unroll
        for (int i = 0; i < part<KT, W>::MT; i++) {
            fragment_a(x, s->dO, LS, i0 + 16 * i, v);
            mma_row(dQ->d[i], x, h);
            fragment_a(x, s->X2, LS, i0 + 16 * i, v);
            mma_row(E->d[i], x, h);
            fragment_a(x, s->v_new, LS, i0 + 16 * i, v);
            mma_row(U->d[i], x, dh);
        }
    }
}
/* dO v_new^T, X2 v_new^T */
template <int KT, int W>
static __device__ __forceinline__ void score_products(const slice<KT> *s, int i0, int j0, scores<KT, W> *f) {
#pragma unroll
    for (int v = 0; v < SLICE; v += 16) {
        uint32_t y[part<KT, W>::SJ / 16][4], x[4], z[4];
#pragma unroll
        for (int j = 0; j < part<KT, W>::SJ / 16; j++) fragment_b(y[j], s->v_new, LS, j0 + 16 * j, v);
#pragma unroll
        for (int i = 0; i < part<KT, W>::MT; i++) {
            fragment_a(x, s->dO, LS, i0 + 16 * i, v);
            fragment_a(z, s->X2, LS, i0 + 16 * i, v);
#pragma unroll
            for (int j = 0; j < part<KT, W>::SJ / 8; j++) {
                mma_bf16(f->dO[i][j], x, y[j / 2] + j % 2 * 2);
                mma_bf16(f->X2[i][j], z, y[j / 2] + j % 2 * 2);
            }
        }
    }
}

/* h.dh over one slice: rows of both against each other, of which the diagonal of d counts. The order of
 * columns does not matter, so 16 bytes of a row are two fragments' worth. */
template <int KT, int W> static __device__ __forceinline__ void dot_states(float d[4], const slice<KT> *s) {
    enum { PIECES = SLICE * KT / 8 / part<KT, W>::THREADS };
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int i = warp * PIECES + j, at = (i % 4 * 8 + g) * (KT + 8) + i / 4 * 32 + 8 * t;
        const uint4 x = *(const uint4 *)(s->h + at), y = *(const uint4 *)(s->dh + at);
        const uint32_t a0[4] = {x.x, 0, x.y, 0}, a1[4] = {x.z, 0, x.w, 0};
        const uint32_t b0[2] = {y.x, y.y}, b1[2] = {y.z, y.w};
        mma_bf16(d, a0, b0), mma_bf16(d, a1, b1);
    }
}

/* dv = beta X2; v.X2 of this thread's pieces of rows, added to vx */
template <int KT, int W>
static __device__ __forceinline__ void values(const struct gdn_back &a, const place &p, const slice<KT> *s,
                                              int i, const float *beta, float *vx) {
    enum { ROWS = part<KT, W>::THREADS / 4 };
#pragma unroll
    for (int j = 0; j < C / ROWS; j++) {
        const int r = j * ROWS + threadIdx.x / 4, y = threadIdx.x % 4 * 8;
        float v[8], x[8];
        load_wide(v, s->v + r * LS + y), load_wide(x, s->X2 + r * LS + y);
#pragma unroll
        for (int n = 0; n < 8; n++) vx[j] += v[n] * x[n], x[n] *= beta[j];
        if (r < p.n) store_wide(a.dv + (int64_t)(p.row + r * a.HV) * a.V + i * SLICE + y, x);
    }
}

/* One warp: dbeta, and dg from the sums over the rows before and after; two rows a lane */
template <int KT, int W>
static __device__ __forceinline__ void gate_rows(const struct gdn_back &a, const place &p, room<KT, W> *m) {
    const int lane = threadIdx.x % 32;
    float up[2], down[2], hdh = 0;
    for (int i = 0; i < W; i++) hdh += m->hdh[i];
    hdh *= m->gates[EG + C - 1];
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        float dot[DOTS] = {};
        for (int d = 0; d < DOTS; d++)
            for (int side = 0; side < part<KT, W>::SIDE; side++) dot[d] += m->dot[d][side][r];
        up[i] = r < p.n ? dot[QDQ] + dot[UP] : 0.0f;
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

/* The rows of one tile from its sums over V: dQ, dK and the row products */
template <int KT, int W>
static __device__ __forceinline__ void finish_tile(const struct gdn_back &a, const place &p, room<KT, W> *m,
                                                   int tile, float scale, spot in, part<KT, W> *dQ,
                                                   part<KT, W> *E, const part<KT, W> *U) {
    const int64_t out = (int64_t)p.row * a.K + tile * KT, stride = (int64_t)a.HV * a.K;
    scale_rows<KT, W>(dQ, m->gates + EG, scale, in.i0);
    scale_rows<KT, W>(E, m->gates + EG, -1.0f, in.i0);
    down_keys<KT, W>(dQ, m->dS, m->k, in.i0, in.n0);
    down_keys<KT, W>(E, m->N, m->k, in.i0, in.n0);
    finish_dQ<KT, W>(dQ, m, a.dq_head + out, stride, p.n, in, tile == 0);
    finish_dK<KT, W>(E, U, m, a.dk_head + out, stride, p.n, in, tile == 0);
}

template <int KT, int W>
static __global__ void __launch_bounds__(32 * W, 8 / W) back_rest(const struct gdn_back a) {
    enum { DEPTH = part<KT, W>::DEPTH, PIECES = C * 4 / (32 * W) };
    room<KT, W> *m = (room<KT, W> *)shared_memory();
    const spot in = spot_of<KT, W>();
    const int tid = threadIdx.x, g = tid % 32 / 4, t = tid % 4, slices = a.V / SLICE;
    const float scale = 1.0f / sqrtf((float)a.K);
    cursor next;
    next.step = 0;
    seek(a, &next, blockIdx.x);
    for (int i = 0; i < DEPTH - 1; i++) {
        copy_slice<KT, W>(a, &next, m->stage + i);
        copy_commit();
    }
    for (int item = blockIdx.x; item < a.items; item += gridDim.x) {
        const place p = place_of(a, item);
        float hdh[4] = {}, vx[PIECES] = {}, beta[PIECES];
        scores<KT, W> f = {};
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int r = j * 8 * W + tid / 4;
            beta[j] = r < p.n ? a.beta[p.row + r * a.HV] : 0.0f;
        }
        for (int tile = 0; tile < a.K / KT; tile++) {
            part<KT, W> dQ = {}, E = {}, U = {};
            for (int i = 0; i < slices; i++) {
                const slice<KT> *s = m->stage + next.step % DEPTH;
                copy_wait<DEPTH - 2>();
                __syncthreads(); /* this slice is there; the one before it and the last tile are done with */
                copy_slice<KT, W>(a, &next, m->stage + (next.step + DEPTH - 1) % DEPTH);
                if (i == 0) copy_tile<KT, W>(a, p, m, tile);
                copy_commit();
                next.step++;
                products<KT, W>(s, in.i0, in.n0, &dQ, &E, &U);
                dot_states<KT, W>(hdh, s);
                if (tile > 0) continue;
                score_products<KT, W>(s, in.i0, in.j0, &f);
                values<KT, W>(a, p, s, i, beta, vx);
            }
            if (slices < DEPTH) { /* else q and k were waited for with a slice */
                copy_wait<0>();
                __syncthreads();
            }
            reorder<KT, W>(m->q), reorder<KT, W>(m->k);
            if (tile == 0) store_scores<KT, W>(&f, m, scale, in.i0, in.j0);
            __syncthreads();
            finish_tile<KT, W>(a, p, m, tile, scale, in, &dQ, &E, &U);
        }
        const float sum = warp_sum(2 * t == g ? hdh[0] : 2 * t + 1 == g ? hdh[1] : 0.0f);
        if (tid % 32 == 0) m->hdh[tid / 32] = sum;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float x = sum_quad(vx[j]);
            if (t == 0) m->vx[j * 8 * W + tid / 4] = x;
        }
        __syncthreads();
        if (tid < 32) gate_rows<KT, W>(a, p, m);
    }
}

template <int KT, int W> static void launch_rest(struct hl_cuda *c, const struct gdn_back *a) {
    const int blocks = hl_cuda_sms(c) * (8 / W);
    launch(c, back_rest<KT, W>, (unsigned)(a->items < blocks ? a->items : blocks), 32 * W,
           sizeof(room<KT, W>), *a);
}
extern "C" void HL_OP(gdn_back_rest)(struct hl_cuda *c, const struct gdn_back *a) {
    if (a->K == 256) launch_rest<128, 8>(c, a); /* fewer tiles: dO, X2 and v_new are read for each */
    else launch_rest<64, 4>(c, a);              /* two blocks: one finishes rows while the other multiplies */
}
#endif
