/* test_source.c -- documents from files: which, in which order, byte for byte; and files that are damaged. */
#define _GNU_SOURCE
#include "temp.h"
#include "data/source.h"

static void put(const char *dir, const char *name, const char *text) {
    temp_write(dir, name, text, (int64_t)strlen(text));
}

/* All documents of one input joined by '|', or "ERROR: message". Malloced. */
static char *all_of(const char *const *inputs, int n, const struct hl_source_opts *opts, const char *field) {
    struct hl_source *s = NULL;
    struct hl_record r;
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    hola_status status = hl_source_open(&s, inputs, n, opts);
    while (status == HOLA_OK) {
        status = hl_source_next(s, &r);
        if (status != HOLA_OK || !r.text) break;
        status = hl_record_decode(&r, field);
        if (status == HOLA_OK) fprintf(f, "%.*s|", (int)r.len, r.text);
        free(r.text);
    }
    if (status != HOLA_OK) fprintf(f, "ERROR: %s", hola_last_error());
    fclose(f);
    hl_source_free(s);
    return out;
}

/* The documents of dir/name are `want`; where it begins with ERROR: the message holds the rest of it. */
static void expect(const char *dir, const char *name, const struct hl_source_opts *opts, const char *want) {
    char *path = hl_path_join(dir, name), *got = all_of((const char *const[]){path}, 1, opts, "text");
    if (strncmp(want, "ERROR: ", 7) == 0) {
        if (strncmp(got, "ERROR: ", 7) != 0 && !strstr(got, "|ERROR: ")) fail_msg("%s: no error: %s", name, got);
        if (!strstr(got, want + 7) || !strstr(got, path)) fail_msg("%s: %s, expected %s", name, got, want);
    } else assert_string_equal(got, want);
    free(got);
    free(path);
}

static void test_text(void **state) {
    char *dir = temp_new();
    const struct hl_source_opts lines = {.split_lines = true}, json = {.format = HL_FORMAT_JSONL};
    (void)state;
    put(dir, "a.txt", "one\ntwo \xff\xfe\n\n");
    expect(dir, "a.txt", NULL, "one\ntwo \xff\xfe\n\n|");
    expect(dir, "a.txt", &lines, "one|two \xff\xfe|");
    expect(dir, "a.txt", &json, "ERROR: line 1: ");
    put(dir, "b.txt", "");
    expect(dir, "b.txt", NULL, "|");
    expect(dir, "b.txt", &lines, "");
    put(dir, "c.txt", "{\"text\": \"x\"}"); /* .txt is text whatever it holds */
    expect(dir, "c.txt", NULL, "{\"text\": \"x\"}|");
    put(dir, "d.txt", "no newline");
    expect(dir, "d.txt", &lines, "no newline|");
    put(dir, "e.txt", "\n \n\r\nx\r\n\n");
    expect(dir, "e.txt", &lines, "x\r|");
    put(dir, "wiki.raw", "  plain");
    expect(dir, "wiki.raw", NULL, "  plain|");
    put(dir, "data", "\n {\"text\": \"y\"}\n"); /* the content says it */
    expect(dir, "data", NULL, "y|");
    temp_remove(dir);
}

