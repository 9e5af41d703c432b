/* raw_cache_cuda.cu -- the exact memory on raw pointers (include/hola_ops.h): everything around the op. The op itself
 * (ops/cache) has a scale of K^-1/2 and a gate, and adds to out, dv and the gradients of the scalars. So
 *   prepare_scalars   tau including the scale, a gate of 1 if there is none, the scalars' gradients at 0
 *   clear             out or dv at 0
 *   clear_sel         marks unused blocks as having no rows
 * come first, and in the backward pass finish_scalars last. */
#include "ops/raw/raw_cuda.cuh"

enum { THREADS = 256 };

struct scalars {
    const float *tau, *gate;
    float *to_tau, *to_gate, *sums; /* [HV], [HV], [3][HV]: dsink, dtau, dgate */
    float factor, *dsink, *dtau, *dgate;
    int HV;
};
static __global__ void __launch_bounds__(THREADS) prepare_scalars(const struct scalars a) {
    const int h = blockIdx.x * THREADS + threadIdx.x;
    if (h >= a.HV) return;
    a.to_tau[h] = a.factor * (a.tau ? a.tau[h] : 1.0f);
    a.to_gate[h] = a.gate ? a.gate[h] : 1.0f;
    for (int i = 0; i < 3; i++) a.sums[i * a.HV + h] = 0.0f;
}
static __global__ void __launch_bounds__(THREADS) finish_scalars(const struct scalars a) {
    const int h = blockIdx.x * THREADS + threadIdx.x;
    if (h >= a.HV) return;
    if (a.dsink) a.dsink[h] = a.sums[h];
    if (a.dtau) a.dtau[h] = a.factor * a.sums[a.HV + h];
    if (a.dgate) a.dgate[h] = a.sums[2 * a.HV + h];
}
/* n activations, 16-byte aligned */
static __global__ void __launch_bounds__(THREADS) clear(act *to, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE;
    if (i + WIDE <= n) *(uint4 *)(to + i) = make_uint4(0, 0, 0, 0);
    else
        for (int64_t j = i; j < n; j++) put(to + j, 0.0f);
}
/* each: size of a block's lists */
static __global__ void __launch_bounds__(THREADS)
    clear_sel(int64_t *sel, const int32_t *blocks, int64_t each, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n && i >= *blocks * each) sel[i] = -1;
}

struct raw_cache {
    const hola_cache_args *a;
    struct raw_rows rows;
    struct scalars s;
    act *read;
    float *lse;
    int64_t *sel;
};
static void lay_out_kept(struct raw_cache *x, char **p) {
    const hola_cache_args *a = x->a;
    const int64_t rows = a->rows.T * a->HV;
    x->read = (act *)raw_carve(p, rows * a->V * (int64_t)sizeof(act));
    x->lse = (float *)raw_carve(p, rows * 4);
    x->sel = (int64_t *)raw_carve(p, x->rows.dev.blocks * a->HV * a->window * 8);
}
static void lay_out(struct raw_cache *x, char **p) {
    const hola_cache_args *a = x->a;
    char *kept = (char *)a->kept;
    const float factor = a->scale * sqrtf((float)a->K);
    HL_OP(raw_rows_layout)(&x->rows, &a->rows, a->chunk, p);
    if (kept) lay_out_kept(x, &kept);
    x->s.tau = a->tau, x->s.gate = a->gate, x->s.HV = (int)a->HV;
    x->s.factor = a->scale == 0.0f || fabsf(factor - 1.0f) < 1e-6f ? 1.0f : factor;
    x->s.to_tau = (float *)raw_carve(p, a->HV * 4);
    x->s.to_gate = (float *)raw_carve(p, a->HV * 4);
    x->s.sums = (float *)raw_carve(p, 3 * a->HV * 4);
    x->s.dsink = a->dsink, x->s.dtau = a->dtau, x->s.dgate = a->dgate;
}
static struct hl_cache op_of(const struct raw_cache *x) {
    const hola_cache_args *a = x->a;
    struct hl_cache op = {};
    op.rows = &x->rows.rows;
    op.H = a->H, op.HV = a->HV, op.K = a->K, op.V = a->V, op.window = a->window, op.chunk = a->chunk;
    op.policy.score = a->evict == HOLA_EVICT_RECENCY ? HL_SCORE_NONE : HL_SCORE_WRITE;
    op.policy.by_position = a->evict == HOLA_EVICT_RECENCY;
    op.q = a->q, op.k = a->k, op.v = a->v, op.score = a->score;
    op.tau = x->s.to_tau, op.sink = a->sink, op.gate = x->s.to_gate, op.linear_gate = !a->gate;
    if (a->kept) op.read = x->read, op.lse = x->lse, op.sel = x->sel;
    op.dout = a->dout, op.dq = a->dq, op.dk = a->dk, op.dv = a->dv;
    op.dsink = x->s.sums, op.dtau = a->dtau ? x->s.sums + a->HV : NULL, op.dgate = x->s.sums + 2 * a->HV;
    op.out = a->out;
    return op;
}
static void prepare(struct hl_cuda *c, struct raw_cache *x, bool backward) {
    const hola_cache_args *a = x->a;
    const int64_t n = a->rows.T * a->HV * a->V, lists = x->rows.dev.blocks * a->HV * a->window;
    launch(c, prepare_scalars, blocks_for(a->HV, THREADS), THREADS, 0, x->s);
    if (n > 0) launch(c, clear, blocks_for(n, THREADS * WIDE), THREADS, 0, (act *)(backward ? a->dv : a->out), n);
    if (n == 0) return;
    HL_OP(raw_cut_segments)(c, &x->rows);
    if (!backward && a->kept && x->rows.rows.ragged && lists > 0)
        launch(c, clear_sel, blocks_for(lists, THREADS), THREADS, 0, x->sel,
               (const int32_t *)x->rows.block_first + a->rows.N, a->HV * a->window, lists);
    HL_OP(raw_cut_spans)(c, &x->rows);
}

extern "C" void HL_OP(raw_cache)(struct hl_backend *backend, const hola_cache_args *a, bool backward) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct raw_cache x = {a};
    char *p = NULL;
    lay_out(&x, &p);
    p = (char *)hl_cuda_take(c, p - (char *)NULL);
    if (!p && !hl_cuda_measuring(c)) return;
    if (p) {
        lay_out(&x, &p);
        prepare(c, &x, backward);
    }
    const struct hl_cache op = op_of(&x);
    if (a->rows.T > 0) (backward ? HL_OP(cache_backward) : HL_OP(cache_forward))(backend, &op);
    if (p && backward) launch(c, finish_scalars, blocks_for(a->HV, THREADS), THREADS, 0, x.s);
}
extern "C" int64_t HL_OP(raw_cache_kept)(const hola_cache_args *a) {
    struct raw_cache x = {a};
    char *p = NULL, *q = NULL;
    lay_out(&x, &p);
    lay_out_kept(&x, &q);
    return q - (char *)NULL;
}
