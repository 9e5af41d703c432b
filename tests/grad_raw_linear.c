/* grad_raw_linear.c -- the gradients of tests/raw_linear_ref.h, which the raw calls are compared with, against finite
 * differences. */
#include "raw_linear_ref.h"

static double *numbers(int64_t n, double lo, double hi, uint64_t seed) {
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = check_uniform(&seed, lo, hi);
    return x;
}
static double loss(void *ctx) {
    struct linear_ref a = *(const struct linear_ref *)ctx;
    double *dout = a.dout, sum = 0;
    a.dout = NULL;
    linear_ref_run(&a);
    for (int64_t i = 0; i < a.T * linear_heads(&a) * a.V; i++) sum += dout[i] * a.out[i];
    for (int64_t i = 0; i < a.N * a.S * a.K * a.V; i++) sum += a.dht[i] * a.ht[i];
    return sum;
}
static void check(struct linear_ref *a, double *x, const double *dx, int64_t n, bool wrong) {
    const double e = check_gradient(loss, a, x, dx, n, 1e-5);
    if (wrong) assert_true(e > 1e-2);
    else assert_true(e < 1e-7);
}
static void gradients(void **state) {
    static const int64_t cu[] = {0, 5, 5, 9};
    (void)state;
    for (int delta = 0; delta < 2; delta++)
        for (int way = 0; way < 4; way++) {
            const int group = 1 + way % 2;
            struct linear_ref a = {.T = 9, .N = 3, .K = 3, .V = 2, .cu = cu, .scale = 0.7, .norm = way / 2};
            a.H = delta ? 2 : 2 * group, a.S = delta ? 2 * group : 2;
            const int64_t q = a.T * a.H * a.K, k = a.T * 2 * a.K, v = a.T * a.S * a.V, g = a.T * a.S * a.K;
            const int64_t o = a.T * linear_heads(&a) * a.V;
            a.q = numbers(q, -1, 1, 1), a.k = numbers(k, -0.6, 0.6, 2), a.v = numbers(v, -1, 1, 3);
            a.g = numbers(g, -1, 0, 4), a.beta = delta ? numbers(a.T * a.S, 0, 1, 5) : NULL;
            a.dout = numbers(o, -1, 1, 6), a.out = numbers(o, 0, 0, 0), a.h0 = numbers(3 * a.S * 6, -1, 1, 7);
            a.ht = numbers(3 * a.S * 6, 0, 0, 0), a.dht = numbers(3 * a.S * 6, -1, 1, 8);
            a.dh0 = numbers(3 * a.S * 6, 0, 0, 0);
            a.dq = numbers(q, 0, 0, 0), a.dk = numbers(k, 0, 0, 0), a.dv = numbers(v, 0, 0, 0);
            a.dg = numbers(g, 0, 0, 0), a.dbeta = numbers(a.T * a.S, 0, 0, 0);
            linear_ref_run(&a);
            check(&a, a.q, a.dq, q, false), check(&a, a.k, a.dk, k, false), check(&a, a.v, a.dv, v, false);
            check(&a, a.g, a.dg, g, false), check(&a, a.h0, a.dh0, 3 * a.S * 6, false);
            check(&a, a.h0, a.dht, 3 * a.S * 6, true);
            if (delta) check(&a, a.beta, a.dbeta, a.T * a.S, false);
            check(&a, a.q, a.dk, k < q ? k : q, true); /* another gradient is found out */
            if (a.norm) {
                a.mistake = LINEAR_CONST_NORM;
                linear_ref_run(&a);
                check(&a, a.q, a.dq, q, true), check(&a, a.k, a.dk, k, true);
            }
            double *all[] = {a.q,  a.k,  a.v,  a.g,  a.beta,  a.dout, a.out, a.h0,
                             a.dq, a.dk, a.dv, a.dg, a.dbeta, a.ht,   a.dht, a.dh0};
            for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
