/* cache_back_cuda.cu -- backward of the exact memory (docs/math.md): the choice of kernels, the row-by-row kernels for
 * every shape, and the sums over blocks.
 *
 * A kept row accumulates gradients from every later block that sees it. Each block writes its contribution to scratch,
 * and `gather` (row by row) or `gather_kept` (tensor cores) sums them in block order, so that results do not depend on
 * timing. Which kernels run, for bf16 and heads of 64, 128 or 256:
 *   cache_back_block_cuda.cu      H = HV, heads up to 128, blocks up to 256 rows
 *   cache_back_block256_cuda.cu   H = HV, heads of 256
 *   cache_back_kv_cuda.cu, cache_back_q_cuda.cu    other shapes, learned scores, or too little shared memory for those
 * and for everything else rowdot, rowwise_q, rowwise_kv: THREADS threads, a warp per query-key pair. */
#include "ops/cuda_ops.cuh"
#include "cuda/pdl.cuh"
#include "core/carve.h"
#include "ops/cache/cache_back_cuda.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

static __device__ __forceinline__ float dot_row(const act *x, const act *y, int64_t n) { /* a warp */
    float s = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) s += f32(x[i]) * f32(y[i]);
    return warp_sum(s);
}
static __device__ __forceinline__ const act *row_of(const void *x, int64_t row, int64_t heads, int64_t head,
                                                    int64_t width) {
    return (const act *)x + (row * heads + head) * width;
}

/* Query `t` and key `j`, rows of the batch: s = q.k / sqrt(K), p, and ds. One warp. */
struct score_grad {
    float s, p, ds;
};
template <bool LEARNED>
static __device__ struct score_grad score_grad_of(const struct cache_dev &c, const float *R, int64_t h, int64_t t,
                                                  int64_t j, bool kept) {
    const int64_t hk = h / c.group, at = t * c.a.HV + h;
    const float lambda = lambda_at(c.a, t, h);
    struct score_grad x;
    x.s = dot_row(row_of(c.a.q, t, c.a.H, hk, c.a.K), row_of(c.a.k, j, c.a.H, hk, c.a.K), c.a.K) / sqrtf((float)c.a.K);
    const float z = c.a.tau[h] * x.s;
    x.p = expf((LEARNED && kept ? z + log_sigmoid(c.a.score[j * c.a.HV + h]) : z) - c.a.lse[at]);
    x.ds = x.p *
           (lambda * dot_row(row_of(c.a.dout, t, c.a.HV, h, c.a.V), row_of(c.a.v, j, c.a.HV, h, c.a.V), c.a.V) - R[at]);
    return x;
}

/* grid (T HV / WARPS): R, and the row's contribution to dgate and dsink; none of rows that no segment has (ops/raw) */
static __global__ void rowdot(const struct cache_dev c, const struct cache_back b) {
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, h = at % c.a.HV;
    if (at >= c.T * c.a.HV) return;
    const int64_t row = at / c.a.HV;
    const struct hl_seg seg = c.rows.seg[c.rows.row_seg[row]];
    if (row < seg.row || row >= seg.row + seg.len) {
        if (threadIdx.x % 32 == 0) b.R[at] = b.tau[at] = b.gate_sink[at * 2] = b.gate_sink[at * 2 + 1] = 0.0f;
        return;
    }
    const float lambda = lambda_at(c.a, row, h);
    const float x = dot_row((const act *)c.a.dout + at * c.a.V, (const act *)c.a.read + at * c.a.V, c.a.V);
    if (threadIdx.x % 32) return;
    b.R[at] = lambda * x;
    b.gate_sink[at * 2] = slope_of(c.a, lambda) * x;
    if (c.a.dtoken_gate) put((act *)c.a.dtoken_gate + at, slope_of(c.a, lambda) * x);
    b.gate_sink[at * 2 + 1] = -expf(c.a.sink[h] - c.a.lse[at]) * lambda * x;
}

/* grid (blocks C, H): dq of one row, and its contribution to dtau. shared: the columns' ds, s ds and
 * rows */
