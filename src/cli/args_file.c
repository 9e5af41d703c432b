/* args_file.c -- reads a command's options from a file, and writes them as one. */
#include "cli/args.h"
#include "cli/cli.h"
#include "core/settings.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A name with the wrong kind of dash is the most likely mistake. */
static bool same_but_for_dashes(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if (*a != *b && !(*a == '-' && *b == '_')) return false;
    return *a == *b;
}

static int unknown(const struct args_command *c, const char *path, const struct hl_setting *s) {
    for (const struct arg *a = c->args; a->name; a++)
        if (same_but_for_dashes(a->name, s->name))
            return cli_usage(c->name, "%s:%" PRId64 ": unknown option '%s'; it is called '%s'", path, s->line, s->name,
                             a->name);
    return cli_usage(c->name, "%s:%" PRId64 ": unknown option '%s'", path, s->line, s->name);
}

static const char *kind_of(enum arg_type t) {
    return t == ARG_FLAG ? "true or false" : t == ARG_INT ? "an integer" : t == ARG_REAL ? "a number" : "a string";
}

/* The value as on the command line; NULL: wrong type. */
static const char *as_text(const struct arg *a, json_t *v, char buf[64]) {
    switch (a->type) {
    case ARG_FLAG: return json_is_boolean(v) ? (json_is_true(v) ? "true" : "false") : NULL;
    case ARG_INT:
        if (!json_is_integer(v)) return NULL;
        snprintf(buf, 64, "%lld", (long long)json_integer_value(v));
        return buf;
    case ARG_REAL:
        if (!json_is_number(v)) return NULL;
        snprintf(buf, 64, "%.17g", json_number_value(v));
        return buf;
    default: return json_string_value(v);
    }
}

int args_file(const struct args_command *c, const char *path, struct hl_settings *keep, void *opts) {
    if (hl_settings_read(keep, path) != HOLA_OK) return cli_fail_library();
    for (int64_t i = 0; i < keep->n; i++) {
        const struct hl_setting *s = &keep->at[i];
        const struct arg *a = c->args;
        char buf[64];
        while (a->name && strcmp(a->name, s->name) != 0) a++;
        if (!a->name) return unknown(c, path, s);
        const char *value = as_text(a, s->value, buf);
        if (!value)
            return cli_usage(c->name, "%s:%" PRId64 ": '%s' takes %s", path, s->line, s->name, kind_of(a->type));
        const int rc = args_set(c, a, value, opts);
        if (rc != ARGS_RUN) return rc;
    }
    return ARGS_RUN;
}

/* A value left at a default that cannot be given as an option (-1, 0, NULL) is omitted. */
static json_t *value_of(const struct arg *a, const void *opts) {
    const char *field = (const char *)opts + a->offset;
    const int64_t i = a->type == ARG_INT ? *(const int64_t *)field : 0;
    const double x = a->type == ARG_REAL ? *(const double *)field : 0;
    const char *text = a->type == ARG_STRING ? *(const char *const *)field : NULL;
    switch (a->type) {
    case ARG_FLAG: return *(const bool *)field ? json_true() : NULL;
    case ARG_INT: return i >= a->lo && i <= a->hi ? json_integer(i) : NULL;
    case ARG_REAL: return x >= a->min && x <= a->max ? json_real(x) : NULL;
    case ARG_STRING: return text ? json_string(text) : NULL;
    case ARG_CHOICE: return *(const int *)field >= 0 ? json_string(a->choices[*(const int *)field]) : NULL;
    case ARG_LIST: {
        const struct arg_list *list = (const struct arg_list *)field;
        return list->n == 1 ? json_string(list->item[0]) : NULL;
    }
    }
    return NULL;
}

char *args_text(const struct args_command *c, const void *opts) {
    json_t *root = json_object();
    char *text;
    for (const struct arg *a = c->args; root && a->name; a++) {
        json_t *v = value_of(a, opts);
        if (v) json_object_set_new(root, a->name, v);
    }
    text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    return text;
}
