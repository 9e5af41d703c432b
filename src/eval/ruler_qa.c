/* ruler_qa.c -- questions over documents: SQuAD's answerable ones with paragraphs of the same article, then
 * of others; HotpotQA's with its own ten paragraphs, then others. */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ONLY                                                                                                 \
    "Answer the question based on the given documents. Only give me the answer and do not output any other " \
    "words.\n\n"

enum { STEP = 10 };

struct question {
    const char *text;
    const json_t *answers; /* SQuAD: objects; HotpotQA: the string */
    int32_t own, n_own;    /* in index: its documents */
    int32_t more, n_more;  /* those of the same article */
};
struct qa {
    json_t *root;
    struct hl_spans doc;   /* sorted, unique */
    struct hl_text joined; /* HotpotQA: title and sentences */
    struct question *q;
    int64_t n_q, cap_q;
    int32_t *index;
    int64_t n_index, cap_index;
    int32_t *order; /* the documents in the harness's order, which it may shuffle */
    int64_t *pick;  /* [documents], scratch */
    int32_t *all;   /* [documents or units], scratch */
    int64_t cap_all;
    unsigned char *taken;
};

static hola_status bad_file(const struct hl_ruler_gen *g, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %s", hl_ruler_name(g->o->task), what);
}

static hola_status add_index(struct qa *w, int64_t i) {
    if (w->n_index == w->cap_index) {
        int64_t cap = 2 * w->cap_index + 1024;
        int32_t *v = realloc(w->index, (size_t)cap * sizeof *v);
        if (!v) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        w->index = v, w->cap_index = cap;
    }
    w->index[w->n_index++] = (int32_t)i;
    return HOLA_OK;
}

static hola_status add_question(struct qa *w, struct question q) {
    if (w->n_q == w->cap_q) {
        int64_t cap = 2 * w->cap_q + 1024;
        struct question *v = realloc(w->q, (size_t)cap * sizeof *v);
        if (!v) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        w->q = v, w->cap_q = cap;
    }
    w->q[w->n_q++] = q;
    return HOLA_OK;
}

static int64_t find_doc(const struct qa *w, const char *text, int64_t n) {
    return hl_spans_find(&w->doc, text, n) - w->doc.at;
}

/* ---- SQuAD ---- */

static const char *text_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

static hola_status squad_docs(struct hl_ruler_gen *g) {
    struct qa *w = g->state;
    size_t i, j;
    json_t *article, *paragraph;
    json_array_foreach(json_object_get(w->root, "data"), i, article)
        json_array_foreach(json_object_get(article, "paragraphs"), j, paragraph) {
        const char *t = text_of(paragraph, "context");
        hola_status s = t ? hl_spans_add(&w->doc, t, (int64_t)strlen(t), 0)
                          : bad_file(g, "squad.json: a paragraph without \"context\"");
        if (s != HOLA_OK) return s;
    }
    hl_spans_sort(&w->doc, true);
    return HOLA_OK;
}

static hola_status squad_paragraph(struct hl_ruler_gen *g, const json_t *article, const json_t *paragraph) {
    struct qa *w = g->state;
    const char *t = text_of(paragraph, "context");
    const int64_t own = find_doc(w, t, (int64_t)strlen(t));
    struct question q = {.own = (int32_t)w->n_index, .n_own = 1};
    json_t *other, *one;
    size_t i;
    hola_status s = add_index(w, own);
    q.more = (int32_t)w->n_index;
    json_array_foreach(json_object_get(article, "paragraphs"), i, other) {
        t = text_of(other, "context");
        int64_t d = find_doc(w, t, (int64_t)strlen(t));
        if (d != own && s == HOLA_OK) s = add_index(w, d);
    }
    q.n_more = (int32_t)w->n_index - q.more;
    json_array_foreach(json_object_get(paragraph, "qas"), i, one) {
        if (s != HOLA_OK || json_is_true(json_object_get(one, "is_impossible"))) continue;
        q.text = text_of(one, "question");
        q.answers = json_object_get(one, "answers");
        s = q.text && json_array_size(q.answers) > 0 ? add_question(w, q)
                                                     : bad_file(g, "squad.json: a question without text or answers");
    }
    return s;
}

/* Also searched in the directory of the benchmark of that name, next to RULER's data. */
static const char *squad_file(const char *dir) {
    static const char *const names[] = {"squad.json", "../squad/dev-v2.0.json",
                                        "../squad/dev-v2.0.from_explorer_html.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = hl_path_join(dir ? dir : "", names[i]);
        const bool there = path && access(path, R_OK) == 0;
        free(path);
        if (there) return names[i];
    }
    return names[0];
}

