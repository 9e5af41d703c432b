/* test_eval_run.c -- the engine against scoring and decoding one request after another with a session of its
 * own; the same bits in any order and company; no state from window to window; no padding anywhere. */
#define _GNU_SOURCE
#include "eval/prompt.h"
#include "eval/tasks.h"
#include "eval_case.h"
#include "tokenizer_load.h"

/* of every kind in turn */
static hola_model *model_of(int kind) {
    static const char *const json[] = {
        "{" TINY HOLA "\"expand_v\":1}",
        "{" TINY "\"model_type\":\"gated_deltanet\",\"num_heads\":2,\"head_dim\":16,\"expand_v\":2}"};
    return byte_model(json[kind], "cpu", 2);
}
/* longer and shorter than a pass; more prompts than are read at once */
static struct hl_set all_kinds(void) {
    const struct eval_case c = {
        .docs = 24, .texts = 4, .prompts = 6, .lists = 3, .grow = 2, .text = 700, .prompt = 90, .max_new = 20};
    return make_set(&c);
}
static struct hl_eval_opts opts(int64_t max_length) {
    return (struct hl_eval_opts){.tokenizer = tok, .bos = HL_BOS_DOUBLE, .max_length = max_length};
}

/* ---- one by one ---- */

/* logits after every token, the plain way */
static void plain_score(hola_model *m, const struct hl_item *item, double *ll, bool *greedy) {
    hola_session *s;
    float z[VOCAB];
    CHECK_OK(hola_session_new(&s, m));
    for (int64_t i = 0; i < item->n; i++) {
        int best = 0;
        double max, sum = 0;
        CHECK_OK(hola_session_feed(s, item->ids + i, 1, z));
        if (i < item->prefix || item->next[i] < 0) continue;
        for (int v = 1; v < VOCAB; v++)
            if (z[v] > z[best]) best = v;
        max = z[best];
        for (int v = 0; v < VOCAB; v++) sum += exp((double)z[v] - max);
        *ll += (double)z[item->next[i]] - max - log(sum);
        *greedy = *greedy && best == item->next[i];
    }
    hola_session_free(s);
}
static void plain_generate(hola_model *m, const struct hl_eval_opts *o, const struct hl_request *r,
                           struct hl_text *out) {
    hola_session *s;
    float z[VOCAB];
    struct hl_ids ids = {0}, got = {0};
    bool cut;
    char *text;
    CHECK_OK(hl_prompt_ids(o, r, &ids, &cut));
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids.data, ids.n, z));
    for (int64_t n = 0; n < r->max_new; n++) {
        int32_t best = 0;
        for (int v = 1; v < VOCAB; v++)
            if (z[v] > z[best]) best = v;
        if (best == 257) break;
        CHECK_OK(hl_ids_room(&got, 1));
        got.data[got.n++] = best;
        CHECK_OK(hola_session_step(&s, 1, &best, z));
    }
    int64_t len;
    CHECK_OK(hola_tokenizer_decode(tok, got.data, got.n, &text, &len));
    CHECK_OK(hl_text_add_valid(out, (struct hl_span){text, len}));
    const int64_t at = hl_py_find(hl_span_text(out), r->until[0]);
    if (at >= 0) out->n = at;
    free(text), free(ids.data), free(got.data);
    hola_session_free(s);
}

static void test_plain(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        hola_model *m = model_of(kind);
        const struct hl_eval_opts o = opts(600);
        struct hl_set s = all_kinds();
        struct hl_answer *a = answers(m, &o, &s);
        double worst = 0, wrong = 0;
        for (int64_t i = 0; i < s.n; i++) {
            const struct hl_request *r = &s.request[i];
            struct hl_items items = {0};
            double ll = 0;
            bool greedy = true;
            if (r->kind == HL_ASK_GENERATE) {
                struct hl_text want = {0};
                plain_generate(m, &o, r, &want);
                assert_true(hl_span_equal(hl_span_text(&want), hl_span_text(&a[i].text)));
                free(want.data);
                continue;
            }
            CHECK_OK(hl_items_add(&items, &o, r, i));
            for (int64_t k = 0; k < items.n; k++) plain_score(m, &items.item[k], &ll, &greedy);
            worst = fmax(worst, fabs(ll - a[i].loglikelihood) / (double)a[i].tokens);
            assert_int_equal(greedy, a[i].greedy);
            if (items.n == 1 && items.item[0].prefix > 0) { /* wrong on purpose: the context is forgotten */
                ll = 0;
                items.item[0].ids += items.item[0].prefix, items.item[0].next += items.item[0].prefix;
                items.item[0].n -= items.item[0].prefix, items.item[0].prefix = 0;
                plain_score(m, &items.item[0], &ll, &greedy);
                wrong = fmax(wrong, fabs(ll - a[i].loglikelihood) / (double)a[i].tokens);
            }
            hl_items_free(&items);
        }
        if (!(worst < 2e-5)) fail_msg("a log-likelihood is %g per token off", worst);
        assert_true(wrong > 1e-3);
        hl_answers_free(a, s.n);
        hl_set_free(&s);
        hola_model_free(m);
    }
}

