/* gla_walk_cuda.cu -- walks the chunks of a segment in order, after gla_prep:
 *     OUT      out = qe S + A v,  S = decay S + ke^T v          the forward pass
 *     STATES   the same S, or its gradient from the last chunk to the first (dout, qe instead of v, ke); every S is
 *              stored before it changes
 *     END      only S after a split's chunks
 * Grid: a block per segment, split, head and 64 W columns of V (tiles fastest); y: index of the walk. Block: W consumer
 * warpgroups with 64 columns each, then a producer warpgroup, of which LOAD_THREADS load and STORE_THREADS store. A
 * consumer holds S transposed, as [64][K] in fp32 accumulators, whose packed pairs can be used directly as operands
 * (gdn_trans_cuda.cuh).
 *
 * Shared memory: a ring of stages for the outputs of gla_prep, each filled by bulk copies, and one for v, whose memory
 * out reuses. mbarriers, by who arrives (who waits):
 *     full        loaders and bulk copies: a chunk is complete (consumers)
 *     empty       consumers have read ke, qe, A and decay (loaders)
 *     out_full    consumers: out is complete, in the place of v (storers)
 *     v_empty     storers have read out; without outputs, consumers have read v (loaders)
 *
 * Long segments with few heads are cut into splits that are walked in parallel: END from an empty state, then
 * join_splits (decays are diagonal, so a split maps a state to a product per row plus a sum), then the walk. */
#include "ops/cuda_ops.cuh"
#include "ops/gdn/gdn_pipeline_cuda.cuh"
#include "ops/gla/gla_cuda.cuh"

#ifndef HL_CUDA_F32

enum { LOAD_THREADS = GROUP / 2, VALUES = 3, OUT = 0, STATES = 1, END = 2, BUSY = 128 };

struct args {
    struct gla_walk w[2];
    const bf16 *qe, *A;
    const float *decay;
    bf16 *out;
    float *splits_end; /* [walks][segs][heads][splits][K][V]: after END the state that a split adds, after join_splits
                          the state that it starts from */
    const struct hl_seg *seg;
    const int32_t *chunk_first;
    int64_t S_off;
    int heads, V, splits, segs;
    bool sessions, trans;
};

template <int K, int W, int MODE> struct smem {
    enum { DEPTH = 3, STAGE = MODE == OUT ? 2 * K * CHUNK + TILE : K * CHUNK };
    bf16 in[DEPTH][STAGE];    /* ke; qe, A */
    bf16 v[VALUES][W * TILE]; /* a tile for each consumer */
    float decay[DEPTH][K];
    uint64_t barriers[2 * DEPTH + 2 * VALUES];
};
template <int DEPTH> struct walk_barriers {
    ring_barriers<0, DEPTH> in;
    ring_barriers<2 * DEPTH, VALUES> v; /* full: of out */
    __device__ __forceinline__ walk_barriers(uint64_t *p) : in{mbarrier_base(p)}, v{in.first} {}
};

/* The chunks that a block walks, in its direction. */
struct range {
    int row, rows; /* of the segment */
    int first;     /* index of the segment's first chunk among all */
    int from, chunks, all;
    int head, col;
    bool reverse;
    __device__ __forceinline__ int chunk(int c) const { return reverse ? all - 1 - from - c : from + c; }
    __device__ __forceinline__ int len(int c) const { return min(rows - chunk(c) * (int)CHUNK, (int)CHUNK); }
};

/* ---- producer warpgroup ---- */

