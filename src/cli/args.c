/* args.c -- see args.h. */
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/suggest.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- help ---- */

/* Appends to a label; truncates what does not fit. */
static void append(char *buf, size_t size, const char *a, const char *b) {
    size_t n = strlen(buf);
    snprintf(buf + n, size - n, "%s%s", a, b);
}

static void print_option(const struct arg *a) {
    char label[128] = "    ", letter[] = {'-', a->letter, ',', ' ', 0};
    if (a->letter) memcpy(label, letter, sizeof letter);
    append(label, sizeof label, "--", a->name);
    if (a->choices)
        for (int i = 0; a->choices[i]; i++) append(label, sizeof label, i ? "|" : " ", a->choices[i]);
    else if (a->meta) append(label, sizeof label, " ", a->meta);
    if (strlen(label) > 24) printf("  %s\n  %-24s  %s\n", label, "", a->help);
    else printf("  %-24s  %s\n", label, a->help);
}

static void print_help(const struct args_command *c) {
    printf("usage: hola %s %s\n\n%s\n\n", c->name, c->usage, c->about);
    for (const struct arg *a = c->args; a->name; a++) print_option(a);
    printf("  -h, --help                print this help\n");
}

/* ---- values ---- */

static bool parse_int(const char *s, int64_t *out) {
    char *end;
    if (!isdigit((unsigned char)s[s[0] == '-'])) return false; /* strtoll would accept spaces and "+" */
    errno = 0;
    *out = strtoll(s, &end, 10);
    return !*end && !errno;
}

static bool parse_real(const char *s, double *out) {
    char *end;
    if (!*s || s[strspn(s, "0123456789.eE+-")]) return false; /* no spaces, hexadecimal or infinities */
    *out = strtod(s, &end);
    return !*end && isfinite(*out);
}

/* Whether the value names something, so that an empty one (-m "$UNSET") cannot be meant. A text may be empty. */
static bool is_name(const struct arg *a) { return a->meta && strcmp(a->meta, "TEXT") != 0; }

static int bad_value(const struct args_command *c, const struct arg *a, const char *value) {
    char list[256] = "";
    struct suggest near;
    const char *const *names = a->names ? a->names : a->choices;
    suggest_begin(&near, value);
    for (int i = 0; names && names[i]; i++) suggest_try(&near, names[i]);
    switch (a->type) {
    case ARG_STRING:
        if (!*value) return cli_usage(c->name, "--%s takes a %s, not ''", a->name, a->meta);
        return cli_usage(c->name, "--%s: '%s' is unknown%s", a->name, value, suggest_text(&near, ""));
    case ARG_LIST:
        if (!*value && is_name(a)) return cli_usage(c->name, "--%s takes a %s, not ''", a->name, a->meta);
        return cli_usage(c->name, "--%s can be given at most %d times", a->name, ARG_LIST_MOST);
    case ARG_INT:
        return cli_usage(c->name, "--%s takes an integer from %" PRId64 " to %" PRId64 ", not '%s'", a->name, a->lo,
                         a->hi, value);
    case ARG_REAL:
        return cli_usage(c->name, "--%s takes a number from %g to %g, not '%s'", a->name, a->min, a->max, value);
    default:
        for (int i = 0; a->choices[i]; i++) append(list, sizeof list, i ? ", " : "", a->choices[i]);
        return cli_usage(c->name, "--%s takes one of %s, not '%s'%s", a->name, list, value, suggest_text(&near, ""));
    }
}

int args_set(const struct args_command *c, const struct arg *a, const char *value, void *opts) {
    char *field = (char *)opts + a->offset;
    int64_t i;
    double x;
    switch (a->type) {
    case ARG_FLAG: *(bool *)field = !value || strcmp(value, "false") != 0; return ARGS_RUN;
    case ARG_STRING:
        if ((!*value && is_name(a)) || (a->known && !a->known(value))) break;
        *(const char **)field = value;
        return ARGS_RUN;
    case ARG_LIST: {
        struct arg_list *list = (struct arg_list *)field;
        if (list->n == ARG_LIST_MOST || (!*value && is_name(a))) break;
        list->item[list->n++] = value;
        return ARGS_RUN;
    }
    case ARG_INT:
        if (!parse_int(value, &i) || i < a->lo || i > a->hi) break;
        *(int64_t *)field = i;
        return ARGS_RUN;
    case ARG_REAL:
        if (!parse_real(value, &x) || x < a->min || x > a->max) break;
        *(double *)field = x;
        return ARGS_RUN;
    case ARG_CHOICE:
        for (int k = 0; a->choices[k]; k++)
            if (!strcmp(value, a->choices[k])) {
                *(int *)field = k;
                return ARGS_RUN;
            }
        break;
    }
    return bad_value(c, a, value);
}