/* Greedy: every token asked for is the likeliest, the first and the last of them. */
static void test_greedy(void **state) {
    enum { N = 30, FIRST = 11, LAST = 29 };
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(600);
    int32_t *ids = random_ids(N, VOCAB, 8), best[N] = {0};
    hola_session *y;
    float z[VOCAB];
    struct hl_set s = {0};
    struct hl_doc *d;
    (void)state;
    CHECK_OK(hola_session_new(&y, m));
    for (int t = 0; t < N; t++) {
        CHECK_OK(hola_session_feed(y, ids + t, 1, z));
        for (int v = 1; v < VOCAB; v++)
            if (z[v] > z[best[t]]) best[t] = v;
    }
    hola_session_free(y);
    for (int wrong = 0; wrong < 4; wrong++) { /* none, the first, the last, both */
        int32_t *next = hl_set_bytes(&s, N * 4);
        for (int t = 0; t < N; t++) next[t] = -1;
        next[FIRST] = (best[FIRST] + (wrong & 1)) % VOCAB, next[LAST] = (best[LAST] + (wrong >> 1)) % VOCAB;
        CHECK_OK(hl_set_doc(&s, &d));
        CHECK_OK(hl_set_ask(&s, &(struct hl_request){.kind = HL_ASK_IDS, .ids = ids, .next = next, .n_ids = N}));
    }
    struct hl_answer *a = answers(m, &o, &s);
    for (int wrong = 0; wrong < 4; wrong++) {
        assert_int_equal(a[wrong].greedy, wrong == 0);
        for (int t = 0; t < N; t++) /* and which of them */
            assert_int_equal(a[wrong].top[t], (t == FIRST && !(wrong & 1)) || (t == LAST && !(wrong >> 1)));
    }
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    hola_model_free(m);
    free(ids);
}

/* ---- company ---- */

static void same_answer(const struct hl_answer *x, const struct hl_answer *y) {
    assert_memory_equal(&x->loglikelihood, &y->loglikelihood, sizeof x->loglikelihood);
    assert_int_equal(x->greedy, y->greedy);
    assert_int_equal(x->tokens, y->tokens);
    assert_true(hl_span_equal(hl_span_text(&x->text), hl_span_text(&y->text)));
}

/* Each alone, and all in reverse order: the same bits. */
static void test_company(void **state) {
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(600);
    struct hl_set s = all_kinds(), back = s;
    struct hl_answer *a = answers(m, &o, &s), *b;
    (void)state;
    back.request = malloc((size_t)s.n * sizeof *back.request);
    for (int64_t i = 0; i < s.n; i++) back.request[i] = s.request[s.n - 1 - i];
    b = answers(m, &o, &back);
    for (int64_t i = 0; i < s.n; i++) same_answer(&a[i], &b[s.n - 1 - i]);
    hl_answers_free(b, s.n);
    for (int64_t i = 0; i < s.n; i += 3) {
        struct hl_set one = s;
        one.request = &s.request[i], one.n = 1;
        b = answers(m, &o, &one);
        same_answer(&a[i], b);
        hl_answers_free(b, 1);
    }
    free(back.request);
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    hola_model_free(m);
}

/* More prompts than places, of lengths below, at and above a pass: those that share passes, those that come
 * later, and each alone get the same text and count. */