static void test_jsonl(void **state) {
    char *dir = temp_new();
    (void)state;
    put(dir, "a.jsonl",
        "{\"text\": \"one\"}\n\n  \n{\"n\": 99999999999999999999, \"text\": "
        "\"t\\u00e9\\ud83d\\ude00\\n\"}\r\n{\"text\":\"\"}");
    expect(dir, "a.jsonl", NULL, "one|t\xc3\xa9\xf0\x9f\x98\x80\n||");
    put(dir, "bom.jsonl", "\xef\xbb\xbf{\"text\": \"x\"}\n");
    expect(dir, "bom.jsonl", NULL, "x|");
    put(dir, "empty.jsonl", "");
    expect(dir, "empty.jsonl", NULL, "");
    static const char *const bad[][2] = {
        {"{\"text\": \"a\"}\n{\"text\": ", "ERROR: line 2: "},
        {"{\"text\": \"a\"}\n\n\n[1]", "ERROR: line 4: not a JSON object"},
        {"{\"texts\": \"a\"}", "ERROR: line 1: no field \"text\""},
        {"{\"text\": 7}", "ERROR: line 1: \"text\" is not a string"},
        {"{\"text\": \"a\"} x", "ERROR: line 1: "},
        {"{\"text\": \"\xff\"}", "ERROR: line 1: "},
        {"{\"text\": \"\\ud800\"}", "ERROR: line 1: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put(dir, "bad.jsonl", bad[i][0]);
        expect(dir, "bad.jsonl", NULL, bad[i][1]);
    }
    struct hl_record r = {.text = strdup("{\"text\": \"a\\u0000b\"}"), .name = "f", .line = 1, .json = true};
    r.len = (int64_t)strlen(r.text);
    CHECK_OK(hl_record_decode(&r, "text"));
    assert_int_equal(r.len, 3);
    assert_memory_equal(r.text, "a\0b", 3);
    free(r.text);
    temp_remove(dir);
}

/* Lines longer than any buffer, and blocks that end anywhere in them. */
static void test_long(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "long.jsonl");
    FILE *f = fopen(path, "wb");
    struct hl_source *s;
    struct hl_record r;
    int64_t done, all, seen = 0;
    (void)state;
    for (int64_t i = 0; i < 40; i++) {
        fprintf(f, "{\"text\": \"");
        for (int64_t k = 0; k < i * i * i * 20; k++) fputc('a' + (int)((i + k) % 26), f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
    CHECK_OK(hl_source_open(&s, (const char *const[]){path}, 1, NULL));
    for (;; seen++) {
        CHECK_OK(hl_source_next(s, &r));
        if (!r.text) break;
        assert_int_equal(r.line, seen + 1);
        CHECK_OK(hl_record_decode(&r, "text"));
        assert_int_equal(r.len, seen * seen * seen * 20);
        for (int64_t k = 0; k < r.len; k++)
            if (r.text[k] != 'a' + (int)((seen + k) % 26)) fail_msg("document %d differs", (int)seen);
        free(r.text);
    }
    assert_int_equal(seen, 40);
    hl_source_progress(s, &done, &all);
    assert_true(done == all && all > 0);
    hl_source_free(s);
    free(path);
    temp_remove(dir);
}

static void test_directories(void **state) {
    char *dir = temp_new(), *sub = hl_path_join(dir, "b"), *none = hl_path_join(dir, "none");
    char *link = hl_path_join(sub, "loop"), *got;
    (void)state;
    assert_int_equal(mkdir(sub, 0700), 0);
    assert_int_equal(mkdir(none, 0700), 0);
    put(dir, "c.txt", "3");
    put(dir, "B.txt", "0");
    put(dir, "a.txt", "1");
    put(dir, "README.md", "not a document");
    put(dir, ".hidden.txt", "no");
    put(sub, "x.jsonl", "{\"text\": \"2\"}");
    expect(dir, "", NULL, "0|1|2|3|");
    expect(dir, "none", NULL, "ERROR: no .txt or .jsonl files");
    expect(dir, "nowhere.txt", NULL, "ERROR: No such file");
    got = all_of((const char *const[]){sub, dir}, 2, NULL, "text"); /* in the order they are named */
    assert_string_equal(got, "2|0|1|2|3|");
    free(got);
    assert_int_equal(symlink("..", link), 0);
    got = all_of((const char *const[]){dir}, 1, NULL, "text");
    assert_non_null(strstr(got, "ERROR: "));
    free(got);
    free(sub);
    free(none);
    free(link);
    temp_remove(dir);
}

#ifdef HL_HAVE_LIBARCHIVE
/* {"text": "packed"} and a line of text, compressed by gzip, xz and zstd. */
#include "data/packed.h"

static void test_compressed(void **state) {
    char *dir = temp_new(), *twice;
    static const struct {
        const char *json, *text;
        const unsigned char *data;
        size_t size;
    } all[] = {{"a.jsonl.gz", "a.txt.gz", packed_gz, sizeof packed_gz},
               {"a.jsonl.xz", "a.txt.xz", packed_xz, sizeof packed_xz},
               {"a.jsonl.zst", "a.txt.zst", packed_zst, sizeof packed_zst}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        int64_t n = (int64_t)all[i].size;
        temp_write(dir, all[i].json, all[i].data, n);
        expect(dir, all[i].json, NULL, "packed|again|");
        temp_write(dir, all[i].text, all[i].data, n);
        expect(dir, all[i].text, NULL, "{\"text\": \"packed\"}\n{\"text\": \"again\"}\n|");
        temp_write(dir, "unnamed", all[i].data, n); /* the content says it */
        expect(dir, "unnamed", NULL, "packed|again|");
        twice = malloc(2 * all[i].size); /* two files put together are one */
        memcpy(twice, all[i].data, all[i].size);
        memcpy(twice + all[i].size, all[i].data, all[i].size);
        temp_write(dir, all[i].json, twice, 2 * n);
        expect(dir, all[i].json, NULL, "packed|again|packed|again|");
        free(twice);
        for (int64_t cut = n - 1; cut >= n / 2; cut -= 3) { /* truncated: never taken for whole */
            temp_write(dir, all[i].json, all[i].data, cut);
            expect(dir, all[i].json, NULL, "ERROR: ");
        }
        put(dir, all[i].json, "{\"text\": \"not packed\"}");
        expect(dir, all[i].json, NULL, "ERROR: data");
        put(dir, all[i].json, "");
        expect(dir, all[i].json, NULL, "ERROR: data");
    }
    temp_remove(dir);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),       cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_long),       cmocka_unit_test(test_directories),
#ifdef HL_HAVE_LIBARCHIVE
        cmocka_unit_test(test_compressed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
