/* cache_read.cuh -- the softmax read of the caches of a block's heads, by the reader threads; the state threads read
 * the last rows of the last head (mixer_step_batch_cuda.cu).
 *
 * A warp reads a set of adjacent rows at a time, each lane the same columns of all of them. Rows pass through a
 * per-warp ring of stages: many are copied before pdl_wait, since only the new row, which is staged in shared memory,
 * depends on this step; those of the next head are copied before this head is done. They are bulk copies, because other
 * copies would delay the loads of all warps. Every group of lanes keeps a partial softmax (maximum, sum, weighted
 * values); combine_partials merges them. */
#ifndef HL_CACHE_READ_CUH
#define HL_CACHE_READ_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/cache/cache_step_cuda.cuh"
#include "ops/gdn/gdn_step_tile.cuh"
#include "fused/decode_batch/mixer_step_batch.cuh"

enum { TILE_COLS = 64, SETS = 4, DEPTH = 4 };
enum { OFFLOAD_SETS = 6 }; /* maximum row sets offloaded to the state threads; in two parts, SETS first */
enum { STATE_BARRIER = 1, READER_BARRIER, ALL_BARRIER }; /* named barriers */
/* Rows staged for the new token: q, k, v for the delta rule; q, k for the cache. */
enum { RULE_Q, RULE_K, NEW_V, CACHE_Q, CACHE_K, STAGED };

struct head_place { /* location of a head's cache, and its readers */
    act *k, *v;     /* the cache */
    float scale, sink, gate;
    int kept, rows; /* kept rows; all rows before the new one */
    int offload;    /* first row that the state threads read */
    int stages;     /* of the readers */
    int session, row, h;
    bool cached; /* the model has a cache */
};
template <int D> struct mixer_smem {
    typedef struct step_tile<D, TILE_COLS> tiles;
    enum {
        STATES = tiles::THREADS,
        READERS = STATES / 4, /* reader and state threads */
        WARPS = READERS / 32,
        LANES = D / WIDE, /* of a row */
        GROUPS = 32 / LANES,
        SET = STATES / LANES,           /* rows read by the state threads at a time */
        STAGE = SETS * READERS / LANES, /* ... and the readers */
        PARTIALS = READERS / LANES,
        HEADS = MIXER_COLUMNS / D
    };
    struct head_place place[HEADS];
    /* mbarriers: per head: its states are done; offloaded rows are read; heads are located */
    uint64_t done[HEADS + 2];
    __align__(16) act staged[HEADS][STAGED][D]; /* (global loads would queue behind copies) */
    tiles state;
    uint4 ring[DEPTH][2][WARPS][SETS][32];          /* k, v */
    uint64_t full[DEPTH * WARPS];                   /* mbarriers: a warp's stage is full */
    float partial[PARTIALS][D];                     /* weighted values; the state threads' are in their ring */
    float max[PARTIALS + SET], sum[PARTIALS + SET]; /* of a partial softmax */
    float out[HEADS][D + D / GDN_STEP_COLS];        /* outputs of the delta rule, then sums of squares */
    float read[D];
};

template <int D> static __device__ __forceinline__ int reader() { return threadIdx.x - mixer_smem<D>::STATES; }
template <int D> static __device__ __forceinline__ int own_column() {
    return threadIdx.x % mixer_smem<D>::LANES * WIDE;
}

/* last: some rows are offloaded to the state threads. */
template <int D>
static __device__ __forceinline__ void locate_head(const struct cache_dev &c, struct head_place &p, int head,
                                                   bool last) {
    typedef struct mixer_smem<D> smem;
    const int n = head / (int)c.a.HV, h = head % (int)c.a.HV;
    const struct hl_seg seg = c.rows.seg[n];
    p.session = n, p.row = (int)seg.row, p.h = h, p.cached = c.a.chunk > 0;
    p.rows = p.offload = p.stages = 0;
    if (!p.cached) return;
    const struct filled f = filled_at(c, seg.pos);
    const struct cache_slots m = cache_slots_of(c, seg, h);
    p.k = m.k, p.v = m.v;
    p.scale = c.a.tau[h] / sqrtf((float)D), p.sink = c.a.sink[h], p.gate = c.a.gate[h];
    p.kept = f.kept, p.rows = f.kept + f.fresh - f.w;
    p.offload = p.rows - (last ? min(p.rows / 2, OFFLOAD_SETS * smem::SET) : 0);
    p.stages = (p.offload + smem::STAGE - 1) / smem::STAGE;
}
/* Offset of this lane's columns of a row. */
template <int D> static __device__ __forceinline__ int64_t row_at(const struct head_place &p, int w, int row) {
    return (int64_t)(row < p.kept ? row : w + row - p.kept) * D + own_column<D>();
}

