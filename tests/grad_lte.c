/* grad_lte.c -- the learned score in double: gradients against finite differences, the fast code against the reference
 * to the last digits, and gradients that are wrong. */
#include "lte_case.h"

static struct hl_backend *pool;

struct ctx {
    struct lte_batch *b;
    const char *who;
};
/* sum of score * dscore, whose gradient the backward pass computes */
static double loss(void *ctx) {
    const struct ctx *c = ctx;
    double sum = 0;
    lte_run(c->b, c->who, pool, false);
    for (int64_t i = 0; i < c->b->ns; i++) sum += (double)c->b->score[i] * (double)c->b->dscore[i];
    return sum;
}

static void differences(struct lte_shape s, const char *who, uint64_t seed) {
    const int64_t len[] = {2 * s.chunk + 3, 1, s.chunk};
    struct lte_batch *b = lte_new(s, len, 3, seed);
    struct ctx c = {b, who};
    memset(b->dk, 0, (size_t)b->nk * sizeof(real));
    memset(b->dv, 0, (size_t)b->nv * sizeof(real));
    for (int i = 0; i < LTE_WEIGHTS; i++) memset(b->grad[i], 0, (size_t)lte_count(b, i) * sizeof(real));
    lte_run(b, who, pool, true);
    CHECK_GRADIENT(loss, &c, b->k, b->dk, b->nk, 1e-6);
    CHECK_GRADIENT(loss, &c, b->v, b->dv, b->nv, 1e-6);
    for (int i = 0; i < LTE_WEIGHTS; i++) CHECK_GRADIENT(loss, &c, b->weight[i], b->grad[i], lte_count(b, i), 1e-6);

    /* a bias that got the gradient of the neighbouring layer must be seen */
    assert_true(check_gradient(loss, &c, b->weight[LTE_BIAS1], b->grad[LTE_BIAS2], b->nr, 1e-5) > 1e-3);
    /* and a gradient of v that passed by its norm: dv = dx */
    for (int64_t i = 0; i < b->nv; i++) b->dv[i] += b->v[i] * (real)0.01;
    assert_true(check_gradient(loss, &c, b->v, b->dv, b->nv, 1e-5) > 1e-3);
    lte_free(b);
}

static void test_differences(void **state) {
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        differences((struct lte_shape){4, 8, 1, 1, 6, 6, 5}, who, 3);
        differences((struct lte_shape){4, 5, 2, 4, 8, 12, 3}, who, 4);
        differences((struct lte_shape){4, 1, 1, 2, 4, 4, 1}, who, 5); /* no neighbours */
        differences((struct lte_shape){4, 3, 1, 2, 4, 4, 17}, who, 6);
    }
}

static void test_fast_is_ref(void **state) {
    static const struct lte_shape all[] = {{4, 16, 1, 1, 16, 16, 16},
                                           {4, 7, 2, 4, 24, 40, 5},
                                           {4, 1, 1, 2, 8, 8, 3},
                                           {4, 256, 1, 2, 32, 32, 16},
                                           {4, 33, 1, 3, 10, 6, 64}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        const int64_t C = all[i].chunk, len[] = {2 * C + 7, 1, C - 1 + (C == 1), C, C + 1};
        struct lte_batch *want = lte_new(all[i], len, 5, 11), *got = lte_new(all[i], len, 5, 11);
        lte_run(want, "cpu-ref", pool, true);
        for (int j = 0; check_backend(j); j++) {
            lte_clear(got);
            lte_run(got, check_backend(j), pool, true);
            lte_near(got, want, 1e-12, check_backend(j));
        }
        /* a tap slightly off shows at this level */
        got->weight[LTE_CONV2][1] += (real)1e-9;
        lte_run(got, check_backend(0), pool, false);
        CHECK_FAR(got->score, want->score, got->T, all[i].HV, 1e-12);
        lte_free(want);
        lte_free(got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_fast_is_ref)};
    int failed;
    pool = check_backend_open(2, hl_lte_scratch(256, 64, 64, 64));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(pool);
    return failed;
}
