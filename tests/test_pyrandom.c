/* test_pyrandom.c -- the numbers of CPython 3.11 and numpy 2 (each expectation is what they print). */
#include "check.h"
#include "eval/pyrandom.h"

#define SAME(got, ...)                                                                                       \
    do {                                                                                                     \
        const int64_t want_[] = {__VA_ARGS__};                                                               \
        for (size_t i_ = 0; i_ < sizeof want_ / sizeof *want_; i_++) assert_int_equal((got)[i_], want_[i_]); \
    } while (0)

static void test_python(void **state) {
    struct hl_mt m;
    char uuid[37];
    (void)state;
    hl_py_seed(&m, 0);
    const int64_t number[3] = {hl_py_randint(&m, 1000000, 9999999), hl_py_randint(&m, 1000000, 9999999),
                               hl_py_randint(&m, 1000000, 9999999)};
    SAME(number, 7463343, 8056020, 1679215);
    hl_py_seed(&m, 0);
    assert_true(hl_py_random(&m) == 0.8444218515250481);
    hl_py_seed(&m, 42);
    assert_true(hl_py_random(&m) == 0.6394267984578837);
    hl_py_seed(&m, 1234567890123); /* two words */
    assert_true(hl_py_random(&m) == 0.8225316907510454);
    assert_int_equal(hl_py_bits(&m, 1), 0);
    assert_int_equal(hl_py_bits(&m, 7), 79);
    hl_py_seed(&m, (uint32_t)1234567890123);
    assert_true(hl_py_random(&m) != 0.8225316907510454); /* wrong: one word alone */
    hl_py_seed(&m, 0);
    hl_py_uuid4(&m, uuid);
    assert_string_equal(uuid, "e3e70682-c209-4cac-a29f-6fbed82c07cd");
}

static void test_lists(void **state) {
    struct hl_mt m;
    int32_t list[10], letters[8];
    int64_t out[30];
    (void)state;
    for (int i = 0; i < 10; i++) list[i] = i;
    hl_py_seed(&m, 42);
    hl_py_shuffle(&m, list, 10);
    SAME(list, 7, 3, 2, 8, 5, 6, 9, 4, 0, 1);
    hl_py_seed(&m, 7);
    CHECK_OK(hl_py_sample(&m, 20, 5, out)); /* from a copy */
    SAME(out, 10, 4, 12, 1, 2);
    CHECK_OK(hl_py_sample(&m, 100, 30, out)); /* from a copy: 30 make the limit 277 */
    SAME(out, 68, 12, 46, 74, 7, 64, 27, 4, 11, 55, 53, 8, 30, 91, 70, 54, 95, 72, 15, 28, 96, 83, 73, 79, 50, 6, 80, 5,
         71, 17);
    CHECK_OK(hl_py_sample(&m, 1000, 6, out)); /* drawing again */
    SAME(out, 296, 429, 147, 553, 120, 584);
    CHECK_OK(hl_py_sample(&m, 22, 3, out)); /* one more than the limit 21 */
    SAME(out, 9, 17, 21);
    assert_int_equal(hl_py_below(&m, 6171620), 1516042);
    assert_int_equal(hl_py_below(&m, (int64_t)1 << 40), 816850686149);
    assert_int_equal(hl_py_randint(&m, -5, 5), -4);
    hl_py_seed(&m, 7);
    for (int i = 0; i < 8; i++) letters[i] = (int32_t)hl_py_choices(&m, 26);
    SAME(letters, 8, 3, 16, 1, 13, 9, 1, 13);
}

static void test_numpy(void **state) {
    struct hl_mt m;
    int64_t value[5];
    int32_t perm[24];
    double p[24], cdf[24], weight[24], sum = 0;
    (void)state;
    hl_np_seed(&m, 1234);
    for (int i = 0; i < 5; i++) value[i] = hl_np_randint(&m, 10000, 99999);
    SAME(value, 68067, 44086, 70620, 99460, 92584);
    hl_py_seed(&m, 1234);
    assert_int_not_equal(hl_np_randint(&m, 10000, 99999), 68067); /* wrong: CPython's way of seeding */
    hl_np_seed(&m, 5);
    hl_np_choice(&m, perm, 10);
    SAME(perm, 9, 5, 2, 4, 7, 1, 0, 8, 6, 3);
    for (int i = 0; i < 24; i++) sum += weight[i] = 0.01 * pow(i + 1, 0.01 - 1);
    for (int i = 0; i < 24; i++) p[i] = weight[i] /= sum;
    hl_np_choice_p(&m, p, cdf, 24, perm, 12);
    SAME(perm, 1, 3, 23, 11, 6, 12, 0, 9, 15, 7, 14, 2);
    memcpy(p, weight, sizeof p);
    hl_np_choice_p(&m, p, cdf, 24, perm, 5);
    SAME(perm, 0, 12, 15, 20, 6);
}

static void test_splitmix(void **state) {
    uint64_t s = 1234567;
    (void)state;
    assert_true(hl_splitmix(&s) == 6457827717110365317u); /* published values */
    assert_true(hl_splitmix(&s) == 3203168211198807973u);
    s = (uint64_t)1 << 32;
    assert_int_equal(10000 + hl_splitmix_below(&s, 90000), 78967);
    s = (uint64_t)1 << 32 | 1;
    assert_int_equal(10000 + hl_splitmix_below(&s, 90000), 21342);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_python), cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_numpy), cmocka_unit_test(test_splitmix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
