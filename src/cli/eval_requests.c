/* eval_requests.c -- hola eval --requests: lm-evaluation-harness's three kinds of request, one JSON object
 * per line, texts or token ids; answers on stdout in the same order. The harness itself uses python/hola/lm_eval.py. */
#include "cli/eval.h"
#include "eval/jsonl.h"
#include <stdlib.h>
#include <string.h>

/* Reads a list of ids in the model's vocabulary into the set's memory; if absent, *out is NULL. */
static hola_status read_ids(const struct hl_rowfile *f, struct hl_set *s, const char *name, int64_t vocab,
                            int32_t **out, int64_t *n) {
    const json_t *list = json_object_get(f->now, name);
    *out = NULL, *n = 0;
    if (!list) return HOLA_OK;
    if (!json_is_array(list)) return hl_row_fail(f, "\"%s\" is not a list", name);
    *n = (int64_t)json_array_size(list);
    *out = hl_set_bytes(s, (*n + 1) * (int64_t)sizeof **out);
    if (!*out) return hl_fail(HOLA_ENOMEM, "no memory for token ids");
    for (int64_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= vocab) return hl_row_fail(f, "\"%s\"[%lld] is not a token id", name, (long long)i);
        (*out)[i] = (int32_t)id;
    }
    return HOLA_OK;
}

/* context_ids and continuation_ids: feed all but the last, score the continuation */
static hola_status pair_of_ids(const struct hl_rowfile *f, struct hl_set *s, int64_t vocab, struct hl_request *r) {
    int32_t *c, *t, *ids, *next;
    int64_t nc, nt;
    hola_status st = read_ids(f, s, "context_ids", vocab, &c, &nc);
    if (st == HOLA_OK) st = read_ids(f, s, "continuation_ids", vocab, &t, &nt);
    if (st != HOLA_OK) return st;
    if (nc == 0 || nt == 0) return hl_row_fail(f, "empty context_ids or continuation_ids");
    ids = hl_set_bytes(s, (nc + nt) * (int64_t)sizeof *ids), next = hl_set_bytes(s, (nc + nt) * (int64_t)sizeof *next);
    if (!ids || !next) return hl_fail(HOLA_ENOMEM, "no memory for token ids");
    for (int64_t i = 0; i < nc + nt - 1; i++) {
        ids[i] = i < nc ? c[i] : t[i - nc];
        next[i] = i + 1 < nc ? -1 : t[i + 1 - nc];
    }
    *r = (struct hl_request){.kind = HL_ASK_IDS, .ids = ids, .next = next, .n_ids = nc + nt - 1};
    return HOLA_OK;
}

static hola_status keep_text(const struct hl_rowfile *f, struct hl_set *s, const char *name, struct hl_span *out) {
    hola_status st = hl_row_text(f, name, out);
    if (st != HOLA_OK) return st;
    *out = hl_set_keep(s, *out);
    return out->p ? HOLA_OK : hl_fail(HOLA_ENOMEM, "no memory for a text");
}

static hola_status generate_of(const struct hl_rowfile *f, struct hl_set *s, int64_t vocab, struct hl_request *r) {
    const json_t *until = json_object_get(f->now, "until"), *max = json_object_get(f->now, "max_gen_toks");
    int32_t *ids;
    hola_status st = read_ids(f, s, "context_ids", vocab, &ids, &r->n_ids);
    r->kind = HL_ASK_GENERATE;
    r->ids = ids;
    if (st == HOLA_OK && !ids) st = keep_text(f, s, "context", &r->context);
    r->max_new = json_is_integer(max) ? json_integer_value(max) : 256;
    if (st == HOLA_OK && (r->max_new < 1 || r->max_new > 1 << 20)) st = hl_row_fail(f, "max_gen_toks out of range");
    if (st == HOLA_OK && json_array_size(until) > HL_UNTIL) st = hl_row_fail(f, "more than %d of \"until\"", HL_UNTIL);
    for (size_t i = 0; st == HOLA_OK && i < json_array_size(until); i++) {
        const char *text = json_string_value(json_array_get(until, i));
        if (!text) return hl_row_fail(f, "\"until\"[%zu] is not a string", i);
        r->until[i] = hl_set_keep(s, hl_span_of(text)).p;
        if (!r->until[i]) st = hl_fail(HOLA_ENOMEM, "no memory for a text");
    }
    return st;
}

static hola_status read_request(const struct hl_rowfile *f, struct hl_set *s, int64_t vocab) {
    struct hl_request r = {.kind = HL_ASK_LOGLIKELIHOOD};
    struct hl_span type;
    struct hl_doc *d;
    hola_status st = hl_row_text(f, "type", &type);
    if (st != HOLA_OK) return st;
    if (hl_span_equal(type, hl_span_of("loglikelihood_rolling"))) {
        r.kind = HL_ASK_ROLLING;
        st = keep_text(f, s, "text", &r.text);
    } else if (hl_span_equal(type, hl_span_of("generate_until"))) {
        st = generate_of(f, s, vocab, &r);
    } else if (!hl_span_equal(type, hl_span_of("loglikelihood"))) {
        st = hl_row_fail(f, "\"type\" is not one of loglikelihood, loglikelihood_rolling, generate_until");
    } else if (hl_row_has(f, "continuation_ids")) {
        st = pair_of_ids(f, s, vocab, &r);
    } else {
        st = keep_text(f, s, "context", &r.context);
        if (st == HOLA_OK) st = keep_text(f, s, "continuation", &r.text);
    }
    if (st == HOLA_OK) st = hl_set_doc(s, &d);
    return st == HOLA_OK ? hl_set_ask(s, &r) : st;
}

static int print_answers(const struct hl_set *s, const struct hl_answer *a) {
    for (int64_t i = 0; i < s->n; i++) {
        const bool text = s->request[i].kind == HL_ASK_GENERATE;
        json_t *v = text ? json_pack("{s:s%}", "output", a[i].text.data ? a[i].text.data : "", (size_t)a[i].text.n)
                         : json_pack("{s:f, s:b}", "loglikelihood", a[i].loglikelihood, "is_greedy", (int)a[i].greedy);
        if (v) json_object_set_new(v, "tokens", json_integer((json_int_t)a[i].tokens));
        if (cli_print_json(v) != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

int eval_requests(const char *path, hola_model *m, const struct hl_eval_opts *o) {
    struct hl_rowfile f;
    struct hl_set s = {0};
    struct hl_answer *a = NULL;
    int rc = CLI_OK;
    hola_status st = hl_rowfile_open(&f, path);
    while (st == HOLA_OK) {
        st = hl_rowfile_next(&f);
        if (st != HOLA_OK || !f.now) break;
        st = read_request(&f, &s, hola_model_config(m)->vocab_size);
    }
    hl_rowfile_close(&f);
    if (st == HOLA_OK && !(a = calloc((size_t)s.n + 1, sizeof *a))) st = hl_fail(HOLA_ENOMEM, "no memory for answers");
    if (st == HOLA_OK) st = hl_eval_run(m, o, &s, a, NULL);
    rc = st == HOLA_OK ? print_answers(&s, a) : cli_fail_library();
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    return rc;
}