static hola_status read_squad(struct hl_ruler_gen *g) {
    struct qa *w = g->state;
    size_t i, j;
    json_t *article, *paragraph;
    hola_status s = hl_ruler_json(
        g->o->data, squad_file(g->o->data),
        "SQuAD 2.0's dev-v2.0.json (https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json) there", &w->root);
    if (s == HOLA_OK) s = squad_docs(g);
    if (s != HOLA_OK) return s;
    json_array_foreach(json_object_get(w->root, "data"), i, article) {
        json_array_foreach(json_object_get(article, "paragraphs"), j, paragraph) {
            s = squad_paragraph(g, article, paragraph);
            if (s != HOLA_OK) return s;
        }
    }
    return s;
}

/* ---- HotpotQA ---- */

/* "title\n" and the sentences of one entry of "context", appended to out. */
static bool hotpot_doc(const json_t *entry, struct hl_text *out) {
    const char *title = json_string_value(json_array_get(entry, 0));
    json_t *sentence;
    size_t i;
    if (!title || !json_is_array(json_array_get(entry, 1))) return false;
    hl_text_puts(out, title);
    hl_text_puts(out, "\n");
    json_array_foreach(json_array_get(entry, 1), i, sentence) {
        if (!json_is_string(sentence)) return false;
        hl_text_puts(out, json_string_value(sentence));
    }
    return !out->failed;
}

static hola_status hotpot_docs(struct hl_ruler_gen *g) {
    struct qa *w = g->state;
    size_t i, j;
    json_t *one, *entry;
    hola_status s = HOLA_OK;
    /* offsets first: the text moves while it grows */
    json_array_foreach(w->root, i, one) json_array_foreach(json_object_get(one, "context"), j, entry) {
        int64_t from = w->joined.n;
        if (!hotpot_doc(entry, &w->joined))
            return bad_file(g, "hotpotqa.json: a context that is not [title, [sentence ..]]");
        s = hl_spans_add(&w->doc, NULL, w->joined.n - from, 0);
        if (s != HOLA_OK) return s;
    }
    const char *p = w->joined.data;
    for (int64_t k = 0; k < w->doc.n; p += w->doc.at[k++].n) w->doc.at[k].text = p;
    hl_spans_sort(&w->doc, true);
    return s;
}

static hola_status read_hotpot(struct hl_ruler_gen *g) {
    struct qa *w = g->state;
    struct hl_text text = {.data = NULL};
    size_t i, j;
    json_t *one, *entry;
    hola_status s =
        hl_ruler_json(g->o->data, "hotpotqa.json",
                      "HotpotQA's hotpot_dev_distractor_v1.json (https://hotpotqa.github.io) there", &w->root);
    if (s == HOLA_OK) s = hotpot_docs(g);
    if (s != HOLA_OK) return s;
    json_array_foreach(w->root, i, one) {
        struct question q = {
            .own = (int32_t)w->n_index, .text = text_of(one, "question"), .answers = json_object_get(one, "answer")};
        json_array_foreach(json_object_get(one, "context"), j, entry) {
            hl_text_clear(&text);
            if (!hotpot_doc(entry, &text)) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
            if (s == HOLA_OK) s = add_index(w, find_doc(w, text.data, text.n));
            if (s != HOLA_OK) break;
        }
        q.n_own = (int32_t)w->n_index - q.own;
        if (s == HOLA_OK && !(q.text && json_is_string(q.answers) && q.n_own > 0 && q.n_own <= STEP))
            s = bad_file(g, "hotpotqa.json: an entry without question, answer or 1 to 10 contexts");
        if (s == HOLA_OK) s = add_question(w, q);
        if (s != HOLA_OK) break;
    }
    hl_text_free(&text);
    return s;
}

/* ---- one text ---- */

static hola_status qa_open(struct hl_ruler_gen *g) {
    struct qa *w = g->state = calloc(1, sizeof *w);
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    hola_status s = g->o->task == HL_RULER_QA_SQUAD ? read_squad(g) : read_hotpot(g);
    if (s != HOLA_OK) return s;
    if (w->n_q < g->o->samples)
        return hl_fail(HOLA_EINVAL, "%s: %lld samples asked for, the file has %lld questions",
                       hl_ruler_name(g->o->task), (long long)g->o->samples, (long long)w->n_q);
    w->order = malloc((size_t)w->doc.n * sizeof *w->order);
    w->pick = malloc((size_t)w->doc.n * sizeof *w->pick);
    w->taken = calloc((size_t)w->doc.n, 1);
    if (!w->order || !w->pick || !w->taken) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    for (int64_t i = 0; i < w->doc.n; i++) w->order[i] = (int32_t)i;
    g->step = g->probe = STEP;
    g->cap = g->nvidia ? 0 : w->doc.n;
    return HOLA_OK;
}

static void qa_close(struct hl_ruler_gen *g) {
    struct qa *w = g->state;
    if (!w) return;
    json_decref(w->root);
    hl_text_free(&w->joined);
    free(w->doc.at);
    free(w->q);
    free(w->index);
    free(w->order);
    free(w->pick);
    free(w->all);
    free(w->taken);
    free(w);
}

