/* test_recall.c -- the synthetic tasks: what a sequence must look like, in every one of many. */
#include "check.h"
#include "data/mqar.h"
#include "data/recall.h"

/* ---- recall ---- */

/* Whether a sequence keeps the rules of recall.h; `answers` receives how many it has. */
static bool is_recall(const struct hl_recall *r, const int32_t *ids, const uint8_t *mask, int64_t *answers) {
    const int32_t key0 = (int32_t)(2 + r->fillers), value0 = (int32_t)(key0 + r->keys);
    int32_t value[256], filler = -1;
    int64_t facts = 0, last_fact = 0, first_query = r->length;
    bool asked[256] = {false};
    *answers = 0;
    memset(value, -1, sizeof value);
    if (ids[0] != HL_RECALL_BEGIN || mask[0]) return false;
    for (int64_t i = 1; i < r->length; i++) {
        if (mask[i]) { /* an answer: after its key and the ask, the value that was given */
            int32_t k = ids[i - 1] - key0;
            if (ids[i - 2] != HL_RECALL_ASK || k < 0 || k >= r->keys || asked[k] || ids[i] != value[k]) return false;
            asked[k] = true;
            first_query = first_query < i - 2 ? first_query : i - 2;
            ++*answers;
        } else if (ids[i] >= value0) {
            int32_t k = ids[i - 1] - key0;
            if (k < 0 || k >= r->keys || value[k] >= 0) return false; /* a key twice */
            value[k] = ids[i];
            last_fact = i;
            facts++;
        } else if (ids[i] >= 2 && ids[i] < key0) { /* the cycle goes on */
            if (filler >= 0 && ids[i] != 2 + (filler - 2 + 1) % r->fillers) return false;
            filler = ids[i];
        }
        if (ids[i] < 1 || ids[i] >= hl_recall_vocab(r)) return false;
    }
    return facts == r->facts && first_query - last_fact > r->distance;
}

static void test_recall(void **state) {
    struct hl_recall r = hl_recall_default();
    int32_t ids[1024], again[1024];
    uint8_t mask[1024];
    int64_t answers, changed = 0;
    double place = 0;
    (void)state;
    CHECK_OK(hl_recall_check(&r));
    assert_int_equal(hl_recall_vocab(&r), 2 + 8 + 64 + 64);
    for (int64_t i = 0; i < 300; i++) {
        CHECK_OK(hl_recall_make(&r, 1, i, ids, mask));
        assert_true(is_recall(&r, ids, mask, &answers));
        assert_int_equal(answers, r.queries);
        for (int64_t k = 1; k < 1024 - 256 - 48; k++) place += ids[k] >= 2 + 8 + 64 ? (double)k : 0;
        ids[1023] = ids[1023] == 80 ? 81 : 80; /* a wrong answer is seen */
        assert_false(is_recall(&r, ids, mask, &answers));
    }
    assert_in_range((int)(place / (300 * 32)), 340, 380); /* facts are spread over their part evenly */
    CHECK_OK(hl_recall_make(&r, 1, 7, ids, NULL));
    CHECK_OK(hl_recall_make(&r, 1, 7, again, mask));
    assert_memory_equal(ids, again, sizeof ids);
    CHECK_OK(hl_recall_make(&r, 2, 7, again, mask));
    for (int64_t k = 0; k < 1024; k++) changed += ids[k] != again[k];
    assert_true(changed > 300);
}

static void test_recall_limits(void **state) {
    struct hl_recall r = {.fillers = 1, .keys = 4, .values = 1, .facts = 4, .queries = 4, .length = 21};
    int32_t ids[21];
    uint8_t mask[21];
    int64_t answers;
    (void)state;
    CHECK_OK(hl_recall_check(&r)); /* not a token to spare */
    CHECK_OK(hl_recall_make(&r, 0, 0, ids, mask));
    assert_true(is_recall(&r, ids, mask, &answers));
    assert_int_equal(answers, 4);
    r.length = 20;
    assert_int_equal(hl_recall_check(&r), HOLA_EINVAL);
    r.length = 21, r.queries = 5;
    assert_int_equal(hl_recall_check(&r), HOLA_EINVAL);
    r.queries = 1, r.keys = 3;
    assert_int_equal(hl_recall_check(&r), HOLA_EINVAL);
    r.keys = 4, r.distance = -1;
    assert_int_equal(hl_recall_check(&r), HOLA_EINVAL);
    r.distance = 0, r.values = 0;
    assert_int_equal(hl_recall_check(&r), HOLA_EINVAL);
}

/* ---- mqar ---- */

