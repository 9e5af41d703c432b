/* gdn_back_chunk_cuda.cu -- all gradients of a chunk from the states and their gradients before and after it
 * (gdn_back_cuda.cuh), for all chunks in parallel.
 *
 * Persistent kernel: one block per SM processes every gridDim-th (chunk, value head), in tiles of KT columns of K.
 * Slices of 32 columns of V -- of dO, X2, v_new, v and the transposed states -- come through a ring of DEPTH buffers,
 * without stalls between tiles or chunks. Warpgroups: two consumers with KT/2 columns each have dO h^T, X2 h^T and
 * v_new dh^T of a slice, and with the first tile dO v_new^T and X2 v_new^T for dS and N; a producer loads; an auxiliary
 * one has h.dh, dv, v.X2, dbeta and dg. All four meet at __syncthreads: per slice, at the end of a tile's slices, at
 * the end of an item. A state that is zero is loaded as zeros. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_back_chunk_cuda.cuh"

#ifndef HL_CUDA_F32
/* What a block works on: chunk and value head, item = chunk x HV + hv */
struct place {
    int item, row;     /* row: of [T][HV] */
    int hv, n;         /* n rows */
    int before, after; /* bytes per copy of h and dh: 16, or none if the state is zero */
};
template <bool STATES> static __device__ __forceinline__ place place_of(const struct gdn_back &a, int item) {
    const int c = item / a.HV, hv = item % a.HV;
    const struct hl_dev_span p = a.chunk[c];
    bool first = c == a.chunk_first[p.seg], last = c + 1 == a.chunk_first[p.seg + 1];
    if (STATES) first = first && !a.h0, last = last && !a.dht;
    return {item, p.row * a.HV + hv, hv, p.len, first ? 0 : 16, last ? 0 : 16};
}

/* ---- producer warpgroup: threads i of GROUP ---- */

/* The slice to load next */
struct cursor {
    int item, row, before, after, n;
    int tile, slice, step;
};
template <bool STATES> static __device__ __forceinline__ void seek(const struct gdn_back &a, cursor *c, int item) {
    c->tile = c->slice = 0;
    c->item = item;
    if (item >= a.items) return;
    const place p = place_of<STATES>(a, item);
    c->row = p.row, c->n = p.n, c->before = p.before, c->after = p.after;
}
template <int KT, bool STATES>
static __device__ __forceinline__ void copy_slice(const struct gdn_back &a, cursor *c, slice<KT> *s, int i) {
    enum { COLS = KT / 2, ROWS = GROUP / (KT / 8) };
    if (c->item >= a.items) return;
#pragma unroll
    for (int j = 0; j < C; j += GROUP / 4) {
        const int r = j + i / 4, y = i % 4 * 8, to = tile_at<SLICE>(r, y), fill = r < c->n ? 16 : 0;
        const int64_t x = (int64_t)(c->row + r * a.HV) * a.V + c->slice * SLICE + y;
        copy_async(s->dO + to, a.dout + x, fill);
        copy_async(s->X2 + to, (const bf16 *)a.X2 + x, fill);
        copy_async(s->v_new + to, a.v_new + x, fill);
        if (c->tile == 0) copy_async(s->v + to, a.v + x, fill);
    }
    /* h is in the order of store_h, dh in panels of 64 x 64 (read_state) */
    const int block = i / 32, r = block / (KT / 32) * 8 + i % 32 / 4, y = block % (KT / 32) * 32 + i % 4 * 8,
              to = y / COLS * SLICE * COLS + tile_at<COLS>(r, y % COLS);
    const int dr = i / (KT / 8), dy = i % (KT / 8) * 8, dto = dy / COLS * SLICE * COLS + tile_at<COLS>(dr, dy % COLS);
    const int64_t first = ((int64_t)c->item * a.V + c->slice * SLICE) * a.K;
    const bf16 *h = (const bf16 *)a.h + first + r / 8 * 8 * a.K + (c->tile * KT + y / 32 * 32) * 8 + i % 32 * 8;
    const int dk = c->tile * KT + dy;
    const bf16 *dh = (const bf16 *)a.dh + ((int64_t)c->item * a.V + c->slice / 2 * 64) * a.K + dk / 64 * PANEL +
                     tile_at<64>(c->slice % 2 * SLICE + dr, dk % 64);
    static_assert(ROWS % 8 == 0, "steps of whole groups of 8 rows");
#pragma unroll
    for (int j = 0; j < SLICE; j += ROWS) {
        copy_async(s->h + to + j * COLS, h + (int64_t)j * a.K, c->before);
        copy_async(s->dh + dto + j * COLS, dh + j * 64, c->after);
    }
    if (++c->slice < a.V / SLICE) return;
    c->slice = 0;
    if (++c->tile == a.K / KT) seek<STATES>(a, c, c->item + gridDim.x);
}

