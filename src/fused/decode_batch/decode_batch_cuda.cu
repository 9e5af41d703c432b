/* decode_batch_cuda.cu -- see decode_batch.h: the first launch, the prologue, and the launches of a token. */
#include "ops/cuda_ops.cuh"
#include "fused/decode_batch/lm_head.cuh"
#include "core/carve.h"
#include "fused/decode_batch/mixer_step_batch.cuh"
extern "C" {
#include "fused/decode_batch/decode_batch.h"
}

#ifndef HL_CUDA_F32

/* ---- batch_embed: grid M + 1, a block per row; the last one sorts the sessions ---- */

enum { THREADS = 256 };
struct session_order {
    const struct hl_seg *seg;
    int n, window, chunk;
    struct hl_seg *sorted; /* by rows in the cache, most first */
};
/* All threads of a block; one thread per session. */
static __device__ void sort_sessions(const struct session_order &a) {
    __shared__ int rows[HL_DECODE_BATCH_ROWS];
    const int i = threadIdx.x;
    int before = 0;
    if (i < a.n) {
        const int64_t pos = a.seg[i].pos, into = a.chunk ? pos % a.chunk : 0;
        rows[i] = (int)(min(pos - into, (int64_t)a.window) + into);
    }
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < a.n && i < a.n; j++) before += rows[j] > rows[i] || (rows[j] == rows[i] && j < i);
    if (i < a.n) a.sorted[before] = a.seg[i];
}
static __global__ void batch_embed(const bf16 *E, const int32_t *ids, const float *weight, bf16 *x,
                                   const struct panels panels, float *squares, int d,
                                   const struct session_order order) {
    const int row = blockIdx.x;
    pdl_wait(), pdl_trigger();
    if (row + 1 == (int)gridDim.x) {
        sort_sessions(order);
        return;
    }
    const bf16 *from = E + (int64_t)ids[row] * d;
    for (int i = threadIdx.x; i < d; i += THREADS) { /* d is a multiple of 64 */
        const bf16 v = from[i];
        const float s = warp_sum(f32(v) * f32(v));
        x[(int64_t)row * d + i] = v;
        put(panel_at(panels, row, i), f32(v) * weight[i]);
        if (threadIdx.x % 32 == 0) squares[row * (d / SQUARES) + i / SQUARES] = s;
    }
}

/* ---- prologue: q, k and v where several value heads share a key head; grid (heads / warps, M) ---- */

enum { PROLOGUE_WARPS = 4 };
template <int D>
static __global__ void __launch_bounds__(32 * PROLOGUE_WARPS) prologue_kernel(const struct batch_prologue a) {
    const int unit = blockIdx.x * PROLOGUE_WARPS + threadIdx.x / 32, row = blockIdx.y;
    if (unit >= a.units) { /* (must wait too: a grid must not finish before its predecessor) */
        pdl_trigger(), pdl_wait();
        return;
    }
    const int which = unit < a.H ? 0 : unit < 2 * a.H ? 1 : 2;
    const struct hl_seg seg = a.seg[row];
    struct conv_head<D> x;
    x.load_old(a, seg, which, unit - which * a.H);
    pdl_trigger(), pdl_wait(); /* before its wait, the next kernel reads only states */
    x.load_new(a, (int)seg.row);
    x.fold_old();
    x.finish(a, (int)seg.row, NULL, NULL);
    x.store_tail(a);
}

/* ---- the op ---- */

struct decode_batch { /* the workspace */
    bf16 *x, *h, *in, *q, *k, *qt, *kt, *v;
    struct panels xw, hw, y, act;
    float *squares_x, *squares_h;
    struct hl_seg *sorted;
    int ld; /* stride of `in` */
};
static struct panels carve_panels(struct hl_carve *c, int64_t rows, int64_t K) {
    const int each = rows > 32 ? 64 : 32;
    const struct panels p = {(bf16 *)hl_carve(c, (int64_t)panels_of(K) * each * PANEL, 2), each};
    return p;
}
static int64_t carve(struct decode_batch *b, char *block, const struct hl_decode *p) {
    const int64_t M = p->rows->T, qk = p->H * p->K, vv = p->HV * p->V;
    const int64_t in = 2 * qk + vv + (p->decay + p->beta) * p->HV + (p->gated ? vv : 0);
    struct hl_carve c = {block, 0, 256};
    b->ld = (int)((in + 7) / 8 * 8);
    b->x = (bf16 *)hl_carve(&c, M * p->d, 2), b->h = (bf16 *)hl_carve(&c, M * p->d, 2);
    b->in = (bf16 *)hl_carve(&c, M * b->ld, 2);
    b->q = (bf16 *)hl_carve(&c, M * qk, 2), b->k = (bf16 *)hl_carve(&c, M * qk, 2);
    b->qt = (bf16 *)hl_carve(&c, M * qk, 2), b->kt = (bf16 *)hl_carve(&c, M * qk, 2);
    b->v = (bf16 *)hl_carve(&c, M * vv, 2);
    b->xw = carve_panels(&c, M, p->d), b->hw = carve_panels(&c, M, p->d);
    b->y = carve_panels(&c, M, vv), b->act = carve_panels(&c, M, p->I);
    b->squares_x = (float *)hl_carve(&c, M * p->d / SQUARES, 4);
    b->squares_h = (float *)hl_carve(&c, M * p->d / SQUARES, 4);
    b->sorted = (struct hl_seg *)hl_carve(&c, M, sizeof *b->sorted);
    return c.used;
}

