/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * Two launches whose sizes depend on the number of sessions alone; positions are read on the device, so
 * that a recorded graph can be played again. part: the slots of a head are shares of SHARE, whose softmax is
 * left in scratch; a thread block has several, the next one's rows under way while it works on one. join: a
 * thread block per head puts the shares together, in order, whichever block they came from. */
#include "cuda/early.cuh"
#include "ops/cache/cache_cuda.cuh"

enum { SHARE = 16, THREADS = 256, WARPS = THREADS / 32, PER_SM = 8 /* blocks of part, if there are shares */ };

static int64_t shares_of(const struct hl_cache *a) { return (a->window + a->chunk + SHARE - 1) / SHARE; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return a->rows->n * a->HV * shares_of(a) * (a->V + 2) * 4;
}

/* Which slots of a head are filled: [0, kept) and [w, fresh); the new row comes to slot `fresh`. */
struct filled {
    int kept, w, fresh;
};
static __device__ __forceinline__ struct filled filled_at(const struct cache_dev &c, int64_t pos) {
    const struct filled f = {(int)kept_at(c, pos), (int)c.a.window,
                             (int)c.a.window + (int)(pos % c.a.chunk)};
    return f;
}
static __device__ __forceinline__ bool has_row(const struct filled &f, int slot) {
    return slot < f.kept || (slot >= f.w && slot < f.fresh);
}
/* whether the i-th share has a row, with the new one */
static __device__ __forceinline__ bool share_used(const struct filled &f, int i) {
    return i * SHARE < f.kept || ((i + 1) * SHARE > f.w && i * SHARE <= f.fresh);
}
static __device__ __forceinline__ int next_used(const struct filled &f, int i, int step, int shares) {
    while (i < shares && !share_used(f, i)) i += step;
    return i;
}

/* A thread's part of the rows of a share: columns lane + 32 j of a warp's keys, column x of a group's values. */
template <int D> struct share_rows {
    enum { GROUPS = THREADS / D, MINE = SHARE / GROUPS, EACH = SHARE / WARPS };
    float k[EACH][D / 32], v[MINE];
};
template <int D>
static __device__ __forceinline__ void load_share(struct share_rows<D> &r, const struct memory &m,
                                                  const struct filled &f, int from) {
    enum { MINE = share_rows<D>::MINE, EACH = share_rows<D>::EACH };
    const int key = from + threadIdx.x / 32 * EACH, value = from + threadIdx.x / D * MINE;
    const float *ks = m.k + (int64_t)key * D + threadIdx.x % 32, *vs = m.v + (int64_t)value * D + threadIdx.x % D;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < D / 32; j++) r.k[i][j] = has_row(f, key + i) ? ks[i * D + j * 32] : 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) r.v[i] = has_row(f, value + i) ? vs[i * D] : 0.0f;
}
/* The new row, where it is of this share: into the registers and the state. */
template <int D>
static __device__ __forceinline__ void append(struct share_rows<D> &r, const struct cache_dev &c,
                                              const struct memory &m, const struct filled &f, int64_t row,
                                              int64_t h, int from) {
    enum { MINE = share_rows<D>::MINE, EACH = share_rows<D>::EACH };
    const int lane = threadIdx.x % 32, x = threadIdx.x % D;
    const act *k = (const act *)c.a.k + (row * c.a.H + h / c.group) * D + lane;
    const act *v = (const act *)c.a.v + (row * c.a.HV + h) * D + x;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < D / 32; j++)
            if (from + (int)threadIdx.x / 32 * EACH + i == f.fresh)
                m.k[f.fresh * D + lane + j * 32] = r.k[i][j] = f32(k[j * 32]);
#pragma unroll
    for (int i = 0; i < MINE; i++)
        if (from + (int)threadIdx.x / D * MINE + i == f.fresh) m.v[f.fresh * D + x] = r.v[i] = f32(*v);
    if (threadIdx.x == 0) m.score[f.fresh] = column(c, m, h, row, 2 * D);
}

/* A share's result: [D] sums, the largest logit, the denominator. */
template <int D>
static __device__ __forceinline__ void read_share(const struct share_rows<D> &r, const float q[D / 32],
                                                  const struct filled &f, int from, float scale,
                                                  float *result) {
    enum { GROUPS = share_rows<D>::GROUPS, MINE = share_rows<D>::MINE, EACH = share_rows<D>::EACH };
    __shared__ float z[SHARE], p[SHARE], room[THREADS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = threadIdx.x % D, group = threadIdx.x / D;
    float top = -INFINITY, sum = 0, acc = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int slot = from + warp * EACH + i;
        float dot = 0;
#pragma unroll
        for (int j = 0; j < D / 32; j++) dot += q[j] * r.k[i][j];
        dot = warp_sum(dot) * scale;
        if (lane == 0) z[warp * EACH + i] = has_row(f, slot) || slot == f.fresh ? dot : -INFINITY;
    }
    __syncthreads();
    if (warp == 0) {
        top = warp_max(lane < SHARE ? z[lane] : -INFINITY);
        const float e = lane < SHARE && top > -INFINITY ? expf(z[lane] - top) : 0.0f;
        if (lane < SHARE) p[lane] = e;
        sum = warp_sum(e);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; i++) acc += p[group * MINE + i] * r.v[i];
    if (GROUPS > 1) {
        room[threadIdx.x] = acc;
        __syncthreads();
    }
    if (group > 0) return;
    for (int i = 1; i < GROUPS; i++) acc += room[i * D + x];
    result[x] = acc;
    if (x == 0) result[D] = top, result[D + 1] = sum;
}

