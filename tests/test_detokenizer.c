/* test_detokenizer.c -- text as it comes: joined it is the text of all ids, cut before the first stop string, and
 * nothing comes out that a later id could take back. */
#include "check.h"
#include "tokenizer/tokenizer.h"
#include <dirent.h>

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

/* Where the last id's text begins: behind the text of the ids before it, for every kind of tokenizer. Ids that stand at
 * the front of a text, special ones and single bytes are frequent. */
static void last_of(const hola_tokenizer *t, const char *name) {
    struct hl_text text = {0};
    int64_t begins = 0, differ = 0;
    for (uint64_t round = 0; round < 2000; round++) {
        int32_t ids[8];
        const int64_t n = 1 + (int64_t)(check_mix(round) % 8);
        for (int64_t i = 0; i < n; i++) {
            const uint64_t r = check_mix(round * 8 + (uint64_t)i + 1);
            ids[i] = (int32_t)((r >> 8) % (uint64_t)(r % 3 ? hola_tokenizer_size(t) : 300)) %
                     (int32_t)hola_tokenizer_size(t);
        }
        char *all, *before;
        int64_t n_all, n_before, last;
        CHECK_OK(hola_tokenizer_decode(t, ids, n, &all, &n_all));
        CHECK_OK(hola_tokenizer_decode(t, ids, n - 1, &before, &n_before));
        CHECK_OK(hl_tokenizer_decode_last(t, ids, n, &text, &last));
        if (text.n != n_all || (n_all > 0 && memcmp(text.data, all, (size_t)n_all))) fail_msg("%s: another text", name);
        if (last != n_before)
            fail_msg("%s: the last of %d ids begins at %d, not %d", name, (int)n, (int)last, (int)n_before);
        begins += n_before > 0, differ += n_all > n_before;
        free(all), free(before);
    }
    assert_true(begins > 100 && differ > 100);
    hl_text_free(&text);
}
static void last(void **state) {
    const char *dir = "tests/data/tokenizers";
    int files = 0;
    (void)state;
    hola_tokenizer *t = bytes();
    last_of(t, "byte");
    hola_tokenizer_free(t);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || hola_tokenizer_load(&t, path) != HOLA_OK) continue;
        last_of(t, e->d_name);
        hola_tokenizer_free(t);
        files++;
    }
    closedir(d);
    assert_true(files > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings), cmocka_unit_test(characters),        cmocka_unit_test(joined),
        cmocka_unit_test(numbers),      cmocka_unit_test(piece_after_takes), cmocka_unit_test(last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
