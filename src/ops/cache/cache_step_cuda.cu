/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * Two launches whose sizes depend on the number of sessions alone; positions are read on the device, so
 * that a recorded graph can be played again. part: a warp per SHARE slots of a head reads them BATCH at a time
 * and leaves its softmax; join: a thread block per head puts the shares together, in order, and does what
 * follows where that is asked for (cache_step_cuda.cuh). */
#include "ops/cache/cache_step_cuda.cuh"

enum { SHARE = 16, BATCH = 16 / sizeof(act), PART_WARPS = 4, THREADS = 256 };

static int64_t shares_of(const struct hl_cache *a) { return (a->window + a->chunk + SHARE - 1) / SHARE; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return a->rows->n * a->HV * shares_of(a) * (a->V + 2) * 4;
}

/* Which slots of a head are filled: [0, kept) and [w, fresh); the new row comes to slot `fresh`. */
struct filled {
    int kept, w, fresh;
};
static __device__ __forceinline__ struct filled filled_at(const struct cache_dev &c, int64_t pos) {
    const struct filled f = {(int)kept_at(c, pos), (int)c.a.window, (int)c.a.window + (int)(pos % c.a.chunk)};
    return f;
}
static __device__ __forceinline__ bool has_row(const struct filled &f, int slot) {
    return slot < f.kept || (slot >= f.w && slot < f.fresh);
}
/* whether n slots from `from` on have a row, with the new one */
static __device__ __forceinline__ bool any_row(const struct filled &f, int from, int n) {
    return from < f.kept || (from + n > f.w && from <= f.fresh);
}

/* A lane's columns of a row, D / 32 neighbours, as they are stored. */
template <int D> struct lane_row {
    enum { N = D / 32, WORDS = N * sizeof(act) / 4 };
    uint32_t u[WORDS];
};
template <int D> static __device__ __forceinline__ float number(const struct lane_row<D> &r, int i) {
#ifdef HL_CUDA_F32
    return __uint_as_float(r.u[i]);
#else
    return i % 2 ? high(r.u[i / 2]) : low(r.u[i / 2]);
#endif
}
template <int D> static __device__ __forceinline__ int lane_column() {
    return threadIdx.x % 32 * lane_row<D>::N;
}
/* past the first-level cache: the kernel that wrote the row may have ended while this one was there */
template <int D> static __device__ __forceinline__ void load_lane(struct lane_row<D> &r, const act *row) {
    enum { WORDS = lane_row<D>::WORDS };
    row += lane_column<D>();
    if (WORDS == 1) r.u[0] = __ldcg((const uint32_t *)row);
    else if (WORDS == 2) {
        const uint2 y = __ldcg((const uint2 *)row);
        r.u[0] = y.x, r.u[1 % WORDS] = y.y;
    }
#pragma unroll
    for (int i = 0; WORDS >= 4 && i < WORDS; i += 4) {
        const uint4 y = __ldcg((const uint4 *)row + i / 4);
        r.u[i] = y.x, r.u[(i + 1) % WORDS] = y.y, r.u[(i + 2) % WORDS] = y.z, r.u[(i + 3) % WORDS] = y.w;
    }
}
/* The new row; to: where it is kept. */
template <int D>
static __device__ __forceinline__ void take_lane(struct lane_row<D> &r, const act *row, act *to) {
    load_lane<D>(r, row);
#pragma unroll
    for (int i = 0; i < lane_row<D>::WORDS; i++) ((uint32_t *)(to + lane_column<D>()))[i] = r.u[i];
}

/* Keys and values of BATCH slots; where there is no row, zeros. */
template <int D> struct batch { struct lane_row<D> k[BATCH], v[BATCH]; };
template <int D>
static __device__ __forceinline__ void load_batch(struct batch<D> &b, const struct memory &m,
                                                  const struct filled &f, int from) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        b.k[i] = {}, b.v[i] = {};
        if (!has_row(f, from + i)) continue;
        load_lane<D>(b.k[i], m.k + (int64_t)(from + i) * D),
            load_lane<D>(b.v[i], m.v + (int64_t)(from + i) * D);
    }
}

/* Softmax so far of a warp: each lane its columns of the sum. */
template <int D> struct reader { float acc[D / 32], top, sum; };
template <int D>
static __device__ __forceinline__ void read_batch(struct reader<D> &r, const struct batch<D> &b,
                                                  const struct lane_row<D> &q, const struct filled &f,
                                                  int from, float scale) {
    float z[BATCH], top = r.top;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        z[i] = 0;
#pragma unroll
        for (int j = 0; j < D / 32; j++) z[i] += number<D>(q, j) * number<D>(b.k[i], j);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        z[i] = warp_sum(z[i]) * scale;
        if (!has_row(f, from + i) && from + i != f.fresh) z[i] = -INFINITY;
        top = fmaxf(top, z[i]);
    }
    if (top == -INFINITY) return;
    const float less = expf(r.top - top);
    r.sum *= less, r.top = top;
