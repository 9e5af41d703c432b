/* test_backend.c -- backends by their names: each one of this machine opens with all ops that a model needs; a wrong
 * name or device number gives one line; a missing op is the reference's, or is named. */
#include "check.h"

enum { NEEDED, OPTIONAL };

/* Opening fails with this status and one line that has these words in it. */
static void refuses(const char *name, hola_status status, const char *words) {
    struct hl_backend *b = (struct hl_backend *)1;
    const hola_status s = hl_backend_open(&b, name, 1);
    if (s == HOLA_OK || b) fail_msg("'%s' opens", name);
    if (status != HOLA_OK) assert_int_equal(s, status);
    if (!strstr(hola_last_error(), words)) fail_msg("'%s': %s", name, hola_last_error());
    assert_null(strchr(hola_last_error(), '\n'));
}

/* Every NEEDED op is there. */
static void check_needed(const struct hl_ops *ops) {
#define LOOK(op, arg, need, where) \
    if (need == NEEDED && !ops->op) fail_msg("%s has no %s", ops->name, #op);
    HL_OPS_LIST(LOOK)
#undef LOOK
}

static void backends_open(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "cpu-ref", "cpu-base", "cpu-avx2", "cpu-avx512", "cpu-neon", NULL};
    for (int i = 0; names[i]; i++) {
        struct hl_backend *b = NULL;
        if (!hl_ops_named(names[i])) { /* a processor without it */
            refuses(names[i], HOLA_EINVAL, names[i]);
            continue;
        }
        CHECK_OK(hl_backend_open(&b, names[i], 2));
        if (strcmp(names[i], "cpu") != 0) assert_string_equal(b->ops.name, names[i]);
        check_needed(&b->ops);
        assert_true(b->host && b->pool && !b->device && b->act_size == (int64_t)sizeof(real));
        real *x = hl_alloc(b, 3 * (int64_t)sizeof *x), y[3] = {1, 2, 3};
        assert_true(x && (uintptr_t)x % 256 == 0);
        hl_put(b, x, y, sizeof y);
        hl_zero(b, x + 1, sizeof *x);
        hl_get(b, y, x, sizeof y);
        CHECK_OK(hl_finish(b));
        assert_true(y[0] == 1 && y[1] == 0 && y[2] == 3);
        hl_release(b, x);
        hl_backend_close(b);
    }
    struct hl_backend *best = NULL, *fastest = NULL;
    CHECK_OK(hl_backend_open(&best, NULL, 1));
    CHECK_OK(hl_backend_open(&fastest, "cpu", 1));
    assert_string_equal(best->ops.name, fastest->ops.name);
    hl_backend_close(best), hl_backend_close(fastest);
    CHECK_OK(hl_backend_open(&best, hl_backend_best(), 1));
    hl_backend_close(best);
    hl_backend_close(NULL);
}

static void wrong_names(void **state) {
    (void)state;
    refuses("", HOLA_EINVAL, "''");
    refuses("gpu", HOLA_EINVAL, "'gpu'");
    refuses("cpu-avx1024", HOLA_EINVAL, "'cpu-avx1024'");
    refuses("cuda2", HOLA_EINVAL, "'cuda2'");
    refuses("cuda-f16", HOLA_EINVAL, "'cuda-f16'");
    assert_null(hl_ops_named("cuda"));
    /* with or without CUDA, and whatever the machine has */
    const bool has_cuda = strcmp(hl_backend_best(), "cuda") == 0;
    refuses("cuda:1023", HOLA_OK, "CUDA device");
    if (has_cuda) {
        refuses("cuda:", HOLA_EINVAL, "'' is not a device number");
        refuses("cuda:x", HOLA_EINVAL, "'x' is not a device number");
        refuses("cuda-f32:-1", HOLA_EINVAL, "'-1' is not a device number");
        refuses("cuda:99999999999", HOLA_EINVAL, "'99999999999' is not a device number");
    } else {
        refuses("cuda", HOLA_OK, "no CUDA device");
        refuses("cuda-f32:2", HOLA_OK, "CUDA device");
    }
}

/* A CPU backend uses the reference's form of an op that it lacks, and no other op changes. */
static void missing_ops_fall_back(void **state) {
    (void)state;
    const struct hl_ops *ref = hl_ops_named("cpu-ref"), *fast = hl_ops_named("cpu");
    struct hl_ops ops = *fast, whole = *fast;
    hl_ops_fall_back(&whole); /* what only the reference has */
    ops.gate_forward = NULL;
    hl_ops_fall_back(&ops);
    assert_true(ops.gate_forward == ref->gate_forward && ops.gate_forward != fast->gate_forward);
    ops.gate_forward = fast->gate_forward;
    assert_memory_equal(&ops, &whole, sizeof ops);
    memset(&ops, 0, sizeof ops);
    ops.name = ref->name;
    hl_ops_fall_back(&ops);
    assert_memory_equal(&ops, ref, sizeof ops);
    check_needed(&ops);
}

static void required_ops_are_named(void **state) {
    (void)state;
    static const char *const none[] = {NULL}, *const there[] = {"gdn_forward", "topk", NULL},
                             *const one[] = {"gdn_forward", "decode_one", "topk", NULL},
                             *const unknown[] = {"gdn_sideways", NULL};
    struct hl_backend *b = NULL;
    CHECK_OK(hl_backend_open(&b, "cpu", 1));
    CHECK_OK(hl_backend_require(b, none));
    CHECK_OK(hl_backend_require(b, there));
    assert_int_equal(hl_backend_require(b, one), HOLA_ENOTSUP);
    assert_non_null(strstr(hola_last_error(), "decode_one"));
    assert_non_null(strstr(hola_last_error(), b->ops.name));
    assert_int_equal(hl_backend_require(b, unknown), HOLA_ENOTSUP);
    assert_non_null(strstr(hola_last_error(), "gdn_sideways"));
    b->ops.topk = NULL;
    assert_int_equal(hl_backend_require(b, there), HOLA_ENOTSUP);
    assert_non_null(strstr(hola_last_error(), "topk"));
    hl_backend_close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(backends_open), cmocka_unit_test(wrong_names),
                                       cmocka_unit_test(missing_ops_fall_back),
                                       cmocka_unit_test(required_ops_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
