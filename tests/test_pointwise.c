/* test_pointwise.c -- norms, gate, swiglu and conv: every fast backend against the reference, rows that
 * do not care about their neighbours, results that do not care about threads, and wrong versions that
 * must be caught. Sequences and sessions of the convolution: test_conv.c. */
#include "pointwise.h"

#define TOL 5e-7 /* of any array; the worst seen is 3.5e-7, a sum over rows */
#define FAR 1e-3 /* what a wrong formula exceeds */

static const int64_t Ms[] = {1, 2, 7, 64, 257}, Ds[] = {16, 24, 100, 128, 512};
static const int64_t heads[] = {1, 4, 6, 16, 40};
enum { SHAPES = 5 };

static struct hl_backend *one, *three;
static const struct hl_ops *ref;

static int setup(void **state) {
    (void)state;
    one = check_backend_open(1, 0);
    three = check_backend_open(3, 0);
    ref = hl_ops_named("cpu-ref");
    return ref == NULL;
}
static int teardown(void **state) {
    (void)state;
    hl_backend_close(one);
    hl_backend_close(three);
    return 0;
}

static void run(const struct kind *k, const struct hl_ops *o, struct hl_backend *p, struct pw *c, int64_t M, int64_t D,
                int variant) {
    *c = (struct pw){0};
    k->build(c, M, D, variant);
    k->forward(o, p, c);
    k->backward(o, p, c);
}

static void must_equal(const struct pw *a, const struct pw *b, int64_t rows, const char *what) {
    for (int i = 0; i < a->n; i++) {
        if (rows && b->v[i].rows != rows) continue; /* a sum over rows */
        if (memcmp(a->v[i].p, b->v[i].p, (size_t)(a->v[i].rows * a->v[i].width) * sizeof(real)))
            fail_msg("%s: %s differs", what, a->v[i].name);
    }
}

static void compare(const struct kind *k, const struct hl_ops *o, const int64_t *widths, int variant) {
    struct pw want, got, threads, many;
    const char *name;
    for (int d = 0; d < SHAPES; d++) {
        run(k, o, one, &many, Ms[SHAPES - 1] + 3, widths[d], variant);
        for (int m = 0; m < SHAPES; m++) {
            run(k, ref, one, &want, Ms[m], widths[d], variant);
            run(k, o, one, &got, Ms[m], widths[d], variant);
            double e = pw_distance(&got, &want, &name);
            if (!(e <= TOL))
                fail_msg("%s %s variant %d, %d x %d: %s is %.3g away", o->name, k->name, variant, (int)Ms[m],
                         (int)widths[d], name, e);
            if (m == SHAPES - 1 && d % 2 == 0) { /* most others are too small for more than one thread */
                run(k, o, three, &threads, Ms[m], widths[d], variant);
                must_equal(&threads, &got, 0, "3 threads");
                pw_free(&threads);
            }
            /* conv's last segment may be cut short, which changes dx of its last rows */
            if (k != &kind_conv) must_equal(&got, &many, Ms[SHAPES - 1] + 3, "with more rows");
            pw_free(&want);
            pw_free(&got);
        }
        pw_free(&many);
    }
}

static void against_ref(const struct kind *k, const int64_t *widths) {
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(check_backend(b));
        for (int v = 0; o && v < k->variants; v++) compare(k, o, widths, v);
    }
}
static void test_rmsnorm(void **state) { (void)state, against_ref(&kind_rms, Ds); }
static void test_l2norm(void **state) { (void)state, against_ref(&kind_l2, Ds); }
static void test_logsigmoid(void **state) { (void)state, against_ref(&kind_logsigmoid, Ds); }
static void test_kda_gate(void **state) { (void)state, against_ref(&kind_kda_gate, Ds); }
static void test_map(void **state) { (void)state, against_ref(&kind_map, Ds); }
static void test_gate(void **state) { (void)state, against_ref(&kind_gate, heads); }
static void test_swiglu(void **state) { (void)state, against_ref(&kind_swiglu, Ds); }
static void test_conv(void **state) { (void)state, against_ref(&kind_conv, Ds); }