#pragma unroll
    for (int j = 0; j < D / 32; j++) r.acc[j] *= less;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const float p = expf(z[i] - top);
        r.sum += p;
#pragma unroll
        for (int j = 0; j < D / 32; j++) r.acc[j] += p * number<D>(b.v[i], j);
    }
}

/* grid (shares / PART_WARPS, HV, n). A share's result: [D] sums, the largest logit, the denominator. Rows of the
 * state are loaded before others are waited for: the kernel just before this one writes none. beside: nor does
 * it write what else is read here, and the one before it has ended, so it is waited for at the end. */
template <int D>
static __global__ void __launch_bounds__(32 * PART_WARPS)
    part(const struct cache_dev c, float *result, int shares, bool beside) {
    const int64_t h = blockIdx.y, n = blockIdx.z;
    const int share = blockIdx.x * PART_WARPS + threadIdx.x / 32, first = share * SHARE;
    const struct hl_seg seg = c.rows.seg[n];
    const struct memory m = memory_of(c, seg, h);
    const struct filled f = filled_at(c, seg.pos);
    struct batch<D> b;
    struct lane_row<D> q;
    struct reader<D> r = {};
    const bool used = share < shares && any_row(f, first, SHARE);
    if (used) load_batch<D>(b, m, f, first);
    if (!beside || !used) wait_for_others();
    let_others_start();
    if (!used) return;
    const float scale = c.a.tau[h] / sqrtf((float)D);
    r.top = -INFINITY;
    load_lane<D>(q, (const act *)c.a.q + (seg.row * c.a.H + h / c.group) * D);
    for (int from = first; from < first + SHARE; from += BATCH) {
        if (from > first && !any_row(f, from, BATCH)) continue;
        if (from > first) load_batch<D>(b, m, f, from);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (from + i == f.fresh) { /* the new row */
                take_lane<D>(b.k[i], (const act *)c.a.k + (seg.row * c.a.H + h / c.group) * D,
                             m.k + f.fresh * D);
                take_lane<D>(b.v[i], (const act *)c.a.v + (seg.row * c.a.HV + h) * D, m.v + f.fresh * D);
                if (threadIdx.x % 32 == 0 && (c.a.score || !by_score(c)))
                    m.score[f.fresh] = column(c, m, h, seg.row, 2 * D);
            }
        read_batch<D>(r, b, q, f, from, scale);
    }
    result += ((n * c.a.HV + h) * shares + share) * (D + 2);
#pragma unroll
    for (int j = 0; j < D / 32; j++) result[lane_column<D>() + j] = r.acc[j];
    if (threadIdx.x % 32 == 0) result[D] = r.top, result[D + 1] = r.sum;
    if (beside) wait_for_others();
}

/* two neighbours of a row */
#ifdef HL_CUDA_F32
typedef float2 pair;
#else
typedef uint32_t pair;
#endif
/* The rows of the slots -1 - id[0, n) become the kept ones, in place: a row only moves to a lower slot, so what is
 * loaded before its batch is stored is not lost. A thread has two columns of k or v, a warp the scores, another
 * one the positions. */
static __device__ __forceinline__ void keep_slots(const struct cache_dev &c, const struct memory &m,
                                                  const int32_t *id, int n, int64_t first) {
    enum { AT_ONCE = 16 };
    const int D = (int)c.a.K, lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < n && threadIdx.x < 64; i0 += 32) {
        const int64_t slot = i0 + lane < n ? -1 - id[i0 + lane] : 0, w = c.a.window;
        const float score = threadIdx.x < 32 ? m.score[slot] : 0.0f;
        const int64_t pos = threadIdx.x < 32 ? 0 : slot < w ? m.pos[slot] : first + slot - w;
        __syncwarp();
        if (i0 + lane < n && threadIdx.x < 32) m.score[i0 + lane] = score;
        if (i0 + lane < n && threadIdx.x >= 32) m.pos[i0 + lane] = pos;
        __syncwarp();
    }
    for (int x = 2 * threadIdx.x; x < 2 * D; x += 2 * THREADS) {
        act *at = x < D ? m.k + x : m.v + x - D;
        for (int i0 = 0; i0 < n; i0 += AT_ONCE) {
            pair row[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (i0 + i < n) row[i] = *(const pair *)(at + (int64_t)(-1 - id[i0 + i]) * D);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (i0 + i < n) *(pair *)(at + (int64_t)(i0 + i) * D) = row[i];
        }
    }
}

/* The block is full: kept = top_w(kept + block). */
static __device__ void merge_full(const struct cache_dev &c, const struct hl_seg &seg, int64_t h) {
    const struct memory m = memory_of(c, seg, h);
    const struct chooser s = chooser_at(c, shared_memory());
    const int64_t kept = kept_at(c, seg.pos), w = c.a.window, n = kept + c.a.chunk;
    for (int64_t j = threadIdx.x; j < n; j += THREADS) {
        const int64_t slot = j < kept ? j : w + j - kept;
        s.id[j] = (int32_t)(-1 - slot);
        s.key[j] = c.a.evict == HOLA_EVICT_RECENCY ? (uint32_t)j : rank_of(m.score[slot]);
    }
    const int now = choose(s, (int)kept, (int)n, (int)w);
    keep_slots(c, m, s.id, now, seg.pos + 1 - c.a.chunk);
}

