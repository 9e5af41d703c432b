/* pointwise.h -- the cases of the norm, gate, swiglu and conv tests, in float and in double alike.
 *
 * A case is a set of named arrays and the op's arguments that point at them. The gradient of the array `x` is the array
 * `dx`: for an input it is computed by backward, for an output it is given to backward. Inputs are filled from the
 * front, so a case with fewer rows is the beginning of one with more. */
#ifndef HL_POINTWISE_H
#define HL_POINTWISE_H
#include "check.h"
#include "backend/backend.h"

enum { MAX_ARRAYS = 24, MAX_SEGS = 64 };

struct array {
    const char *name;
    real *p;
    int64_t rows, width;
    bool out;
    bool own; /* kept by one form for its own backward pass: not compared */
};

struct pw {
    struct array v[MAX_ARRAYS];
    int n;
    union {
        struct hl_rmsnorm rms;
        struct hl_l2norm l2;
        struct hl_gate gate;
        struct hl_swiglu swiglu;
        struct hl_conv conv;
        struct hl_feature_map map;
        struct hl_logsigmoid logsigmoid;
        struct hl_kda_gate kda_gate;
        struct hl_gla gla;
        struct hl_gsa gsa;
        struct hl_kda kda;
    } op;
    struct hl_rows rows;
    struct hl_seg seg[MAX_SEGS];
};

struct kind {
    const char *name;
    int variants;
    void (*build)(struct pw *c, int64_t M, int64_t D, int variant);
    void (*forward)(const struct hl_ops *o, struct hl_backend *p, const struct pw *c);
    void (*backward)(const struct hl_ops *o, struct hl_backend *p, const struct pw *c);
};

/* ---- arrays ---- */

/* lo < hi: random; else an output, NaN until written */
static inline real *pw_add(struct pw *c, const char *name, int64_t rows, int64_t width, double lo, double hi) {
    struct array *a = &c->v[c->n++];
    assert_true(c->n <= MAX_ARRAYS);
    *a = (struct array){name, check_new(rows * width), rows, width, !(lo < hi), false};
    if (lo < hi) check_fill(a->p, rows * width, lo, hi, 1000u + (uint64_t)c->n);
    return a->p;
}
static inline real *pw_out(struct pw *c, const char *name, int64_t rows, int64_t width) {
    return pw_add(c, name, rows, width, 0, 0);
}
static inline struct array *pw_get(struct pw *c, const char *name) {
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->v[i].name, name)) return &c->v[i];
    return NULL;
}
static inline struct array *pw_grad(struct pw *c, const struct array *a) {
    char name[32];
    snprintf(name, sizeof name, "d%s", a->name);
    return pw_get(c, name);
}
static inline void pw_free(struct pw *c) {
    for (int i = 0; i < c->n; i++) check_free(c->v[i].p, c->v[i].rows * c->v[i].width);
}
/* Worst distance over all arrays; including inputs, which must not be written. */
static inline double pw_distance(const struct pw *got, const struct pw *want, const char **name) {
    double worst = 0;
    *name = "all";
    for (int i = 0; i < got->n; i++) {
        if (got->v[i].own) continue;
        double e = check_distance(got->v[i].p, want->v[i].p, want->v[i].rows, want->v[i].width);
        if (e > worst) {
            worst = e;
            *name = got->v[i].name;
        }
    }
    return worst;
}

/* ---- norms ---- */

/* variant 1: gated, 2: dx added to, 4: no weights, 8: the gate is a sigmoid */
static inline void rms_build(struct pw *c, int64_t M, int64_t D, int variant) {
    struct hl_rmsnorm *a = &c->op.rms;
    *a = (struct hl_rmsnorm){.M = M, .D = D, .eps = (real)1e-6, .dx_add = variant & 2};
    a->x = pw_add(c, "x", M, D, -2e-3, 2e-3); /* small, so that eps shows */
    if (!(variant & 4)) a->w = pw_add(c, "w", 1, D, 0.5, 1.5);
    a->dy = pw_add(c, "dy", M, D, -1, 1);
    if (!(variant & 4)) a->dw = pw_add(c, "dw", 1, D, -1, 1);
    a->z_sigmoid = variant & 8;
    a->dx = variant & 2 ? pw_add(c, "dx", M, D, -1, 1) : pw_out(c, "dx", M, D);
    a->y = pw_out(c, "y", M, D);
    a->r = pw_out(c, "r", M, 1);
    if (variant & 1) {
        a->z = pw_add(c, "z", M, D, -6, 6);
        a->dz = pw_out(c, "dz", M, D);
    }
}
static inline void rms_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->rmsnorm_forward(p, &c->op.rms);
}
static inline void rms_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->rmsnorm_backward(p, &c->op.rms);
}

