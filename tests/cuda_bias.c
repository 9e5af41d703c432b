/* cuda_bias.c -- a bias on a CUDA device against the reference, in rows of its own and as a part of longer ones. */
#include "cuda.h"

/* gap: numbers between the rows, which must stay as they are */
static void compare(const struct dev *d, int64_t M, int64_t N, int64_t gap) {
    const int64_t ld = N + gap;
    real *x = check_random(M * ld, -1, 1, 1), *there = check_new(M * ld), *want = check_new(M * N);
    real *b = check_random(N, -1, 1, 2), *db = check_random(N, -1, 1, 3), *sum = check_random(N, -1, 1, 3);
    struct hl_bias a = {.M = M, .N = N, .b = b, .x = want, .dx = want, .db = db};
    dev_round(d, x, M * ld);
    for (int64_t m = 0; m < M; m++) memcpy(want + m * N, x + m * ld, (size_t)N * sizeof(real));
    void *dx = dev_act(d, x, M * ld);
    real *device_b = dev_real(d, b, N), *device_db = dev_real(d, db, N);
    const struct hl_bias on_device = {
        .M = M, .N = N, .b = device_b, .x = dx, .dx = dx, .db = device_db, .ld = gap ? ld : 0};
    d->ops->bias_backward(d->backend, &on_device);
    d->ops->bias_forward(d->backend, &on_device);
    dev_act_take(d, dx, there, M * ld);
    dev_real_take(d, device_db, sum, N);
    dev_drop(d, device_b);
    hl_ops_named("cpu-ref")->bias_backward(NULL, &a);
    hl_ops_named("cpu-ref")->bias_forward(NULL, &a);
    CHECK_NEAR(sum, db, 1, N, 1e-5, "%d x %d, gap %d", (int)M, (int)N, (int)gap);
    for (int64_t m = 0; m < M; m++) {
        CHECK_NEAR(there + m * ld, want + m * N, 1, N, d->f32 ? 1e-6 : 4e-3, "row %d", (int)m);
        assert_memory_equal(there + m * ld + N, x + m * ld + N, (size_t)gap * sizeof(real));
    }
    CHECK_FAR(there, x, 1, M * ld, 1e-2); /* without the bias */
    db[N / 2] += 1;
    CHECK_FAR(sum, db, 1, N, 1e-3);
    check_free(x, M * ld), check_free(there, M * ld), check_free(want, M * N);
    check_free(b, N), check_free(db, N), check_free(sum, N);
}

static void test_bias(void **state) {
    static const int64_t shapes[][3] = {{1, 1, 0}, {5, 24, 8}, {70, 33, 0}, {1030, 40, 24}, {3, 300, 0}, {259, 520, 8}};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            compare(&d, shapes[i][0], shapes[i][1], shapes[i][2]);
        dev_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
