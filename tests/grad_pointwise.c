/* grad_pointwise.c -- norms, gate, swiglu and conv in double: every gradient against finite differences
 * (below 1e-6), the fast sources against the reference, and wrong gradients that must be caught. */
#include "pointwise.h"

static struct hl_backend *one;

static int setup(void **state) {
    (void)state;
    one = check_backend_open(1, 0);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    hl_backend_close(one);
    return 0;
}

/* the loss: the sum over outputs of output . given gradient */
struct loss {
    const struct kind *k;
    const struct hl_ops *o;
    struct pw *c;
};
static double loss(void *ctx) {
    struct loss *l = ctx;
    double sum = 0;
    l->k->forward(l->o, one, l->c);
    for (int i = 0; i < l->c->n; i++) {
        const struct array *a = &l->c->v[i], *da = pw_grad(l->c, a);
        for (int64_t j = 0; a->out && da && j < a->rows * a->width; j++) sum += a->p[j] * da->p[j];
    }
    return sum;
}

/* Inputs of the norms are as small as eps; the step must be smaller still. */
static double step(const struct kind *k) { return k == &kind_rms || k == &kind_l2 ? 1e-7 : 1e-5; }

static void differentiate(const struct kind *k, const struct hl_ops *o, int64_t M, int64_t D, int variant) {
    struct pw c = {0};
    struct loss l = {k, o, &c};
    k->build(&c, M, D, variant);
    for (int i = 0; i < c.n; i++) { /* what is added to starts from 0 here */
        struct array *da = pw_grad(&c, &c.v[i]);
        if (da && !c.v[i].out) memset(da->p, 0, (size_t)(da->rows * da->width) * sizeof(real));
    }
    k->forward(o, one, &c);
    k->backward(o, one, &c);
    for (int i = 0; i < c.n; i++) {
        struct array *a = &c.v[i], *da = pw_grad(&c, a);
        if (a->out || !da) continue;
        double e = check_gradient(loss, &l, a->p, da->p, a->rows * a->width, step(k));
        if (!(e <= 1e-6))
            fail_msg("%s %s variant %d, %d x %d: %s is off by %.3g", o->name, k->name, variant, (int)M, (int)D,
                     da->name, e);
    }
    pw_free(&c);
}

static void gradients(const struct kind *k, const int64_t *widths) {
    for (int b = -1; b < 0 || check_backend(b); b++) {
        struct hl_ops o = *hl_ops_named(b < 0 ? "cpu-ref" : check_backend(b));
        hl_ops_fall_back(&o);
        for (int v = 0; v < k->variants; v++)
            for (int d = 0; d < 3; d++) {
                differentiate(k, &o, 1, widths[d], v);
                differentiate(k, &o, 9, widths[d], v);
            }
    }
}
static const int64_t Ds[] = {3, 16, 23}, heads[] = {1, 4, 6};
static void test_rmsnorm(void **state) { (void)state, gradients(&kind_rms, Ds); }
static void test_l2norm(void **state) { (void)state, gradients(&kind_l2, Ds); }
static void test_gate(void **state) { (void)state, gradients(&kind_gate, heads); }
static void test_logsigmoid(void **state) { (void)state, gradients(&kind_logsigmoid, Ds); }
static void test_kda_gate(void **state) { (void)state, gradients(&kind_kda_gate, Ds); }
static void test_swiglu(void **state) { (void)state, gradients(&kind_swiglu, Ds); }
static void test_map(void **state) { (void)state, gradients(&kind_map, Ds); }
static void test_conv(void **state) { (void)state, gradients(&kind_conv, Ds); }

