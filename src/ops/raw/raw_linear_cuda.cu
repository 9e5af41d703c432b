/* raw_linear_cuda.cu -- KDA and gated linear attention on raw pointers (include/hola_ops.h): everything around the ops,
 * which update states in place. KDA's has a scale of K^-1/2 and takes normalised q and k: raw_norm. */
#include "ops/kda/kda_cuda.cuh"
#include "ops/raw/raw_cuda.cuh"

/* Common to both ops: rows, and a state per sequence if one is given or requested. */
struct linear {
    struct raw_rows rows;
    const float *h0;
    float *state;
    int64_t floats; /* of a sequence's state */
};
/* The state is the caller's ht, or a private copy of h0. */
static void lay_out_linear(struct linear *x, const hola_rows *r, const float *h0, float *ht, int64_t floats, char **p) {
    HL_OP(raw_rows_layout)(&x->rows, r, 0, p);
    x->h0 = h0, x->floats = floats;
    x->state = ht ? ht : h0 ? (float *)raw_carve(p, r->N * floats * 4) : NULL;
    x->rows.state = x->state, x->rows.state_floats = floats;
    x->rows.rows.states = ht || h0; /* also when only counting memory */
}
/* The kernels of these ops read spans, segments and states before they wait for the previous kernel. */
static void prepare(struct hl_cuda *c, const struct linear *x) {
    if (x->rows.rows.T > 0) HL_OP(raw_cut_segments)(c, &x->rows);
    if (x->state) HL_OP(raw_copy)(c, x->state, x->h0, x->rows.rows.n * x->floats);
    if (x->rows.rows.T == 0) return;
    HL_OP(raw_cut_spans)(c, &x->rows);
    HL_OP(raw_settle)(c);
}

/* the backward pass without rows */
static void only_states(struct hl_cuda *c, const struct linear *x, float *dh0, const float *dht) {
    if (dh0) HL_OP(raw_copy)(c, dh0, dht, x->rows.rows.n * x->floats);
}

/* ---- KDA ---- */

