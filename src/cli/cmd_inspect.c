/* cmd_inspect.c -- hola inspect: config, tensor statistics, and parameters by part; or what a text leaves in the exact
 * memory (cache_view_report.c). */
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/cache_view.h"
#include "model/config.h"
#include "model/model.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect_opts {
    const char *model;
    struct cache_view_opts memory;
    int64_t threads;
    int backend;
    bool json;
};

#define OPTS struct inspect_opts
static const struct arg options[] = {
    OPT_MODEL,
    OPT_FLAG(0, "memory", memory.on, "show what a text leaves in the exact memory of every layer and head"),
    OPT_STRING('f', "file", memory.file, "FILE", "text file; the tokenizer's BOS is put before the text"),
    OPT_STRING(0, "ids", memory.ids, "FILE", "token ids instead of a text, as a JSON array"),
    OPT_STRING(0, "tokenizer", memory.tokenizer, "PATH",
               "tokenizer: a directory, a file or \"byte\" (default: the model's)"),
    OPT_INT(0, "query", memory.query, 0, INT64_MAX, "N", "position whose read is shown (default: the last)"),
    OPT_INT(0, "layer", memory.layer, 0, INT64_MAX, "N", "only this layer"),
    OPT_INT(0, "head", memory.head, 0, INT64_MAX, "N", "only this head; with --layer: token by token"),
    OPT_INT(0, "top", memory.top, 1, INT64_MAX, "N", "tokens to list then (default: all kept tokens)"),
    OPT_STRING(0, "html", memory.html, "FILE", "also write a page to explore in a browser"),
    OPT_CHOICE(0, "color", memory.color, cache_view_colors, "show the text as a heat map (default: on a terminal)"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "inspect", "[-m DIR] [--memory (-f FILE | --ids FILE)] [options]",
    "Prints the configuration of a model, its tensors, the parameters of each part and the size of a\n"
    "session. With --memory: which tokens of a text every layer and head keeps, their surprise m, position\n"
    "and age, how much one token reads of them, and which of them a window of recent tokens would hold too.",
    options};

/* ---- configuration ---- */

/* The model's next field in the order of struct hola_config; after: NULL, or the previous field. */
static const struct hl_field *next_field(const hola_config *c, const struct hl_field *after) {
    const struct hl_field *next = NULL;
    for (const struct hl_field *f = hl_config_fields; f->name; f++)
        if (f->kind != HL_FIELD_OTHER && hl_config_uses(c, f) && (!after || f->at > after->at) &&
            (!next || f->at < next->at))
            next = f;
    return next;
}

static json_t *field_json(const hola_config *c, const struct hl_field *f) {
    const int64_t x = hl_field_int(f, c);
    if (f->kind == HL_FIELD_REAL) return cli_json_number(hl_field_real(f, c));
    if (f->kind == HL_FIELD_BOOL) return json_boolean(x);
    return f->kind == HL_FIELD_NAME ? json_string(f->text((int)x)) : json_integer(x);
}

static json_t *config_json(const hola_config *c) {
    json_t *o = json_object();
    for (const struct hl_field *f = NULL; (f = next_field(c, f));)
        if (json_object_set_new(o, f->name, field_json(c, f))) return NULL;
    return o;
}

static void print_config(const hola_config *c) {
    for (const struct hl_field *f = NULL; (f = next_field(c, f));) {
        const int64_t x = hl_field_int(f, c);
        printf("%-24s ", f->name);
        if (f->kind == HL_FIELD_REAL) printf("%g\n", hl_field_real(f, c));
        else if (f->kind == HL_FIELD_BOOL) printf("%s\n", x ? "true" : "false");
        else if (f->kind == HL_FIELD_NAME) printf("%s\n", f->text((int)x));
        else printf("%" PRId64 "\n", x);
    }
}

/* ---- tensors ---- */

struct tensor {
    hola_tensor_info info;
    double rms, min, max; /* of the finite values */
    int64_t nonfinite;
};

static void measure(struct tensor *t, const float *x) {
    double sum = 0;
    t->min = INFINITY, t->max = -INFINITY;
    for (int64_t i = 0; i < t->info.count; i++) {
        double v = (double)x[i];
        if (!isfinite(v)) {
            t->nonfinite++;
            continue;
        }
        sum += v * v;
        t->min = fmin(t->min, v), t->max = fmax(t->max, v);
    }
    t->rms = sqrt(sum / (double)(t->info.count - t->nonfinite));
}

/* Statistics of all tensors of the model; NULL after printing an error. */
static struct tensor *read_tensors(const hola_model *m, int64_t n) {
    struct tensor *t = calloc((size_t)n + 1, sizeof *t);
    float *x = NULL;
    int64_t most = 0;
    if (!t) goto memory;
    for (int64_t i = 0; i < n; i++) {
        if (hola_model_tensor(m, i, &t[i].info) != HOLA_OK) goto library;
        if (t[i].info.count > most) most = t[i].info.count;
    }
    x = malloc((size_t)(most + 1) * sizeof *x);
    if (!x) goto memory;
    for (int64_t i = 0; i < n; i++) {
        if (hola_model_tensor_read(m, i, x) != HOLA_OK) goto library;
        measure(&t[i], x);
    }
    free(x);
    return t;
memory:
    cli_fail("out of memory for %" PRId64 " tensors", n);
    free(t);
    return NULL;
library:
    cli_fail_library();
    free(x);
    free(t);
    return NULL;
}

static json_t *tensors_json(const struct tensor *t, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        const hola_tensor_info *f = &t[i].info;
        json_t *shape = json_array();
        for (int d = 0; d < f->ndim; d++)
            if (json_array_append_new(shape, json_integer(f->dim[d]))) return NULL;
        json_t *o = json_pack("{s:s, s:o, s:s, s:I, s:b, s:o, s:o, s:o, s:I}", "name", f->name, "shape", shape, "dtype",
                              hola_dtype_name(f->dtype), "count", (json_int_t)f->count, "trained", (int)f->trained,
                              "rms", cli_json_number(t[i].rms), "min", cli_json_number(t[i].min), "max",
                              cli_json_number(t[i].max), "nonfinite", (json_int_t)t[i].nonfinite);
        if (json_array_append_new(list, o)) return NULL;
    }
    return list;
}

