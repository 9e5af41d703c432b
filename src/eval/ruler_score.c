/* ruler_score.c -- RULER's score, and samples written by its tools. */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include <stdlib.h>
#include <string.h>

/* Control characters become newlines; strips white space. NULL: no memory. */
static char *tidy(const char *pred, int64_t len) {
    struct hl_text low = {.data = NULL};
    hl_text_clear(&low);
    hl_py_lower(&low, hl_py_strip((struct hl_span){pred, len}));
    for (int64_t i = 0; i < low.n; i++)
        if ((unsigned char)low.data[i] < 0x20) low.data[i] = '\n';
    if (low.failed) hl_text_free(&low);
    if (!low.data) return NULL;
    const struct hl_span s = hl_py_strip(hl_span_text(&low));
    memmove(low.data, s.p, (size_t)s.n);
    low.data[s.n] = 0;
    return low.data;
}

double hl_ruler_score(enum hl_ruler_task t, enum hl_ruler_variant v, const char *pred, int64_t len,
                      const struct hl_ruler_sample *s) {
    const bool any = v == HL_RULER_NVIDIA && (t == HL_RULER_QA_SQUAD || t == HL_RULER_QA_HOTPOT);
    char *text = tidy(pred, len);
    int64_t found = 0;
    for (int64_t i = 0; text && i < s->n_refs; i++) {
        struct hl_text ref = {.data = NULL};
        hl_text_clear(&ref);
        hl_py_lower(&ref, hl_span_of(s->refs[i]));
        found += !ref.failed && strstr(text, ref.data) != NULL;
        hl_text_free(&ref);
    }
    free(text);
    if (s->n_refs == 0) return 0;
    return any ? found > 0 : (double)found / (double)s->n_refs;
}

/* ---- samples from a file ---- */

static hola_status bad_line(const char *path, int64_t line, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: line %lld: %s", path, (long long)line, what);
}

static hola_status read_refs(const json_t *o, struct hl_draft *d, const char *path, int64_t line) {
    const json_t *outputs = json_object_get(o, "outputs");
    hola_status s = HOLA_OK;
    if (json_is_string(outputs))
        return hl_draft_ref(d, json_string_value(outputs), (int64_t)json_string_length(outputs));
    for (size_t i = 0; i < json_array_size(outputs) && s == HOLA_OK; i++) {
        const char *t = json_string_value(json_array_get(outputs, i));
        s = t ? hl_draft_ref(d, t, (int64_t)strlen(t)) : bad_line(path, line, "\"outputs\" are not strings");
    }
    return s == HOLA_OK && d->n_refs == 0 ? bad_line(path, line, "no \"outputs\"") : s;
}

static hola_status read_line(const char *path, int64_t line, const char *text, int64_t n, enum hl_ruler_task task,
                             struct hl_draft *d, struct hl_ruler_set *out) {
    json_error_t e;
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e), *doc = json_object_get(root, "doc");
    hola_status s = HOLA_OK;
    if (!root) return bad_line(path, line, e.text);
    if (!json_is_object(root)) return json_decref(root), bad_line(path, line, "not a JSON object");
    const json_t *o = json_is_object(doc) ? doc : root;
    const char *name = json_string_value(json_object_get(root, "task"));
    const char *input = json_string_value(json_object_get(o, "input"));
    const char *gen = json_string_value(json_object_get(o, "gen_prefix"));
    const char *answer = json_string_value(json_object_get(o, "answer_prefix"));
    struct hl_ruler_opts opts = {.length = json_integer_value(json_object_get(o, "max_length"))};
    struct hl_ruler_gen g = {.o = &opts};
    enum hl_ruler_task of;
    hl_draft_clear(d);
    if (name && hl_ruler_find(name, &of) && of != task) return json_decref(root), HOLA_OK;
    if (!input || !(gen || answer))
        s = bad_line(path, line, "no \"input\", or neither \"gen_prefix\" nor \"answer_prefix\"");
    if (s == HOLA_OK) s = read_refs(o, d, path, line);
    if (s == HOLA_OK) {
        hl_text_puts(&d->text, input);
        if (gen) hl_text_puts(&d->prefix, task == HL_RULER_CWE ? "\n\n" : " ");
        hl_text_puts(&d->prefix, gen ? gen : answer);
        s = hl_ruler_keep(&g, d, json_integer_value(json_object_get(o, "length")), out);
    }
    json_decref(root);
    return s;
}

/* ---- and to one ---- */

static json_t *sample_json(enum hl_ruler_task task, const struct hl_ruler_sample *s, int64_t index) {
    json_t *refs = json_array();
    for (int64_t i = 0; i < s->n_refs; i++) json_array_append_new(refs, json_string(s->refs[i]));
    return json_pack("{s:s, s:I, s:s, s:s, s:o, s:I, s:I}", "task", hl_ruler_name(task), "index", (json_int_t)index,
                     "input", s->input, "answer_prefix", s->prefix, "outputs", refs, "length", (json_int_t)s->length,
                     "max_length", (json_int_t)s->max_length);
}

hola_status hl_ruler_write(enum hl_ruler_task task, const struct hl_ruler_set *s, struct hl_text *out) {
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < s->n; i++) {
        json_t *v = sample_json(task, &s->sample[i], i);
        char *line = v ? json_dumps(v, 0) : NULL;
        const int64_t n = line ? (int64_t)strlen(line) : 0;
        st = line ? hl_text_room(out, n + 1) : hl_fail(HOLA_ENOMEM, "ruler: no memory for a sample");
        if (st == HOLA_OK) {
            memcpy(out->data + out->n, line, (size_t)n);
            out->data[out->n + n] = '\n';
            out->n += n + 1;
        }
        free(line);
        json_decref(v);
    }
    return st;
}

hola_status hl_ruler_read(const char *path, enum hl_ruler_task task, struct hl_ruler_set *out) {
    struct hl_map m;
    struct hl_draft d = {.cut = -1};
    int64_t line = 0;
    *out = (struct hl_ruler_set){.sample = NULL};
    hola_status s = hl_map_open(&m, path);
    if (s != HOLA_OK) return s;
    const char *end = m.data + m.size;
    for (const char *p = m.data, *q; s == HOLA_OK && p < end; p = q + 1) {
        q = memchr(p, '\n', (size_t)(end - p));
        if (!q) q = end;
        line++;
        const struct hl_span text = hl_py_strip((struct hl_span){p, q - p});
        if (text.n > 0) s = read_line(path, line, text.p, text.n, task, &d, out);
    }
    if (s == HOLA_OK && out->n == 0) s = hl_fail(HOLA_EFORMAT, "%s: no samples of %s", path, hl_ruler_name(task));
    hl_draft_free(&d);
    hl_map_close(&m);
    return s;
}
