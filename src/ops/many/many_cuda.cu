/* many_cuda.cu -- see many.h. Every kernel starts while the one before it still works (early.cuh). */
#include "ops/many/many_product.cuh"
#include "cuda/limits.cuh"
#include "ops/cache/cache_step_cuda.cuh"
#include "ops/gdn/gdn_step_cuda.cuh"
extern "C" {
#include "ops/many/many.h"
}

#ifndef HL_CUDA_F32

/* ---- a row's embedding, as the products leave it: a block each ---- */

enum { THREADS = 256 };
static __global__ void many_embed(const bf16 *E, const int32_t *ids, const float *weight, bf16 *x,
                                  const struct panels panels, float *squares, int d, int *counts, int heads) {
    const int row = blockIdx.x;
    wait_for_others(), let_others_start();
    const bf16 *from = E + (int64_t)ids[row] * d;
    for (int i = threadIdx.x; i < heads; i += THREADS) counts[row * heads + i] = 0; /* of the exact memory */
    for (int i = threadIdx.x; i < d; i += THREADS) { /* d is a multiple of 64 */
        const bf16 v = from[i];
        const float s = warp_sum(f32(v) * f32(v));
        x[(int64_t)row * d + i] = v;
        put(panel_at(panels, row, i), f32(v) * weight[i]);
        if (threadIdx.x % 32 == 0) squares[row * (d / SQUARES) + i / SQUARES] = s;
    }
}

/* ---- convolutions and norms of q, k, v: a warp has a head of one of them ---- */

struct many_prepare {
    const struct hl_seg *seg;
    const bf16 *in; /* [M][ld]: q, k, v, ... */
    bf16 *q, *k, *qt, *kt, *v;
    const float *w[3], *gamma[2]; /* gamma NULL: no second norm */
    int64_t tail[3];              /* from a session's start */
    int ld, H, HV, units;
};
enum { PREPARE_WARPS = 4 };

/* N neighbours */
template <int N> static __device__ __forceinline__ void load_acts(float *x, const bf16 *p) {
    if constexpr (N == 8) load_wide(x, p);
    else
        for (int i = 0; i < N; i += 2) {
            const uint32_t u = *(const uint32_t *)(p + i);
            x[i] = low(u), x[i + 1] = high(u);
        }
}
template <int N> static __device__ __forceinline__ void store_acts(bf16 *p, const float *x) {
    if constexpr (N == 8) store_wide(p, x);
    else
        for (int i = 0; i < N; i += 2) *(uint32_t *)(p + i) = pack2(x[i], x[i + 1]);
}

template <int N> static __device__ __forceinline__ void load_floats(float *x, const float *p) {
    if constexpr (N == 2) x[0] = ((const float2 *)p)->x, x[1] = ((const float2 *)p)->y;
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) load_wide(x + i, p + i);
}
template <int N> static __device__ __forceinline__ void store_floats(float *p, const float *x) {
    if constexpr (N == 2) *(float2 *)p = make_float2(x[0], x[1]);
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) store_wide(p + i, x + i);
}

template <int D>
static __global__ void __launch_bounds__(32 * PREPARE_WARPS) prepare(const struct many_prepare a) {
    enum { N = D / 32 };
    const int unit = blockIdx.x * PREPARE_WARPS + threadIdx.x / 32, row = blockIdx.y, lane = threadIdx.x % 32;
    if (unit >= a.units) { /* (the grid ends when the one before has) */
        let_others_start(), wait_for_others();
        return;
    }
    const int which = unit < a.H ? 0 : unit < 2 * a.H ? 1 : 2, head = unit - which * a.H;
    const int heads = which == 2 ? a.HV : a.H, c = head * D + lane * N;
    const struct hl_seg seg = a.seg[row];
    float *tail = (float *)(seg.state + a.tail[which]) + c, h[4][N] = {}, w[N][4], gamma[N] = {}, y[N],
          sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (seg.pos) load_floats<N>(h[i], tail + i * heads * D);
    load_floats<4 * N>(&w[0][0], a.w[which] + c * 4);
    if (which < 2 && a.gamma[which % 2]) load_floats<N>(gamma, a.gamma[which % 2] + lane * N);
    let_others_start(), wait_for_others(); /* the delta rule reads nothing but states before it waits */
    load_acts<N>(h[3], a.in + (int64_t)seg.row * a.ld + unit * D + lane * N);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float u = w[j][0] * h[0][j] + w[j][1] * h[1][j] + w[j][2] * h[2][j] + w[j][3] * h[3][j];
        y[j] = quick_silu(u), sum += y[j] * y[j];
    }
