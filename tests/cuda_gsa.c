/* cuda_gsa.c -- gated slot attention on a GPU against the reference: shapes, gates, states carried across any cut,
 * long sequences, the same bits every time, mistakes that must be seen. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_recurrence.h"

/* bf16: rounding the operands of each product leaves 2 to 4 parts in a thousand; of logits that are 5 in size that is
 * an error of 1 in a hundred after the softmax, and its gradient is rounded once more */
static const double tolerance[2][3] = {{1.2e-2, 1.6e-2, 2e-2}, {1e-5, 3e-5, 1e-4}};

static void shapes(void **state) {
    static const int64_t size[][3] = {{64, 64, 64}, {64, 128, 64}, {128, 128, 64}, {256, 256, 64}, {128, 64, 128},
                                      {16, 24, 5},  {80, 100, 40}, {128, 20, 300}, {8, 8, 600}};
    (void)state;
    rc_shapes_device(&rc_gsa, size, RC_COUNT(size), tolerance);
}

static void gates(void **state) {
    (void)state;
    rc_gates_device(&rc_gsa, 64, tolerance);
}

static void splits(void **state) {
    (void)state;
    rc_splits_device(&rc_gsa, 64, tolerance);
}

static void many_sequences(void **state) {
    (void)state;
    rc_many_sequences_device(&rc_gsa, 64, tolerance);
}

static void short_segments(void **state) {
    static const struct rc_shape shape[] = {{2, 2, 64, 64, 64, RC_RANDOM, -0.1, 0, 0},
                                            {4, 2, 128, 96, 48, RC_RANDOM, -0.1, 0, 0},
                                            {1, 1, 256, 128, 64, RC_RANDOM, -2, 0, 0}};
    (void)state;
    rc_short_segments_device(&rc_gsa, shape, RC_COUNT(shape), tolerance);
}

static void older(void **state) {
    (void)state;
    rc_older_device(&rc_gsa, 64, tolerance);
}

static void forward_from(const struct dev *d, const struct pw *c, const struct rc_shape *f, int64_t t) {
    const int64_t act = d->backend->act_size;
    struct hl_gsa a = c->op.gsa;
    a.q = (const char *)a.q + t * f->H * f->K * act, a.k = (const char *)a.k + t * f->G * f->K * act;
    a.v = (const char *)a.v + t * f->G * f->V * act, a.out = (char *)a.out + t * f->H * f->V * act;
    a.f += t * f->G * f->M, a.p = (char *)a.p + t * f->H * f->M * act;
    d->ops->gsa_forward(d->backend, &a);
}
static void decode(void **state) {
    static const struct rc_shape shape[] = {{1, 1, 64, 64, 64, RC_RANDOM, -0.05, 0, 0},
                                            {2, 1, 128, 256, 64, RC_RANDOM, -0.05, 0, 0},
                                            {1, 1, 40, 24, 16, RC_RANDOM, -0.05, 0, 0}};
    (void)state;
    rc_decode_device(&rc_gsa, shape, RC_COUNT(shape), forward_from, tolerance);
}

static void bits_and_mistakes(void **state) {
    static const struct rc_shape f = {1, 1, 64, 64, 64, RC_RANDOM, -0.1, 0, 0};
    (void)state;
    rc_bits_and_mistakes_device(&rc_gsa, &f, "f");
}

static void report(void **state) {
    (void)state;
    rc_report_device(&rc_gsa);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),         cmocka_unit_test(gates),
        cmocka_unit_test(splits),         cmocka_unit_test(decode),
        cmocka_unit_test(many_sequences), cmocka_unit_test(short_segments),
        cmocka_unit_test(older),          cmocka_unit_test(bits_and_mistakes),
        cmocka_unit_test(report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