/* A lane's set of rows: k of row first + i * step is at k[i * stride], v at v[i * stride], in shared memory. */
struct row_set {
    uint4 *k, *v;
    int stride, first, step, end; /* end: end of the rows */
    int fallback;                 /* offset in k and v of valid data, read for rows past the end */
    __device__ __forceinline__ bool has(int i) const { return first + i * step < end; }
    __device__ __forceinline__ int at(int i) const { return has(i) ? i * stride : fallback; }
};
template <int D>
static __device__ __forceinline__ void load_rows(const struct row_set &x, const struct head_place &p, int w, int sets) {
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        const int64_t at = x.has(i) ? row_at<D>(p, w, x.first + i * x.step) : 0;
        if (i >= sets) break;
        copy_async(x.k + i * x.stride, p.k + at, x.has(i) ? 16 : 0);
        copy_async(x.v + i * x.stride, p.v + at, x.has(i) ? 16 : 0);
    }
}

struct partial_read { /* a partial softmax: this lane's columns */
    float q[WIDE], acc[WIDE], max, sum;
    __device__ __forceinline__ void begin(const act *from) {
        load_wide(q, from);
        max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[j] = 0.0f;
    }
};
template <int D, int N>
static __device__ __forceinline__ void add_rows(struct partial_read &r, const struct row_set &x, float scale) {
    float z[N] = {}, max = r.max;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float k[WIDE];
        load_wide(k, (const act *)(x.k + x.at(i)));
#pragma unroll
        for (int j = 0; j < WIDE; j++) z[i] += r.q[j] * k[j];
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int n = 1; n < mixer_smem<D>::LANES; n *= 2) z[i] += __shfl_xor_sync(0xffffffffu, z[i], n);
        z[i] = x.has(i) ? z[i] * scale : -INFINITY;
        max = fmaxf(max, z[i]);
    }
    const float base = max == -INFINITY ? 0.0f : max, less = expf(r.max - base);
    r.max = max, r.sum *= less;
#pragma unroll
    for (int j = 0; j < WIDE; j++) r.acc[j] *= less;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v[WIDE];
        const float weight = expf(z[i] - base);
        load_wide(v, (const act *)(x.v + x.at(i)));
        r.sum += weight;
#pragma unroll
        for (int j = 0; j < WIDE; j++) r.acc[j] += weight * v[j];
    }
}

/* ---- offloaded rows, by the state threads ---- */

/* Part e of two, in a slot of their ring. */
template <int D>
static __device__ __forceinline__ struct row_set offloaded_rows(struct mixer_smem<D> &m, const struct head_place &p,
                                                                int e, int slot) {
    typedef struct mixer_smem<D> smem;
    uint4 *at = (uint4 *)m.state.ring[slot][0] + threadIdx.x;
    const struct row_set x = {at,
                              at + SETS * smem::STATES,
                              smem::STATES,
                              p.offload + e * SETS * smem::SET + (int)threadIdx.x / smem::LANES,
                              smem::SET,
                              p.rows,
                              0};
    return x;
}
/* Issues all copies, into slot `slot` and then the other one. */
template <int D>
static __device__ __forceinline__ void read_offloaded(struct mixer_smem<D> &m, const struct head_place &p, int slot,
                                                      const act *q, mbarrier_t done) {
    typedef struct mixer_smem<D> smem;
    const int partial = threadIdx.x / smem::LANES;
    struct partial_read r;
    r.begin(q + own_column<D>());
    copy_wait<0>();
    add_rows<D, SETS>(r, offloaded_rows<D>(m, p, 0, slot), p.scale);
    add_rows<D, OFFLOAD_SETS - SETS>(r, offloaded_rows<D>(m, p, 1, (slot + 1) % SLOTS), p.scale);
    store_wide((float *)&m.state.ring[0][0][threadIdx.x], r.acc);
    store_wide((float *)&m.state.ring[0][1][threadIdx.x], r.acc + 4);
    if (threadIdx.x % smem::LANES == 0)
        m.max[smem::PARTIALS + partial] = r.max, m.sum[smem::PARTIALS + partial] = r.sum;
    mbarrier_arrive_warp(done);
}
/* Column x of partial softmax i. */
template <int D> static __device__ __forceinline__ float partial_at(const struct mixer_smem<D> &m, int i, int x) {
    typedef struct mixer_smem<D> smem;
    if (i < smem::PARTIALS) return m.partial[i][x];
    return ((const float *)&m.state.ring[0][x / 4 % 2][(i - smem::PARTIALS) * smem::LANES + x / WIDE])[x % 4];
}