/* variant 1: dx added to */
static inline void l2_build(struct pw *c, int64_t M, int64_t D, int variant) {
    double size = 1e-3 / sqrt((double)D);
    c->op.l2 = (struct hl_l2norm){.M = M, .D = D, .dx_add = variant};
    c->op.l2.x = pw_add(c, "x", M, D, -size, size);
    c->op.l2.dy = pw_add(c, "dy", M, D, -1, 1);
    c->op.l2.dx = variant ? pw_add(c, "dx", M, D, -1e3, 1e3) : pw_out(c, "dx", M, D);
    c->op.l2.y = pw_out(c, "y", M, D);
    c->op.l2.r = pw_out(c, "r", M, 1);
}
static inline void l2_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->l2norm_forward(p, &c->op.l2);
}
static inline void l2_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->l2norm_backward(p, &c->op.l2);
}

/* ---- gate: D is the number of heads; variant 1: negative eigenvalues, 2: no decay, 3: beta = 1 ---- */

static inline void gate_build(struct pw *c, int64_t T, int64_t H, int variant) {
    struct hl_gate *a = &c->op.gate;
    *a = (struct hl_gate){.T = T, .H = H, .neg_eigval = variant == 1};
    a->beta = pw_out(c, "beta", T, H);
    if (variant != 3) {
        a->b = pw_add(c, "b", T, H, -8, 8);
        a->dbeta = pw_add(c, "dbeta", T, H, -1, 1);
        a->db = pw_out(c, "db", T, H);
    }
    if (variant == 2) return;
    a->a = pw_add(c, "a", T, H, -6, 30); /* on both sides of 20, where softplus becomes its argument */
    a->A_log = pw_add(c, "A_log", 1, H, -1, 2);
    a->dt_bias = pw_add(c, "dt_bias", 1, H, -4, -1);
    a->dg = pw_add(c, "dg", T, H, 0.2, 1.2); /* one sign: the sums do not cancel */
    a->dA_log = pw_add(c, "dA_log", 1, H, -1, 1);
    a->ddt_bias = pw_add(c, "ddt_bias", 1, H, -1, 1);
    a->g = pw_out(c, "g", T, H);
    a->da = pw_out(c, "da", T, H);
}
static inline void gate_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gate_forward(p, &c->op.gate);
}
static inline void gate_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gate_backward(p, &c->op.gate);
}

/* ---- log decays per channel ---- */

/* D: channels; variant 1: bias, 2: a bound, 4: normalizer 16 */
static inline void logsigmoid_build(struct pw *c, int64_t T, int64_t D, int variant) {
    struct hl_logsigmoid *a = &c->op.logsigmoid;
    *a = (struct hl_logsigmoid){.T = T, .C = D, .normalizer = variant & 4 ? 16 : 1};
    a->clamp_min = variant & 2 ? -2 / a->normalizer : -(real)INFINITY;
    a->x = pw_add(c, "x", T, D, -8, 8);
    a->dg = pw_add(c, "dg", T, D, 0.2, 1.2); /* one sign: the sums do not cancel */
    a->g = pw_out(c, "g", T, D);
    a->dx = pw_out(c, "dx", T, D);
    if (!(variant & 1)) return;
    a->bias = pw_add(c, "bias", 1, D, -2, 2);
    a->dbias = pw_add(c, "dbias", 1, D, -1, 1);
}
static inline void logsigmoid_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->logsigmoid_forward(p, &c->op.logsigmoid);
}
static inline void logsigmoid_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->logsigmoid_backward(p, &c->op.logsigmoid);
}

/* D: d_k, of 3 heads; variant 1: negative eigenvalues, 2: a lower bound */
static inline void kda_gate_build(struct pw *c, int64_t T, int64_t K, int variant) {
    struct hl_kda_gate *a = &c->op.kda_gate;
    enum { HV = 3 };
    *a = (struct hl_kda_gate){.T = T, .HV = HV, .K = K, .neg_eigval = variant & 1};
    a->lower_bound = variant & 2 ? -5 : 0;
    /* without a bound on both sides of 20, where softplus becomes its argument */
    a->x = pw_add(c, "x", T, HV * K, -6, variant & 2 ? 6 : 30);
    a->b = pw_add(c, "b", T, HV, -8, 8);
    a->A_log = pw_add(c, "A_log", 1, HV, -1, 1);
    a->dt_bias = pw_add(c, "dt_bias", HV, K, -4, -1);
    a->dg = pw_add(c, "dg", T, HV * K, 0.2, 1.2);
    a->dbeta = pw_add(c, "dbeta", T, HV, -1, 1);
    a->dA_log = pw_add(c, "dA_log", 1, HV, -1, 1);
    a->ddt_bias = pw_add(c, "ddt_bias", HV, K, -1, 1);
    a->g = pw_out(c, "g", T, HV * K);
    a->beta = pw_out(c, "beta", T, HV);
    a->dx = pw_out(c, "dx", T, HV * K);
    a->db = pw_out(c, "db", T, HV);
}
static inline void kda_gate_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->kda_gate_forward(p, &c->op.kda_gate);
}
static inline void kda_gate_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->kda_gate_backward(p, &c->op.kda_gate);
}