template <bool LEARNED> static __global__ void rowwise_q(const struct cache_dev c, const struct cache_back b) {
    const int64_t block = blockIdx.x / c.a.chunk, t = blockIdx.x % c.a.chunk, hk = blockIdx.y, w = c.a.window;
    const struct hl_dev_span p = c.rows.block[block];
    const int64_t all = w + t + 1, row = p.row + t;
    float *ds = (float *)shared_memory(), *sds = ds + w + c.a.chunk;
    int32_t *from = (int32_t *)(sds + w + c.a.chunk);
    if (t >= p.len) return;
    for (int64_t g = 0; g < c.group; g++) {
        const int64_t h = hk * c.group + g;
        for (int64_t j = threadIdx.x / 32; j < all; j += WARPS) {
            const int64_t r = j < w ? c.a.sel[(block * c.a.HV + h) * w + j] : p.row + j - w;
            const struct score_grad x =
                r < 0 ? (struct score_grad){0, 0, 0} : score_grad_of<LEARNED>(c, b.R, h, row, r, j < w);
            if (threadIdx.x % 32) continue;
            ds[j] = x.ds * c.a.tau[h] / sqrtf((float)c.a.K);
            sds[j] = x.ds * x.s;
            from[j] = (int32_t)r;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < c.a.K; i += THREADS) {
            float *sum = b.own + (row * c.a.HV + hk * c.group) * (c.a.K + c.a.V) + i; /* free until rowwise_kv */
            float x = g ? *sum : 0;
            for (int64_t j = 0; j < all; j++)
                if (from[j] >= 0) x += ds[j] * f32(row_of(c.a.k, from[j], c.a.H, hk, c.a.K)[i]);
            *sum = x;
            put((act *)c.a.dq + (row * c.a.H + hk) * c.a.K + i, x);
        }
        if (threadIdx.x == 0) {
            float x = 0;
            for (int64_t j = 0; j < all; j++) x += sds[j];
            b.tau[row * c.a.HV + h] = x;
        }
        __syncthreads();
    }
}

/* grid (blocks (window + C), HV): one column's dk and dv from the block's queries. shared: ds, p of the
 * queries, and ds without its factor */
template <bool LEARNED> static __global__ void rowwise_kv(const struct cache_dev c, const struct cache_back b) {
    const int64_t w = c.a.window, C = c.a.chunk, K = c.a.K, V = c.a.V, h = blockIdx.y;
    const int64_t block = blockIdx.x / (w + C), j = blockIdx.x % (w + C), first = j < w ? 0 : j - w;
    const struct hl_dev_span p = c.rows.block[block];
    const int64_t row = j < w ? c.a.sel[(block * c.a.HV + h) * w + j] : j - w < p.len ? p.row + j - w : -1;
    const float scale = c.a.tau[h] / sqrtf((float)K);
    const bool learned = LEARNED && j < w;
    float *ds = (float *)shared_memory(), *weight = ds + C, *bias = weight + C;
    float *to = j < w ? b.kept + ((block * c.a.HV + h) * w + j) * (K + V) : b.own + (row * c.a.HV + h) * (K + V);
    if (row < 0) return;
    for (int64_t t = first + threadIdx.x / 32; t < p.len; t += WARPS) {
        const struct score_grad x = score_grad_of<LEARNED>(c, b.R, h, p.row + t, row, j < w);
        if (threadIdx.x % 32 == 0) ds[t] = x.ds * scale, weight[t] = x.p * lambda_at(c.a, p.row + t, h);
        if (learned && threadIdx.x % 32 == 0) bias[t] = x.ds;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < K + V; i += THREADS) {
        float x = 0;
        for (int64_t t = first; t < p.len; t++)
            x += i < K ? ds[t] * f32(row_of(c.a.q, p.row + t, c.a.H, h / c.group, K)[i])
                       : weight[t] * f32(row_of(c.a.dout, p.row + t, c.a.HV, h, V)[i - K]);
        to[i] = x;
    }
    if (learned && threadIdx.x == 0) {
        float x = 0;
        for (int64_t t = 0; t < p.len; t++) x += bias[t];
        b.bias[(block * c.a.HV + h) * w + j] = x;
    }
}

/* Which of the block's kept rows `row` is; -1: none. By one warp. */
static __device__ __forceinline__ int64_t find_kept(const int64_t *sel, int64_t w, int64_t row) {
    for (int64_t i = 0; i < w; i += 64) {
        const int64_t j = i + threadIdx.x % 32;
        const bool first = j < w && sel[j] == row, second = j + 32 < w && sel[j + 32] == row;
        const unsigned one = __ballot_sync(0xffffffffu, first), two = __ballot_sync(0xffffffffu, second);
        if (one) return i + __ffs((int)one) - 1;
        if (two) return i + 32 + __ffs((int)two) - 1;
    }
    return -1;
}

