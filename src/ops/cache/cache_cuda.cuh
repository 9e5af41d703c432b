/* cache_cuda.cuh -- shared by the kernels of the exact memory: arguments, row locations, the selection.
 *
 * A block's keys are numbered as columns: the kept rows in order of position, then the block's own rows. A column's id
 * gives the location of its row: id >= 0 is row `id` of the batch, id < 0 slot -1 - id of the session's state. So
 * training, prompts and sessions share the code. */
#ifndef HL_CACHE_CUDA_CUH
#define HL_CACHE_CUDA_CUH
#include "ops/cuda_ops.cuh"

enum { NO_ROW = INT32_MIN };

/* every kernel's argument */
struct cache_dev {
    struct hl_cache a; /* a.rows is on the host: kernels use `rows` */
    struct hl_dev_rows rows;
    struct hl_cache_layout at;
    int64_t T, group;    /* rows; value heads per key head */
    int32_t *id;         /* [blocks][HV][window]: rows kept by each block */
    int32_t *kept_after; /* [n][HV][window]: rows kept after the segment */
    int32_t *group_kept; /* [n][HV][groups][window]: own rows kept by each group of blocks */
    float *bias;         /* HL_SCORE_LEARNED: [blocks][HV][window], log sigma(score) of the rows in `id` */
};

static inline struct cache_dev cache_dev_of(const struct hl_cache *a) {
    struct cache_dev c = {};
    c.a = *a;
    c.rows = *a->rows->dev;
    c.at = hl_cache_layout(a->K, a->V, a->window, a->chunk, sizeof(act), hl_cache_factors(a));
    c.T = a->rows->T;
    c.group = a->HV / a->H;
    return c;
}

/* hl_cache_lambda and hl_cache_slope; sigma: of the gate, computed with the kernel's own function. */
static __device__ __forceinline__ float gate_of(const struct hl_cache &a, int64_t row, int64_t h) {
    return a.token_gate ? a.gate[h] + f32(((const act *)a.token_gate)[row * a.HV + h]) : a.gate[h];
}
static __device__ __forceinline__ float lambda_of(const struct hl_cache &a, float gate, float sigma) {
    return a.linear_gate ? fmaxf(gate, 0.0f) : sigma;
}
static __device__ __forceinline__ float slope_of(const struct hl_cache &a, float lambda) {
    return a.linear_gate ? 1.0f : lambda * (1 - lambda);
}

/* the parts of the forward op, one file each */
void HL_OP(cache_read)(struct hl_cuda *cuda, const struct cache_dev *c, bool states);
void HL_OP(cache_store)(struct hl_cuda *cuda, const struct cache_dev *c); /* after all reads: what sessions keep */
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch);
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a);
void HL_OP(cache_rowwise)(struct hl_cuda *cuda, const struct cache_dev *c, char *scratch);
/* HL_SCORE_RECALL: the scores of all rows, kept ones too, of blocks that single tokens complete, before cache_step; the
 * selection for all blocks; the factors of the rows that sessions keep */
void HL_OP(cache_measure_step)(struct hl_cuda *cuda, const struct cache_dev *c);
void HL_OP(cache_select_measured)(struct hl_cuda *cuda, const struct cache_dev *c);
void HL_OP(cache_store_factors)(struct hl_cuda *cuda, const struct cache_dev *c);

/* with the exact exp, for kernels without tensor cores */
static __device__ __forceinline__ float lambda_at(const struct hl_cache &a, int64_t row, int64_t h) {
    const float gate = gate_of(a, row, h);
    return lambda_of(a, gate, 1.0f / (1.0f + expf(-gate)));
}
static __device__ __forceinline__ float log_sigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

/* Tensor cores: bf16, these head sizes. */
static inline bool cache_usual(const struct hl_cache *a) {
    return a->K == a->V && (a->K == 64 || a->K == 128 || a->K == 256);
}
static inline bool cache_tiled(const struct hl_cache *a) { return HL_ACT_DTYPE == HOLA_BF16 && cache_usual(a); }

