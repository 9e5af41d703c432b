/* test_tokenizer.c -- the tokenizers against encoders that do the plainest thing: try all pairs, merge the best,
 * again. Vocabularies and texts are random, so that ties, odd splits and broken UTF-8 all come up. */
#define _GNU_SOURCE
#include "tokenizer/bpe_train.h"
#include "tokenizer_case.h"
#include "tokenizer_load.h"

/* ---- SentencePiece ---- */

static void check_round_trip(const hola_tokenizer *t, const char *text, int64_t len) {
    int32_t *ids;
    char *back;
    int64_t n, back_len;
    CHECK_OK(hola_tokenizer_encode(t, text, len, 1, &ids, &n));
    CHECK_OK(hola_tokenizer_decode(t, ids, n, &back, &back_len));
    assert_int_equal(back_len, len);
    if (len > 0) assert_memory_equal(back, text, (size_t)len);
    free(ids), free(back);
}

/* more than the scan for short words takes */
static int long_word(uint64_t *seed, char *out) {
    const int n = 100 + pick(seed, 200);
    for (int i = 0; i < n; i++) out[i] = (char)('a' + pick(seed, 3));
    return n;
}

static void test_spm(void **state) {
    static struct bytes file;
    char *dir = temp_new(), text[4096];
    int32_t want[4 * MOST];
    int wrong_seen = 0;
    (void)state;
    for (uint64_t k = 0; k < 24; k++) {
        struct model m = random_model(k, k % 3 != 0, k % 4 == 1);
        uint64_t seed = 1000 + k;
        m.prefix = k % 5 != 4;
        write_model(&m, &file);
        hola_tokenizer *t = load(dir, "tokenizer.model", file.data, file.n);
        assert_int_equal(hola_tokenizer_size(t), m.n);
        assert_int_equal(hola_tokenizer_bos(t), 1);
        assert_int_equal(hola_tokenizer_eos(t), 2);
        for (int i = 0; i < 400; i++) {
            int len = i % 20 ? random_text(&seed, text) : long_word(&seed, text),
                n = plain_encode(&m, text, len, false, want);
            if (!encodes_to(t, text, len, want, n))
                fail_msg("model %d, text %d: not the plain encoder's ids", (int)k, i);
            wrong_seen += !encodes_to(t, text, len, want, plain_encode(&m, text, len, true, want));
            bool lossless = m.bytes;
            for (int j = 0; j + 3 <= len; j++) lossless = lossless && memcmp(text + j, HL_META_TEXT, 3) != 0;
            if (lossless) check_round_trip(t, text, len);
        }
        hola_tokenizer_free(t);
    }
    assert_true(wrong_seen > 100); /* an encoder that takes the last of equals is caught */
    temp_remove(dir);
}

/* Spaces squeezed as SentencePiece does, and its decoding. */
static void test_spm_spaces(void **state) {
    static struct bytes file;
    struct model m = random_model(1, true, false);
    char *dir = temp_new(), *text;
    int32_t *a, *b;
    int64_t n, k, len;
    (void)state;
    m.squeeze = true;
    write_model(&m, &file);
    hola_tokenizer *t = load(dir, "x", file.data, file.n);
    CHECK_OK(hola_tokenizer_encode(t, "  a   b ", 8, 1, &a, &n));
    CHECK_OK(hola_tokenizer_encode(t, "a b", 3, 1, &b, &k));
    assert_int_equal(n, k);
    assert_memory_equal(a, b, (size_t)n * 4);
    free(a), free(b);
    assert_true(encodes_to(t, "   ", 3, NULL, 0));
    hola_tokenizer_free(t);
    m.squeeze = false;
    write_model(&m, &file);
    t = load(dir, "x", file.data, file.n);
    int32_t space = find_piece(&m, HL_META_TEXT, 3), letter = find_piece(&m, "a", 1);
    CHECK_OK(hola_tokenizer_decode(t, (int32_t[]){1, space, space, letter, 3 + 0xff, 2, 0, space}, 8, &text, &len));
    assert_int_equal(len, 9);
    assert_memory_equal(text, " a\xff \xe2\x81\x87  ", 9);
    free(text);
    CHECK_FAILS(hola_tokenizer_decode(t, &m.n, 1, &text, &len), HOLA_EINVAL, "not below the tokenizer's size");
    CHECK_FAILS(hola_tokenizer_decode(t, (int32_t[]){-1}, 1, &text, &len), HOLA_EINVAL, "id -1");
    hola_tokenizer_free(t);
    temp_remove(dir);
}

