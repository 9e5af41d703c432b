/* gdn_ring_cuda.cu -- the walk from chunk to chunk with its outputs (gdn_walk_cuda.cuh), on chips with
 * barriers in shared memory.
 *
 * k S and q S are one product: k and q of a chunk lie under each other, in panels of 64 columns. Each kind
 * of what a chunk needs has its own ring of buffers and is read ahead as soon as its buffer is free: q's
 * after that first product, k's, A's and P's at the chunk's end, v's when out, which takes its place, is in
 * memory. So there is always something on its way, and neither loads nor stores are waited for one after
 * another. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/gdn/gdn_walk_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOADERS = GROUP / 2, VALUES = 3 };

template <int K, int W> struct ring {
    enum { DEPTH = K == 256 ? 2 : 3 };
    bf16 kq[DEPTH][K / 64][2 * PANEL];
    bf16 A[DEPTH][CHUNK * CHUNK], P[DEPTH][CHUNK * CHUNK];
    bf16 v[VALUES][W * PANEL], v_new[W * PANEL]; /* v: then out; of each a panel for each group */
    float gates[DEPTH][GATES];
    uint64_t barriers[3 * DEPTH + 2 * VALUES + 2];
};

/* The barriers, and the parities of chunk c: that of its buffers' contents, and that of their being free
 * again. */
template <int DEPTH> struct marks {
    mbarrier_t first;
    __device__ __forceinline__ mbarrier_t there(int c) const { return mbarrier_at(first, c % DEPTH); }
    __device__ __forceinline__ mbarrier_t q_free(int c) const { return mbarrier_at(first, DEPTH + c % DEPTH); }
    __device__ __forceinline__ mbarrier_t k_free(int c) const { return mbarrier_at(first, 2 * DEPTH + c % DEPTH); }
    __device__ __forceinline__ mbarrier_t out_there(int c) const { return mbarrier_at(first, 3 * DEPTH + c % VALUES); }
    __device__ __forceinline__ mbarrier_t v_free(int c) const {
        return mbarrier_at(first, 3 * DEPTH + VALUES + c % VALUES);
    }
    __device__ __forceinline__ mbarrier_t new_there() const { return mbarrier_at(first, 3 * DEPTH + 2 * VALUES); }
    __device__ __forceinline__ mbarrier_t new_free() const { return mbarrier_at(first, 3 * DEPTH + 2 * VALUES + 1); }
};
/* by one thread */
template <int W, int DEPTH> static __device__ __forceinline__ void open_marks(const marks<DEPTH> &b) {
    for (int i = 0; i < DEPTH; i++) {
        mbarrier_init(b.there(i), LOADERS);
        mbarrier_init_warps(b.q_free(i), 4 * W), mbarrier_init_warps(b.k_free(i), 4 * W);
    }
    for (int i = 0; i < VALUES; i++) mbarrier_init_warps(b.out_there(i), 4 * W), mbarrier_init(b.v_free(i), STORERS);
    mbarrier_init_warps(b.new_there(), 4 * W), mbarrier_init(b.new_free(), STORERS);
}
/* ---- those that load: i of LOADERS ---- */

template <int K, int W>
static __device__ __forceinline__ void load_all(ring<K, W> &x, const marks<ring<K, W>::DEPTH> &b,
                                                const struct gdn_walk &a, const struct way &w, int i) {
    enum { DEPTH = ring<K, W>::DEPTH };
    for (int c = 0; c < w.chunks; c++) {
        const int n = c % DEPTH;
        const struct rows_of r = rows_at(a, w, c);
        const int64_t qk = ((int64_t)(w.row + c * CHUNK) * a.H + w.hv / (a.HV / a.H)) * K;
        mbarrier_wait(b.q_free(c), empty<DEPTH>(c));
#pragma unroll 1
        for (int p = 0; p < K / 64; p++)
            copy_panel<64, CHUNK, LOADERS>(x.kq[n][p] + PANEL, a.q + qk + 64 * p, (int64_t)a.H * K, r.len, i);
        mbarrier_wait(b.k_free(c), empty<DEPTH>(c));
#pragma unroll 1
        for (int p = 0; p < K / 64; p++)
            copy_panel<64, CHUNK, LOADERS>(x.kq[n][p], a.k + qk + 64 * p, (int64_t)a.H * K, r.len, i);
        copy_panel<CHUNK, CHUNK, LOADERS>(x.A[n], a.A + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
        copy_panel<CHUNK, CHUNK, LOADERS>(x.P[n], a.P + r.row * CHUNK, (int64_t)a.HV * CHUNK, r.len, i);
        if (i < GATES / 4)
            copy_async(x.gates[n] + 4 * i, a.gates + ((int64_t)(w.first + c) * a.HV + w.hv) * GATES + 4 * i);
        mbarrier_wait(b.v_free(c), empty<VALUES>(c));
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, CHUNK, LOADERS>(x.v[c % VALUES] + g * PANEL, a.v + r.row * a.V + w.col + 64 * g,
                                           (int64_t)a.HV * a.V, r.len, i);
        copy_async_arrive(b.there(c));
    }
}

static __device__ __forceinline__ float squares(uint32_t pair) {
    return low(pair) * low(pair) + high(pair) * high(pair);
}

/* ---- those that store: i of STORERS ---- */

/* The sums over the UNITS threads of a row, of AT_ONCE rows: halves change places, so that in the end each
 * thread has that of row number n of them, where n is left. */
template <int UNITS> static __device__ __forceinline__ float sums_of_rows(const float x[AT_ONCE], int i, int *n) {
    const bool upper = i & UNITS / 2, odd = i & UNITS / 4;
    float y[2], sum;
#pragma unroll
    for (int j = 0; j < 2; j++)
        y[j] = (upper ? x[2 + j] : x[j]) + __shfl_xor_sync(0xffffffffu, upper ? x[j] : x[2 + j], UNITS / 2);
    sum = (odd ? y[1] : y[0]) + __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], UNITS / 4);