static void test_prompts(void **state) {
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(2000);
    const struct eval_case c = {.prompts = 40, .prompt = 30, .max_new = 6};
    struct hl_set s = make_set(&c);
    struct hl_answer *a = answers(m, &o, &s);
    int64_t differ = 0;
    (void)state;
    for (int64_t i = 0; i < s.n; i += 1 + i % 3) {
        struct hl_text want = {0};
        plain_generate(m, &o, &s.request[i], &want);
        assert_true(hl_span_equal(hl_span_text(&want), hl_span_text(&a[i].text)));
        differ += i > 0 && !hl_span_equal(hl_span_text(&want), hl_span_text(&a[i - 1].text)); /* another's */
        free(want.data);
    }
    assert_true(differ > 5);
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    hola_model_free(m);
}

/* What is done already stays as it is; the rest does not notice. */
static void test_resume(void **state) {
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(600);
    struct hl_set s = all_kinds();
    struct hl_answer *a = answers(m, &o, &s), *b = calloc((size_t)s.n + 1, sizeof *b);
    (void)state;
    for (int64_t i = 0; i < s.n; i += 2) b[i] = (struct hl_answer){.done = true, .loglikelihood = 42};
    CHECK_OK(hl_eval_run(m, &o, &s, b, NULL));
    for (int64_t i = 0; i < s.n; i++)
        if (i % 2) same_answer(&a[i], &b[i]);
        else assert_true(b[i].loglikelihood == 42);
    hl_answers_free(a, s.n);
    hl_answers_free(b, s.n);
    hl_set_free(&s);
    hola_model_free(m);
}

/* Long texts: logits of no more rows than xent works on are ever there. */
static void test_memory(void **state) {
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(5000);
    struct hl_set s = {0};
    struct hl_doc *d;
    (void)state;
    CHECK_OK(hl_set_doc(&s, &d));
    const struct hl_request r = {.kind = HL_ASK_ROLLING, .text = some_text(&s, 4000, 1)};
    CHECK_OK(hl_set_ask(&s, &r));
    struct hl_answer *a = answers(m, &o, &s);
    assert_int_equal(a[0].tokens, 4001); /* BOS is asked for, too */
    assert_true(m->infer.logits_bytes <= HL_XENT_ROWS * VOCAB * (int64_t)sizeof(real));
    hl_answers_free(a, 1);
    hl_set_free(&s);
    hola_model_free(m);
}

/* Decoding ends with the target; what is before it stays. */
static void test_target(void **state) {
    hola_model *m = model_of(0);
    const struct hl_eval_opts o = opts(600);
    struct hl_set s = {0};
    struct hl_doc *d;
    (void)state;
    CHECK_OK(hl_set_doc(&s, &d));
    struct hl_request r = {.kind = HL_ASK_GENERATE, .context = some_text(&s, 30, 3), .max_new = 30};
    CHECK_OK(hl_set_ask(&s, &r));
    struct hl_answer *a = answers(m, &o, &s), *b;
    assert_true(a[0].tokens == 30 && a[0].text.n >= 10);
    s.request[0].early = true;
    s.request[0].target = (struct hl_span){a[0].text.data + 3, 2};
    b = answers(m, &o, &s);
    assert_true(b[0].tokens < 30 && hl_py_contains(hl_span_text(&b[0].text), s.request[0].target));
    assert_memory_equal(a[0].text.data, b[0].text.data, (size_t)b[0].text.n);
    hl_answers_free(a, 1);
    hl_answers_free(b, 1);
    hl_set_free(&s);
    hola_model_free(m);
}

