/* choice.c -- multiple choice: the requests of each task, and acc and acc_norm. Contexts and choices follow the
 * harness's templates, from the hub's rows or other exports of the same data. */
#include "eval/jsonl.h"
#include "eval/tasks.h"
#include <stdlib.h>

enum { MOST = 16 };

/* Adds a document: the context, and " " + each choice. */
static hola_status add(struct hl_set *out, struct hl_span context, const struct hl_span *choice, int n, int64_t gold) {
    struct hl_doc *d;
    hola_status st = hl_set_doc(out, &d);
    if (st != HOLA_OK) return st;
    d->gold = gold;
    struct hl_request r = {.kind = HL_ASK_LOGLIKELIHOOD, .context = hl_set_keep(out, context)};
    for (int i = 0; st == HOLA_OK && i < n; i++) {
        char *p = hl_set_bytes(out, choice[i].n + 2);
        if (!p || !r.context.p) return hl_fail(HOLA_ENOMEM, "eval: no memory for a choice");
        p[0] = ' ';
        if (choice[i].n > 0) memcpy(p + 1, choice[i].p, (size_t)choice[i].n);
        r.text = (struct hl_span){p, choice[i].n + 1};
        r.chars = hl_py_len(choice[i]);
        st = hl_set_ask(out, &r);
    }
    return st;
}

/* Texts one after the other, in a buffer. */
static hola_status join(struct hl_text *out, const struct hl_span *part, int n) {
    hola_status st = HOLA_OK;
    out->n = 0;
    for (int i = 0; st == HOLA_OK && i < n; i++) st = hl_text_add(out, part[i]);
    return st;
}
#define JOIN(out, ...)                               \
    join(out, (const struct hl_span[]){__VA_ARGS__}, \
         (int)(sizeof((const struct hl_span[]){__VA_ARGS__}) / sizeof(struct hl_span)))
#define LIT(text) hl_span_of(text)

/* Calls `one` for every row. */
typedef hola_status (*row_reader)(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out);
static hola_status each_row(const struct hl_eval_opts *o, struct hl_set *out, row_reader one) {
    struct hl_rowfile f;
    struct hl_text buf = {0};
    hola_status st = hl_rowfile_open(&f, out->file);
    while (st == HOLA_OK && !hl_set_full(out, o)) {
        st = hl_rowfile_next(&f);
        if (st != HOLA_OK || !f.now) break;
        st = one(&f, &buf, out);
    }
    free(buf.data);
    hl_rowfile_close(&f);
    return st;
}

/* ---- ARC, OpenBookQA ---- */

/* `gold`, an index, or `answerKey`, one of the labels. */
static hola_status find_gold(const struct hl_rowfile *f, const json_t *labels, int n, int64_t *gold) {
    struct hl_span key;
    if (!labels || !hl_row_has(f, "answerKey")) return hl_row_index(f, "gold", n, gold);
    hola_status st = hl_row_text(f, "answerKey", &key);
    if (st != HOLA_OK) return st;
    key = hl_py_lstrip(key);
    for (int i = 0; i < n; i++) {
        const char *label = json_string_value(json_array_get(labels, (size_t)i));
        if (!label) return hl_row_fail(f, "\"choices\": label %d is not a string", i);
        if (hl_span_equal(hl_span_of(label), key)) return *gold = i, HOLA_OK;
    }
    return hl_row_fail(f, "\"answerKey\" is not one of the labels");
}

static hola_status arc_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    struct hl_span question, choice[MOST];
    const json_t *labels;
    int64_t gold;
    int n;
    hola_status st = hl_row_text(f, "question", &question);
    if (st == HOLA_OK) st = hl_row_list(f, "choices", choice, MOST, &n, &labels);
    if (st == HOLA_OK) st = find_gold(f, labels, n, &gold);
    if (st == HOLA_OK) st = JOIN(buf, LIT("Question: "), question, LIT("\nAnswer:"));
    return st == HOLA_OK ? add(out, hl_span_text(buf), choice, n, gold) : st;
}
hola_status hl_arc_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, arc_row);
}

static hola_status openbookqa_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    struct hl_span question, choice[MOST];
    const json_t *labels;
    int64_t gold;
    int n;
    (void)buf;
    hola_status st = hl_row_text_or(f, "question_stem", "question", &question);
    if (st == HOLA_OK) st = hl_row_list(f, "choices", choice, MOST, &n, &labels);
    if (st == HOLA_OK) st = find_gold(f, labels, n, &gold);
    return st == HOLA_OK ? add(out, question, choice, n, gold) : st;
}
hola_status hl_openbookqa_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, openbookqa_row);
}