/* ---- a session's state ---- */

struct cache_slots {
    act *k, *v;
    float *score;
    int64_t *pos;
    float *factor; /* if there are factors */
};
static __device__ __forceinline__ struct cache_slots cache_slots_at(const struct cache_dev &c, char *state, int64_t h) {
    char *p = state + h * c.at.bytes;
    struct cache_slots m = {(act *)(p + c.at.k), (act *)(p + c.at.v), (float *)(p + c.at.score),
                            (int64_t *)(p + c.at.pos), (float *)(p + c.at.factor)};
    return m;
}
static __device__ __forceinline__ struct cache_slots cache_slots_of(const struct cache_dev &c, const struct hl_seg &s,
                                                                    int64_t h) {
    return cache_slots_at(c, s.state + c.a.state_off, h);
}
/* rows kept at the start of the block that contains `pos` */
static __device__ __forceinline__ int64_t kept_at(const struct cache_dev &c, int64_t pos) {
    return min(pos / c.a.chunk * c.a.chunk, c.a.window);
}
static __device__ __forceinline__ bool has_factors(const struct cache_dev &c) { /* as hl_cache_factors */
    return c.a.policy.score == HL_SCORE_RECALL && c.a.r_state;
}
static __device__ __forceinline__ bool by_score(const struct cache_dev &c) { return c.a.policy.score != HL_SCORE_NONE; }

/* Column x of the row `id`: k, then v, then the score. */
static __device__ __forceinline__ float column(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                               int64_t id, int64_t x) {
    const int64_t K = c.a.K, V = c.a.V, slot = -1 - id;
    if (x < K) return f32(id < 0 ? m.k[slot * K + x] : ((const act *)c.a.k)[(id * c.a.H + h / c.group) * K + x]);
    if (x < K + V) return f32(id < 0 ? m.v[slot * V + x - K] : ((const act *)c.a.v)[(id * c.a.HV + h) * V + x - K]);
    return id < 0 ? m.score[slot] : by_score(c) ? c.a.score[id * c.a.HV + h] : 0.0f;
}
static __device__ __forceinline__ void put_column(const struct cache_dev &c, const struct cache_slots &m, int64_t slot,
                                                  int64_t x, float value) {
    const int64_t K = c.a.K, V = c.a.V;
    if (x < K) put(m.k + slot * K + x, value);
    else if (x < K + V) put(m.v + slot * V + x - K, value);
    else m.score[slot] = value;
}

/* Moves one column of the rows id[0, n), which become the kept ones, in place. Kept rows only move to lower slots and
 * the open block's slots are not written here, so ascending order is safe if one thread handles a whole column. */
template <class T>
static __device__ __forceinline__ void keep_column(T *state, int64_t stride, const T *batch, int64_t batch_stride,
                                                   const int32_t *id, int n) {
    enum { BATCH = 16 }; /* loads in flight */
    for (int i = 0; i < n; i += BATCH) {
        T value[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int r = i + j < n ? id[i + j] : (int)NO_ROW;
            value[j] = T();
            if (r >= 0 && batch) value[j] = batch[r * batch_stride];
            if (r < 0 && r != (int)NO_ROW) value[j] = state[(-1 - r) * stride];
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i + j < n) state[(i + j) * stride] = value[j];
    }
}
static __device__ __forceinline__ void keep_positions(const struct cache_dev &c, const struct cache_slots &m,
                                                      const int32_t *id, int n, const struct hl_seg &seg,
                                                      int64_t first) {
    enum { BATCH = 8 };
    for (int i = 0; i < n; i += BATCH) {
        int64_t at[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int64_t r = i + j < n ? id[i + j] : 0, slot = -1 - r;
            at[j] = r >= 0 ? seg.pos + r - seg.row : first + slot - c.a.window;
            if (r < 0 && slot < c.a.window) at[j] = m.pos[slot];
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i + j < n) m.pos[i + j] = at[j];
    }
}
/* Rows id[0, n) become the kept ones; this thread handles columns x, x + step, ... of k, v, score and positions.
 * `first`: position of the block in the open slots. */
