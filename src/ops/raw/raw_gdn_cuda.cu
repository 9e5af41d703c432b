/* raw_gdn_cuda.cu -- the gated delta rule on raw pointers (include/hola_ops.h): everything around the op. The op itself
 * (ops/gdn) has a scale of K^-1/2, gates in float, normalised q and k, and states that are updated in place. So
 *   raw_norm        normalises q and k if requested. Another scale is a factor of q.
 *   prepare_gates   converts g and beta to floats and applies their functions
 *   raw_copy        copies h0 to ht, where the op updates it
 * come first, and in the backward pass
 *   raw_norm_back   dq and dk through the norm and the factor, in place
 *   finish_gates, sum_gates   dg and dbeta through the functions, in place; dA_log and ddt_bias last.
 * The first kernel of a call is launched without PDL, because the caller's previous kernel may trigger early. */
#include "ops/raw/raw_cuda.cuh"
#include "ops/gdn/gdn_cuda.cuh"

enum { THREADS = 256 };

struct raw_gdn {
    const hola_gdn_args *a;
    struct raw_rows rows;
    float factor;            /* of q: scale K^1/2 */
    bool norm, new_q;        /* whether q and k, or only q, are copies */
    const act *q, *k;        /* as passed to the op */
    act *own_q, *own_k;      /* where copies are written */
    float *rq, *rk;          /* [T][H]: 1 / the norms */
    float *own_g, *own_beta; /* [T][HV] */
    act *v_new, *A, *out;
    float *state, *sums; /* sums: [HV][pieces][2] */
};

/* ---- gates ---- */

struct gates {
    const void *g, *beta; /* as given */
    const float *A_log, *dt_bias;
    float *to_g, *to_beta; /* NULL: not wanted */
    float *sums;
    int64_t T;
    int HV, flags, pieces;
    bool half; /* g and beta are bf16 */
    float *dA_log, *ddt_bias;
};
static __device__ __forceinline__ float gate_at(const struct gates &a, const void *x, int64_t i) {
    return a.half ? f32(((const bf16 *)x)[i]) : ((const float *)x)[i];
}
static __device__ __forceinline__ float raw_gate(const struct gates &a, int64_t i, int h) {
    return gate_at(a, a.g, i) + (a.dt_bias ? a.dt_bias[h] : 0.0f);
}
static __device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
static __device__ __forceinline__ float exact_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static __device__ __forceinline__ float beta_most(const struct gates &a) {
    return a.flags & HOLA_GDN_NEG ? 2.0f : 1.0f;
}

static __global__ void __launch_bounds__(THREADS) prepare_gates(const struct gates a) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int h = (int)(i % a.HV);
    if (i >= a.T * a.HV) return;
    if (a.to_g)
        a.to_g[i] = a.flags & HOLA_GDN_GATE ? -expf(a.A_log[h]) * softplus(raw_gate(a, i, h)) : gate_at(a, a.g, i);
    if (a.to_beta) {
        const float x = gate_at(a, a.beta, i);
        a.to_beta[i] = a.flags & HOLA_GDN_SIGMOID ? beta_most(a) * exact_sigmoid(x) : x;
    }
}
/* grid (pieces, HV): THREADS rows of a value head; to_g, to_beta: dg and dbeta */
static __global__ void __launch_bounds__(THREADS) finish_gates(const struct gates a) {
    __shared__ float shared[33];
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = t * a.HV + blockIdx.y;
    const int h = blockIdx.y;
    float da = 0.0f, dA = 0.0f;
    if (t < a.T && a.flags & HOLA_GDN_SIGMOID) {
        const float s = exact_sigmoid(gate_at(a, a.beta, i));
        a.to_beta[i] *= beta_most(a) * s * (1.0f - s);
    }
    if (!(a.flags & HOLA_GDN_GATE)) return;
    if (t < a.T) {
        const float x = raw_gate(a, i, h), slope = -expf(a.A_log[h]), dg = a.to_g[i];
        da = dg * slope * exact_sigmoid(x);
        dA = dg * slope * softplus(x);
        a.to_g[i] = da;
    }
    da = block_sum(da, shared);
    dA = block_sum(dA, shared);
    if (threadIdx.x == 0) {
        float *to = a.sums + ((int64_t)h * a.pieces + blockIdx.x) * 2;
        to[0] = dA, to[1] = da;
    }
}
/* grid (HV): sums the pieces in a fixed order */
static __global__ void __launch_bounds__(THREADS) sum_gates(const struct gates a) {
    __shared__ float shared[33];
    const float *from = a.sums + (int64_t)blockIdx.x * a.pieces * 2;
    for (int k = 0; k < 2; k++) {
        float x = 0.0f, *to = k ? a.ddt_bias : a.dA_log;
        for (int i = threadIdx.x; i < a.pieces; i += THREADS) x += from[2 * i + k];
        x = block_sum(x, shared);
        if (to && threadIdx.x == 0) to[blockIdx.x] = x;
    }
}
static struct gates gates_of(const struct raw_gdn *x) {
    const hola_gdn_args *a = x->a;
    struct gates g = {a->g, a->beta, a->A_log, a->dt_bias};
    g.T = a->rows.T, g.HV = (int)a->HV, g.flags = a->flags, g.half = a->gate_dtype == HOLA_BF16;
    g.pieces = (int)hl_pieces(g.T, THREADS);
    return g;
}