/* ---- swiglu ---- */

static inline void swiglu_build(struct pw *c, int64_t M, int64_t D, int variant) {
    struct hl_swiglu *a = &c->op.swiglu;
    (void)variant;
    *a = (struct hl_swiglu){.M = M, .D = D};
    a->gate = pw_add(c, "gate", M, D, -6, 6);
    a->up = pw_add(c, "up", M, D, -2, 2);
    a->dy = pw_add(c, "dy", M, D, -1, 1);
    a->y = pw_out(c, "y", M, D);
    a->dgate = pw_out(c, "dgate", M, D);
    a->dup = pw_out(c, "dup", M, D);
}
static inline void swiglu_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->swiglu_forward(p, &c->op.swiglu);
}
static inline void swiglu_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->swiglu_backward(p, &c->op.swiglu);
}

/* ---- feature maps: a variant for each ---- */

static inline void map_build(struct pw *c, int64_t M, int64_t D, int variant) {
    struct hl_feature_map *a = &c->op.map;
    *a = (struct hl_feature_map){.M = M, .D = D, .kind = (hola_feature_map)(variant + 1)};
    a->x = pw_add(c, "x", M, D, -6, 6);
    a->dy = pw_add(c, "dy", M, D, -1, 1);
    a->y = pw_out(c, "y", M, D);
    a->dx = pw_out(c, "dx", M, D);
}
static inline void map_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->feature_map_forward(p, &c->op.map);
}
static inline void map_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->feature_map_backward(p, &c->op.map);
}

/* ---- conv: variants are numbers of taps; 0: SiLU alone ---- */

/* Segments of 1, 2, 3, 1, 40 rows and so on, as far as T goes. */
static inline void conv_cut(struct pw *c, int64_t T) {
    static const int64_t lens[] = {1, 2, 3, 1, 40, 7, 64, 2};
    c->rows = (struct hl_rows){.T = T, .seg = c->seg};
    for (int64_t t = 0; t < T; c->rows.n++) {
        int64_t len = lens[c->rows.n % 8];
        c->seg[c->rows.n] = (struct hl_seg){.row = t, .len = t + len < T ? len : T - t};
        t += len;
        assert_true(c->rows.n < MAX_SEGS);
    }
}
static inline void conv_build(struct pw *c, int64_t T, int64_t C, int W) {
    struct hl_conv *a = &c->op.conv;
    *a = (struct hl_conv){.rows = &c->rows, .C = C, .W = W};
    conv_cut(c, T);
    a->x = pw_add(c, "x", T, C, -2, 2);
    a->dy = pw_add(c, "dy", T, C, -1, 1);
    a->y = pw_out(c, "y", T, C);
    a->dx = pw_out(c, "dx", T, C);
    if (W == 0) return;
    a->w = pw_add(c, "w", C, W, -1, 1);
    a->dw = pw_add(c, "dw", C, W, -1, 1);
}
static inline void conv_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->conv_forward(p, &c->op.conv);
}
static inline void conv_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->conv_backward(p, &c->op.conv);
}

static const struct kind kind_rms = {"rmsnorm", 16, rms_build, rms_forward, rms_backward};
static const struct kind kind_l2 = {"l2norm", 2, l2_build, l2_forward, l2_backward};
static const struct kind kind_gate = {"gate", 4, gate_build, gate_forward, gate_backward};
static const struct kind kind_logsigmoid = {"logsigmoid", 8, logsigmoid_build, logsigmoid_forward, logsigmoid_backward};
static const struct kind kind_kda_gate = {"kda_gate", 4, kda_gate_build, kda_gate_forward, kda_gate_backward};
static const struct kind kind_swiglu = {"swiglu", 1, swiglu_build, swiglu_forward, swiglu_backward};
static const struct kind kind_map = {"feature_map", HOLA_MAP_COUNT - 1, map_build, map_forward, map_backward};
static const struct kind kind_conv = {"conv", HL_CONV_MAX + 1, conv_build, conv_forward, conv_backward};

#endif
