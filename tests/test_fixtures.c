/* test_fixtures.c -- model directories written by tools/make_fixture.py, as flash-linear-attention writes
 * them, with log-probabilities from an independent PyTorch model in double. */
#include "check.h"
#include "hola.h"
#include <jansson.h>

static const char *const dirs[] = {"tests/data/fla_gdn", "tests/data/fla_gdn_sharded", "tests/data/fla_delta_net",
                                   "tests/data/hola_tiny"};

struct expected {
    int32_t ids[256];
    double logprob[256];
    int64_t n;
};

static struct expected read_expected(const char *dir) {
    char path[256];
    struct expected e;
    snprintf(path, sizeof path, "%s/expected.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    json_t *ids = json_object_get(root, "ids"), *lp = json_object_get(root, "logprobs");
    e.n = (int64_t)json_array_size(ids);
    assert_true(e.n > 1 && e.n <= 256 && json_array_size(lp) == (size_t)e.n - 1);
    for (int64_t i = 0; i < e.n; i++) {
        e.ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        e.logprob[i] = i + 1 < e.n ? json_number_value(json_array_get(lp, (size_t)i)) : 0;
    }
    json_decref(root);
    return e;
}

static double distance(hola_model *m, const struct expected *e, int64_t piece) {
    hola_session *s;
    double lp[256], worst = 0;
    CHECK_OK(hola_session_new(&s, m));
    for (int64_t i = 0; i < e->n - 1; i += piece) {
        int64_t n = i + piece < e->n - 1 ? piece : e->n - 1 - i;
        CHECK_OK(hola_session_score(s, e->ids + i, e->ids + i + 1, n, lp + i));
    }
    for (int64_t i = 0; i < e->n - 1; i++) worst = fmax(worst, fabs(lp[i] - e->logprob[i]));
    hola_session_free(s);
    return worst;
}

static void loads_as_it_is(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        const struct expected e = read_expected(dirs[i]);
        hola_model *m;
        CHECK_OK(hola_model_load(&m, dirs[i], NULL));
        double prefill = distance(m, &e, e.n), decode = distance(m, &e, 1);
        if (!(prefill < 2e-5 && decode < 2e-5))
            fail_msg("%s: prefill %.3g, decode %.3g away", dirs[i], prefill, decode);
        hola_model_free(m);
    }
}

/* the four models differ: one's numbers are not another's */
static void another_model_is_caught(void **state) {
    const struct expected e = read_expected(dirs[0]);
    hola_model *m;
    (void)state;
    CHECK_OK(hola_model_load(&m, dirs[1], NULL)); /* the same weights rounded to bf16 */
    assert_true(distance(m, &e, e.n) > 1e-4);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(loads_as_it_is), cmocka_unit_test(another_model_is_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
