/* eval_json.c -- the results of hola eval as JSON. */
#include "cli/eval.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

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
    if (o->n_lengths == 1 && y->task->sized) json_object_set_new(v, "length", json_integer((json_int_t)o->length[0]));
    if (o->n_lengths > 1 && y->task->sized) json_object_set_new(v, "length", json_string(o->lengths));
    if (o->products) json_object_set_new(v, "products", json_string(cli_products[o->products]));
    if (h->nvidia) json_object_set_new(v, "ruler", json_string("nvidia"));
    json_object_set_new(v, "split", y->split ? json_string(y->split) : json_null());
    if (y->file) json_object_set_new(v, "file", json_string(y->file));
    if (y->sha256[0]) json_object_set_new(v, "file_sha256", json_string(y->sha256));
    if (y->note) json_object_set_new(v, "note", json_string(y->note));
    json_t *chance = json_object();
    for (int k = 0; k < y->metrics.count; k++)
        if (isfinite(y->metrics.metric[k].chance))
            json_object_set_new(chance, y->metrics.metric[k].name, json_real(y->metrics.metric[k].chance));
    if (json_object_size(chance) > 0) json_object_set(v, "chance", chance);
    json_decref(chance);
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

/* Every figure of model m that the first model has as well: b - a, the test and its p. */
static json_t *compared_json(const struct eval_report *r, int m) {
    json_t *all = json_object();
    for (int i = 0; i < r->model[m].n; i++) {
        const struct eval_result *y = &r->model[m].result[i];
        json_t *task = json_object();
        for (int k = 0; k < y->metrics.count; k++) {
            struct hl_comparison c;
            if (!eval_compare(r, m, y->task->name, y->metrics.metric[k].name, &c)) continue;
            json_object_set_new(task, y->metrics.metric[k].name,
                                json_pack("{s:f, s:o, s:s}", "difference", c.difference, "p", cli_json_number(c.p),
                                          "test", hl_test_names[c.test]));
        }
        if (json_object_size(task) > 0) json_object_set(all, y->task->name, task);
        json_decref(task);
    }
    return all;
}

json_t *eval_json(const struct eval_report *r) {
    json_t *models = json_array(), *root = model_json(r->opts, &r->model[0]);
    for (int m = 0; m < r->n; m++) {
        json_t *one = model_json(r->opts, &r->model[m]);
        if (one && m > 0) json_object_set_new(one, "compared", compared_json(r, m));
        json_array_append_new(models, one);
    }
    if (root && r->failed) json_object_set_new(root, "incomplete", json_string(r->failed));
    if (root) json_object_set_new(root, "hola", json_string(hola_version()));
    if (root && r->n > 1) json_object_set(root, "models", models);
    json_decref(models);
    return root;
}
