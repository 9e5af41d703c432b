/* args.h -- command-line options: one table per command drives both parsing and --help.
 *
 * `--name V`, `--name=V`, `-n V` and `-nV` are the same. The last occurrence of an option wins, unless it is a list. A
 * flag takes no value except =true and =false. `--` ends the options. A number must be the whole word and within its
 * range. */
#ifndef HOLA_CLI_ARGS_H
#define HOLA_CLI_ARGS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_type {
    ARG_FLAG,   /* bool */
    ARG_INT,    /* int64_t in [lo, hi] */
    ARG_REAL,   /* double in [min, max] */
    ARG_STRING, /* const char *, pointing into argv */
    ARG_LIST,   /* struct arg_list: every occurrence is kept */
    ARG_CHOICE  /* int: index of the word in `choices` */
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
    size_t offset;              /* of the field in the command's options struct */
    const char *meta, *help;    /* --help: the name of the value, and the description */
    const char *const *choices; /* NULL-terminated */
    int64_t lo, hi;
    double min, max;
    bool needed;                      /* required; strings only, as are the next three */
    const char *(*otherwise)(void);   /* default if not given; may return NULL */
    bool (*known)(const char *value); /* rejects other values as wrong usage */
    const char *const *names;         /* candidates for "did you mean"; NULL-terminated */
};

/* The rows of a table. OPTS is the command's options struct, defined in the .c file. */
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
/* Rows shared by several commands. */
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
#define OPT_PRECISION                                  \
    OPT_CHOICE(0, "precision", products, cli_products, \
               "auto, or the large products with bf16 operands: faster on a CPU that has them, less exact")

struct args_command {
    const char *name;
    const char *usage; /* what follows the name in the usage line */
    const char *about;
    const struct arg *args;
};

/* Fills *opts, which holds the defaults, from argv[1..]. Returns ARGS_RUN to continue, else the command's exit status:
 * help was printed (0) or the usage was wrong (2). */
enum { ARGS_RUN = -1 };
int args_parse(const struct args_command *c, int argc, char **argv, void *opts);
/* The same in two steps: parse the words, then check that required options are present. */
int args_words(const struct args_command *c, int argc, char **argv, void *opts);
int args_needed(const struct args_command *c, void *opts);
/* Sets one option from text, which must live as long as *opts. */
int args_set(const struct args_command *c, const struct arg *a, const char *value, void *opts);

/* args_file.c: options from a file (core/settings.h), by their long names; *keep owns the strings, free it with
 * hl_settings_free(). */
struct hl_settings;
int args_file(const struct args_command *c, const char *path, struct hl_settings *keep, void *opts);
/* All options that have a value, in the format of such a file; json_dumps text, malloced. NULL: out of memory. */
char *args_text(const struct args_command *c, const void *opts);

/* For commands with positional words (hola prepare INPUT...), before args_parse: moves options and their values to the
 * front of argv and updates *argc; the other words, including "-" and everything after "--", go to words, which has
 * room for argc pointers. Returns their number. */
int args_split(const struct arg *args, int *argc, char **argv, const char **words);

#endif
