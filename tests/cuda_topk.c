/* cuda_topk.c -- the largest logits of a row against sorting all of them: any size, equal ones, rows that are not
 * finite. */
#include "cuda.h"

static int first(const void *a, const void *b) {
    const struct hl_candidate *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->id < y->id) ? -1 : 1;
}
static void sorted(struct hl_candidate *out, const real *x, int64_t V) {
    for (int64_t i = 0; i < V; i++) out[i] = (struct hl_candidate){(float)x[i], (int32_t)i};
    qsort(out, (size_t)V, sizeof *out, first);
}
/* distinct 0: all different, else so many values; ~n: as n, but the largest are all in the parts of few threads, more
 * than can be collected, so that they are found one by one */
static void compare(const struct dev *d, int64_t M, int64_t V, int64_t k, int distinct) {
    const bool crowded = distinct < 0;
    if (crowded) distinct = ~distinct;
    real *x = check_random(M * V, 0, 3, (uint64_t)(V + k));
    struct hl_candidate *want = malloc((size_t)V * sizeof *want), *got = malloc((size_t)(M * k) * sizeof *got);
    assert_true(want && got);
    for (int64_t i = 0; i < M * V && distinct; i++) x[i] = (real)(check_mix((uint64_t)i) % (uint64_t)distinct) - 1;
    for (int64_t i = 0; i < M * V && crowded; i++)
        if (i % V % 1024 / 4 < k - 1) x[i] += 10;
    if (distinct == 2) x[V / 2] = (real)-0.0;
    if (M > 1) x[V + V / 3] = (real)NAN;
    real *there = dev_real(d, x, M * V);
    struct hl_candidate *out = hl_alloc(d->backend, M * k * (int64_t)sizeof *out);
    struct hl_topk a = {.M = M, .V = V, .k = k, .logits = there, .out = out};
    d->ops->topk(d->backend, &a);
    hl_get(d->backend, got, out, M * k * (int64_t)sizeof *got);
    CHECK_OK(hl_finish(d->backend));
    for (int64_t m = 0; m < M; m++) {
        sorted(want, x + m * V, V);
        if (m == 1) assert_int_equal(got[m * k].id, -1);
        for (int64_t i = 0; i < k && m != 1; i++) {
            if (got[m * k + i].id != want[i].id || got[m * k + i].logit != want[i].logit)
                fail_msg("%d of %d, row %d: %d-th is %d, should be %d", (int)k, (int)V, (int)m, (int)i,
                         (int)got[m * k + i].id, (int)want[i].id);
            if (i + 1 < V) assert_int_not_equal(got[m * k + i].id, want[i + 1].id); /* one further is seen */
        }
    }
    free(want), free(got);
    dev_drop(d, there), dev_drop(d, out);
    check_free(x, M * V);
}
static void test_top(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct dev d = dev_open(f);
        compare(&d, 1, 20000, 32, ~0);
        if (!dev_least()) compare(&d, 1, 6000, 120, ~3);
        compare(&d, 3, 101, 40, 0);
        compare(&d, 2, 7, 7, 0);
        compare(&d, 3, 300, HL_TOPK_MOST, 0);
        compare(&d, 3, 1500, 1, 0);
        compare(&d, 3, 5000, 1, 2);
        compare(&d, 1, 40000, 1, 3);
        compare(&d, 3, 5000, 104, 0);
        compare(&d, 3, 5000, 2, 0); /* of two groups, as it happens */
        compare(&d, 1, 5000, 3, 1); /* all equal */
        compare(&d, 3, 5000, 17, 2);
        compare(&d, 1, 40000, 33, 0); /* more than the threads hold */
        compare(&d, 1, 40000, 9, 3);
        if (!dev_slow(&d)) compare(&d, 64, 32000, HL_TOPK_MOST, 0);
        if (!dev_slow(&d)) compare(&d, 64, 32000, 40, 20);
        dev_close(&d);
    }
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_top)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