/* q and k of the tile, and with the first tile the gates */
template <int KT>
static __device__ __forceinline__ void copy_tile(const struct gdn_back &a, const place &p, smem<KT> *m, int tile,
                                                 int i) {
    enum { COLS = KT / 2 };
    const int64_t qk = ((int64_t)(p.row / a.HV) * a.H + p.hv / a.group) * a.K + tile * KT;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        copy_panel<COLS, C, GROUP>(m->q + x * C * COLS, a.q + qk + x * COLS, (int64_t)a.H * a.K, p.n, i);
        copy_panel<COLS, C, GROUP>(m->k + x * C * COLS, a.k + qk + x * COLS, (int64_t)a.H * a.K, p.n, i);
    }
    if (tile == 0 && i < BACK_GATES / 4) copy_async(m->gates + 4 * i, a.gates + (int64_t)p.item * BACK_GATES + 4 * i);
}
/* h.dh over one slice: multiplies rows of both; only the diagonal of d is used. The order of columns does not matter,
 * so 16 bytes of a row serve as two fragments. */
template <int KT> static __device__ __forceinline__ void dot_states(float d[4], const slice<KT> *s, int i) {
    enum { COLS = KT / 2, UNITS = SLICE * KT / 8 / GROUP };
    const int g = i % 32 / 4, t = i % 4;
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        const int n = i / 32 * UNITS + j, y = n / 4 * 32 + 8 * t;
        const int at = y / COLS * SLICE * COLS + tile_at<COLS>(n % 4 * 8 + g, y % COLS);
        const uint4 x = *(const uint4 *)(s->h + at), z = *(const uint4 *)(s->dh + at);
        const uint32_t a0[4] = {x.x, 0, x.y, 0}, a1[4] = {x.z, 0, x.w, 0};
        const uint32_t b0[2] = {z.x, z.y}, b1[2] = {z.z, z.w};
        mma_bf16(d, a0, b0), mma_bf16(d, a1, b1);
    }
}

/* dv = beta X2; v.X2 of this thread's 16 bytes of each row, added to vx */
template <int KT>
static __device__ __forceinline__ void values(const struct gdn_back &a, const place &p, const slice<KT> *s, int n,
                                              const float *beta, float *vx, int i) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int r = j * (C / 2) + i / 4, y = i % 4 * 8, at = tile_at<SLICE>(r, y);
        float v[8], x[8];
        load_wide(v, s->v + at), load_wide(x, s->X2 + at);
#pragma unroll
        for (int z = 0; z < 8; z++) vx[j] += v[z] * x[z], x[z] *= beta[j];
        if (r < p.n) store_wide(a.dv + (int64_t)(p.row + r * a.HV) * a.V + n * SLICE + y, x);
    }
}

/* One warp: dbeta, and dg from the sums over the rows before and after; two rows per lane */
template <int KT>
static __device__ __forceinline__ void gate_rows(const struct gdn_back &a, const place &p, smem<KT> *m) {
    const int lane = threadIdx.x % 32;
    float up[2], down[2], hdh = 0;
    for (int i = 0; i < 4; i++) hdh += m->hdh[i];
    hdh *= m->gates[EG + C - 1];
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        float dot[DOTS];
        for (int d = 0; d < DOTS; d++) dot[d] = m->dot[d][0][r] + m->dot[d][1][r];
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
    if (2 * lane + 1 < p.n) a.dg[p.row + (int64_t)(2 * lane + 1) * a.HV] = up[1] + tail + (base + down[0]) + hdh;
}

