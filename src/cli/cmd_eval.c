/* cmd_eval.c -- hola eval: benchmarks of one or several models. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include "cli/eval_model.h"
#include "cli/suggest.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const rulers[] = {"harness", "nvidia", NULL};

#define OPTS struct eval_opts
static const struct arg options[] = {
    OPT_LIST('m', "model", models, "DIR",
             "model directory (default: $HOLA_MODEL, else the bundled one); several are compared"),
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
    OPT_STRING(0, "html", html, "FILE", "write a page with tables and figures of the results"),
    OPT_LIST(0, "results", results, "FILE", "report results that an earlier run printed with --json; repeatable"),
    OPT_STRING(0, "requests", requests, "FILE", "answer requests from a file instead of running tasks (docs/eval.md)"),
    OPT_FLAG(0, "list", list, "list the tasks, their files and where to get them"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_PRECISION,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "eval", "[-m DIR] [-m DIR...] --data DIR --tasks NAME[,NAME...] [options]",
    "Runs benchmarks as lm-evaluation-harness defines them: perplexity, multiple choice, extraction, RULER.", options};

static int list_tasks(void) {
    for (int64_t i = 0; hl_task_at(i); i++) {
        const struct hl_task *t = hl_task_at(i);
        printf("%-18s %s\n", t->name, t->about);
        if (t->files) printf("%-18s   %s: %s\n", "", t->files, t->dataset);
    }
    return CLI_OK;
}

/* The tasks named by --tasks and --text, without duplicates; *n of them. */
static int pick_tasks(const struct eval_opts *o, const struct hl_task **task, int most, int *n) {
    char name[64];
    *n = 0;
    for (const char *p = o->tasks ? o->tasks : o->text ? "text" : ""; *p;) {
        const size_t len = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), p);
        const struct hl_task *t = hl_task_find(name);
        if (!t) {
            struct suggest near;
            suggest_begin(&near, name);
            for (int64_t i = 0; hl_task_at(i); i++) suggest_try(&near, hl_task_at(i)->name);
            return cli_usage("eval", "unknown task '%s'%s; --list prints them all", name, suggest_text(&near, ""));
        }
        bool twice = false;
        for (int i = 0; i < *n; i++) twice = twice || task[i] == t;
        if (!twice && *n < most) task[(*n)++] = t;
        p += len + (p[len] == ',');
    }
    return *n > 0 ? CLI_OK : cli_usage("eval", "--tasks NAME[,NAME...] is required");
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
        return eval_run_all(&o, NULL, 0);
    }
    rc = cli_models_or_default("eval", &o.models);
    if (rc != ARGS_RUN) return rc;
    if (o.requests) {
        struct eval_model m = {.dir = o.models.item[0]};
        struct eval_loaded l;
        rc = eval_model_open(&l, &o, &m) == HOLA_OK ? eval_requests(o.requests, l.model, &m.how) : cli_fail_library();
        eval_model_close(&l);
        return rc;
    }
    rc = read_lengths(&o);
    if (rc == CLI_OK) rc = pick_tasks(&o, task, 64, &n);
    return rc == CLI_OK ? eval_run_all(&o, task, n) : rc;
}
