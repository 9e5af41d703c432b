/* gla_plain_cuda.cu -- gated linear attention and its gradients token by token, for any head sizes up to 1024: float
 * activations, odd head sizes, query groups and chips before Hopper.
 *
 * Everything is one walk over a segment, in two directions and two layouts. With S_t the state after token t and D_t
 * its gradient:
 *     forward  S = exp(g) S + k v^T           columns: out = scale S^T q       rows: dq = scale S dout
 *     reverse  D += scale q dout^T, read,     columns: dv = D^T k              rows: dk = D v
 *              then D = exp(g) D
 * and dg is the sum of q dq - k dk over the token and all later ones. Grid: a warp per segment, key head and OWN
 * columns or rows of the state, WARPS a block; lanes have the other index, 32 apart. No shared memory, no barrier. */
#include "ops/cuda_ops.cuh"
#include "ops/gla/gla_cuda.cuh"

enum { OWN = 4, WARPS = 4, MOST = 32, /* numbers of a lane */ SUM_THREADS = 128 };
enum side { COLUMNS, ROWS_OF_S };

struct args {
    struct gla_view a;
    const struct hl_seg *seg;
    act *to; /* out, dq, dv or dk */
    int64_t ld_to;
    float *to_float;           /* the same, rows dense */
    float *dG;                 /* [T][HK][K], of rows: q dq is stored, then k dk subtracted; NULL: not wanted */
    const float *from, *weigh; /* [segments][HK][K][V], for walks without sessions. from: initial state, NULL: 0 */
    float *end, *to_end;       /* end: final state, NULL: not wanted. to_end [segments][HK][K]: sums over */
                               /* V of weigh times the last state, of forward rows; NULL: not wanted */
    int tiles, segments;
    bool sessions;
};

/* one number of k: row t, key head hk */
static __device__ __forceinline__ float key(const struct gla_view &a, int64_t t, int hk, int c) {
    return a.k ? f32(a.k[t * a.ld_k + hk * a.K + c]) : -expm1f(a.g[(t * a.HK + hk) * a.K + c]);
}
/* rows that a walk writes (of head h) or reads, along the rows or columns of the state */
template <bool KEYS, bool QUERY>
static __device__ __forceinline__ float number(const struct gla_view &a, int64_t t, int h, int hk, int i) {
    if (KEYS) return QUERY ? f32(a.q[t * a.ld_q + h * a.K + i]) : key(a, t, hk, i);
    return QUERY ? f32(a.dout[(t * a.H + h) * a.V + i]) : f32(a.v[t * a.ld_v + hk * a.V + i]);
}
template <int R, bool KEYS, bool QUERY>
static __device__ __forceinline__ void lane_numbers(float x[R], const struct gla_view &a, int64_t t, int h, int hk) {
    const int n = (int)(KEYS ? a.K : a.V), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < R; i++) x[i] = lane + 32 * i < n ? number<KEYS, QUERY>(a, t, h, hk, lane + 32 * i) : 0.0f;
}

template <int R, bool REVERSE, int SIDE>
static __global__ void __launch_bounds__(32 * WARPS) walk(const struct args p) {
    const struct gla_view &a = p.a;
    const bool columns = SIDE == COLUMNS;
    const int64_t id = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, s = id / p.tiles / a.HK;
    const int lane = threadIdx.x % 32, own = (int)(id % p.tiles) * OWN, hk = (int)(id / p.tiles % a.HK);
    if (s >= p.segments) return;
    const struct hl_seg seg = p.seg[s];
    const int lanes = (int)(columns ? a.K : a.V), size = (int)(columns ? a.V : a.K), group = (int)(a.H / a.HK);
    const int many = min((int)OWN, size - own);
    const int64_t step_k = a.trans ? 1 : a.V, step_v = a.trans ? a.K : 1;
    const int64_t step_lane = columns ? step_k : step_v, step_own = columns ? step_v : step_k;
    const int64_t state = (s * a.HK + hk) * a.K * a.V + own * step_own;
    float *session = p.sessions && seg.state ? (float *)(seg.state + a.S_off) + hk * a.K * a.V + own * step_own : NULL;
    const float *from = session ? session : p.from ? p.from + state : NULL;
    float *end = session ? session : p.end ? p.end + state : NULL;
    float S[OWN][R], x[R], decay[columns ? R : OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++)
#pragma unroll
        for (int i = 0; i < R; i++)
            S[j][i] =
                from && j < many && lane + 32 * i < lanes ? from[j * step_own + (lane + 32 * i) * step_lane] : 0.0f;
    for (int64_t n = 0; n < seg.len; n++) {
        const int64_t t = seg.row + (REVERSE ? seg.len - 1 - n : n);
        const float *g = a.g + (t * a.HK + hk) * a.K;
#pragma unroll
        for (int i = 0; i < (columns ? R : (int)OWN); i++) {
            const int c = columns ? lane + 32 * i : own + i;
            decay[i] = c < a.K ? expf(g[c]) : 0.0f;
        }
        if (!REVERSE)
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int i = 0; i < R; i++) S[j][i] *= decay[columns ? i : j];
        for (int m = 0; m < (REVERSE ? group : 1); m++) { /* writes */
            const int h = hk * group + m;
            lane_numbers<R, columns, REVERSE>(x, a, t, h, hk);
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float y = j < many ? number<!columns, REVERSE>(a, t, h, hk, own + j) : 0.0f;
#pragma unroll
                for (int i = 0; i < R; i++) S[j][i] += (REVERSE ? a.scale * y : y) * x[i];
            }
        }
        float product[OWN] = {0.0f};
        for (int m = 0; m < (REVERSE ? 1 : group); m++) { /* reads */
            const int h = hk * group + m;
            lane_numbers<R, columns, !REVERSE>(x, a, t, h, hk);
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                float y = 0.0f;
#pragma unroll
                for (int i = 0; i < R; i++) y += S[j][i] * x[i];
                y = (REVERSE ? 1.0f : a.scale) * warp_sum(y);
                if (j >= many) continue;
                if (lane == 0 && p.to) put(p.to + t * p.ld_to + (REVERSE ? hk : h) * size + own + j, y);
                if (lane == 0 && p.to_float)
                    p.to_float[(t * (REVERSE ? a.HK : a.H) + (REVERSE ? hk : h)) * size + own + j] = y;
                if (!columns && p.dG) product[j] += y * number<true, !REVERSE>(a, t, h, hk, own + j);
            }
        }
        if (!columns && p.dG && lane == 0)