static void refuse(const char *dir, const char *data, int64_t n, hola_status s, const char *text) {
    hola_tokenizer *t;
    char *path = hl_path_join(dir, "x");
    temp_write(dir, "x", data, n);
    CHECK_FAILS(hola_tokenizer_load(&t, path), s, text);
    assert_null(t);
    free(path);
}

static void test_spm_refused(void **state) {
    static struct bytes file;
    struct model m = random_model(1, true, false), bad;
    char *dir = temp_new();
    hola_tokenizer *t;
    (void)state;
#define BAD(change, status, text) \
    (bad = m, change, write_model(&bad, &file), refuse(dir, file.data, file.n, status, text))
    BAD(bad.model_type = 1, HOLA_ENOTSUP, "model_type is 1");
    BAD(bad.charsmap = "abc", HOLA_ENOTSUP, "nmt_nfkc");
    BAD(bad.piece[0].type = HL_PIECE_CONTROL, HOLA_EFORMAT, "no unknown piece");
    BAD(bad.piece[9].type = HL_PIECE_NORMAL, HOLA_EFORMAT, "byte pieces are missing");
    BAD(bad.piece[300].len = 0, HOLA_EFORMAT, "piece 300");
    BAD(bad.piece[300].score = NAN, HOLA_EFORMAT, "piece 300");
    BAD(bad.piece[300].text[0] = '\xff', HOLA_EFORMAT, "piece 300");
    BAD(bad.piece[300] = bad.piece[301], HOLA_EFORMAT, "occurs twice");
    write_model(&m, &file);
    for (int64_t n = 1; n < file.n; n += 7) { /* cut off anywhere: refused or, after the last piece, whole enough */
        char *path = hl_path_join(dir, "x");
        temp_write(dir, "x", file.data, n);
        if (hola_tokenizer_load(&t, path) == HOLA_OK) hola_tokenizer_free(t);
        free(path);
    }
    refuse(dir, "\n", 1, HOLA_EFORMAT, "not a SentencePiece model");
    refuse(dir, "hello, world", 12, HOLA_EFORMAT, "not a SentencePiece model");
    CHECK_FAILS(hola_tokenizer_load(&t, "/nowhere"), HOLA_EIO, "/nowhere");
    remove(dir);
    temp_remove(dir);
    dir = temp_new();
    CHECK_FAILS(hola_tokenizer_load(&t, dir), HOLA_EIO, "neither tokenizer.model nor tokenizer.json");
    temp_remove(dir);
}

/* Texts of many blocks: the same ids with any number of threads, and no text takes long. */
static void test_threads(void **state) {
    enum { N = 700000 };
    static struct bytes file;
    static const char *const fills[] = {"a",   " ",   HL_META_TEXT, "\x80", "ab c\n", "\xe5\xa5\xbd",
                                        "[x]", "a a", "<0x41>"};
    struct model m = random_model(5, true, true);
    char *dir = temp_new(), *text = malloc(N);
    int32_t *one, *many;
    int64_t n, k;
    uint64_t seed = 3;
    (void)state;
    write_model(&m, &file);
    hola_tokenizer *t = load(dir, "x", file.data, file.n);
    for (int f = 0; f < 10; f++) {
        int64_t len = 0;
        while (len < N - 4096) {
            const char *s = f < 9 ? fills[f] : "";
            if (f == 9) len += random_text(&seed, text + len);
            memcpy(text + len, s, strlen(s)), len += (int64_t)strlen(s);
        }
        CHECK_OK(hola_tokenizer_encode(t, text, len, 1, &one, &n));
        CHECK_OK(hola_tokenizer_encode(t, text, len, 3, &many, &k));
        assert_int_equal(n, k);
        assert_memory_equal(one, many, (size_t)n * 4);
        free(one), free(many);
    }
    free(text);
    hola_tokenizer_free(t);
    temp_remove(dir);
}

static void test_bytes(void **state) {
    hola_tokenizer *t;
    char all[256];
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    assert_int_equal(hola_tokenizer_size(t), 258);
    assert_int_equal(hola_tokenizer_bos(t), 256);
    assert_int_equal(hola_tokenizer_eos(t), 257);
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    assert_true(encodes_to(t, all, 3, (int32_t[]){0, 1, 2}, 3));
    check_round_trip(t, all, 256);
    check_round_trip(t, all, 0);
    hola_tokenizer_free(t);
}

/* ---- training ---- */

