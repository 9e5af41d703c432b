/* test_tokenizer_json.c -- tokenizer.json: what its parts mean, and what is refused. */
#define _GNU_SOURCE
#include "tokenizer_load.h"

static const char *const gpt2_json =
    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": 0, "
    "\"content\": \"<s>\", "
    "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true},"
    "{\"id\": 9, \"content\": \"[y]\", \"special\": false, \"normalized\": false, \"lstrip\": true}],"
    "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
    "\"use_regex\": true}, "
    "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
    "\"unk_token\": null, "
    "\"vocab\": {\"<s>\": 0, \"a\": 1, \"b\": 2, \"\xc4\xa0\": 3, \"\xc4\xa0"
    "a\": 4, \"ab\": 5, \"\xc3\xa9\": 6, \"aba\": 7, "
    "\"\xc4\xa0"
    "ab\": 8}, \"merges\": [\"a b\", [\"\xc4\xa0\", \"a\"], \"ab a\", \"\xc4\xa0"
    "a b\", [\"\xc4\xa0\", \"ab\"]]}}";

/* The text with its first `from` replaced; malloced. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(at), assert_non_null(out);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), to);
    strcat(out, at + strlen(from));
    return out;
}

static void test_json(void **state) {
    char *dir = temp_new(), *text;
    int64_t len;
    (void)state;
    hola_tokenizer *t = load(dir, "tokenizer.json", gpt2_json, (int64_t)strlen(gpt2_json));
    assert_int_equal(hola_tokenizer_size(t), 10);
    assert_int_equal(hola_tokenizer_bos(t), 0);
    /* "ab" goes first, then "ab" "a" before " " "ab"; "[y]" takes the spaces before it; z, without a token, goes */
    assert_true(encodes_to(t, "ab ab aba\xe9z", 11, (int32_t[]){5, 8, 3, 7, 6}, 5));
    assert_true(encodes_to(t, "a<s>b  [y]a", 11, (int32_t[]){1, 0, 2, 9, 1}, 5));
    assert_true(encodes_to(t, "", 0, NULL, 0));
    CHECK_OK(hola_tokenizer_decode(t, (int32_t[]){0, 5, 8, 6, 9}, 5, &text, &len));
    assert_int_equal(len, 9);
    assert_memory_equal(text, "ab ab\xe9[y]", 9);
    free(text);
    hola_tokenizer_free(t);
    temp_remove(dir);
}

/* Of added tokens the longest; one that must be a word is none inside others. */
static void test_added(void **state) {
    char *dir = temp_new(),
         *json = replaced(gpt2_json, "\"lstrip\": true}",
                          "\"lstrip\": true}, {\"id\": 10, \"content\": \"[y]b\", \"normalized\": false}, "
                          "{\"id\": 11, \"content\": \"ba\", \"normalized\": false, \"single_word\": true}");
    (void)state;
    hola_tokenizer *t = load(dir, "tokenizer.json", json, (int64_t)strlen(json));
    assert_true(encodes_to(t, "a[y]ba[y]a", 10, (int32_t[]){1, 10, 1, 9, 1}, 5));
    assert_true(encodes_to(t, "ba bab bba", 10, (int32_t[]){11, 3, 2, 5, 3, 2, 2, 1}, 8));
    hola_tokenizer_free(t);
    free(json);
    temp_remove(dir);
}

/* What has no token: its bytes' tokens if all have one, else the unknown token, which may stand for many. */
static void test_fallback(void **state) {
    const char *json = "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": "
                       "\"Fuse\"}]}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": false, "
                       "\"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, \"a\": 1, \"<0xC3>\": 2, "
                       "\"<0xA9>\": 3, \"<0xB6>\": 4}, \"merges\": []}}";
    const char *text = "a\xc3\xa9\xc4\xb6xya\xc4\xb6"; /* 0xC4 has none */
    char *dir = temp_new(), *fused = replaced(json, "\"fuse_unk\": false", "\"fuse_unk\": true");
    (void)state;
    hola_tokenizer *t = load(dir, "tokenizer.json", json, (int64_t)strlen(json));
    assert_true(encodes_to(t, text, 10, (int32_t[]){1, 2, 3, 0, 0, 0, 1, 0}, 8));
    hola_tokenizer_free(t);
    t = load(dir, "tokenizer.json", fused, (int64_t)strlen(fused));
    assert_true(encodes_to(t, text, 10, (int32_t[]){1, 2, 3, 0, 1, 0}, 6));
    hola_tokenizer_free(t);
    free(fused);
    temp_remove(dir);
}