#pragma unroll
            for (int j = 0; j < OWN; j++)
                if (j < many) {
                    float *dG = p.dG + (t * a.HK + hk) * a.K + own + j;
                    *dG = REVERSE ? *dG - product[j] : product[j];
                }
        if (REVERSE)
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int i = 0; i < R; i++) S[j][i] *= decay[columns ? i : j];
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int64_t at = j * step_own + (lane + 32 * i) * step_lane;
            if (j >= many || lane + 32 * i >= lanes) continue;
            if (end) end[at] = S[j][i];
            if (!columns && p.to_end) sum += S[j][i] * p.weigh[state + at];
        }
        if (columns || !p.to_end) continue;
        sum = warp_sum(sum);
        if (lane == 0 && j < many) p.to_end[(s * a.HK + hk) * a.K + own + j] = sum;
    }
}
/* dg from dG, in double: the terms nearly cancel. ends: of dG after the last token, NULL: 0. Grid (segments, HK K /
 * SUM_THREADS), a thread has a channel. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_later(float *dg, const float *dG, const float *ends, const struct hl_seg *segs, int64_t width) {
    const struct hl_seg seg = segs[blockIdx.x];
    const int64_t c = (int64_t)blockIdx.y * SUM_THREADS + threadIdx.x;
    if (c >= width) return;
    double sum = ends ? ends[blockIdx.x * width + c] : 0.0;
    for (int64_t t = seg.row + seg.len - 1; t >= seg.row; t--)
        sum += (double)dG[t * width + c], dg[t * width + c] = (float)sum;
}

template <bool REVERSE, int SIDE> static void launch_walk(struct hl_cuda *c, struct args p) {
    const int64_t lanes = SIDE == COLUMNS ? p.a.K : p.a.V, size = SIDE == COLUMNS ? p.a.V : p.a.K;
    HL_ASSERT(lanes <= 32 * MOST);
    p.seg = p.a.rows->dev->seg, p.segments = (int)p.a.rows->n, p.tiles = (int)((size + OWN - 1) / OWN);
    const unsigned blocks = blocks_for(p.segments * p.a.HK * p.tiles, WARPS);
    if (lanes <= 64) launch(c, walk<2, REVERSE, SIDE>, blocks, 32 * WARPS, 0, p);
    else if (lanes <= 128) launch(c, walk<4, REVERSE, SIDE>, blocks, 32 * WARPS, 0, p);
    else if (lanes <= 256) launch(c, walk<8, REVERSE, SIDE>, blocks, 32 * WARPS, 0, p);
    else if (lanes <= 512) launch(c, walk<16, REVERSE, SIDE>, blocks, 32 * WARPS, 0, p);
    else launch(c, walk<MOST, REVERSE, SIDE>, blocks, 32 * WARPS, 0, p);
}
extern "C" void HL_OP(gla_run_plain)(struct hl_backend *backend, const struct gla_view *a, bool sessions) {
    struct args p = {*a};
    p.to = a->out, p.ld_to = a->H * a->V, p.sessions = sessions;
    launch_walk<false, COLUMNS>(hl_cuda_of(backend), p);
}
extern "C" void HL_OP(gla_plain_queries)(struct hl_backend *backend, const struct gla_view *a, float *dq) {
    struct args p = {*a};
    p.to_float = dq, p.sessions = true;
    launch_walk<false, ROWS_OF_S>(hl_cuda_of(backend), p);
}
extern "C" void HL_OP(gla_run_plain_back)(struct hl_backend *backend, const struct gla_view *a, float *dG,
                                          float *dq_float, float *dk_float) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct args p = {*a};
    float *ends = a->dht ? dG + a->rows->T * a->HK * a->K : NULL;
    p.dG = dG;
    p.to = a->dq, p.ld_to = a->ld_q, p.to_float = dq_float;
    p.from = a->h0, p.weigh = a->dht, p.to_end = ends;
    launch_walk<false, ROWS_OF_S>(c, p);
    p.from = a->dht, p.to_end = NULL;
    p.to = a->dk, p.ld_to = a->ld_k, p.to_float = dk_float;
    launch_walk<true, ROWS_OF_S>(c, p);
    p.to = a->dv, p.ld_to = a->ld_v, p.to_float = NULL, p.end = a->dh0;
    launch_walk<true, COLUMNS>(c, p);
    const int64_t width = a->HK * a->K;
    launch(c, sum_later, dim3((unsigned)a->rows->n, blocks_for(width, SUM_THREADS)), SUM_THREADS, 0, a->dg, dG, ends,
           a->rows->dev->seg, width);
}
