/* demo_report.c -- see demo.h. */
#include "cli/demo.h"
#include "core/file.h"
#include "model/cache_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static void print_head(const char *what) {
    printf("\n%-22s", what);
    for (int k = 0; k < DEMO_MODELS; k++) printf("  %16s", demo_titles[k]);
    printf("  %16s\n", "HOLA minus GDN");
}

static void print_row(const struct hl_recall_point *p, struct hl_mean ahead) {
    for (int k = 0; k < DEMO_MODELS; k++) printf("    %.3f +- %.3f", p->recall[k].mean, p->recall[k].error);
    printf("   %+.3f +- %.3f\n", ahead.mean, ahead.error);
}

void demo_print_tables(const struct demo *d) {
    const struct hl_recall *t = &d->curriculum.task;
    printf("\nRecall: the fraction of correct answers, mean and standard error over %lld samples of up to %lld "
           "questions.\n"
           "Chance is %.3f. The state of a head has %lld rows, the exact memory holds %lld tokens.\n",
           (long long)d->samples, (long long)t->queries, 1.0 / (double)t->values,
           (long long)hola_model_config(d->model[DEMO_HOLA])->head_dim,
           (long long)hola_model_config(d->model[DEMO_HOLA])->cache_window);
    print_head("facts");
    for (int i = 0; i < DEMO_FACTS; i++) {
        printf("%-22lld", (long long)d->by_facts[i].x);
        print_row(&d->by_facts[i], d->ahead_facts[i]);
    }
    print_head("tokens (32 facts)");
    for (int i = 0; i < DEMO_LENGTHS; i++) {
        char label[32];
        snprintf(label, sizeof label, "%lld (%lldx)", (long long)d->by_length[i].x, (long long)d->by_length[i].times);
        printf("%-22s", label);
        print_row(&d->by_length[i], d->ahead_length[i]);
    }
}

/* ---- what is kept of one sample ---- */

struct listing {
    int32_t *ids;
    char *map; /* one letter per token */
    int64_t n; /* up to the first query */
    int64_t keys, values, fillers;
};

/* k v: a fact; a dot: filler. Kept tokens in capitals, kept filler as a star. */
static void draw_map(struct listing *l, const struct hl_recall *r, const int64_t *pos, int64_t count) {
    const int64_t key0 = HL_RECALL_FIRST_FILLER + r->fillers, value0 = key0 + r->keys;
    l->keys = l->values = l->fillers = 0;
    for (int64_t i = 0; i < l->n; i++) l->map[i] = l->ids[i] >= value0 ? 'v' : l->ids[i] >= key0 ? 'k' : '.';
    for (int64_t i = 0; i < count; i++) {
        char *c = &l->map[pos[i]];
        if (*c == 'v') *c = 'V', l->values++;
        else if (*c == 'k') *c = 'K', l->keys++;
        else *c = '*', l->fillers++;
    }
}

static json_t *print_map(const struct listing *l, const char *title, const int64_t *pos, int64_t count) {
    enum { COLUMNS = 100 };
    json_t *places = json_array();
    printf("\n%s: the values of %lld of %d facts, %lld keys, %lld fillers\n", title, (long long)l->values,
           DEMO_LISTED_FACTS, (long long)l->keys, (long long)l->fillers);
    for (int64_t i = 0; i < l->n; i += COLUMNS)
        printf("  %.*s\n", (int)(l->n - i < COLUMNS ? l->n - i : COLUMNS), l->map + i);
    for (int64_t i = 0; i < count; i++) json_array_append_new(places, json_integer((json_int_t)pos[i]));
    return json_pack("{s:I, s:I, s:I, s:o}", "values", (json_int_t)l->values, "keys", (json_int_t)l->keys, "fillers",
                     (json_int_t)l->fillers, "positions", places);
}

/* y has been fed the listed tokens. */
static json_t *list_kept(const struct hl_recall *r, const hola_session *y, const hola_config *c, struct listing *l,
                         int64_t *pos) {
    json_t *heads = json_array(), *latest;
    char title[64];
    int64_t count = 0;
    for (int64_t h = 0; h < c->num_v_heads; h++) {
        if (hl_session_kept(y, 0, h, pos, NULL, &count) != HOLA_OK) {
            json_decref(heads);
            return NULL;
        }
        draw_map(l, r, pos, count);
        snprintf(title, sizeof title, "head %lld keeps %lld tokens", (long long)h, (long long)count);
        json_array_append_new(heads, print_map(l, title, pos, count));
    }
    const int64_t closed = l->n / c->cache_chunk * c->cache_chunk;
    for (int64_t i = 0; i < count; i++) pos[i] = closed - count + i;
    draw_map(l, r, pos, count);
    snprintf(title, sizeof title, "the most recent %lld tokens would be", (long long)count);
    latest = print_map(l, title, pos, count);
    return json_pack("{s:i, s:I, s:o, s:o}", "facts", DEMO_LISTED_FACTS, "tokens", (json_int_t)l->n, "heads", heads,
                     "latest", latest);
}

