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
static void kda_gate_apart(const struct dev *d) {
    enum { T = 70, HV = 3, K = 5, C = HV * K };
    struct pw c = {0};
    kda_gate_build(&c, T, K, 1);
    struct hl_kda_gate a = c.op.kda_gate, b;
    a.A_log = dev_real(d, a.A_log, HV), a.dt_bias = dev_real(d, a.dt_bias, C);
    a.dg = dev_real(d, a.dg, T * C), a.dbeta = dev_real(d, a.dbeta, T * HV);
    a.dA_log = dev_real(d, a.dA_log, HV), a.ddt_bias = dev_real(d, a.ddt_bias, C);
    a.g = dev_real(d, NULL, T * C), a.beta = dev_real(d, NULL, T * HV);
    b = a, b.ld_x = b.ld_b = APART, b.g = dev_real(d, NULL, T * C), b.beta = dev_real(d, NULL, T * HV);
    b.x = spread(d, a.x, T, C), b.b = spread(d, a.b, T, HV);
    b.dx = spread(d, NULL, T, C), b.db = spread(d, NULL, T, HV);
    a.x = dev_act(d, a.x, T * C), a.b = dev_act(d, a.b, T * HV);
    a.dx = dev_act(d, NULL, T * C), a.db = dev_act(d, NULL, T * HV);
    d->ops->kda_gate_forward(d->backend, &a), d->ops->kda_gate_backward(d->backend, &a);
    d->ops->kda_gate_forward(d->backend, &b), d->ops->kda_gate_backward(d->backend, &b);
    real *one = check_new(T * C), *two = check_new(T * C);
    dev_real_take(d, a.g, one, T * C), dev_real_take(d, b.g, two, T * C);
    assert_memory_equal(one, two, T * C * sizeof(real));
    dev_real_take(d, a.beta, one, T * HV), dev_real_take(d, b.beta, two, T * HV);
    assert_memory_equal(one, two, T * HV * sizeof(real));
    same_apart(d, b.dx, a.dx, T, C), same_apart(d, b.db, a.db, T, HV);
    check_free(one, T * C), check_free(two, T * C);
    const void *all[] = {a.x, a.b, b.x, b.b, a.A_log, a.dt_bias, a.dg, a.dbeta, a.dA_log, a.ddt_bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dev_drop(d, all[i]);
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
static void map_apart(const struct dev *d, int64_t D) {
    enum { T = 37 };
    const int64_t n = T * D;
    struct pw c = {0};
    map_build(&c, T, D, 1);
    struct hl_feature_map a = c.op.map, b;
    a.dy = dev_act(d, a.dy, n);
    b = a, b.ld = APART, b.x = spread(d, a.x, T, D), b.dx = spread(d, NULL, T, D), b.y = dev_act(d, NULL, n);
    a.x = dev_act(d, a.x, n), a.dx = dev_act(d, NULL, n), a.y = dev_act(d, NULL, n);
    d->ops->feature_map_forward(d->backend, &a), d->ops->feature_map_backward(d->backend, &a);
    d->ops->feature_map_forward(d->backend, &b), d->ops->feature_map_backward(d->backend, &b);
    real *one = check_new(n), *two = check_new(n);
    dev_act_take(d, a.y, one, n), dev_act_take(d, b.y, two, n);
    assert_memory_equal(one, two, (size_t)n * sizeof(real));
    same_apart(d, b.dx, a.dx, T, D);
    check_free(one, n), check_free(two, n);
    dev_drop(d, a.dy), dev_drop(d, a.x), dev_drop(d, b.x);
    pw_free(&c);
}
/* a linear layer whose input is part of wider rows */
static void linear_apart(const struct dev *d) {
    enum { M = 70, K = 16, N = 40 };
    real *x = check_random(M * K, -1, 1, 1), *dout = check_random(M * N, -1, 1, 2), *w = check_random(N * K, -1, 1, 3);
    real *dW = check_random(N * K, -1, 1, 4), *one = check_new(M * N), *two = check_new(M * N);
    struct hl_linear a = {.M = M, .K = K, .n = 1}, b;
    a.part[0].W = (struct hl_weight){.data = dev_act(d, w, N * K), .rows = N, .cols = K};
    a.part[0].W.dtype = d->f32 ? HOLA_F32 : HOLA_BF16;
    a.part[0].dout = dev_act(d, dout, M * N);
    b = a, b.ldx = APART, b.x = spread(d, x, M, K), b.dx = spread(d, NULL, M, K);
    a.x = dev_act(d, x, M * K), a.dx = dev_act(d, NULL, M * K);
    a.part[0].out = dev_act(d, NULL, M * N), b.part[0].out = dev_act(d, NULL, M * N);
    a.part[0].dW = dev_real(d, dW, N * K), b.part[0].dW = dev_real(d, dW, N * K);
    d->ops->linear_forward(d->backend, &a), d->ops->linear_backward(d->backend, &a);
    d->ops->linear_forward(d->backend, &b), d->ops->linear_backward(d->backend, &b);
    dev_act_take(d, a.part[0].out, one, M * N), dev_act_take(d, b.part[0].out, two, M * N);
    CHECK_NEAR(two, one, M, N, d->f32 ? 1e-6 : 4e-3, "out"); /* other products may be chosen */
    dev_real_take(d, a.part[0].dW, one, N * K), dev_real_take(d, b.part[0].dW, two, N * K);
    CHECK_NEAR(two, one, N, K, d->f32 ? 1e-6 : 4e-3, "dW");
    real *close = check_new(M * K), *apart = check_new(M * APART), *got = check_new(M * K);
    dev_act_take(d, a.dx, close, M * K), dev_act_take(d, b.dx, apart, M * APART);
    for (int64_t i = 0; i < M; i++) memcpy(got + i * K, apart + i * APART, K * sizeof(real));
    for (int64_t i = 0; i < M * APART; i++) assert_true(i % APART < K || isnan(apart[i]));
    CHECK_NEAR(got, close, M, K, d->f32 ? 1e-6 : 4e-3, "dx");
    check_free(close, M * K), check_free(apart, M * APART), check_free(got, M * K);
    check_free(x, M * K), check_free(dout, M * N), check_free(w, N * K), check_free(dW, N * K);
    check_free(one, M * N), check_free(two, M * N);
    dev_drop(d, a.x), dev_drop(d, b.x), dev_drop(d, a.part[0].W.data), dev_drop(d, a.part[0].dout);
}
static void test_apart(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        gate_apart(&d), kda_gate_apart(&d);
        norm_apart(&d, 8), norm_apart(&d, 5);
        map_apart(&d, 16), map_apart(&d, 5);
        linear_apart(&d);
        dev_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
