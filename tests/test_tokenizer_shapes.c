/* test_tokenizer_shapes.c -- tokenizer.json in the shapes that language models carry: the ids that Hugging Face's
 * tokenizers gave to hard texts, written down by tools/make_tokenizers.py. */
#define _GNU_SOURCE
#include "core/json.h"
#include "tokenizer_load.h"
#include <string.h>

#define DIR "tests/data/tokenizers"

static json_t *read_json(const char *name) {
    char path[256];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s.json", DIR, name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root) fail_msg("%s:%d: %s", path, e.line, e.text);
    return root;
}
static hola_tokenizer *open_shape(const char *name) {
    char path[256];
    hola_tokenizer *t;
    snprintf(path, sizeof path, "%s/%s.json", DIR, name);
    CHECK_OK(hola_tokenizer_load(&t, path));
    return t;
}

/* Ids written as "1 2 3". */
static int64_t parse_ids(const char *text, int32_t *ids) {
    int64_t n = 0;
    for (char *end; *text; text = end) ids[n++] = (int32_t)strtol(text, &end, 10);
    return n;
}

/* How many texts have other ids; with `name`, the first such one fails the test. */
static int differences(const hola_tokenizer *t, const json_t *texts, const json_t *ids, const char *name) {
    int32_t want[4096];
    int n = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        int64_t k = parse_ids(json_string_value(json_array_get(ids, i)), want);
        bool same = encodes_to(t, json_string_value(text), (int64_t)json_string_length(text), want, k);
        if (!same && name) fail_msg("%s: text %d: not the original's ids", name, (int)i);
        n += !same;
    }
    return n;
}

static void check_decoded(const hola_tokenizer *t, const json_t *texts, const json_t *shape, const char *name) {
    int32_t ids[4096];
    for (size_t i = 0; i < json_array_size(texts); i++) {
        char key[16], *text;
        int64_t len, n = parse_ids(json_string_value(json_array_get(json_object_get(shape, "ids"), i)), ids);
        snprintf(key, sizeof key, "%d", (int)i);
        const json_t *other = json_object_get(json_object_get(shape, "decoded"), key);
        const json_t *want = other ? other : json_array_get(texts, i);
        if (json_is_null(want)) continue;
        CHECK_OK(hola_tokenizer_decode(t, ids, n, &text, &len));
        if (len != (int64_t)json_string_length(want) || memcmp(text, json_string_value(want), (size_t)len) != 0)
            fail_msg("%s: text %d decodes to \"%s\"", name, (int)i, text);
        free(text);
    }
}

static int32_t only(const json_t *ids) {
    return json_array_size(ids) ? (int32_t)json_integer_value(json_array_get(ids, 0)) : -1;
}

static void shapes(void **state) {
    json_t *expected = read_json("expected"), *texts = json_object_get(expected, "texts"), *shape;
    const char *name;
    int n = 0;
    (void)state;
    json_object_foreach(json_object_get(expected, "shapes"), name, shape) {
        hola_tokenizer *t = open_shape(name);
        differences(t, texts, json_object_get(shape, "ids"), name);
        check_decoded(t, texts, shape, name);
        if (only(json_object_get(shape, "bos")) >= 0)
            assert_int_equal(hola_tokenizer_bos(t), only(json_object_get(shape, "bos")));
        if (only(json_object_get(shape, "eos")) >= 0)
            assert_int_equal(hola_tokenizer_eos(t), only(json_object_get(shape, "eos")));
        hola_tokenizer_free(t);
        n++;
    }
    assert_true(n >= 19 && json_array_size(texts) > 60);
    json_decref(expected);
}

