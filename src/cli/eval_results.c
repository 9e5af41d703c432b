/* eval_results.c -- hola eval --results: merges earlier --json output into one report. */
#include "cli/eval.h"
#include "core/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static hola_status bad(const char *path, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: not what hola eval --json prints: %s", path, what);
}

static const char *text_of(const json_t *v, const char *name) { return json_string_value(json_object_get(v, name)); }
/* The index of a name; 0 if unknown. */
static int name_of(const json_t *v, const char *name, const char *const *names) {
    const char *text = text_of(v, name);
    for (int i = 0; text && names[i]; i++)
        if (strcmp(text, names[i]) == 0) return i;
    return 0;
}

static void take_settings(struct hl_eval_opts *h, const json_t *config) {
    const json_t *seed = json_object_get(config, "seed");
    h->profile = (enum hl_profile)name_of(config, "profile", hl_profile_names);
    h->bos = (enum hl_bos)name_of(config, "bos", hl_bos_names);
    h->retrieval = (enum hl_retrieval)name_of(config, "retrieval", hl_retrieval_names);
    h->precision = (enum hl_precision)name_of(config, "precision", hl_precision_names);
    h->max_length = json_integer_value(json_object_get(config, "max_length"));
    h->limit = json_integer_value(json_object_get(config, "limit"));
    h->seed = json_is_integer(seed) ? json_integer_value(seed) : -1;
}

/* The figures of one task: every number except "n" and the errors, which belong to their figures. */
static void take_figures(struct hl_metrics *m, json_t *result, const json_t *chance) {
    const char *name;
    json_t *value;
    json_object_foreach(result, name, value) {
        char error[96];
        const size_t n = strlen(name);
        snprintf(error, sizeof error, "%.80s_stderr", name);
        const json_t *e = json_object_get(result, error);
        if (strcmp(name, "n") == 0 || (n > 7 && strcmp(name + n - 7, "_stderr") == 0)) continue;
        if (m->count == HL_METRICS) continue;
        hl_metric_put(m, name, json_is_number(value) ? json_number_value(value) : NAN,
                      json_is_number(e) ? json_number_value(e) : NAN);
        const json_t *guess = json_object_get(chance, name);
        if (json_is_number(guess)) hl_metric_chance(m, json_number_value(guess));
    }
}

static hola_status take_task(struct eval_model *m, const char *name, json_t *result, const json_t *config,
                             const char *path) {
    const struct hl_task *t = hl_task_find(name);
    const char *sha = text_of(config, "file_sha256");
    if (!t || !json_is_object(result) || !json_is_object(config)) return bad(path, name);
    struct eval_result *more = realloc(m->result, (size_t)(m->n + 1) * sizeof *more);
    if (!more) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    m->result = more;
    struct eval_result *y = &more[m->n++];
    *y = (struct eval_result){.task = t,
                              .documents = json_integer_value(json_object_get(result, "n")),
                              .version = (int)json_integer_value(json_object_get(config, "version")),
                              .split = text_of(config, "split"),
                              .note = text_of(config, "note"),
                              .seconds = json_number_value(json_object_get(config, "seconds"))};
    snprintf(y->sha256, sizeof y->sha256, "%s", sha ? sha : "");
    y->metrics.n = y->documents;
    take_figures(&y->metrics, result, json_object_get(config, "chance"));
    if (m->n == 1) take_settings(&m->how, config);
    return y->metrics.count > 0 ? HOLA_OK : bad(path, name);
}

/* The report's model with that hash, or a new one. NULL: no room for it. */
static struct eval_model *model_of(struct eval_report *r, const json_t *v) {
    const char *sha = text_of(v, "model_sha256");
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->model[i].sha256, sha) == 0) return &r->model[i];
    struct eval_model *more = r->n < EVAL_MODELS ? realloc(r->model, (size_t)(r->n + 1) * sizeof *more) : NULL;
    if (!more) return NULL;
    r->model = more;
    struct eval_model *m = &more[r->n++];
    *m = (struct eval_model){.dir = text_of(v, "model"),
                             .parameters = json_integer_value(json_object_get(v, "parameters"))};
    snprintf(m->sha256, sizeof m->sha256, "%s", sha);
    for (int d = 0; d < HOLA_DTYPE_COUNT; d++)
        if (text_of(v, "dtype") && strcmp(text_of(v, "dtype"), hola_dtype_name((hola_dtype)d)) == 0)
            m->dtype = (hola_dtype)d;
    return m;
}

static hola_status take_model(struct eval_report *r, const json_t *v, const char *path) {
    json_t *results = json_object_get(v, "results"), *result;
    const json_t *configs = json_object_get(v, "configs");
    const char *name;
    hola_status st = HOLA_OK;
    if (!json_is_object(results) || !text_of(v, "model") || !text_of(v, "model_sha256"))
        return bad(path, "no \"results\" of a \"model\"");
    struct eval_model *m = model_of(r, v);
    if (!m && r->n == EVAL_MODELS) return hl_fail(HOLA_EINVAL, "%s: more than %d models", path, EVAL_MODELS);
    if (!m) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    json_object_foreach(results, name, result) {
        if (st == HOLA_OK) st = take_task(m, name, result, json_object_get(configs, name), path);
    }
    return st;
}

hola_status eval_results_read(struct eval_report *r, const char *path) {
    struct hl_map map;
    json_t *root = NULL;
    hola_status st = hl_map_open(&map, path);
    if (st == HOLA_OK) st = hl_json_object(&root, map.data, map.size, 1 << 28, path);
    hl_map_close(&map);
    if (st != HOLA_OK) return st;
    const json_t *models = json_object_get(root, "models");
    if (json_array_append_new(r->read, root) != 0) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    if (!models) return take_model(r, root, path);
    for (size_t i = 0; st == HOLA_OK && i < json_array_size(models); i++)
        st = take_model(r, json_array_get(models, i), path);
    return st;
}