/* A pair whose neighbour was merged away must not be merged in the old pair's turn: a b goes before bc d, but when
 * bc is there a b is not. Words of both lengths, as each has its own way. */
static void test_stale_pair(void **state) {
    const char *json = "{\"decoder\": {\"type\": \"Fuse\"}, "
                       "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"vocab\": {\"<unk>\": 0, "
                       "\"a\": 1, \"b\": 2, \"c\": 3, \"d\": 4, \"x\": 5, \"bc\": 6, \"ab\": 7, \"bcd\": 8, "
                       "\"abc\": 9, \"xx\": 10, \"xa\": 11}, "
                       "\"merges\": [\"b c\", \"a b\", \"bc d\", \"a bc\", \"x x\", \"x a\"]}}";
    char *dir = temp_new(), text[200];
    int32_t want[200];
    (void)state;
    hola_tokenizer *t = load(dir, "tokenizer.json", json, (int64_t)strlen(json));
    for (int before = 0; before < 150; before += 30) {
        for (int i = 0; i < before; i++) text[i] = 'x', want[i / 2] = 10;
        memcpy(text + before, "abcd", 4);
        want[before / 2] = 1, want[before / 2 + 1] = 8;
        assert_true(encodes_to(t, text, before + 4, want, before / 2 + 2));
    }
    hola_tokenizer_free(t);
    temp_remove(dir);
}

static void test_json_refused(void **state) {
    static const char *const cases[][3] = {
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Nmt\"}", "normalizer: type \"Nmt\""},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Replace\", \"content\": \"\"}", "Replace.pattern"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Prepend\", \"prepend\": 1}", "Prepend.prepend"},
        {"\"version\"", "\"mystery\": 1, \"version\"", "\"mystery\" is not a field"},
        {"\"truncation\": null", "\"truncation\": {}", "truncation"},
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"X\"}", "post_processor: type \"X\""},
        {"{\"type\": \"ByteLevel\", \"add", "{\"type\": \"Bert\", \"add", "pre_tokenizer: type \"Bert\""},
        {"{\"type\": \"ByteLevel\"}", "null", "decoder"},
        {"{\"type\": \"ByteLevel\"}", "{\"type\": \"WordPiece\"}", "decoder: type \"WordPiece\""},
        {"\"unk_token\": null", "\"unk_token\": \"q\"", "model.unk_token"},
        {"\"unk_token\"", "\"dropout\": 0.5, \"unk_token\"", "model.dropout"},
        {"\"a\": 1", "\"a\": -1", "model.vocab"},
        {"\"a\": 1", "\"a\": 2", "model.vocab"},
        {"\"ab a\"", "\"ab q\"", "model.merges[2]"},
        {"\"ab a\"", "\"ab\"", "model.merges"},
        {"\"id\": 9", "\"id\": 8", "added_tokens"},
        {"\"ByteLevel\", \"add", "\"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"(?<=a)b\"}, \"add",
         "Split.pattern: not a known group, at character 1: \"(?<=a)b\""},
        {"\"ByteLevel\", \"add", "\"Split\", \"behavior\": \"Odd\", \"pattern\": {\"Regex\": \".\"}, \"add",
         "Split.behavior"},
        {"{\"version\"", "{{\"version\"", "line 1"},
    };
    char *dir = temp_new();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = replaced(gpt2_json, cases[i][0], cases[i][1]), *path = hl_path_join(dir, "x.json");
        hola_tokenizer *t;
        temp_write(dir, "x.json", text, (int64_t)strlen(text));
        hola_status s = hola_tokenizer_load(&t, path);
        if (s == HOLA_OK || !strstr(hola_last_error(), cases[i][2]))
            fail_msg("%s: \"%s\", expected \"...%s...\"", cases[i][1], s ? hola_last_error() : "loaded", cases[i][2]);
        free(text), free(path);
    }
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),       cmocka_unit_test(test_added),        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_stale_pair), cmocka_unit_test(test_json_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
