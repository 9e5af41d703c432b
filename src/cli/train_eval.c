/* train_eval.c -- benchmarks during training (--eval-tasks), using the code of hola eval. */
#include "cli/cli.h"
#include "cli/eval_model.h"
#include "cli/train.h"
#include "data/dataset.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int pick_tasks(struct train_eval *e, const char *list, const char *data) {
    char name[64];
    for (const char *p = list; *p;) {
        const size_t len = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), p);
        const struct hl_task *t = hl_task_find(name);
        if (!t) return cli_usage("train", "--eval-tasks: unknown task '%s'; 'hola eval --list' prints them all", name);
        if (t->files && !data) return cli_usage("train", "--eval-tasks %s needs --eval-data DIR", name);
        if (e->n == TRAIN_TASKS) return cli_usage("train", "--eval-tasks: more than %d tasks", TRAIN_TASKS);
        e->task[e->n++] = t;
        p += len + (p[len] == ',');
    }
    return e->n > 0 ? ARGS_RUN : cli_usage("train", "--eval-tasks names no task");
}

/* The tokenizer of the dataset; that of -m if the dataset has none. */
static hola_status find_tokenizer(struct train_eval *e, const struct train_opts *o, bool *bos) {
    struct hl_dataset *d = NULL;
    hola_status s = hl_dataset_open(&d, o->data, "train", 0);
    if (s != HOLA_OK) return s;
    const char *path = hl_dataset_info(d)->tokenizer, *dir = path ? o->data : o->model;
    if (!dir) s = hl_fail(HOLA_EINVAL, "%s: names no tokenizer, which --eval-tasks needs", o->data);
    if (s == HOLA_OK) s = hola_tokenizer_load(&e->tokenizer, path ? path : dir);
    if (s == HOLA_OK) s = eval_adds_bos(dir, bos);
    hl_dataset_free(d);
    return s;
}

int train_eval_open(struct train_eval *e, const struct train_opts *o, const hola_config *cfg) {
    bool bos = true;
    *e = (struct train_eval){0};
    const int rc = pick_tasks(e, o->eval_tasks, o->eval_data);
    const int n = rc == ARGS_RUN ? e->n : 0;
    e->n = 0; /* counts opened sets from here on */
    if (rc != ARGS_RUN) return rc;
    if (find_tokenizer(e, o, &bos) != HOLA_OK) return cli_fail_library();
    const enum hl_profile p = HL_PROFILE_HEAD;
    e->how =
        (struct hl_eval_opts){.data = o->eval_data,
                              .limit = o->eval_limit,
                              .profile = p,
                              .bos = hl_eval_bos(HL_BOS_AUTO, p, bos),
                              .retrieval = hl_eval_retrieval(HL_RETRIEVAL_AUTO, p),
                              .max_length = cfg->max_position_embeddings >= 2 ? cfg->max_position_embeddings : 2048,
                              .seed = -1,
                              .threads = (int)o->threads,
                              .tokenizer = e->tokenizer};
    for (; e->n < n; e->n++)
        if (hl_task_make(e->task[e->n], &e->how, &e->set[e->n]) != HOLA_OK) return cli_fail_library();
    return ARGS_RUN;
}

/* Aborts the evaluation if the run is asked to stop. */
static hola_status answered(void *ctx, int64_t i, const struct hl_answer *a) {
    const struct train_eval *e = ctx;
    (void)i, (void)a;
    return e->stop && *e->stop ? hl_fail(HOLA_EINVAL, "asked to stop") : HOLA_OK;
}

hola_status train_eval_run(void *ctx, hola_model *m, struct hl_train_figures *out, bool *stopped) {
    struct train_eval *e = ctx;
    const struct hl_eval_hooks hooks = {.ctx = e, .answered = answered};
    hola_status s = HOLA_OK;
    out->n = 0;
    for (int i = 0; s == HOLA_OK && i < e->n; i++) {
        struct hl_metrics y = {.n = e->set[i].docs};
        struct hl_answer *a = calloc((size_t)e->set[i].n + 1, sizeof *a);
        s = a ? hl_eval_run(m, &e->how, &e->set[i], a, &hooks) : hl_fail(HOLA_ENOMEM, "no memory for answers");
        if (s == HOLA_OK) e->task[i]->tally(e->task[i], &e->set[i], a, &y);
        for (int k = 0; s == HOLA_OK && k < y.count && out->n < HL_TRAIN_FIGURES; k++, out->n++) {
            out->at[out->n].value = y.metric[k].value;
            snprintf(out->at[out->n].name, sizeof out->at[0].name, "%.30s/%.30s", e->task[i]->name, y.metric[k].name);
        }
        hl_metrics_free(&y);
        if (a) hl_answers_free(a, e->set[i].n);
    }
    *stopped = s != HOLA_OK && e->stop && *e->stop;
    return *stopped ? HOLA_OK : s;
}

void train_eval_close(struct train_eval *e) {
    for (int i = 0; i < e->n; i++) hl_set_free(&e->set[i]);
    hola_tokenizer_free(e->tokenizer);
    *e = (struct train_eval){0};
}
