/* args.h -- command-line options: one table per command, from which parsing and --help both follow.
 *
 * `--name V`, `--name=V`, `-n V` and `-nV` are the same. An option given twice counts once, the last time, unless
 * it is a list. A flag takes no value but =true and =false. `--` ends the options. Numbers must be the whole word and lie in their range. */
#ifndef HOLA_CLI_ARGS_H
#define HOLA_CLI_ARGS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_type {
    ARG_FLAG,   /* bool */
    ARG_INT,    /* int64_t in [lo, hi] */
    ARG_REAL,   /* double in [min, max] */
    ARG_STRING, /* const char *, lent by argv */
    ARG_LIST,   /* struct arg_list: every time it is given counts */
    ARG_CHOICE  /* int: the place of the word in `choices` */
};

enum { ARG_LIST_MOST = 16 };
struct arg_list {
    const char *item[ARG_LIST_MOST];
    int n;
};

struct arg {
    char letter;      /* short name, 0: none */
    const char *name; /* long name without the dashes; NULL ends a table */
    enum arg_type type;
    size_t offset;              /* of the field in the command's struct of options */
    const char *meta, *help;    /* what --help calls the value, and says about it */
    const char *const *choices; /* ends with NULL */
    int64_t lo, hi;
    double min, max;
    bool needed;                      /* strings only, like the others below */
    const char *(*otherwise)(void);   /* the value of one that was not given; it may find none */
    bool (*known)(const char *value); /* other values are wrong usage */
    const char *const *names;         /* what a wrong one may have meant; ends with NULL */
};

/* The rows of a table. OPTS is the command's struct of options, which the .c file defines. */
#define OPT_FLAG(letter, name, field, help) \
    { letter, name, ARG_FLAG, OPT_AT(field), NULL, help, OPT_ANY, false, OPT_PLAIN }
#define OPT_STRING(letter, name, field, meta, help) \
    { letter, name, ARG_STRING, OPT_AT(field), meta, help, OPT_ANY, false, OPT_PLAIN }
#define OPT_NEEDED(letter, name, field, meta, help) \
    { letter, name, ARG_STRING, OPT_AT(field), meta, help, OPT_ANY, true, OPT_PLAIN }
#define OPT_LIST(letter, name, field, meta, help) \
    { letter, name, ARG_LIST, OPT_AT(field), meta, help, OPT_ANY, false, OPT_PLAIN }
#define OPT_CHOICE(letter, name, field, choices, help) \
    { letter, name, ARG_CHOICE, OPT_AT(field), NULL, help, choices, 0, 0, 0, 0, false, OPT_PLAIN }
#define OPT_INT(letter, name, field, lo, hi, meta, help) \
    { letter, name, ARG_INT, OPT_AT(field), meta, help, NULL, lo, hi, 0, 0, false, OPT_PLAIN }
#define OPT_REAL(letter, name, field, min, max, meta, help) \
    { letter, name, ARG_REAL, OPT_AT(field), meta, help, NULL, 0, 0, min, max, false, OPT_PLAIN }
#define OPT_END \
    { 0, NULL, ARG_FLAG, 0, NULL, NULL, OPT_ANY, false, OPT_PLAIN }
#define OPT_AT(field) offsetof(OPTS, field)
#define OPT_ANY NULL, 0, 0, 0, 0
#define OPT_PLAIN NULL, NULL, NULL
/* Rows that several commands have. */
#define OPT_MODEL                                                                                       \
    {                                                                                                   \
        'm', "model", ARG_STRING, OPT_AT(model), "DIR",                                                 \
            "model directory or GGUF file (default: $HOLA_MODEL, else the bundled one)", OPT_ANY, true, \
            cli_default_model, NULL, NULL                                                               \
    }
#define OPT_PRESET                                                                                                   \
    {                                                                                                                \
        0, "preset", ARG_STRING, OPT_AT(preset), "NAME",                                                             \
            "46m, 170m or 340m, also with -gate, -nogate, or -memory (kda)", OPT_ANY, false, NULL, cli_preset_known, \
            cli_presets                                                                                              \
    }
#define OPT_JSON OPT_FLAG(0, "json", json, "print the result as JSON")
#define OPT_THREADS OPT_INT('t', "threads", threads, 1, 1024, "N", "number of threads (default: one per processor)")
#define OPT_BACKEND \
    OPT_CHOICE(0, "backend", backend, cli_backends, "where to compute (auto, the default: on the GPU if there is one)")

struct args_command {
    const char *name;
    const char *usage; /* what follows the name in the usage line */
    const char *about;
    const struct arg *args;
};

/* Fills *opts, which holds the defaults, from argv[1..]. Returns ARGS_RUN to go on, else the exit status
 * that the command must return: help was printed (0) or the usage was wrong (2). */
enum { ARGS_RUN = -1 };
int args_parse(const struct args_command *c, int argc, char **argv, void *opts);
/* The same in two: the words, then whether all is there that is needed. */
int args_words(const struct args_command *c, int argc, char **argv, void *opts);
int args_needed(const struct args_command *c, void *opts);
/* One option from its value as text, lent as long as *opts lives. */
int args_set(const struct args_command *c, const struct arg *a, const char *value, void *opts);

/* args_file.c: options from a file (core/settings.h), by their long names; the file's strings are lent by *keep, which
 * is yours to hl_settings_free(). */
struct hl_settings;
int args_file(const struct args_command *c, const char *path, struct hl_settings *keep, void *opts);
/* All options that have a value, as such a file would hold them; json_dumps text, malloced. NULL: no memory. */
char *args_text(const struct args_command *c, const void *opts);

/* For commands that take words besides options (hola prepare INPUT...), before args_parse: options and their
 * values move to the front of argv, counted by the new *argc; the other words, "-" among them and all that
 * follows "--", go to words, which has room for argc pointers. Returns how many. */
int args_split(const struct arg *args, int *argc, char **argv, const char **words);

#endif