template <int K, int W, int MODE>
static __device__ __forceinline__ void load_loop(smem<K, W, MODE> &x, const walk_barriers<smem<K, W, MODE>::DEPTH> &b,
                                                 const struct args &a, const struct gla_walk &w, const struct range &r,
                                                 int i) {
    enum { DEPTH = smem<K, W, MODE>::DEPTH, KEYS = K * CHUNK };
    for (int c = 0; c < r.chunks; c++) {
        const int n = c % DEPTH;
        const int64_t at = (int64_t)(r.first + r.chunk(c)) * a.heads + r.head;
        mbarrier_wait(b.in.empty(c), empty_parity<DEPTH>(c));
        if (i == 0) {
            mbarrier_arrive_expect_tx(b.in.full(c), smem<K, W, MODE>::STAGE * 2 + K * 4);
            bulk_copy(x.in[n], w.x + at * KEYS, KEYS * 2, b.in.full(c), true);
            bulk_copy(x.decay[n], a.decay + at * K, K * 4, b.in.full(c), true);
            if (MODE == OUT) {
                bulk_copy(&x.in[n][0] + KEYS, a.qe + at * KEYS, KEYS * 2, b.in.full(c), true);
                bulk_copy(&x.in[n][0] + 2 * KEYS, a.A + at * TILE, TILE * 2, b.in.full(c), true);
            }
        }
        mbarrier_wait(b.v.empty(c), empty_parity<VALUES>(c));
        const bf16 *y = w.y + (r.row + (int64_t)r.chunk(c) * CHUNK) * w.ld_y + r.head * a.V + r.col;
#pragma unroll 1
        for (int g = 0; g < W; g++)
            copy_panel<64, CHUNK, LOAD_THREADS>(x.v[c % VALUES] + g * TILE, y + 64 * g, w.ld_y, r.len(c), i);
        copy_async_arrive(b.in.full(c));
    }
}
template <int K, int W, int MODE>
static __device__ __forceinline__ void store_loop(smem<K, W, MODE> &x, const walk_barriers<smem<K, W, MODE>::DEPTH> &b,
                                                  const struct args &a, const struct range &r, int i) {
    enum { STEP = row_store<W>::STEP };
    const row_store<W> p(i);
    const int64_t ld = (int64_t)a.heads * a.V;
    for (int c = 0; c < r.chunks; c++) {
        bf16 *to = a.out + (r.row + (int64_t)r.chunk(c) * CHUNK + p.row) * ld + r.head * a.V + r.col + p.col;
        mbarrier_wait(b.v.full(c), full_parity<VALUES>(c));
#pragma unroll
        for (int first = 0; first < CHUNK; first += BATCH * STEP) {
            uint4 y[BATCH];
            p.read(y, x.v[c % VALUES], first);
            p.write(to, y, STEP * ld, r.len(c) - first), to += BATCH * STEP * ld;
        }
        mbarrier_arrive(b.v.empty(c));
    }
}

/* ---- consumer warpgroups: lane 4g + t holds columns g, g + 8 of V, there rows 2t, 2t + 1 of every 8 of K ---- */

/* S to memory: tiles with rows of V, from the warpgroup's first on */
template <int K> static __device__ __forceinline__ void keep_state(bf16 *to, const float S[K / 8][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int b = 0; b < K / 32; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack2(S[4 * b + i][2 * h], S[4 * b + i][2 * h + 1]);
            gather_columns(w);
            *(uint4 *)(to + b / 2 * TILE + tile_at<64>(row + g + 8 * h, b % 2 * 32 + 8 * t)) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
}
template <int K> static __device__ __forceinline__ void decay_state(float S[K / 8][4], const float *decay) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < K / 8; n++) {
        const float2 y = *(const float2 *)(decay + 8 * n + 2 * t);
        S[n][0] *= y.x, S[n][1] *= y.y, S[n][2] *= y.x, S[n][3] *= y.y;
    }
}