/* A column of the sum of all shares, over the denominator; the shares' weights to `weight`. All threads. */
static __device__ __forceinline__ float join_shares(const struct cache_dev &c, const struct filled &f,
                                                    const float *result, int shares, int64_t h,
                                                    float *weight) {
    const int64_t V = c.a.V;
    const float sink = c.a.sink[h];
    float top = sink, sum = 0;
    for (int i = threadIdx.x % 32; i < shares; i += 32)
        if (any_row(f, i * SHARE, SHARE)) top = fmaxf(top, result[i * (V + 2) + V]);
    top = warp_max(top);
    for (int i = threadIdx.x % 32; i < shares; i += 32) {
        const float less = any_row(f, i * SHARE, SHARE) ? expf(result[i * (V + 2) + V] - top) : 0.0f;
        if (any_row(f, i * SHARE, SHARE)) sum += result[i * (V + 2) + V + 1] * less;
        if (threadIdx.x < 32) weight[i] = less;
    }
    sum = warp_sum(sum) + expf(sink - top);
    __syncthreads();
    return sum;
}
static __device__ __forceinline__ float share_column(const struct cache_dev &c, const struct filled &f,
                                                     const float *result, int shares, const float *weight,
                                                     int64_t x) {
    float acc = 0;
#pragma unroll 10
    for (int i = 0; i < shares; i++)
        if (any_row(f, i * SHARE, SHARE)) acc += result[i * (c.a.V + 2) + x] * weight[i];
    return acc;
}

/* shares 0: there is no exact memory */
static __global__ void __launch_bounds__(THREADS, 2)
    join(const struct cache_dev c, const float *result, int shares, const struct cache_finish e) {
    const int64_t h = blockIdx.x, n = blockIdx.y, V = c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    struct filled f = {};
    if (shares) f = filled_at(c, seg.pos);
    const float lambda = shares ? 1.0f / (1.0f + expf(-c.a.gate[h])) : 0.0f;
    float sum = 1, *weight = (float *)shared_memory();
    wait_for_others(), let_others_start();
    result += (n * c.a.HV + h) * shares * (V + 2);
    if (shares) sum = join_shares(c, f, result, shares, h, weight);
    for (int64_t x = threadIdx.x; x < V && !e.y; x += THREADS) {
        act *out = (act *)c.a.out + (seg.row * c.a.HV + h) * V + x;
        put(out, f32(*out) + lambda * share_column(c, f, result, shares, weight, x) / sum);
    }
    if (e.y) {
        const int64_t row = seg.row * c.a.HV + h;
        const int x = threadIdx.x;
        float y = x < V ? e.o[row * V + x] : 0.0f;
        if (x < V) y += lambda * share_column(c, f, result, shares, weight, x) / sum;
        if (shares && x == 0) {
            float score = 0;
            for (int i = 0; i < e.tiles; i++) score += e.sums[row * e.tiles + i];
            memory_of(c, seg, h).score[f.fresh] = by_score(c) ? sqrtf(score) : 0.0f;
        }
        y *= rsqrtf(block_sum(y * y, weight + shares) / (float)V + e.eps) * (x < V ? e.norm[x] : 0.0f);
        const float z = e.z && x < V ? f32(e.z[seg.row * e.ld + h * V + x]) : 0.0f;
        if (x < V) put(e.y + row * V + x, e.z ? y * silu(z) : y);
    }
    __syncthreads(); /* the weights' room */
    if (shares && c.a.window > 0 && (seg.pos + 1) % c.a.chunk == 0) merge_full(c, seg, h);
}

template <int D>
static void run(struct hl_cuda *cuda, const struct cache_dev *c, float *result, int shares, bool beside) {
    launch_early(cuda, part<D>,
                 dim3(blocks_for(shares, PART_WARPS), (unsigned)c->a.HV, (unsigned)c->a.rows->n),
                 32 * PART_WARPS, 0, *c, result, shares, beside);
}
void HL_OP(cache_step_with)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch,
                            const struct cache_finish *e) {
    const int shares = c->a.chunk > 0 ? (int)shares_of(&c->a) : 0;
    const size_t room = (size_t)chooser_bytes(&c->a), least = (size_t)(shares + 33) * 4;
    float *result = (float *)scratch;
    if (shares && c->a.K == 64) run<64>(cuda, c, result, shares, e->y);
    if (shares && c->a.K == 128) run<128>(cuda, c, result, shares, e->y);
    if (shares && c->a.K == 256) run<256>(cuda, c, result, shares, e->y);
    launch_early(cuda, join, dim3((unsigned)c->a.HV, (unsigned)c->a.rows->n), THREADS,
                 room > least ? room : least, *c, (const float *)result, shares, *e);
}
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    const struct cache_finish none = {};
    HL_OP(cache_step_with)(cuda, c, scratch, &none);
}