struct raw_kda {
    struct linear l;
    struct raw_norm keys; /* to_q, to_k: NULL where the op takes q, k as given */
    act *v_new, *A;
    void *tiles; /* NULL: heads that the kernels on chunks do not take */
    float *m;
};
/* Arrays that both passes need, in `kept` or, what is left of them, in the workspace; from NULL on it only counts. */
static void lay_out_kept(struct raw_kda *x, const hola_kda_args *a, char **p, bool kept) {
    const int64_t rows = a->rows.T * a->HV, qk = a->rows.T * a->H, size = sizeof(act);
    if (a->flags & HOLA_KDA_NORM) {
        x->keys.to_q = (act *)raw_carve(p, qk * a->K * size), x->keys.to_k = (act *)raw_carve(p, qk * a->K * size);
        x->keys.rq = (float *)raw_carve(p, qk * 4), x->keys.rk = (float *)raw_carve(p, qk * 4);
    }
    if (!kept) return;
    x->v_new = (act *)raw_carve(p, rows * a->V * size);
    x->A = (act *)raw_carve(p, rows * HL_CHUNK * size);
#ifndef HL_CUDA_F32 /* by shape alone: the size must be known without a device */
    const bool chunks = (a->K == 64 || a->K == 128) && a->V % 64 == 0;
    if (chunks) x->tiles = raw_carve(p, (a->rows.T / HL_CHUNK + a->rows.N) * a->HV * kda_tiles_bytes(a->K));
#endif
}
static void lay_out(struct raw_kda *x, const hola_kda_args *a, bool backward, char **p) {
    char *kept = (char *)a->kept;
    lay_out_linear(&x->l, &a->rows, backward ? NULL : a->h0, backward ? NULL : a->ht, a->HV * a->K * a->V, p);
    x->keys = (struct raw_norm){(const act *)a->q, (const act *)a->k};
    x->keys.rows = a->rows.T * a->H, x->keys.K = (int)a->K;
    x->keys.norm = a->flags & HOLA_KDA_NORM, x->keys.factor = raw_factor(a->scale, a->K);
    if (kept) lay_out_kept(x, a, &kept, true);
    else lay_out_kept(x, a, p, false);
    if (!x->keys.norm && x->keys.factor != 1.0f)
        x->keys.to_q = (act *)raw_carve(p, x->keys.rows * a->K * (int64_t)sizeof(act));
    x->m = a->m || backward ? a->m : (float *)raw_carve(p, a->rows.T * a->HV * 4);
}
static struct hl_kda kda_of(const struct raw_kda *x, const hola_kda_args *a) {
    struct hl_kda op = {};
    op.rows = &x->l.rows.rows;
    op.H = a->H, op.HV = a->HV, op.K = a->K, op.V = a->V;
    op.q = x->keys.to_q ? x->keys.to_q : a->q, op.k = x->keys.to_k ? x->keys.to_k : a->k;
    op.v = a->v, op.g = a->g, op.beta = a->beta;
    op.out = a->out, op.m = x->m;
    if (a->kept) op.v_new = x->v_new, op.A = x->A, op.tiles = x->tiles;
    op.dout = a->dout, op.dq = a->dq, op.dk = a->dk, op.dv = a->dv, op.dg = a->dg, op.dbeta = a->dbeta;
    op.h0 = a->h0, op.dht = a->dht, op.dh0 = a->dh0;
    return op;
}
extern "C" void HL_OP(raw_kda)(struct hl_backend *backend, const hola_kda_args *a, bool backward) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct raw_kda x = {};
    char *p = NULL;
    lay_out(&x, a, backward, &p);
    p = (char *)hl_cuda_take(c, p - (char *)NULL);
    if (!p && !hl_cuda_measuring(c)) return;
    const bool launches = p != NULL;
    if (launches) {
        lay_out(&x, a, backward, &p);
        if (x.keys.to_q && !(backward && x.keys.norm)) HL_OP(raw_norm)(c, &x.keys); /* else it is in kept */
        prepare(c, &x.l);
        if (a->rows.T == 0 && backward) only_states(c, &x.l, a->dh0, a->dht);
    }
    if (a->rows.T == 0) return;
    const struct hl_kda op = kda_of(&x, a);
    (backward ? HL_OP(kda_backward) : HL_OP(kda_forward))(backend, &op);
    if (launches && backward && x.keys.to_q) HL_OP(raw_norm_back)(c, &x.keys, (act *)a->dq, (act *)a->dk);
}
extern "C" int64_t HL_OP(raw_kda_kept)(const hola_kda_args *a) {
    struct raw_kda x = {};
    char *p = NULL;
    lay_out_kept(&x, a, &p, true);
    return p - (char *)NULL;
}

/* ---- gated linear attention ---- */

extern "C" void HL_OP(raw_gla)(struct hl_backend *backend, const hola_gla_args *a, bool backward) {
    struct hl_cuda *c = hl_cuda_of(backend);
    struct linear x = {};
    const int64_t floats = a->HK * a->K * a->V;
    char *p = NULL;
    lay_out_linear(&x, &a->rows, backward ? NULL : a->h0, backward ? NULL : a->ht, floats, &p);
    p = (char *)hl_cuda_take(c, p - (char *)NULL);
    if (!p && !hl_cuda_measuring(c)) return;
    if (p) {
        lay_out_linear(&x, &a->rows, backward ? NULL : a->h0, backward ? NULL : a->ht, floats, &p);
        prepare(c, &x);
        if (a->rows.T == 0 && backward) only_states(c, &x, a->dh0, a->dht);
    }
    if (a->rows.T == 0) return;
    struct hl_gla op = {};
    op.rows = &x.rows.rows;
    op.H = a->H, op.HK = a->HK, op.K = a->K, op.V = a->V;
    op.q = a->q, op.k = a->k, op.v = a->v, op.g = a->g, op.out = a->out;
    op.scale = a->scale == 0.0f ? 1.0f / sqrtf((float)a->K) : a->scale;
    op.dout = a->dout, op.dq = a->dq, op.dk = a->dk, op.dv = a->dv, op.dg = a->dg;
    op.h0 = a->h0, op.dht = a->dht, op.dh0 = a->dh0;
    (backward ? HL_OP(gla_backward) : HL_OP(gla_forward))(backend, &op);
}
