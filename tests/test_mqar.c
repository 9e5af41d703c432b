/* test_mqar.c -- zoology's own examples: one read with the eye, sets by their hash (printed by zoology's
 * code under numpy 2), and the accuracy. */
#define _GNU_SOURCE
#include "eval/mqar_numpy.h"
#include "temp.h"

static uint64_t hash_more(uint64_t h, const int32_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) h = (h ^ ((uint32_t)x[i] >> (8 * k) & 255)) * 0x100000001b3u;
    return h;
}
static uint64_t hash_set(const struct hl_mqar *m, uint32_t seed, int64_t examples) {
    const int64_t n = examples * m->length;
    int32_t *in = malloc((size_t)n * sizeof *in), *label = malloc((size_t)n * sizeof *label);
    CHECK_OK(hl_mqar_numpy_make(m, seed, 0, examples, in, label));
    uint64_t h = hash_more(hash_more(0xcbf29ce484222325u, in, n), label, n);
    free(in);
    free(label);
    return h;
}

static void test_examples(void **state) {
    const struct hl_mqar small = {.vocab = 64, .length = 32, .pairs = 4, .power = 0.01};
    const struct hl_mqar large = {.vocab = 8192, .length = 512, .pairs = 64, .power = 0.01};
    static const int32_t want[32] = {3, 53, 19, 32, 2, 34, 10, 46, 3, 0, 0, 0, 2, 0, 0, 0, 19, 0, 10};
    int32_t in[3 * 32], label[3 * 32];
    (void)state;
    CHECK_OK(hl_mqar_numpy_make(&small, 7, 0, 3, in, label));
    for (int i = 0; i < 32; i++) {
        assert_int_equal(in[i], want[i]);
        assert_int_equal(label[i], i == 8 ? 53 : i == 12 ? 34 : i == 16 ? 32 : i == 18 ? 46 : HL_MQAR_NONE);
    }
    assert_true(hash_set(&small, 7, 3) == 0x7cd57c1339515105u);
    assert_true(hash_set(&large, 2147483700u, 50) == 0xe06c3aaced6540b9u);
    assert_true(hash_set(&small, 8, 3) != 0x7cd57c1339515105u);
}

/* Every place that zoology leaves empty gets some token; what it filled stays. */
static void test_random_non_queries(void **state) {
    struct hl_mqar m = {.vocab = 64, .length = 32, .pairs = 4, .power = 0.01};
    int32_t plain[32], in[32], label[32], other[32], same = 0;
    (void)state;
    CHECK_OK(hl_mqar_numpy_make(&m, 7, 0, 1, plain, label));
    m.random_non_queries = true;
    CHECK_OK(hl_mqar_numpy_make(&m, 7, 1, 1, in, label));
    CHECK_OK(hl_mqar_numpy_make(&m, 7, 2, 1, other, label));
    for (int i = 0; i < 32; i++) {
        assert_in_range(in[i], 0, 63);
        if (plain[i]) assert_int_equal(in[i], plain[i]);
        else same += in[i] == other[i];
    }
    assert_true(same < 10); /* of 20 places */
    m.answers = true;
    CHECK_FAILS(hl_mqar_numpy_make(&m, 7, 1, 1, in, label), HOLA_EINVAL, "answers");
    m.answers = false, m.length = 31;
    CHECK_FAILS(hl_mqar_numpy_make(&m, 7, 1, 1, in, label), HOLA_EINVAL, "even");
}

/* Our own examples, of hola prepare: pairs of a key and a value of its half of the vocabulary, each asked once
 * behind them, mostly near (a power of 0.01). */
static void test_own(void **state) {
    enum { N = 64, PAIRS = 4, VOCAB = 128, SAMPLES = 300 };
    struct hl_mqar m = {.vocab = VOCAB, .length = N, .pairs = PAIRS, .power = 0.01};
    int32_t in[N], label[N], again[N], least = VOCAB, most = 0;
    double slots = 0;
    (void)state;
    CHECK_OK(hl_mqar_check(&m));
    for (int s = 0; s < SAMPLES; s++) {
        int asked = 0;
        CHECK_OK(hl_mqar_make(&m, 5, s, in, label));
        CHECK_OK(hl_mqar_make(&m, 5, s, again, NULL));
        assert_memory_equal(in, again, sizeof in);
        for (int j = 0; j < PAIRS; j++) {
            assert_in_range(in[2 * j], 1, VOCAB / 2 - 1);
            assert_in_range(in[2 * j + 1], VOCAB / 2, VOCAB - 1);
            least = in[2 * j] < least ? in[2 * j] : least, most = in[2 * j] > most ? in[2 * j] : most;
            for (int i = 0; i < j; i++) assert_true(in[2 * i] != in[2 * j] && in[2 * i + 1] != in[2 * j + 1]);
        }
        for (int i = 0; i < N; i++) {
            if (i < 2 * PAIRS || i % 2) assert_int_equal(label[i], HL_MQAR_NONE);
            if (label[i] == HL_MQAR_NONE) continue;
            int j = 0;
            while (j < PAIRS && in[2 * j] != in[i]) j++;
            assert_true(j < PAIRS && label[i] == in[2 * j + 1]);
            slots += (i - 2 * PAIRS) / 2, asked++;
        }
        assert_int_equal(asked, PAIRS);
    }
    assert_true(least == 1 && most == VOCAB / 2 - 1);
    /* by a weight of 1/slot four of 28 slots are 5 and a half on average; by equal ones 13.5 */
    slots /= SAMPLES * PAIRS;
    if (!(slots > 4 && slots < 8)) fail_msg("slot %g on average", slots);
    CHECK_OK(hl_mqar_make(&m, 6, 0, again, NULL));
    assert_true(memcmp(in, again, sizeof in) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_random_non_queries),
                                       cmocka_unit_test(test_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
