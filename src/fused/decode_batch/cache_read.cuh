/* cache_read.cuh -- the exact memory of a block's heads, read by some of its threads, the last rows of the last head by
 * those that have the states (memory_cuda.cu).
 *
 * A warp reads some neighbouring rows at a time, a lane the same columns of all of them, on their way in a ring of its own:
 * many are asked for before other kernels are waited for, since only the new row, which comes from shared memory, is
 * younger than this step; those of the next head before this one is done. They are bulk copies, for others hold up the
 * loads of all warps. */
#ifndef HL_MEMORY_READ_CUH
#define HL_MEMORY_READ_CUH
#include "ops/cuda_ops.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/cache/cache_step_cuda.cuh"
#include "ops/gdn/gdn_step_tile.cuh"
#include "fused/decode_batch/mixer_step_batch.cuh"

enum { TILE_COLS = 64, SETS = 4, DEPTH = 4 };
enum { LEFT_SETS = 6 }; /* of the last head to the states' threads, at most; in two parts, SETS first */
enum { OF_STATES = 1, OF_READERS, OF_ALL }; /* barriers */
/* What is made of the new token: as the delta rule takes it, and the exact memory. */
enum { RULE_Q, RULE_K, NEW_V, SHARP_Q, SHARP_K, NEAR };

struct place {  /* of a head */
    act *k, *v; /* its exact memory */
    float scale, sink, gate;
    int kept, rows; /* kept rows; all before the new one */
    int left;       /* the first row that the states' threads read */
    int stages;     /* steps of all readers */
    int session, row, h;
    bool exact; /* there is such a memory */
};
template <int D> struct memory_room {
    typedef struct step_tile<D, TILE_COLS> tiles;
    enum {
        STATES = tiles::THREADS,
        READERS = STATES / 4, /* threads of either kind */
        WARPS = READERS / 32,
        LANES = D / WIDE, /* of a row */
        GROUPS = 32 / LANES,
        SET = STATES / LANES,           /* rows that the states' threads have at once */
        STAGE = SETS * READERS / LANES, /* that the readers have */
        TALES = READERS / LANES,
        HEADS = MEMORY_COLUMNS / D
    };
    struct place place[HEADS];
    /* barriers: the states' part of the head is done; so is what was left to their threads; the places are known */
    uint64_t done[HEADS + 2];
    __align__(16) act near[HEADS][NEAR][D]; /* loads would queue behind copies */
    tiles state;
    uint4 ring[DEPTH][2][WARPS][SETS][32]; /* k, v */
    uint64_t came[DEPTH * WARPS];          /* barriers: they are there */
    float tale[TALES][D]; /* a group's softmax: sums; those of the states' threads lie in their ring */
    float top[TALES + SET], sum[TALES + SET]; /* the largest logit, the denominator */
    float out[HEADS][D + D / GDN_STEP_COLS];  /* the delta rule's, and the sums of squares */
    float read[D];
};

template <int D> static __device__ __forceinline__ int reader() {
    return threadIdx.x - memory_room<D>::STATES;
}
template <int D> static __device__ __forceinline__ int own_column() {
    return threadIdx.x % memory_room<D>::LANES * WIDE;
}

/* last: the states' threads read some rows. */
template <int D>
static __device__ __forceinline__ void find_head(const struct cache_dev &c, struct place &p, int head,
                                                 bool last) {
    typedef struct memory_room<D> room;
    const int n = head / (int)c.a.HV, h = head % (int)c.a.HV;
    const struct hl_seg seg = c.rows.seg[n];
    p.session = n, p.row = (int)seg.row, p.h = h, p.exact = c.a.chunk > 0;
    p.rows = p.left = p.stages = 0;
    if (!p.exact) return;
    const struct filled f = filled_at(c, seg.pos);
    const struct memory m = memory_of(c, seg, h);
    p.k = m.k, p.v = m.v;
    p.scale = c.a.tau[h] / sqrtf((float)D), p.sink = c.a.sink[h], p.gate = c.a.gate[h];
    p.kept = f.kept, p.rows = f.kept + f.fresh - f.w;
    p.left = p.rows - (last ? min(p.rows / 2, LEFT_SETS * room::SET) : 0);
    p.stages = (p.left + room::STAGE - 1) / room::STAGE;
}
/* Where a row's piece of this lane begins. */
template <int D> static __device__ __forceinline__ int64_t row_at(const struct place &p, int w, int row) {
    return (int64_t)(row < p.kept ? row : w + row - p.kept) * D + own_column<D>();
}

