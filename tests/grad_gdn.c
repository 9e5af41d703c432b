/* grad_gdn.c -- the delta rule in double: the reference against finite differences, then the fast
 * forms against the reference closely enough that only rounding is left. */
#include "gdn_case.h"

struct objective {
    struct gdn_case *c;
    struct gdn_result *r;
};

/* sum of dout * out, so that its gradient is the backward pass for dout */
static double objective(void *ctx) {
    struct objective *o = ctx;
    struct hl_gdn a = o->c->a;
    double sum = 0;
    a.out = o->r->out;
    a.m = o->r->m;
    hl_ops_named("cpu-ref")->gdn_forward(NULL, &a);
    for (int64_t i = 0; i < o->c->v; i++) sum += (double)o->r->out[i] * (double)((const real *)a.dout)[i];
    return sum;
}

static void check_shape(const struct gdn_shape *f) {
    static const int64_t len[] = {9, 1, 14};
    struct gdn_case *c = case_new(f, len, 3, 31);
    struct gdn_result r = result_new(c);
    struct objective o = {c, &r};
    run_training(hl_ops_named("cpu-ref"), NULL, c, &r, true);
    CHECK_GRADIENT(objective, &o, (real *)c->a.q, r.dq, c->qk, 1e-6);
    CHECK_GRADIENT(objective, &o, (real *)c->a.k, r.dk, c->qk, 1e-6);
    CHECK_GRADIENT(objective, &o, (real *)c->a.v, r.dv, c->v, 1e-6);
    CHECK_GRADIENT(objective, &o, (real *)c->a.beta, r.dbeta, c->b, 1e-6);
    if (c->a.g) CHECK_GRADIENT(objective, &o, (real *)c->a.g, r.dg, c->b, 1e-6);
    /* the comparison must see a small mistake */
    r.dk[3] *= (real)1.001;
    assert_true(check_gradient(objective, &o, (real *)c->a.k, r.dk, c->qk, 1e-5) > 1e-6);
    result_free(c, &r);
    case_free(c);
}

static void reference_is_the_derivative(void **state) {
    (void)state;
    check_shape(&(struct gdn_shape){1, 1, 3, 4, GATE_RANDOM, -1, 0, 1});
    check_shape(&(struct gdn_shape){2, 4, 4, 3, GATE_RANDOM, -0.1, 0, 2});
    check_shape(&(struct gdn_shape){1, 2, 3, 3, GATE_ZERO, 0, 0, 1});
    check_shape(&(struct gdn_shape){2, 2, 2, 5, GATE_NONE, 0, 0, 1});
}

static void fast_shapes(void **state) {
    (void)state;
    compare_shapes(1e-12, 1e-11);
}

static void fast_gates(void **state) {
    (void)state;
    compare_gates(1e-12, 1e-11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(fast_shapes),
        cmocka_unit_test(fast_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