static void print_tensors(const struct tensor *t, int64_t n) {
    printf("\n%-44s %14s %5s %12s %10s %10s %10s\n", "tensor", "shape", "dtype", "parameters", "rms", "min", "max");
    for (int64_t i = 0; i < n; i++) {
        const hola_tensor_info *f = &t[i].info;
        char shape[80] = "", count[CLI_GROUPED];
        for (int d = 0, k = 0; d < f->ndim; d++)
            k += snprintf(shape + k, sizeof shape - (size_t)k, "%s%" PRId64, d ? "x" : "", f->dim[d]);
        printf("%-44s %14s %5s %12s %10.4g %10.4g %10.4g", f->name, shape, hola_dtype_name(f->dtype),
               cli_grouped(count, f->count), t[i].rms, t[i].min, t[i].max);
        if (t[i].nonfinite) printf("  %" PRId64 " not finite", t[i].nonfinite);
        printf(f->trained ? "\n" : "  frozen\n");
    }
}

/* ---- parameters by part ---- */

struct part {
    char name[32];
    int64_t trained, frozen;
};
/* The embedding, the layers, and these. */
enum { NORM = 1, HEAD, TOTAL, MORE_PARTS };

static int64_t part_of(const char *name, int64_t layers) {
    long long i;
    if (sscanf(name, "model.layers.%lld.", &i) == 1 && i >= 0 && i < layers) return 1 + i;
    if (!strcmp(name, "model.norm.weight")) return layers + NORM;
    return !strcmp(name, "lm_head.weight") ? layers + HEAD : 0;
}

static void add_to(struct part *p, const hola_tensor_info *f) { *(f->trained ? &p->trained : &p->frozen) += f->count; }

/* layers + MORE_PARTS entries; NULL after printing an error. */
static struct part *add_up(const struct tensor *t, int64_t n, int64_t layers) {
    struct part *p = calloc((size_t)(layers + MORE_PARTS), sizeof *p);
    if (!p) return cli_fail("out of memory for %" PRId64 " layers", layers), NULL;
    strcpy(p[0].name, "embedding");
    for (int64_t i = 0; i < layers; i++) snprintf(p[1 + i].name, sizeof p->name, "layer %" PRId64, i);
    strcpy(p[layers + NORM].name, "norm");
    strcpy(p[layers + HEAD].name, "lm_head");
    strcpy(p[layers + TOTAL].name, "total");
    for (int64_t i = 0; i < n; i++) {
        add_to(&p[part_of(t[i].info.name, layers)], &t[i].info);
        add_to(&p[layers + TOTAL], &t[i].info);
    }
    return p;
}

