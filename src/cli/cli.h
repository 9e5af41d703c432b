/* cli.h -- what the commands share: their list, messages, exit statuses, JSON output. */
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

/* Sends out what was printed so far. Why that failed, the first time (stdio forgets it); 0: it did not. */
void cli_flush(void);
int cli_flush_error(void);
/* Prints root, which it takes over (NULL: memory ran out while it was built), and a newline. */
int cli_print_json(json_t *root);
/* A JSON number, or null for what JSON cannot say (infinities, NaN). */
json_t *cli_json_number(double x);
/* 1234567 as "1,234,567" in buf, which it returns. */
enum { CLI_GROUPED = 32 };
char *cli_grouped(char buf[CLI_GROUPED], int64_t x);

/* Whether DIR holds a model, or a part of one, that writing would replace; *which names it. */
bool cli_holds_model(const char *dir, const char **which);

/* Removes a directory that a command made and could not fill. existed: as it was before. */
bool cli_exists(const char *path);
void cli_take_back_dir(const char *dir, bool existed);

/* Choices that several commands offer. */
extern const char *const cli_backends[];   /* "auto", the default, then those of hola_options */
extern const char *const cli_precisions[]; /* of training, by enum cli_precision */
enum cli_precision { CLI_AUTO, CLI_FP8 };
extern const char *const cli_model_types[HOLA_TYPE_COUNT + 1]; /* in the order of hola_model_type; NULL ends */

/* The model that comes with hola: the folder models/CLI_MODEL of the source tree. */
#define CLI_MODEL "hola-tiny"
/* The model of a command that was given none, lent; NULL: there is none. */
const char *cli_default_model(void);
int cli_no_model(const char *command); /* says so and returns CLI_USAGE */
struct arg_list;
/* A list of models that is empty gets the default; ARGS_RUN, or the exit status. */
int cli_models_or_default(const char *command, struct arg_list *models);

/* Whether a preset is one for some type of model, and the usual names, for suggestions; NULL ends them. */
bool cli_preset_known(const char *name);
extern const char *const cli_presets[];

/* What hola_options gets: auto is the first GPU where there is one, else the CPU. */
const char *cli_backend(int choice);

/* The config of a preset, or of the file or model directory at path where preset is NULL. model_type < 0: the
 * file's, or the first of cli_model_types. */
hola_status cli_config(hola_config *cfg, const char *preset, const char *path, int model_type);

/* Token ids for a model of this vocabulary; *ids is yours to free(). Both print what is wrong. */
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
