/* test_detokenizer.c -- text as it comes: joined it is the text of all ids, cut before the first stop string, and
 * nothing comes out that a later id could take back. */
#include "check.h"
#include "core/text.h"

static hola_tokenizer *bytes(void) {
    hola_tokenizer *t;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    return t;
}

/* Feeds the bytes one id at a time; every piece taken ends with a line feed in `out`. Returns where it stopped, or -1. */
static int64_t run(hola_detokenizer *d, const char *text, int64_t n, struct hl_text *out) {
    int64_t len;
    CHECK_OK(hl_text_clear(out));
    hola_detokenizer_begin(d, NULL, 0);
    for (int64_t i = 0; i < n; i++) {
        bool stopped;
        CHECK_OK(hola_detokenizer_add(d, (unsigned char)text[i], &stopped));
        hola_detokenizer_piece(d, &len);
        assert_int_equal(len, 1);
        const char *p = hola_detokenizer_take(d, stopped, &len);
        if (len > 0) hl_text_put(out, p, len), hl_text_puts(out, "|");
        if (stopped) return i;
    }
    const char *p = hola_detokenizer_take(d, true, &len);
    if (len > 0) hl_text_put(out, p, len), hl_text_puts(out, "|");
    return -1;
}

static void stop_strings(void **state) {
    static const char *const stop[] = {"END", "\n\nUser:", "aab"};
    hola_tokenizer *t = bytes();
    hola_detokenizer *d;
    struct hl_text out = {0};
    (void)state;
    CHECK_OK(hola_detokenizer_new(&d, t, stop, NULL, 3));
    assert_int_equal(run(d, "xyENDz", 6, &out), 4);
    assert_string_equal(out.data, "x|y|");
    assert_int_equal(run(d, "xENxEN", 6, &out), -1);
    assert_string_equal(out.data, "x|ENx|EN|"); /* held back, then it is none */
    assert_int_equal(run(d, "aaaab", 5, &out), 4);
    assert_string_equal(out.data, "a|a|"); /* each as soon as it cannot begin one */
    assert_int_equal(run(d, "a\n\n\nUser:", 9, &out), 8);
    assert_string_equal(out.data, "a|\n|");
    hola_detokenizer_free(d);
    /* NUL bytes, and the earliest of two */
    static const char *const two[] = {"c\0d", "bc"};
    const int64_t len[] = {3, 2};
    CHECK_OK(hola_detokenizer_new(&d, t, two, len, 2));
    assert_int_equal(run(d, "abc\0d", 5, &out), 2);
    assert_string_equal(out.data, "a|");
    assert_int_equal(run(d, "xc\0d", 4, &out), 3);
    assert_string_equal(out.data, "x|");
    hola_detokenizer_free(d);
    const int64_t none = 0;
    assert_int_equal(hola_detokenizer_new(&d, t, two, &none, 1), HOLA_EINVAL);
    assert_null(d);
    hl_text_free(&out);
    hola_tokenizer_free(t);
}

static void characters(void **state) {
    hola_tokenizer *t = bytes();
    hola_detokenizer *d;
    struct hl_text out = {0};
    (void)state;
    CHECK_OK(hola_detokenizer_new(&d, t, NULL, NULL, 0));
    run(d, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, &out);
    assert_string_equal(out.data, "\xc3\xa4|\xe2\x82\xac|\xf0\x9f\x98\x80|");
    run(d, "\xff\xc3(", 3, &out); /* what can be no character waits for nobody */
    assert_string_equal(out.data, "\xff|\xc3(|");
    run(d, "a\xe2\x82", 3, &out);
    assert_string_equal(out.data, "a|\xe2\x82|");
    hola_detokenizer_free(d);
    hola_tokenizer_free(t);
    hl_text_free(&out);
}

/* Random bytes and random stop strings: the pieces joined are the text up to the first stop string. */
static void joined(void **state) {
    hola_tokenizer *t = bytes();
    struct hl_text out = {0};
    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        char text[40], stop[2][4];
        int64_t len[2], first = 40;
        for (int i = 0; i < 40; i++) text[i] = "ab\xc3\xa4"[check_mix(round * 100 + (uint64_t)i) % 4];
        for (int k = 0; k < 2; k++) {
            len[k] = 1 + (int64_t)(check_mix(round * 7 + (uint64_t)k) % 4);
            for (int i = 0; i < 4; i++) stop[k][i] = "ab\xc3\xa4"[check_mix(round * 9 + (uint64_t)(k * 4 + i)) % 4];
        }
        /* the stop string that is complete first, and of those the one that begins first */
        int64_t end = 41;
        for (int64_t e = 1; e <= 40 && end > 40; e++)
            for (int k = 0; k < 2; k++)
                if (e >= len[k] && memcmp(text + e - len[k], stop[k], (size_t)len[k]) == 0) {
                    end = e;
                    if (e - len[k] < first) first = e - len[k];
                }
        const char *const both[] = {stop[0], stop[1]};
        hola_detokenizer *d;
        CHECK_OK(hola_detokenizer_new(&d, t, both, len, 2));
        run(d, text, 40, &out);
        int64_t n = 0;
        for (int64_t i = 0; i < out.n; i++)
            if (out.data[i] != '|') out.data[n++] = out.data[i];
        if (n != first || memcmp(out.data, text, (size_t)n)) fail_msg("round %d: another text", (int)round);
        hola_detokenizer_free(d);
    }
    hl_text_free(&out);
    hola_tokenizer_free(t);
}

/* What the last id added can be asked for after any number of takes. */
static void piece_after_takes(void **state) {
    static const char *const stop[] = {"34"};
    hola_detokenizer *d;
    int64_t len;
    (void)state;
    CHECK_OK(hola_detokenizer_new(&d, NULL, stop, NULL, 1));
    hola_detokenizer_begin(d, NULL, 0);
    CHECK_OK(hola_detokenizer_add(d, 123, NULL));
    const char *p = hola_detokenizer_take(d, false, &len);
    assert_int_equal(len, 2); /* the 3 may begin the stop string */
    assert_memory_equal(p, "12", 2);
    hola_detokenizer_take(d, false, &len);
    assert_int_equal(len, 0);
    p = hola_detokenizer_piece(d, &len);
    assert_int_equal(len, 3);
    assert_memory_equal(p, "123", 3);
    p = hola_detokenizer_take(d, true, &len);
    assert_int_equal(len, 1);
    assert_memory_equal(p, "3", 1);
    hola_detokenizer_free(d);
}

static void numbers(void **state) {
    hola_detokenizer *d;
    int64_t len;
    (void)state;
    CHECK_OK(hola_detokenizer_new(&d, NULL, NULL, NULL, 0));
    hola_detokenizer_begin(d, NULL, 0);
    CHECK_OK(hola_detokenizer_add(d, 17, NULL));
    CHECK_OK(hola_detokenizer_add(d, 4, NULL));
    const char *p = hola_detokenizer_take(d, true, &len);
    assert_int_equal(len, 4);
    assert_memory_equal(p, "17 4", 4);
    hola_detokenizer_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings), cmocka_unit_test(characters),        cmocka_unit_test(joined),
        cmocka_unit_test(numbers),      cmocka_unit_test(piece_after_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