template <int K, int W, int MODE>
static __device__ __forceinline__ void walk_chunk(smem<K, W, MODE> &x, const walk_barriers<smem<K, W, MODE>::DEPTH> &b,
                                                  int c, int group, bf16 *h, float S[K / 8][4]) {
    enum { DEPTH = smem<K, W, MODE>::DEPTH };
    const int n = c % DEPTH, warp = threadIdx.x / 32 % 4;
    bf16 *v = x.v[c % VALUES] + group * TILE;
    uint32_t y[4][4];
    float d[CHUNK / 8][4];
    if (MODE == STATES) keep_state<K>(h, S);
    mbarrier_wait(b.in.full(c), full_parity<DEPTH>(c));
#pragma unroll
    for (int i = 0; i < 4; i++) tile_load_a_trans<64>(y[i], v, 16 * i, 16 * warp);
    if (MODE == OUT) {
        read_state<K, false, CHUNK, TILE>(d, S, x.in[n] + K * CHUNK, NULL);
        wgmma_hold_a<4>(y);
        wgmma_begin<CHUNK / 8>(d);
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<CHUNK>(d, y[i], operand<CHUNK, false>{&x.in[n][0] + 2 * K * CHUNK, 0, 16 * i});
        wgmma_commit_wait<1>();
    } else mbarrier_arrive_warp(b.v.empty(c));
    decay_state<K>(S, x.decay[n]);
    wgmma_hold_a<4>(y);
    wgmma_begin<K / 8>(S);
    write_state<K, TILE>(S, y, x.in[n]);
    if (MODE == OUT) {
        uint32_t out[4][4];
        wgmma_commit_wait<1>(); /* out is complete */
        wgmma_hold<CHUNK / 8>(d);
#pragma unroll
        for (int i = 0; i < 4; i++) pack_a(out[i], d + 2 * i);
        store_trans(v, out);
        mbarrier_arrive_warp(b.v.full(c));
        wgmma_wait_all<K / 8>(S);
    } else wgmma_end<K / 8>(S);
    wgmma_hold_a<4>(y);
    mbarrier_arrive_warp(b.in.empty(c));
}

/* S between registers and memory: a float [K][V], or [V][K]; the warp's columns from `col` on. NULL: zeros */
template <int K>
static __device__ __forceinline__ void read_start(float S[K / 8][4], const float *p, int V, bool trans, int col) {
    const int step_k = trans ? 1 : V, step_v = trans ? K : 1;
    if (p) p += threadIdx.x % 4 * 2 * step_k + (col + threadIdx.x % 32 / 4) * step_v;
#pragma unroll
    for (int n = 0; n < K / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = p ? p[i % 2 * step_k + i / 2 * 8 * step_v] : 0.0f;
        if (p) p += 8 * step_k;
    }
}
template <int K>
static __device__ __forceinline__ void write_end(float *p, const float S[K / 8][4], int V, bool trans, int col) {
    const int step_k = trans ? 1 : V, step_v = trans ? K : 1;
    p += threadIdx.x % 4 * 2 * step_k + (col + threadIdx.x % 32 / 4) * step_v;
#pragma unroll
    for (int n = 0; n < K / 8; n++, p += 8 * step_k)
#pragma unroll
        for (int i = 0; i < 4; i++) p[i % 2 * step_k + i / 2 * 8 * step_v] = S[n][i];
}