/* ---- memory layout ---- */

static bool own_g(const hola_gdn_args *a) { return a->flags & HOLA_GDN_GATE || a->gate_dtype != HOLA_F32; }
static bool own_beta(const hola_gdn_args *a) { return a->flags & HOLA_GDN_SIGMOID || a->gate_dtype != HOLA_F32; }

/* Arrays that both passes need, in `kept` or in the workspace; from NULL on it only counts. v_new and A are only in
 * `kept`. */
static void lay_out_kept(struct raw_gdn *x, char **p, bool kept) {
    const hola_gdn_args *a = x->a;
    const int64_t rows = a->rows.T * a->HV, qk = a->rows.T * a->H, size = sizeof(act);
    x->v_new = (act *)raw_carve(p, kept ? rows * a->V * size : 0);
    x->A = (act *)raw_carve(p, kept ? rows * HL_CHUNK * size : 0);
    x->own_g = (float *)raw_carve(p, own_g(a) ? rows * 4 : 0);
    x->own_beta = (float *)raw_carve(p, own_beta(a) ? rows * 4 : 0);
    x->own_q = (act *)raw_carve(p, x->norm ? qk * a->K * size : 0);
    x->own_k = (act *)raw_carve(p, x->norm ? qk * a->K * size : 0);
    x->rq = (float *)raw_carve(p, x->norm ? qk * 4 : 0);
    x->rk = (float *)raw_carve(p, x->norm ? qk * 4 : 0);
}
static struct raw_gdn call_of(const hola_gdn_args *a) {
    struct raw_gdn x = {};
    x.a = a;
    x.factor = raw_factor(a->scale, a->K);
    x.norm = a->flags & HOLA_GDN_NORM;
    x.new_q = !x.norm && x.factor != 1.0f;
    return x;
}
static void lay_out(struct raw_gdn *x, char **p, bool backward) {
    const hola_gdn_args *a = x->a;
    const int64_t states = a->rows.N * a->HV * a->K * a->V;
    char *kept = (char *)a->kept;
    HL_OP(raw_rows_layout)(&x->rows, &a->rows, 0, p);
    if (kept) lay_out_kept(x, &kept, true);
    else lay_out_kept(x, p, false);
    if (x->new_q) x->own_q = (act *)raw_carve(p, a->rows.T * a->H * a->K * (int64_t)sizeof(act));
    if (!backward) {
        x->state = a->ht ? a->ht : a->h0 ? (float *)raw_carve(p, states * 4) : NULL;
        x->out = a->out ? (act *)a->out : (act *)raw_carve(p, hola_gdn_out_bytes(a));
        x->rows.state = x->state, x->rows.state_floats = a->HV * a->K * a->V;
        x->rows.rows.states = x->state || a->ht || a->h0;
    } else x->sums = (float *)raw_carve(p, a->HV * hl_pieces(a->rows.T, THREADS) * 8);
    x->q = x->norm || x->new_q ? x->own_q : (const act *)a->q;
    x->k = x->norm ? x->own_k : (const act *)a->k;
}
static struct hl_gdn op_of(const struct raw_gdn *x) {
    const hola_gdn_args *a = x->a;
    struct hl_gdn op = {};
    op.rows = &x->rows.rows;
    op.H = a->H, op.HV = a->HV, op.K = a->K, op.V = a->V;
    op.q = x->q, op.k = x->k, op.v = a->v;
    op.g = !a->g ? NULL : own_g(a) ? x->own_g : (const float *)a->g;
    op.beta = own_beta(a) ? x->own_beta : (const float *)a->beta;
    if (a->kept) op.v_new = x->v_new, op.A = x->A;
    return op;
}
static struct raw_norm keys_of(const struct raw_gdn *x) {
    const hola_gdn_args *a = x->a;
    struct raw_norm n = {(const act *)a->q, (const act *)a->k, x->own_q, x->own_k, x->rq, x->rk};
    if (!a->kept) n.rq = n.rk = NULL;
    n.rows = a->rows.T * a->H, n.K = (int)a->K, n.norm = x->norm, n.factor = x->factor;
    return n;
}

/* ---- the calls ---- */

