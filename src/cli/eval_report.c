/* eval_report.c -- the results of hola eval as a table and as JSON. */
#include "cli/eval.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- table ---- */

/* Counts are whole, scores have four digits behind the point. */
static void print_number(char *out, size_t room, double x) {
    if (!isfinite(x)) snprintf(out, room, "-");
    else if (x == floor(x) && fabs(x) >= 1000) snprintf(out, room, "%.0f", x);
    else snprintf(out, room, "%.*f", fabs(x) < 1000 ? 4 : 2, x);
}

int eval_print_table(const struct eval_report *r) {
    size_t wide = 5;
    for (int m = 0; m < r->n; m++) {
        const size_t n = strlen(r->model[m].dir);
        if (n > wide) wide = n;
    }
    if (wide > 40) wide = 40;
    printf("%-*s  %-18s  %7s  %-18s %12s %10s\n", (int)wide, "model", "task", "n", "metric", "value", "stderr");
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) {
            const struct eval_result *y = &r->model[m].result[i];
            const size_t n = strlen(r->model[m].dir);
            for (int k = 0; k < y->metrics.count; k++) {
                char value[32], error[32] = "";
                print_number(value, sizeof value, y->metrics.metric[k].value);
                if (isfinite(y->metrics.metric[k].error)) print_number(error, sizeof error, y->metrics.metric[k].error);
                printf("%-*s  %-18s  %7" PRId64 "  %-18s %12s %10s\n", (int)wide,
                       r->model[m].dir + (n > wide ? n - wide : 0), y->task->name, y->documents,
                       y->metrics.metric[k].name, value, error);
            }
        }
    for (int m = 0; m < r->n; m++)
        for (int i = 0; i < r->model[m].n; i++) {
            const struct eval_result *y = &r->model[m].result[i];
            if (m == 0 && y->note) printf("%s: %s\n", y->task->name, y->note);
        }
    const struct hl_eval_opts *h = &r->model[0].how;
    printf("profile %s, bos %s, retrieval %s, max_length %" PRId64 ", log-likelihoods %s\n",
           hl_profile_names[h->profile], hl_bos_names[h->bos], hl_retrieval_names[h->retrieval], h->max_length,
           hl_precision_names[h->precision]);
    return CLI_OK;
}

/* ---- JSON ---- */

static json_t *result_json(const struct eval_result *y) {
    json_t *v = json_pack("{s:I}", "n", (json_int_t)y->documents);
    for (int k = 0; v && k < y->metrics.count; k++) {
        const struct hl_figure *f = &y->metrics.metric[k];
        char name[96];
        const bool count = !isfinite(f->error) && f->value == floor(f->value) && fabs(f->value) < 1e15;
        json_object_set_new(v, f->name, count ? json_integer((json_int_t)f->value) : cli_json_number(f->value));
        snprintf(name, sizeof name, "%s_stderr", f->name);
        if (isfinite(f->error)) json_object_set_new(v, name, cli_json_number(f->error));
    }
    return v;
}

static json_t *config_json(const struct eval_opts *o, const struct eval_model *m, const struct eval_result *y) {
    const struct hl_eval_opts *h = &m->how;
    json_t *v = json_pack("{s:i, s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:f}", "version", y->version, "profile",
                          hl_profile_names[h->profile], "bos", hl_bos_names[h->bos], "retrieval",
                          hl_retrieval_names[h->retrieval], "max_length", (json_int_t)h->max_length, "precision",
                          hl_precision_names[h->precision], "limit", (json_int_t)h->limit, "requests",
                          (json_int_t)y->requests, "seconds", y->seconds);
    if (!v) return NULL;
    json_object_set_new(v, "seed", h->seed >= 0 ? json_integer((json_int_t)h->seed) : json_null());
    if (o->n_lengths == 1) json_object_set_new(v, "length", json_integer((json_int_t)o->length[0]));
    if (o->n_lengths > 1) json_object_set_new(v, "length", json_string(o->lengths));
    if (h->nvidia) json_object_set_new(v, "ruler", json_string("nvidia"));
    json_object_set_new(v, "split", y->split ? json_string(y->split) : json_null());
    if (y->file) json_object_set_new(v, "file", json_string(y->file));
    if (y->sha256[0]) json_object_set_new(v, "file_sha256", json_string(y->sha256));
    if (y->note) json_object_set_new(v, "note", json_string(y->note));
    json_object_set_new(v, "metric", json_string(y->task->main ? y->task->main : y->metrics.metric[0].name));
    return v;
}

static json_t *model_json(const struct eval_opts *o, const struct eval_model *m) {
    json_t *results = json_object(), *configs = json_object();
    for (int i = 0; i < m->n; i++) {
        json_object_set_new(results, m->result[i].task->name, result_json(&m->result[i]));
        json_object_set_new(configs, m->result[i].task->name, config_json(o, m, &m->result[i]));
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:o, s:o}", "model", m->dir, "model_sha256", m->sha256, "dtype",
                     hola_dtype_name(m->dtype), "parameters", (json_int_t)m->parameters, "results", results, "configs",
                     configs);
}

json_t *eval_json(const struct eval_report *r) {
    json_t *models = json_array(), *root = model_json(r->opts, &r->model[0]);
    for (int m = 0; m < r->n; m++) json_array_append_new(models, model_json(r->opts, &r->model[m]));
    if (root) json_object_set_new(root, "hola", json_string(hola_version()));
    if (root && r->n > 1) json_object_set(root, "models", models);
    json_decref(models);
    return root;
}