#pragma unroll
    for (int m = UNITS / 8; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    *n = 2 * upper + odd;
    return sum;
}
/* v_new where it is kept, and the sums of its squares */
template <int W>
static __device__ __forceinline__ void store_new(const bf16 *v_new, const struct gdn_walk &a, const struct way &w,
                                                 const pieces<W> &p, int c, int i) {
    enum { UNITS = pieces<W>::UNITS, STEP = pieces<W>::STEP };
    const struct rows_of r = rows_at(a, w, c);
    const int64_t step = (int64_t)STEP * a.HV * a.V;
    bf16 *to = a.v_new ? a.v_new + (r.row + (int64_t)p.row * a.HV) * a.V + w.col + p.col : NULL;
    float *sums = (a.sums ? a.sums + w.tile * a.T * a.HV : a.m) + r.row;
#pragma unroll
    for (int first = 0; first < CHUNK; first += AT_ONCE * STEP) {
        uint4 x[AT_ONCE];
        float y[AT_ONCE];
        int n;
        p.read(x, v_new, first);
        if (to) p.write(to, x, step, r.len - first), to += AT_ONCE * step;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            y[j] = squares(x[j].x) + squares(x[j].y) + (squares(x[j].z) + squares(x[j].w));
        const float sum = sums_of_rows<UNITS>(y, i, &n);
        const int row = first + n * STEP + p.row;
        if (i % (UNITS / 4) == 0 && row < r.len) sums[row * a.HV] = a.sums ? sum : sqrtf(sum);
    }
}
template <int W>
static __device__ __forceinline__ void store_out(const bf16 *out, const struct gdn_walk &a, const struct way &w,
                                                 const pieces<W> &p, int c) {
    enum { STEP = pieces<W>::STEP };
    const struct rows_of r = rows_at(a, w, c);
    const int64_t step = (int64_t)STEP * a.HV * a.V;
    bf16 *to = a.out + (r.row + (int64_t)p.row * a.HV) * a.V + w.col + p.col;
#pragma unroll
    for (int first = 0; first < CHUNK; first += AT_ONCE * STEP) {
        uint4 x[AT_ONCE];
        p.read(x, out, first);
        p.write(to, x, step, r.len - first), to += AT_ONCE * step;
    }
}
template <int K, int W>
static __device__ __forceinline__ void store_all(ring<K, W> &x, const marks<ring<K, W>::DEPTH> &b,
                                                 const struct gdn_walk &a, const struct way &w, int i) {
    const pieces<W> p(i);
    for (int c = 0; c < w.chunks; c++) {
        mbarrier_wait(b.new_there(), full<1>(c));
        store_new<W>(x.v_new, a, w, p, c, i);
        mbarrier_arrive(b.new_free());
        mbarrier_wait(b.out_there(c), full<VALUES>(c));
        store_out<W>(x.v[c % VALUES], a, w, p, c);
        mbarrier_arrive(b.v_free(c));
    }
}

/* ---- the others ---- */

