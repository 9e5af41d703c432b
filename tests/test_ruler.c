/* test_ruler.c -- RULER's samples against those of lm-evaluation-harness 4e7e0d47 and NVIDIA/RULER c3f5e3b4:
 * the generators ran on the data of ruler_case.h with a tokenizer of bytes, and the hashes below are of what
 * they wrote. Variable tracking, where they never end with that tokenizer, is read back instead. */
#define _GNU_SOURCE
#include "eval/ruler.h"
#include "ruler_case.h"

static uint64_t hash_text(uint64_t h, const char *t) {
    for (; *t; t++) h = (h ^ (unsigned char)*t) * 0x100000001b3u;
    return h;
}
static uint64_t hash_set(const struct hl_ruler_set *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < s->n; i++) {
        char number[32];
        h = hash_text(hash_text(hash_text(h, s->sample[i].input), "|"), s->sample[i].prefix);
        for (int64_t j = 0; j < s->sample[i].n_refs; j++) h = hash_text(hash_text(h, "|"), s->sample[i].refs[j]);
        snprintf(number, sizeof number, "|%lld\n", (long long)s->sample[i].length);
        h = hash_text(h, number);
    }
    return h;
}

struct fixture {
    char *dir;
    hola_tokenizer *t;
};
static int setup(void **state) {
    static struct fixture f;
    f.dir = case_new();
    CHECK_OK(hola_tokenizer_load(&f.t, "byte"));
    *state = &f;
    return 0;
}
static int teardown(void **state) {
    struct fixture *f = *state;
    temp_remove(f->dir);
    hola_tokenizer_free(f->t);
    return 0;
}
static struct hl_ruler_opts options(void **state, const char *task, enum hl_ruler_variant v, int64_t length) {
    const struct fixture *f = *state;
    struct hl_ruler_opts o = hl_ruler_default();
    assert_true(hl_ruler_find(task, &o.task));
    o.variant = v, o.length = length, o.samples = 4, o.tokenizer = f->t, o.data = f->dir, o.threads = 1;
    return o;
}
static uint64_t hash_of(const struct hl_ruler_opts *o) {
    struct hl_ruler_set s;
    CHECK_OK(hl_ruler_make(o, &s));
    assert_int_equal(s.n, o->samples);
    uint64_t h = hash_set(&s);
    hl_ruler_free(&s);
    return h;
}

struct known { /* the hash of the samples that the tools make */
    const char *task;
    enum hl_ruler_variant variant;
    int64_t length;
    uint64_t hash;
};

