/* bench_context.c -- time per token and memory of a session over the length of the context, 1k to 1M, of several types
 * of models, as JSON; and the figure or the table of it.
 *
 *     context BACKEND PRESET FILE.json [MOST [TYPE,TYPE...]]    measures up to MOST tokens of context (default: what
 *                                                               fits); types: as in config.json, hola,transformer
 *     context draw FILE.json... FILE.svg                        draws what was measured, the curves of all files
 *     context table FILE.json...                                prints it in Markdown
 *
 * PRESET: 46m, 340m, or the path of a config.json. FILE.json is written after each type.
 * A session is brought to a position without being fed: its pages are reserved and zeroed and the position is set. What
 * a token costs depends on how much there is to read and not on what it says. Past MOST, or past what fits, the time is
 * that of the last measured point plus the slope of the longest two; such points are marked as simulated. Types whose
 * sessions do not grow are measured everywhere. The memory is exact everywhere: it follows from the pages. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "core/json.h"
#include "model/config.h"
#include "model/session.h"
#include "plot/context_plot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 1 << 10, LAST = 1 << 20, REPEATS = 5, TOKENS = 16, FILL = 1024 };

/* The session at this position; fails where there is no memory for it. */
static hola_status bring_to(hola_session *s, int64_t pos) {
    const hola_model *m = s->model;
    const int64_t before = s->now.state.pages;
    hola_status st = hl_state_reserve(&s->now.state, &m->state, m->backend, pos + (REPEATS + 1) * TOKENS);
    for (int64_t i = before; i < s->now.state.pages; i++) hl_zero(m->backend, s->now.state.page[i], m->state.page);
    s->now.at.pos = pos;
    return st == HOLA_OK ? hl_finish(m->backend) : st;
}

static hola_status time_at(hola_session *s, int64_t pos, double *seconds) {
    const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};
    int32_t id = 1;
    hola_status st = bring_to(s, pos);
    *seconds = 1e30;
    for (int r = 0; st == HOLA_OK && r <= REPEATS; r++) { /* the first is a warm-up */
        const double before = hl_clock();
        for (int i = 0; st == HOLA_OK && i < TOKENS; i++) st = hola_session_step_sample(&s, 1, &id, &likeliest, &id);
        const double each = (hl_clock() - before) / TOKENS;
        if (r > 0 && each < *seconds) *seconds = each;
    }
    return st;
}

static hola_status measure(hola_model_type type, const char *backend, const char *preset, int64_t most,
                           struct hl_context_curve *c) {
    hola_config cfg;
    hola_model *m = NULL;
    hola_session *s = NULL;
    const bool file = strchr(preset, '/') != NULL;
    hola_status st = file ? hola_config_read(&cfg, preset) : hola_config_preset(&cfg, preset, type);
    if (st == HOLA_OK && file && cfg.model_type != type) hl_config_change_type(&cfg, type);
    if (st == HOLA_OK) st = hola_config_check(&cfg);
    if (st == HOLA_OK) st = hola_model_new(&m, &cfg, 1, &(hola_options){.backend = backend});
    if (st == HOLA_OK) st = hola_session_new(&s, m);
    int32_t ids[FILL];
    for (int i = 0; i < FILL; i++) ids[i] = i % (int32_t)(st == HOLA_OK ? cfg.vocab_size : 1);
    if (st == HOLA_OK) st = hola_session_feed(s, ids, FILL, NULL); /* a full exact memory */
    bool fits = true;
    for (int64_t pos = FIRST; st == HOLA_OK && pos <= LAST; pos *= 2) {
        struct hl_context_point *p = &c->point[c->points++];
        *p = (struct hl_context_point){.tokens = pos, .bytes = hl_state_size(&m->state, pos)};
        if (fits && (pos <= most || m->state.page == 0)) {
            st = time_at(s, pos, &p->seconds);
            if (st == HOLA_ENOMEM && pos > FIRST) fits = false, st = HOLA_OK, hola_session_reset(s);
            else continue;
        }
        const struct hl_context_point *b = p - 1, *a = c->points > 2 ? p - 2 : b;
        const double slope = b > a ? (b->seconds - a->seconds) / (double)(b->tokens - a->tokens) : 0;
        p->seconds = b->seconds + slope * (double)(pos - b->tokens);
        p->simulated = true;
    }
    hola_session_free(s);
    hola_model_free(m);
    return st;
}

