/* test_tasks.c -- what becomes of the rows of a benchmark's file: contexts, continuations, the right choice, what ends
 * an answer, as the harness's templates have them; and what becomes of the answers. */
#define _GNU_SOURCE
#include "eval/tasks.h"
#include "temp.h"
#include <math.h>

enum { MOST = 8 };
struct ask {
    const char *context, *text; /* text: of a generation the target */
};
struct known {
    const char *task, *file, *rows;
    int64_t docs, gold[2];
    struct ask ask[MOST];
};

static struct hl_set make(const char *dir, const char *task, const char *file, const char *rows,
                          struct hl_eval_opts o) {
    struct hl_set s;
    char *path = hl_path_join(dir, file), *end = strrchr(path, '/');
    *end = 0;
    CHECK_OK(hl_make_dirs(path));
    temp_write(path, end + 1, rows, (int64_t)strlen(rows));
    free(path);
    o.data = dir;
    CHECK_OK(hl_task_make(hl_task_find(task), &o, &s));
    return s;
}
static void check_span(const char *what, struct hl_span got, const char *want) {
    if (!hl_span_equal(got, hl_span_of(want))) fail_msg("%s: \"%.*s\", not \"%s\"", what, (int)got.n, got.p, want);
}

static const struct known known[] = {
    {"arc_easy",
     "arc_easy/test.jsonl",
     "{\"question\": \"Why?\", \"choices\": {\"text\": [\"so\", \"\\u00e9t\\u00e9\"], \"label\": [\"A\", "
     "\"B\"]}, "
     "\"answerKey\": \" B\"}\n"
     "{\"question\": \"How\", \"choices\": [\"x\", \"y\"], \"gold\": 0}\n",
     2,
     {1, 0},
     {{"Question: Why?\nAnswer:", " so"},
      {"Question: Why?\nAnswer:", " \u00e9t\u00e9"},
      {"Question: How\nAnswer:", " x"},
      {"Question: How\nAnswer:", " y"}}},
    {"openbookqa",
     "openbookqa/test.jsonl",
     "{\"question_stem\": \"The sun is\", \"choices\": {\"text\": [\"hot\", \"cold\"], \"label\": [\"A\", "
     "\"B\"]}, "
     "\"answerKey\": \"A\"}\n",
     1,
     {0},
     {{"The sun is", " hot"}, {"The sun is", " cold"}}},
    {"hellaswag",
     "hellaswag/validation.jsonl",
     "{\"activity_label\": \"Cooking\", \"ctx_a\": \"A man [title] cuts.\", \"ctx_b\": \"the MAN then\", "
     "\"endings\": [\" eats  it.\", \"[step] runs.\"], \"label\": \"1\"}\n",
     1,
     {1},
     {{"Cooking: A man. cuts. The man then", " eats it."}, {"Cooking: A man. cuts. The man then", "  runs."}}},
    {"piqa",
     "piqa/validation.jsonl",
     "{\"goal\": \"To go\", \"sol1\": \"walk\", \"sol2\": \"sit\", \"label\": 1}\n",
     1,
     {1},
     {{"Question: To go\nAnswer:", " walk"}, {"Question: To go\nAnswer:", " sit"}}},
    {"winogrande",
     "winogrande/validation.jsonl",
     "{\"sentence\": \"Ann saw Bea since _  was tall.  \", \"option1\": \"Ann\", \"option2\": \"Bea\", "
     "\"answer\": "
     "\"2\"}\n",
     1,
     {1},
     {{"Ann saw Bea since Ann", " was tall."}, {"Ann saw Bea since Bea", " was tall."}}},
    {"boolq",
     "boolq/validation.jsonl",
     "{\"passage\": \"It is.\", \"question\": \"is it\", \"answer\": false}\n"
     "{\"passage\": \"P\", \"question\": \"q\", \"label\": 1}\n",
     2,
     {0, 1},
     {{"It is.\nQuestion: is it?\nAnswer:", " no"},
      {"It is.\nQuestion: is it?\nAnswer:", " yes"},
      {"P\nQuestion: q?\nAnswer:", " no"},
      {"P\nQuestion: q?\nAnswer:", " yes"}}},
    {"sciq",
     "sciq/test.jsonl",
     "{\"support\": \" \\nFacts.\", \"question\": \"What?\", \"distractor1\": \"a\", \"distractor2\": \"b\", "
     "\"distractor3\": \"c\", \"correct_answer\": \"d\"}\n",
     1,
     {3},
     {{"Facts.\nQuestion: What?\nAnswer:", " a"},
      {"Facts.\nQuestion: What?\nAnswer:", " b"},
      {"Facts.\nQuestion: What?\nAnswer:", " c"},
      {"Facts.\nQuestion: What?\nAnswer:", " d"}}},
    {"lambada_openai",
     "lambada/lambada_test.jsonl",
     "{\"text\": \"one two\\nthree four\"}\n{\"text\": \"alone\"}\n",
     2,
     {0},
     {{"one two\nthree", " four"}, {"", " alone"}}},
    {"lambada_standard", "lambada/lambada_test_plain_text.txt", "a b c\n\nd e", 2, {0}, {{"a b", " c"}, {"d", " e"}}},
    {"fda",
     "fda/validation.jsonl",
     "{\"text\": \" Name: x. Number: \", \"value\": \" K1 \", \"key\": \"Number\"}\n",
     1,
     {0},
     {{"Name: x. Number:", "K1"}}},
    {"squad_rebuilt",
     "squad/dev-v1.1.json",
     "{\"data\": [{\"paragraphs\": [{\"context\": \"It was red.\", \"qas\": [{\"question\": \"What "
     "colour?\", "
     "\"answers\": [{\"text\": \"red\"}, {\"text\": \"Red\"}]}]}]}]}",
     1,
     {0},
     {{"It was red.\nQuestion: What colour?\nAnswer:", "red"}}},
};