/* ---- readers ---- */

/* The gated read of a head: merges the partial softmaxes, in order, with the sink. All readers. */
template <int D>
static __device__ __forceinline__ void combine_partials(struct mixer_smem<D> &m, const struct head_place &p,
                                                        const struct partial_read &r, mbarrier_t offloaded) {
    typedef struct mixer_smem<D> smem;
    enum { EACH = D / smem::READERS };
    const int mine = reader<D>() / smem::LANES, n = p.offload < p.rows ? smem::PARTIALS + smem::SET : smem::PARTIALS;
    float max = p.sink, acc[EACH] = {};
    named_barrier_sync(READER_BARRIER, smem::READERS); /* the previous head's partials have been read */
    store_wide(m.partial[mine] + own_column<D>(), r.acc);
    store_wide(m.partial[mine] + own_column<D>() + 4, r.acc + 4);
    if (threadIdx.x % smem::LANES == 0) m.max[mine] = r.max, m.sum[mine] = r.sum;
    named_barrier_sync(READER_BARRIER, smem::READERS);
    if (p.offload < p.rows) mbarrier_wait(offloaded, 0);
#pragma unroll
    for (int i = 0; i < smem::PARTIALS + smem::SET; i++)
        if (i < n) max = fmaxf(max, m.max[i]);
    float sum = expf(p.sink - max);
#pragma unroll
    for (int i = 0; i < smem::PARTIALS + smem::SET; i++) {
        if (i >= n) break;
        const float less = expf(m.max[i] - max); /* 0 if it had no rows */
        sum += less * m.sum[i];
#pragma unroll
        for (int j = 0; j < EACH; j++) acc[j] += less * partial_at<D>(m, i, reader<D>() + j * smem::READERS);
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) m.read[reader<D>() + j * smem::READERS] = acc[j] / sum / (1.0f + expf(-p.gate));
    named_barrier_sync(READER_BARRIER, smem::READERS);
}

/* The epilogue of a head, once its states are done: output norm, gate, score. One warp. */
template <int D> struct head_epilogue {
    enum { N = D / 32 };
    float z[N], norm[N];
    /* Loaded well in advance. */
    __device__ __forceinline__ void load(const struct mixer_epilogue &e, const struct head_place &p) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int x = threadIdx.x % 32 + 32 * i;
            z[i] = e.z ? f32(e.z[(int64_t)p.row * e.ld + p.h * D + x]) : 0.0f, norm[i] = e.norm[x];
        }
    }
    __device__ __forceinline__ void finish(const struct cache_dev &c, const struct mixer_epilogue &e,
                                           const struct head_place &p, const float *out, const float *read,
                                           mbarrier_t done) const {
        const int lane = threadIdx.x % 32;
        float y[N], score = 0.0f, squares = 0.0f;
        mbarrier_wait(done, 0);
        if (lane < D / GDN_STEP_COLS) score = out[D + lane];
#pragma unroll
        for (int i = 0; i < N; i++) {
            y[i] = out[lane + 32 * i] + (p.cached ? read[lane + 32 * i] : 0.0f);
            squares += y[i] * y[i];
        }
        const float factor = rsqrtf(warp_sum(squares) / (float)D + e.eps);
#pragma unroll
        for (int i = 0; i < N; i++) {
            y[i] *= factor * norm[i];
            put(panel_at(e.y, p.row, p.h * D + lane + 32 * i), e.z ? y[i] * silu(z[i]) : y[i]);
        }
        score = warp_sum(score);
        if (!p.cached || lane > 0) return;
        const struct cache_slots m = cache_slots_of(c, c.rows.seg[p.session], p.h);
        m.score[p.rows - p.kept + c.a.window] = by_score(c) ? sqrtf(score) : 0.0f;
    }
};

