/* cli.h -- shared by the commands: the command list, messages, exit statuses, JSON output. */
#ifndef HOLA_CLI_H
#define HOLA_CLI_H
#include "hola.h"
#include <jansson.h>

#define CLI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Exit statuses: part of the contract with scripts. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Prints "hola: ..." as exactly one line on stderr and returns CLI_FAILED. */
int cli_fail(const char *fmt, ...) CLI_PRINTF(1, 2);
/* The same with hola_last_error(). */
int cli_fail_library(void);
/* "hola: COMMAND: ...; see hola COMMAND --help"; returns CLI_USAGE. */
int cli_usage(const char *command, const char *fmt, ...) CLI_PRINTF(2, 3);

/* Flushes stdout. Returns the errno of the first failure, which stdio forgets; 0: none. */
void cli_flush(void);
int cli_flush_error(void);
/* Prints root and a newline, and frees root (NULL: out of memory while building it). */
int cli_print_json(json_t *root);
/* A JSON number, or null if JSON cannot represent it (infinities, NaN). */
json_t *cli_json_number(double x);
/* Formats 1234567 as "1,234,567" in buf and returns it. */
enum { CLI_GROUPED = 32 };
char *cli_grouped(char buf[CLI_GROUPED], int64_t x);

/* Checks the texts to read: returns ARGS_RUN, or CLI_USAGE if there are none or one has no name. Warns of UTF-16, which
 * would be read as bytes. */
int cli_check_inputs(const char *command, const char *const *inputs, int n);

/* Whether DIR holds a model, or part of one, that writing would replace; *which names it. */
bool cli_holds_model(const char *dir, const char **which);

/* Removes a directory that a command created and failed to fill. existed: whether it existed before. */
bool cli_exists(const char *path);
void cli_take_back_dir(const char *dir, bool existed);

/* Choices shared by several commands. */
extern const char *const cli_backends[];                       /* "auto", the default, then those of hola_options */
extern const char *const cli_products[];                       /* of inference, by hola_precision */
extern const char *const cli_model_types[HOLA_TYPE_COUNT + 1]; /* in the order of hola_model_type; NULL-terminated */

/* The model shipped with hola: folder models/CLI_MODEL of the source tree. */
#define CLI_MODEL "hola-46m"
/* The default model of commands, a borrowed string; NULL: none. */
const char *cli_default_model(void);
int cli_no_model(const char *command); /* prints the error and returns CLI_USAGE */
struct arg_list;
/* Adds the default model to an empty list; returns ARGS_RUN or the exit status. */
int cli_models_or_default(const char *command, struct arg_list *models);

/* Whether a preset exists for some model type; and common names, for suggestions, NULL-terminated. */
bool cli_preset_known(const char *name);
extern const char *const cli_presets[];

/* The backend for hola_options: auto is the first GPU if there is one, else the CPU. */
const char *cli_backend(int choice);

/* The config of a preset, or, if preset is NULL, of the file or model directory at path. model_type < 0: the file's, or
 * the first of cli_model_types. */
hola_status cli_config(hola_config *cfg, const char *preset, const char *path, int model_type);

/* Token ids for a model with this vocabulary; the caller frees *ids. Both print errors. */
int cli_ids_read(const char *path, int64_t vocab, int32_t **ids, int64_t *n);
int cli_ids_encode(const char *tokenizer, const char *text_path, int64_t vocab, int32_t **ids, int64_t *n);

/* The commands; argv[0] is the command's name. */
int cmd_demo(int argc, char **argv);
int cmd_prepare(int argc, char **argv);
int cmd_tokenizer(int argc, char **argv);
int cmd_init(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_serve(int argc, char **argv);

#endif
