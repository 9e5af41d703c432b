/* cmd_eval.c -- hola eval: benchmarks for one or several models. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include "cli/eval_model.h"
#include "cli/progress.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const rulers[] = {"harness", "nvidia", NULL};

#define OPTS struct eval_opts
static const struct arg options[] = {
    OPT_LIST('m', "model", models, "DIR", "model directory; several are compared"),
    OPT_STRING(0, "data", data, "DIR", "directory with the benchmarks' files (docs/eval.md)"),
    OPT_STRING(0, "tasks", tasks, "NAME[,NAME...]", "benchmarks to run; --list prints them all"),
    OPT_STRING(0, "text", text, "FILE", "perplexity of this text (the task `text`)"),
    OPT_INT(0, "limit", limit, 1, INT64_MAX, "N", "only the first N documents of each task"),
    OPT_CHOICE(0, "profile", profile, hl_profile_names, "version of the harness to follow (default harness-head)"),
    OPT_CHOICE(0, "bos", bos, hl_bos_names, "whether <s> precedes every prompt (default auto: as the profile does)"),
    OPT_CHOICE(0, "retrieval", retrieval, hl_retrieval_names,
               "form of the prompts of fda, swde and squad (default: the profile's)"),
    OPT_CHOICE(0, "ll-precision", precision, hl_precision_names,
               "log-likelihoods in fp32, or rounded as the harness does in bf16"),
    OPT_INT(0, "max-length", max_length, 2, 1 << 24, "N",
            "longest input in tokens (default: the model's max_position_embeddings)"),
    OPT_STRING(0, "length", lengths, "N[,N...]", "length of generated prompts in tokens; a list runs all of them"),
    OPT_INT('s', "seed", seed, 0, INT32_MAX, "N", "seed of generated prompts (default: the benchmark's own)"),
    OPT_FLAG(0, "truncate", truncate, "cut generated prompts that are too long"),
    OPT_CHOICE(0, "ruler", ruler, rulers, "whose version of RULER (default harness)"),
    OPT_STRING(0, "prompts", prompts, "FILE", "take RULER's samples from a file written by --dump or by either tool"),
    OPT_STRING(0, "dump", dump, "FILE", "write RULER's samples, one JSON object per line"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH", "tokenizer: a directory, a file or \"byte\" (default: the model's)"),
    OPT_STRING('o', "out", out, "DIR", "keep answers there; the same command again continues"),
    OPT_STRING(0, "log-samples", samples, "FILE", "write every answer, one JSON object per line"),
    OPT_STRING(0, "html", html, "FILE", "write a page with these results next to the paper's"),
    OPT_LIST(0, "results", results, "FILE", "report results that an earlier run printed with --json; repeatable"),
    OPT_STRING(0, "requests", requests, "FILE", "answer requests from a file instead of running tasks (docs/eval.md)"),
    OPT_FLAG(0, "list", list, "list the tasks, their files and where to get them"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "eval", "-m DIR [-m DIR...] --data DIR --tasks NAME[,NAME...] [options]",
    "Runs benchmarks as lm-evaluation-harness defines them: perplexity, multiple choice, extraction, RULER.", options};

/* ---- one task ---- */

struct running {
    struct progress bar;
    struct eval_journal journal;
    const struct hl_set *set;
    const char *task;
    hola_status failed; /* of a flush */
};

static void show(void *ctx, double part, int64_t tokens) {
    struct running *r = ctx;
    const double t = progress_seconds(&r->bar);
    if (r->failed == HOLA_OK) r->failed = eval_journal_flush(&r->journal);
    progress_show(&r->bar, part, "%s  %.0f tokens/s", r->task, t > 0 ? (double)tokens / t : 0.0);
}
static hola_status keep(void *ctx, int64_t i, const struct hl_answer *a) {
    struct running *r = ctx;
    if (!r->journal.f) return HOLA_OK;
    return r->failed == HOLA_OK ? eval_journal_put(&r->journal, &r->set->request[i], i, a) : r->failed;
}
static void warn(void *ctx, const char *text) {
    struct running *r = ctx;
    progress_end(&r->bar);
    fprintf(stderr, "hola: %s: %s\n", r->task, text);
}

