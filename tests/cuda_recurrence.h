/* cuda_recurrence.h -- batches of recurrence_case.h on the device, against the reference on the host. */
#ifndef HL_CUDA_RECURRENCE_H
#define HL_CUDA_RECURRENCE_H
#include "cuda_older.h"
#include "recurrence_case.h"

/* Reals on a device; all other arrays are activations. */
static inline bool rc_is_real(const char *name) {
    static const char *const reals[] = {"g", "dg", "f", "df", "S"};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!strcmp(name, reals[i])) return true;
    return false;
}
static inline int64_t rc_numbers(const struct array *a) { return a->rows * a->width; }
/* A case whose activations the device can hold exactly. */
static inline void rc_open(const struct dev *d, struct pw *c, const struct rc_kind *k, const struct rc_shape *f,
                           const int64_t *len, int64_t n, bool session) {
    rc_new(c, k, f, len, n, session);
    for (int i = 0; i < c->n; i++)
        if (!c->v[i].out && !rc_is_real(c->v[i].name)) dev_round(d, c->v[i].p, rc_numbers(&c->v[i]));
}

/* A case on the device: every array has a copy there, and pointers refer to those. A device keeps nothing for the
 * backward pass: those pointers are NULL. */
struct rc_device {
    struct pw c;
    void *twin[MAX_ARRAYS];
};
static inline void rc_put(const struct dev *d, struct rc_device *x, const struct pw *c) {
    x->c = *c;
    for (int i = 0; i < c->n; i++) {
        const struct array *a = &c->v[i];
        const real *p = a->p;
        x->twin[i] = a->own                ? NULL
                     : rc_is_real(a->name) ? (void *)dev_real(d, p, rc_numbers(a))
                                           : dev_act(d, p, rc_numbers(a));
        for (size_t w = 0; w < sizeof x->c.op / sizeof p; w++)
            if (!memcmp((char *)&x->c.op + w * sizeof p, &p, sizeof p))
                memcpy((char *)&x->c.op + w * sizeof p, &x->twin[i], sizeof p);
        for (int64_t s = 0; s < c->rows.n && !strcmp(a->name, "S"); s++)
            x->c.seg[s].state = (char *)x->twin[i] + (c->seg[s].state - (const char *)p);
    }
    x->c.rows.seg = x->c.seg;
    const struct hl_rows *old = &c->rows, *rows = &x->c.rows;
    for (size_t w = 0; w < sizeof x->c.op / sizeof rows; w++)
        if (!memcmp((char *)&x->c.op + w * sizeof rows, &old, sizeof rows))
            memcpy((char *)&x->c.op + w * sizeof rows, &rows, sizeof rows);
    CHECK_OK(d->backend->storage.cut_rows(d->backend, &x->c.rows, 64));
}
/* Copies the results to the host. */
static inline void rc_take(const struct dev *d, struct rc_device *x, struct pw *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->v[i].own) continue;
        if (rc_is_real(c->v[i].name)) dev_real_take(d, x->twin[i], c->v[i].p, rc_numbers(&c->v[i]));
        else dev_act_take(d, x->twin[i], c->v[i].p, rc_numbers(&c->v[i]));
    }
}
static inline void rc_run_device(const struct dev *d, const struct rc_kind *k, struct pw *c, bool backward) {
    struct rc_device x;
    rc_put(d, &x, c);
    k->forward(d->ops, d->backend, &x.c);
    if (backward) k->backward(d->ops, d->backend, &x.c);
    rc_take(d, &x, c);
}

/* A training pass with gradients and a session's against the reference; the worst distances, by build: outputs and
 * states, gradients, gradients of decays; tol: what is allowed of each. */