/* grid (T H / WARPS): a warp sums dk of one row and key head, and dv of its value heads. A row that is not kept when
 * its block ends, or is evicted, never returns. */
static __global__ void gather(const struct cache_dev c, const struct cache_back b) {
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = at / c.a.H, hk = at % c.a.H;
    const int64_t K = c.a.K, V = c.a.V, w = c.a.window, lane = threadIdx.x % 32;
    if (row >= c.T) return;
    const int64_t seg = c.rows.row_seg[row], end = c.rows.block_first[seg + 1];
    const int64_t next = c.rows.block_first[seg] + (row - c.rows.seg[seg].row) / c.a.chunk + 1;
    float *sum = b.own + (row * c.a.HV + hk * c.group) * (K + V); /* of the group's heads, one after another */
    for (int64_t g = 0; g < c.group; g++) {
        const int64_t h = hk * c.group + g;
        float *own = sum + g * (K + V);
        for (int64_t n = next; n < end; n++) {
            const int64_t j = find_kept(c.a.sel + (n * c.a.HV + h) * w, w, row);
            if (j < 0) break;
            for (int64_t x = lane; x < K + V; x += 32) own[x] += b.kept[((n * c.a.HV + h) * w + j) * (K + V) + x];
        }
        __syncwarp(); /* other lanes' columns */
        for (int64_t x = lane; x < V; x += 32) {
            act *v = (act *)c.a.dv + (row * c.a.HV + h) * V + x;
            put(v, f32(*v) + own[K + x]);
        }
        for (int64_t x = lane; x < K && g > 0; x += 32) sum[x] += own[x];
    }
    for (int64_t x = lane; x < K; x += 32) put((act *)c.a.dk + (row * c.a.H + hk) * K + x, sum[x]);
}

/* dk, dv += the contributions to row `row` as kept row j of `block`, and of later blocks while it is kept. A lane's
 * columns are 4 lane and 128 + 4 lane of D; dk, and dv unless NULL. */
static __device__ __forceinline__ void add_contributions(const struct cache_dev &c, const struct cache_back &b,
                                                         int64_t row, int64_t h, int64_t block, int64_t end, int64_t j,
                                                         float dk[2][4], float dv[2][4]) {
    const int64_t D = c.a.K, w = c.a.window;
    while (j >= 0) {
        const float *from = b.kept + ((block * c.a.HV + h) * w + j) * 2 * D;
        float4 k[2], v[2]; /* in flight while the next block is searched */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t x = 128 * i + threadIdx.x % 32 * 4;
            k[i] = x < D ? *(const float4 *)(from + x) : make_float4(0, 0, 0, 0);
            v[i] = x < D ? *(const float4 *)(from + D + x) : make_float4(0, 0, 0, 0);
        }
        block++;
        j = block < end ? find_kept(c.a.sel + (block * c.a.HV + h) * w, w, row) : -1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            dk[i][0] += k[i].x, dk[i][1] += k[i].y, dk[i][2] += k[i].z, dk[i][3] += k[i].w;
            if (dv) dv[i][0] += v[i].x, dv[i][1] += v[i].y, dv[i][2] += v[i].z, dv[i][3] += v[i].w;
        }
    }
}
struct __align__(4 * sizeof(act)) four {
    act x[4];
};
/* a lane's columns of a row of D */
struct columns {
    struct four x[2];
};
static __device__ __forceinline__ struct columns columns_of(const act *row, int D) {
    struct columns c;
    for (int i = 0; i < 2; i++) {
        const int x = 128 * i + threadIdx.x % 32 * 4;
        if (x < D) c.x[i] = *(const struct four *)(row + x);
    }
    return c;
}
static __device__ __forceinline__ void write_sum(act *to, struct columns old, const float sum[2][4], int D) {
    for (int i = 0; i < 2; i++) {
        const int x = 128 * i + threadIdx.x % 32 * 4;
        if (x >= D) continue;
        for (int j = 0; j < 4; j++) put(&old.x[i].x[j], f32(old.x[i].x[j]) + sum[i][j]);
        *(struct four *)(to + x) = old.x[i];
    }
}

/* grid (blocks HV, window / WARPS): a warp has one kept row of one block. If the row belongs to the previous block, it
 * adds all its contributions to dk and dv; dk of a row kept by several value heads of a key head is summed by the first
 * of them. */