/* With the normalizer or the pre_tokenizer left out, other ids must come out: the texts do tell. */
static void wrong_ones_are_caught(void **state) {
    static const char *const cases[][3] = {
        {"gpt_neox", "normalizer", "null"},
        {"qwen2", "normalizer", "null"},
        {"nfkc", "normalizer", "{\"type\": \"NFC\"}"},
        {"accents", "normalizer", "{\"type\": \"NFC\"}"},
        {"words", "normalizer", "{\"type\": \"NFC\"}"},
        {"smollm", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"falcon", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"llama3", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"o200k", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"cl100k", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"},
        {"deepseek_v2", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"deepseek_v3", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"bloom", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"},
        {"gpt2", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"},
    };
    json_t *expected = read_json("expected"), *texts = json_object_get(expected, "texts");
    char *dir = temp_new();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = read_json(cases[i][0]),
               *ids = json_object_get(json_object_get(json_object_get(expected, "shapes"), cases[i][0]), "ids");
        json_object_set_new(root, cases[i][1], json_loads(cases[i][2], JSON_DECODE_ANY, NULL));
        char *text = json_dumps(root, 0);
        hola_tokenizer *t = load(dir, "x.json", text, (int64_t)strlen(text));
        if (differences(t, texts, ids, NULL) == 0)
            fail_msg("%s: the same ids without its %s", cases[i][0], cases[i][1]);
        hola_tokenizer_free(t);
        free(text);
        json_decref(root);
    }
    json_decref(expected);
    temp_remove(dir);
}

/* Bytes that are not UTF-8 stay what they are, through patterns and NFC. */
static void any_bytes(void **state) {
    static const char *const names[] = {"gpt2",   "gpt_neox",    "qwen2",       "llama3", "cl100k", "o200k",
                                        "tekken", "deepseek_v2", "deepseek_v3", "smollm", "falcon", "bloom"};
    static const char some[] = "a 1'\n.\x80\xff\xc3\xe4\xbd\xf0\x9f";
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        hola_tokenizer *t = open_shape(names[k]);
        for (uint64_t round = 0; round < 500; round++) {
            char text[24], *back;
            int32_t *ids;
            int64_t n, len;
            for (uint64_t i = 0; i < 24; i++) text[i] = some[check_mix(round * 99 + i) % (sizeof some - 1)];
            CHECK_OK(hola_tokenizer_encode(t, text, 24, 1, &ids, &n));
            CHECK_OK(hola_tokenizer_decode(t, ids, n, &back, &len));
            if (len != 24 || memcmp(back, text, 24) != 0) fail_msg("%s: other bytes in round %d", names[k], (int)round);
            free(ids), free(back);
        }
        hola_tokenizer_free(t);
    }
}

/* Long texts are cut into blocks; the ids must be those of the text in one piece. */
static void blocks(void **state) {
    json_t *expected = read_json("expected"), *texts = json_object_get(expected, "texts"), *shape;
    struct hl_text all = {0};
    const char *name;
    int cut = 0;
    (void)state;
    for (uint64_t i = 0; all.n < 400000; i++) {
        const json_t *text = json_array_get(texts, check_mix(i) % json_array_size(texts));
        hl_text_put(&all, json_string_value(text), (int64_t)json_string_length(text));
        if (i % 3 == 0) hl_text_puts(&all, " ");
    }
    CHECK_OK(hl_text_status(&all));
    json_object_foreach(json_object_get(expected, "shapes"), name, shape) {
        int32_t *one, *many;
        int64_t n, k;
        hola_tokenizer *t = open_shape(name);
        CHECK_OK(hola_tokenizer_encode(t, all.data, all.n, 3, &many, &k));
        if (t->bpe.cuts) {
            cut += t->bpe.cuts->cut_after['a' / 64] >> 'a' % 64 & 1;
            memset(t->bpe.cuts->cut_after, 0, sizeof t->bpe.cuts->cut_after);
        }
        CHECK_OK(hola_tokenizer_encode(t, all.data, all.n, 1, &one, &n));
        if (n != k || memcmp(one, many, (size_t)n * sizeof *one) != 0) fail_msg("%s: other ids in blocks", name);
        free(one), free(many);
        hola_tokenizer_free(t);
    }
    assert_true(cut >= 10); /* most patterns allow it */
    hl_text_free(&all);
    json_decref(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(wrong_ones_are_caught),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
