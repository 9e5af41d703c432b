/* cache_step_cuda.cu -- one new token of every session: append, read, merge a full block.
 *
 * Two launches whose sizes depend on the number of sessions alone; positions are read on the device, so
 * that a recorded graph can be played again. part: a thread block per SHARE slots of a head reads them all
 * at once and leaves its softmax; join: a thread block per head puts the shares together, in order. */
#include "ops/cache/cache_cuda.cuh"

enum { SHARE = 16, THREADS = 256, WARPS = THREADS / 32 };

static int64_t shares_of(const struct hl_cache *a) { return (a->window + a->chunk + SHARE - 1) / SHARE; }
int64_t HL_OP(cache_step_scratch)(const struct hl_cache *a) {
    return a->rows->n * a->HV * shares_of(a) * (a->V + 2) * 4;
}

/* A share's result: [D] sums, the largest logit, the denominator. */
template <int D>
static __global__ void __launch_bounds__(THREADS) part(const struct cache_dev c, float *result) {
    enum { GROUPS = THREADS / D, MINE = SHARE / GROUPS, EACH = SHARE / WARPS };
    __shared__ float z[SHARE], p[SHARE], room[THREADS];
    const int64_t h = blockIdx.y, n = blockIdx.z, hk = h / c.group;
    const struct hl_seg seg = c.rows.seg[n];
    const struct memory m = memory_of(c, seg, h);
    const int w = (int)c.a.window, from = blockIdx.x * SHARE;
    const int kept = (int)kept_at(c, seg.pos), fresh = w + (int)(seg.pos % c.a.chunk);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = threadIdx.x % D, group = threadIdx.x / D;
    const act *q = (const act *)c.a.q + (seg.row * c.a.H + hk) * D + lane;
    const float *ks = m.k + (from + warp * EACH) * D + lane, *vs = m.v + (from + group * MINE) * D + x;
    float k[EACH][D / 32], v[MINE], top = -INFINITY, sum = 0, acc = 0;
    result += ((n * c.a.HV + h) * gridDim.x + blockIdx.x) * (D + 2);
#pragma unroll
    for (int i = 0; i < EACH; i++) { /* everything is asked for before anything is used or written */
        const int slot = from + warp * EACH + i;
        const bool there = slot < kept || (slot >= w && slot < fresh);
#pragma unroll
        for (int j = 0; j < D / 32; j++) k[i][j] = there ? ks[i * D + j * 32] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int slot = from + group * MINE + i;
        v[i] = slot < kept || (slot >= w && slot < fresh) ? vs[i * D] : 0.0f;
    }
    if (fresh >= from && fresh < from + SHARE) { /* the new row */
        const act *k1 = (const act *)c.a.k + (seg.row * c.a.H + hk) * D + lane;
        const act *v1 = (const act *)c.a.v + (seg.row * c.a.HV + h) * D + x;
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                if (from + warp * EACH + i == fresh)
                    m.k[fresh * D + lane + j * 32] = k[i][j] = f32(k1[j * 32]);
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (from + group * MINE + i == fresh) m.v[fresh * D + x] = v[i] = f32(*v1);
        if (threadIdx.x == 0) m.score[fresh] = column(c, m, h, seg.row, 2 * D);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int slot = from + warp * EACH + i;
        float dot = 0;
#pragma unroll
        for (int j = 0; j < D / 32; j++) dot += f32(q[j * 32]) * k[i][j];
        dot = warp_sum(dot) * c.a.tau[h] / sqrtf((float)D);
        if (lane == 0) z[warp * EACH + i] = slot < kept || (slot >= w && slot <= fresh) ? dot : -INFINITY;
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
    for (int i = 0; i < MINE; i++) acc += p[group * MINE + i] * v[i];
    if (GROUPS > 1) {
        room[threadIdx.x] = acc;
        __syncthreads();
    }
    if (group > 0) return;
    for (int i = 1; i < GROUPS; i++) acc += room[i * D + x];
    result[x] = acc;
    if (x == 0) result[D] = top, result[D + 1] = sum;
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
    const float sink = c.a.sink[h], lambda = 1.0f / (1.0f + expf(-c.a.gate[h]));
    const int lane = threadIdx.x % 32;
    float top = sink, sum = 0, *weight = (float *)shared_memory();
    result += (n * c.a.HV + h) * shares * (V + 2);
    for (int i = lane; i < shares; i += 32) top = fmaxf(top, result[i * (V + 2) + V]);
    top = warp_max(top);
    for (int i = lane; i < shares; i += 32) {
        const float less = expf(result[i * (V + 2) + V] - top);
        sum += result[i * (V + 2) + V + 1] * less;
        if (threadIdx.x < 32) weight[i] = less;
    }
    sum = warp_sum(sum) + expf(sink - top);
    __syncthreads();
    for (int64_t x = threadIdx.x; x < V; x += THREADS) {
        act *out = (act *)c.a.out + (seg.row * c.a.HV + h) * V + x;
        float acc = 0;
#pragma unroll 10
        for (int i = 0; i < shares; i++) acc += result[i * (V + 2) + x] * weight[i];
        put(out, f32(*out) + lambda * acc / sum);
    }
    __syncthreads(); /* the weights' room */
    if (c.a.window > 0 && (seg.pos + 1) % c.a.chunk == 0) merge_full(c, seg, h);
}

void HL_OP(cache_step)(struct hl_cuda *cuda, const struct cache_dev *c, void *scratch) {
    const unsigned n = (unsigned)c->a.rows->n, HV = (unsigned)c->a.HV, shares = (unsigned)shares_of(&c->a);
    float *result = (float *)scratch;
    const dim3 grid(shares, HV, n);
    if (c->a.K == 64) launch(cuda, part<64>, grid, THREADS, 0, *c, result);
    if (c->a.K == 128) launch(cuda, part<128>, grid, THREADS, 0, *c, result);
    if (c->a.K == 256) launch(cuda, part<256>, grid, THREADS, 0, *c, result);
    launch(cuda, join, dim3(HV, n), THREADS, (size_t)chooser_bytes(&c->a), *c, (const float *)result,
           (int)shares);
}