json_t *demo_print_kept(const struct demo *d) {
    const struct hl_recall r = demo_task(d, DEMO_LISTED_FACTS, 1);
    const hola_config *c = hola_model_config(d->model[DEMO_HOLA]);
    hola_session *y = NULL;
    struct listing l = {.ids = malloc((size_t)r.length * sizeof *l.ids),
                        .map = malloc((size_t)r.length),
                        .n = r.length - 3 * r.queries};
    int64_t *pos = malloc((size_t)c->cache_window * sizeof *pos);
    json_t *kept = NULL;
    if (!l.ids || !l.map || !pos) hl_fail(HOLA_ENOMEM, "demo: no memory");
    else if (hl_recall_make(&r, ~d->curriculum.seed, 0, l.ids, NULL) == HOLA_OK &&
             hola_session_new(&y, d->model[DEMO_HOLA]) == HOLA_OK &&
             hola_session_feed(y, l.ids, l.n, NULL) == HOLA_OK) {
        printf("\nWhat the exact memory of HOLA holds of the first sample when the questions begin. k v: a "
               "fact, a dot:\n"
               "filler; what is kept is in capitals, kept filler is a star.\n");
        kept = list_kept(&r, y, c, &l, pos);
    }
    hola_session_free(y);
    free(l.ids);
    free(l.map);
    free(pos);
    return kept;
}

/* ---- recall.json ---- */

static json_t *json_mean(struct hl_mean m) { return json_pack("[f, f]", m.mean, m.error); }

static json_t *json_points(const struct hl_recall_point *p, const struct hl_mean *ahead, int n, const char *x) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *row = json_pack("{s:I, s:o}", x, (json_int_t)p[i].x, "hola_minus_gdn", json_mean(ahead[i]));
        for (int k = 0; k < DEMO_MODELS; k++) json_object_set_new(row, demo_names[k], json_mean(p[i].recall[k]));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *json_models(const struct demo *d) {
    json_t *models = json_object();
    for (int k = 0; k < DEMO_MODELS; k++) {
        const hola_config *c = hola_model_config(d->model[k]);
        json_object_set_new(models, demo_names[k],
                            json_pack("{s:I, s:I}", "parameters", (json_int_t)hola_config_parameters(c), "state_bytes",
                                      (json_int_t)d->state_bytes[k]));
    }
    return models;
}

/* Independent of clock and thread count: two runs can be compared byte by byte. */
hola_status demo_write_json(const struct demo *d, json_t *kept) {
    const struct hl_recall_curriculum *c = &d->curriculum;
    const struct hl_recall *t = &c->task;
    json_t *root = json_pack(
        "{s:{s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:o, s:f, s:o, s:o, s:o}", "settings", "seed",
        (json_int_t)c->seed, "steps", (json_int_t)c->steps, "batch_tokens", (json_int_t)c->batch_tokens, "samples",
        (json_int_t)d->samples, "lr", d->lr, "warmup", (json_int_t)d->warmup, "most_facts", (json_int_t)c->most_facts,
        "questions", (json_int_t)t->queries, "length", (json_int_t)t->length, "distance", (json_int_t)t->distance,
        "keys", (json_int_t)t->keys, "values", (json_int_t)t->values, "models", json_models(d), "chance",
        1.0 / (double)t->values, "by_facts", json_points(d->by_facts, d->ahead_facts, DEMO_FACTS, "facts"), "by_length",
        json_points(d->by_length, d->ahead_length, DEMO_LENGTHS, "tokens"), "kept", kept);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    char *path = hl_path_join(d->out, "recall.json");
    hola_status s = text && path ? hl_write_file(path, text, (int64_t)strlen(text))
                                 : hl_fail(HOLA_ENOMEM, "recall.json: no memory");
    json_decref(root);
    free(text);
    free(path);
    return s;
}

/* ---- recall.svg ---- */

hola_status demo_write_figure(const struct demo *d) {
    const hola_config *c = hola_model_config(d->model[DEMO_HOLA]);
    char facts[64], length[64];
    const struct hl_recall_figure f = {.name = demo_titles,
                                       .curves = DEMO_MODELS,
                                       .chance = 1.0 / (double)d->curriculum.task.values,
                                       .panel = {{.title = facts,
                                                  .axis = "facts in the text",
                                                  .point = d->by_facts,
                                                  .points = DEMO_FACTS,
                                                  .head_size = c->head_dim,
                                                  .window = c->cache_window},
                                                 {.title = length,
                                                  .axis = "tokens of the text, and times the training length",
                                                  .point = d->by_length,
                                                  .points = DEMO_LENGTHS}}};
    snprintf(facts, sizeof facts, "Recall over the number of facts, %lld tokens", (long long)d->curriculum.task.length);
    snprintf(length, sizeof length, "Recall over the length of the text, %d facts", DEMO_LISTED_FACTS);
    char *path = hl_path_join(d->out, "recall.svg");
    hola_status s = path ? hl_recall_plot(path, &f) : hl_fail(HOLA_ENOMEM, "recall.svg: no memory");
    free(path);
    return s;
}