static __global__ void gather_kept(const struct cache_dev c, const struct cache_back b) {
    const int HV = (int)c.a.HV, D = (int)c.a.K, w = (int)c.a.window, group = (int)c.group;
    const int block = blockIdx.x / HV, h = blockIdx.x % HV, hk = h / group,
              slot = blockIdx.y * WARPS + threadIdx.x / 32;
    pdl_wait(), pdl_trigger();
    if (slot >= w) return;
    const int64_t row = c.a.sel[(int64_t)blockIdx.x * w + slot];
    const int seg = c.rows.block[block].seg, before = c.rows.block[max(block - 1, 0)].row;
    if (row < before) return; /* none (-1), or kept before */
    const int end = c.rows.block_first[seg + 1];
    act *to_v = (act *)c.a.dv + (row * HV + h) * D, *to_k = (act *)c.a.dk + (row * c.a.H + hk) * D;
    const struct columns old_v = columns_of(to_v, D), old_k = columns_of(to_k, D); /* in flight */
    float dk[2][4] = {}, dv[2][4] = {};
    bool first = true;
    for (int i = hk * group; i < h; i++)
        first = first && find_kept(c.a.sel + ((int64_t)block * HV + i) * w, w, row) < 0;
    add_contributions(c, b, row, h, block, end, slot, dk, dv);
    write_sum(to_v, old_v, dv, D);
    if (!first) return;
    for (int i = h + 1; i < (hk + 1) * group; i++)
        add_contributions(c, b, row, i, block, end, find_kept(c.a.sel + ((int64_t)block * HV + i) * w, w, row), dk,
                          NULL);
    write_sum(to_k, old_k, dk, D);
}

/* dscore = sigma(-score) (sums of ds over all blocks that keep the row), like gather_kept: a warp has one kept row of
 * one block, and if the row belongs to the previous block, it sums all of them. Rows that are never kept:
 * clear_scores. */
static __global__ void clear_scores(const struct cache_dev c) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < c.T * c.a.HV) c.a.dscore[i] = 0.0f;
}
static __global__ void gather_scores(const struct cache_dev c, const struct cache_back b) {
    const int HV = (int)c.a.HV, w = (int)c.a.window, h = blockIdx.x % HV, slot = blockIdx.y * WARPS + threadIdx.x / 32;
    int block = blockIdx.x / HV;
    if (slot >= w) return;
    const int64_t row = c.a.sel[(int64_t)blockIdx.x * w + slot];
    const int seg = c.rows.block[block].seg, end = c.rows.block_first[seg + 1];
    float sum = 0.0f;
    if (row < c.rows.block[max(block - 1, 0)].row) return; /* none (-1), or kept before */
    for (int64_t j = slot; j >= 0;) {
        sum += b.bias[((int64_t)block * HV + h) * w + j];
        block++;
        j = block < end ? find_kept(c.a.sel + ((int64_t)block * HV + h) * w, w, row) : -1;
    }
    const float score = c.a.score[row * HV + h];
    if (threadIdx.x % 32 == 0) c.a.dscore[row * HV + h] = sum / (1.0f + expf(score));
}

/* grid (HV): the gradients of the scalars, summed in a fixed order. May overlap `gather_kept` (PDL), which has waited
 * for the kernels that wrote the summands; the pdl_wait at the end makes the next kernel wait for both. */
static __global__ void __launch_bounds__(1024) sum_scalars(const struct cache_dev c, const struct cache_back b) {
    __shared__ float scratch[33];
    const int64_t h = blockIdx.x;
    for (int k = 0; k < 3; k++) {
        float *to = k == 0 ? c.a.dgate : k == 1 ? c.a.dsink : c.a.dtau, x = 0;
        const float *from = k < 2 ? b.gate_sink + h * 2 + k : b.tau + h;
        if (!to) continue;
        for (int64_t i = threadIdx.x; i < (k < 2 ? b.n_gate_sink : b.n_tau); i += blockDim.x)
            x += from[i * c.a.HV * (k < 2 ? 2 : 1)];
        x = block_sum(x, scratch);
        if (threadIdx.x == 0) to[h] += x;
    }
    pdl_wait();
}