static __device__ __forceinline__ void keep_rows(const struct cache_dev &c, const struct cache_slots &m, int64_t h,
                                                 const int32_t *id, int n, const struct hl_seg &seg, int64_t first,
                                                 int64_t x, int64_t step) {
    const int64_t K = c.a.K, V = c.a.V, hk = h / c.group;
    for (; x < K; x += step) keep_column(m.k + x, K, (const act *)c.a.k + hk * K + x, c.a.H * K, id, n);
    for (; x < K + V; x += step) keep_column(m.v + x - K, V, (const act *)c.a.v + h * V + x - K, c.a.HV * V, id, n);
    for (; x < K + V + 1; x += step)
        keep_column(m.score, 1, by_score(c) ? c.a.score + h : (const float *)NULL, c.a.HV, id, n);
    if (x == K + V + 1) keep_positions(c, m, id, n, seg, first);
}

/* ---- selection: top w of n columns, by one thread block ---- */

/* Integers that sort like the scores. NaN counts as -inf; adding 0 makes -0 equal to 0. */
static __device__ __forceinline__ uint32_t rank_of(float x) {
    const uint32_t u = __float_as_uint(x == x ? x + 0.0f : -INFINITY);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Integers that sort by position: the latest column wins, but the first `sinks` columns win over all others; they are
 * equal, so older ones win among themselves. Columns are sorted by position and start with the first row of the
 * sequence, or of a group of its blocks: a protected row is always among the first columns, because all rows before it
 * are protected too. A group protects its own first rows unnecessarily; this is harmless, as it keeps as many of its
 * latest rows as the sequence can. */
static __device__ __forceinline__ uint32_t rank_of_position(int64_t j, int64_t sinks) {
    return j < sinks ? UINT32_MAX : (uint32_t)j;
}
/* column j, of this score */
static __device__ __forceinline__ uint32_t rank_of(const struct hl_policy &p, int64_t j, const float *score) {
    return p.by_position ? rank_of_position(j, p.sinks) : rank_of(*score);
}

struct selector {
    uint32_t *key; /* [n, a multiple of 4] in order of position; ties: the first wins */
    int32_t *id;   /* [n] */
    int32_t *best; /* [window] */
    int32_t *warp; /* [32] */
};
/* n: rows to select from, usually the kept ones and a block */
static inline int64_t selector_bytes(const struct hl_cache *a, int64_t n) {
    const int64_t plain = (n + 3) / 4 * 8 + (a->window + 3) / 4 * 4 + 32;
    /* for cache_distinct_cuda.cuh */
    return (plain + (a->policy.redundancy > 0 ? (n + 3) / 4 * 4 + (a->window + 3) / 4 * 4 + 68 : 0)) * 4;
}
static inline int64_t selector_bytes(const struct hl_cache *a) { return selector_bytes(a, a->window + a->chunk); }
static inline unsigned selector_threads(const struct hl_cache *a) {
    const int64_t n = (a->window + a->chunk + 31) / 32 * 32;
    return (unsigned)(n < 1024 ? n : 1024);
}
static __device__ __forceinline__ struct selector selector_at(const struct cache_dev &c, char *smem, int64_t rows = 0) {
    const int64_t n = ((rows ? rows : c.a.window + c.a.chunk) + 3) / 4 * 4;
    uint32_t *p = (uint32_t *)smem;
    struct selector s = {p, (int32_t *)p + n, (int32_t *)p + 2 * n, (int32_t *)p + 2 * n + (c.a.window + 3) / 4 * 4};
    return s;
}

/* Stream compaction: the index of this thread among those with a flag, after *base from earlier calls. All threads;
 * contains barriers, so memory read before the call may be overwritten after it. */
static __device__ __forceinline__ int compact_index(bool flag, int *base, int32_t *warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned votes = __ballot_sync(0xffffffffu, flag);
    int at = *base + __popc(votes & ((1u << lane) - 1));
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        at += i < warp ? warps[i] : 0;
        *base += warps[i];
    }
    __syncthreads();
    return at;
}

