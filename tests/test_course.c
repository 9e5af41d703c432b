/* test_course.c -- the batches of the recall course, the means, and the look into the exact memory. */
#include "model/kept.h"
#include "models.h"
#include "train/course.h"

static const struct hl_course course = {
    .task =
        {.fillers = 8, .keys = 128, .values = 64, .facts = 2, .queries = 16, .length = 320, .distance = 48},
    .most_facts = 64,
    .steps = 600,
    .batch_tokens = 4096,
    .seed = 5};

/* The facts of every document; checks what course.h says about each. */
static int64_t most_facts_of(const struct hl_course_batch *b) {
    int64_t most = 0, answers = 0;
    for (int64_t i = 0; i < b->documents; i++) {
        const int64_t first = b->starts[i], end = i + 1 < b->documents ? b->starts[i + 1] : b->tokens;
        int64_t values = 0, asked = 0;
        assert_int_equal(b->ids[first], HL_RECALL_BEGIN);
        assert_in_range(end - first, 1 + 3 * 2 + 3 * 2, course.task.length);
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
    struct hl_course_batch b, again;
    int64_t before = 0;
    (void)state;
    CHECK_OK(hl_course_check(&course));
    CHECK_OK(hl_course_batch_new(&b, &course));
    CHECK_OK(hl_course_batch_new(&again, &course));
    for (int64_t step = 0; step < course.steps; step += 50) {
        CHECK_OK(hl_course_batch_make(&b, &course, step));
        assert_in_range(b.tokens, course.batch_tokens - course.task.length, course.batch_tokens);
        const int64_t most = most_facts_of(&b);
        assert_true(most >= before); /* only ever harder */
        before = most;
        if (step == 0) assert_int_equal(most, 2);
    }
    assert_int_equal(before, 64);
    CHECK_OK(hl_course_batch_make(&again, &course, course.steps - 50));
    assert_int_equal(again.tokens, b.tokens);
    assert_memory_equal(again.ids, b.ids, (size_t)b.tokens * sizeof *b.ids);
    CHECK_OK(hl_course_batch_make(&again, &course, course.steps - 49));
    assert_memory_not_equal(again.ids, b.ids, 512);
    hl_course_batch_free(&b);
    hl_course_batch_free(&again);
}

static void test_course_limits(void **state) {
    struct hl_course c = course;
    (void)state;
    c.most_facts = 1;
    assert_int_equal(hl_course_check(&c), HOLA_EINVAL);
    c = course, c.batch_tokens = 319;
    assert_int_equal(hl_course_check(&c), HOLA_EINVAL);
    c = course, c.steps = 0;
    assert_int_equal(hl_course_check(&c), HOLA_EINVAL);
    c = course, c.task.length = 200; /* 64 facts, 48 apart, and 16 questions need 225 */
    assert_int_equal(hl_course_check(&c), HOLA_EINVAL);
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

static void kept_of(hola_model *m, const int32_t *ids, int64_t n, int64_t layer, int64_t head, int64_t *pos,
                    int64_t *count, hola_status want) {
    hola_session *y;
    CHECK_OK(hola_session_new(&y, m));
    CHECK_OK(hola_session_feed(y, ids, n, NULL));
    assert_int_equal(hl_session_kept(y, layer, head, pos, count), want);
    hola_session_free(y);
}

/* Which tokens a memory of the latest ones holds is known without a model. */
static void test_kept(void **state) {
    enum { WINDOW = 8, CHUNK = 32, RECENCY = 4, LONGEST = 700 };
    hola_model *m = variant_model(RECENCY, 1, NULL), *betae = variant_model(0, 1, NULL),
               *gdn = variant_model(11, 1, NULL);
    int32_t *ids = random_ids(LONGEST, 97, 9);
    int64_t pos[WINDOW], count;
    (void)state;
    const int64_t lengths[] = {1, 31, 32, 33, 64, 100, 512, 513, LONGEST};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t closed = lengths[i] / CHUNK * CHUNK;
        kept_of(m, ids, lengths[i], 1, 1, pos, &count, HOLA_OK);
        assert_int_equal(count, closed < WINDOW ? closed : WINDOW);
        for (int64_t k = 0; k < count; k++) assert_int_equal(pos[k], closed - count + k);
        kept_of(betae, ids, lengths[i], 0, 0, pos, &count, HOLA_OK);
        for (int64_t k = 0; k < count; k++)
            assert_true(pos[k] >= 0 && pos[k] < closed && (k == 0 || pos[k] > pos[k - 1]));
    }
    assert_true(pos[0] < LONGEST / CHUNK * CHUNK - WINDOW); /* not the latest ones here */
    kept_of(gdn, ids, 10, 0, 0, pos, &count, HOLA_EINVAL);
    kept_of(m, ids, 10, 2, 0, pos, &count, HOLA_EINVAL);
    kept_of(m, ids, 10, 0, 2, pos, &count, HOLA_EINVAL);
    free(ids);
    hola_model_free(m);
    hola_model_free(betae);
    hola_model_free(gdn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches), cmocka_unit_test(test_course_limits), cmocka_unit_test(test_means),
        cmocka_unit_test(test_measure), cmocka_unit_test(test_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