static hola_status write_json(const char *path, const char *title, const struct hl_context_curve *c, int n) {
    json_t *curves = json_array(), *root = json_pack("{s:s,s:o}", "title", title, "curves", curves);
    for (int k = 0; k < n; k++) {
        json_t *points = json_array();
        for (int i = 0; i < c[k].points; i++) {
            const struct hl_context_point *p = &c[k].point[i];
            json_array_append_new(points, json_pack("{s:I,s:f,s:I,s:b}", "tokens", (json_int_t)p->tokens,
                                                    "seconds_per_token", p->seconds, "session_bytes",
                                                    (json_int_t)p->bytes, "simulated", (int)p->simulated));
        }
        json_array_append_new(curves, json_pack("{s:s,s:o}", "name", c[k].name, "points", points));
    }
    const int rc = json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(root);
    return rc ? hl_fail(HOLA_EIO, "%s: cannot be written", path) : HOLA_OK;
}

/* Adds the curves of a file to c[*n...]; the names and the title stay in *root, which the caller frees. */
static hola_status read_json(const char *path, struct hl_context_curve *c, int *n, const char **title, json_t **root) {
    json_error_t e;
    json_t *curves = json_object_get(*root = json_load_file(path, 0, &e), "curves"), *curve, *point;
    size_t k, i;
    *title = json_string_value(json_object_get(*root, "title"));
    bool good = *title && json_array_size(curves) > 0 && *n + json_array_size(curves) <= HL_CONTEXT_CURVES;
    if (good) json_array_foreach(curves, k, curve) {
            struct hl_context_curve *to = &c[(*n)++];
            *to = (struct hl_context_curve){.name = json_string_value(json_object_get(curve, "name"))};
            json_array_foreach(json_object_get(curve, "points"), i, point) {
                if (i == HL_CONTEXT_POINTS) break;
                const struct hl_context_point p = {.tokens = json_integer_value(json_object_get(point, "tokens")),
                                                   .bytes = json_integer_value(json_object_get(point, "session_bytes")),
                                                   .seconds =
                                                       json_number_value(json_object_get(point, "seconds_per_token")),
                                                   .simulated = json_is_true(json_object_get(point, "simulated"))};
                good = good && p.tokens > 0 && p.bytes > 0 && p.seconds > 0;
                to->point[to->points++] = p;
            }
            good = good && to->name && to->points > 0;
        }
    return good ? HOLA_OK : hl_fail(HOLA_EFORMAT, "%s: not a file of bench-context, or too many curves", path);
}

/* Rows: every length that a curve has; a figure in brackets was not measured. */
static void print_table(const struct hl_context_curve *c, int n, const char *title) {
    printf("%s\n\n| context |", title);
    for (int k = 0; k < n; k++) printf(" %s, ms | its session, MB |", c[k].name);
    printf("\n|---|");
    for (int k = 0; k < n; k++) printf("---|---|");
    for (int64_t tokens = FIRST; tokens <= LAST; tokens *= 2) {
        printf("\n| %lld |", (long long)tokens);
        for (int k = 0; k < n; k++) {
            const struct hl_context_point *p = NULL;
            for (int i = 0; i < c[k].points; i++)
                if (c[k].point[i].tokens == tokens) p = &c[k].point[i];
            if (p)
                printf(p->simulated ? " (%.3f) |" : " %.3f |", p->seconds * 1e3),
                    printf(" %.1f |", (double)p->bytes * 1e-6);
            else printf(" | |");
        }
    }
    printf("\n");
}

