/* test_eval.c -- what benchmarks are made of: Python's strings, WikiText's pages and detokeniser, HellaSwag's
 * cleaning, windows, the split of context and continuation, and, where the data is beside the project
 * (HOLA_SHARED, default ../shared), the published totals and hashes. */
#define _GNU_SOURCE
#include "core/sha256.h"
#include "eval/prompt.h"
#include "eval/tasks.h"
#include "temp.h"

#define SPAN(text) ((struct hl_span){text, sizeof(text) - 1})

static void check_text(struct hl_text *got, const char *want, const char *what) {
    if (!hl_span_equal(hl_span_text(got), hl_span_of(want)))
        fail_msg("%s: \"%.*s\", not \"%s\"", what, (int)got->n, got->data, want);
    free(got->data);
    *got = (struct hl_text){0};
}
static void check_span(struct hl_span got, const char *want) {
    if (!hl_span_equal(got, hl_span_of(want))) fail_msg("\"%.*s\", not \"%s\"", (int)got.n, got.p, want);
}

/* ---- strings ---- */

static void test_strip(void **state) {
    (void)state;
    check_span(hl_py_strip(SPAN(" \t\n\x1c a b\xc2\xa0\xe3\x80\x80\x1f")), "a b"); /* U+00A0, U+3000, separators */
    check_span(hl_py_strip(SPAN("\xef\xbb\xbf a ")), "\xef\xbb\xbf a");            /* U+FEFF is no white space */
    check_span(hl_py_strip(SPAN("a\xe2\x80\x8b")), "a\xe2\x80\x8b");               /* nor is U+200B */
    check_span(hl_py_rstrip(SPAN(" a\xe2\x80\xaf")), " a");
    check_span(hl_py_lstrip(SPAN(" a ")), "a ");
    check_span(hl_py_strip(SPAN(" \n ")), "");
    check_span(hl_py_rstrip(SPAN("a \xff")), "a \xff");
    assert_int_equal(hl_py_len(SPAN("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")), 4);
    assert_int_equal(hl_py_words(SPAN(" a  b\nc ")), 5); /* empty ones at both ends count */
    assert_int_equal(hl_py_words(SPAN("a\xc2\xa0z")), 2);
    assert_int_equal(hl_py_words(SPAN("")), 1);
    assert_int_equal(hl_py_find(SPAN("abcabd"), "abd"), 3);
    assert_int_equal(hl_py_find(SPAN("ab"), "abc"), -1);
}

static void test_case(void **state) {
    static const struct {
        const char *in, *want;
    } cases[] = {{"John Smith in NYC", "John smith in nyc"},
                 {"he", "He"},
                 {"", ""},
                 {"\xc3\x89T\xc3\x89", "\xc3\x89t\xc3\xa9"},
                 {"\xc3\x9f"
                  "A",
                  "Ssa"},                     /* the sharp s has no capital */
                 {"\xc7\x86X", "\xc7\x85x"},  /* a letter with a title case of its own */
                 {"x\xc4\xb0", "Xi\xcc\x87"}, /* I with a dot */
                 {"a\xd0\x94\xf0\x90\x90\x80", "A\xd0\xb4\xf0\x90\x90\xa8"}};
    struct hl_text t = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hl_py_capitalize(&t, hl_span_of(cases[i].in)));
        check_text(&t, cases[i].want, "capitalize");
    }
    assert_true(hl_py_contains(SPAN("the ANSWER is"), SPAN("answer")));
    assert_true(hl_py_contains(SPAN("x"), SPAN("")));
    assert_true(hl_py_contains(SPAN("\xc3\x89t"), SPAN("\xc3\xa9T")));
    assert_true(hl_py_contains(SPAN("\xe2\x84\xaa"), SPAN("k"))); /* the Kelvin sign is a K */
    assert_true(hl_py_contains(SPAN("\xc5\xbf"), SPAN("S")));     /* and the long s an s */
    assert_false(hl_py_contains(SPAN("answe"), SPAN("answer")));
    assert_false(hl_py_contains(SPAN("a.c"), SPAN("abc")));
    assert_false(hl_py_contains(SPAN(""), SPAN("a")));
}