template <int K, int W, int MODE>
static __global__ void __launch_bounds__((W + 1) * GROUP, 1) walk_chunks(const struct args a) {
    enum { DEPTH = smem<K, W, MODE>::DEPTH };
    smem<K, W, MODE> &x = *(smem<K, W, MODE> *)shared_tiles();
    const walk_barriers<DEPTH> b(x.barriers);
    const struct gla_walk &w = a.w[MODE == OUT ? 0 : blockIdx.y];
    const int tiles = a.V / (64 * W), group = warpgroup_index(), tile = blockIdx.x % tiles;
    const int head = blockIdx.x / tiles % a.heads, split = blockIdx.x / tiles / a.heads % a.splits;
    const int s = blockIdx.x / tiles / a.heads / a.splits;
    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++)
            mbarrier_init(b.in.full(i), LOAD_THREADS + 1), mbarrier_init_warps(b.in.empty(i), 4 * W);
        for (int i = 0; i < VALUES; i++) {
            mbarrier_init_warps(b.v.full(i), 4 * W);
            if (MODE == OUT) mbarrier_init(b.v.empty(i), STORE_THREADS);
            else mbarrier_init_warps(b.v.empty(i), 4 * W);
        }
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const struct hl_seg seg = a.seg[s];
    struct range r = {(int)seg.row, (int)seg.len, a.chunk_first[s]};
    r.all = a.chunk_first[s + 1] - r.first;
    r.from = gdn_split_start(r.all, split, a.splits);
    r.chunks = gdn_split_start(r.all, split + 1, a.splits) - r.from;
    r.head = head, r.col = tile * 64 * W, r.reverse = MODE != OUT && w.reverse;
    if (group == W) {
        const int i = threadIdx.x - W * GROUP;
        producer_registers<K, W>();
        if (i < LOAD_THREADS) load_loop(x, b, a, w, r, i);
        else if (MODE == OUT) store_loop(x, b, a, r, i - LOAD_THREADS);
    } else {
        consumer_registers<K, W>();
        const int col = r.col + threadIdx.x / 32 * 16;
        const int64_t own = ((int64_t)s * a.heads + head) * K * a.V;
        float S[K / 8][4], *session = NULL, *to = w.to ? w.to + own : NULL;
        const float *from = NULL;
        float *ends =
            a.splits_end + ((((int64_t)blockIdx.y * a.segs + s) * a.heads + head) * a.splits + split) * K * a.V;
        if (a.sessions && blockIdx.y == 0 && seg.state)
            session = (float *)(seg.state + a.S_off) + (int64_t)head * K * a.V;
        if (session) to = session;
        if (MODE != END) from = a.splits > 1 ? ends : session ? session : w.from ? w.from + own : NULL;
        read_start<K>(S, from, a.V, from == session && a.trans, col);
        for (int c = 0; c < r.chunks; c++) {
            bf16 *h = NULL;
            if (MODE == STATES)
                h = w.h +
                    (((int64_t)(r.first + r.chunk(c)) * a.heads + head) * (a.V / 64) + r.col / 64 + group) * K * 64;
            walk_chunk(x, b, c, group, h, S);
        }
        if (MODE == END) write_end<K>(ends, S, a.V, false, col);
        else if (to && split + 1 == a.splits) write_end<K>(to, S, a.V, to == session && a.trans, col);
    }
}

/* Turns what the splits add into the state that each starts from. Grid (walks x segs x heads, K V / JOIN); a thread has
 * one element of the state; shared memory: the decays of the splits. */
enum { JOIN = 256 };
static __global__ void __launch_bounds__(JOIN) join_splits(const struct args a, int K) {
    float *decay = (float *)shared_memory(); /* [splits][K] */
    const int head = blockIdx.x % a.heads, s = blockIdx.x / a.heads % a.segs, walk = blockIdx.x / a.heads / a.segs;
    const int first = a.chunk_first[s], all = a.chunk_first[s + 1] - first, at = blockIdx.y * JOIN + threadIdx.x;
    const int64_t KV = (int64_t)K * a.V;
    const struct hl_seg seg = a.seg[s];
    for (int i = threadIdx.x; i < a.splits * K; i += JOIN) {
        const int from = gdn_split_start(all, i / K, a.splits), to = gdn_split_start(all, i / K + 1, a.splits);
        float product = 1.0f;
        for (int c = from; c < to; c++)
            product *= a.decay[((int64_t)(first + (a.w[walk].reverse ? all - 1 - c : c)) * a.heads + head) * K + i % K];
        decay[i] = product;
    }
    __syncthreads();
    if (at >= KV) return;
    float S = 0.0f, *end = a.splits_end + (int64_t)blockIdx.x * a.splits * KV + at;
    if (a.sessions && walk == 0 && seg.state) {
        const int k = at / a.V, v = at % a.V;
        S = ((const float *)(seg.state + a.S_off))[head * KV + (a.trans ? (int64_t)v * K + k : at)];
    } else if (a.w[walk].from) S = a.w[walk].from[((int64_t)s * a.heads + head) * KV + at];
    for (int p = 0; p < a.splits; p++, end += KV) {
        const float add = *end;
        *end = S;
        S = decay[p * K + at / a.V] * S + add;
    }
}