/* With w rows kept, a new column whose key does not exceed the smallest kept key cannot enter: ties go to the older
 * one. Drops such columns of [w, n) and returns the number of columns left. All threads. */
static __device__ __forceinline__ int drop_losers(const struct selector &s, int n, int w) {
    uint32_t least = 0xffffffffu;
    int base = w;
    for (int i = threadIdx.x % 32; i < w; i += 32) least = min(least, s.key[i]);
    for (int i = 16; i > 0; i /= 2) least = min(least, __shfl_xor_sync(0xffffffffu, least, i));
    for (int j0 = w; j0 < n; j0 += blockDim.x) {
        const int j = j0 + threadIdx.x;
        const uint32_t key = j < n ? s.key[j] : 0;
        const int32_t id = j < n ? s.id[j] : 0;
        const int at = compact_index(key > least, &base, s.warp);
        if (key > least) s.key[at] = key, s.id[at] = id;
    }
    return base;
}

/* How many of the n keys beat the j-th; the threads of a warp have consecutive j from a multiple of 32. */
static __device__ __forceinline__ int count_better(const uint32_t *key, int n, int j) {
    const int from = j & ~31, to = min(from + 32, n);
    const uint32_t mine = key[j];
    int better = 0;
    for (int i = 0; i < from; i += 4) {
        const uint4 k = *(const uint4 *)(key + i);
        better += (k.x >= mine) + (k.y >= mine) + (k.z >= mine) + (k.w >= mine);
    }
#pragma unroll 8
    for (int i = from; i < to; i++) better += key[i] > mine || (key[i] == mine && i < j);
    for (int i = from + 32; i < n; i += 4) {
        const uint4 k = *(const uint4 *)(key + i);
        better += (k.x > mine) + (k.y > mine) + (k.z > mine) + (k.w > mine);
    }
    return better;
}

/* Moves the n columns `from`, in ascending order, to the front. All threads. */
static __device__ __forceinline__ void move_to_front(const struct selector &s, const int32_t *from, int n) {
    const int threads = blockDim.x;
    for (int i0 = 0; i0 < n; i0 += threads) { /* sources are at or after their targets */
        const int i = i0 + threadIdx.x, j = i < n ? from[i] : 0;
        const uint32_t key = s.key[j];
        const int32_t id = s.id[j];
        __syncthreads();
        if (i < n) s.key[i] = key, s.id[i] = id;
        __syncthreads();
    }
}

/* Moves the best w of the n columns to the front, in order. kept == w: the first w are a full set, against which the
 * others are filtered first. All threads; returns the number of columns kept. */
static __device__ __forceinline__ int select_top(const struct selector &s, int kept, int n, int w) {
    const int threads = blockDim.x;
    int base = 0;
    __syncthreads();
    if (kept == w) n = drop_losers(s, n, w);
    if (n <= w) return n;
    if ((int)threadIdx.x < (n + 3) / 4 * 4 - n) s.key[n + threadIdx.x] = 0; /* padding beats no column before it */
    __syncthreads();
    for (int j0 = 0; j0 < n; j0 += threads) {
        const int j = j0 + threadIdx.x;
        const bool keep = j < n && count_better(s.key, n, j) < w;
        const int at = compact_index(keep, &base, s.warp);
        if (keep) s.best[at] = j;
    }
    __syncthreads();
    move_to_front(s, s.best, base);
    return base;
}

/* A block's kept rows, for the reading kernels; at: index in [blocks][HV]. */
static __device__ __forceinline__ void write_kept(const struct cache_dev &c, const struct selector &s, int64_t at,
                                                  int kept) {
    for (int64_t i = threadIdx.x; i < c.a.window; i += blockDim.x) {
        const int32_t id = i < kept ? s.id[i] : NO_ROW;
        c.id[at * c.a.window + i] = id;
        if (c.a.sel) c.a.sel[at * c.a.window + i] = i < kept ? id : -1;
    }
}

#endif
