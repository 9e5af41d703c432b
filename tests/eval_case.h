/* eval_case.h -- shared by the tests of the evaluation engine: a byte-level model, and a set of requests. */
#ifndef EVAL_CASE_H
#define EVAL_CASE_H
#include "eval/eval.h"
#include "models.h"

enum { VOCAB = 258 };
static hola_tokenizer *tok; /* of bytes, for all tests of a program */
static inline int setup(void **state) {
    (void)state;
    return hola_tokenizer_load(&tok, "byte") != HOLA_OK;
}
static inline int teardown(void **state) {
    (void)state;
    hola_tokenizer_free(tok);
    return 0;
}

static inline hola_model *byte_model(const char *json, const char *backend, int threads) {
    hola_config cfg;
    CHECK_OK(hl_config_parse(&cfg, json, (int64_t)strlen(json), "model"));
    cfg.vocab_size = VOCAB;
    const hola_options opt = {.threads = threads, .backend = backend};
    hola_model *m;
    CHECK_OK(hola_model_new(&m, &cfg, 11, &opt));
    return m;
}

static inline struct hl_span some_text(struct hl_set *s, int64_t n, uint64_t seed) {
    char *p = hl_set_bytes(s, n + 1);
    for (int64_t i = 0; i < n; i++) p[i] = (char)('a' + check_mix(seed + (uint64_t)i) % 26);
    return (struct hl_span){p, n};
}

/* Documents of several choices, texts of several windows, prompts, ids: how many of each, how long. */
struct eval_case {
    uint64_t docs, texts, prompts, lists;
    uint64_t grow; /* contexts of 1 + i i grow bytes */
    uint64_t text, prompt, max_new;
};
static inline struct hl_set make_set(const struct eval_case *c) {
    struct hl_set s = {0};
    struct hl_doc *d;
    for (uint64_t i = 0; i < c->docs; i++) {
        const struct hl_span context = some_text(&s, (int64_t)(1 + i * i * c->grow), 1000 * i);
        CHECK_OK(hl_set_doc(&s, &d));
        for (uint64_t k = 0; k < 2 + i % 3; k++) {
            struct hl_request r = {.context = context, .text = some_text(&s, (int64_t)(1 + (i + k) % 7), 77 * i + k)};
            CHECK_OK(hl_set_ask(&s, &r));
        }
    }
    for (uint64_t i = 0; i < c->texts; i++) {
        CHECK_OK(hl_set_doc(&s, &d));
        struct hl_request r = {.kind = HL_ASK_ROLLING, .text = some_text(&s, (int64_t)(1 + i * c->text), 5 * i)};
        CHECK_OK(hl_set_ask(&s, &r));
    }
    for (uint64_t i = 0; i < c->prompts; i++) {
        CHECK_OK(hl_set_doc(&s, &d));
        struct hl_request r = {.kind = HL_ASK_GENERATE,
                               .context = some_text(&s, (int64_t)(1 + i * c->prompt), i),
                               .max_new = (int64_t)c->max_new};
        r.until[0] = i % 2 ? "qu" : "\n";
        CHECK_OK(hl_set_ask(&s, &r));
    }
    for (uint64_t i = 0; i < c->lists; i++) {
        CHECK_OK(hl_set_doc(&s, &d));
        int32_t *next = hl_set_bytes(&s, 100 * 4), *ids = hl_set_bytes(&s, 100 * 4);
        for (int64_t t = 0; t < 100; t++) {
            ids[t] = (int32_t)(check_mix(i * 100 + (uint64_t)t) % VOCAB);
            next[t] = t % 9 == 4 ? (int32_t)(t % VOCAB) : -1;
        }
        struct hl_request r = {.kind = HL_ASK_IDS, .ids = ids, .next = next, .n_ids = 100};
        CHECK_OK(hl_set_ask(&s, &r));
    }
    return s;
}

static inline struct hl_answer *answers(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s) {
    struct hl_answer *a = calloc((size_t)s->n + 1, sizeof *a);
    CHECK_OK(hl_eval_run(m, o, s, a, NULL));
    for (int64_t i = 0; i < s->n; i++) assert_true(a[i].done);
    return a;
}

#endif
