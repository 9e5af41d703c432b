/* recurrence_case.h -- batches for gla, gsa and kda, in float and in double alike. A case is a set of named arrays, as
 * in pointwise.h; the states that a session reads and writes are one of them. */
#ifndef HL_RECURRENCE_CASE_H
#define HL_RECURRENCE_CASE_H
#include "pointwise.h"

/* Log decays: random in [lo, 0]; with resets, -200 in the first 20 of 64 tokens; or all the same. */
enum rc_gate { RC_RANDOM, RC_RESETS, RC_CONSTANT };
struct rc_shape {
    int64_t H, G, K, V, M; /* query heads; key heads of gla and gsa, value heads of kda; slots */
    enum rc_gate gate;
    double lo;         /* of the decays */
    double b_lo, b_hi; /* beta of kda */
};
#define RC_FMT "H%d G%d K%d V%d M%d gate %d lo %g beta %g..%g"
#define RC_ARG(f) \
    (int)(f)->H, (int)(f)->G, (int)(f)->K, (int)(f)->V, (int)(f)->M, (int)(f)->gate, (f)->lo, (f)->b_lo, (f)->b_hi

struct rc_kind {
    const char *name;
    /* session: segments have states, read and written */
    void (*build)(struct pw *c, const struct rc_shape *f, bool session);
    void (*forward)(const struct hl_ops *o, struct hl_backend *p, const struct pw *c);
    void (*backward)(const struct hl_ops *o, struct hl_backend *p, const struct pw *c);
};

static inline void rc_rows(struct pw *c, const int64_t *len, int64_t n) {
    assert_true(n <= MAX_SEGS);
    c->rows = (struct hl_rows){.n = n, .seg = c->seg};
    for (int64_t s = 0; s < n; s++) {
        c->seg[s] = (struct hl_seg){.row = c->rows.T, .len = len[s]};
        c->rows.T += len[s];
    }
}

/* States of all segments, the same numbers in each; they begin 8 reals into the segment's memory. */
static inline void rc_states(struct pw *c, const char *name, int64_t *off, int64_t numbers) {
    real *p = pw_add(c, name, c->rows.n, numbers, -0.1, 0.1);
    c->v[c->n - 1].out = true;
    for (int64_t s = 0; s < c->rows.n; s++) memcpy(p + s * numbers, p, (size_t)numbers * sizeof *p);
    for (int64_t s = 0; s < c->rows.n; s++) c->seg[s].state = (char *)(p + s * numbers - 8);
    *off = 8 * (int64_t)sizeof(real);
}

static inline real *rc_decay(struct pw *c, const char *name, const struct rc_shape *f, int64_t width) {
    real *g = pw_add(c, name, c->rows.T, width, f->gate == RC_CONSTANT ? -1 : f->lo, 0);
    for (int64_t i = 0; i < c->rows.T * width; i++)
        if (f->gate == RC_CONSTANT) g[i] = (real)f->lo;
        else if (f->gate == RC_RESETS && i / width % 64 < 20) g[i] = -200;
    return g;
}

static inline real *rc_own(struct pw *c, const char *name, int64_t rows, int64_t width) {
    real *p = pw_out(c, name, rows, width);
    c->v[c->n - 1].own = true;
    return p;
}
static inline void rc_unit(real *x, int64_t n, int64_t K) {
    for (int64_t i = 0; i < n; i += K) {
        double sum = 1e-6;
        for (int64_t j = i; j < i + K; j++) sum += (double)(x[j] * x[j]);
        for (int64_t j = i; j < i + K; j++) x[j] = (real)(x[j] / sqrt(sum));
    }
}

/* ---- kda ---- */

static inline void kda_build(struct pw *c, const struct rc_shape *f, bool session) {
    const int64_t T = c->rows.T, chunks = hl_chunks_before(&c->rows, c->rows.n);
    struct hl_kda *a = &c->op.kda;
    *a = (struct hl_kda){.rows = &c->rows, .H = f->H, .HV = f->G, .K = f->K, .V = f->V};
    real *q = pw_add(c, "q", T, f->H * f->K, -1, 1), *k = pw_add(c, "k", T, f->H * f->K, -1, 1);
    rc_unit(q, T * f->H * f->K, f->K);
    rc_unit(k, T * f->H * f->K, f->K);
    a->q = q, a->k = k;
    a->v = pw_add(c, "v", T, f->G * f->V, -1, 1);
    a->g = rc_decay(c, "g", f, f->G * f->K);
    a->beta = pw_add(c, "beta", T, f->G, f->b_lo, f->b_hi);
    a->out = pw_out(c, "out", T, f->G * f->V);
    a->m = pw_out(c, "m", T, f->G);
    if (session) {
        rc_states(c, "S", &a->S_off, f->G * f->K * f->V);
        return;
    }
    a->h = rc_own(c, "h", chunks, f->G * f->K * f->V);
    a->v_new = rc_own(c, "v_new", T, f->G * f->V);
    a->A = rc_own(c, "A", T, f->G * HL_CHUNK);
    a->dout = pw_add(c, "dout", T, f->G * f->V, -1, 1);
    a->dq = pw_out(c, "dq", T, f->H * f->K);
    a->dk = pw_out(c, "dk", T, f->H * f->K);
    a->dv = pw_out(c, "dv", T, f->G * f->V);
    a->dg = pw_out(c, "dg", T, f->G * f->K);
    a->dbeta = pw_out(c, "dbeta", T, f->G);
}
static inline void kda_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->kda_forward(p, &c->op.kda);
}
static inline void kda_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->kda_backward(p, &c->op.kda);
}