/* ---- on the host ---- */

template <int K, int W, int MODE> static void launch_walk(struct hl_cuda *c, const struct args *a, int walks) {
    const unsigned blocks = (unsigned)(a->segs * a->splits * a->heads * (a->V / (64 * W)));
    launch_pdl(c, walk_chunks<K, W, MODE>, dim3(blocks, walks), (W + 1) * GROUP, sizeof(smem<K, W, MODE>) + TILES_ROOM,
               *a);
}
template <int K, int MODE> static void launch_width(struct hl_cuda *c, const struct args *a, int walks) {
    /* wide tiles if they still fill the chip: ke and qe are read once per tile */
    const bool wide = a->V % 128 == 0 && (int64_t)walks * a->segs * a->splits * a->heads * (a->V / 128) >= GDN_FULL;
    (wide ? launch_walk<K, 2, MODE> : launch_walk<K, 1, MODE>)(c, a, walks);
}
template <int K> static void run(struct hl_cuda *c, const struct args *a, int walks, bool out) {
    if (a->splits > 1) {
        launch_width<K, END>(c, a, walks);
        launch(c, join_splits, dim3((unsigned)(walks * a->segs * a->heads), blocks_for(K * a->V, JOIN)), JOIN,
               (size_t)(a->splits * K) * sizeof(float), *a, K);
    }
    if (out) launch_width<K, OUT>(c, a, 1);
    else launch_width<K, STATES>(c, a, walks);
}
static int num_splits(const struct gla_view *a) {
    return gdn_num_splits(BUSY / (a->rows->n * a->HK * (a->V / 64)), hl_pieces(a->rows->dev->longest, CHUNK));
}
static void start(struct hl_cuda *c, const struct gla_view *a, struct args *x, int walks, bool out) {
    x->seg = a->rows->dev->seg, x->chunk_first = a->rows->dev->chunk_first, x->S_off = a->S_off;
    x->heads = (int)a->HK, x->V = (int)a->V, x->segs = (int)a->rows->n;
    x->splits = num_splits(a), x->trans = a->trans;
    (a->K == 64 ? run<64> : run<128>)(c, x, walks, out);
}

extern "C" int64_t HL_OP(gla_walk_scratch)(const struct gla_view *a) {
    const int64_t splits = num_splits(a);
    return splits > 1 ? 2 * a->rows->n * a->HK * splits * a->K * a->V * (int64_t)sizeof(float) : 0;
}
extern "C" void HL_OP(gla_walk_out)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o,
                                    bool sessions, float *scratch) {
    struct args x = {{{o->ke, a->v, a->ld_v}}, o->qe, o->A, o->decay, a->out, scratch};
    x.sessions = sessions;
    start(c, a, &x, 1, true);
}
extern "C" void HL_OP(gla_walk_states)(struct hl_cuda *c, const struct gla_view *a, const struct gla_operands *o,
                                       const struct gla_walk *w, int walks, bool sessions, float *scratch) {
    struct args x = {{w[0], w[walks - 1]}};
    x.decay = o->decay, x.splits_end = scratch, x.sessions = sessions;
    start(c, a, &x, walks, false);
}

template <int K> static bool fits(struct hl_cuda *c) {
    return hl_cuda_compiled_for_sm90(c, (const void *)walk_chunks<K, 2, OUT>) &&
           sizeof(smem<K, 2, OUT>) + TILES_ROOM <= (size_t)hl_cuda_shared_limit(c);
}
static bool aligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 8 == 0; }
extern "C" bool HL_OP(gla_chunk_fits)(struct hl_cuda *c, const struct gla_view *a) {
    if (a->H != a->HK || a->V % 64 || !aligned(a->q, a->ld_q) || !aligned(a->k, a->ld_k) || !aligned(a->v, a->ld_v))
        return false;
    return a->K == 64 ? fits<64>(c) : a->K == 128 && fits<128>(c);
}
#endif