#pragma unroll
    for (int i = 0; i < 3; i++) store_floats<N>(tail + i * heads * D, h[i + 1]);
    const int64_t at = (int64_t)seg.row * heads * D + c;
    if (which == 2) {
        store_acts<N>(a.v + at, y);
        return;
    }
    sum = warp_sum(sum);
    const float r = rsqrtf(sum + (float)HL_L2_EPS), rt = rsqrtf(sum / (float)D + 1e-6f);
    float z[N];
    for (int j = 0; j < N; j++) z[j] = r * y[j];
    store_acts<N>((which ? a.k : a.q) + at, z);
    for (int j = 0; j < N; j++) z[j] = rt * y[j] * gamma[j];
    if (a.gamma[which]) store_acts<N>((which ? a.kt : a.qt) + at, z);
}

/* ---- the op ---- */

struct many { /* the rows' numbers, one array after another */
    bf16 *x, *h, *in, *q, *k, *qt, *kt, *v;
    struct panels xw, hw, y, act;
    float *o, *sums, *squares_x, *squares_h, *shares;
    int ld, tiles; /* of `in`; of the delta rule */
};
/* The next n items; NULL while only counting. */
static void *cut(char *block, int64_t *used, int64_t n, int64_t size) {
    void *at = block ? block + *used : NULL;
    *used += (n * size + 255) / 256 * 256;
    return at;
}
static struct panels cut_panels(char *block, int64_t *used, int64_t rows, int64_t K) {
    const int each = rows > 32 ? 64 : 32;
    const struct panels p = {(bf16 *)cut(block, used, (int64_t)panels_of(K) * each * PANEL, 2), each};
    return p;
}
static int64_t carve(struct many *b, char *block, const struct hl_decode *p, const struct hl_cache *cache) {
    const int64_t M = p->rows->T, qk = p->H * p->K, vv = p->HV * p->V;
    const int64_t in = 2 * qk + vv + (p->decay + p->beta) * p->HV + (p->gated ? vv : 0);
    int64_t used = 0;
    b->ld = (int)((in + 7) / 8 * 8), b->tiles = (int)(p->V / GDN_STEP_COLS);
    b->x = (bf16 *)cut(block, &used, M * p->d, 2), b->h = (bf16 *)cut(block, &used, M * p->d, 2);
    b->in = (bf16 *)cut(block, &used, M * b->ld, 2);
    b->q = (bf16 *)cut(block, &used, M * qk, 2), b->k = (bf16 *)cut(block, &used, M * qk, 2);
    b->qt = (bf16 *)cut(block, &used, M * qk, 2), b->kt = (bf16 *)cut(block, &used, M * qk, 2);
    b->v = (bf16 *)cut(block, &used, M * vv, 2);
    b->xw = cut_panels(block, &used, M, p->d), b->hw = cut_panels(block, &used, M, p->d);
    b->y = cut_panels(block, &used, M, vv), b->act = cut_panels(block, &used, M, p->I);
    b->o = (float *)cut(block, &used, M * vv, 4);
    b->sums = (float *)cut(block, &used, M * p->HV * b->tiles, 4);
    b->squares_x = (float *)cut(block, &used, M * p->d / SQUARES, 4);
    b->squares_h = (float *)cut(block, &used, M * p->d / SQUARES, 4);
    b->shares = (float *)cut(block, &used, HL_OP(cache_step_scratch)(cache), 1);
    return used;
}

static void start_prepare(struct hl_cuda *c, const struct hl_decode *p, const struct many *b,
                          const struct hl_decode_layer *y, int64_t at) {
    struct many_prepare a = {p->rows->dev->seg, b->in, b->q, b->k, b->qt, b->kt, b->v};
    for (int i = 0; i < 3; i++) a.w[i] = y->conv[i], a.tail[i] = at + p->tail[i];
    if (p->rms) a.gamma[0] = y->q_norm, a.gamma[1] = y->k_norm;
    a.ld = b->ld, a.H = (int)p->H, a.HV = (int)p->HV, a.units = 2 * a.H + a.HV;
    const dim3 grid(blocks_for(a.units, PREPARE_WARPS), (unsigned)p->rows->T);
    void (*kernel)(struct many_prepare) = p->K == 64    ? prepare<64>
                                          : p->K == 128 ? prepare<128>
                                                        : prepare<256>;
    launch_early(c, kernel, grid, 32 * PREPARE_WARPS, 0, a);
}
static void start_state(struct hl_cuda *c, const struct hl_decode *p, const struct many *b,
                        const struct hl_decode_layer *y, int64_t at) {
    const int64_t ab = 2 * p->H * p->K + p->HV * p->V;
    struct gdn_step a = {b->q, b->k, b->v};
    a.sums = b->sums, a.seg = p->rows->dev->seg, a.S_off = at + p->S, a.T = p->rows->T;
    a.H = (int)p->H, a.HV = (int)p->HV, a.V = (int)p->V, a.tiles = b->tiles;
    a.raw = true, a.ld = b->ld, a.top = p->neg_eigval ? 2.0f : 1.0f;
    if (p->decay) a.a = b->in + ab, a.A_log = y->A_log, a.dt_bias = y->dt_bias;
    if (p->beta) a.b = b->in + ab + (p->decay ? p->HV : 0);
    a.evict = p->evict, a.out32 = b->o;
    HL_OP(gdn_step_start)(c, &a, p->K, p->rows->n);
}
static struct hl_cache cache_of(const struct hl_decode *p, const struct many *b,
                                const struct hl_decode_layer *y, int64_t at) {
    struct hl_cache a = {p->rows, p->H, p->HV, p->K, p->V, p->window, p->chunk, p->evict};
    a.q = p->rms ? b->qt : b->q, a.k = p->rms ? b->kt : b->k, a.v = b->v;
    a.tau = y->tau, a.sink = y->sink, a.gate = y->cache_gate, a.state_off = at + p->cache_at;
    return a;
}
static void start_cache(struct hl_cuda *c, const struct hl_decode *p, const struct many *b,
                        const struct hl_decode_layer *y, int64_t at) {
    const struct hl_cache a = cache_of(p, b, y, at);
    const struct cache_dev dev = cache_dev_of(&a);
    struct cache_finish e = {b->o, b->sums, b->tiles, y->o_norm, p->eps};
    if (p->gated) e.z = b->in + 2 * p->H * p->K + p->HV * p->V + (p->decay + p->beta) * p->HV;
    e.ld = b->ld, e.y = b->y;
    HL_OP(cache_step_with)(c, &dev, b->shares, &e);
}

