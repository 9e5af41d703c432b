/* cuda_decode_batch.c -- a token of each of many sessions (fused/decode_batch), against the ops one after
 * another; and sampling from their logits, there and in decode_one. */
#define _GNU_SOURCE
#include "decode_case.h"

enum { MAX_SESSIONS = 64 };
struct batch {
    hola_session *s[MAX_SESSIONS];
    int n;
};
static struct batch batch_new(hola_model *m, const int32_t *ids, int n) {
    struct batch c = {.n = n};
    for (int i = 0; i < n; i++) {
        CHECK_OK(hola_session_new(&c.s[i], m));
        CHECK_OK(hola_session_feed(c.s[i], ids + i, 1 + i * 13 % 70, NULL));
    }
    return c;
}
static void batch_free(struct batch *c) {
    for (int i = 0; i < c->n; i++) hola_session_free(c->s[i]);
}
/* `steps` tokens of each; returns the logits of all steps, [steps][n][101]. */
static float *batch_run(struct batch *c, const int32_t *ids, int steps) {
    float *y = malloc((size_t)(steps * c->n * 101) * sizeof *y);
    for (int s = 0; s < steps; s++) CHECK_OK(hola_session_step(c->s, c->n, ids + s * MAX_SESSIONS, y + s * c->n * 101));
    return y;
}
static float *batch_by(int kind, const char *backend, bool unfused, const int32_t *ids, int n, int steps) {
    hola_model *m = model_of(kind, backend, unfused);
    m->decoder.always = false;
    struct batch c = batch_new(m, ids, n);
    float *y = batch_run(&c, ids + 100, steps);
    assert_true((m->decoder.layer != NULL) == (!unfused && !strcmp(backend, "cuda")));
    batch_free(&c);
    hola_model_free(m);
    return y;
}
/* The fused result may be as far from float as the unfused bf16 result is, or little more; over ends of
 * cache blocks. */
