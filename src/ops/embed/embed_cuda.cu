/* embed_cuda.cu -- see embed.h. Backward: positions are sorted by token (count, prefix sum, place, and the order of t
 * within a token by counting smaller ones), then each token's rows are summed in that order: embed_few, a warp per
 * token; embed_many, a block. Integer atomics only, so the sums are the same in every run. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"

enum {
    THREADS = 256,
    SCAN = 1024,
    WARPS = THREADS / 32,
    MANY = 64
}; /* a token seen more than MANY times gets a block */

template <int V> static __global__ void embed_fwd(const act *E, const int32_t *ids, act *out, int64_t T, int64_t D) {
    const int64_t each = D / V, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    pdl_wait(), pdl_trigger();
    if (i >= T * each) return;
    const act *from = E + ids[i / each] * D + i % each * V;
    if (V > 1) *(uint4 *)(out + i * V) = *(const uint4 *)from;
    else out[i] = *from;
}

/* ---- positions in order of (token, t) ---- */

struct order {
    int64_t T, rows, D;
    const int32_t *ids;
    int32_t *first;          /* [rows + 1]: start of each token's positions */
    int32_t *fill;           /* [rows] */
    int32_t *loose, *sorted; /* [T] */
};

static __global__ void order_clear(struct order o) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < o.rows) o.first[i + 1] = o.fill[i] = 0;
    if (i == 0) o.first[0] = 0;
}
static __global__ void order_count(struct order o) {
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < o.T) atomicAdd(o.first + o.ids[t] + 1, 1);
}
/* one block: sums within each thread's range, then over the preceding threads */
static __global__ void __launch_bounds__(SCAN) order_scan(struct order o) {
    __shared__ int32_t sums[SCAN];
    const int64_t each = (o.rows + SCAN - 1) / SCAN, from = threadIdx.x * each, to = min(from + each, o.rows);
    int32_t s = 0;
    for (int64_t i = from; i < to; i++) s += o.first[i + 1];
    sums[threadIdx.x] = s;
    __syncthreads();
    for (int k = 1; k < SCAN; k *= 2) {
        const int32_t before = threadIdx.x >= k ? sums[threadIdx.x - k] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    s = sums[threadIdx.x] - s;
    for (int64_t i = from; i < to; i++) o.first[i + 1] = s += o.first[i + 1];
}
static __global__ void order_place(struct order o) {
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= o.T) return;
    const int32_t id = o.ids[t];
    o.loose[o.first[id] + atomicAdd(o.fill + id, 1)] = (int32_t)t;
}
static __global__ void order_sort(struct order o) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= o.T) return;
    const int32_t t = o.loose[i], id = o.ids[t], from = o.first[id], to = o.first[id + 1];
    int32_t smaller = 0;
    for (int32_t k = from; k < to; k++) smaller += o.loose[k] < t;
    o.sorted[from + smaller] = t;
}

/* ---- sums ---- */

/* sum[V] over sorted positions [from, to), eight rows in flight at a time */
template <int V>
static __device__ __forceinline__ void sum_rows(float *sum, const struct order &o, const act *dout, int64_t c,
                                                int32_t from, int32_t to) {
    float x[8][V];
    for (int32_t i = from; i < to; i += 8) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < to) {
                const act *row = dout + o.sorted[i + k] * o.D + c;
                if (V > 1) load_wide(x[k], row);
                else x[k][0] = f32(*row);
            }
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < to)
                for (int v = 0; v < V; v++) sum[v] += x[k][v];
    }
}
template <int V> static __device__ __forceinline__ void add_to(float *p, const float *x) {
    if (V == 1) p[0] += x[0];
    for (int v = 0; v + 4 <= V; v += 4) {
        const float4 u = *(const float4 *)(p + v);
        *(float4 *)(p + v) = make_float4(u.x + x[v], u.y + x[v + 1], u.z + x[v + 2], u.w + x[v + 3]);
    }
}
/* a warp: one sorted position, if it is its token's first */
template <int V>
static __global__ void __launch_bounds__(THREADS) embed_few(struct order o, const act *dout, float *dE) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (i >= o.T) return;
    const int32_t id = o.ids[o.sorted[i]], from = o.first[id], to = o.first[id + 1];
    if (i != from || to - from > MANY) return;
    for (int64_t c = threadIdx.x % 32 * V; c < o.D; c += 32 * V) {
        float sum[V];
        for (int v = 0; v < V; v++) sum[v] = 0.0f;
        sum_rows<V>(sum, o, dout, c, from, to);
        add_to<V>(dE + id * o.D + c, sum);
    }
}
/* Block (x, y): the token at sorted position MANY x, if that is its first such position and there are more than MANY.
 * Its warps sum ranges of the rows, which are then added in order. */
