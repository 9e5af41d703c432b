/* eval_run.c -- runs hola eval: everything is checked before anything is computed, the result is printed before files
 * are put in place, and computed results are shown even if something fails later. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include "cli/eval_model.h"
#include "cli/progress.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one task ---- */

struct running {
    struct progress bar;
    struct eval_journal journal;
    const struct hl_set *set;
    const char *task;
    struct eval_files *files;
};

/* If answers cannot be saved, the evaluation continues. */
static void journal_fails(struct running *r) {
    eval_files_failed(r->files);
    eval_journal_close(&r->journal);
}

static void show(void *ctx, double part, int64_t tokens) {
    struct running *r = ctx;
    const double t = progress_seconds(&r->bar);
    if (eval_journal_flush(&r->journal) != HOLA_OK) journal_fails(r);
    progress_show(&r->bar, part, "%s  %.0f tokens/s", r->task, t > 0 ? (double)tokens / t : 0.0);
}
static hola_status keep(void *ctx, int64_t i, const struct hl_answer *a) {
    struct running *r = ctx;
    if (r->journal.f && eval_journal_put(&r->journal, &r->set->request[i], i, a) != HOLA_OK) journal_fails(r);
    return HOLA_OK;
}
static void warn(void *ctx, const char *text) {
    struct running *r = ctx;
    progress_end(&r->bar);
    fprintf(stderr, "hola: %s: %s\n", r->task, text);
}

/* What the answers depend on: equal settings share a file of answers. */
static json_t *settings(const struct eval_model *m, const struct hl_task *t, const struct hl_set *s,
                        const struct eval_opts *o) {
    json_t *v =
        json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:b}", "task", t->name,
                  "version", s->version, "data", s->sha256, "model", m->sha256, "profile", (int)m->how.profile, "bos",
                  (int)m->how.bos, "retrieval", (int)m->how.retrieval, "precision", (int)m->how.precision, "max_length",
                  (json_int_t)m->how.max_length, "length", (json_int_t)(t->sized ? m->how.length : 0), "seed",
                  (json_int_t)m->how.seed, "limit", (json_int_t)m->how.limit, "requests", (json_int_t)s->n, "backend",
                  cli_backend(o->backend), "truncate", (int)m->how.truncate, "nvidia", (int)m->how.nvidia);
    if (v && o->products) json_object_set_new(v, "products", json_string(cli_products[o->products]));
    return v;
}

/* Adds the figures of a set to a task's result; further lengths are appended. */
static void fill(struct eval_result *y, const struct hl_task *t, struct hl_set *s, struct hl_answer *a,
                 int64_t length) {
    struct hl_metrics one = {.n = s->docs};
    y->task = t;
    y->documents += s->docs, y->requests += s->n;
    y->version = s->version, y->split = s->split, y->note = s->note;
    free(y->file);
    y->file = s->file, s->file = NULL;
    memcpy(y->sha256, s->sha256, sizeof y->sha256);
    t->tally(t, s, a, &one);
    for (int i = 0; i < one.count; i++) {
        if (y->metrics.count == HL_METRICS) {
            free(one.metric[i].x), free(one.metric[i].w);
            continue;
        }
        struct hl_figure *f = &y->metrics.metric[y->metrics.count++];
        *f = one.metric[i];                                      /* and the number of documents */
        if (length && !(f->name[0] >= '1' && f->name[0] <= '9')) /* RULER's names are lengths already */
            snprintf(f->name, sizeof f->name, "%.20s@%lld", one.metric[i].name, (long long)length);
    }
}

static hola_status dump(const struct hl_task *t, const struct hl_set *s, struct eval_files *w) {
    struct hl_text text = {0};
    if (!t->dump || w->dump.failed != HOLA_OK) return HOLA_OK;
    hola_status st = t->dump(t, s, &text);
    if (st == HOLA_OK && hl_writer_write(&w->dump, text.data, text.n) != HOLA_OK) eval_files_failed(w);
    free(text.data);
    return st;
}

