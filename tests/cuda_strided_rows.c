/* cuda_strided_rows.c -- ops on rows with a stride, on a CUDA device: the same bits as on dense rows. */
#include "cuda.h"
#include "pointwise.h"

enum { APART = 24 };
/* [rows][width], APART numbers from one row to the next and NaN between; x NULL: all NaN */
static void *spread(const struct dev *d, const real *x, int64_t rows, int64_t width) {
    real *all = check_new(rows * APART);
    for (int64_t i = 0; x && i < rows; i++) memcpy(all + i * APART, x + i * width, (size_t)width * sizeof(real));
    void *p = dev_act(d, all, rows * APART);
    check_free(all, rows * APART);
    return p;
}
static void same_apart(const struct dev *d, void *apart, void *close, int64_t rows, int64_t width) {
    real *a = check_new(rows * APART), *b = check_new(rows * width);
    dev_act_take(d, apart, a, rows * APART), dev_act_take(d, close, b, rows * width);
    for (int64_t i = 0; i < rows; i++) {
        assert_memory_equal(a + i * APART, b + i * width, (size_t)width * sizeof(real));
        for (int64_t k = width; k < APART; k++) assert_true(isnan(a[i * APART + k]));
    }
    check_free(a, rows * APART), check_free(b, rows * width);
}
static void gate_apart(const struct dev *d) {
    enum { T = 70, H = 4 };
    struct pw c = {0};
    gate_build(&c, T, H, 0);
    struct hl_gate a = c.op.gate, b;
    a.A_log = dev_real(d, a.A_log, H), a.dt_bias = dev_real(d, a.dt_bias, H);
    a.dg = dev_real(d, a.dg, T * H), a.dbeta = dev_real(d, a.dbeta, T * H);
    a.dA_log = dev_real(d, a.dA_log, H), a.ddt_bias = dev_real(d, a.ddt_bias, H);
    a.g = dev_real(d, NULL, T * H), a.beta = dev_real(d, NULL, T * H);
    b = a, b.ld = APART, b.g = dev_real(d, NULL, T * H), b.beta = dev_real(d, NULL, T * H);
    b.a = spread(d, a.a, T, H), b.b = spread(d, a.b, T, H);
    b.da = spread(d, NULL, T, H), b.db = spread(d, NULL, T, H);
    a.a = dev_act(d, a.a, T * H), a.b = dev_act(d, a.b, T * H);
    a.da = dev_act(d, NULL, T * H), a.db = dev_act(d, NULL, T * H);
    d->ops->gate_forward(d->backend, &a), d->ops->gate_backward(d->backend, &a);
    d->ops->gate_forward(d->backend, &b), d->ops->gate_backward(d->backend, &b);
    real *one = check_new(T * H), *two = check_new(T * H);
    dev_real_take(d, a.g, one, T * H), dev_real_take(d, b.g, two, T * H);
    assert_memory_equal(one, two, T * H * sizeof(real));
    dev_real_take(d, a.beta, one, T * H), dev_real_take(d, b.beta, two, T * H);
    assert_memory_equal(one, two, T * H * sizeof(real));
    same_apart(d, b.da, a.da, T, H), same_apart(d, b.db, a.db, T, H);
    check_free(one, T * H), check_free(two, T * H);
    dev_drop(d, a.a), dev_drop(d, a.b), dev_drop(d, b.a), dev_drop(d, b.b);
    dev_drop(d, a.A_log), dev_drop(d, a.dt_bias), dev_drop(d, a.dg), dev_drop(d, a.dbeta);
    dev_drop(d, a.dA_log), dev_drop(d, a.ddt_bias);
    pw_free(&c);
}
/* heads of D, two of them a row of z */
static void norm_apart(const struct dev *d, int64_t D) {
    enum { T = 35, H = 2 };
    const int64_t n = T * H * D;
    struct pw c = {0};
    rms_build(&c, T * H, D, 1);
    struct hl_rmsnorm a = c.op.rms, b;
    a.x = dev_act(d, a.x, n), a.dy = dev_act(d, a.dy, n);
    a.w = dev_real(d, a.w, D), a.dw = dev_real(d, a.dw, D), a.r = dev_real(d, NULL, T * H);
    b = a, b.z_heads = H, b.z_ld = APART;
    b.z = spread(d, a.z, T, H * D), b.dz = spread(d, NULL, T, H * D);
    a.z = dev_act(d, a.z, n), a.dz = dev_act(d, NULL, n);
    a.y = dev_act(d, NULL, n), b.y = dev_act(d, NULL, n);
    a.dx = dev_act(d, NULL, n), b.dx = dev_act(d, NULL, n);
    d->ops->rmsnorm_forward(d->backend, &a), d->ops->rmsnorm_backward(d->backend, &a);
    d->ops->rmsnorm_forward(d->backend, &b), d->ops->rmsnorm_backward(d->backend, &b);
    real *one = check_new(n), *two = check_new(n);
    dev_act_take(d, a.y, one, n), dev_act_take(d, b.y, two, n);
    assert_memory_equal(one, two, (size_t)n * sizeof(real));
    dev_act_take(d, a.dx, one, n), dev_act_take(d, b.dx, two, n);
    assert_memory_equal(one, two, (size_t)n * sizeof(real));
    same_apart(d, b.dz, a.dz, T, H * D);
    check_free(one, n), check_free(two, n);
    dev_drop(d, a.x), dev_drop(d, a.dy), dev_drop(d, a.w), dev_drop(d, a.dw), dev_drop(d, a.r);
    dev_drop(d, a.z), dev_drop(d, b.z);
    pw_free(&c);
}
static void test_apart(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        gate_apart(&d);
        norm_apart(&d, 8), norm_apart(&d, 5);
        dev_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