static void test_sha256(void **state) {
    struct hl_sha256 s;
    char hex[65];
    (void)state;
    hl_sha256_begin(&s);
    hl_sha256_end(&s, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (int piece = 1; piece < 130; piece += 43) { /* a million letters a, in any pieces */
        char a[130];
        memset(a, 'a', sizeof a);
        hl_sha256_begin(&s);
        for (int n = 0; n < 1000000; n += piece) hl_sha256_add(&s, a, n + piece < 1000000 ? piece : 1000000 - n);
        hl_sha256_end(&s, hex);
        assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

/* ---- texts ---- */

static void test_detokenize(void **state) {
    static const char *const cases[][2] = {
        {" A ( b c ) d [ e ] { f } \n", " A (b c) d [e] {f}\n"},
        {" ( ) ( a ( b ) c ) \n", " () (a ( b) c )\n"},
        {" the dogs ' tails and cats ' ears , it 's 5 @.@ 2 @-@ year @,@ old \n",
         " the dogs'tails and cats' ears, it's 5.2-year,old\n"},
        {" = = = Early life = = = \n \n Born in 1950 : x ; y ! z ? w . v \n",
         " === Early life ===\n\nBorn in 1950: x; y! z? w. v\n"},
        {" 25 \xc2\xb0 C , N = 3 and N times \n", " 25\xc2\xb0"
                                                  "C, 1 = 3 and 1 times\n"},
        {" don 't ' quoted ' text 's end \n", " don 't' quoted 'text's end\n"},
        {"a/' 5/b", "a/'[0-9]/b"},
    };
    struct hl_text t = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hl_wikitext_detokenize(hl_span_of(cases[i][0]), &t));
        check_text(&t, cases[i][1], cases[i][0]);
    }
}

static void test_pages(void **state) {
    static const char file[] = " \n = First = \n \n Text . \n = = Part = = \n more \n = Second = \n \n end \n";
    const struct hl_eval_opts o = {.limit = 0}, one = {.limit = 1};
    struct hl_set s = {0};
    (void)state;
    CHECK_OK(hl_wikitext_pages(SPAN(file), &o, &s));
    assert_int_equal(s.docs, 2);
    check_span(s.request[0].text, " = First =\n\nText.\n== Part ==\nmore ");
    check_span(s.request[1].text, " = Second =\n\nend\n");
    assert_int_equal(s.doc[0].bytes, strlen(" = First = \n \n Text . \n = = Part = = \n more "));
    assert_int_equal(s.doc[0].words, 13);
    assert_int_equal(s.doc[1].bytes, strlen(" = Second = \n \n end \n"));
    hl_set_free(&s);
    CHECK_OK(hl_wikitext_pages(SPAN(file), &one, &s));
    assert_int_equal(s.docs, 1);
    hl_set_free(&s);
}

static void test_hellaswag(void **state) {
    struct hl_text t = {0};
    (void)state;
    CHECK_OK(hl_hellaswag_clean(SPAN(" [substeps] Do this   now [step] Then  that. "), &t));
    check_text(&t, " Do this  now Then that.", "clean");
    CHECK_OK(hl_hellaswag_clean(SPAN("How to [title] x [a\n] [b]y"), &t));
    check_text(&t, "How to. x [a\n] y", "clean");
}

/* ---- tokens ---- */

static struct hl_eval_opts byte_opts(enum hl_bos bos, int64_t max_length) {
    hola_tokenizer *t;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    return (struct hl_eval_opts){.tokenizer = t, .bos = bos, .max_length = max_length};
}
static void byte_free(struct hl_eval_opts *o) { hola_tokenizer_free((hola_tokenizer *)o->tokenizer); }

static void check_ids(const int32_t *got, const char *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = want[i] == '^' ? 256 : (unsigned char)want[i]; /* ^ stands for BOS */
        if (got[i] != id) fail_msg("token %d is %d, not %d", (int)i, (int)got[i], (int)id);
    }
}
/* item i feeds and asks for these */
static void check_item(const struct hl_items *p, int64_t i, const char *fed, const char *asked) {
    const int64_t n = (int64_t)strlen(fed), k = (int64_t)strlen(asked);
    assert_true(i < p->n);
    assert_int_equal(p->item[i].n, n);
    assert_int_equal(p->item[i].n - p->item[i].prefix, k);
    check_ids(p->item[i].ids, fed, n);
    check_ids(p->item[i].next + n - k, asked, k);
}