/* Sizes that no longer fit the partial sums of dw, and no rows at all. */
static void test_odd_sizes(void **state) {
    static const struct {
        const struct kind *k;
        int64_t M, D;
    } odd[] = {{&kind_rms, 3, 40000}, {&kind_gate, 300, 5000}, {&kind_conv, 70, 9001},
               {&kind_rms, 0, 16},    {&kind_gate, 0, 4},      {&kind_conv, 0, 16},
               {&kind_l2, 0, 16},     {&kind_swiglu, 0, 16},   {&kind_rms, 40, 1}};
    const struct hl_ops *o = hl_ops_named("cpu");
    struct pw want, got;
    const char *name;
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        int variant = odd[i].k == &kind_conv ? 4 : 0;
        run(odd[i].k, ref, one, &want, odd[i].M, odd[i].D, variant);
        run(odd[i].k, o, three, &got, odd[i].M, odd[i].D, variant);
        double e = pw_distance(&got, &want, &name);
        if (!(e <= TOL)) fail_msg("%s: %s is %.3g away", odd[i].k->name, name, e);
        pw_free(&want);
        pw_free(&got);
    }
}

/* The gradients may take the place of gate and up. */
static void test_swiglu_in_place(void **state) {
    (void)state;
    for (int b = -1; b < 0 || check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        struct pw want, got = {0};
        if (!o) continue;
        run(&kind_swiglu, o, one, &want, 7, 100, 0);
        swiglu_build(&got, 7, 100, 0);
        got.op.swiglu.dgate = pw_get(&got, "gate")->p;
        got.op.swiglu.dup = pw_get(&got, "up")->p;
        o->swiglu_backward(one, &got.op.swiglu);
        assert_memory_equal(pw_get(&got, "gate")->p, pw_get(&want, "dgate")->p, 700 * sizeof(real));
        assert_memory_equal(pw_get(&got, "up")->p, pw_get(&want, "dup")->p, 700 * sizeof(real));
        pw_free(&want);
        pw_free(&got);
    }
}

/* softplus to 3e-7 relative however small it is, equal to its argument above 20; extremes stay finite */
static void test_softplus(void **state) {
    enum { T = 20000, H = 4 };
    (void)state;
    for (int b = 0; check_backend(b); b++) {
        const struct hl_ops *o = hl_ops_named(check_backend(b));
        struct pw c = {0};
        double worst = 0;
        if (!o) continue;
        gate_build(&c, T, H, 0);
        real *a = pw_get(&c, "a")->p, *g = pw_get(&c, "g")->p;
        memset(pw_get(&c, "A_log")->p, 0, H * sizeof(real));
        memset(pw_get(&c, "dt_bias")->p, 0, H * sizeof(real));
        for (int i = 0; i < T * H; i++) a[i] = (real)(-87 + 110.0 * i / (T * H));
        o->gate_forward(one, &c.op.gate);
        for (int i = 0; i < T * H; i++) {
            double x = (double)a[i], want = x > 20 ? x : log1p(exp(x));
            worst = fmax(worst, fabs(-(double)g[i] - want) / want);
            if (x > 20) assert_true(g[i] == -a[i]);
        }
        if (!(worst <= 3e-7)) fail_msg("%s: softplus is off by %.3g", o->name, worst);
        a[0] = -1e30f, a[1] = 1e30f, a[2] = (real)-INFINITY, a[3] = (real)NAN;
        o->gate_forward(one, &c.op.gate);
        assert_true(g[0] == 0 && g[1] == -1e30f && g[2] == 0 && g[3] != g[3]);
        pw_free(&c);
    }
}

/* ---- wrong versions ---- */

static real norm2(const real *x, int64_t D) {
    real s = 0;
    for (int64_t i = 0; i < D; i++) s += x[i] * x[i];
    return s;
}

