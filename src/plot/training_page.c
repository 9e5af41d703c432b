/* training_page.c -- the page of hola plot and of a run: the data of its curves as JSON, which training.js draws. */
#include "core/file.h"
#include "core/json.h"
#include "eval/pystr.h"
#include "plot/page.h"
#include "plot/training_plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

HL_PAGE_FILE(hl_plot_training_js, "src/plot/training.js");

enum { POINTS = 2000 }; /* per curve; more are not visible, and make the page slow */

/* Six digits are enough for a curve. */
static json_t *real(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return isfinite(x) ? json_real(strtod(text, NULL)) : json_null();
}

/* The mean of what is finite in [a, b). */
static double mean(const struct hl_metrics_history *h, int64_t a, int64_t b, size_t field, bool whole) {
    double sum = 0, n = 0;
    for (int64_t i = a; i < b; i++) {
        const char *at = (const char *)&h->at[i] + field;
        const double x = whole ? (double)*(const int64_t *)at : *(const double *)at;
        if (isfinite(x)) sum += x, n++;
    }
    return n > 0 ? sum / n : NAN;
}

#define AT(f) offsetof(struct hl_metric, f)
static const struct {
    const char *name;
    size_t field;
    bool whole;
} curves[] = {{"step", AT(step), true},           {"tokens", AT(tokens), true}, {"seconds", AT(seconds), false},
              {"loss", AT(loss), false},          {"lr", AT(lr), false},        {"grad_norm", AT(grad_norm), false},
              {"tok_per_s", AT(tok_per_s), false}};

static json_t *curves_json(const struct hl_metrics_history *h) {
    const int64_t bin = h->n > POINTS ? (h->n + POINTS - 1) / POINTS : 1;
    json_t *all = json_object(), *val = json_array();
    for (size_t c = 0; c < sizeof curves / sizeof *curves; c++) {
        json_t *list = json_array();
        for (int64_t i = 0; i < h->n; i += bin)
            json_array_append_new(list,
                                  real(mean(h, i, i + bin < h->n ? i + bin : h->n, curves[c].field, curves[c].whole)));
        json_object_set_new(all, curves[c].name, list);
    }
    for (int64_t i = 0; i < h->n; i++) {
        const struct hl_metric *m = &h->at[i];
        if (isfinite(m->val_loss))
            json_array_append_new(val, json_pack("[I, I, o, o]", (json_int_t)m->step, (json_int_t)m->tokens,
                                                 real(m->seconds), real(m->val_loss)));
    }
    json_object_set_new(all, "val", val);
    return all;
}

/* The contents of run.json; NULL: none. Plots do not need it. */
static json_t *settings(const char *dir) {
    struct hl_map map = {0};
    struct stat st;
    json_t *root = NULL;
    char *path = dir ? hl_path_join(dir, "run.json") : NULL;
    if (path && stat(path, &st) == 0 && hl_map_open(&map, path) == HOLA_OK &&
        hl_json_object(&root, map.data, map.size, 16 << 20, path) != HOLA_OK)
        root = NULL;
    hl_map_close(&map);
    free(path);
    return root;
}

static json_t *parameters(const char *dir) {
    hola_config cfg;
    char *path = dir ? hl_path_join(dir, "latest") : NULL;
    struct stat st;
    json_t *n = path && stat(path, &st) == 0 && hola_config_read(&cfg, path) == HOLA_OK
                    ? json_integer((json_int_t)hola_config_parameters(&cfg))
                    : json_null();
    free(path);
    return n;
}

static json_t *run_json(const struct hl_plot_run *run) {
    const struct hl_metrics_history *h = run->history;
    const struct hl_metric *last = h->n ? &h->at[h->n - 1] : NULL, *best = hl_plot_best(h);
    struct hl_text name = {0};
    hl_text_add_valid(&name, hl_span_of(run->name));
    json_t *v = json_pack("{s:s%, s:I, s:o, s:o, s:o}", "name", name.data ? name.data : "", (size_t)name.n, "lines",
                          (json_int_t)h->n, "curves", curves_json(h), "parameters", parameters(run->dir), "last",
                          last ? json_pack("{s:I, s:I, s:o, s:o, s:I}", "step", (json_int_t)last->step, "tokens",
                                           (json_int_t)last->tokens, "seconds", real(last->seconds), "loss",
                                           real(last->loss), "skipped", (json_int_t)last->skipped)
                               : json_null());
    json_t *from = settings(run->dir);
    if (v && best)
        json_object_set_new(v, "best",
                            json_pack("{s:I, s:o}", "step", (json_int_t)best->step, "loss", real(best->val_loss)));
    if (v && from) json_object_set(v, "settings", from);
    json_decref(from);
    hl_text_free(&name);
    return v;
}

hola_status hl_plot_page(struct hl_text *t, const struct hl_plot_run *run, int n, int refresh) {
    json_t *list = json_array(), *root;
    for (int i = 0; i < n; i++) json_array_append_new(list, run_json(&run[i]));
    root = json_pack("{s:o, s:I}", "runs", list, "refresh", (json_int_t)refresh);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL, title[256];
    json_decref(root);
    if (!text) return hl_fail(HOLA_ENOMEM, "no memory for the plot");
    if (n == 1) snprintf(title, sizeof title, "Training %.200s", run[0].name);
    else snprintf(title, sizeof title, "Training, %d runs", n);
    hl_page_begin(t, title, "", refresh);
    hl_text_puts(t,
                 "<div id=\"runs\"></div>\n<div class=\"bar\" id=\"bar\"></div>\n<div class=\"charts\" id=\"charts\">"
                 "</div>\n<div id=\"settings\"></div>\n");
    hl_page_end(t, text, hl_plot_training_js, hl_plot_training_js_end - hl_plot_training_js);
    free(text);
    return hl_text_status(t);
}