template <bool LEARNED>
static void run_rowwise(struct hl_cuda *cuda, const struct cache_dev *c, const struct cache_back *b) {
    const struct hl_cache *a = &c->a;
    const int64_t all = a->window + a->chunk; /* + 16 bytes: loads may be wide */
    launch(cuda, rowdot, blocks_for(c->T * a->HV, WARPS), THREADS, 0, *c, *b);
    launch(cuda, rowwise_q<LEARNED>, dim3((unsigned)(c->rows.blocks * a->chunk), (unsigned)a->H), THREADS,
           (size_t)(all * 12 + 16), *c, *b);
    launch(cuda, rowwise_kv<LEARNED>, dim3((unsigned)(c->rows.blocks * all), (unsigned)a->HV), THREADS,
           (size_t)(a->chunk * (LEARNED ? 12 : 8)), *c, *b);
    launch(cuda, gather, blocks_for(c->T * a->H, WARPS), THREADS, 0, *c, *b);
}

static float *carve_floats(struct hl_carve *c, int64_t n) { return (float *)hl_carve(c, n, 4); }

extern "C" void HL_OP(cache_backward)(struct hl_backend *backend, const struct hl_cache *a) {
    struct hl_cuda *cuda = hl_cuda_of(backend);
    struct cache_dev c = cache_dev_of(a);
    struct cache_back b = {};
    struct hl_carve s = {NULL, 0, 256};
    const bool learned = a->policy.score == HL_SCORE_LEARNED; /* the block kernels do not support biases */
    const int64_t shares = cache_tiled(a) && !learned ? HL_OP(cache_back_block256_shares)(cuda, a) : 0;
    const bool by_block = shares > 0 || (cache_tiled(a) && !learned && HL_OP(cache_back_block_fits)(cuda, a));
    const bool tiled = !by_block && cache_tiled(a) && HL_OP(cache_back_fits)(cuda, a);
    if (c.T == 0) return;
    b.n_gate_sink = by_block ? c.rows.blocks * (shares ? shares : BLOCK_WARPS)
                    : tiled  ? c.rows.blocks * tiles_of(a->chunk)
                             : c.T;
    b.n_tau = by_block ? b.n_gate_sink : tiled ? c.rows.blocks * (tiles_of(a->window) + tiles_of(a->chunk)) : c.T;
    for (int pass = 0; pass < 2; pass++) { /* counts, then offsets */
        s.used = 0;
        b.R = carve_floats(&s, by_block ? 0 : c.T * a->HV);
        b.gate_sink = carve_floats(&s, b.n_gate_sink * a->HV * 2);
        b.tau = carve_floats(&s, b.n_tau * a->HV);
        b.kept = carve_floats(&s, c.rows.blocks * a->HV * a->window * (a->K + a->V));
        b.bias = carve_floats(&s, learned ? c.rows.blocks * a->HV * a->window : 0);
        if (tiled) b.ds = carve_floats(&s, c.rows.blocks * a->HV * ds_tiles(a) * TILE * TILE / 2);
        else if (!by_block) b.own = carve_floats(&s, c.T * a->HV * (a->K + a->V));
        if (pass == 0) s.base = (char *)hl_cuda_scratch(cuda, s.used);
        if (!s.base) return;
    }
    if (by_block || tiled) {
        if (shares) HL_OP(cache_back_block256)(cuda, &c, &b);
        else if (by_block) HL_OP(cache_back_block)(cuda, &c, &b);
        else {
            HL_OP(cache_back_rowdot)(cuda, &c, &b);
            HL_OP(cache_back_kv)(cuda, &c, &b);
            HL_OP(cache_back_q)(cuda, &c, &b);
        }
        if (a->window > 0)
            launch_pdl(cuda, gather_kept, dim3((unsigned)(c.rows.blocks * a->HV), blocks_for(a->window, WARPS)),
                       THREADS, 0, c, b);
    } else (learned ? run_rowwise<true> : run_rowwise<false>)(cuda, &c, &b);
    if (learned) launch(cuda, clear_scores, blocks_for(c.T * a->HV, THREADS), THREADS, 0, c);
    if (learned && a->window > 0)
        launch(cuda, gather_scores, dim3((unsigned)(c.rows.blocks * a->HV), blocks_for(a->window, WARPS)), THREADS, 0,
               c, b);
    if (a->window > 0 && !learned) launch_pdl(cuda, sum_scalars, (unsigned)a->HV, 1024, 0, c, b);
    else launch(cuda, sum_scalars, (unsigned)a->HV, 1024, 0, c, b);
}