static void test_windows(void **state) {
    struct hl_eval_opts o = byte_opts(HL_BOS_NEVER, 4);
    struct hl_request r = {.kind = HL_ASK_ROLLING, .text = SPAN("0123456789")};
    struct hl_items p = {0};
    (void)state;
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    assert_int_equal(p.n, 3);
    check_item(&p, 0, "^012", "0123");
    check_item(&p, 1, "3456", "4567");
    check_item(&p, 2, "5678", "89");
    hl_items_free(&p);
    o.bos = HL_BOS_ALWAYS; /* one BOS, as never */
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    check_item(&p, 0, "^012", "0123");
    hl_items_free(&p);
    o.bos = HL_BOS_DOUBLE; /* the second is asked for */
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    check_item(&p, 0, "^^01", "^012");
    check_item(&p, 2, "5678", "789");
    hl_items_free(&p);
    char *text = malloc(5773);
    memset(text, 'x', 5773);
    o.max_length = 2048, o.bos = HL_BOS_NEVER, r.text = (struct hl_span){text, 5773};
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    assert_int_equal(p.n, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(p.item[i].n, 2048);
    assert_int_equal(p.item[2].prefix, 2048 - 1677);
    hl_items_free(&p);
    r.text.n = 0; /* nothing to predict */
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    assert_int_equal(p.n, 0);
    hl_items_free(&p);
    free(text);
    byte_free(&o);
}

static void test_pairs(void **state) {
    struct hl_eval_opts o = byte_opts(HL_BOS_NEVER, 100);
    struct hl_request r = {.kind = HL_ASK_LOGLIKELIHOOD, .context = SPAN("ab:"), .text = SPAN(" cd")};
    struct hl_items p = {0};
    (void)state;
    CHECK_OK(hl_items_add(&p, &o, &r, 0));
    check_item(&p, 0, "ab: c", " cd");
    r.context = SPAN("ab \xc2\xa0"), r.text = SPAN("c"); /* white space goes over, of any kind */
    CHECK_OK(hl_items_add(&p, &o, &r, 1));
    check_item(&p, 1, "ab \xc2\xa0",
               " \xc2\xa0"
               "c");
    o.bos = HL_BOS_DOUBLE;
    CHECK_OK(hl_items_add(&p, &o, &r, 2));
    check_item(&p, 2, "^ab \xc2\xa0",
               " \xc2\xa0"
               "c");
    r.context = SPAN(""), r.text = SPAN("xyz"); /* no context: BOS is it */
    CHECK_OK(hl_items_add(&p, &o, &r, 3));
    check_item(&p, 3, "^xy", "xyz");
    assert_false(p.cut);
    o.max_length = 4, r.context = SPAN("abcdef"), r.text = SPAN("gh"); /* cut from the left */
    CHECK_OK(hl_items_add(&p, &o, &r, 4));
    check_item(&p, 4, "defg", "gh");
    assert_true(p.cut);
    o.max_length = 2, r.text = SPAN("ghi");
    CHECK_FAILS(hl_items_add(&p, &o, &r, 5), HOLA_EINVAL, "continuation of 3 tokens");
    r.text = SPAN("");
    CHECK_FAILS(hl_items_add(&p, &o, &r, 5), HOLA_EINVAL, "no tokens");
    hl_items_free(&p);
    byte_free(&o);
}

static void test_prompts(void **state) {
    struct hl_eval_opts o = byte_opts(HL_BOS_DOUBLE, 10);
    struct hl_request r = {.kind = HL_ASK_GENERATE, .context = SPAN("abcdefgh"), .max_new = 4};
    struct hl_ids ids = {0};
    bool cut = false;
    (void)state;
    CHECK_OK(hl_prompt_ids(&o, &r, &ids, &cut));
    assert_true(cut && ids.n == 6);
    check_ids(ids.data, "cdefgh", 6); /* BOS is cut off, too */
    ids.n = 0, cut = false, r.max_new = 1;
    CHECK_OK(hl_prompt_ids(&o, &r, &ids, &cut));
    check_ids(ids.data, "^abcdefgh", 9);
    assert_true(!cut && ids.n == 9);
    ids.n = 0, r.max_new = 4, r.whole = true;
    CHECK_OK(hl_prompt_ids(&o, &r, &ids, &cut));
    assert_true(!cut && ids.n == 9);
    o.truncate = true;
    ids.n = 0, r.max_new = 10;
    CHECK_FAILS(hl_prompt_ids(&o, &r, &ids, &cut), HOLA_EINVAL, "no room for a prompt");
    free(ids.data);
    byte_free(&o);
}

static void test_profiles(void **state) {
    (void)state;
    assert_int_equal(hl_eval_bos(HL_BOS_AUTO, HL_PROFILE_HEAD, true), HL_BOS_DOUBLE);
    assert_int_equal(hl_eval_bos(HL_BOS_AUTO, HL_PROFILE_HEAD, false), HL_BOS_NEVER);
    assert_int_equal(hl_eval_bos(HL_BOS_AUTO, HL_PROFILE_V0_4_12, true), HL_BOS_DOUBLE);
    assert_int_equal(hl_eval_bos(HL_BOS_AUTO, HL_PROFILE_V0_4_8, true), HL_BOS_NEVER);
    assert_int_equal(hl_eval_bos(HL_BOS_ALWAYS, HL_PROFILE_V0_4_8, true), HL_BOS_ALWAYS);
    assert_int_equal(hl_eval_retrieval(HL_RETRIEVAL_AUTO, HL_PROFILE_V0_4_12), HL_RETRIEVAL_V0);
    assert_int_equal(hl_eval_retrieval(HL_RETRIEVAL_AUTO, HL_PROFILE_BASED), HL_RETRIEVAL_V1);
}

/* ---- the real data ---- */

static char *shared(const char *name) {
    const char *dir = getenv("HOLA_SHARED");
    return hl_path_join(dir ? dir : "../shared", name);
}

static void test_wikitext_data(void **state) {
    char *data = shared("data/eval"), *tok = shared("data/tokenizer"), hex[65];
    struct hl_eval_opts o = {.data = data, .max_length = 2048, .bos = HL_BOS_NEVER};
    struct hl_set s;
    struct hl_sha256 text, all;
    hola_tokenizer *t = NULL;
    struct hl_items items = {0};
    int64_t words = 0, bytes = 0, tokens = 0;
    (void)state;
    if (hl_task_make(hl_task_find("wikitext"), &o, &s) != HOLA_OK || hola_tokenizer_load(&t, tok) != HOLA_OK) {
        print_message("SKIP wikitext: %s (set HOLA_SHARED)\n", hola_last_error());
        hl_set_free(&s);
        free(data), free(tok);
        skip();
    }
    o.tokenizer = t;
    hl_sha256_begin(&text), hl_sha256_begin(&all);
    assert_int_equal(s.docs, 62);
    for (int64_t i = 0; i < s.docs; i++) {
        words += s.doc[i].words, bytes += s.doc[i].bytes;
        if (i > 0) hl_sha256_add(&text, "", 1);
        hl_sha256_add(&text, s.request[i].text.p, s.request[i].text.n);
        struct hl_ids ids = {0};
        CHECK_OK(hl_prompt_encode(&o, s.request[i].text, true, &ids));
        hl_sha256_add(&all, ids.data, ids.n * 4);
        tokens += ids.n;
        free(ids.data);
        CHECK_OK(hl_items_add(&items, &o, &s.request[i], i));
    }
    assert_int_equal(words, 241335);
    assert_int_equal(bytes, 1290527);
    assert_int_equal(tokens, 314843);
    assert_int_equal(items.n, 183);
    hl_sha256_end(&text, hex);
    assert_string_equal(hex, "b0ae50e166add20959a5406d9b3c99fe1f23819ec0a10149047149434fb85d81");
    hl_sha256_end(&all, hex);
    assert_string_equal(hex, "1c6539184998d66eeb4a43b4efcf0ffe10af1fa4d5191fa167b00ee8f42af84b");
    hl_items_free(&items);
    hl_set_free(&s);
    hola_tokenizer_free(t);
    free(data), free(tok);
}

/* Every task whose file is there can be read; the numbers of documents are those of the files. */
static void test_all_data(void **state) {
    static const struct {
        const char *task;
        int64_t docs, requests;
    } want[] = {{"lambada_openai", 5153, 5153},
                {"lambada_standard", 5153, 5153},
                {"arc_easy", 2376, 9501},
                {"arc_challenge", 1172, 4687},
                {"hellaswag", 10042, 40168},
                {"piqa", 1838, 3676},
                {"winogrande", 1267, 2534},
                {"boolq", 3270, 6540},
                {"sciq", 1000, 4000},
                {"openbookqa", 500, 2000},
                {"fda", 1236, 1236},
                {"swde", 1111, 1111},
                {"squad_rebuilt", 10570, 10570}};
    char *data = shared("data/eval");
    const struct hl_eval_opts o = {.data = data, .retrieval = HL_RETRIEVAL_V1};
    bool found = false;
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct hl_set s;
        const hola_status st = hl_task_make(hl_task_find(want[i].task), &o, &s);
        if (st == HOLA_EIO) {
            print_message("SKIP %s: %s (set HOLA_SHARED)\n", want[i].task, hola_last_error());
            continue;
        }
        CHECK_OK(st);
        found = true;
        if (s.docs != want[i].docs || s.n != want[i].requests)
            fail_msg("%s: %d documents, %d requests", want[i].task, (int)s.docs, (int)s.n);
        hl_set_free(&s);
    }
    free(data);
    if (!found) skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strip),      cmocka_unit_test(test_case),          cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_detokenize), cmocka_unit_test(test_pages),         cmocka_unit_test(test_hellaswag),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_pairs),         cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_profiles),   cmocka_unit_test(test_wikitext_data), cmocka_unit_test(test_all_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