/* One task at one length, into m's last result. */
static hola_status run_once(const struct eval_report *rep, hola_model *model, struct eval_model *m,
                            const struct hl_task *t, struct eval_files *w) {
    const struct eval_opts *o = rep->opts;
    struct hl_set s;
    struct running r = {.task = t->name, .set = &s, .files = w};
    struct eval_result *y = &m->result[m->n];
    progress_begin(&r.bar);
    hola_status st = hl_task_make(t, &m->how, &s);
    if (st != HOLA_OK) return st;
    struct hl_answer *a = calloc((size_t)s.n + 1, sizeof *a);
    if (!a) st = hl_fail(HOLA_ENOMEM, "%s: no memory for answers", t->name);
    if (st == HOLA_OK && o->dump && m == rep->model) st = dump(t, &s, w);
    if (st == HOLA_OK && o->out) st = eval_journal_open(&r.journal, o->out, t->name, settings(m, t, &s, o), &s, a);
    if (st == HOLA_OK && r.journal.found > 0)
        fprintf(stderr, "hola: %s: %lld of %lld answers are already there\n", t->name, (long long)r.journal.found,
                (long long)s.n);
    const struct hl_eval_hooks hooks = {.ctx = &r, .progress = show, .answered = keep, .warn = warn};
    if (st == HOLA_OK) st = hl_eval_run(model, &m->how, &s, a, &hooks);
    if (st == HOLA_OK && eval_journal_flush(&r.journal) != HOLA_OK) journal_fails(&r);
    y->seconds += progress_seconds(&r.bar);
    progress_end(&r.bar);
    if (st == HOLA_OK) fill(y, t, &s, a, o->n_lengths > 1 ? m->how.length : 0);
    if (st == HOLA_OK && o->samples && w->samples.failed == HOLA_OK &&
        eval_samples_add(&w->samples, o->models.n > 1 ? m->dir : NULL, t->name, m->how.length, &s, a) != HOLA_OK)
        eval_files_failed(w);
    eval_journal_close(&r.journal);
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    return st;
}

/* Tasks with prompts of a given length run once per length, others once. */
static int lengths_of(const struct eval_opts *o, const struct hl_task *t) {
    return t->sized && !o->prompts && o->n_lengths > 0 ? o->n_lengths : 1;
}

static hola_status run_task(const struct eval_report *r, hola_model *model, struct eval_model *m,
                            const struct hl_task *t, struct eval_files *w) {
    hola_status st = HOLA_OK;
    for (int i = 0; st == HOLA_OK && i < lengths_of(r->opts, t); i++) {
        m->how.length = t->sized ? r->opts->length[i] : 0;
        st = run_once(r, model, m, t, w);
    }
    if (m->result[m->n].task) m->n++; /* a task that failed at a later length keeps the earlier ones */
    return st;
}

/* ---- checks ---- */

/* With several models, an error names the model. */
static hola_status blame(const struct eval_opts *o, const char *dir, hola_status st) {
    char what[1024];
    if (st == HOLA_OK || o->models.n < 2) return st;
    snprintf(what, sizeof what, "%s", hola_last_error());
    return hl_fail(st, "%s: %s", dir, what);
}

/* Checks the files of all tasks and lengths, and that requests can be tokenized. For tasks with prompts of a given
 * length, one prompt is built as a sample: the others differ only in their words. */