static struct many_linear linear(const struct hl_decode *p, const struct panels &x, int64_t K, const void *W,
                                 int64_t N, void *out, int64_t ld) {
    struct many_linear a = {x, (const bf16 *)W};
    a.M = (int)p->rows->T, a.K = (int)K, a.N = (int)N, a.out = out, a.ld = (int)ld, a.eps = p->eps;
    return a;
}
static void start_layer(struct hl_cuda *c, const struct hl_decode *p, const struct many *b, int64_t l) {
    const struct hl_decode_layer *y = &p->host[l];
    const int64_t vv = p->HV * p->V, at = l * p->layer_bytes,
                  N = 2 * p->H * p->K + vv + (p->decay + p->beta) * p->HV + (p->gated ? vv : 0);
    struct many_linear in = linear(p, b->xw, p->d, y->in, N, b->in, b->ld),
                       o = linear(p, b->y, vv, y->o, p->d, b->h, p->d),
                       mlp = linear(p, b->hw, p->d, y->gate, p->I, NULL, 0),
                       down = linear(p, b->act, p->I, y->down, p->d, b->x, p->d);
    in.squares = b->squares_x;
    o.from = b->x, o.squares_out = b->squares_h, o.panels = b->hw, o.weight = y->mlp_norm;
    mlp.squares = b->squares_h, mlp.W2 = (const bf16 *)y->up, mlp.panels = b->act;
    down.from = b->h, down.squares_out = b->squares_x, down.panels = b->xw;
    down.weight = l + 1 < p->L ? p->host[l + 1].attn_norm : p->final_norm;
    start_product<48, 96, NORMED>(c, in);
    start_prepare(c, p, b, y, at);
    start_state(c, p, b, y, at);
    start_cache(c, p, b, y, at);
    start_product<32, 64, JOINED>(c, o);
    start_product<96, 64, GATED>(c, mlp);
    start_product<32, 64, JOINED>(c, down);
}

static bool has_room(void) {
#ifdef HL_CUDA_EMU
    return true;
#else
    return shared_limit() >= SHARED_MOST && can_wait((const void *)many_product<32, JOINED>);
#endif
}

extern "C" bool HL_OP(decode_many)(struct hl_pool *pool, const struct hl_decode *p) {
    struct hl_cuda *c = hl_cuda_of(pool);
    struct many b = {};
    const struct hl_cache any = cache_of(p, &b, &p->host[0], 0);
    if (!has_room()) return false;
    char *block = (char *)hl_cuda_scratch(c, carve(&b, NULL, p, &any));
    if (!block) return true; /* the failure is kept */
    carve(&b, block, p, &any);
    launch(c, many_embed, (unsigned)p->rows->T, THREADS, 0, (const bf16 *)p->embed, p->ids,
           p->host[0].attn_norm, b.x, b.xw, b.squares_x, (int)p->d, (int *)b.shares, (int)p->HV);
    for (int64_t l = 0; l < p->L; l++) start_layer(c, p, &b, l);
    if (!p->logits) return true;
    struct many_linear head = linear(p, b.xw, p->d, p->head, p->vocab, p->logits, p->vocab);
    head.squares = b.squares_x;
    start_product<96, 64, LOGITS>(c, head);
    return true;
}

#endif
