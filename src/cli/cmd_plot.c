/* cmd_plot.c -- hola plot: the curves of one or several runs in one file. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include "plot/training_plot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct plot_opts {
    const char *out;
    bool json;
};

#define OPTS struct plot_opts
static const struct arg options[] = {
    OPT_NEEDED('o', "out", out, "FILE", "file to write: .html or .svg"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {"plot", "-o FILE RUN...",
                                            "Plots loss, learning rate, gradient norm and speed over steps, "
                                            "tokens or time. RUN is a directory\n"
                                            "of hola train or a metrics.jsonl.",
                                            options};

static bool is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static hola_status read_run(const char *run, struct hl_metrics_history *h) {
    if (!is_dir(run)) return hl_metrics_history_read(h, run);
    char *path = hl_path_join(run, "metrics.jsonl");
    hola_status s = path ? hl_metrics_history_read(h, path) : hl_fail(HOLA_ENOMEM, "%s: no memory", run);
    free(path);
    return s;
}

static json_t *describe(const char *name, const struct hl_metrics_history *h) {
    const struct hl_metric *last = h->n ? &h->at[h->n - 1] : NULL;
    const struct hl_metric *best = hl_plot_best(h);
    return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "run", name, "lines", (json_int_t)h->n, "malformed",
                     (json_int_t)h->bad, "step", (json_int_t)(last ? last->step : 0), "loss",
                     last ? cli_json_number(last->loss) : json_null(), "best_val_loss",
                     best ? cli_json_number(best->val_loss) : json_null(), "best_step",
                     best ? json_integer((json_int_t)best->step) : json_null());
}

static void print_run(const char *name, const struct hl_metrics_history *h) {
    const struct hl_metric *best = hl_plot_best(h);
    printf("%s: %lld steps", name, (long long)h->n);
    if (best) printf(", best validation loss %.4f at step %lld", best->val_loss, (long long)best->step);
    if (h->bad) printf(", %lld malformed lines skipped", (long long)h->bad);
    putchar('\n');
}

static int draw(const struct plot_opts *o, const char **words, int n) {
    struct hl_metrics_history *h = calloc((size_t)n, sizeof *h);
    struct hl_plot_run *run = calloc((size_t)n, sizeof *run);
    json_t *list = o->json ? json_array() : NULL;
    hola_status s = h && run ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%d runs", n);
    int rc = CLI_OK;
    for (int i = 0; i < n && s == HOLA_OK; i++) {
        s = read_run(words[i], &h[i]);
        if (s == HOLA_OK && h[i].n == 0) s = hl_fail(HOLA_EFORMAT, "%s: no line of it is a training step", words[i]);
        run[i] = (struct hl_plot_run){.name = words[i], .dir = is_dir(words[i]) ? words[i] : NULL, .history = &h[i]};
    }
    if (s == HOLA_OK) s = hl_plot_write(o->out, run, n, 0);
    for (int i = 0; i < n && s == HOLA_OK; i++) {
        if (list) json_array_append_new(list, describe(words[i], &h[i]));
        else print_run(words[i], &h[i]);
    }
    if (s != HOLA_OK) rc = cli_fail_library();
    else if (list) rc = cli_print_json(json_pack("{s:s, s:O}", "file", o->out, "runs", list));
    for (int i = 0; h && i < n; i++) hl_metrics_history_free(&h[i]);
    json_decref(list);
    free(h);
    free(run);
    return rc;
}

int cmd_plot(int argc, char **argv) {
    struct plot_opts o = {0};
    const char **words = calloc((size_t)argc + 1, sizeof *words), *dot;
    int n, rc;
    if (!words) return cli_fail("out of memory");
    n = args_split(options, &argc, argv, words);
    rc = args_parse(&command, argc, argv, &o);
    if (rc == ARGS_RUN) {
        dot = strrchr(o.out, '.');
        if (!dot || (strcmp(dot, ".html") != 0 && strcmp(dot, ".svg") != 0))
            rc = cli_usage("plot", "--out takes an .html or .svg file, not '%s'", o.out);
        else if (n == 0) rc = cli_usage("plot", "no RUN given");
        for (int i = 0; rc == ARGS_RUN && i < n; i++)
            if (!*words[i]) rc = cli_usage("plot", "a RUN is ''");
        if (rc == ARGS_RUN) rc = draw(&o, words, n);
    }
    free(words);
    return rc;
}
