/* train.h -- shared by the files of hola train: options, and benchmarks during training. */
#ifndef HOLA_CLI_TRAIN_H
#define HOLA_CLI_TRAIN_H
#include "cli/args.h"
#include "core/settings.h"
#include "eval/eval.h"
#include "train/train.h"

struct train_opts {
    struct arg_list configs; /* --config: model configs and option files */
    const char *data, *out, *preset, *model, *memory_layers, *eval_tasks, *eval_data;
    const char *config; /* the config.json among configs; NULL: none */
    int64_t steps, batch_tokens, micro_tokens, seq_len, warmup, decay, seed, eval_every, eval_tokens, eval_limit;
    int64_t save_every, keep, plot_every, log_every, threads;
    double epochs, lr, min_lr, weight_decay, beta1, beta2, eps, clip, memory_lr, memory_decay, diverge, max_memory;
    int recipe, model_type, schedule, backend, only, precision;
    bool add_memory, documents, recompute, restart, tensorboard, json;
    struct hl_settings file[ARG_LIST_MOST]; /* owns strings of the options */
};
enum { TRAIN_ALL, TRAIN_MEMORY };

/* train_options.c: fills *o from the files of --config, then from the command line. Returns ARGS_RUN or the exit
 * status. */
int train_options(struct train_opts *o, int argc, char **argv);
char *train_options_text(const struct train_opts *o); /* settings.json; malloced, NULL: out of memory */
void train_options_free(struct train_opts *o);

/* train_eval.c: the tasks of --eval-tasks; their files are read up front, so that errors show at once. */
enum { TRAIN_TASKS = 32 };
struct train_eval {
    int n;
    const struct hl_task *task[TRAIN_TASKS];
    struct hl_set set[TRAIN_TASKS];
    struct hl_eval_opts how;
    hola_tokenizer *tokenizer;
    const volatile sig_atomic_t *stop;
};
/* Prints errors; returns ARGS_RUN or the exit status. */
int train_eval_open(struct train_eval *e, const struct train_opts *o, const hola_config *cfg);
hola_status train_eval_run(void *ctx, hola_model *m, struct hl_train_figures *out, bool *stopped);
void train_eval_close(struct train_eval *e); /* also accepts a zeroed one */

#endif
