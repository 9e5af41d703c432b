/* cuda_gsa.c -- gated slot attention on a GPU against the reference: shapes, gates, states carried across any cut,
 * long sequences, the same bits every time, mistakes that must be seen. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_older.h"
#include "cuda_recurrence.h"

/* bf16: rounding the operands of each product leaves 2 to 4 parts in a thousand; of logits that are 5 in size that is
 * an error of 1 in a hundred after the softmax, and its gradient is rounded once more */
static const double tolerance[2][3] = {{1.2e-2, 1.6e-2, 2e-2}, {1e-5, 3e-5, 1e-4}};
static void compare(const struct dev *d, const struct rc_shape *f, const int64_t *len, int64_t n) {
    rc_compare_device(d, &rc_gsa, f, len, n, tolerance[d->f32]);
}
static const int64_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 129}, few[] = {65, 1, 63};
enum { LENGTHS = sizeof lengths / sizeof *lengths, FEW = sizeof few / sizeof *few };

static void shapes(void **state) {
    static const int64_t size[][3] = {{64, 64, 64},   {64, 128, 64}, {128, 128, 64}, {256, 256, 64},
                                      {128, 64, 128}, {16, 24, 5},   {80, 100, 40},  {128, 20, 300}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (int64_t group = 1; group <= 2; group++) {
                const bool big = dev_slow(&d) && (size[i][0] + size[i][1]) * size[i][2] > 64 * 128;
                const struct rc_shape f = {group * 2, 2, size[i][0], size[i][1], size[i][2], RC_RANDOM, -0.1, 0, 0};
                if ((big && (group > 1 || f32)) || (dev_least() && i > 2)) continue;
                compare(&d, &f, big ? few : lengths, big ? FEW : LENGTHS);
            }
        dev_close(&d);
    }
}

static void gates(void **state) {
    (void)state;
    rc_gates_device(&rc_gsa, 64, tolerance);
}

/* Few heads and a long segment, which is walked in splits, beside one too short for that; little decay, so that the
 * states between the splits matter. */
static void splits(void **state) {
    static const int64_t len[] = {16 * 64 + 30, 70};
    static const struct rc_shape f = {1, 1, 64, 64, 64, RC_RANDOM, -0.002, 0, 0};
    (void)state;
    struct dev d = dev_open(false);
    compare(&d, &f, len, 2);
    dev_close(&d);
}

/* More than one tile of 128 columns at a time needs many sequences. */
static void many_sequences(void **state) {
    enum { N = 48 };
    int64_t len[N];
    static const struct rc_shape f = {2, 2, 64, 128, 64, RC_RANDOM, -0.05, 0, 0};
    (void)state;
    struct dev d = dev_open(false);
    for (int i = 0; i < N; i++) len[i] = i == 1 ? 200 : i % 3 + 1;
    compare(&d, &f, len, N);
    dev_close(&d);
}

static void short_segments(void **state) {
    static const int64_t len[] = {1, 8, 2, 1, 1, 5, 1};
    static const struct rc_shape shape[] = {{2, 2, 64, 64, 64, RC_RANDOM, -0.1, 0, 0},
                                            {4, 2, 128, 96, 48, RC_RANDOM, -0.1, 0, 0},
                                            {1, 1, 256, 128, 64, RC_RANDOM, -2, 0, 0}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) compare(&d, &shape[i], len, 7);
        dev_close(&d);
    }
}

static void older(void **state) {
    static const struct rc_shape f = {2, 2, 64, 64, 64, RC_RANDOM, -0.1, 0, 0};
    (void)state;
    struct dev d = dev_open_older();
    compare(&d, &f, few, FEW);
    dev_close_older(&d);
}

/* A session cut anywhere is the whole at once. */
static void decode(void **state) {
    enum { T = 150 };
    static const int64_t cut[] = {0, 70, 71, 72, 80, 81, 145, T}, len[] = {T};
    static const struct rc_shape shape[] = {{1, 1, 64, 64, 64, RC_RANDOM, -0.05, 0, 0},
                                            {2, 1, 128, 256, 64, RC_RANDOM, -0.05, 0, 0},
                                            {1, 1, 40, 24, 16, RC_RANDOM, -0.05, 0, 0}};
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct dev d = dev_open(f32);
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
            const struct rc_shape *f = &shape[i];
            const double tol = tolerance[f32][0];
            struct pw want, got;
            struct rc_device x;
            rc_open(&d, &want, &rc_gsa, f, len, 1, true), rc_open(&d, &got, &rc_gsa, f, len, 1, true);
            rc_gsa.forward(hl_ops_named("cpu-ref"), NULL, &want);
            rc_put(&d, &x, &got);
            for (size_t p = 0; p + 1 < sizeof cut / sizeof *cut; p++) {
                const int64_t t = cut[p], act = d.backend->act_size;
                struct hl_gsa a = x.c.op.gsa;
                x.c.rows.T = x.c.seg[0].len = cut[p + 1] - t, x.c.seg[0].pos = t;
                CHECK_OK(d.backend->storage.cut_rows(d.backend, &x.c.rows, 64));
                a.q = (const char *)a.q + t * f->H * f->K * act, a.k = (const char *)a.k + t * f->G * f->K * act;
                a.v = (const char *)a.v + t * f->G * f->V * act, a.out = (char *)a.out + t * f->H * f->V * act;
                a.f += t * f->G * f->M, a.p = (char *)a.p + t * f->H * f->M * act;
                d.ops->gsa_forward(d.backend, &a);
            }
            rc_take(&d, &x, &got);
            CHECK_NEAR(pw_get(&got, "out")->p, pw_get(&want, "out")->p, T, f->H * f->V, tol, RC_FMT, RC_ARG(f));
            CHECK_NEAR(pw_get(&got, "S")->p, pw_get(&want, "S")->p, 1, rc_numbers(pw_get(&want, "S")), tol, RC_FMT,
                       RC_ARG(f));
            pw_free(&want), pw_free(&got);
        }
        dev_close(&d);
    }
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