/* ---- words ---- */

/* The option named by a word, and its value if it is in the same word (--x=V, -xV). */
static const struct arg *find(const struct args_command *c, const char *word, const char **value) {
    bool is_long = word[1] == '-';
    size_t n = strcspn(word + 2, "=");
    *value = NULL;
    for (const struct arg *a = c->args; a->name; a++) {
        if (is_long ? strlen(a->name) != n || strncmp(a->name, word + 2, n) != 0 : a->letter != word[1]) continue;
        if (is_long && word[2 + n] == '=') *value = word + 3 + n;
        if (!is_long && word[2]) *value = word + 2;
        return a;
    }
    return NULL;
}

int args_needed(const struct args_command *c, void *opts) {
    for (const struct arg *a = c->args; a->name; a++) {
        const char **field = (const char **)(void *)((char *)opts + a->offset);
        if (!a->needed || *field) continue;
        if (a->otherwise) *field = a->otherwise();
        if (!*field && a->otherwise == cli_default_model) return cli_no_model(c->name);
        if (!*field) return cli_usage(c->name, "--%s %s is required", a->name, a->meta);
    }
    return ARGS_RUN;
}

static int unknown_option(const struct args_command *c, const char *word) {
    char name[64];
    struct suggest near;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    suggest_begin(&near, name + strspn(name, "-"));
    for (const struct arg *a = c->args; a->name && word[1] == '-'; a++) suggest_try(&near, a->name);
    return cli_usage(c->name, "unknown option '%s'%s", word, suggest_text(&near, "--"));
}

int args_words(const struct args_command *c, int argc, char **argv, void *opts) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value;
        const struct arg *a;
        int rc;
        if (!strcmp(word, "--")) {
            if (i + 1 < argc) return cli_usage(c->name, "unexpected argument '%s'", argv[i + 1]);
            break;
        }
        if (word[0] != '-' || !word[1]) return cli_usage(c->name, "unexpected argument '%s'", word);
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            print_help(c);
            return CLI_OK;
        }
        a = find(c, word, &value);
        if (!a) return unknown_option(c, word);
        if (a->type == ARG_FLAG && value && strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return cli_usage(c->name, "--%s takes no value", a->name);
        if (a->type != ARG_FLAG && !value) {
            if (++i == argc) return cli_usage(c->name, "--%s needs a value", a->name);
            value = argv[i];
        }
        rc = args_set(c, a, value, opts);
        if (rc != ARGS_RUN) return rc;
    }
    return ARGS_RUN;
}

int args_parse(const struct args_command *c, int argc, char **argv, void *opts) {
    const int rc = args_words(c, argc, argv, opts);
    return rc == ARGS_RUN ? args_needed(c, opts) : rc;
}

/* ---- words that are not options ---- */

/* Whether the next word is this option's value. args_parse will reject unknown options. */
static bool wants_next(const struct arg *args, const char *word) {
    bool is_long = word[1] == '-';
    for (const struct arg *a = args; a->name; a++) {
        if (is_long ? strcmp(a->name, word + 2) != 0 : a->letter != word[1]) continue;
        return a->type != ARG_FLAG && (is_long || !word[2]);
    }
    return false;
}

int args_split(const struct arg *args, int *argc, char **argv, const char **words) {
    int n = 0, options = 1, i = 1;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        char *word = argv[i];
        if (word[0] != '-' || !word[1]) {
            words[n++] = word;
            continue;
        }
        argv[options++] = word;
        if (wants_next(args, word) && i + 1 < *argc) argv[options++] = argv[++i];
    }
    while (++i < *argc) words[n++] = argv[i];
    *argc = options;
    return n;
}