static void test_wrong_norms(void **state) {
    enum { M = 64, D = 128 };
    struct pw rms, l2;
    real *y = check_new(M * D);
    (void)state;
    run(&kind_rms, ref, one, &rms, M, D, 1);
    const real *x = rms.op.rms.x, *z = rms.op.rms.z, *w = rms.op.rms.w, *want = rms.op.rms.y;
    for (int i = 0; i < M * D; i++) { /* eps outside the mean */
        real r = 1 / R_SQRT((norm2(x + i / D * D, D) + rms.op.rms.eps) / D);
        y[i] = r * x[i] * w[i % D] * z[i] * hl_sigmoid(z[i]);
    }
    CHECK_FAR(y, want, M, D, FAR);
    for (int i = 0; i < M * D; i++) { /* eps outside the root */
        real r = 1 / (R_SQRT(norm2(x + i / D * D, D) / D) + rms.op.rms.eps);
        y[i] = r * x[i] * w[i % D] * z[i] * hl_sigmoid(z[i]);
    }
    CHECK_FAR(y, want, M, D, FAR);
    for (int i = 0; i < M * D; i++) y[i] = rms.op.rms.r[i / D] * x[i] * w[i % D] * hl_sigmoid(z[i]);
    CHECK_FAR(y, want, M, D, FAR); /* a sigmoid gate */

    run(&kind_l2, ref, one, &l2, M, D, 0);
    x = l2.op.l2.x, want = l2.op.l2.y;
    for (int i = 0; i < M * D; i++) y[i] = x[i] / (real)fmax(sqrt((double)norm2(x + i / D * D, D)), 1e-6);
    CHECK_FAR(y, want, M, D, FAR); /* max(norm, eps) */
    for (int i = 0; i < M * D; i++) y[i] = x[i] / R_SQRT(norm2(x + i / D * D, D) / D + (real)1e-6);
    CHECK_FAR(y, want, M, D, FAR); /* a mean */
    for (int i = 0; i < M * D; i++) y[i] = l2.op.l2.r[i / D] * ((const real *)l2.op.l2.dy)[i];
    CHECK_FAR(y, (const real *)l2.op.l2.dx, M, D, FAR); /* no projection in the gradient */
    pw_free(&rms);
    pw_free(&l2);
    check_free(y, M * D);
}

static void test_wrong_gates(void **state) {
    enum { T = 64, H = 4 };
    struct pw c, s;
    real *y = check_new(T * H), *d = check_new(T * H);
    (void)state;
    run(&kind_gate, ref, one, &c, T, H, 1);
    const struct hl_gate *g = &c.op.gate;
    for (int i = 0; i < T * H; i++) y[i] = g->beta[i] / 2;
    CHECK_FAR(y, g->beta, T, H, FAR); /* negative eigenvalues forgotten */
    for (int i = 0; i < T * H; i++) y[i] = g->dbeta[i] * g->beta[i] * (1 - g->beta[i]);
    CHECK_FAR(y, (const real *)g->db, T, H, FAR); /* in the gradient as well */
    for (int i = 0; i < T * H; i++) y[i] = g->g[i] / R_EXP(g->A_log[i % H]) * R_EXP(g->A_log[i / T]);
    CHECK_FAR(y, g->g, T, H, FAR); /* heads as the slow index */
    for (int i = 0; i < T * H; i++) y[i] = -R_EXP(g->A_log[i % H]) * R_LOG1P(R_EXP(((const real *)g->a)[i]));
    CHECK_FAR(y, g->g, T, H, FAR); /* no dt_bias */

    run(&kind_swiglu, ref, one, &s, T, H, 0);
    const real *gate = s.op.swiglu.gate, *up = s.op.swiglu.up, *dy = s.op.swiglu.dy;
    for (int i = 0; i < T * H; i++) {
        y[i] = hl_sigmoid(gate[i]) * up[i];
        d[i] = dy[i] * up[i] * hl_sigmoid(gate[i]) * (1 - hl_sigmoid(gate[i]));
    }
    CHECK_FAR(y, (const real *)s.op.swiglu.y, T, H, FAR);
    CHECK_FAR(d, (const real *)s.op.swiglu.dgate, T, H, FAR);
    pw_free(&c);
    pw_free(&s);
    check_free(y, T * H);
    check_free(d, T * H);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),         cmocka_unit_test(test_l2norm),   cmocka_unit_test(test_gate),
        cmocka_unit_test(test_logsigmoid),      cmocka_unit_test(test_kda_gate), cmocka_unit_test(test_map),
        cmocka_unit_test(test_swiglu),          cmocka_unit_test(test_conv),     cmocka_unit_test(test_odd_sizes),
        cmocka_unit_test(test_swiglu_in_place), cmocka_unit_test(test_softplus), cmocka_unit_test(test_wrong_norms),
        cmocka_unit_test(test_wrong_gates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