/* EOS ends an output as a text, too: one of the two tokens that this model can choose has it inside. */
static void test_eos_text(void **state) {
    static const char json[] = "{\"added_tokens\": [{\"id\": 1, \"content\": \"</s>\", \"special\": true}], "
                               "\"pre_tokenizer\": {\"type\": "
                               "\"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": {\"type\": "
                               "\"ByteLevel\"}, \"model\": {\"type\": "
                               "\"BPE\", \"vocab\": {\"<s>\": 0, \"</s>\": 1, \"a\": 2, \"x</s>y\": 3, "
                               "\"z</s>w\": 4}, \"merges\": []}}";
    char *dir = temp_new();
    hola_tokenizer *t = load(dir, "tokenizer.json", json, sizeof json - 1);
    const struct hl_eval_opts o = {.tokenizer = t, .bos = HL_BOS_NEVER, .max_length = 100};
    hola_config cfg = variant_config(0);
    hola_model *m;
    struct hl_set s = {0};
    struct hl_doc *d;
    (void)state;
    cfg.vocab_size = 5;
    CHECK_OK(hola_model_new(&m, &cfg, 11, &(hola_options){.threads = 1}));
    real *head = m->rows + m->params.tensor[m->params.head].offset;
    for (int64_t i = 0; i < cfg.vocab_size * cfg.hidden_size; i++) {
        const int64_t id = i / cfg.hidden_size; /* logits: 0, 0, 0, z, -z */
        head[i] = (real)(id == 3) - (real)(id == 4);
    }
    CHECK_OK(hl_set_doc(&s, &d));
    CHECK_OK(
        hl_set_ask(&s, &(struct hl_request){.kind = HL_ASK_GENERATE, .context = hl_span_of("aaa"), .max_new = 20}));
    struct hl_answer *a = answers(m, &o, &s);
    assert_true(a[0].text.n == 1 && strchr("xz", a[0].text.data[0]));
    assert_int_equal(a[0].tokens, 1);
    hl_answers_free(a, 1);
    hl_set_free(&s);
    hola_model_free(m);
    hola_tokenizer_free(t);
    temp_remove(dir);
}

/* ---- metrics ---- */

static void test_accuracy(void **state) {
    struct hl_set s = {0};
    struct hl_doc *d;
    struct hl_answer a[7] = {{0}};
    const double ll[] = {-4, -4, -9, -3, -2, -8, -1};
    const int64_t chars[] = {1, 2, 9, 3, 1, 8, 2};
    struct hl_metrics got = {0};
    (void)state;
    for (int i = 0; i < 7; i++) {
        if (i == 0 || i == 3) {
            CHECK_OK(hl_set_doc(&s, &d));
            d->gold = i ? 2 : 0;
        }
        CHECK_OK(hl_set_ask(&s, &(struct hl_request){.chars = chars[i]}));
        a[i].loglikelihood = ll[i];
    }
    hl_choice_norm_tally(NULL, &s, a, &got);
    /* first document: equals, the first wins (gold 0), and -9/9 wins per character; second: -1, then -1/2 of
     * 2 */
    assert_string_equal(got.metric[0].name, "acc");
    assert_true(got.metric[0].value == 0.5 && got.metric[0].error == 0.5);
    assert_string_equal(got.metric[1].name, "acc_norm");
    assert_true(got.metric[1].value == 0);
    assert_true(fabs(got.metric[1].chance - (1.0 / 3 + 1.0 / 4) / 2) < 1e-15);
    hl_metrics_free(&got);
    hl_set_free(&s);
}

/* What acc_norm divides by: code points of a choice, without the space before it. */
static void test_lengths(void **state) {
    const char *row = "{\"goal\": \"g\", \"sol1\": \"n\u00e9e\", \"sol2\": \"ab\", \"label\": 0}\n";
    char *dir = temp_new();
    struct hl_set s = {.file = hl_path_join(dir, "rows.jsonl")};
    (void)state;
    temp_write(dir, "rows.jsonl", row, (int64_t)strlen(row));
    CHECK_OK(hl_piqa_make(NULL, &(struct hl_eval_opts){0}, &s));
    assert_int_equal(s.n, 2);
    assert_int_equal(s.request[0].chars, 3);
    assert_int_equal(s.request[0].text.n, 5);
    assert_int_equal(s.request[1].chars, 2);
    hl_set_free(&s);
    temp_remove(dir);
}

static void test_perplexity(void **state) {
    const double want[] = {exp(24.0 / 10), exp(24.0 / 60), 24.0 / 60 / log(2), exp(24.0 / 16)};
    struct hl_answer a[2] = {{.loglikelihood = -20, .tokens = 12}, {.loglikelihood = -4, .tokens = 4}};
    struct hl_metrics got = {0};
    struct hl_set s = {0};
    struct hl_doc *d;
    (void)state;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hl_set_doc(&s, &d));
        d->words = 3 + 4 * i, d->bytes = 20 + 20 * i;
    }
    hl_perplexity_tally(NULL, &s, a, &got);
    for (int i = 0; i < 4; i++) /* words, bytes, bits per byte, tokens */
        if (!(fabs(got.metric[i].value - want[i]) < 1e-12 * want[i])) fail_msg("%s", got.metric[i].name);
    hl_metrics_free(&got);
    hl_set_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_company),    cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_resume),   cmocka_unit_test(test_memory),     cmocka_unit_test(test_target),
        cmocka_unit_test(test_eos_text), cmocka_unit_test(test_accuracy),   cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_lengths),  cmocka_unit_test(test_perplexity),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
