/* test_snapshot_numbers.c -- the loops without branches give the bits of those that take number by number. */
#include "check.h"
#include "model/snapshot_numbers.h"
#include <stdlib.h>

enum { N = 1 << 16, ROOM = N + 7 };
struct numbers {
    char *file, *again; /* one byte past alignment, as pieces of a file may begin */
    char *files[2];
    uint16_t fast[ROOM], plain[ROOM];
};
static struct numbers *numbers_new(void) {
    struct numbers *x = calloc(1, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < 2; i++) assert_non_null(x->files[i] = malloc(4 * ROOM + 1));
    x->file = x->files[0] + 1, x->again = x->files[1] + 1;
    return x;
}
static void numbers_free(struct numbers *x) {
    free(x->files[0]), free(x->files[1]);
    free(x);
}
static void put_bits(struct numbers *x, int64_t i, uint32_t bits) { memcpy(x->file + 4 * i, &bits, 4); }

/* The same bits, and the same answer whether one is not finite. */
static void both_read(struct numbers *x, int64_t n, hola_dtype here) {
    const bool wrong = hl_numbers_read(x->fast, here, x->file, n, HOLA_F32);
    assert_int_equal(wrong, hl_numbers_read_plain(x->plain, here, x->file, n, HOLA_F32));
    for (int64_t i = 0; !wrong && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x->file + 4 * i, 4);
        if (x->fast[i] != x->plain[i]) fail_msg("%08x: %04x, not %04x", bits, x->fast[i], x->plain[i]);
    }
}
static void both_write(struct numbers *x, const uint16_t *half, int64_t n, hola_dtype here) {
    const bool wrong = hl_numbers_write(x->file, HOLA_F32, half, here, n);
    assert_int_equal(wrong, hl_numbers_write_plain(x->again, HOLA_F32, half, here, n));
    if (!wrong) assert_memory_equal(x->file, x->again, (size_t)n * 4);
}

/* Floats of every exponent and sign, around every place where rounding changes, and steps through all the others. */
static void floats(void **state) {
    static const uint32_t odd[] = {0x00000000, 0x80000000, 0x00000001, 0x33000000, 0x33000001, 0x337fffff, 0x38000fff,
                                   0x387fffff, 0x38800000, 0x38801000, 0x38803000, 0x477fdfff, 0x477fe000, 0x477fefff,
                                   0x477ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0xc77fe001, 0x3f808000};
    struct numbers *x = numbers_new();
    (void)state;
    for (int half = 0; half < 2; half++) {
        const hola_dtype here = half ? HOLA_F16 : HOLA_BF16;
        for (uint64_t from = 0; from < (uint64_t)1 << 32; from += (uint64_t)4093 * N) {
            int64_t n = 0;
            for (uint64_t b = from; n < N && b < (uint64_t)1 << 32; b += 4093)
                if ((b & 0x7f800000u) != 0x7f800000u && (half || (b & 0x7fffffffu) < 0x7f7f8000u))
                    put_bits(x, n++, (uint32_t)b);
            both_read(x, n, here);
            both_read(x, n % 61, here); /* lengths that are no vectors */
        }
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
            put_bits(x, 0, odd[i]);
            both_read(x, 1, here);
        }
    }
    numbers_free(x);
}

static void not_finite(void **state) {
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff};
    struct numbers *x = numbers_new();
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int64_t at = 0; at < 37; at++) {
            memset(x->file, 0, 4 * 37);
            put_bits(x, at, bad[i]);
            assert_true(hl_numbers_read(x->fast, HOLA_F16, x->file, 37, HOLA_F32));
            assert_true(hl_numbers_read(x->fast, HOLA_BF16, x->file, 37, HOLA_F32));
            assert_false(hl_numbers_read(x->fast, HOLA_F16, x->file, at, HOLA_F32));
            assert_false(hl_numbers_read(x->fast, HOLA_BF16, x->file, at, HOLA_F32));
        }
    put_bits(x, 0, 0x7f7fffff); /* finite, but not as BF16; in F16 it is the largest number */
    assert_true(hl_numbers_read(x->fast, HOLA_BF16, x->file, 1, HOLA_F32));
    assert_false(hl_numbers_read(x->fast, HOLA_F16, x->file, 1, HOLA_F32));
    assert_int_equal(x->fast[0], 0x7bff);
    numbers_free(x);
}

/* Every half, and back. */
static void halves(void **state) {
    struct numbers *x = numbers_new();
    uint16_t *half = malloc(N * sizeof *half);
    assert_non_null(half);
    (void)state;
    for (int f16 = 0; f16 < 2; f16++) {
        const hola_dtype here = f16 ? HOLA_F16 : HOLA_BF16;
        const uint16_t infinite = f16 ? 0x7c00 : 0x7f80;
        int64_t n = 0;
        for (uint32_t h = 0; h < N; h++) {
            const uint16_t one = (uint16_t)h;
            both_write(x, &one, 1, here);
            assert_int_equal((h & 0x7fff) >= infinite, hl_numbers_write(x->file, HOLA_F32, &one, here, 1));
            if ((h & 0x7fff) < infinite) half[n++] = one;
        }
        both_write(x, half, n, here);
        assert_false(hl_numbers_read(x->fast, here, x->file, n, HOLA_F32));
        assert_memory_equal(x->fast, half, (size_t)n * sizeof *half);
        half[n / 2] ^= 1; /* another one is seen */
        assert_memory_not_equal(x->fast, half, (size_t)n * sizeof *half);
    }
    free(half);
    numbers_free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(floats), cmocka_unit_test(not_finite),
                                       cmocka_unit_test(halves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
