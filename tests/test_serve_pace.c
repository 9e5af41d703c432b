/* test_serve_pace.c -- how long a piece of a prompt may be: what the engine learns from the times of earlier ones. */
#include "check.h"
#include "serve/pace.h"

/* A machine on which a piece takes fixed + each x tokens, one in `odd` 20 times as long (0: none), and every time some
 * more; returns the seconds per token of the last half of `pieces` pieces of `budget` seconds. */
static double read_at_pace(struct hl_pace *p, double fixed, double each, int odd, double budget, int pieces) {
    double took = 0, read = 0;
    for (int i = 0; i < pieces; i++) {
        const int64_t n = hl_pace_length(p, budget);
        const double noise = 0.9 + 0.2 * (double)(check_mix((uint64_t)i) % 1000) / 1000;
        const double seconds = (fixed + each * (double)n) * noise * (odd && i % odd == odd - 1 ? 20 : 1);
        assert_true(n >= HL_PACE_UNIT && n <= HL_PACE_MOST && n % HL_PACE_UNIT == 0);
        if (i >= pieces / 2) took += seconds, read += (double)n;
        hl_pace_add(p, n, seconds);
    }
    return took / read;
}

static void pace(void **state) {
    struct hl_pace p = {0};
    double fixed, each;
    (void)state;
    assert_int_equal(hl_pace_length(&p, 1000), HL_PACE_UNIT);
    /* hardly anything is fixed: about as many tokens as fit */
    read_at_pace(&p, 0, 2e-4, 0, 0.2, 40);
    assert_true(hl_pace_length(&p, 0.2) >= 704 && hl_pace_length(&p, 0.2) <= 1280);
    assert_int_equal(hl_pace_length(&p, 0.02), HL_PACE_UNIT);
    assert_int_equal(hl_pace_length(&p, 1e-9), HL_PACE_UNIT);
    p = (struct hl_pace){0};
    read_at_pace(&p, 0.005, 2e-4, 5, 0.018, 100); /* one piece in five is an exception */
    assert_int_equal(hl_pace_length(&p, 0.018), HL_PACE_UNIT);
    /* With more to do than cores nearly all of it is fixed. An estimate proportional to the length stays at 64 tokens of
     * 75 ms each; longer pieces read ten times as fast and take half as long again. */
    for (int odd = 0; odd <= 5; odd += 5) {
        p = (struct hl_pace){0};
        const double per_token = read_at_pace(&p, 4.8, 3e-3, odd, 3, 100);
        if (per_token > (odd ? 5 : 1) * 0.0125) fail_msg("%.4f s per token, one in %d odd", per_token, odd);
        assert_true(4.8 + 3e-3 * (double)hl_pace_length(&p, 3) < 2 * 4.8);
        assert_true(hl_pace_line(&p, &fixed, &each));
        assert_true(fixed > 3.6 && fixed < 6 && each > 3e-4 && each < 7e-3);
    }
    /* and back: as soon as most of what it knows is new */
    read_at_pace(&p, 0.005, 2e-4, 0, 0.018, 30);
    assert_true(hl_pace_length(&p, 0.018) <= 2 * HL_PACE_UNIT);
}

/* On a device: the longest length that fits, whatever another kind of pass takes; an exception is not forgotten for
 * ever. */
static void pace_of_a_device(void **state) {
    struct hl_pace p = {0};
    (void)state;
    assert_int_equal(hl_pace_power(&p, false, 1), HL_PACE_UNIT);
    for (int i = 0; i < HL_PACE_POWERS; i++) {
        hl_pace_add_power(&p, HL_PACE_UNIT << i, false, 0.001 * (1 << i));
        hl_pace_add_power(&p, HL_PACE_UNIT << i, true, 0.004 * (1 << i));
    }
    assert_int_equal(hl_pace_power(&p, false, 0.0081), HL_PACE_UNIT << 3);
    assert_int_equal(hl_pace_power(&p, true, 0.0081), HL_PACE_UNIT << 1);
    assert_int_equal(hl_pace_power(&p, false, 1), HL_PACE_MOST);
    assert_int_equal(hl_pace_power(&p, false, 1e-9), HL_PACE_UNIT);
    hl_pace_add_power(&p, HL_PACE_UNIT << 3, false, 1); /* counts as twice what was known */
    assert_int_equal(hl_pace_power(&p, false, 0.0101), HL_PACE_UNIT << 3);
    for (int i = 0; i < 20; i++) hl_pace_add_power(&p, HL_PACE_UNIT << 3, false, 0.04);
    assert_int_equal(hl_pace_power(&p, false, 0.0101), HL_PACE_UNIT << 2);
    for (int i = 0; i < 200; i++) hl_pace_add_power(&p, HL_PACE_UNIT << 2, false, 0.004);
    assert_int_equal(hl_pace_power(&p, false, 0.0101), HL_PACE_UNIT << 2); /* less than one gap in a hundred */
    for (int i = 0; i < 20000; i++) hl_pace_add_power(&p, HL_PACE_UNIT << 2, false, 0.004);
    assert_int_equal(hl_pace_power(&p, false, 0.0101), HL_PACE_UNIT << 3);
    p = (struct hl_pace){0}; /* several prompts are never one piece of 64 tokens */
    for (int i = 1; i < 5; i++) hl_pace_add_power(&p, HL_PACE_UNIT << i, true, 0.001 * (1 << i));
    assert_int_equal(hl_pace_power(&p, true, 0.0081), HL_PACE_UNIT << 3);
    assert_int_equal(hl_pace_power(&p, true, 0.02), HL_PACE_UNIT << 4); /* the next one might take 0.032 */
    assert_int_equal(hl_pace_power(&p, true, 0.04), HL_PACE_UNIT << 5);
    for (int i = 0; i < 100; i++)
        hl_pace_add_power(&p, (HL_PACE_UNIT << 3) + 64, true, 0.0085); /* just over half full: says nothing */
    assert_int_equal(hl_pace_power(&p, true, 0.0159), HL_PACE_UNIT << 3);
    for (int i = 0; i < 100; i++) hl_pace_add_power(&p, HL_PACE_UNIT * 15, true, 0.0075); /* nearly full, and faster */
    assert_int_equal(hl_pace_power(&p, true, 0.0081), HL_PACE_UNIT << 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pace), cmocka_unit_test(pace_of_a_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