static int64_t qa_least(const struct hl_ruler_gen *g, int64_t index) {
    const struct qa *w = g->state;
    return w->q[index].n_own < w->doc.n ? w->q[index].n_own : w->doc.n;
}

/* Own documents, then random ones from `from` (n of them; NULL: the unused ones): *k in w->all. */
static hola_status choose(struct hl_ruler_gen *g, const int32_t *from, int64_t n, int64_t some, int64_t *k) {
    struct qa *w = g->state;
    int64_t *at = malloc((size_t)(some + 1) * sizeof *at);
    hola_status s = at ? HOLA_OK : hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK && !from) {
        n = 0;
        for (int64_t i = 0; i < w->doc.n; i++)
            if (!w->taken[i]) w->pick[n++] = i;
    }
    if (s == HOLA_OK) s = hl_py_sample(&g->random, n, some, at);
    for (int64_t i = 0; i < some && s == HOLA_OK; i++)
        w->all[(*k)++] = w->order[from ? (int64_t)from[at[i]] : w->pick[at[i]]];
    free(at);
    return s;
}

static hola_status choose_docs(struct hl_ruler_gen *g, const struct question *q, int64_t units, int64_t *n) {
    struct qa *w = g->state;
    const int32_t *own = w->index + q->own, *more = w->index + q->more;
    int64_t k = 0;
    hola_status s = HOLA_OK;
    for (int i = 0; i < q->n_own; i++) w->all[k++] = w->order[own[i]];
    if (units - q->n_own > q->n_more) {
        for (int i = 0; i < q->n_more; i++) w->all[k++] = w->order[more[i]];
        memset(w->taken, 0, (size_t)w->doc.n);
        for (int i = 0; i < q->n_own; i++) w->taken[own[i]] = 1;
        for (int i = 0; i < q->n_more; i++) w->taken[more[i]] = 1;
        s = choose(g, NULL, 0, units - q->n_own - q->n_more, &k);
    } else s = choose(g, more, q->n_more, units - q->n_own, &k);
    *n = k;
    return s;
}

static hola_status put_docs(struct hl_ruler_gen *g, const struct question *q, int64_t units, struct hl_text *out) {
    struct qa *w = g->state;
    int64_t n = 0, room = (units > w->doc.n ? units : w->doc.n) + q->n_own + q->n_more;
    struct hl_mt inner;
    hola_status s = HOLA_OK;
    int32_t *all = room > w->cap_all ? realloc(w->all, (size_t)room * sizeof *all) : w->all;
    if (!all) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (room > w->cap_all) w->all = all, w->cap_all = room;
    if (units < w->doc.n) s = choose_docs(g, q, units, &n);
    else /* all there are; NVIDIA starts over, up to the number */
        for (n = 0; n < (g->nvidia ? units : w->doc.n); n++) all[n] = w->order[n % w->doc.n];
    if (s != HOLA_OK) return s;
    hl_py_seed(&inner, g->inner_seed);
    hl_py_shuffle(&inner, all, n);
    /* the harness shuffles its own list in place here */
    if (units >= w->doc.n && !g->nvidia) memcpy(w->order, all, (size_t)n * sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        hl_text_printf(out, i ? "\n\nDocument %lld:\n" : "Document %lld:\n", (long long)(i + 1));
        hl_text_put(out, w->doc.at[all[i]].text, w->doc.at[all[i]].n);
    }
    return HOLA_OK;
}

static hola_status add_refs(const struct question *q, struct hl_draft *d) {
    const char *t = json_string_value(q->answers);
    hola_status s = t ? hl_draft_ref(d, t, (int64_t)strlen(t)) : HOLA_OK;
    for (size_t i = 0; i < json_array_size(q->answers) && s == HOLA_OK; i++) {
        t = text_of(json_array_get(q->answers, i), "text");
        s = t ? hl_draft_ref(d, t, (int64_t)strlen(t))
              : hl_fail(HOLA_EFORMAT, "squad.json: an answer without \"text\"");
    }
    return s;
}

static hola_status qa_build(struct hl_ruler_gen *g, int64_t units, int64_t index, bool search, struct hl_draft *d) {
    struct qa *w = g->state;
    const struct question *q = &w->q[index];
    hl_text_puts(&d->text, ONLY "The following are given documents.\n\n");
    hola_status s = put_docs(g, q, units, &d->text);
    if (s == HOLA_OK) s = add_refs(q, d);
    if (s != HOLA_OK) return s;
    hl_text_puts(&d->text, "\n\n" ONLY "Question: ");
    hl_text_puts(&d->text, q->text);
    if (g->nvidia) d->cut = d->text.n;
    hl_text_puts(g->nvidia ? &d->text : &d->prefix, " Answer:");
    if (!search) return HOLA_OK;
    hl_text_puts(&d->tail, " ");
    hl_py_repr(&d->tail, d->refs, d->n_refs);
    return HOLA_OK;
}

const struct hl_ruler_kind hl_ruler_qa = {.open = qa_open, .close = qa_close, .least = qa_least, .build = qa_build};