/* What an answer depends on: the same settings, the same file of answers. */
static json_t *settings(const struct eval_model *m, const struct hl_task *t, const struct hl_set *s,
                        const struct eval_opts *o) {
    return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:b}", "task",
                     t->name, "version", s->version, "data", s->sha256, "model", m->sha256, "profile",
                     (int)m->how.profile, "bos", (int)m->how.bos, "retrieval", (int)m->how.retrieval, "precision",
                     (int)m->how.precision, "max_length", (json_int_t)m->how.max_length, "length",
                     (json_int_t)m->how.length, "seed", (json_int_t)m->how.seed, "limit", (json_int_t)m->how.limit,
                     "requests", (json_int_t)s->n, "backend", cli_backend(o->backend), "truncate", (int)m->how.truncate,
                     "nvidia", (int)m->how.nvidia);
}

/* Adds the figures of a set to a task's result: those of a second length behind those of the first. */
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
    for (int i = 0; i < one.count && y->metrics.count < HL_METRICS; i++) {
        struct hl_figure *f = &y->metrics.metric[y->metrics.count++];
        *f = one.metric[i];
        if (length && !(f->name[0] >= '1' && f->name[0] <= '9')) /* RULER's are lengths already */
            snprintf(f->name, sizeof f->name, "%.20s@%lld", one.metric[i].name, (long long)length);
    }
}

/* What a run of the program writes as it goes. */
struct outputs {
    struct hl_writer samples, dump;
    const struct eval_model *first; /* whose prompts are dumped */
};

static hola_status dump(const struct eval_opts *o, const struct hl_task *t, const struct hl_set *s, struct outputs *w) {
    struct hl_text text = {0};
    if (!o->dump || !t->dump) return HOLA_OK;
    hola_status st = t->dump(t, s, &text);
    if (st == HOLA_OK) st = hl_writer_write(&w->dump, text.data, text.n);
    free(text.data);
    return st;
}

/* One task at one length, into m's last result. */
static hola_status run_once(const struct eval_opts *o, hola_model *model, struct eval_model *m, const struct hl_task *t,
                            struct outputs *w) {
    struct hl_set s;
    struct running r = {.task = t->name, .set = &s};
    struct eval_result *y = &m->result[m->n];
    progress_begin(&r.bar);
    hola_status st = hl_task_make(t, &m->how, &s);
    if (st != HOLA_OK) return st;
    struct hl_answer *a = calloc((size_t)s.n + 1, sizeof *a);
    if (!a) st = hl_fail(HOLA_ENOMEM, "%s: no memory for answers", t->name);
    if (st == HOLA_OK && m == w->first) st = dump(o, t, &s, w);
    if (st == HOLA_OK && o->out) st = eval_journal_open(&r.journal, o->out, t->name, settings(m, t, &s, o), &s, a);
    if (st == HOLA_OK && r.journal.found > 0)
        fprintf(stderr, "hola: %s: %lld of %lld answers are already there\n", t->name, (long long)r.journal.found,
                (long long)s.n);
    const struct hl_eval_hooks hooks = {.ctx = &r, .progress = show, .answered = keep, .warn = warn};
    if (st == HOLA_OK) st = hl_eval_run(model, &m->how, &s, a, &hooks);
    if (st == HOLA_OK) st = r.failed;
    if (st == HOLA_OK) st = eval_journal_flush(&r.journal);
    y->seconds += progress_seconds(&r.bar);
    progress_end(&r.bar);
    if (st == HOLA_OK) fill(y, t, &s, a, o->n_lengths > 1 ? m->how.length : 0);
    if (st == HOLA_OK && o->samples)
        st = eval_samples_add(&w->samples, o->models.n > 1 ? m->dir : NULL, t->name, &s, a);
    eval_journal_close(&r.journal);
    hl_answers_free(a, s.n);
    hl_set_free(&s);
    return st;
}

static hola_status run_task(const struct eval_opts *o, hola_model *model, struct eval_model *m, const struct hl_task *t,
                            struct outputs *w) {
    hola_status st = HOLA_OK;
    const int lengths = t->sized && !o->prompts && o->n_lengths > 0 ? o->n_lengths : 1;
    for (int i = 0; st == HOLA_OK && i < lengths; i++) {
        m->how.length = o->length[i];
        st = run_once(o, model, m, t, w);
    }
    m->n++; /* what it has is freed, whatever came of it */
    return st;
}

/* ---- all ---- */

static int list_tasks(void) {
    for (int64_t i = 0; hl_task_at(i); i++) {
        const struct hl_task *t = hl_task_at(i);
        printf("%-18s %s\n", t->name, t->about);
        if (t->files) printf("%-18s   %s: %s\n", "", t->files, t->dataset);
    }
    return CLI_OK;
}