static void test_rows(void **state) {
    char *dir = temp_new();
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct known *k = &known[i];
        struct hl_set s = make(dir, k->task, k->file, k->rows, (struct hl_eval_opts){.retrieval = HL_RETRIEVAL_V1});
        int64_t n = 0;
        assert_int_equal(s.docs, k->docs);
        for (int64_t d = 0; d < s.docs; d++) {
            if (s.doc[d].n > 1) assert_int_equal(s.doc[d].gold, k->gold[d]);
            assert_int_equal(s.doc[d].first, n);
            n += s.doc[d].n;
        }
        for (int64_t j = 0; j < s.n; j++) {
            const struct hl_request *r = &s.request[j];
            assert_true(j < MOST && k->ask[j].context);
            check_span(k->task, r->context, k->ask[j].context);
            check_span(k->task, r->kind == HL_ASK_GENERATE ? r->target : r->text, k->ask[j].text);
            /* acc_norm divides by the characters of a choice, without the space before it */
            if (r->chars) assert_int_equal(r->chars, hl_py_len(r->text) - 1);
        }
        assert_true(s.n == n && (n == MOST || !k->ask[n].context));
        hl_set_free(&s);
        s = make(dir, k->task, k->file, k->rows, (struct hl_eval_opts){.retrieval = HL_RETRIEVAL_V1, .limit = 1});
        assert_int_equal(s.docs, 1);
        hl_set_free(&s);
    }
    temp_remove(dir);
}