/* Some rows that a lane reads: k of row first + i step at k[i stride], v at v[i stride], in shared memory. */
struct some_rows {
    uint4 *k, *v;
    int stride, first, step, end; /* end: there are no more */
    int instead;                  /* in k and v: numbers that are there, if any are, where a row is not */
    __device__ __forceinline__ bool has(int i) const { return first + i * step < end; }
    __device__ __forceinline__ int at(int i) const { return has(i) ? i * stride : instead; }
};
template <int D>
static __device__ __forceinline__ void bring_rows(const struct some_rows &x, const struct place &p, int w,
                                                  int sets) {
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        const int64_t at = x.has(i) ? row_at<D>(p, w, x.first + i * x.step) : 0;
        if (i >= sets) break;
        copy_async(x.k + i * x.stride, p.k + at, x.has(i) ? 16 : 0);
        copy_async(x.v + i * x.stride, p.v + at, x.has(i) ? 16 : 0);
    }
}

struct reading { /* a lane's columns of its rows' softmax */
    float q[WIDE], acc[WIDE], top, sum;
    __device__ __forceinline__ void begin(const act *from) {
        load_wide(q, from);
        top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[j] = 0.0f;
    }
};
template <int D, int N>
static __device__ __forceinline__ void add_rows(struct reading &r, const struct some_rows &x, float scale) {
    float z[N] = {}, top = r.top;
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
        for (int n = 1; n < memory_room<D>::LANES; n *= 2) z[i] += __shfl_xor_sync(0xffffffffu, z[i], n);
        z[i] = x.has(i) ? z[i] * scale : -INFINITY;
        top = fmaxf(top, z[i]);
    }
    const float base = top == -INFINITY ? 0.0f : top, less = expf(r.top - base);
    r.top = top, r.sum *= less;
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

/* ---- what was left to the states' threads ---- */

/* Part e of two, in a slot of their ring. */
template <int D>
static __device__ __forceinline__ struct some_rows left_rows(struct memory_room<D> &m, const struct place &p,
                                                             int e, int slot) {
    typedef struct memory_room<D> room;
    uint4 *at = (uint4 *)m.state.ring[slot][0] + threadIdx.x;
    const struct some_rows x = {at,
                                at + SETS * room::STATES,
                                room::STATES,
                                p.left + e * SETS * room::SET + (int)threadIdx.x / room::LANES,
                                room::SET,
                                p.rows,
                                0};
    return x;
}
/* All are on their way, in slots `slot` and then the other one. */
template <int D>
static __device__ __forceinline__ void read_left(struct memory_room<D> &m, const struct place &p, int slot,
                                                 const act *q, mbarrier_t done) {
    typedef struct memory_room<D> room;
    const int tale = threadIdx.x / room::LANES;
    struct reading r;
    r.begin(q + own_column<D>());
    copy_wait<0>();
    add_rows<D, SETS>(r, left_rows<D>(m, p, 0, slot), p.scale);
    add_rows<D, LEFT_SETS - SETS>(r, left_rows<D>(m, p, 1, (slot + 1) % SLOTS), p.scale);
    store_wide((float *)&m.state.ring[0][0][threadIdx.x], r.acc);
    store_wide((float *)&m.state.ring[0][1][threadIdx.x], r.acc + 4);
    if (threadIdx.x % room::LANES == 0) m.top[room::TALES + tale] = r.top, m.sum[room::TALES + tale] = r.sum;
    mbarrier_arrive_warp(done);
}
/* Column x of a softmax. */
template <int D>
static __device__ __forceinline__ float tale_at(const struct memory_room<D> &m, int i, int x) {
    typedef struct memory_room<D> room;
    if (i < room::TALES) return m.tale[i][x];
    return ((const float *)&m.state.ring[0][x / 4 % 2][(i - room::TALES) * room::LANES + x / WIDE])[x % 4];
}