template <int KT, bool STATES> static __device__ __forceinline__ void load_loop(const struct gdn_back &a, smem<KT> *m) {
    const int i = threadIdx.x - 2 * GROUP, slices = a.V / SLICE;
    cursor next;
    next.step = 0;
    seek<STATES>(a, &next, blockIdx.x);
    for (int j = 0; j < AHEAD; j++) {
        copy_slice<KT, STATES>(a, &next, m->stage + j, i);
        copy_commit();
    }
    for (int item = blockIdx.x; item < a.items; item += gridDim.x) {
        const place p = place_of<STATES>(a, item);
        for (int tile = 0; tile < a.K / KT; tile++) {
            for (int n = 0; n < slices; n++) {
                copy_wait<AHEAD - 1>();
                fence_proxy_async();
                __syncthreads(); /* this slice is complete; the slice before the last and the last tile are free */
                copy_slice<KT, STATES>(a, &next, m->stage + (next.step + AHEAD) % DEPTH, i);
                if (n == 0) copy_tile<KT>(a, p, m, tile, i);
                copy_commit();
                next.step++;
            }
            if (slices <= AHEAD) copy_wait<0>(); /* otherwise the wait for a slice covered the gates, q and k */
            if (slices <= AHEAD && tile == 0) named_barrier_sync(3, CHUNK_THREADS);
            fence_proxy_async();
            __syncthreads();
        }
        __syncthreads();
    }
}
/* ---- auxiliary warpgroup ---- */

template <int KT, bool STATES> static __device__ __forceinline__ void aux_loop(const struct gdn_back &a, smem<KT> *m) {
    const int i = threadIdx.x - 3 * GROUP, g = i % 32 / 4, t = i % 4, slices = a.V / SLICE;
    int step = 0;
    for (int item = blockIdx.x; item < a.items; item += gridDim.x) {
        const place p = place_of<STATES>(a, item);
        float hdh[4] = {}, vx[2] = {}, beta[2];
        for (int j = 0; j < 2; j++) {
            const int r = j * (C / 2) + i / 4;
            beta[j] = r < p.n ? a.beta[p.row + r * a.HV] : 0.0f;
        }
        for (int tile = 0; tile < a.K / KT; tile++) {
            for (int n = 0; n < slices; n++) {
                const slice<KT> *s = m->stage + step;
                __syncthreads();
                dot_states<KT>(hdh, s, i);
                if (tile == 0) values<KT>(a, p, s, n, beta, vx, i);
                step = step + 1 < DEPTH ? step + 1 : 0;
            }
            if (slices <= AHEAD && tile == 0) named_barrier_sync(3, CHUNK_THREADS);
            fence_proxy_async();
            __syncthreads();
        }
        const float sum = warp_sum(2 * t == g ? hdh[0] : 2 * t + 1 == g ? hdh[1] : 0.0f);
        if (i % 32 == 0) m->hdh[i / 32] = sum;
        for (int j = 0; j < 2; j++) {
            const float x = sum_quad(vx[j]);
            if (t == 0) m->vx[j * (C / 2) + i / 4] = x;
        }
        __syncthreads();
        if (i < 32) gate_rows<KT>(a, p, m);
    }
}

/* ---- consumer warpgroups ---- */