/* ---- HellaSwag ---- */

/* Appends s without the shortest matches of \[.*?\], which do not cross a newline. */
static hola_status cut_brackets(struct hl_span s, struct hl_text *out) {
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < s.n;) {
        const char *p = s.p + i, *line = memchr(p, '\n', (size_t)(s.n - i));
        const char *end = *p == '[' ? memchr(p, ']', (size_t)((line ? line : s.p + s.n) - p)) : NULL;
        if (!end) st = hl_text_add(out, (struct hl_span){p, 1});
        i += end ? end + 1 - p : 1;
    }
    return st;
}

hola_status hl_hellaswag_clean(struct hl_span s, struct hl_text *out) {
    struct hl_text a = {0}, b = {0};
    hola_status st = hl_py_replace(&a, hl_py_strip(s), " [title]", ". ");
    if (st == HOLA_OK) st = cut_brackets(hl_span_text(&a), &b);
    if (st == HOLA_OK) st = hl_py_replace(out, hl_span_text(&b), "  ", " ");
    free(a.data);
    free(b.data);
    return st;
}

/* activity_label, ctx_a, ctx_b, cleaned */
static hola_status hellaswag_query(const struct hl_rowfile *f, struct hl_text *query) {
    struct hl_span label, a, b;
    struct hl_text raw = {0};
    hola_status st = hl_row_text(f, "activity_label", &label);
    if (st == HOLA_OK) st = hl_row_text(f, "ctx_a", &a);
    if (st == HOLA_OK) st = hl_row_text(f, "ctx_b", &b);
    if (st == HOLA_OK) st = JOIN(&raw, label, LIT(": "), a, LIT(" "));
    if (st == HOLA_OK) st = hl_py_capitalize(&raw, b);
    query->n = 0;
    if (st == HOLA_OK) st = hl_hellaswag_clean(hl_span_text(&raw), query);
    free(raw.data);
    return st;
}

static hola_status hellaswag_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    struct hl_span choice[MOST], query = {0};
    struct hl_text ending[MOST] = {{0}};
    const bool ready = hl_row_has(f, "query_ctxb_capitalized"); /* cleaned already */
    int64_t gold;
    int n = 0;
    hola_status st = hl_row_list(f, "endings", choice, MOST, &n, NULL);
    if (st == HOLA_OK) st = hl_row_index(f, "label", n, &gold);
    if (st == HOLA_OK) st = ready ? hl_row_text(f, "query_ctxb_capitalized", &query) : hellaswag_query(f, buf);
    for (int i = 0; st == HOLA_OK && !ready && i < n; i++) {
        st = hl_hellaswag_clean(choice[i], &ending[i]);
        choice[i] = hl_span_text(&ending[i]);
    }
    if (st == HOLA_OK) st = add(out, ready ? query : hl_span_text(buf), choice, n, gold);
    for (int i = 0; i < MOST; i++) free(ending[i].data);
    return st;
}
hola_status hl_hellaswag_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, hellaswag_row);
}

/* ---- PIQA, WinoGrande, BoolQ, SciQ ---- */

static hola_status piqa_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    struct hl_span goal, sol[2];
    int64_t gold;
    hola_status st = hl_row_text(f, "goal", &goal);
    if (st == HOLA_OK) st = hl_row_text(f, "sol1", &sol[0]);
    if (st == HOLA_OK) st = hl_row_text(f, "sol2", &sol[1]);
    if (st == HOLA_OK) st = hl_row_index(f, "label", 2, &gold);
    if (st == HOLA_OK) st = JOIN(buf, LIT("Question: "), goal, LIT("\nAnswer:"));
    return st == HOLA_OK ? add(out, hl_span_text(buf), sol, 2, gold) : st;
}
hola_status hl_piqa_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, piqa_row);
}