static struct batch_prologue prologue_of(const struct hl_decode *p, const struct decode_batch *b,
                                         const struct hl_decode_layer *y, int64_t at) {
    struct batch_prologue a = {p->rows->dev->seg, b->in, b->q, b->k, b->qt, b->kt, b->v};
    for (int i = 0; i < 3; i++) a.w[i] = y->conv[i], a.tail[i] = at + p->tail[i];
    if (p->rms) a.gamma[0] = y->q_norm, a.gamma[1] = y->k_norm;
    a.ld = b->ld, a.H = (int)p->H, a.HV = (int)p->HV, a.units = 2 * a.H + a.HV;
    return a;
}
static void launch_prologue(struct hl_cuda *c, const struct hl_decode *p, const struct batch_prologue &a) {
    const dim3 grid(blocks_for(a.units, PROLOGUE_WARPS), (unsigned)p->rows->T);
    void (*kernel)(struct batch_prologue) = p->K == 64    ? prologue_kernel<64>
                                            : p->K == 128 ? prologue_kernel<128>
                                                          : prologue_kernel<256>;
    launch_pdl(c, kernel, grid, 32 * PROLOGUE_WARPS, 0, a);
}
static struct gdn_step delta_rule_of(const struct hl_decode *p, const struct decode_batch *b,
                                     const struct hl_decode_layer *y, int64_t at) {
    const int64_t ab = 2 * p->H * p->K + p->HV * p->V;
    struct gdn_step a = {b->q, b->k, b->v};
    a.seg = b->sorted, a.S_off = at + p->S, a.T = p->rows->T;
    a.H = (int)p->H, a.HV = (int)p->HV, a.V = (int)p->V;
    a.raw = true, a.ld = b->ld, a.beta_scale = p->neg_eigval ? 2.0f : 1.0f;
    if (p->decay) a.a = b->in + ab, a.A_log = y->A_log, a.dt_bias = y->dt_bias;
    if (p->beta) a.b = b->in + ab + (p->decay ? p->HV : 0);
    a.score = p->policy.score;
    return a;
}
static struct hl_cache cache_of(const struct hl_decode *p, const struct decode_batch *b,
                                const struct hl_decode_layer *y, int64_t at) {
    struct hl_cache a = {p->rows, p->H, p->HV, p->K, p->V, p->window, p->chunk, p->policy};
    a.q = p->rms ? b->qt : b->q, a.k = p->rms ? b->kt : b->k, a.v = b->v;
    a.tau = y->tau, a.sink = y->sink, a.gate = y->cache_gate, a.state_off = at + p->cache_at;
    return a;
}
static void launch_mixer(struct hl_cuda *c, const struct hl_decode *p, const struct decode_batch *b,
                         const struct hl_decode_layer *y, int64_t at, bool first) {
    const struct gdn_step state = delta_rule_of(p, b, y, at);
    const struct hl_cache a = cache_of(p, b, y, at);
    struct cache_dev dev = cache_dev_of(&a);
    struct mixer_epilogue e = {y->o_norm, p->eps};
    if (p->gated) e.z = b->in + 2 * p->H * p->K + p->HV * p->V + (p->decay + p->beta) * p->HV;
    e.ld = b->ld, e.y = b->y;
    e.prefetch.at = y->o, e.prefetch.bytes = p->HV * p->V * p->d * 2;
    struct batch_prologue prologue = prologue_of(p, b, y, at);
    if (p->H != p->HV) launch_prologue(c, p, prologue), prologue.units = 0;
    prologue.seg = dev.rows.seg = b->sorted;
    HL_OP(mixer_step_batch)(c, &prologue, &state, &dev, &e, first);
}