/* ---- gla ---- */

static inline void gla_build(struct pw *c, const struct rc_shape *f, bool session) {
    const int64_t T = c->rows.T, chunks = hl_chunks_before(&c->rows, c->rows.n);
    struct hl_gla *a = &c->op.gla;
    *a = (struct hl_gla){.rows = &c->rows, .H = f->H, .HK = f->G, .K = f->K, .V = f->V, .scale = (real)0.3};
    a->q = pw_add(c, "q", T, f->H * f->K, -1, 1);
    a->k = pw_add(c, "k", T, f->G * f->K, -1, 1);
    a->v = pw_add(c, "v", T, f->G * f->V, -1, 1);
    a->g = rc_decay(c, "g", f, f->G * f->K);
    a->out = pw_out(c, "out", T, f->H * f->V);
    if (session) {
        rc_states(c, "S", &a->S_off, f->G * f->K * f->V);
        return;
    }
    a->h = rc_own(c, "h", chunks, f->G * f->K * f->V);
    a->dout = pw_add(c, "dout", T, f->H * f->V, -1, 1);
    a->dq = pw_out(c, "dq", T, f->H * f->K);
    a->dk = pw_out(c, "dk", T, f->G * f->K);
    a->dv = pw_out(c, "dv", T, f->G * f->V);
    a->dg = pw_out(c, "dg", T, f->G * f->K);
}
static inline void gla_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gla_forward(p, &c->op.gla);
}
static inline void gla_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gla_backward(p, &c->op.gla);
}

/* ---- gsa ---- */

static inline void gsa_build(struct pw *c, const struct rc_shape *f, bool session) {
    const int64_t T = c->rows.T, chunks = hl_chunks_before(&c->rows, c->rows.n);
    struct hl_gsa *a = &c->op.gsa;
    *a = (struct hl_gsa){.rows = &c->rows, .H = f->H, .HK = f->G, .K = f->K, .V = f->V, .M = f->M};
    a->q = pw_add(c, "q", T, f->H * f->K, -1, 1);
    a->k = pw_add(c, "k", T, f->G * f->K, -1, 1);
    a->v = pw_add(c, "v", T, f->G * f->V, -1, 1);
    a->f = rc_decay(c, "f", f, f->G * f->M);
    a->out = pw_out(c, "out", T, f->H * f->V);
    a->p = pw_out(c, "p", T, f->H * f->M);
    if (session) {
        const int64_t KM = f->G * f->K * f->M, numbers = KM + f->G * f->M * f->V;
        rc_states(c, "S", &a->Kt_off, numbers);
        a->Vt_off = a->Kt_off + KM * (int64_t)sizeof(real);
        return;
    }
    a->hk = rc_own(c, "hk", chunks, f->G * f->K * f->M);
    a->hv = rc_own(c, "hv", chunks, f->G * f->M * f->V);
    a->dout = pw_add(c, "dout", T, f->H * f->V, -1, 1);
    a->dq = pw_out(c, "dq", T, f->H * f->K);
    a->dk = pw_out(c, "dk", T, f->G * f->K);
    a->dv = pw_out(c, "dv", T, f->G * f->V);
    a->df = pw_out(c, "df", T, f->G * f->M);
}
static inline void gsa_forward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gsa_forward(p, &c->op.gsa);
}
static inline void gsa_backward(const struct hl_ops *o, struct hl_backend *p, const struct pw *c) {
    o->gsa_backward(p, &c->op.gsa);
}

static const struct rc_kind rc_kda = {"kda", kda_build, kda_forward, kda_backward};
static const struct rc_kind rc_gla = {"gla", gla_build, gla_forward, gla_backward};
static const struct rc_kind rc_gsa = {"gsa", gsa_build, gsa_forward, gsa_backward};

/* ---- the fast forms against the reference ---- */

static inline void rc_new(struct pw *c, const struct rc_kind *k, const struct rc_shape *f, const int64_t *len,
                          int64_t n, bool session) {
    *c = (struct pw){0};
    rc_rows(c, len, n);
    k->build(c, f, session);
}
static inline void rc_run(const struct rc_kind *k, const struct hl_ops *o, struct hl_backend *pool, struct pw *c,
                          bool session) {
    k->forward(o, pool, c);
    if (!session) k->backward(o, pool, c);
}
static inline int64_t rc_scratch(const struct rc_shape *f) {
    const int64_t kda = hl_kda_scratch(f->K, f->V), gla = hl_gla_scratch(f->K, f->V);
    const int64_t gsa = hl_gsa_scratch(f->K, f->V, f->M ? f->M : 1), most = kda > gla ? kda : gla;
    return most > gsa ? most : gsa;
}