static void every_kind(void **state) {
    static const int of[] = {0, 2, 15, 5, 6, 7, 8, 9, 12, 13, 14, 16};
    (void)state;
    NEEDS_DEVICE();
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        const int kind = of[k], n = slow ? 4 + (int)k : k % 3 ? 64 : 33 - (int)k, steps = slow ? 2 : 60;
        if (slow && ((kind > 9 && kind < 15) || kind == 8 || (dev_least() && kind > 2))) continue;
        int32_t *ids = random_ids(200 + steps * MAX_SESSIONS, 101, (uint64_t)(31 + kind));
        float *exact = batch_by(kind, "cuda-f32", true, ids, n, steps);
        float *unfused = batch_by(kind, "cuda", true, ids, n, steps);
        float *fast = batch_by(kind, "cuda", false, ids, n, steps);
        const int64_t all = (int64_t)steps * n * 101;
        const double e = distance(fast, exact, all), base = distance(unfused, exact, all);
        if (getenv("VERBOSE"))
            print_message("%-22s %2d sessions: %.2e from float, unfused bf16 %.2e, apart %.2e\n", kinds[kind].name, n,
                          e, base, distance(fast, unfused, all));
        if (!(e <= 2 * base + 1e-3))
            fail_msg("%s, %d sessions: %.3g away, unfused bf16 %.3g", kinds[kind].name, n, e, base);
        /* a wrong version must be seen: the neighbour's logits */
        assert_true(distance(fast + 101, exact, all - 101) > 0.5);
        free(exact), free(unfused), free(fast), free(ids);
    }
}
/* The same tokens are sampled whether the logits come to the host or not, for one session, a few or many. */
static void choose_by(hola_model *m, int n, int steps) {
    static const hola_sampling how[] = {{0, 1, 0, 0, 1, 0, 0}, {0, 1.2, 16, 40, 0.95, 0.01, 1}};
    int32_t *ids = random_ids(200, 101, 5), x[MAX_SESSIONS], y[MAX_SESSIONS], last = 0;
    float *logits = malloc((size_t)(n * 101) * sizeof *logits);
    m->decoder.always = false;
    for (int h = 0; h < 2; h++) {
        struct batch a = batch_new(m, ids, n), b = batch_new(m, ids, n);
        for (int i = 0; i < n; i++) x[i] = y[i] = ids[90 + i];
        for (int t = 0; t < steps; t++) {
            CHECK_OK(hola_session_step(a.s, n, x, logits));
            for (int i = 0; i < n; i++) CHECK_OK(hola_session_sample(a.s[i], &how[h], &x[i]));
            CHECK_OK(hola_session_step_sample(b.s, n, y, &how[h], y));
            assert_memory_equal(x, y, (size_t)n * sizeof *x);
        }
        if (h && n > 3) assert_int_not_equal(last, y[n - 1]); /* (true of this seed) */
        last = y[n - 1];
        batch_free(&a), batch_free(&b);
    }
    free(ids), free(logits);
}
static void same_choices(void **state) {
    (void)state;
    NEEDS_DEVICE();
    hola_model *m = model_of(0, "cuda", false);
    const int steps = dev_least() ? 1 : slow ? 2 : 40;
    choose_by(m, 1, slow && steps > 1 ? 6 : steps);
    choose_by(m, 3, steps);
    choose_by(m, slow ? 4 : 64, steps);
    hola_model_free(m);
}
/* NaN logits are reported with the position of the token, also where only the largest come to the host. */
static void nan_is_reported(void **state) {
    const hola_sampling greedy = {.repeat_penalty = 1, .top_p = 1};
    const float nan[] = {NAN, NAN};
    (void)state;
    NEEDS_DEVICE();
    for (int n = 1; n <= 4; n += 3) { /* decode_one, then decode_batch */
        hola_model *m = model_of(0, "cuda", false);
        int32_t *ids = random_ids(200, 101, 5), next[4] = {1, 2, 3, 4};
        m->decoder.always = n == 1;
        struct batch c = batch_new(m, ids, n);
        CHECK_OK(hola_session_step_sample(c.s, n, next, &greedy, next));
        hl_put(m->backend, c.s[n - 1]->now.state.fixed, nan, sizeof nan);
        const int64_t pos = hola_session_position(c.s[n - 1]);
        char want[80];
        snprintf(want, sizeof want, "the logits after token %d are not finite", (int)pos);
        assert_int_equal(hola_session_step_sample(c.s, n, next, &greedy, next), HOLA_ENUMERIC);
        assert_string_equal(hola_last_error(), want);
        for (int i = 0; i < n; i++) assert_int_equal(next[i] == -1, i == n - 1); /* the others did choose */
        next[n - 1] = 1;
        hola_session_reset(c.s[n - 1]);
        CHECK_OK(hola_session_step_sample(c.s, n, next, &greedy, next));
        batch_free(&c);
        free(ids);
        hola_model_free(m);
    }
}
/* The number of sessions does not change a bit. */
static void same_bits_in_any_batch(void **state) {
    const int few = 4, more = dev_least() ? 5 : slow ? 33 : 64, steps = dev_least() ? 1 : slow ? 6 : 40;
    (void)state;
    NEEDS_DEVICE();
    int32_t *ids = random_ids(200 + steps * MAX_SESSIONS, 101, 5);
    for (int kind = slow ? 2 : 0; kind < 3; kind += 2) {
        float *x = batch_by(kind, "cuda", false, ids, few, steps), *y = batch_by(kind, "cuda", false, ids, more, steps);
        for (int s = 0; s < steps; s++)
            assert_memory_equal(x + s * few * 101, y + s * more * 101, (size_t)(few * 101) * sizeof *x);
        assert_memory_not_equal(x, y + 101, 101 * sizeof *x);
        free(x), free(y);
    }
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind), cmocka_unit_test(same_choices),
                                       cmocka_unit_test(same_bits_in_any_batch), cmocka_unit_test(nan_is_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