static double rc_worst[2][3];
static inline void rc_compare_device(const struct dev *d, const struct rc_kind *k, const struct rc_shape *f,
                                     const int64_t *len, int64_t n, const double tol[3]) {
    for (int session = 0; session < 2; session++) {
        struct pw want, got;
        rc_open(d, &want, k, f, len, n, session), rc_open(d, &got, k, f, len, n, session);
        k->forward(hl_ops_named("cpu-ref"), NULL, &want);
        if (!session) k->backward(hl_ops_named("cpu-ref"), NULL, &want);
        rc_run_device(d, k, &got, !session);
        for (int i = 0; i < got.n; i++) {
            const struct array *a = &want.v[i];
            if (a->own) continue;
            const int what = a->name[0] != 'd' || !a->out ? 0 : rc_is_real(a->name) ? 2 : 1;
            double e = check_distance(got.v[i].p, a->p, a->rows, a->width);
            if (e > tol[what] && rc_is_noise(&want, &got.v[i], a, tol[what])) e = 0;
            rc_worst[d->f32][what] = fmax(rc_worst[d->f32][what], e);
            if (getenv("HOLA_VERBOSE")) print_message("%s " RC_FMT " %s %.3g\n", k->name, RC_ARG(f), a->name, e);
            if (!(e <= tol[what]))
                fail_msg("%s %s " RC_FMT " %s: %s is %.3g away (allowed %.3g)", d->ops->name, k->name, RC_ARG(f),
                         session ? "session" : "training", a->name, e, tol[what]);
        }
        pw_free(&want), pw_free(&got);
    }
}

/* Gates of exactly 1, of exp(-200), and all between: channels that decay to nothing within a chunk. M: slots, of which
 * the float build gets 10; 0: none. */
static inline void rc_gates_device(const struct rc_kind *k, int64_t M, const double tolerance[2][3]) {
    static const struct {
        enum rc_gate gate;
        double lo;
    } gates[] = {{RC_RANDOM, -0.001}, {RC_RANDOM, -1.3}, {RC_RANDOM, -5},     {RC_RANDOM, -60},
                 {RC_RANDOM, -1e30},  {RC_RESETS, -0.1}, {RC_CONSTANT, -200}, {RC_CONSTANT, 0}};
    static const int64_t len[] = {150, 3, 65};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t g = 0; g < sizeof gates / sizeof *gates; g++) {
            const struct rc_shape f = {
                1, 1, f32 ? 24 : 64, f32 ? 16 : 64, M && f32 ? 10 : M, gates[g].gate, gates[g].lo, 0, 0};
            rc_compare_device(&d, k, &f, len, 3, tolerance[f32]);
        }
        dev_close(&d);
    }
}

/* Few heads and a long segment, which is processed in splits, next to one too short for that; little decay, so that the
 * states between the splits matter. */
static inline void rc_splits_device(const struct rc_kind *k, int64_t M, const double tolerance[2][3]) {
    static const int64_t len[] = {16 * 64 + 30, 70};
    const struct rc_shape f = {1, 1, 64, 64, M, RC_RANDOM, -0.002, 0, 0};
    struct dev d = dev_open(false);
    rc_compare_device(&d, k, &f, len, 2, tolerance[0]);
    dev_close(&d);
}

/* More than one tile of 128 columns at a time needs many sequences. */
static inline void rc_many_sequences_device(const struct rc_kind *k, int64_t M, const double tolerance[2][3]) {
    enum { N = 48 };
    int64_t len[N];
    const struct rc_shape f = {2, 2, 64, 128, M, RC_RANDOM, -0.05, 0, 0};
    struct dev d = dev_open(false);
    for (int i = 0; i < N; i++) len[i] = i == 1 ? 200 : i % 3 + 1;
    rc_compare_device(&d, k, &f, len, N, tolerance[0]);
    dev_close(&d);
}

/* Many sessions of a few tokens. */
static inline void rc_short_segments_device(const struct rc_kind *k, const struct rc_shape *shape, int shapes,
                                            const double tolerance[2][3]) {
    static const int64_t len[] = {1, 8, 2, 1, 1, 5, 1};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (int i = 0; i < shapes; i++) rc_compare_device(&d, k, &shape[i], len, 7, tolerance[f32]);
        dev_close(&d);
    }
}

static const int64_t rc_few_device[] = {65, 1, 63};
/* GPUs before Hopper. */
static inline void rc_older_device(const struct rc_kind *k, int64_t M, const double tolerance[2][3]) {
    const struct rc_shape f = {2, 2, 64, 64, M, RC_RANDOM, -0.1, 0, 0};
    struct dev d = dev_open_older();
    rc_compare_device(&d, k, &f, rc_few_device, RC_COUNT(rc_few_device), tolerance[0]);
    dev_close_older(&d);
}