/* grid (blocks of a head, HV, n). Rows of the state are loaded before others are waited for: the kernel just
 * before this one writes none. */
template <int D>
static __global__ void __launch_bounds__(THREADS) part(const struct cache_dev c, float *result, int shares) {
    const int64_t h = blockIdx.y, n = blockIdx.z;
    const struct hl_seg seg = c.rows.seg[n];
    const struct memory m = memory_of(c, seg, h);
    const struct filled f = filled_at(c, seg.pos);
    const act *from = (const act *)c.a.q + (seg.row * c.a.H + h / c.group) * D + threadIdx.x % 32;
    struct share_rows<D> now, ahead;
    float q[D / 32];
    int i = next_used(f, blockIdx.x, gridDim.x, shares);
    result += (n * c.a.HV + h) * shares * (D + 2);
    if (i < shares) load_share<D>(now, m, f, i * SHARE);
    wait_for_others(), let_others_start();
    for (int j = 0; j < D / 32; j++) q[j] = f32(from[j * 32]);
    const float scale = c.a.tau[h] / sqrtf((float)D);
    while (i < shares) {
        const int next = next_used(f, i + gridDim.x, gridDim.x, shares);
        if (next < shares) load_share<D>(ahead, m, f, next * SHARE);
        if (f.fresh >= i * SHARE && f.fresh < (i + 1) * SHARE) append<D>(now, c, m, f, seg.row, h, i * SHARE);
        read_share<D>(now, q, f, i * SHARE, scale, result + i * (D + 2));
        now = ahead, i = next;
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
    keep_rows(c, m, h, s.id, now, seg, seg.pos + 1 - c.a.chunk, threadIdx.x, THREADS);
}

static __global__ void __launch_bounds__(THREADS)
    join(const struct cache_dev c, const float *result, int shares) {
    const int64_t h = blockIdx.x, n = blockIdx.y, V = c.a.V;
    const struct hl_seg seg = c.rows.seg[n];
    const struct filled f = filled_at(c, seg.pos);
    const float sink = c.a.sink[h], lambda = 1.0f / (1.0f + expf(-c.a.gate[h]));
    const int lane = threadIdx.x % 32;
    float top = sink, sum = 0, *weight = (float *)shared_memory();
    wait_for_others(), let_others_start();
    result += (n * c.a.HV + h) * shares * (V + 2);
    for (int i = lane; i < shares; i += 32)
        if (share_used(f, i)) top = fmaxf(top, result[i * (V + 2) + V]);
    top = warp_max(top);
    for (int i = lane; i < shares; i += 32) {
        const float less = share_used(f, i) ? expf(result[i * (V + 2) + V] - top) : 0.0f;
        if (share_used(f, i)) sum += result[i * (V + 2) + V + 1] * less;
        if (threadIdx.x < 32) weight[i] = less;
    }
    sum = warp_sum(sum) + expf(sink - top);
    __syncthreads();
    for (int64_t x = threadIdx.x; x < V; x += THREADS) {
        act *out = (act *)c.a.out + (seg.row * c.a.HV + h) * V + x;
        float acc = 0;
#pragma unroll 10
        for (int i = 0; i < shares; i++)
            if (share_used(f, i)) acc += result[i * (V + 2) + x] * weight[i];
        put(out, f32(*out) + lambda * acc / sum);
    }
    __syncthreads(); /* the weights' room */
    if (c.a.window > 0 && (seg.pos + 1) % c.a.chunk == 0) merge_full(c, seg, h);
}

template <int D> static void run(struct hl_cuda *cuda, const struct cache_dev *c, float *result, int shares) {
    const int64_t heads = c->a.rows->n * c->a.HV, most = PER_SM * (int64_t)hl_cuda_sms(cuda) / heads;
    const unsigned each = (unsigned)(most < 1 ? 1 : most < shares ? most : shares);
    launch_early(cuda, part<D>, dim3(each, (unsigned)c->a.HV, (unsigned)c->a.rows->n), THREADS, 0, *c, result,
                 shares);
}
void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    const int shares = (int)shares_of(&c->a);
    float *result = (float *)scratch;
    if (c->a.K == 64) run<64>(cuda, c, result, shares);
    if (c->a.K == 128) run<128>(cuda, c, result, shares);
    if (c->a.K == 256) run<256>(cuda, c, result, shares);
    launch_early(cuda, join, dim3((unsigned)c->a.HV, (unsigned)c->a.rows->n), THREADS,
                 (size_t)chooser_bytes(&c->a), *c, (const float *)result, shares);
}
