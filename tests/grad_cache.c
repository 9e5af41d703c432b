/* grad_cache.c -- the exact memory in double: gradients against finite differences with the selection
 * held, the fast code against the reference to the last digits, and backward passes that are wrong. */
#include "cache_case.h"

static struct hl_backend *pool;

struct ctx {
    struct batch *b;
    const char *who;
};

/* sum of out * dout, whose gradient the backward pass computes */
static double loss(void *ctx) {
    const struct ctx *c = ctx;
    double sum = 0;
    memset(c->b->out, 0, (size_t)c->b->nv * sizeof(real));
    batch_run(c->b, c->who, pool, false);
    for (int64_t i = 0; i < c->b->nv; i++) sum += (double)c->b->out[i] * (double)c->b->dout[i];
    return sum;
}

static void differences(struct shape s, const char *who, uint64_t seed, bool linear, bool token) {
    const int64_t len[] = {3 * s.chunk + 5, 2 * s.chunk};
    struct batch *b = batch_new(s, len, 2, seed);
    if (linear) with_linear_gate(b, false);
    if (token) with_token_gate(b, seed + 20);
    struct ctx c = {b, who};
    memset(b->dv, 0, (size_t)b->nv * sizeof(real));
    for (int64_t h = 0; h < s.HV; h++) b->dtau[h] = b->dsink[h] = b->dgate[h] = 0;
    batch_run(b, who, pool, true);
    CHECK_GRADIENT(loss, &c, b->q, b->dq, b->nq, 1e-6);
    CHECK_GRADIENT(loss, &c, b->k, b->dk, b->nq, 1e-6);
    CHECK_GRADIENT(loss, &c, b->v, b->dv, b->nv, 1e-6);
    CHECK_GRADIENT(loss, &c, b->tau, b->dtau, s.HV, 1e-6);
    CHECK_GRADIENT(loss, &c, b->sink, b->dsink, s.HV, 1e-6);
    CHECK_GRADIENT(loss, &c, b->gate, b->dgate, s.HV, 1e-6);
    if (token) CHECK_GRADIENT(loss, &c, b->token, b->dtoken, b->T * s.HV, 1e-6);
    if (s.evict == HOLA_EVICT_LTE) CHECK_GRADIENT(loss, &c, b->score, b->dscore, b->T * s.HV, 1e-6);

    /* every entry of dv off by what rows kept by later blocks receive: must be seen */
    real *out = check_zero(b->nv), *dv = check_zero(b->nv);
    if (s.evict != HOLA_EVICT_H2O && s.window > 0) {
        plain_run(b, out, dv, DROPS_KEPT);
        CHECK_FAR(dv, b->dv, b->T, s.HV * s.V, 1e-2);
        assert_true(check_gradient(loss, &c, b->v, dv, b->nv, 1e-5) > 1e-3);
    }
    check_free(out, b->nv);
    check_free(dv, b->nv);
    batch_free(b);
}

static void test_differences(void **state) {
    static const hola_evict kinds[] = {HOLA_EVICT_BETAE, HOLA_EVICT_RECENCY, HOLA_EVICT_H2O, HOLA_EVICT_LOLA,
                                       HOLA_EVICT_LTE};
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++)
        for (int e = 0; e < 5; e++) {
            const char *who = i < 0 ? "cpu-ref" : check_backend(i);
            differences((struct shape){4, 16, 1, 1, 16, 16, kinds[e]}, who, 3, false, e == 1);
            differences((struct shape){7, 5, 2, 4, 8, 12, kinds[e]}, who, 4, e == 0, e == 2);
            differences((struct shape){0, 9, 1, 2, 8, 8, kinds[e]}, who, 5, false, e == 0);
        }
}

/* dtau NULL means frozen; everything else is unchanged */
static void test_frozen_tau(void **state) {
    const int64_t len[] = {40};
    const struct shape s = {4, 16, 1, 2, 16, 16, HOLA_EVICT_BETAE};
    struct batch *b = batch_new(s, len, 1, 9), *f = batch_new(s, len, 1, 9);
    (void)state;
    for (int i = -1; i < 0 || check_backend(i); i++) {
        const char *who = i < 0 ? "cpu-ref" : check_backend(i);
        batch_clear(b);
        batch_clear(f);
        f->a.dtau = NULL;
        batch_run(b, who, pool, true);
        batch_run(f, who, pool, true);
        assert_memory_equal(b->dq, f->dq, (size_t)b->nq * sizeof(real));
        assert_memory_equal(b->dsink, f->dsink, (size_t)s.HV * sizeof(real));
        CHECK_FAR(f->dtau, b->dtau, 1, s.HV, 1e-2);
    }
    batch_free(b);
    batch_free(f);
}

static void test_fast_is_ref(void **state) {
    static const int64_t wc[][2] = {{4, 16}, {0, 16}, {16, 4}, {64, 256}, {5, 1}, {500, 300}};
    static const int64_t kv[][2] = {{16, 16}, {24, 24}, {16, 32}};
    (void)state;
    for (int i = 0; i < 6; i++)
        for (int e = 0; e < HOLA_EVICT_COUNT; e++)
            for (int d = 0; e != HOLA_EVICT_NONE && d < (wc[i][1] < 100 ? 3 : 1); d++) {
                const struct shape s = {wc[i][0], wc[i][1], 1, 1 + d % 2, kv[d][0], kv[d][1], (hola_evict)e};
                const int64_t C = s.chunk, len[] = {2 * C + 7, 1, C - 1, C, C + 1};
                struct batch *want = batch_new(s, len, 5, 11), *got = batch_new(s, len, 5, 11);
                batch_run(want, "cpu-ref", pool, true);
                for (int j = 0; check_backend(j); j++) {
                    batch_clear(got);
                    batch_run(got, check_backend(j), pool, true);
                    batch_near(got, want, 1e-12, true, check_backend(j));
                }
                /* a sink slightly off shows at this level */
                for (int64_t h = 0; h < s.HV; h++) got->sink[h] += (real)1e-9;
                batch_clear(got);
                batch_run(got, check_backend(0), pool, false);
                CHECK_FAR(got->read, want->read, got->T, s.HV * s.V, 1e-12);
                batch_free(want);
                batch_free(got);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_frozen_tau),
        cmocka_unit_test(test_fast_is_ref),
    };
    int failed;
    pool = check_backend_open(2, hl_cache_scratch(32, 32, 500, 300));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_backend_close(pool);
    return failed;
}