struct stage { /* stage s of the block's head n; stage i overall */
    int n, s, i;
};
template <int D>
static __device__ __forceinline__ struct row_set stage_rows(struct mixer_smem<D> &m, const struct stage &x) {
    typedef struct mixer_smem<D> smem;
    const int warp = reader<D>() / 32, lane = threadIdx.x % 32;
    const struct row_set rows = {m.ring[x.i % DEPTH][0][warp][0] + lane,
                                 m.ring[x.i % DEPTH][1][warp][0] + lane,
                                 32,
                                 (x.s * smem::WARPS + warp) * SETS * smem::GROUPS + lane / smem::LANES,
                                 smem::GROUPS,
                                 m.place[x.n].offload,
                                 -(lane / smem::LANES * smem::LANES)};
    return rows;
}
template <int D>
static __device__ __forceinline__ mbarrier_t stage_full(struct mixer_smem<D> &m, const struct stage &x) {
    return mbarrier_at(mbarrier_base(m.full), x.i % DEPTH * mixer_smem<D>::WARPS + reader<D>() / 32);
}
/* Copies the warp's rows of a stage; kept rows and open-block rows may not be contiguous. One thread. */
template <int D>
static __device__ __forceinline__ void copy_stage(const struct row_set &x, const struct head_place &p, int w,
                                                  mbarrier_t full) {
    typedef struct mixer_smem<D> smem;
    const int end = min(x.first + SETS * smem::GROUPS, x.end), apart = min(max(x.first, p.kept), end);
    mbarrier_arrive_expect_tx(full, max(end - x.first, 0) * D * 2 * (int)sizeof(act));
    for (int from = x.first; from < end; from = apart) {
        const int to = from < apart ? apart : end, bytes = (to - from) * D * (int)sizeof(act),
                  at = (from - x.first) * smem::LANES;
        const int64_t slot = from < p.kept ? from : w + from - p.kept;
        bulk_copy(x.k + at, p.k + slot * D, bytes, full);
        bulk_copy(x.v + at, p.v + slot * D, bytes, full);
        if (to == end) break;
    }
}
/* Issues the copy of the next stage, if there is one, and advances. */
template <int D>
static __device__ __forceinline__ void load_stage(struct mixer_smem<D> &m, struct stage &x, int own, int w) {
    while (x.n < own && x.s == m.place[x.n].stages) x.s = 0, x.n++;
    if (x.n >= own) return;
    __syncwarp(); /* the previous stage has been read */
    if (threadIdx.x % 32 == 0) copy_stage<D>(stage_rows<D>(m, x), m.place[x.n], w, stage_full<D>(m, x));
    x.s++, x.i++;
}
/* The new row, read by the first warp, which also stores it in the cache. */
template <int D>
static __device__ __forceinline__ void read_new(struct mixer_smem<D> &m, const struct head_place &p, int n, int w,
                                                struct partial_read &r) {
    const int group = threadIdx.x % 32 / mixer_smem<D>::LANES;
    const struct row_set x = {(uint4 *)(m.staged[n][CACHE_K] + own_column<D>()),
                              (uint4 *)(m.staged[n][NEW_V] + own_column<D>()),
                              0,
                              group,
                              1,
                              1,
                              0};
    add_rows<D, 1>(r, x, p.scale);
    if (group > 0) return;
    *(uint4 *)(p.k + row_at<D>(p, w, p.rows)) = *x.k;
    *(uint4 *)(p.v + row_at<D>(p, w, p.rows)) = *x.v;
}

/* All heads of the block; q, k and v are staged. next: the next stage to copy. */
template <int D>
static __device__ __forceinline__ void read_heads(const struct cache_dev &c, const struct mixer_epilogue &e,
                                                  struct mixer_smem<D> &m, mbarrier_t done, int own,
                                                  struct stage next) {
    typedef struct mixer_smem<D> smem;
    const int w = (int)c.a.window, warp = reader<D>() / 32;
    struct stage now = {};
    for (int n = 0; n < own; n++) {
        const struct head_place &p = m.place[n];
        struct head_epilogue<D> end;
        struct partial_read r;
        if (warp == n % smem::WARPS) end.load(e, p);
        r.begin(m.staged[n][CACHE_Q] + own_column<D>());
        for (now.n = n, now.s = 0; now.s < p.stages; now.s++, now.i++) {
            mbarrier_wait(stage_full<D>(m, now), now.i / DEPTH % 2);
            if ((now.s * smem::WARPS + warp) * SETS * smem::GROUPS < p.offload)
                add_rows<D, SETS>(r, stage_rows<D>(m, now), p.scale);
            load_stage<D>(m, next, own, w);
        }
        if (p.cached && warp == 0) read_new<D>(m, p, n, w, r);
        if (p.cached) combine_partials<D>(m, p, r, mbarrier_at(done, own));
        if (warp == n % smem::WARPS) end.finish(c, e, p, m.out[n], m.read, mbarrier_at(done, n));
    }
}

#endif
