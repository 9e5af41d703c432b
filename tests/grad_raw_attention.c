/* grad_raw_attention.c -- the gradients of tests/raw_attention_ref.h, which the raw calls are compared with, against
 * finite differences. */
#include "raw_attention_ref.h"

static double *numbers(int64_t n, uint64_t seed) {
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = check_uniform(&seed, -1, 1);
    return x;
}
static double loss(void *ctx) {
    struct attention_ref a = *(const struct attention_ref *)ctx;
    double *dout = a.dout, sum = 0;
    a.dout = NULL;
    attention_ref_run(&a);
    for (int64_t i = 0; i < a.T * a.H * a.D; i++) sum += dout[i] * a.out[i];
    return sum;
}
static void check(struct attention_ref *a, double *x, const double *dx, int64_t n, bool wrong) {
    const double e = check_gradient(loss, a, x, dx, n, 1e-5);
    if (wrong) assert_true(e > 1e-2);
    else assert_true(e < 1e-7);
}
static void gradients(void **state) {
    static const int64_t cu[] = {0, 5, 5, 11};
    (void)state;
    for (int64_t window = 0; window <= 3; window++) {
        struct attention_ref a = {.T = 11, .N = 3, .H = 4, .HK = 2, .D = 3, .window = window, .cu = cu, .scale = 0.7};
        const int64_t q = a.T * a.H * a.D, k = a.T * a.HK * a.D;
        a.q = numbers(q, 1), a.k = numbers(k, 2), a.v = numbers(k, 3), a.dout = numbers(q, 4);
        a.out = numbers(q, 0), a.lse = numbers(a.T * a.H, 0), a.dq = numbers(q, 0), a.dk = numbers(k, 0);
        a.dv = numbers(k, 0);
        attention_ref_run(&a);
        if (window != 1) check(&a, a.q, a.dq, q, false), check(&a, a.k, a.dk, k, false); /* one key: they are 0 */
        check(&a, a.v, a.dv, k, false);
        check(&a, a.v, a.dk, k, true); /* another gradient is found out */
        double *all[] = {a.q, a.k, a.v, a.dout, a.out, a.lse, a.dq, a.dk, a.dv};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