/* ---- readers ---- */

/* The gated read of a head: the softmaxes, in order, with the sink. All readers. */
template <int D>
static __device__ __forceinline__ void join(struct memory_room<D> &m, const struct place &p,
                                            const struct reading &r, mbarrier_t left) {
    typedef struct memory_room<D> room;
    enum { EACH = D / room::READERS };
    const int mine = reader<D>() / room::LANES, n = p.left < p.rows ? room::TALES + room::SET : room::TALES;
    float top = p.sink, acc[EACH] = {};
    named_barrier_sync(OF_READERS, room::READERS); /* the head before is done with */
    store_wide(m.tale[mine] + own_column<D>(), r.acc);
    store_wide(m.tale[mine] + own_column<D>() + 4, r.acc + 4);
    if (threadIdx.x % room::LANES == 0) m.top[mine] = r.top, m.sum[mine] = r.sum;
    named_barrier_sync(OF_READERS, room::READERS);
    if (p.left < p.rows) mbarrier_wait(left, 0);
#pragma unroll
    for (int i = 0; i < room::TALES + room::SET; i++)
        if (i < n) top = fmaxf(top, m.top[i]);
    float sum = expf(p.sink - top);
#pragma unroll
    for (int i = 0; i < room::TALES + room::SET; i++) {
        if (i >= n) break;
        const float less = expf(m.top[i] - top); /* 0: no row */
        sum += less * m.sum[i];
#pragma unroll
        for (int j = 0; j < EACH; j++) acc[j] += less * tale_at<D>(m, i, reader<D>() + j * room::READERS);
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.read[reader<D>() + j * room::READERS] = acc[j] / sum / (1.0f + expf(-p.gate));
    named_barrier_sync(OF_READERS, room::READERS);
}

/* What follows, once the states' part is done. A warp. */
template <int D> struct ending {
    enum { N = D / 32 };
    float z[N], norm[N];
    /* What it needs beside: asked for long before. */
    __device__ __forceinline__ void ask(const struct cache_finish &e, const struct place &p) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int x = threadIdx.x % 32 + 32 * i;
            z[i] = e.z ? f32(e.z[(int64_t)p.row * e.ld + p.h * D + x]) : 0.0f, norm[i] = e.norm[x];
        }
    }
    __device__ __forceinline__ void finish(const struct cache_dev &c, const struct cache_finish &e,
                                           const struct place &p, const float *out, const float *read,
                                           mbarrier_t done) const {
        const int lane = threadIdx.x % 32;
        float y[N], score = 0.0f, squares = 0.0f;
        mbarrier_wait(done, 0);
        if (lane < D / GDN_STEP_COLS) score = out[D + lane];
#pragma unroll
        for (int i = 0; i < N; i++) {
            y[i] = out[lane + 32 * i] + (p.exact ? read[lane + 32 * i] : 0.0f);
            squares += y[i] * y[i];
        }
        const float factor = rsqrtf(warp_sum(squares) / (float)D + e.eps);
#pragma unroll
        for (int i = 0; i < N; i++) {
            y[i] *= factor * norm[i];
            put(panel_at(e.y, p.row, p.h * D + lane + 32 * i), e.z ? y[i] * silu(z[i]) : y[i]);
        }
        score = warp_sum(score);
        if (!p.exact || lane > 0) return;
        const struct memory m = memory_of(c, c.rows.seg[p.session], p.h);
        m.score[p.rows - p.kept + c.a.window] = by_score(c) ? sqrtf(score) : 0.0f;
    }
};