static hola_status check_model(const struct eval_opts *o, hola_model *model, const struct eval_model *m,
                               const struct hl_task **task, int n, struct progress *bar) {
    hola_status st = HOLA_OK;
    for (int i = 0; st == HOLA_OK && i < n; i++)
        for (int k = 0; st == HOLA_OK && k < lengths_of(o, task[i]); k++) {
            struct hl_eval_opts how = m->how;
            struct hl_set s;
            how.length = task[i]->sized ? o->length[k] : 0;
            if (task[i]->sized && !o->prompts) how.limit = 1;
            progress_show(bar, -1, "checking %s", task[i]->name);
            st = hl_task_make(task[i], &how, &s);
            if (st != HOLA_OK) break;
            st = hl_eval_check(model, &how, &s);
            hl_set_free(&s);
        }
    return blame(o, m->dir, st);
}

/* Opens and checks all models, the first one last: it stays open in *l. */
static hola_status check_all(const struct eval_opts *o, struct eval_report *r, const struct hl_task **task, int n,
                             struct eval_loaded *l) {
    struct progress bar;
    hola_status st = HOLA_OK;
    progress_begin(&bar);
    for (int i = o->models.n - 1; st == HOLA_OK && i >= 0; i--) {
        eval_model_close(l);
        r->model[i].dir = o->models.item[i];
        st = eval_model_open(l, o, &r->model[i]);
        if (st == HOLA_OK) st = check_model(o, l->model, &r->model[i], task, n, &bar);
    }
    progress_end(&bar);
    return st;
}

/* ---- all of it ---- */

static hola_status run_models(struct eval_report *r, const struct hl_task **task, int n, struct eval_loaded *l,
                              struct eval_files *w) {
    hola_status st = HOLA_OK;
    for (int i = 0; st == HOLA_OK && i < r->opts->models.n; i++) {
        struct eval_model *m = &r->model[i];
        if (i > 0) eval_model_close(l), st = eval_model_open(l, r->opts, m);
        m->result = calloc((size_t)n + 1, sizeof *m->result);
        if (st == HOLA_OK && !m->result) st = hl_fail(HOLA_ENOMEM, "no memory for results");
        for (int k = 0; st == HOLA_OK && k < n; k++) st = run_task(r, l->model, m, task[k], w);
    }
    return st;
}

static int report(const struct eval_report *r) {
    int any = 0;
    for (int i = 0; i < r->n; i++) any += r->model[i].n;
    if (r->failed && !any) return CLI_OK;
    const int rc = r->opts->json ? cli_print_json(eval_json(r)) : eval_print_table(r);
    cli_flush(); /* what follows concerns files */
    return rc;
}

int eval_run_all(const struct eval_opts *o, const struct hl_task **task, int n) {
    struct eval_report r = {.opts = o, .n = o->models.n, .read = json_array()};
    struct eval_loaded l = {0};
    struct eval_files w = {0};
    char why[1024];
    r.model = calloc((size_t)r.n + 1, sizeof *r.model);
    hola_status st = r.model && r.read ? HOLA_OK : hl_fail(HOLA_ENOMEM, "no memory");
    for (int i = 0; st == HOLA_OK && i < o->results.n; i++) st = eval_results_read(&r, o->results.item[i]);
    if (st == HOLA_OK) st = eval_files_open(&w, o);
    if (st == HOLA_OK) st = check_all(o, &r, task, n, &l);
    const bool valid = st == HOLA_OK; /* else there is nothing to report, not even of other --results files */
    if (valid) st = run_models(&r, task, n, &l, &w);
    snprintf(why, sizeof why, "%s", st != HOLA_OK ? hola_last_error() : "");
    if (st != HOLA_OK) r.failed = why;
    int rc = valid ? report(&r) : CLI_OK;
    if (st != HOLA_OK) rc = cli_fail("%s", why);
    const int files = eval_files_close(&w, &r, st == HOLA_OK);
    eval_model_close(&l);
    for (int i = 0; r.model && i < r.n; i++) {
        for (int k = 0; k < r.model[i].n; k++)
            free(r.model[i].result[k].file), hl_metrics_free(&r.model[i].result[k].metrics);
        free(r.model[i].result);
    }
    free(r.model);
    json_decref(r.read);
    return rc != CLI_OK ? rc : files;
}
