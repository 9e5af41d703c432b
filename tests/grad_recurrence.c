/* grad_recurrence.c -- gla, gsa and kda in double: the references against finite differences, then the fast forms
 * against the references closely enough that only rounding is left. */
#include "recurrence_case.h"

struct objective {
    const struct rc_kind *k;
    struct pw *c;
};

/* sum of dout * out, so that its gradient is the backward pass for dout */
static double objective(void *ctx) {
    struct objective *o = ctx;
    const struct array *out = pw_get(o->c, "out"), *dout = pw_get(o->c, "dout");
    double sum = 0;
    o->k->forward(hl_ops_named("cpu-ref"), NULL, o->c);
    for (int64_t i = 0; i < out->rows * out->width; i++) sum += out->p[i] * dout->p[i];
    return sum;
}

static void check_shape(const struct rc_kind *k, const struct rc_shape *f) {
    static const int64_t len[] = {9, 1, 14};
    struct pw c = {0};
    struct objective o = {k, &c};
    rc_rows(&c, len, 3);
    k->build(&c, f, false);
    k->forward(hl_ops_named("cpu-ref"), NULL, &c);
    k->backward(hl_ops_named("cpu-ref"), NULL, &c);
    for (int i = 0; i < c.n; i++) {
        struct array *a = &c.v[i], *da = pw_grad(&c, a);
        if (a->out || !da) continue;
        double e = check_gradient(objective, &o, a->p, da->p, a->rows * a->width, 1e-5);
        if (!(e <= 1e-6)) fail_msg("%s " RC_FMT ": %s is off by %.3g", k->name, RC_ARG(f), da->name, e);
        /* the comparison must see a small mistake (equal slots: q and k have no gradient) */
        int64_t most = 0;
        for (int64_t j = 0; j < a->rows * a->width; j++)
            if (fabs(da->p[j]) > fabs(da->p[most])) most = j;
        if (fabs(da->p[most]) < 1e-6) continue;
        da->p[most] *= (real)1.001;
        assert_true(check_gradient(objective, &o, a->p + most, da->p + most, 1, 1e-5) > 1e-4);
    }
    pw_free(&c);
}

static void test_kda(void **state) {
    (void)state;
    check_shape(&rc_kda, &(struct rc_shape){1, 1, 3, 4, 0, RC_RANDOM, -1, 0, 1});
    check_shape(&rc_kda, &(struct rc_shape){2, 4, 4, 3, 0, RC_RANDOM, -0.1, 0, 2});
    check_shape(&rc_kda, &(struct rc_shape){1, 2, 3, 3, 0, RC_CONSTANT, 0, 0, 1});
}
static void test_gla(void **state) {
    (void)state;
    check_shape(&rc_gla, &(struct rc_shape){1, 1, 3, 4, 0, RC_RANDOM, -1, 0, 0});
    check_shape(&rc_gla, &(struct rc_shape){4, 2, 4, 3, 0, RC_RANDOM, -0.1, 0, 0});
    check_shape(&rc_gla, &(struct rc_shape){2, 1, 3, 3, 0, RC_CONSTANT, 0, 0, 0});
}
static void test_gsa(void **state) {
    (void)state;
    check_shape(&rc_gsa, &(struct rc_shape){1, 1, 3, 4, 5, RC_RANDOM, -1, 0, 0});
    check_shape(&rc_gsa, &(struct rc_shape){4, 2, 4, 3, 3, RC_RANDOM, -0.1, 0, 0});
    check_shape(&rc_gsa, &(struct rc_shape){2, 1, 3, 3, 2, RC_CONSTANT, -0.5, 0, 0});
}

static void fast_shapes(void **state) {
    (void)state;
    rc_compare_shapes(&rc_kda, 1e-12, 10);
    rc_compare_shapes(&rc_gla, 1e-12, 10);
    rc_compare_shapes(&rc_gsa, 1e-12, 10);
}
static void fast_gates(void **state) {
    (void)state;
    rc_compare_gates(&rc_kda, 1e-11, 10);
    rc_compare_gates(&rc_gla, 1e-11, 10);
    rc_compare_gates(&rc_gsa, 1e-11, 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kda),    cmocka_unit_test(test_gla),   cmocka_unit_test(test_gsa),
        cmocka_unit_test(fast_shapes), cmocka_unit_test(fast_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