/* to: the figure; NULL: the table is printed. */
static hola_status show(char **from, int files, const char *to) {
    struct hl_context_curve c[HL_CONTEXT_CURVES] = {{0}};
    json_t *root[HL_CONTEXT_CURVES] = {0};
    const char *title = NULL, *first = NULL;
    int n = 0;
    hola_status s =
        files <= HL_CONTEXT_CURVES ? HOLA_OK : hl_fail(HOLA_EINVAL, "more than %d files", HL_CONTEXT_CURVES);
    for (int i = 0; s == HOLA_OK && i < files; i++) {
        s = read_json(from[i], c, &n, &title, &root[i]);
        if (i == 0) first = title;
        else if (s == HOLA_OK && strcmp(first, title) != 0)
            s = hl_fail(HOLA_EINVAL, "%s is of %s, %s of %s", from[0], first, from[i], title);
    }
    if (s == HOLA_OK && to) s = hl_context_plot(to, first, c, n);
    else if (s == HOLA_OK) print_table(c, n, first);
    for (int i = 0; i < HL_CONTEXT_CURVES; i++) json_decref(root[i]);
    return s;
}

/* The types of a list like "gla,kda"; text is cut into pieces. */
static hola_status types_of(char *text, hola_model_type *type, int *n) {
    *n = 0;
    for (char *rest = text, *name; (name = strtok_r(rest, ",", &rest)); (*n)++) {
        int t = 0;
        while (t < HOLA_TYPE_COUNT && strcmp(name, hola_model_type_name((hola_model_type)t)) != 0) t++;
        if (t == HOLA_TYPE_COUNT || *n == HL_CONTEXT_CURVES)
            return hl_fail(HOLA_EINVAL, "%s: %s", name, t < HOLA_TYPE_COUNT ? "too many types" : "no such type");
        type[*n] = (hola_model_type)t;
    }
    return *n > 0 ? HOLA_OK : hl_fail(HOLA_EINVAL, "no type is named");
}

static hola_status measure_all(const char *backend, const char *preset, const char *file, int64_t most, char *types) {
    static const char *const names[HOLA_TYPE_COUNT] = {
        "HOLA", "Gated DeltaNet", "DeltaNet", "Transformer++", "GLA", "GSA", "KDA"};
    struct hl_context_curve c[HL_CONTEXT_CURVES] = {{0}};
    hola_model_type type[HL_CONTEXT_CURVES];
    char title[128];
    int n = 0;
    hola_status s = types_of(types, type, &n);
    snprintf(title, sizeof title, "%s, %s", preset, backend);
    for (int k = 0; s == HOLA_OK && k < n; k++) {
        c[k].name = names[type[k]];
        s = measure(type[k], backend, preset, most, &c[k]);
        if (s == HOLA_OK) s = write_json(file, title, c, k + 1);
    }
    return s;
}

int main(int argc, char **argv) {
    char usual[] = "hola,transformer";
    hola_status s = HOLA_OK;
    if (argc >= 4 && !strcmp(argv[1], "draw")) s = show(argv + 2, argc - 3, argv[argc - 1]);
    else if (argc >= 3 && !strcmp(argv[1], "table")) s = show(argv + 2, argc - 2, NULL);
    else if (argc >= 4 && argc <= 6)
        s = measure_all(argv[1], argv[2], argv[3], argc > 4 ? atoll(argv[4]) : LAST, argc > 5 ? argv[5] : usual);
    else {
        fprintf(stderr, "usage: context BACKEND PRESET FILE.json [MOST [TYPE,TYPE...]]\n"
                        "       context draw FILE.json... FILE.svg\n       context table FILE.json...\n");
        return 2;
    }
    if (s != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error());
    return s != HOLA_OK;
}