/* Each option completes the context; the text after the gap is scored under both. */
static hola_status winogrande_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    struct hl_span sentence, option[2];
    struct hl_doc *d;
    int64_t answer;
    hola_status st = hl_row_text(f, "sentence", &sentence);
    if (st == HOLA_OK) st = hl_row_text(f, "option1", &option[0]);
    if (st == HOLA_OK) st = hl_row_text(f, "option2", &option[1]);
    if (st == HOLA_OK) st = hl_row_index(f, "answer", 3, &answer);
    if (st != HOLA_OK) return st;
    const int64_t gap = hl_py_find(sentence, "_");
    if (answer == 0) return hl_row_fail(f, "\"answer\" is 0, not 1 or 2");
    if (gap < 0) return hl_row_fail(f, "\"sentence\" has no _");
    st = JOIN(buf, LIT(" "), hl_py_strip((struct hl_span){sentence.p + gap + 1, sentence.n - gap - 1}));
    struct hl_request r = {.kind = HL_ASK_LOGLIKELIHOOD, .text = hl_set_keep(out, hl_span_text(buf))};
    if (st == HOLA_OK) st = hl_set_doc(out, &d);
    if (st == HOLA_OK) d->gold = answer - 1;
    for (int i = 0; st == HOLA_OK && i < 2; i++) {
        st = JOIN(buf, ((struct hl_span){sentence.p, gap}), option[i]);
        r.context = hl_set_keep(out, hl_span_text(buf));
        if (!r.context.p || !r.text.p) st = hl_fail(HOLA_ENOMEM, "eval: no memory for a choice");
        if (st == HOLA_OK) st = hl_set_ask(out, &r);
    }
    return st;
}
hola_status hl_winogrande_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, winogrande_row);
}

static hola_status boolq_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    const struct hl_span choice[2] = {LIT("no"), LIT("yes")};
    struct hl_span passage, question;
    const json_t *answer = json_object_get(f->now, "answer");
    int64_t gold = json_is_true(answer);
    hola_status st = hl_row_text(f, "passage", &passage);
    if (st == HOLA_OK) st = hl_row_text(f, "question", &question);
    if (st == HOLA_OK && answer && !json_is_boolean(answer)) st = hl_row_fail(f, "\"answer\" is not true or false");
    if (st == HOLA_OK && !answer) st = hl_row_index(f, "label", 2, &gold);
    if (st == HOLA_OK) st = JOIN(buf, passage, LIT("\nQuestion: "), question, LIT("?\nAnswer:"));
    return st == HOLA_OK ? add(out, hl_span_text(buf), choice, 2, gold) : st;
}
hola_status hl_boolq_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, boolq_row);
}

static hola_status sciq_row(const struct hl_rowfile *f, struct hl_text *buf, struct hl_set *out) {
    static const char *const names[] = {"distractor1", "distractor2", "distractor3", "correct_answer"};
    struct hl_span support, question, choice[4];
    hola_status st = hl_row_text(f, "support", &support);
    if (st == HOLA_OK) st = hl_row_text(f, "question", &question);
    for (int i = 0; st == HOLA_OK && i < 4; i++) st = hl_row_text(f, names[i], &choice[i]);
    if (st == HOLA_OK) st = JOIN(buf, hl_py_lstrip(support), LIT("\nQuestion: "), question, LIT("\nAnswer:"));
    return st == HOLA_OK ? add(out, hl_span_text(buf), choice, 4, 3) : st;
}
hola_status hl_sciq_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    (void)t;
    return each_row(o, out, sciq_row);
}

/* ---- accuracy ---- */

/* The most likely choice, in total or per code point; ties go to the first. (An empty choice gives minus infinity per
 * code point, as in numpy.) */
static int64_t best(const struct hl_doc *d, const struct hl_request *r, const struct hl_answer *a, bool norm) {
    int64_t at = 0;
    double most = 0;
    for (int64_t i = 0; i < d->n; i++) {
        const double x = norm ? a[i].loglikelihood / (double)r[i].chars : a[i].loglikelihood;
        if (i > 0 && !(x > most)) continue;
        at = i, most = x;
    }
    return at;
}

static void accuracy(const char *name, const struct hl_set *s, const struct hl_answer *a, bool norm,
                     struct hl_metrics *out) {
    double *x = malloc((size_t)s->docs * sizeof *x), guess = 0;
    HL_ASSERT(x);
    for (int64_t i = 0; i < s->docs; i++) {
        const struct hl_doc *d = &s->doc[i];
        guess += 1 / (double)d->n;
        x[i] = best(d, s->request + d->first, a + d->first, norm) == d->gold;
    }
    hl_metric_mean(out, name, x, s->docs);
    hl_metric_chance(out, guess / (double)s->docs);
    free(x);
}

void hl_choice_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    (void)t;
    accuracy("acc", s, a, false, out);
}
void hl_choice_norm_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a,
                          struct hl_metrics *out) {
    hl_choice_tally(t, s, a, out);
    accuracy("acc_norm", s, a, true, out);
}