/* A slice: dO h^T, X2 h^T, v_new dh^T; SCORES: dO v_new^T in the first warpgroup, X2 v_new^T in the second */
template <int KT, bool SCORES>
static __device__ __forceinline__ void multiply(const slice<KT> *s, int group, acc<KT> *dQ, acc<KT> *E, acc<KT> *U,
                                                float (*f)[4]) {
    enum { COLS = KT / 2, TILES = COLS / 8 };
    const bf16 *h = s->h + group * SLICE * COLS, *dh = s->dh + group * SLICE * COLS, *x = group ? s->X2 : s->dO;
    wgmma_hold<TILES>(dQ->d), wgmma_hold<TILES>(E->d);
    if (SCORES) wgmma_hold<C / 8>(f);
    wgmma_begin<TILES>(U->d);
#pragma unroll
    for (int v = 0; v < SLICE; v += 16) {
        wgmma_ss<COLS>(dQ->d, operand<SLICE, false>{s->dO, 0, v}, operand<COLS, true>{h, v, 0});
        wgmma_ss<COLS>(E->d, operand<SLICE, false>{s->X2, 0, v}, operand<COLS, true>{h, v, 0});
        wgmma_ss<COLS>(U->d, operand<SLICE, false>{s->v_new, 0, v}, operand<COLS, true>{dh, v, 0});
        if (SCORES) wgmma_ss<C>(f, operand<SLICE, false>{x, 0, v}, operand<SLICE, false>{s->v_new, 0, v});
    }
    wgmma_end<TILES, 1>(U->d); /* the previous slice has been read */
    wgmma_hold<TILES>(dQ->d), wgmma_hold<TILES>(E->d);
    if (SCORES) wgmma_hold<C / 8>(f);
}
/* One tile of an item, the FIRST one also with the scores */
template <int KT, bool FIRST>
static __device__ __forceinline__ void run_tile(const struct gdn_back &a, const place &p, smem<KT> *m, int tile,
                                                int *step, int group) {
    const float scale = 1.0f / sqrtf((float)a.K);
    acc<KT> dQ = {}, E = {}, U = {};
    {
        float f[C / 8][4] = {};
        for (int n = 0; n < a.V / SLICE; n++) {
            __syncthreads();
            multiply<KT, FIRST>(m->stage + *step, group, &dQ, &E, &U, f);
            *step = *step + 1 < DEPTH ? *step + 1 : 0;
        }
        wgmma_wait_all<KT / 16>(U.d);
        wgmma_hold<KT / 16>(dQ.d), wgmma_hold<KT / 16>(E.d);
        if (FIRST) wgmma_hold<C / 8>(f);
        if (FIRST && a.V / SLICE < AHEAD + 1) named_barrier_sync(3, CHUNK_THREADS); /* the gates are complete */
        if (FIRST) store_scores<KT>(f, m, scale, group);
        __syncthreads(); /* dS and N, q and k are complete */
    }
    acc<KT> later = {};
    scale_rows<KT>(&dQ, m->gates + EG, scale);
    scale_rows<KT>(&E, m->gates + EG, -1.0f);
    add_key_products<KT>(m, group, &dQ, &E, &later);
    const int64_t out = (int64_t)p.row * a.K + tile * KT + group * (KT / 2), stride = (int64_t)a.HV * a.K;
    finish_rows<KT>(&dQ, &E, &U, &later, m, a.dq_head + out, a.dk_head + out, stride, p.n, group, FIRST);
}

template <int KT, bool STATES>
static __global__ void __launch_bounds__(CHUNK_THREADS, 1) back_chunks(const struct gdn_back a) {
    smem<KT> *m = (smem<KT> *)shared_tiles();
    const int group = warpgroup_index();
    named_barrier_init();
    pdl_wait();
    pdl_trigger();
    if (group >= 2) {
        setmaxnreg_dec<88>();
        if (group == 2) load_loop<KT, STATES>(a, m);
        else aux_loop<KT, STATES>(a, m);
        return;
    }
    setmaxnreg_inc<168>();
    int step = 0;
    for (int item = blockIdx.x; item < a.items; item += gridDim.x) {
        const place p = place_of<STATES>(a, item);
        run_tile<KT, true>(a, p, m, 0, &step, group);
        for (int tile = 1; tile < a.K / KT; tile++) run_tile<KT, false>(a, p, m, tile, &step, group);
        __syncthreads();
    }
}

template <int KT> static void launch_chunks(struct hl_cuda *c, const struct gdn_back *a) {
    const int blocks = hl_cuda_sms(c);
    launch_pdl(c, back_states_given(a) ? back_chunks<KT, true> : back_chunks<KT, false>,
               (unsigned)(a->items < blocks ? a->items : blocks), CHUNK_THREADS, sizeof(smem<KT>) + TILES_ROOM, *a);
}
extern "C" void HL_OP(gdn_back_chunks)(struct hl_cuda *c, const struct gdn_back *a) {
    if (a->K == 64) launch_chunks<64>(c, a);
    else launch_chunks<128>(c, a);
}
#endif
