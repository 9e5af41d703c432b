/* test_probe.c -- pass-key probes: the text spelled out again, as much filler as fits, and the Mistral
 * vectors. */
#define _GNU_SOURCE
#include "eval/probe.h"
#include "temp.h"

static const char head[] = "There is an important info hidden inside a lot of irrelevant text. Find it and "
                           "memorize them. I will quiz you "
                           "about the important information there.\n";
static const char line[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

static hola_tokenizer *bytes(void) {
    hola_tokenizer *t;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    return t;
}
static void add_lines(char *out, int64_t n) {
    for (; n > 0; n--) strcat(out, line);
}
/* With the tokenizer of bytes, ids[1..n) are the text. */
static bool reads(const struct hl_probe *p, const char *want) {
    if (p->ids[0] != 256 || p->n != 1 + (int64_t)strlen(want)) return false;
    for (int64_t i = 1; i < p->n; i++)
        if (p->ids[i] != (unsigned char)want[i - 1]) return false;
    return true;
}

static void test_pk(void **state) {
    hola_tokenizer *t = bytes();
    struct hl_probe p;
    char want[4096];
    (void)state;
    for (int depth = 0; depth < HL_PROBE_DEPTHS; depth++) {
        static const long long key[] = {78967, 57914, 35159, 20309, 56854};
        int64_t guess = 3;
        CHECK_OK(hl_probe_pk(&p, t, 2000, depth, 0, &guess));
        assert_int_equal(p.key, key[depth]);
        assert_int_equal(p.fillers, guess);
        assert_int_equal(p.place, (int64_t)(hl_probe_depth[depth] * (double)p.fillers + 0.5));
        snprintf(want, sizeof want, "%s", head);
        add_lines(want, p.place);
        sprintf(want + strlen(want), "The pass key is %lld. Remember it. %lld is the pass key.\n", key[depth],
                key[depth]);
        add_lines(want, p.fillers - p.place);
        sprintf(want + strlen(want), "What is the pass key? The pass key is %lld", key[depth]);
        assert_true(reads(&p, want));
        want[200] ^= 1;
        assert_false(reads(&p, want));
        assert_true(p.n <= 2000 && p.n + (int64_t)strlen(line) > 2000); /* not a line more */
        assert_int_equal(p.n - p.answer, 6);                            /* a space and five digits */
        for (int i = 0; i < 6; i++) assert_int_equal(p.digit[i], i > 0);
        hl_probe_free(&p);
    }
    CHECK_FAILS(hl_probe_pk(&p, t, 100, 0, 0, NULL), HOLA_EINVAL, "too short");
    CHECK_FAILS(hl_probe_pk(&p, t, 2000, 5, 0, NULL), HOLA_EINVAL, "depth 5");
    hola_tokenizer_free(t);
}

static void test_mk(void **state) {
    enum { K = 4, S = 1500 };
    hola_tokenizer *t = bytes();
    struct hl_probe p[K];
    char context[4096], want[8192];
    (void)state;
    CHECK_OK(hl_probe_mk(p, t, S, K, 0, NULL));
    const int64_t n = p[0].fillers;
    snprintf(context, sizeof context, "%s", head);
    for (int64_t i = 0, f = 0; i < n; i++) {
        for (; f < K && f * n / K == i; f++)
            sprintf(context + strlen(context), "The pass key for %s is %lld.\n", p[f].word, (long long)p[f].key);
        strcat(context, line);
    }
    int64_t most = 0;
    for (int q = 0; q < K; q++) {
        static const char *const word[K] = {"river", "castle", "silver", "winter"};
        static const int64_t value[K] = {27390, 99753, 77188, 83069};
        assert_string_equal(p[q].word, word[q]);
        assert_int_equal(p[q].key, value[q]);
        assert_int_equal(p[q].fillers, n);
        assert_int_equal(p[q].place, q * n / K);
        snprintf(want, sizeof want, "%sWhat is the pass key for %s? The pass key for %s is %lld", context, word[q],
                 word[q], (long long)value[q]);
        assert_true(reads(&p[q], want));
        if (p[q].n > most) most = p[q].n;
    }
    assert_true(most <= S && most + (int64_t)strlen(line) > S);
    for (int q = 0; q < K; q++) hl_probe_free(&p[q]);
    CHECK_FAILS(hl_probe_mk(p, t, S, 33, 0, NULL), HOLA_EINVAL, "33 keys");
    CHECK_FAILS(hl_probe_mk(p, t, 250, K, 0, NULL), HOLA_EINVAL, "too short");
    hola_tokenizer_free(t);
}

static void test_score(void **state) {
    hola_tokenizer *t = bytes();
    struct hl_probe p;
    struct hl_probe_tally tally = {.samples = 0};
    int32_t guess[6];
    (void)state;
    CHECK_OK(hl_probe_pk(&p, t, 1000, 0, 0, NULL));
    memcpy(guess, p.ids + p.answer, sizeof guess);
    hl_probe_score(&p, guess, &tally);
    guess[0]++; /* the space alone is wrong: all digits are right */
    hl_probe_score(&p, guess, &tally);
    guess[3]++;
    hl_probe_score(&p, guess, &tally);
    assert_int_equal(tally.samples, 3);
    assert_int_equal(tally.exact, 2);
    assert_int_equal(tally.digits, 15);
    assert_int_equal(tally.digits_right, 14);
    assert_int_equal(tally.tokens, 18);
    assert_int_equal(tally.tokens_right, 15);
    hl_probe_free(&p);
    hola_tokenizer_free(t);
}

static void test_mistral(void **state) {
    const char *base = getenv("HOLA_SHARED");
    char *model = hl_path_join(base ? base : "../shared", "data/tokenizer/tokenizer.model");
    static const int64_t key[5][2] = {{78967, 21342}, {57914, 10087}, {35159, 75463}, {20309, 77372}, {56854, 65708}};
    static const struct {
        int keys;
        int64_t fillers, tokens;
        const char *word;
        int64_t value;
    } mk[] = {{1, 17, 492, "yellow", 45847},
              {2, 17, 506, "snake", 11212},
              {4, 16, 509, "river", 27390},
              {8, 13, 490, "piano", 43185},
              {16, 9, 502, "lion", 73077}};
    hola_tokenizer *t;
    struct hl_probe p[16];
    int64_t guess = 0;
    (void)state;
    if (access(model, R_OK) != 0) {
        print_message("SKIP probe: %s is not there (set HOLA_SHARED)\n", model);
        free(model);
        skip();
    }
    CHECK_OK(hola_tokenizer_load(&t, model));
    for (int d = 0; d < 5; d++)
        for (int i = 0; i < 2; i++) {
            CHECK_OK(hl_probe_pk(p, t, 4096, d, i, &guess));
            assert_int_equal(p->key, key[d][i]);
            assert_int_equal(p->fillers, 160);
            assert_int_equal(p->n, 4075);
            assert_int_equal(p->place, 16 + 32 * d);
            for (int k = 0; k < 6; k++) assert_int_equal(p->digit[k], k > 0);
            hl_probe_free(p);
        }
    for (int i = 0; i < 5; i++) {
        int64_t most = 0;
        CHECK_OK(hl_probe_mk(p, t, 512, mk[i].keys, 0, NULL));
        assert_string_equal(p->word, mk[i].word);
        assert_int_equal(p->key, mk[i].value);
        assert_int_equal(p->fillers, mk[i].fillers);
        for (int q = 0; q < mk[i].keys; q++) {
            if (p[q].n > most) most = p[q].n;
            hl_probe_free(&p[q]);
        }
        assert_int_equal(most, mk[i].tokens);
    }
    hola_tokenizer_free(t);
    free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pk), cmocka_unit_test(test_mk),
                                       cmocka_unit_test(test_score), cmocka_unit_test(test_mistral)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