/* Gradients of decays are differences of terms as large as those of q and v, and so are those of q and k where all slots
 * of gsa are alike: what is left is their rounding. */
static inline double rc_square(const struct array *a) {
    double sum = 0;
    for (int64_t i = 0; a && i < a->rows * a->width; i++) sum += (double)a->p[i] * (double)a->p[i];
    return sum;
}
static inline bool rc_is_noise(struct pw *want, const struct array *x, const struct array *y, double tol) {
    const bool slots = pw_get(want, "p") && (!strcmp(x->name, "dq") || !strcmp(x->name, "dk"));
    double away = 0;
    if (strcmp(x->name, "dg") && strcmp(x->name, "df") && !slots) return false;
    for (int64_t i = 0; i < x->rows * x->width; i++) away += (double)(x->p[i] - y->p[i]) * (double)(x->p[i] - y->p[i]);
    return away <= tol * tol * (rc_square(pw_get(want, "dq")) + rc_square(pw_get(want, "dv")));
}

/* Every fast backend against the reference: a training pass with gradients, and a session's with states. Gradients may
 * be `grad` times as far away as outputs. */
static inline void rc_compare(const struct rc_kind *k, const struct rc_shape *f, const int64_t *len, int64_t n,
                              double tol, double grad) {
    struct hl_backend *pool = check_backend_open(2, rc_scratch(f));
    for (int session = 0; session < 2; session++) {
        struct pw want;
        rc_new(&want, k, f, len, n, session);
        rc_run(k, hl_ops_named("cpu-ref"), pool, &want, session);
        for (int b = 0; check_backend(b); b++) {
            const struct hl_ops *o = hl_ops_named(check_backend(b));
            struct pw got;
            if (!o) continue;
            rc_new(&got, k, f, len, n, session);
            rc_run(k, o, pool, &got, session);
            for (int i = 0; i < got.n; i++) {
                const struct array *x = &got.v[i], *y = &want.v[i];
                if (x->own) continue;
                const double e = check_distance(x->p, y->p, y->rows, y->width);
                const double most = x->name[0] == 'd' && strcmp(x->name, "dout") ? grad * tol : tol;
                if (!(e <= most) && !rc_is_noise(&want, x, y, most))
                    fail_msg("%s %s " RC_FMT ": %s is %.3g away (allowed %.3g)", o->name, k->name, RC_ARG(f), x->name,
                             e, most);
            }
            pw_free(&got);
        }
        pw_free(&want);
    }
    hl_backend_close(pool);
}

/* lengths around the block, chunk and step borders, all in one batch */
static const int64_t rc_lengths[] = {1, 2, 8, 9, 15, 16, 17, 63, 64, 65, 129, 3 * 64 + 7};
static const int64_t rc_few[] = {1, 8, 17, 64, 64 + 7}; /* for big heads, where the reference is slow */
#define RC_COUNT(a) ((int64_t)(sizeof(a) / sizeof *(a)))

static inline void rc_compare_shapes(const struct rc_kind *k, double tol, double grad) {
    static const int64_t size[][3] = {{16, 16, 16}, {24, 40, 20},   {64, 128, 64}, {128, 128, 64},
                                      {13, 7, 5},   {128, 256, 64}, {256, 80, 100}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        const bool big = size[i][1] >= 80;
        const int64_t many = big ? 1 : 2;
        const bool kda = k == &rc_kda;
        for (int64_t group = 1; group <= 2; group++) {
            const struct rc_shape f = {kda ? many : many * group,
                                       kda ? many * group : many,
                                       size[i][0],
                                       size[i][1],
                                       size[i][2],
                                       RC_RANDOM,
                                       -0.1,
                                       0,
                                       1};
            rc_compare(k, &f, big ? rc_few : rc_lengths, big ? RC_COUNT(rc_few) : RC_COUNT(rc_lengths), tol, grad);
        }
    }
}

/* decays of 1 in all tokens, of about 1, strong ones, some and all of 0: nothing overflows, nothing becomes 0 inf */
static inline void rc_compare_gates(const struct rc_kind *k, double tol, double grad) {
    static const struct {
        enum rc_gate gate;
        double lo;
    } gates[] = {{RC_RANDOM, -0.001}, {RC_RANDOM, -1},     {RC_RANDOM, -8},    {RC_RANDOM, -60},
                 {RC_RESETS, -0.01},  {RC_RANDOM, -1e30},  {RC_CONSTANT, 0},   {RC_CONSTANT, -200},
                 {RC_CONSTANT, -4},   {RC_CONSTANT, -3.9}, {RC_CONSTANT, -1e4}};
    static const int64_t len[] = {150, 3, 65};
    for (size_t g = 0; g < sizeof gates / sizeof *gates; g++)
        for (int64_t d = 16; d <= 40; d += 24) {
            struct rc_shape f = {1, 1, d, d, d, gates[g].gate, gates[g].lo, 0, 1};
            if (k == &rc_kda) f.G = 2, f.b_hi = g % 2 ? 2 : 1;
            else f.H = 2;
            rc_compare(k, &f, len, 3, tol, grad);
        }
}

#endif