/* What is cut, and what ends an answer: by the forms of the retrieval tasks, and by the harness's versions. */
static void test_retrieval(void **state) {
    static const char row[] = "{\"text\": \"Page\\n. Colour:\", \"value\": \" red \", \"key\": \"colour\"}\n";
    static const struct {
        enum hl_retrieval form;
        const char *task, *file, *prompt, *target;
    } want[] = {
        {HL_RETRIEVAL_V0, "fda", "fda/validation.jsonl", "Page\n. Colour:", " red "},
        {HL_RETRIEVAL_V1, "fda", "fda/validation.jsonl", "Page\n. Colour:", "red"},
        {HL_RETRIEVAL_JRT, "fda", "fda/validation.jsonl", "Page\n. . Colour:", "red"},
        {HL_RETRIEVAL_JRT, "swde", "swde/validation.jsonl", "Page\n. Colour:", "red"},
    };
    static const struct {
        enum hl_profile profile;
        const char *until;
        int64_t max_new;
    } limits[] = {{HL_PROFILE_HEAD, "\n\n", 256},
                  {HL_PROFILE_V0_4_8, "\n", 48},
                  {HL_PROFILE_V0_4_9_1, "\n\n", 48},
                  {HL_PROFILE_V0_4_12, "\n\n", 256},
                  {HL_PROFILE_BASED, "\n", 48}};
    char *dir = temp_new();
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct hl_set s = make(dir, want[i].task, want[i].file, row, (struct hl_eval_opts){.retrieval = want[i].form});
        check_span(want[i].task, s.request[0].context, want[i].prompt);
        check_span(want[i].task, s.request[0].target, want[i].target);
        assert_string_equal(s.request[0].until[0], "\n");
        assert_int_equal(s.request[0].max_new, 48);
        assert_int_equal(s.version, want[i].form != HL_RETRIEVAL_V0);
        hl_set_free(&s);
    }
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct hl_set s = make(dir, "squad_completion", "squad_completion/validation.jsonl", row,
                               (struct hl_eval_opts){.retrieval = HL_RETRIEVAL_V1, .profile = limits[i].profile});
        assert_string_equal(s.request[0].until[0], limits[i].until);
        assert_int_equal(s.request[0].max_new, limits[i].max_new);
        hl_set_free(&s);
    }
    temp_remove(dir);
}

/* ---- answers ---- */

static double value_of(const struct hl_metrics *m, const char *name, double *error) {
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->metric[i].name, name) == 0) return *error = m->metric[i].error, m->metric[i].value;
    fail_msg("no %s", name);
    return 0;
}

/* exp of the mean, its error by the slope there; the share of greedy ones with the error of a mean. */
static void test_lambada(void **state) {
    struct hl_answer a[3] = {{.loglikelihood = -1, .greedy = true}, {.loglikelihood = -2}, {.loglikelihood = -6}};
    struct hl_metrics got = {0};
    struct hl_set s = {0};
    struct hl_doc *d;
    double error;
    (void)state;
    for (int i = 0; i < 3; i++) CHECK_OK(hl_set_doc(&s, &d));
    hl_lambada_tally(NULL, &s, a, &got);
    const double mean_error = sqrt((4 + 1 + 9) / 2.0 / 3);
    assert_true(fabs(value_of(&got, "perplexity", &error) - exp(3)) < 1e-12 * exp(3));
    assert_true(fabs(error - exp(3) * mean_error) < 1e-9);
    assert_true(fabs(value_of(&got, "acc", &error) - 1.0 / 3) < 1e-15);
    assert_true(fabs(error - sqrt((4.0 / 9 + 2.0 / 9) / 2 / 3)) < 1e-15);
    hl_metrics_free(&got);
    hl_set_free(&s);
}

/* Whether the value is in what was written, whatever its case; the score goes with the answer. */
static void test_contains(void **state) {
    static const char *const text[] = {"it is RED", "it is blue", ""};
    struct hl_answer a[3] = {{0}};
    struct hl_metrics got = {0};
    struct hl_set s = {0};
    struct hl_doc *d;
    double error;
    (void)state;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hl_set_doc(&s, &d));
        CHECK_OK(hl_set_ask(&s, &(struct hl_request){.kind = HL_ASK_GENERATE, .target = hl_span_of("red")}));
        CHECK_OK(hl_text_add(&a[i].text, hl_span_of(text[i])));
    }
    hl_extract_tally(NULL, &s, a, &got);
    assert_true(fabs(value_of(&got, "contains", &error) - 1.0 / 3) < 1e-15 && error > 0.3 && error < 0.4);
    for (int i = 0; i < 3; i++) assert_true(a[i].score == (i == 0)), free(a[i].text.data);
    hl_metrics_free(&got);
    hl_set_free(&s);
}

/* ---- two models ---- */