static void test_reference(void **state) {
    static const struct known want[] = {
        {"niah_single_1", HL_RULER_HARNESS, 4096, 0xcce9efed526cccebu},
        {"niah_single_1", HL_RULER_NVIDIA, 4096, 0x70644b514836a854u},
        {"niah_single_2", HL_RULER_HARNESS, 8192, 0x6de2b0be899cb254u},
        {"niah_single_2", HL_RULER_NVIDIA, 40000, 0x4f2676c2d5e1f427u},
        {"niah_single_3", HL_RULER_HARNESS, 40000, 0x37bac0d3e3776541u},
        {"niah_multikey_1", HL_RULER_HARNESS, 4400, 0xe007340cd444133bu},
        {"niah_multikey_2", HL_RULER_HARNESS, 3000, 0x2a3afcf5e3cdf049u},
        {"niah_multikey_2", HL_RULER_NVIDIA, 3000, 0x86e4911479a02022u},
        {"niah_multikey_3", HL_RULER_HARNESS, 4500, 0x3c6e4b747a415b07u},
        {"niah_multivalue", HL_RULER_HARNESS, 8192, 0x135303628b8a2c5bu},
        {"niah_multiquery", HL_RULER_HARNESS, 8192, 0x0525d1a141c61efbu},
        {"niah_multiquery", HL_RULER_NVIDIA, 8192, 0x47c804055afc8c07u},
        {"ruler_cwe", HL_RULER_HARNESS, 2500, 0x0298cb31e10c92beu},
        {"ruler_cwe", HL_RULER_HARNESS, 9000, 0x09547a41901388f9u},
        {"ruler_fwe", HL_RULER_HARNESS, 2000, 0x70d54641273b5c9cu},
        {"ruler_fwe", HL_RULER_NVIDIA, 5000, 0xf4a56ebfc119bf84u},
        {"ruler_qa_squad", HL_RULER_HARNESS, 2000, 0xc06ae6047bdc1d1fu},
        {"ruler_qa_squad", HL_RULER_HARNESS, 20000, 0xd4e3b74d2abbfbcbu},
        {"ruler_qa_squad", HL_RULER_NVIDIA, 20000, 0x734afab4f9734993u},
        {"ruler_qa_hotpot", HL_RULER_HARNESS, 1200, 0xc55db86d167f73a2u},
        {"ruler_qa_hotpot", HL_RULER_NVIDIA, 1500, 0x3b4c540bd1c789abu},
        {"niah_single_1", HL_RULER_HARNESS, 1100, 0x5bd560afb4683b07u},
        {"ruler_cwe", HL_RULER_NVIDIA, 3000, 0xd1a2a4f25d885a0eu},
        {"ruler_cwe", HL_RULER_NVIDIA, 20000, 0x41aae4b07d25ef9bu},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct hl_ruler_opts o = options(state, want[i].task, want[i].variant, want[i].length);
        uint64_t h = hash_of(&o);
        if (h != want[i].hash)
            fail_msg("%s, variant %d, %lld tokens: %016llx", want[i].task, want[i].variant, (long long)want[i].length,
                     (unsigned long long)h);
        if (i > 0) continue;
        o.seed = 1; /* what differs is seen */
        assert_true(hash_of(&o) != want[i].hash);
        o.seed = -1, o.bos = 2;
        assert_true(hash_of(&o) != want[i].hash);
    }
}

/* ---- variable tracking ---- */

/* The names that VAR statements of text chain to value, in order; how many. */
static int follow(const char *text, const char *value, char name[8][8]) {
    int n = 0;
    for (const char *p = strstr(text, "VAR "); p && n < 8; p = strstr(p, "VAR ")) {
        char left[8], right[16];
        int used = 0;
        if (sscanf(p, "VAR %7[A-Z] = VAR %7[A-Z]%n", left, right, &used) == 2 && used) {
            if (n > 0 && strcmp(right, name[n - 1]) == 0) strcpy(name[n++], left);
        } else if (sscanf(p, "VAR %7[A-Z] = %15[0-9]%n", left, right, &used) == 2) {
            if (strcmp(right, value) == 0) strcpy(name[n++], left);
        } else used = 4;
        p += used;
    }
    return n;
}

static void test_variables(void **state) {
    for (int v = 0; v < 2; v++) {
        struct hl_ruler_opts o = options(state, "ruler_vt", (enum hl_ruler_variant)v, 6000);
        struct hl_ruler_set s;
        CHECK_OK(hl_ruler_make(&o, &s));
        for (int64_t i = 0; i < s.n; i++) {
            char name[8][8], value[8] = "";
            const struct hl_ruler_sample *p = &s.sample[i];
            const char *text = strstr(p->input + 1, "Memorize and track"); /* behind the example */
            assert_non_null(text);
            assert_int_equal(sscanf(strstr(p->prefix, "the value "), "the value %7[0-9]", value), 1);
            assert_int_equal(follow(text, value, name), 5);
            assert_int_equal(p->n_refs, 5);
            for (int k = 0; k < 5; k++) assert_string_equal(p->refs[k], name[k]);
            assert_true(follow(p->input, "1", name) == 0);
            assert_true(p->length <= 6000 && p->length > 4800);
            /* the example, answered in the text */
            assert_int_equal(sscanf(strstr(p->input, "the value "), "the value %7[0-9]", value), 1);
            assert_int_equal(follow(p->input, value, name), 5);
            for (int k = 0; k < 5; k++) assert_int_equal(strlen(name[k]), 3);
            int lines = 0; /* of noise: five, also where they are taken apart */
            for (const char *q = p->input; (q = strstr(q, "There and back again.")) && q < text; q++) lines++;
            assert_int_equal(lines, 5);
            char last[64];
            snprintf(last, sizeof last, "they are:  %s %s %s %s %s\n", name[0], name[1], name[2], name[3], name[4]);
            assert_non_null(strstr(p->input, last));
            assert_true((strstr(p->prefix, "assgined") != NULL) == (v == HL_RULER_HARNESS));
        }
        hl_ruler_free(&s);
    }
}