static void forward(struct hl_backend *backend, struct raw_gdn *x, bool launches) {
    const hola_gdn_args *a = x->a;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct hl_gdn op = op_of(x);
    const int64_t states = a->rows.N * a->HV * a->K * a->V;
    const struct raw_norm keys = keys_of(x);
    op.out = x->out, op.m = a->m;
    if (launches && x->rows.rows.T > 0) {
        if (x->norm || x->new_q) HL_OP(raw_norm)(c, &keys);
        if (own_g(a) || own_beta(a)) {
            struct gates g = gates_of(x);
            g.to_g = a->g && own_g(a) ? x->own_g : NULL, g.to_beta = own_beta(a) ? x->own_beta : NULL;
            launch(c, prepare_gates, blocks_for(a->rows.T * a->HV, THREADS), THREADS, 0, g);
        }
        HL_OP(raw_cut_segments)(c, &x->rows);
    }
    if (launches && x->state) HL_OP(raw_copy)(c, x->state, a->h0, states);
    if (x->rows.rows.T == 0) return;
    if (launches) HL_OP(raw_cut_spans)(c, &x->rows);
    HL_OP(gdn_forward)(backend, &op);
}

static void backward(struct hl_backend *backend, struct raw_gdn *x, bool launches) {
    const hola_gdn_args *a = x->a;
    struct hl_cuda *c = hl_cuda_of(backend);
    struct hl_gdn op = op_of(x);
    struct gates g = gates_of(x);
    const int64_t states = a->rows.N * a->HV * a->K * a->V;
    const struct raw_norm keys = keys_of(x);
    op.dout = a->dout, op.dq = a->dq, op.dk = a->dk, op.dv = a->dv;
    op.dg = a->g ? a->dg : NULL, op.dbeta = a->dbeta;
    op.h0 = a->h0, op.dht = a->dht, op.dh0 = a->dh0;
    if (launches && a->rows.T == 0) {
        if (a->dh0) HL_OP(raw_copy)(c, a->dh0, a->dht, states);
        if (a->dA_log) HL_OP(raw_copy)(c, a->dA_log, NULL, a->HV);
        if (a->ddt_bias) HL_OP(raw_copy)(c, a->ddt_bias, NULL, a->HV);
    }
    if (a->rows.T == 0) return;
    if (launches) {
        if (x->new_q) HL_OP(raw_norm)(c, &keys);
        /* rows outside every sequence are summed as well */
        if (x->rows.rows.ragged && (a->dA_log || a->ddt_bias)) HL_OP(raw_copy)(c, a->dg, NULL, a->rows.T * a->HV);
        HL_OP(raw_cut_segments)(c, &x->rows);
        HL_OP(raw_cut_spans)(c, &x->rows);
    }
    HL_OP(gdn_backward)(backend, &op);
    if (!launches) return;
    if (x->norm || x->new_q) HL_OP(raw_norm_back)(c, &keys, (act *)a->dq, (act *)a->dk);
    if (!(a->flags & (HOLA_GDN_GATE | HOLA_GDN_SIGMOID))) return;
    g.to_g = a->dg, g.to_beta = a->dbeta, g.sums = x->sums, g.dA_log = a->dA_log, g.ddt_bias = a->ddt_bias;
    launch(c, finish_gates, dim3((unsigned)g.pieces, (unsigned)a->HV), THREADS, 0, g);
    if (a->flags & HOLA_GDN_GATE && (a->dA_log || a->ddt_bias)) launch(c, sum_gates, (unsigned)a->HV, THREADS, 0, g);
}

/* Lays out the workspace. true: ready to launch; false: only measuring, or the workspace is too small. */
static bool open_call(struct hl_cuda *c, struct raw_gdn *x, bool backward) {
    char *p = NULL;
    lay_out(x, &p, backward);
    p = (char *)hl_cuda_take(c, p - (char *)NULL);
    if (p) lay_out(x, &p, backward);
    return p != NULL;
}
extern "C" void HL_OP(raw_gdn)(struct hl_backend *backend, const hola_gdn_args *a, bool back) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct raw_gdn x = call_of(a);
    const bool launches = open_call(c, &x, back);
    if (launches || hl_cuda_measuring(c)) (back ? backward : forward)(backend, &x, launches);
}
extern "C" const char *HL_OP(raw_gdn_form)(struct hl_backend *backend, const hola_gdn_args *a, bool backward) {
    struct raw_gdn x = call_of(a);
    char *p = NULL;
    lay_out(&x, &p, backward);
    struct hl_gdn op = op_of(&x);
    return HL_OP(gdn_form)(backend, &op, backward).name;
}
extern "C" int64_t HL_OP(raw_gdn_kept)(const hola_gdn_args *a) {
    struct raw_gdn x = call_of(a);
    char *p = NULL;
    lay_out_kept(&x, &p, true);
    return p - (char *)NULL;
}