template <int K, int W>
static __device__ __forceinline__ void walk_chunk(ring<K, W> &x, const marks<ring<K, W>::DEPTH> &b, int c, int group,
                                                  float S[K / 8][4]) {
    enum { DEPTH = ring<K, W>::DEPTH, ROWS = CHUNK / 8, BOTH = K < 256 };
    const int n = c % DEPTH;
    bf16 *v = x.v[c % VALUES] + group * PANEL;
    float d[BOTH ? 2 * ROWS : ROWS][4], *gates = x.gates[n];
    float(*qS)[4] = d + (BOTH ? ROWS : 0);
    uint32_t r[4][4], decayed[4][4];
    mbarrier_wait(b.there(c), full<DEPTH>(c));
    fence_proxy_async();
    const float end = gates[2 * CHUNK - 1];
    read_state<K, false, BOTH ? 2 * CHUNK : CHUNK, 2 * PANEL>(d, S, x.kq[n][0], NULL); /* k S, then q S */
    if (BOTH) mbarrier_arrive_warp(b.q_free(c));
    residual(r, d, v, gates);
    wgmma_hold_a<4>(r);
    zero(d);
    wgmma_begin<ROWS>(d);
    times_square(d, r, x.A[n]);
    wgmma_end<ROWS>(d);
    wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], d + 2 * i);
    wgmma_hold_a<4>(r);
    mbarrier_wait(b.new_free(), empty<1>(c));
    leave(x.v_new + group * PANEL, r);
    mbarrier_arrive_warp(b.new_there());
    if (!BOTH) {
        read_state<K, true, CHUNK, 2 * PANEL>(d, S, x.kq[n][0] + PANEL, NULL);
        mbarrier_arrive_warp(b.q_free(c));
    }
    scale_columns(qS, gates + CHUNK, 1.0f / sqrtf((float)K));
    wgmma_begin<ROWS>(qS);
    times_square(qS, r, x.P[n]);
    wgmma_commit_wait<1>();
#pragma unroll
    for (int i = 0; i < K / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] *= end;
    scale_operands(decayed, r, gates + 2 * CHUNK, 1.0f);
    wgmma_hold_a<4>(decayed);
    wgmma_begin<K / 8>(S);
    write_state<K, 2 * PANEL>(S, decayed, x.kq[n][0]);
    wgmma_commit_wait<1>(); /* out is there */
    wgmma_hold<ROWS>(qS), wgmma_hold_a<4>(r);
#pragma unroll
    for (int i = 0; i < 4; i++) pack_a(r[i], qS + 2 * i);
    leave(v, r);
    mbarrier_arrive_warp(b.out_there(c));
    wgmma_wait_all<K / 8>(S);
    wgmma_hold_a<4>(decayed);
    mbarrier_arrive_warp(b.k_free(c));
}

template <int K, int W>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) walk_ring(const struct gdn_walk a) {
    ring<K, W> &x = *(ring<K, W> *)shared_tiles();
    const marks<ring<K, W>::DEPTH> b = {mbarrier_base(x.barriers)};
    const int tiles = a.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int hv = blockIdx.x / tiles % a.HV, part = blockIdx.x / tiles / a.HV % a.parts,
              s = blockIdx.x / tiles / a.HV / a.parts;
    if (threadIdx.x == 0) open_marks<W>(b);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    struct way w = way_of(a, s, part, hv);
    w.tile = tile, w.col = tile * 64 * W;
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        registers_of_copier<K, W>();
        if (i < LOADERS) load_all(x, b, a, w, i);
        else store_all(x, b, a, w, i - LOADERS);
    } else {
        registers_of_walker<K, W>();
        const int64_t col = w.col + threadIdx.x / 32 * 16;
        float S[K / 8][4], *kept = kept_state(a.e, K, s, hv), *from = kept;
        if (a.parts > 1) from = end_of(a.e, K, s, hv, (part + a.parts - 1) % a.parts);
        state_in<K>(S, from ? from + col : NULL, a.V);
        for (int c = 0; c < w.chunks; c++) walk_chunk(x, b, c, group, S);
        if (kept && part + 1 == a.parts) state_out<K>(kept + col, S, a.V);
    }
}

template <int K, int W> static bool ring_fits(struct hl_cuda *c) {
    return hl_cuda_compiled_for_sm90(c, (const void *)walk_ring<K, W>) &&
           sizeof(ring<K, W>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
template <int K, int W> static void launch_ring(struct hl_cuda *c, const struct gdn_walk *a) {
    launch_pdl(c, walk_ring<K, W>, (unsigned)(a->segs * a->parts * a->HV * (a->V / (64 * W))), (W + 1) * GROUP,
               sizeof(ring<K, W>) + TILES_ROOM, *a);
}

#endif

extern "C" bool HL_OP(gdn_ring_fits)(struct hl_cuda *c, int64_t K, int64_t V) {
#ifdef HL_CUDA_F32
    return false;
#else
    if (V % 64) return false;
    return K == 256 ? ring_fits<256, 2>(c) : K == 128 ? ring_fits<128, 2>(c) : K == 64 && ring_fits<64, 1>(c);
#endif
}
extern "C" void HL_OP(gdn_ring)(struct hl_cuda *c, const struct gdn_walk *a, int64_t K, int W) {
#ifndef HL_CUDA_F32
    if (K == 256) (W == 2 ? launch_ring<256, 2> : launch_ring<256, 1>)(c, a);
    else if (K == 128) (W == 2 ? launch_ring<128, 2> : launch_ring<128, 1>)(c, a);
    else launch_ring<64, 1>(c, a);
#endif
}