/* In double a fast source that has the right formula agrees to rounding. */
static void test_fast_is_ref(void **state) {
    static const struct kind *const kinds[] = {&kind_rms,      &kind_l2,     &kind_gate, &kind_logsigmoid,
                                               &kind_kda_gate, &kind_swiglu, &kind_map,  &kind_conv};
    const struct hl_ops *ref = hl_ops_named("cpu-ref"), *o = hl_ops_named("cpu-base");
    struct pw want, got;
    const char *name;
    (void)state;
    for (int i = 0; i < 8; i++)
        for (int v = 0; v < kinds[i]->variants; v++) {
            want = got = (struct pw){0};
            kinds[i]->build(&want, 150, 37, v);
            kinds[i]->build(&got, 150, 37, v);
            kinds[i]->forward(ref, one, &want);
            kinds[i]->backward(ref, one, &want);
            kinds[i]->forward(o, one, &got);
            kinds[i]->backward(o, one, &got);
            double e = pw_distance(&got, &want, &name);
            if (!(e <= 1e-14)) fail_msg("%s variant %d: %s is %.3g away", kinds[i]->name, v, name, e);
            pw_free(&want);
            pw_free(&got);
        }
}

/* ---- wrong gradients ---- */

static void must_be_far(const struct kind *k, struct pw *c, const char *input, const real *wrong) {
    struct loss l = {k, hl_ops_named("cpu-ref"), c};
    struct array *a = pw_get(c, input);
    double e = check_gradient(loss, &l, a->p, wrong, a->rows * a->width, step(k));
    if (e <= 1e-3) fail_msg("%s: a wrong gradient of %s passes: %.3g", k->name, input, e);
}

static void test_wrong_gradients(void **state) {
    enum { M = 9, D = 16 };
    const struct hl_ops *ref = hl_ops_named("cpu-ref");
    struct pw rms = {0}, l2 = {0}, conv = {0}, swiglu = {0};
    real *d = check_new(M * D);
    (void)state;
    rms_build(&rms, M, D, 1);
    rms_forward(ref, one, &rms);
    rms_backward(ref, one, &rms);
    const struct hl_rmsnorm *a = &rms.op.rms;
    const real *z = a->z, *dy = a->dy;
    for (int i = 0; i < M * D; i++) d[i] = a->r[i / D] * dy[i] * z[i] * hl_sigmoid(z[i]) * a->w[i % D];
    must_be_far(&kind_rms, &rms, "x", d); /* without the mean */
    for (int i = 0; i < M * D; i++) d[i] = ((const real *)a->dz)[i] / (1 + z[i] * (1 - hl_sigmoid(z[i])));
    must_be_far(&kind_rms, &rms, "z", d); /* a gate taken for constant times z */

    l2_build(&l2, M, D, 0);
    l2_forward(ref, one, &l2);
    for (int i = 0; i < M * D; i++) d[i] = l2.op.l2.r[i / D] * ((const real *)l2.op.l2.dy)[i];
    must_be_far(&kind_l2, &l2, "x", d); /* without the projection */

    conv_build(&conv, M, D, 4);
    conv.seg[0].len = M; /* a gradient that flows across the starts */
    conv.rows.n = 1;
    conv_backward(ref, one, &conv);
    memcpy(d, conv.op.conv.dx, M * D * sizeof(real));
    conv.rows.n = 0;
    conv_cut(&conv, M);
    must_be_far(&kind_conv, &conv, "x", d);

    swiglu_build(&swiglu, M, D, 0);
    swiglu_backward(ref, one, &swiglu);
    for (int i = 0; i < M * D; i++)
        d[i] = ((const real *)swiglu.op.swiglu.dgate)[i] * hl_sigmoid(((const real *)swiglu.op.swiglu.gate)[i]);
    must_be_far(&kind_swiglu, &swiglu, "gate", d);
    pw_free(&rms);
    pw_free(&l2);
    pw_free(&conv);
    pw_free(&swiglu);
    check_free(d, M * D);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),     cmocka_unit_test(test_l2norm),
        cmocka_unit_test(test_gate),        cmocka_unit_test(test_logsigmoid),
        cmocka_unit_test(test_kda_gate),    cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_map),         cmocka_unit_test(test_conv),
        cmocka_unit_test(test_fast_is_ref), cmocka_unit_test(test_wrong_gradients),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