/* size: K, V, M */
static inline void rc_shapes_device(const struct rc_kind *k, const int64_t size[][3], int sizes,
                                    const double tolerance[2][3]) {
    static const int64_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 129};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (int i = 0; i < sizes; i++)
            for (int64_t group = 1; group <= 2; group++) {
                const int64_t K = size[i][0], V = size[i][1], M = size[i][2];
                const bool big = dev_slow(&d) && (M ? (K + V) * M / 2 : K * V) > 64 * 64;
                const struct rc_shape f = {group * 2, 2, K, V, M, RC_RANDOM, -0.1, 0, 0};
                if ((big && (group > 1 || f32)) || (dev_least() && i > 2)) continue;
                rc_compare_device(&d, k, &f, big ? rc_few_device : lengths,
                                  big ? RC_COUNT(rc_few_device) : RC_COUNT(lengths), tolerance[f32]);
            }
        dev_close(&d);
    }
}

/* A session cut anywhere is the whole at once. forward_from: the kind's forward pass of the rows from t on. */
static inline void rc_decode_device(const struct rc_kind *k, const struct rc_shape *shape, int shapes,
                                    void (*forward_from)(const struct dev *, const struct pw *, const struct rc_shape *,
                                                         int64_t),
                                    const double tolerance[2][3]) {
    enum { T = 150 };
    static const int64_t cut[] = {0, 70, 71, 72, 80, 81, 145, T}, len[] = {T};
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (int i = 0; i < shapes; i++) {
            const struct rc_shape *f = &shape[i];
            const double tol = tolerance[f32][0];
            struct pw want, got;
            struct rc_device x;
            rc_open(&d, &want, k, f, len, 1, true), rc_open(&d, &got, k, f, len, 1, true);
            k->forward(hl_ops_named("cpu-ref"), NULL, &want);
            rc_put(&d, &x, &got);
            for (int p = 0; p + 1 < RC_COUNT(cut); p++) {
                x.c.rows.T = x.c.seg[0].len = cut[p + 1] - cut[p], x.c.seg[0].pos = cut[p];
                CHECK_OK(d.backend->storage.cut_rows(d.backend, &x.c.rows, 64));
                forward_from(&d, &x.c, f, cut[p]);
            }
            rc_take(&d, &x, &got);
            CHECK_NEAR(pw_get(&got, "out")->p, pw_get(&want, "out")->p, T, f->H * f->V, tol, RC_FMT, RC_ARG(f));
            CHECK_NEAR(pw_get(&got, "S")->p, pw_get(&want, "S")->p, 1, rc_numbers(pw_get(&want, "S")), tol, RC_FMT,
                       RC_ARG(f));
            pw_free(&want), pw_free(&got);
        }
        dev_close(&d);
    }
}

/* The same bits again; and a pass without decay, or that starts empty where there is a state, is far off. */
static inline void rc_bits_and_mistakes_device(const struct rc_kind *k, const struct rc_shape *f, const char *decay) {
    static const int64_t len[] = {130, 20};
    struct dev d = dev_open(false);
    for (int session = 0; session < 2; session++) {
        struct pw one, two, wrong;
        rc_open(&d, &one, k, f, len, 2, session), rc_open(&d, &two, k, f, len, 2, session);
        rc_open(&d, &wrong, k, f, len, 2, session);
        rc_run_device(&d, k, &one, !session), rc_run_device(&d, k, &two, !session);
        for (int i = 0; i < one.n; i++)
            if (!one.v[i].own)
                assert_memory_equal(one.v[i].p, two.v[i].p, (size_t)rc_numbers(&one.v[i]) * sizeof(real));
        struct array *without = pw_get(&wrong, session ? "S" : decay);
        memset(without->p, 0, (size_t)rc_numbers(without) * sizeof(real));
        rc_run_device(&d, k, &wrong, !session);
        CHECK_FAR(pw_get(&wrong, "out")->p, pw_get(&one, "out")->p, 150, f->V, 0.02);
        if (!session)
            for (int i = 0; i < one.n; i++)
                if (one.v[i].name[0] == 'd' && one.v[i].out)
                    CHECK_FAR(wrong.v[i].p, one.v[i].p, one.v[i].rows, one.v[i].width, 0.02);
        pw_free(&one), pw_free(&two), pw_free(&wrong);
    }
    dev_close(&d);
}
static inline void rc_report_device(const struct rc_kind *k) {
    for (int f32 = 0; f32 < 2; f32++)
        print_message("%s, %s: outputs and states %.2g away, gradients %.2g, of decays %.2g\n", k->name,
                      f32 ? "float" : "bf16", rc_worst[f32][0], rc_worst[f32][1], rc_worst[f32][2]);
}

#endif
