/* extract.c -- FDA, SWDE, SQuAD: a document and the name of a field; scores whether the model's output contains the
 * value. The prompt format has changed over time: --retrieval. */
#include "eval/jsonl.h"
#include "eval/tasks.h"
#include <stdlib.h>

static hola_status add(struct hl_set *out, struct hl_span prompt, struct hl_span value, const char *until,
                       int64_t max_new) {
    struct hl_doc *d;
    hola_status st = hl_set_doc(out, &d);
    if (st != HOLA_OK) return st;
    struct hl_request r = {.kind = HL_ASK_GENERATE,
                           .context = hl_set_keep(out, prompt),
                           .target = hl_set_keep(out, value),
                           .until = {until},
                           .early = true,
                           .max_new = max_new};
    return r.context.p && r.target.p ? hl_set_ask(out, &r) : hl_fail(HOLA_ENOMEM, "eval: no memory for a document");
}

/* ---- JRT's prompts ---- */

static struct hl_span strip_of(struct hl_span s, char c) {
    while (s.n > 0 && s.p[0] == c) s.p++, s.n--;
    while (s.n > 0 && s.p[s.n - 1] == c) s.n--;
    return s;
}

/* Strips trailing "key:", ignoring case, repeatedly. */
static struct hl_span cut_key(struct hl_span s, struct hl_span key) {
    while (key.n > 0 && s.n > key.n && s.p[s.n - 1] == ':') {
        const struct hl_span end = {s.p + s.n - 1 - key.n, key.n};
        if (!hl_py_contains(end, key)) break;
        s.n -= key.n + 1;
    }
    return s;
}

/* The document as one sentence, then the key with a capital. */
static hola_status jrt_prompt(struct hl_span text, struct hl_span key, bool swde, struct hl_text *out) {
    const int64_t summary = swde ? hl_py_find(text, "Summary of information above...") : -1;
    if (summary >= 0) text.n = summary;
    text = cut_key(text, key);
    text = strip_of(swde ? hl_py_strip(text) : strip_of(text, '\n'), '.');
    out->n = 0;
    hl_text_add(out, text);
    hl_text_puts(out, text.n > 0 && text.p[text.n - 1] == '.' ? " " : ". ");
    const int64_t at = out->n;
    hola_status st = hl_text_add(out, key);
    if (st == HOLA_OK && key.n > 0 && out->data[at] >= 'a' && out->data[at] <= 'z') out->data[at] -= 32;
    return hl_text_puts(out, ":");
}

/* ---- tasks ---- */

static bool is(const struct hl_task *t, const char *name) { return strcmp(t->name, name) == 0; }

/* SQuAD's stop strings and token budget changed with the harness's defaults. */
static void squad_limits(enum hl_profile p, const char **until, int64_t *max_new) {
    *until = p == HL_PROFILE_V0_4_8 || p == HL_PROFILE_BASED ? "\n" : "\n\n";
    *max_new = p == HL_PROFILE_HEAD || p == HL_PROFILE_V0_4_12 ? 256 : 48;
}

static hola_status extract_row(const struct hl_rowfile *f, const struct hl_task *t, const struct hl_eval_opts *o,
                               struct hl_text *buf, struct hl_set *out) {
    struct hl_span text, value, key = {0};
    const bool squad = is(t, "squad_completion");
    const char *until = "\n";
    int64_t max_new = 48;
    hola_status st = hl_row_text(f, "text", &text);
    if (st == HOLA_OK) st = hl_row_text(f, "value", &value);
    if (st == HOLA_OK && !squad && o->retrieval == HL_RETRIEVAL_JRT) st = hl_row_text(f, "key", &key);
    if (st != HOLA_OK) return st;
    if (o->retrieval != HL_RETRIEVAL_V0) value = hl_py_strip(value);
    if (o->retrieval == HL_RETRIEVAL_JRT && !squad) {
        st = jrt_prompt(text, key, is(t, "swde"), buf);
        text = hl_span_text(buf);
    } else if (o->retrieval != HL_RETRIEVAL_V0) text = hl_py_strip(text);
    if (squad && o->retrieval != HL_RETRIEVAL_JRT) squad_limits(o->profile, &until, &max_new);
    if (value.n == 0) return hl_row_fail(f, "\"value\" is empty");
    return st == HOLA_OK ? add(out, text, value, until, max_new) : st;
}

hola_status hl_extract_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    struct hl_rowfile f;
    struct hl_text buf = {0};
    hola_status st = hl_rowfile_open(&f, out->file);
    out->version = o->retrieval == HL_RETRIEVAL_V0 ? 0 : 1;
    if (strstr(out->file, "_rebuilt")) out->note = "rebuilt rows, not the official ones";
    while (st == HOLA_OK && !hl_set_full(out, o)) {
        st = hl_rowfile_next(&f);
        if (st != HOLA_OK || !f.now) break;
        st = extract_row(&f, t, o, &buf, out);
    }
    free(buf.data);
    hl_rowfile_close(&f);
    return st;
}

/* ---- SQuAD from its own file ---- */

static hola_status squad_question(const char *path, const json_t *context, const json_t *qa, int64_t i,
                                  struct hl_text *buf, struct hl_set *out) {
    const json_t *question = json_object_get(qa, "question");
    const json_t *answer = json_object_get(json_array_get(json_object_get(qa, "answers"), 0), "text");
    if (!json_is_string(context) || !json_is_string(question) || !json_is_string(answer))
        return hl_fail(HOLA_EFORMAT, "%s: question %lld: no context, question or answer text", path, (long long)i);
    buf->n = 0;
    hola_status st =
        hl_text_printf(buf, "%s\nQuestion: %s\nAnswer:", json_string_value(context), json_string_value(question));
    return st == HOLA_OK ? add(out, hl_span_text(buf), hl_span_of(json_string_value(answer)), "\n", 48) : st;
}

static hola_status squad_articles(const char *path, const json_t *data, const struct hl_eval_opts *o,
                                  struct hl_text *buf, struct hl_set *out) {
    size_t i, j, k;
    const json_t *article, *paragraph, *qa;
    hola_status st = HOLA_OK;
    json_array_foreach(data, i, article) {
        json_array_foreach(json_object_get(article, "paragraphs"), j, paragraph) {
            json_array_foreach(json_object_get(paragraph, "qas"), k, qa) {
                if (hl_set_full(out, o)) return HOLA_OK;
                st = squad_question(path, json_object_get(paragraph, "context"), qa, out->docs, buf, out);
                if (st != HOLA_OK) return st;
            }
        }
    }
    return out->docs > 0 ? HOLA_OK : hl_fail(HOLA_EFORMAT, "%s: no questions in it", path);
}

hola_status hl_squad_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    struct hl_map map;
    struct hl_text buf = {0};
    json_t *root = NULL;
    (void)t;
    hola_status st = hl_map_open(&map, out->file);
    if (st == HOLA_OK) st = hl_json_object(&root, map.data, map.size, 1 << 28, out->file);
    if (st == HOLA_OK) st = squad_articles(out->file, json_object_get(root, "data"), o, &buf, out);
    out->note = "not squad_completion: prompts from dev-v1.1.json";
    json_decref(root);
    free(buf.data);
    hl_map_close(&map);
    return st;
}

void hl_extract_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    double *x = malloc((size_t)s->docs * sizeof *x);
    (void)t;
    HL_ASSERT(x);
    for (int64_t i = 0; i < s->docs; i++)
        x[i] = a[i].score = hl_py_contains(hl_span_text(&a[i].text), s->request[i].target);
    hl_metric_mean(out, "contains", x, s->docs);
    free(x);
}