static bool is_mqar(const struct hl_mqar *m, const int32_t *x, const int32_t *label) {
    int64_t half = m->vocab / 2, labels = 0;
    for (int64_t j = 0; j < m->pairs; j++) {
        int32_t k = x[2 * j], v = x[2 * j + 1];
        int64_t queries = 0;
        if (k < 1 || k >= half || v < half || v >= m->vocab) return false;
        for (int64_t i = 0; i < j; i++)
            if (x[2 * i] == k || x[2 * i + 1] == v) return false;
        for (int64_t i = 2 * m->pairs; i < m->length; i++)
            if (x[i] == k && label[i] != HL_MQAR_NONE) {
                if (label[i] != v || (i - 2 * m->pairs) % 2) return false;
                if (m->answers && x[i + 1] != v) return false;
                queries++;
            }
        if (queries != 1) return false;
    }
    for (int64_t i = 0; i < m->length; i++) {
        labels += label[i] != HL_MQAR_NONE;
        if (x[i] < 0 || x[i] >= m->vocab) return false;
    }
    return labels == m->pairs;
}

static void test_mqar(void **state) {
    static const int64_t sizes[][2] = {{64, 4}, {64, 16}, {128, 8}, {256, 64}, {1024, 256}};
    static int32_t x[1024], label[1024];
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int64_t i = 0; i < 40; i++) {
            struct hl_mqar m = hl_mqar_default();
            m.length = sizes[k][0], m.pairs = sizes[k][1];
            m.random_non_queries = i % 2, m.answers = i % 3 == 0;
            CHECK_OK(hl_mqar_check(&m));
            CHECK_OK(hl_mqar_make(&m, 5, i, x, label));
            assert_true(is_mqar(&m, x, label));
            if (!m.random_non_queries) {
                int64_t zeros = 0;
                for (int64_t t = 0; t < m.length; t++) zeros += x[t] == 0;
                assert_int_equal(zeros, m.length - (m.answers ? 4 : 3) * m.pairs);
            }
            x[1] = x[3]; /* a value twice is seen */
            assert_false(is_mqar(&m, x, label));
        }
}

/* One query among 4 slots: slot i has probability i^(a-1) / sum. And with 2 pairs of 4 slots the first draw
 * keeps that law, the second is renormalised. */
static void test_mqar_slots(void **state) {
    struct hl_mqar m = {.vocab = 64, .length = 10, .pairs = 1, .power = 0.01};
    int32_t x[12], label[12];
    double want[4], sum = 0, count[4] = {0}, second[4] = {0}, expect[4] = {0};
    const int n = 20000;
    (void)state;
    for (int i = 0; i < 4; i++) sum += want[i] = pow(i + 1, -0.99);
    for (int i = 0; i < 4; i++) want[i] /= sum;
    for (int i = 0; i < n; i++) {
        CHECK_OK(hl_mqar_make(&m, 1, i, x, label));
        for (int k = 0; k < 4; k++) count[k] += label[2 + 2 * k] != HL_MQAR_NONE;
    }
    for (int i = 0; i < 4; i++) assert_true(fabs(count[i] / n - want[i]) < 0.015);
    assert_true(fabs(count[0] / n - 0.25) > 0.1); /* uniform slots would be seen */
    m.length = 12, m.pairs = 2;
    for (int i = 0; i < n; i++) {
        CHECK_OK(hl_mqar_make(&m, 2, i, x, label));
        for (int k = 0; k < 4; k++) second[k] += label[4 + 2 * k] == x[3];
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            if (i != k) expect[k] += want[i] * want[k] / (1 - want[i]);
    for (int i = 0; i < 4; i++) assert_true(fabs(second[i] / n - expect[i]) < 0.015);
}

static void test_mqar_limits(void **state) {
    struct hl_mqar m = hl_mqar_default();
    (void)state;
    m.pairs = 64;
    CHECK_OK(hl_mqar_check(&m));
    m.pairs = 65;
    assert_int_equal(hl_mqar_check(&m), HOLA_EINVAL);
    m = hl_mqar_default(), m.length = 255;
    assert_int_equal(hl_mqar_check(&m), HOLA_EINVAL);
    m = hl_mqar_default(), m.vocab = 256;
    assert_int_equal(hl_mqar_check(&m), HOLA_EINVAL);
    m = hl_mqar_default(), m.power = 0;
    assert_int_equal(hl_mqar_check(&m), HOLA_EINVAL);
    m = hl_mqar_default(), m.pairs = 0;
    assert_int_equal(hl_mqar_check(&m), HOLA_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall),     cmocka_unit_test(test_recall_limits), cmocka_unit_test(test_mqar),
        cmocka_unit_test(test_mqar_slots), cmocka_unit_test(test_mqar_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