/* ---- lengths ---- */

/* Every task at every length ends: in samples that fit, or in one line. */
static void test_short(void **state) {
    int made = 0, refused = 0;
    for (int t = 0; t < HL_RULER_TASKS; t++)
        for (int64_t length = 100; length < 3000; length += length / 3) {
            struct hl_ruler_opts o = options(state, hl_ruler_name((enum hl_ruler_task)t), HL_RULER_HARNESS, length);
            struct hl_ruler_set s;
            o.samples = 2;
            hola_status status = hl_ruler_make(&o, &s);
            if (status != HOLA_OK) {
                assert_int_equal(status, HOLA_EINVAL);
                assert_non_null(strstr(hola_last_error(), "too short"));
                refused++;
            }
            for (int64_t i = 0; i < s.n; i++) {
                const struct hl_ruler_sample *p = &s.sample[i];
                if (t != HL_RULER_FWE) assert_true(p->length <= length); /* (it keeps no room for its answer) */
                assert_true(p->n_refs > 0);
                if (t < HL_RULER_VT) assert_non_null(strstr(p->input, p->refs[0]));
                made++;
            }
            hl_ruler_free(&s);
        }
    assert_true(made > 50 && refused > 20);
}

static void test_missing(void **state) {
    struct hl_ruler_opts o = options(state, "niah_single_2", HL_RULER_HARNESS, 4096);
    struct hl_ruler_set s;
    o.words = "v9";
    CHECK_FAILS(hl_ruler_make(&o, &s), HOLA_EIO, "wonderwords/v9/nounlist.txt: No such file");
    o.words = NULL, o.data = "/nowhere";
    CHECK_FAILS(hl_ruler_make(&o, &s), HOLA_EIO, "package wonderwords");
    o = options(state, "qa_1", HL_RULER_HARNESS, 4096);
    o.samples = 5000;
    CHECK_FAILS(hl_ruler_make(&o, &s), HOLA_EINVAL, "questions");
    o.data = "/nowhere";
    CHECK_FAILS(hl_ruler_make(&o, &s), HOLA_EIO, "dev-v2.0.json");
    o.task = HL_RULER_QA_HOTPOT;
    CHECK_FAILS(hl_ruler_make(&o, &s), HOLA_EIO, "hotpot_dev_distractor_v1.json");
    /* SQuAD beside the data is found too */
    const struct fixture *f = *state;
    char *sub = hl_path_join(f->dir, "nltk_data"), *squad = hl_path_join(f->dir, "squad");
    int64_t size;
    char *file = temp_read(f->dir, "squad.json", &size);
    o = options(state, "qa_1", HL_RULER_HARNESS, 4096);
    const uint64_t h = hash_of(&o);
    CHECK_OK(hl_make_dirs(squad));
    temp_write(squad, "dev-v2.0.json", file, size);
    o.data = sub;
    assert_true(hash_of(&o) == h);
    free(sub), free(squad), free(file);
    enum hl_ruler_task t;
    assert_false(hl_ruler_find("niah", &t));
    assert_false(hl_ruler_find("", &t));
}

/* ---- score and dumps ---- */

static double score(enum hl_ruler_variant v, const char *pred) {
    char *refs[] = {"6057437", "\xc3\x89t\xc3\xa9", "New York", "x"};
    const struct hl_ruler_sample s = {.refs = refs, .n_refs = 4};
    return hl_ruler_score(HL_RULER_QA_SQUAD, v, pred, (int64_t)strlen(pred), &s);
}

