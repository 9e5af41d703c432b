/* bench_context.c -- time per token and memory of a session over the length of the context, 1k to 1M: HOLA beside
 * Transformer++, as JSON; and the figure of it.
 *
 *     context BACKEND PRESET FILE.json [MOST]    measures up to MOST tokens of context (default: what fits)
 *     context draw FILE.json FILE.svg            draws what was measured
 *
 * A session is brought to a position without being fed: its pages are reserved and zeroed and the position is set. What
 * a token costs depends on how much there is to read and not on what it says. Past MOST, or past what fits, the time is
 * that of the last measured point plus the slope of the longest two; such points are marked as simulated. The memory is
 * exact everywhere: it follows from the pages. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "core/json.h"
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
    hola_status st = hola_config_preset(&cfg, preset, type);
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

static hola_status draw(const char *from, const char *to) {
    struct hl_context_curve c[HL_CONTEXT_CURVES] = {{0}};
    json_error_t e;
    json_t *root = json_load_file(from, 0, &e), *curves = json_object_get(root, "curves"), *point;
    size_t n = json_array_size(curves), i;
    if (!root || n < 1 || n > HL_CONTEXT_CURVES) {
        json_decref(root);
        return hl_fail(HOLA_EFORMAT, "%s: not a file of bench-context", from);
    }
    for (size_t k = 0; k < n; k++) {
        c[k].name = json_string_value(json_object_get(json_array_get(curves, k), "name"));
        json_array_foreach(json_object_get(json_array_get(curves, k), "points"), i, point) {
            if (i == HL_CONTEXT_POINTS) break;
            c[k].point[c[k].points++] =
                (struct hl_context_point){.tokens = json_integer_value(json_object_get(point, "tokens")),
                                          .bytes = json_integer_value(json_object_get(point, "session_bytes")),
                                          .seconds = json_number_value(json_object_get(point, "seconds_per_token")),
                                          .simulated = json_is_true(json_object_get(point, "simulated"))};
        }
    }
    const char *title = json_string_value(json_object_get(root, "title"));
    bool good = title != NULL;
    for (size_t k = 0; k < n; k++) {
        good = good && c[k].name && c[k].points > 0;
        for (int j = 0; j < c[k].points; j++)
            good = good && c[k].point[j].tokens > 0 && c[k].point[j].bytes > 0 && c[k].point[j].seconds > 0;
    }
    const hola_status s =
        good ? hl_context_plot(to, title, c, (int)n) : hl_fail(HOLA_EFORMAT, "%s: not a file of bench-context", from);
    json_decref(root);
    return s;
}

int main(int argc, char **argv) {
    struct hl_context_curve c[HL_CONTEXT_CURVES] = {{.name = "HOLA"}, {.name = "Transformer++"}};
    hola_status s = HOLA_OK;
    if (argc == 4 && !strcmp(argv[1], "draw")) s = draw(argv[2], argv[3]);
    else if (argc == 4 || argc == 5) {
        char title[128];
        const int64_t most = argc == 5 ? atoll(argv[4]) : LAST;
        snprintf(title, sizeof title, "%s, %s", argv[2], argv[1]);
        s = measure(HOLA_TYPE_HOLA, argv[1], argv[2], most, &c[0]);
        if (s == HOLA_OK) s = measure(HOLA_TYPE_TRANSFORMER, argv[1], argv[2], most, &c[1]);
        if (s == HOLA_OK) s = write_json(argv[3], title, c, HL_CONTEXT_CURVES);
    } else {
        fprintf(stderr, "usage: context BACKEND PRESET FILE.json [MOST]\n       context draw FILE.json FILE.svg\n");
        return 2;
    }
    if (s != HOLA_OK) fprintf(stderr, "%s\n", hola_last_error());
    return s != HOLA_OK;
}