/* Trains on words of a and b; the merges must be what counting all pairs anew each time gives. */
static void test_train(void **state) {
    char *dir = temp_new(), *path = hl_path_join(dir, "t.json"), text[3000];
    char word[600][32][16];
    int parts[600], words = 0;
    int64_t len = 0;
    uint64_t seed = 4;
    struct hl_bpe_trainer *t;
    hola_tokenizer *tok;
    (void)state;
    while (words < 500 && len < 2900) { /* every word with its space before it */
        parts[words] = 0;
        for (int k = 0, n = 2 + pick(&seed, 6); k < n; k++) {
            char c = k == 0 ? ' ' : (char)('a' + pick(&seed, 3));
            text[len++] = c;
            snprintf(word[words][parts[words]++], 16, "%c", c);
        }
        words++;
    }
    CHECK_OK(hl_bpe_trainer_new(&t, 2));
    CHECK_OK(hl_bpe_trainer_count(t, &(struct hl_train_text){text, len}, 1));
    CHECK_FAILS(hl_bpe_trainer_run(t, 257, 1, NULL, NULL), HOLA_EINVAL, "257");
    CHECK_OK(hl_bpe_trainer_run(t, 278, 1, NULL, NULL));
    assert_int_equal(hl_bpe_trainer_size(t), 278);
    CHECK_OK(hl_bpe_trainer_write(t, path));
    CHECK_OK(hola_tokenizer_load(&tok, path));
    assert_int_equal(hola_tokenizer_size(tok), 278);
    assert_int_equal(hola_tokenizer_bos(tok), 0);
    assert_int_equal(hola_tokenizer_eos(tok), 1);
    for (int id = 258; id < 278; id++) { /* each new token's pair was the most frequent of what then was there */
        char *got, best[32] = "";
        int64_t got_len;
        int most = 0, its = 0;
        CHECK_OK(hola_tokenizer_decode(tok, &(int32_t){id}, 1, &got, &got_len));
        for (int w = 0; w < words; w++)
            for (int i = 0; i + 1 < parts[w]; i++) {
                int n = 0;
                for (int v = 0; v < words; v++)
                    for (int j = 0; j + 1 < parts[v]; j++)
                        n += !strcmp(word[v][j], word[w][i]) && !strcmp(word[v][j + 1], word[w][i + 1]);
                char both[32];
                snprintf(both, sizeof both, "%s%s", word[w][i], word[w][i + 1]);
                if (n > its && strcmp(both, got) == 0) its = n, strcpy(best, word[w][i]);
                if (n > most) most = n;
            }
        assert_int_equal(its, most);
        for (int w = 0; w < words; w++)
            for (int i = 0; i + 1 < parts[w]; i++) {
                if (strcmp(word[w][i], best) != 0 || strcmp(word[w][i + 1], got + strlen(best)) != 0) continue;
                strcpy(word[w][i], got);
                for (int j = i + 1; j + 1 < parts[w]; j++) memmove(word[w][j], word[w][j + 1], 16);
                parts[w]--;
            }
        free(got);
    }
    int32_t *ids;
    int64_t n, left = 0;
    for (int w = 0; w < words; w++) left += parts[w];
    CHECK_OK(hola_tokenizer_encode(tok, text, len, 1, &ids, &n));
    assert_int_equal(n, left); /* encoding repeats the merges */
    free(ids);
    check_round_trip(tok, text, len);
    hola_tokenizer_free(tok);
    hl_bpe_trainer_free(t);
    free(path);
    temp_remove(dir);
}

/* ---- a real one ---- */

static char *shared(const char *name) {
    const char *dir = getenv("HOLA_SHARED");
    return hl_path_join(dir ? dir : "../shared", name);
}

static void test_mistral(void **state) {
    char *model = shared("data/tokenizer/tokenizer.model"), *wiki = shared("data/eval/wikitext/wiki.test.raw");
    hola_tokenizer *t;
    struct hl_map m;
    (void)state;
    if (access(model, R_OK) != 0 || access(wiki, R_OK) != 0) {
        print_message("SKIP tokenizer: %s is not there (set HOLA_SHARED)\n", model);
        free(model), free(wiki);
        skip();
    }
    CHECK_OK(hola_tokenizer_load(&t, model));
    assert_int_equal(hola_tokenizer_size(t), 32000);
    assert_true(encodes_to(t, "Hello  world " HL_META_TEXT "x", 17, (int32_t[]){22557, 28705, 1526, 28705, 1318}, 5));
    CHECK_OK(hl_map_open(&m, wiki));
    int32_t *ids;
    int64_t n;
    CHECK_OK(hola_tokenizer_encode(t, m.data, m.size, 0, &ids, &n));
    assert_int_equal(n, 328879);
    free(ids);
    check_round_trip(t, m.data, m.size);
    hl_map_close(&m);
    hola_tokenizer_free(t);
    free(model), free(wiki);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm),     cmocka_unit_test(test_spm_spaces), cmocka_unit_test(test_spm_refused),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_bytes),      cmocka_unit_test(test_train),
        cmocka_unit_test(test_mistral),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