static json_t *part_json(const struct part *p) {
    return json_pack("{s:I, s:I}", "trained", (json_int_t)p->trained, "frozen", (json_int_t)p->frozen);
}

static json_t *parts_json(const struct part *p, int64_t layers) {
    json_t *list = json_array();
    for (int64_t i = 0; i < layers; i++)
        if (json_array_append_new(list, part_json(&p[1 + i]))) return NULL;
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "embedding", part_json(&p[0]), "layers", list, "norm",
                     part_json(&p[layers + NORM]), "lm_head", part_json(&p[layers + HEAD]), "total",
                     part_json(&p[layers + TOTAL]));
}

static void print_parts(const struct part *p, int64_t layers) {
    printf("\n%-24s %14s %10s\n", "part", "trained", "frozen");
    for (int64_t i = 0; i < layers + MORE_PARTS; i++) {
        char trained[CLI_GROUPED], frozen[CLI_GROUPED];
        if (p[i].trained + p[i].frozen == 0) continue; /* a tied lm_head */
        printf("%-24s %14s %10s\n", p[i].name, cli_grouped(trained, p[i].trained), cli_grouped(frozen, p[i].frozen));
    }
}

/* ---- all of it ---- */

static int print_model(const hola_model *m, bool json, int64_t state_bytes) {
    const hola_config *c = hola_model_config(m);
    const int64_t per_token = m->state.page / HL_PAGE_TOKENS;
    int64_t n = hola_model_tensor_count(m), layers = c->num_hidden_layers;
    struct tensor *t = read_tensors(m, n);
    struct part *p = t ? add_up(t, n, layers) : NULL;
    char bytes[CLI_GROUPED];
    int rc = CLI_FAILED;
    if (p && json) {
        rc = cli_print_json(json_pack("{s:o, s:o, s:o, s:I, s:I}", "config", config_json(c), "tensors",
                                      tensors_json(t, n), "parameters", parts_json(p, layers), "state_bytes",
                                      (json_int_t)state_bytes, "state_bytes_per_token", (json_int_t)per_token));
    } else if (p) {
        print_config(c);
        print_tensors(t, n);
        print_parts(p, layers);
        printf("\n%-24s %14s bytes\n", "state of a session", cli_grouped(bytes, state_bytes));
        if (per_token > 0)
            printf("%-24s %14s bytes, in pages of %d tokens\n", "... and per token", cli_grouped(bytes, per_token),
                   HL_PAGE_TOKENS);
        rc = CLI_OK;
    }
    free(p);
    free(t);
    return rc;
}

static int check_options(const struct inspect_opts *o) {
    const struct cache_view_opts *y = &o->memory;
    if (y->on && !y->file == !y->ids) return cli_usage("inspect", "--memory needs either --file or --ids");
    if (!y->on && (y->file || y->ids || y->html || y->tokenizer || y->query >= 0 || y->layer >= 0 || y->head >= 0))
        return cli_usage("inspect", "-f, --ids, --tokenizer, --query, --layer, --head and --html need --memory");
    return CLI_OK;
}

int cmd_inspect(int argc, char **argv) {
    struct inspect_opts o = {.memory = {.query = -1, .layer = -1, .head = -1, .top = INT64_MAX}};
    hola_model *m = NULL;
    hola_session *s = NULL;
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if ((rc = check_options(&o)) != CLI_OK) return rc;
    o.memory.json = o.json;
    const hola_options opt = {.threads = (int)o.threads, .backend = cli_backend(o.backend)};
    if (hola_model_load(&m, o.model, &opt) != HOLA_OK) rc = cli_fail_library();
    else if (o.memory.on) rc = cache_view_inspect(m, o.model, &o.memory);
    else if (hola_session_new(&s, m) != HOLA_OK) rc = cli_fail_library();
    else rc = print_model(m, o.json, hola_session_bytes(s));
    hola_session_free(s);
    hola_model_free(m);
    return rc;
}