template <int V>
static __global__ void __launch_bounds__(THREADS) embed_many(struct order o, const act *dout, float *dE) {
    __shared__ float sums[WARPS][32 * V];
    const int64_t i = (int64_t)blockIdx.x * MANY;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t c = ((int64_t)blockIdx.y * 32 + lane) * V;
    const int32_t id = o.ids[o.sorted[i]], from = o.first[id], to = o.first[id + 1], n = to - from;
    if (n <= MANY || i - MANY >= from) return;
    float sum[V];
    for (int v = 0; v < V; v++) sum[v] = 0.0f;
    if (c < o.D)
        sum_rows<V>(sum, o, dout, c, from + (int32_t)((int64_t)n * warp / WARPS),
                    from + (int32_t)((int64_t)n * (warp + 1) / WARPS));
    for (int v = 0; v < V; v++) sums[warp][lane * V + v] = sum[v];
    __syncthreads();
    for (int k = threadIdx.x; k < 32 * V; k += THREADS) {
        const int64_t at = (int64_t)blockIdx.y * 32 * V + k;
        float s = 0.0f;
        for (int w = 0; w < WARPS; w++) s += sums[w][k];
        if (at < o.D) dE[id * o.D + at] += s;
    }
}

extern "C" void HL_OP(embed_forward)(struct hl_backend *backend, const struct hl_embed *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const act *E = (const act *)a->E.data;
    act *out = (act *)a->out;
    if (a->T == 0) return;
    if (a->D % WIDE == 0)
        launch_pdl(c, embed_fwd<WIDE>, blocks_for(a->T * (a->D / WIDE), THREADS), THREADS, 0, E, a->ids, out, a->T,
                   a->D);
    else launch_pdl(c, embed_fwd<1>, blocks_for(a->T * a->D, THREADS), THREADS, 0, E, a->ids, out, a->T, a->D);
}

template <int V> static void add_rows(struct hl_cuda *c, const struct order *o, const act *dout, float *dE) {
    const unsigned across = blocks_for(o->D, 32 * V);
    launch(c, embed_few<V>, blocks_for(o->T, WARPS), THREADS, 0, *o, dout, dE);
    if (o->T > MANY) launch(c, embed_many<V>, dim3(blocks_for(o->T, MANY), across), THREADS, 0, *o, dout, dE);
}

extern "C" void HL_OP(embed_backward)(struct hl_backend *backend, const struct hl_embed *a) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct order o = {a->T, a->E.rows, a->D, a->ids};
    const act *dout = (const act *)a->dout;
    if (a->T == 0) return;
    o.first = (int32_t *)hl_cuda_scratch(c, (2 * o.rows + 1 + 2 * o.T) * (int64_t)sizeof(int32_t));
    if (!o.first) return;
    o.fill = o.first + o.rows + 1, o.loose = o.fill + o.rows, o.sorted = o.loose + o.T;
    launch(c, order_clear, blocks_for(o.rows, THREADS), THREADS, 0, o);
    launch(c, order_count, blocks_for(o.T, THREADS), THREADS, 0, o);
    launch(c, order_scan, 1, SCAN, 0, o);
    launch(c, order_place, blocks_for(o.T, THREADS), THREADS, 0, o);
    launch(c, order_sort, blocks_for(o.T, THREADS), THREADS, 0, o);
    if (a->D % WIDE == 0) add_rows<WIDE>(c, &o, dout, a->dE);
    else add_rows<1>(c, &o, dout, a->dE);
}
