/* cuda_gla.c -- gated linear attention on a GPU against the reference: shapes, gates, states carried across any cut,
 * long sequences, the same bits every time, mistakes that must be seen. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_recurrence.h"

/* bf16: rounding the operands of each product leaves 2 to 4 parts in a thousand; gradients of decays are sums of terms
 * that nearly cancel */
static const double tolerance[2][3] = {{6e-3, 8e-3, 2e-2}, {1e-5, 3e-5, 1e-4}};

static void shapes(void **state) {
    static const int64_t size[][3] = {{64, 64}, {64, 128}, {128, 128}, {128, 64}, {128, 256},
                                      {16, 24}, {80, 100}, {300, 20},  {8, 600}};
    (void)state;
    rc_shapes_device(&rc_gla, size, RC_COUNT(size), tolerance);
}

static void gates(void **state) {
    (void)state;
    rc_gates_device(&rc_gla, 0, tolerance);
}

static void splits(void **state) {
    (void)state;
    rc_splits_device(&rc_gla, 0, tolerance);
}

static void many_sequences(void **state) {
    (void)state;
    rc_many_sequences_device(&rc_gla, 0, tolerance);
}

static void short_segments(void **state) {
    static const struct rc_shape shape[] = {{2, 2, 64, 64, 0, RC_RANDOM, -0.1, 0, 0},
                                            {4, 2, 128, 96, 0, RC_RANDOM, -0.1, 0, 0},
                                            {1, 1, 256, 16, 0, RC_RANDOM, -200, 0, 0}};
    (void)state;
    rc_short_segments_device(&rc_gla, shape, RC_COUNT(shape), tolerance);
}

static void older(void **state) {
    (void)state;
    rc_older_device(&rc_gla, 0, tolerance);
}

static void forward_from(const struct dev *d, const struct pw *c, const struct rc_shape *f, int64_t t) {
    const int64_t act = d->backend->act_size;
    struct hl_gla a = c->op.gla;
    a.q = (const char *)a.q + t * f->H * f->K * act, a.k = (const char *)a.k + t * f->G * f->K * act;
    a.v = (const char *)a.v + t * f->G * f->V * act, a.out = (char *)a.out + t * f->H * f->V * act;
    a.g += t * f->G * f->K;
    d->ops->gla_forward(d->backend, &a);
}
static void decode(void **state) {
    static const struct rc_shape shape[] = {{1, 1, 64, 64, 0, RC_RANDOM, -0.05, 0, 0},
                                            {2, 1, 128, 32, 0, RC_RANDOM, -0.05, 0, 0},
                                            {1, 1, 40, 24, 0, RC_RANDOM, -0.05, 0, 0}};
    (void)state;
    rc_decode_device(&rc_gla, shape, RC_COUNT(shape), forward_from, tolerance);
}

/* Rows that are not next to each other: q, k and v as parts of one array. */
static void strided(void **state) {
    enum { T = 70, K = 64, V = 64, LD = 2 * K + V };
    static const int64_t len[] = {T};
    static const struct rc_shape f = {1, 1, K, V, 0, RC_RANDOM, -0.1, 0, 0};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        struct pw dense, got;
        struct rc_device x;
        rc_open(&d, &dense, &rc_gla, &f, len, 1, false), rc_open(&d, &got, &rc_gla, &f, len, 1, false);
        rc_run_device(&d, &rc_gla, &dense, true);
        real *all = check_new(T * LD), *grads = check_new(T * LD);
        for (int t = 0; t < T; t++) {
            memcpy(all + t * LD, (const real *)got.op.gla.q + t * K, K * sizeof(real));
            memcpy(all + t * LD + K, (const real *)got.op.gla.k + t * K, K * sizeof(real));
            memcpy(all + t * LD + 2 * K, (const real *)got.op.gla.v + t * V, V * sizeof(real));
        }
        rc_put(&d, &x, &got);
        char *in = dev_act(&d, all, T * LD), *grad = dev_act(&d, NULL, T * LD);
        const int64_t act = d.backend->act_size;
        struct hl_gla a = x.c.op.gla;
        a.ld_q = a.ld_k = a.ld_v = LD;
        a.q = in, a.k = in + K * act, a.v = in + 2 * K * act;
        a.dq = grad, a.dk = grad + K * act, a.dv = grad + 2 * K * act;
        d.ops->gla_forward(d.backend, &a);
        d.ops->gla_backward(d.backend, &a);
        dev_act_take(&d, grad, grads, T * LD);
        dev_drop(&d, in);
        rc_take(&d, &x, &got);
        assert_memory_equal(pw_get(&got, "out")->p, pw_get(&dense, "out")->p, T * V * sizeof(real));
        assert_memory_equal(pw_get(&got, "dg")->p, pw_get(&dense, "dg")->p, T * K * sizeof(real));
        for (int t = 0; t < T; t++) {
            assert_memory_equal(grads + t * LD, pw_get(&dense, "dq")->p + t * K, K * sizeof(real));
            assert_memory_equal(grads + t * LD + K, pw_get(&dense, "dk")->p + t * K, K * sizeof(real));
            assert_memory_equal(grads + t * LD + 2 * K, pw_get(&dense, "dv")->p + t * V, V * sizeof(real));
        }
        check_free(all, T * LD), check_free(grads, T * LD);
        pw_free(&dense), pw_free(&got);
        dev_close(&d);
    }
}

static void bits_and_mistakes(void **state) {
    static const struct rc_shape f = {1, 1, 64, 64, 0, RC_RANDOM, -0.1, 0, 0};
    (void)state;
    rc_bits_and_mistakes_device(&rc_gla, &f, "g");
}

static void report(void **state) {
    (void)state;
    rc_report_device(&rc_gla);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes), cmocka_unit_test(gates),          cmocka_unit_test(splits),
        cmocka_unit_test(decode), cmocka_unit_test(many_sequences), cmocka_unit_test(short_segments),
        cmocka_unit_test(older),  cmocka_unit_test(strided),        cmocka_unit_test(bits_and_mistakes),
        cmocka_unit_test(report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