static struct hl_comparison compare(const double *x, const double *y, const double *w, int64_t n, bool exponent) {
    struct hl_metrics a = {0}, b = {0};
    hl_metric_ratio(&a, "x", x, w, n, exponent);
    hl_metric_ratio(&b, "x", y, w, n, exponent);
    const struct hl_comparison c = hl_figure_compare(&a.metric[0], &b.metric[0]);
    hl_metrics_free(&a);
    hl_metrics_free(&b);
    return c;
}
static void near_to(double got, double want, double by) {
    if (!(fabs(got - want) <= by)) fail_msg("%.12g, not %.12g", got, want);
}

/* McNemar: of 12 documents that one of the two has right, 10 are the second's: 2 (1 + 12 + 66) / 2^12. */
static void test_mcnemar(void **state) {
    double x[40], y[40];
    (void)state;
    for (int i = 0; i < 40; i++) x[i] = y[i] = i % 2;
    for (int i = 0; i < 12; i++) x[i] = i < 2, y[i] = i >= 2;
    const struct hl_comparison c = compare(x, y, NULL, 40, false);
    assert_int_equal(c.test, HL_TEST_MCNEMAR);
    near_to(c.difference, 8.0 / 40, 1e-15);
    near_to(c.p, 2 * (1 + 12 + 66) / 4096.0, 1e-12);
    near_to(compare(x, x, NULL, 40, false).p, 1, 0);
}

/* Scores between 0 and 1, and perplexities: a normal test on the differences, by hand. */
static void test_paired(void **state) {
    double x[12], y[12], w[12], mean = 0, squares = 0;
    (void)state;
    for (int i = 0; i < 12; i++) x[i] = 0.5 + 0.01 * (i % 3), y[i] = x[i] + 0.02 * (i % 5) - 0.03, w[i] = 1;
    for (int i = 0; i < 12; i++) mean += (y[i] - x[i]) / 12;
    for (int i = 0; i < 12; i++) squares += (y[i] - x[i] - mean) * (y[i] - x[i] - mean);
    const double p = erfc(fabs(mean) / sqrt(squares / 11 / 12) / sqrt(2));
    struct hl_comparison c = compare(x, y, NULL, 12, false);
    assert_int_equal(c.test, HL_TEST_PAIRED);
    near_to(c.p, p, 1e-12);
    c = compare(x, y, w, 12, true); /* weights of one: the same test, on the logarithm */
    near_to(c.p, p, 1e-12);
    assert_true(c.difference * mean > 0);
    for (int i = 0; i < 12; i++) w[i] = 10 + 7 * (i % 4), x[i] *= w[i], y[i] *= w[i];
    c = compare(x, y, w, 12, true);
    assert_true(c.p > 0 && c.p < 1 && fabs(c.p - p) > 1e-6);
    for (int i = 0; i < 12; i++) y[i] = x[i] + 0.01 * w[i]; /* the same gain everywhere */
    assert_true(compare(x, y, w, 12, true).p < 1e-6);
    assert_int_equal(compare(x, y, w, HL_LEAST_PAIRS - 1, true).test, HL_TEST_NONE);
}

/* Figures without documents: two errors of 3 and 4 are one of 5. */
static void test_unpaired(void **state) {
    const struct hl_figure a = {.value = 10, .error = 3}, b = {.value = 20, .error = 4},
                           c = {.value = 20, .error = NAN};
    (void)state;
    assert_int_equal(hl_figure_compare(&a, &b).test, HL_TEST_UNPAIRED);
    near_to(hl_figure_compare(&a, &b).p, erfc(2 / sqrt(2)), 1e-12);
    assert_int_equal(hl_figure_compare(&a, &c).test, HL_TEST_NONE);
    assert_true(isnan(hl_figure_compare(&a, &c).p));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),    cmocka_unit_test(test_retrieval),
                                       cmocka_unit_test(test_lambada), cmocka_unit_test(test_contains),
                                       cmocka_unit_test(test_mcnemar), cmocka_unit_test(test_paired),
                                       cmocka_unit_test(test_unpaired)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