static void test_score(void **state) {
    (void)state;
    assert_true(score(HL_RULER_HARNESS, "it is 6057437, new york.") == 0.5);
    assert_true(score(HL_RULER_NVIDIA, "it is 6057437, new york.") == 1);
    assert_true(score(HL_RULER_NVIDIA, "605743") == 0 && score(HL_RULER_HARNESS, "") == 0);
    assert_true(score(HL_RULER_HARNESS, " \xc3\xa9T\xc3\x89 \n") == 0.25);
    assert_true(score(HL_RULER_HARNESS, "New\tYork") == 0); /* a control character becomes a newline */
    assert_true(score(HL_RULER_HARNESS, "\xff\xc3") == 0);
    char *one[] = {"a"};
    const struct hl_ruler_sample s = {.refs = one, .n_refs = 1};
    assert_true(hl_ruler_score(HL_NIAH_SINGLE_1, HL_RULER_NVIDIA, "\0A", 2, &s) == 1);
    assert_int_equal(hl_ruler_max_new_tokens(HL_NIAH_MULTIQUERY), 128);
    assert_int_equal(hl_ruler_max_new_tokens(HL_RULER_VT), 30);
}

static void test_dumps(void **state) {
    const struct fixture *f = *state;
    static const char text[] = "{\"index\": 3, \"input\": \"a b\", \"outputs\": [\"1\", \"2\"], \"length\": "
                               "77, \"answer_prefix\": \" The\"}\n"
                               "\n"
                               "{\"doc_id\": 0, \"doc\": {\"input\": \"c\", \"outputs\": [\"3\"], "
                               "\"gen_prefix\": \"It is\", \"max_length\": 99}}";
    struct hl_ruler_set s;
    char *path = hl_path_join(f->dir, "dump.jsonl");
    temp_write(f->dir, "dump.jsonl", text, sizeof text - 1);
    CHECK_OK(hl_ruler_read(path, HL_NIAH_SINGLE_1, &s));
    assert_int_equal(s.n, 2);
    assert_string_equal(s.sample[0].input, "a b");
    assert_string_equal(s.sample[0].prefix, " The");
    assert_int_equal(s.sample[0].n_refs, 2);
    assert_string_equal(s.sample[0].refs[1], "2");
    assert_int_equal(s.sample[0].length, 77);
    assert_string_equal(s.sample[1].prefix, " It is");
    assert_int_equal(s.sample[1].max_length, 99);
    hl_ruler_free(&s);
    CHECK_OK(hl_ruler_read(path, HL_RULER_CWE, &s));
    assert_string_equal(s.sample[1].prefix, "\n\nIt is"); /* cwe's delimiter */
    hl_ruler_free(&s);
    static const char *const bad[][2] = {
        {"{\"input\": \"a\", \"outputs\": [\"1\"]}", "line 1: no \"input\""},
        {"{\"input\": \"a\", \"outputs\": [], \"gen_prefix\": \"\"}", "no \"outputs\""},
        {"{\"input\": \"a\", \"outputs\": [1], \"gen_prefix\": \"\"}", "not strings"},
        {"[1]", "not a JSON object"},
        {"{", "line 1"},
        {"\n", "no samples"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        temp_write(f->dir, "dump.jsonl", bad[i][0], (int64_t)strlen(bad[i][0]));
        CHECK_FAILS(hl_ruler_read(path, HL_RULER_CWE, &s), HOLA_EFORMAT, bad[i][1]);
        hl_ruler_free(&s);
    }
    free(path);
}

/* ---- the real data ---- */

static void test_mistral(void **state) {
    static const struct known want[] = {
        {"niah_multikey_1", HL_RULER_HARNESS, 4096, 0x0bd543d50be0a058u},
        {"niah_multikey_2", HL_RULER_HARNESS, 4096, 0x518d5ec3f0f2da3bu},
        {"niah_multikey_3", HL_RULER_HARNESS, 4096, 0x193b0933b2ebeab2u},
        {"niah_multiquery", HL_RULER_HARNESS, 4096, 0x938657f5a3e513b3u},
        {"niah_multivalue", HL_RULER_HARNESS, 4096, 0xd893ed6dd1838907u},
        {"niah_single_1", HL_RULER_HARNESS, 4096, 0x252b7166fbf15988u},
        {"niah_single_2", HL_RULER_HARNESS, 4096, 0xc023d83786e532ecu},
        {"niah_single_3", HL_RULER_HARNESS, 4096, 0xca06c2c13fc64680u},
        {"ruler_cwe", HL_RULER_HARNESS, 4096, 0x79083985b3b05cacu},
        {"ruler_fwe", HL_RULER_HARNESS, 4096, 0x10f9d8fbf5e38587u},
        {"ruler_vt", HL_RULER_HARNESS, 4096, 0x2031f77a79667b4du},
        {"niah_multikey_1", HL_RULER_NVIDIA, 4096, 0x84d86fedf39c16a7u},
        {"niah_multikey_2", HL_RULER_NVIDIA, 4096, 0xe1d9d102da913448u},
        {"niah_multikey_3", HL_RULER_NVIDIA, 4096, 0x7a8f6045a2cbfe2fu},
        {"niah_multiquery", HL_RULER_NVIDIA, 4096, 0x4bbafdddb3776ec9u},
        {"niah_multivalue", HL_RULER_NVIDIA, 4096, 0xc0281360155844bdu},
        {"niah_single_1", HL_RULER_NVIDIA, 4096, 0xbc186150a1dac991u},
        {"niah_single_2", HL_RULER_NVIDIA, 4096, 0x5d3207e0372babd3u},
        {"niah_single_3", HL_RULER_NVIDIA, 4096, 0x5530ddfbd5dadefau},
        {"ruler_cwe", HL_RULER_NVIDIA, 4096, 0x773340c63e1ee455u},
        {"ruler_fwe", HL_RULER_NVIDIA, 4096, 0xab867c2d83639a77u},
        {"ruler_vt", HL_RULER_NVIDIA, 4096, 0x74618fd56f79f4d0u},
    };
    static const struct {
        const char *task;
        int64_t length, units;
    } fit[] = {{"niah_single_1", 2048, 70},    {"niah_single_1", 8192, 300},    {"niah_single_1", 32768, 1300},
               {"niah_multikey_2", 2048, 75},  {"niah_multikey_2", 16384, 650}, {"niah_multikey_3", 2048, 20},
               {"niah_multikey_3", 32768, 400}};
    const char *base = getenv("HOLA_SHARED");
    char *model = hl_path_join(base ? base : "../shared", "data/tokenizer/tokenizer.model");
    char *data = hl_path_join(base ? base : "../shared", "data/eval/ruler");
    char *words = hl_path_join(data, "wonderwords/master/nounlist.txt");
    struct fixture f = {.dir = data};
    void *there = &f;
    (void)state;
    if (access(model, R_OK) != 0 || access(words, R_OK) != 0) {
        print_message("SKIP ruler: %s or %s is not there (set HOLA_SHARED)\n", model, words);
        free(model), free(data), free(words);
        skip();
    }
    CHECK_OK(hola_tokenizer_load(&f.t, model));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct hl_ruler_opts o = options(&there, want[i].task, want[i].variant, want[i].length);
        struct hl_ruler_set s;
        o.samples = 8;
        CHECK_OK(hl_ruler_make(&o, &s));
        if (hash_set(&s) != want[i].hash)
            fail_msg("%s, variant %d, %lld tokens: %016llx", want[i].task, want[i].variant, (long long)want[i].length,
                     (unsigned long long)hash_set(&s));
        hl_ruler_free(&s);
    }
    for (size_t i = 0; i < sizeof fit / sizeof *fit; i++) { /* lines that fit, as measured with the harness */
        struct hl_ruler_opts o = options(&there, fit[i].task, HL_RULER_HARNESS, fit[i].length);
        struct hl_ruler_set s;
        o.samples = 1;
        CHECK_OK(hl_ruler_make(&o, &s));
        assert_int_equal(s.units, fit[i].units);
        if (i == 0) {
            assert_string_equal(s.sample[0].refs[0], "6057437");
            assert_non_null(strstr(s.sample[0].input, "for clumsy-teller is: 6057437."));
        }
        hl_ruler_free(&s);
    }
    hola_tokenizer_free(f.t);
    free(model), free(data), free(words);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_variables),
                                       cmocka_unit_test(test_short),     cmocka_unit_test(test_missing),
                                       cmocka_unit_test(test_score),     cmocka_unit_test(test_dumps),
                                       cmocka_unit_test(test_mistral)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