/* The tasks that --tasks and --text name; *n of them. Each once. */
static int pick_tasks(const struct eval_opts *o, const struct hl_task **task, int most, int *n) {
    char name[64];
    *n = 0;
    for (const char *p = o->tasks ? o->tasks : o->text ? "text" : ""; *p;) {
        const size_t len = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), p);
        const struct hl_task *t = hl_task_find(name);
        if (!t) return cli_usage("eval", "unknown task '%s'; --list prints them all", name);
        bool twice = false;
        for (int i = 0; i < *n; i++) twice = twice || task[i] == t;
        if (!twice && *n < most) task[(*n)++] = t;
        p += len + (p[len] == ',');
    }
    return *n > 0 ? CLI_OK : cli_usage("eval", "--tasks NAME[,NAME...] is required");
}

static hola_status run_model(const struct eval_opts *o, struct eval_model *m, const struct hl_task **task, int n,
                             struct outputs *w) {
    struct eval_loaded l;
    hola_status st = eval_model_open(&l, o, m);
    m->result = calloc((size_t)n, sizeof *m->result);
    if (st == HOLA_OK && !m->result) st = hl_fail(HOLA_ENOMEM, "no memory for results");
    for (int i = 0; st == HOLA_OK && i < n; i++) st = run_task(o, l.model, m, task[i], w);
    eval_model_close(&l);
    return st;
}

static hola_status run_models(const struct eval_opts *o, struct eval_report *r, const struct hl_task **task, int n) {
    struct outputs w = {.first = r->model};
    hola_status st = HOLA_OK;
    if (o->samples) st = hl_writer_open(&w.samples, o->samples);
    if (st == HOLA_OK && o->dump) st = hl_writer_open(&w.dump, o->dump);
    for (int i = 0; st == HOLA_OK && i < o->models.n; i++) {
        r->model[i].dir = o->models.item[i];
        st = run_model(o, &r->model[i], task, n, &w);
    }
    if (st == HOLA_OK && o->html) st = eval_page_write(o->html, r);
    if (st == HOLA_OK && o->dump) st = hl_writer_commit(&w.dump);
    if (st == HOLA_OK && o->samples) st = hl_writer_commit(&w.samples);
    hl_writer_abort(&w.dump);
    hl_writer_abort(&w.samples);
    return st;
}

static int run_all(const struct eval_opts *o, const struct hl_task **task, int n) {
    struct eval_report r = {.opts = o, .n = o->models.n, .read = json_array()};
    r.model = calloc((size_t)r.n + 1, sizeof *r.model);
    hola_status st = r.model && r.read ? HOLA_OK : hl_fail(HOLA_ENOMEM, "no memory");
    for (int i = 0; st == HOLA_OK && i < o->results.n; i++) st = eval_results_read(&r, o->results.item[i]);
    if (st == HOLA_OK) st = run_models(o, &r, task, n);
    const int rc = st != HOLA_OK ? cli_fail_library() : o->json ? cli_print_json(eval_json(&r)) : eval_print_table(&r);
    for (int i = 0; r.model && i < r.n; i++) {
        for (int k = 0; k < r.model[i].n; k++) free(r.model[i].result[k].file);
        free(r.model[i].result);
    }
    free(r.model);
    json_decref(r.read);
    return rc;
}

/* --length 4096,8192 */
static int read_lengths(struct eval_opts *o) {
    const int most = (int)(sizeof o->length / sizeof *o->length);
    for (const char *p = o->lengths; p && *p;) {
        char *end;
        const long long x = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || x < 1 || x > 1 << 24)
            return cli_usage("eval", "--length: '%s' is not a list of numbers from 1 to %d", o->lengths, 1 << 24);
        if (o->n_lengths == most) return cli_usage("eval", "--length: more than %d lengths", most);
        o->length[o->n_lengths++] = x;
        p = end + (*end == ',');
    }
    return CLI_OK;
}

int cmd_eval(int argc, char **argv) {
    struct eval_opts o = {.seed = -1};
    const struct hl_task *task[64];
    int n, rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (o.list) return list_tasks();
    if (o.results.n > 0) {
        if (o.models.n > 0 || o.json) return cli_usage("eval", "--results can be used only with --html");
        return run_all(&o, NULL, 0);
    }
    if (o.models.n == 0) return cli_usage("eval", "--model DIR is required");
    if (o.requests) {
        struct eval_model m = {.dir = o.models.item[0]};
        struct eval_loaded l;
        rc = eval_model_open(&l, &o, &m) == HOLA_OK ? eval_requests(o.requests, l.model, &m.how) : cli_fail_library();
        eval_model_close(&l);
        return rc;
    }
    rc = read_lengths(&o);
    if (rc == CLI_OK) rc = pick_tasks(&o, task, 64, &n);
    return rc == CLI_OK ? run_all(&o, task, n) : rc;
}
