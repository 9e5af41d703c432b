/* test_rng.c -- random numbers by counter, and the 16-bit float formats. */
#include "check.h"
#include "core/half.h"
#include "core/rng.h"

static void test_fnv(void **state) {
    (void)state;
    assert_true(hl_fnv1a("") == 0xcbf29ce484222325u);
    assert_true(hl_fnv1a("a") == 0xaf63dc4c8601ec8cu); /* published values */
    assert_true(hl_fnv1a("foobar") == 0x85944171f73967e8u);
}

/* Moments of n numbers: mean, variance, skewness, kurtosis. */
static void moments(const double *x, int n, double m[4]) {
    m[0] = m[1] = m[2] = m[3] = 0;
    for (int i = 0; i < n; i++) m[0] += x[i] / n;
    for (int i = 0; i < n; i++) {
        double d = x[i] - m[0];
        m[1] += d * d / n;
        m[2] += d * d * d / n;
        m[3] += d * d * d * d / n;
    }
}

enum { N = 100000 };
static double numbers[N];

static void test_distribution(void **state) {
    double m[4];
    int buckets[64] = {0};
    (void)state;
    for (int i = 0; i < N; i++) {
        numbers[i] = hl_rng_uniform(1, 2, (uint64_t)i);
        assert_true(numbers[i] >= 0 && numbers[i] < 1);
        buckets[(int)(numbers[i] * 64)]++;
    }
    moments(numbers, N, m);
    assert_true(fabs(m[0] - 0.5) < 0.005 && fabs(m[1] - 1 / 12.0) < 0.002);
    double chi = 0;
    for (int i = 0; i < 64; i++) chi += pow(buckets[i] - N / 64.0, 2) / (N / 64.0);
    assert_true(chi > 25 && chi < 115); /* 63 degrees: 1e-5 on either side */
    for (int i = 0; i < N; i++) numbers[i] = hl_rng_normal(1, 2, (uint64_t)i);
    moments(numbers, N, m);
    assert_true(fabs(m[0]) < 0.015 && fabs(m[1] - 1) < 0.02 && fabs(m[2]) < 0.04 && fabs(m[3] - 3) < 0.1);
}

/* Neighbours in i, in stream and in seed are unrelated. */
static void test_independence(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        double c = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t a = kind == 0 ? i : 5, s = kind == 1 ? i : 7, e = kind == 2 ? i : 9;
            c += hl_rng_normal(e, s, a) * hl_rng_normal(e + (kind == 2), s + (kind == 1), a + (kind == 0)) / N;
        }
        assert_true(fabs(c) < 0.015);
    }
    assert_true(hl_rng_bits(1, 2, 3) != hl_rng_bits(2, 1, 3));
    assert_true(hl_rng_bits(1, 2, 3) == hl_rng_bits(1, 2, 3));
}

static void test_fill(void **state) {
    real x[11];
    (void)state;
    for (int64_t n = 0; n <= 10; n++) {
        x[n] = 77;
        hl_rng_normals(3, 4, 0.5, x, n);
        for (int64_t i = 0; i < n; i++) assert_true(x[i] == (real)(0.5 * hl_rng_normal(3, 4, (uint64_t)i)));
        assert_true(x[n] == 77);
    }
}

/* Every 16-bit pattern comes back; halfway between neighbours goes to the even one, beside it to the nearer. */
static void check_format(float (*from)(uint16_t), uint16_t (*to)(float), uint16_t inf) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t a = h & 0x7fff;
        float f = from((uint16_t)h);
        if (a > inf) {
            assert_true(isnan(f) && (to(f) & 0x7fff) > inf);
            continue;
        }
        assert_int_equal(to(f), h);
        if (a + 1 >= inf || h > 0x7fff) continue;
        float up = from((uint16_t)(h + 1)), mid = (float)(((double)f + up) / 2);
        uint16_t even = (uint16_t)(h % 2 ? h + 1 : h);
        assert_int_equal(to(mid), even);
        assert_int_equal(to(-mid), even | 0x8000);
        assert_int_equal(to(nextafterf(mid, 0)), h);
        assert_int_equal(to(nextafterf(mid, INFINITY)), h + 1);
    }
    float last = from((uint16_t)(inf - 1)), step = last - from((uint16_t)(inf - 2));
    assert_int_equal(to(last + step / 4), inf - 1);
    assert_int_equal(to(last + step / 2), inf); /* the last one is odd */
    assert_int_equal(to(INFINITY), inf);
    assert_int_equal(to(-INFINITY), inf | 0x8000);
    assert_true((to(NAN) & 0x7fff) > inf);
}
static void test_bf16(void **state) {
    (void)state;
    check_format(hl_from_bf16, hl_to_bf16, 0x7f80);
    assert_true(hl_from_bf16(0x3f80) == 1.0f && hl_from_bf16(0xc040) == -3.0f);
}
static void test_f16(void **state) {
    (void)state;
    check_format(hl_from_f16, hl_to_f16, 0x7c00);
    assert_true(hl_from_f16(0x3c00) == 1.0f && hl_from_f16(0xc200) == -3.0f && hl_from_f16(1) == 0x1p-24f);
    assert_true(hl_from_f16(0x7bff) == 65504.0f && hl_to_f16(1e-30f) == 0 && hl_to_f16(1e30f) == 0x7c00);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fnv),  cmocka_unit_test(test_distribution), cmocka_unit_test(test_independence),
        cmocka_unit_test(test_fill), cmocka_unit_test(test_bf16),         cmocka_unit_test(test_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