/* The first data that the mixer of layer l will read, prefetched into L2 in two parts; part 0 has the conv tails. */
static struct state_prefetch prefetch_of(struct hl_cuda *c, const struct hl_decode *p, const struct decode_batch *b,
                                         int64_t l, int part) {
    const int heads = (int)(p->rows->n * p->HV);
    const int64_t at = l * p->layer_bytes;
    struct state_prefetch a = {b->sorted, at + p->S + part * PREFETCH_COLS * (int64_t)sizeof(float), at + p->tail[0]};
    a.heads = heads, a.HV = (int)p->HV, a.rows = (int)p->K, a.columns = (int)p->V;
    if (l < p->L && (part + 1) * PREFETCH_COLS <= p->V) a.blocks = mixer_blocks(c, p->K, heads);
    if (part == 0) a.tail_bytes = (int)(p->cache_at - p->tail[0]); /* the tails of q, k and v are contiguous */
    return a;
}
static struct batch_linear linear_of(const struct hl_decode *p, const struct panels &x, int64_t K, const void *W,
                                     int64_t N, void *out, int64_t ld) {
    struct batch_linear a = {x, (const bf16 *)W};
    a.M = (int)p->rows->T, a.K = (int)K, a.N = (int)N, a.out = out, a.ld = (int)ld, a.eps = p->eps;
    return a;
}
static void launch_layer(struct hl_cuda *c, const struct hl_decode *p, const struct decode_batch *b, int64_t l) {
    const struct hl_decode_layer *y = &p->host[l];
    const int64_t vv = p->HV * p->V, at = l * p->layer_bytes,
                  N = 2 * p->H * p->K + vv + (p->decay + p->beta) * p->HV + (p->gated ? vv : 0);
    struct batch_linear in = linear_of(p, b->xw, p->d, y->in, N, b->in, b->ld),
                        o = linear_of(p, b->y, vv, y->o, p->d, b->h, p->d),
                        mlp = linear_of(p, b->hw, p->d, y->gate, p->I, NULL, 0),
                        down = linear_of(p, b->act, p->I, y->down, p->d, b->x, p->d);
    in.squares = b->squares_x, in.state = prefetch_of(c, p, b, l, 0);
    o.from = b->x, o.squares_out = b->squares_h, o.panels = b->hw, o.weight = y->mlp_norm;
    o.prefetch.at = y->down, o.prefetch.bytes = p->I * p->d * 2;
    mlp.squares = b->squares_h, mlp.W2 = (const bf16 *)y->up, mlp.panels = b->act;
    mlp.state = prefetch_of(c, p, b, l + 1, 1);
    down.from = b->h, down.squares_out = b->squares_x, down.panels = b->xw;
    down.weight = l + 1 < p->L ? p->host[l + 1].attn_norm : p->final_norm;
    launch_gemm<48, 96, NORMED>(c, in);
    launch_mixer(c, p, b, y, at, l == 0);
    launch_gemm<32, 64, RESIDUAL>(c, o);
    launch_gemm<96, 64, GATED>(c, mlp);
    launch_gemm<32, 64, RESIDUAL>(c, down);
}

static bool supported(struct hl_cuda *c) {
#ifdef HL_CUDA_EMU
    return true;
#else
    return hl_cuda_shared_limit(c) >= SHARED_MOST &&
           hl_cuda_compiled_for_sm90(c, (const void *)batch_gemm<32, RESIDUAL>);
#endif
}

extern "C" void HL_OP(decode_batch)(struct hl_backend *backend, const struct hl_decode *p) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct decode_batch b = {};
    *p->refused = !supported(c);
    if (*p->refused) return;
    char *block = (char *)hl_cuda_scratch(c, carve(&b, NULL, p));
    if (!block) return; /* the failure is recorded */
    carve(&b, block, p);
    const struct session_order order = {p->rows->dev->seg, (int)p->rows->n, (int)p->window, (int)p->chunk, b.sorted};
    launch(c, batch_embed, (unsigned)p->rows->T + 1, THREADS, 0, (const bf16 *)p->embed, p->ids, p->host[0].attn_norm,
           b.x, b.xw, b.squares_x, (int)p->d, order);
    for (int64_t l = 0; l < p->L; l++) launch_layer(c, p, &b, l);
    if (!p->logits) return;
    struct batch_linear head = linear_of(p, b.xw, p->d, p->head, p->vocab, p->logits, p->vocab);
    head.squares = b.squares_x;
    launch_lm_head(c, head);
}

#endif
