/* test_recall_curriculum.c -- the batches of the recall curriculum, the measurement, the means. */
#include "models.h"
#include "data/recall_curriculum.h"
#include "eval/recall.h"

static const struct hl_recall_curriculum curriculum = {
    .task = {.fillers = 8, .keys = 128, .values = 64, .facts = 2, .queries = 16, .length = 320, .distance = 48},
    .most_facts = 64,
    .steps = 600,
    .batch_tokens = 4096,
    .seed = 5};

/* The facts of every document; checks what recall_curriculum.h says about each. */
static int64_t most_facts_of(const struct hl_recall_batch *b) {
    int64_t most = 0, answers = 0;
    for (int64_t i = 0; i < b->documents; i++) {
        const int64_t first = b->starts[i], end = i + 1 < b->documents ? b->starts[i + 1] : b->tokens;
        int64_t values = 0, asked = 0;
        assert_int_equal(b->ids[first], HL_RECALL_BEGIN);
        assert_in_range(end - first, 1 + 3 * 2 + 3 * 2, curriculum.task.length);
        for (int64_t t = first; t < end; t++) {
            values += b->ids[t] >= 2 + 8 + 128;
            asked += b->mask[t];
            if (b->mask[t]) assert_int_equal(b->ids[t - 2], HL_RECALL_ASK);
        }
        const int64_t facts = values - asked;
        assert_true(facts >= 2 && facts <= 64 && (facts & (facts - 1)) == 0);
        assert_int_equal(asked, facts < 16 ? facts : 16);
        answers += asked;
        if (facts > most) most = facts;
    }
    assert_int_equal(answers, b->answers);
    return most;
}

static void test_batches(void **state) {
    struct hl_recall_batch b, again;
    int64_t before = 0;
    (void)state;
    CHECK_OK(hl_recall_curriculum_check(&curriculum));
    CHECK_OK(hl_recall_batch_new(&b, &curriculum));
    CHECK_OK(hl_recall_batch_new(&again, &curriculum));
    for (int64_t step = 0; step < curriculum.steps; step += 50) {
        CHECK_OK(hl_recall_batch_make(&b, &curriculum, step));
        assert_in_range(b.tokens, curriculum.batch_tokens - curriculum.task.length, curriculum.batch_tokens);
        const int64_t most = most_facts_of(&b);
        assert_true(most >= before); /* only ever harder */
        before = most;
        if (step == 0) assert_int_equal(most, 2);
    }
    assert_int_equal(before, 64);
    CHECK_OK(hl_recall_batch_make(&again, &curriculum, curriculum.steps - 50));
    assert_int_equal(again.tokens, b.tokens);
    assert_memory_equal(again.ids, b.ids, (size_t)b.tokens * sizeof *b.ids);
    CHECK_OK(hl_recall_batch_make(&again, &curriculum, curriculum.steps - 49));
    assert_memory_not_equal(again.ids, b.ids, 512);
    hl_recall_batch_free(&b);
    hl_recall_batch_free(&again);
}

static void test_limits(void **state) {
    struct hl_recall_curriculum c = curriculum;
    (void)state;
    c.most_facts = 1;
    assert_int_equal(hl_recall_curriculum_check(&c), HOLA_EINVAL);
    c = curriculum, c.batch_tokens = 319;
    assert_int_equal(hl_recall_curriculum_check(&c), HOLA_EINVAL);
    c = curriculum, c.steps = 0;
    assert_int_equal(hl_recall_curriculum_check(&c), HOLA_EINVAL);
    c = curriculum, c.task.length = 200; /* 64 facts, 48 apart, and 16 questions need 225 */
    assert_int_equal(hl_recall_curriculum_check(&c), HOLA_EINVAL);
}

static void test_means(void **state) {
    const double x[] = {1, 2, 3, 4}, y[] = {0, 2, 2, 4};
    (void)state;
    struct hl_mean m = hl_mean(x, 4), d = hl_mean_difference(x, y, 4);
    assert_true(fabs(m.mean - 2.5) < 1e-15 && fabs(m.error - sqrt(5.0 / 3 / 4)) < 1e-15);
    assert_true(fabs(d.mean - 0.5) < 1e-15 && fabs(d.error - sqrt(1.0 / 3 / 4)) < 1e-15);
    m = hl_mean(x, 1);
    assert_true(m.mean == 1 && m.error == 0);
}

/* A model that knows nothing is right about as often as chance has it, and the same twice. */
static void test_measure(void **state) {
    struct hl_recall r = {
        .fillers = 4, .keys = 40, .values = 51, .facts = 8, .queries = 4, .length = 80, .distance = 9};
    double a[40], b[40];
    (void)state;
    hola_model *m = variant_model(0, 1, NULL);
    assert_int_equal(hl_recall_vocab(&r), 97);
    CHECK_OK(hl_recall_measure(m, &r, 3, 40, a));
    CHECK_OK(hl_recall_measure(m, &r, 3, 40, b));
    assert_memory_equal(a, b, sizeof a);
    assert_true(hl_mean(a, 40).mean < 0.2);
    r.values = 52; /* an id that the model does not have */
    assert_int_equal(hl_recall_measure(m, &r, 3, 40, a), HOLA_EINVAL);
    hola_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