struct stage { /* number s of the block's head n, number i of all */
    int n, s, i;
};
template <int D>
static __device__ __forceinline__ struct some_rows stage_rows(struct memory_room<D> &m,
                                                              const struct stage &x) {
    typedef struct memory_room<D> room;
    const int warp = reader<D>() / 32, lane = threadIdx.x % 32;
    const struct some_rows rows = {m.ring[x.i % DEPTH][0][warp][0] + lane,
                                   m.ring[x.i % DEPTH][1][warp][0] + lane,
                                   32,
                                   (x.s * room::WARPS + warp) * SETS * room::GROUPS + lane / room::LANES,
                                   room::GROUPS,
                                   m.place[x.n].left,
                                   -(lane / room::LANES * room::LANES)};
    return rows;
}
template <int D>
static __device__ __forceinline__ mbarrier_t stage_came(struct memory_room<D> &m, const struct stage &x) {
    return mbarrier_at(mbarrier_base(m.came), x.i % DEPTH * memory_room<D>::WARPS + reader<D>() / 32);
}
/* The warp's rows of a stage: those that are kept and those of the open block may lie apart. A thread. */
template <int D>
static __device__ __forceinline__ void copy_stage(const struct some_rows &x, const struct place &p, int w,
                                                  mbarrier_t came) {
    typedef struct memory_room<D> room;
    const int end = min(x.first + SETS * room::GROUPS, x.end), apart = min(max(x.first, p.kept), end);
    mbarrier_arrive_expect_tx(came, max(end - x.first, 0) * D * 2 * (int)sizeof(act));
    for (int from = x.first; from < end; from = apart) {
        const int to = from < apart ? apart : end, bytes = (to - from) * D * (int)sizeof(act),
                  at = (from - x.first) * room::LANES;
        const int64_t slot = from < p.kept ? from : w + from - p.kept;
        bulk_copy(x.k + at, p.k + slot * D, bytes, came);
        bulk_copy(x.v + at, p.v + slot * D, bytes, came);
        if (to == end) break;
    }
}
/* The stage, if there is one, and on to the next. */
template <int D>
static __device__ __forceinline__ void bring_stage(struct memory_room<D> &m, struct stage &x, int own,
                                                   int w) {
    while (x.n < own && x.s == m.place[x.n].stages) x.s = 0, x.n++;
    if (x.n >= own) return;
    __syncwarp(); /* what lay there is done with */
    if (threadIdx.x % 32 == 0) copy_stage<D>(stage_rows<D>(m, x), m.place[x.n], w, stage_came<D>(m, x));
    x.s++, x.i++;
}
/* The new row, which the first warp reads, and it stays. */
template <int D>
static __device__ __forceinline__ void read_new(struct memory_room<D> &m, const struct place &p, int n, int w,
                                                struct reading &r) {
    const int group = threadIdx.x % 32 / memory_room<D>::LANES;
    const struct some_rows x = {(uint4 *)(m.near[n][SHARP_K] + own_column<D>()),
                                (uint4 *)(m.near[n][NEW_V] + own_column<D>()),
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

/* All heads of the block; q, k and v are there. next: stages that are on their way. */
template <int D>
static __device__ __forceinline__ void read_heads(const struct cache_dev &c, const struct cache_finish &e,
                                                  struct memory_room<D> &m, mbarrier_t done, int own,
                                                  struct stage next) {
    typedef struct memory_room<D> room;
    const int w = (int)c.a.window, warp = reader<D>() / 32;
    struct stage now = {};
    for (int n = 0; n < own; n++) {
        const struct place &p = m.place[n];
        struct ending<D> end;
        struct reading r;
        if (warp == n % room::WARPS) end.ask(e, p);
        r.begin(m.near[n][SHARP_Q] + own_column<D>());
        for (now.n = n, now.s = 0; now.s < p.stages; now.s++, now.i++) {
            mbarrier_wait(stage_came<D>(m, now), now.i / DEPTH % 2);
            if ((now.s * room::WARPS + warp) * SETS * room::GROUPS < p.left)
                add_rows<D, SETS>(r, stage_rows<D>(m, now), p.scale);
            bring_stage<D>(m, next, own, w);
        }
        if (p.exact && warp == 0) read_new<D>(m, p, n, w, r);
        if (p.exact) join<D>(m, p, r, mbarrier_at(done, own));
        if (warp == n % room::WARPS) end.finish(c, e, p, m.out[n], m.read, mbarrier_at(done, n));
    }
}

#endif
