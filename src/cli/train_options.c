/* train_options.c -- the options of hola train: from the files of --config, then from the command line. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/train.h"
#include "data/dataset.h"
#include "model/trainer.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const recipes[] = {"340m", "170m", "46m", NULL};
static const char *const parts[] = {"all", "memory", NULL};

#define OPTS struct train_opts
static const struct arg options[] = {
    OPT_NEEDED(0, "data", data, "DIR", "token shards written by hola prepare"),
    OPT_NEEDED('o', "out", out, "DIR", "directory of the run; an existing run is resumed"),
    OPT_PRESET,
    OPT_LIST(0, "config", configs, "FILE", "config.json of the model, or options of this command (.toml, .json)"),
    OPT_STRING('m', "model", model, "DIR", "start from the weights of this model"),
    OPT_CHOICE(0, "recipe", recipe, recipes, "the paper's settings; other options override them"),
    OPT_CHOICE(0, "model-type", model_type, cli_model_types, "type of model (default: hola, or the config's)"),
    OPT_FLAG(0, "add-memory", add_memory, "give the model of -m an exact memory, at first without effect"),
    OPT_CHOICE(0, "train-only", only, parts, "train the exact memory's tensors alone (default all)"),
    OPT_REAL(0, "memory-lr", memory_lr, 1e-6, 1e6, "X",
             "learning rate of the exact memory's tensors, times that of the others"),
    OPT_REAL(0, "memory-decay", memory_decay, 0, 100, "X", "weight decay of the exact memory's tensors"),
    OPT_STRING(0, "memory-layers", memory_layers, "N[,N...]", "the only layers with an exact memory, counted from 0"),
    OPT_INT(0, "steps", steps, 1, INT32_MAX, "N", "training steps (default: one epoch)"),
    OPT_REAL(0, "epochs", epochs, 0.001, 1e6, "X", "passes over the data, instead of --steps"),
    OPT_INT(0, "batch-tokens", batch_tokens, 1, 1 << 30, "N", "tokens per step (default 524288)"),
    OPT_INT(0, "micro-tokens", micro_tokens, 1, 1 << 24, "N",
            "tokens per forward and backward pass (default 8192; cuda: up to 131072, what fits)"),
    OPT_INT(0, "seq-len", seq_len, 2, 1 << 24, "N", "tokens per row (default 2048)"),
    OPT_FLAG(0, "documents", documents, "fill rows with whole documents, each from an empty state"),
    OPT_REAL(0, "lr", lr, 0, 1e6, "X", "peak learning rate (default 4e-4)"),
    OPT_CHOICE(0, "schedule", schedule, hl_schedule_names, "learning rate schedule (default cosine)"),
    OPT_INT(0, "warmup", warmup, 0, INT32_MAX, "N", "warmup steps (default: a tenth of all, at most 1000)"),
    OPT_REAL(0, "min-lr", min_lr, 0, 1, "X", "final learning rate as a fraction of the peak (default 0.1)"),
    OPT_INT(0, "decay-steps", decay, 0, INT32_MAX, "N", "decay steps of wsd (default: a fifth of all)"),
    OPT_REAL(0, "weight-decay", weight_decay, 0, 100, "X", "AdamW weight decay (default 0.01)"),
    OPT_REAL(0, "clip", clip, 0, 1e9, "X", "clip gradients to this norm (default 1; 0: no clipping)"),
    OPT_REAL(0, "beta1", beta1, 1e-6, 0.999999, "X", "AdamW beta1 (default 0.9)"),
    OPT_REAL(0, "beta2", beta2, 1e-6, 0.999999, "X", "AdamW beta2 (default 0.95)"),
    OPT_REAL(0, "eps", eps, 1e-30, 1, "X", "AdamW epsilon (default 1e-8)"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "seed of the weights and the order of rows (default 0)"),
    OPT_INT(0, "eval-every", eval_every, 1, INT32_MAX, "N", "steps between evaluations (default 250)"),
    OPT_INT(0, "eval-tokens", eval_tokens, 1, INT64_MAX, "N",
            "tokens per validation (default: 16 batches, at most 524288)"),
    OPT_STRING(0, "eval-tasks", eval_tasks, "NAME[,NAME...]",
               "benchmarks to run with every evaluation (hola eval --list)"),
    OPT_STRING(0, "eval-data", eval_data, "DIR", "directory with the benchmarks' files (docs/eval.md)"),
    OPT_INT(0, "eval-limit", eval_limit, 1, INT64_MAX, "N", "only the first N documents of each benchmark"),
    OPT_REAL(0, "diverge", diverge, 0, 1e6, "X",
             "end a run whose loss stays X above its lowest for 100 steps (default 2; 0: never)"),
    OPT_INT(0, "save-every", save_every, 1, INT32_MAX, "N", "steps between checkpoints (default 1000)"),
    OPT_INT(0, "keep", keep, 1, 4096, "N", "recent checkpoints to keep besides the best (default 3)"),
    OPT_INT(0, "plot-every", plot_every, 1, INT32_MAX, "N", "steps between plots (default: as --eval-every)"),
    OPT_INT(0, "log-every", log_every, 1, INT32_MAX, "N",
            "steps between log lines if stderr is not a terminal (default 10)"),
    OPT_FLAG(0, "tensorboard", tensorboard, "write event files for TensorBoard to OUT/tb"),
    OPT_REAL(0, "max-memory", max_memory, 0.001, 1e6, "GB", "memory the run may take (default: what is free)"),
    OPT_FLAG(0, "restart", restart, "start over; an existing run is moved to OUT/old-N"),
    OPT_CHOICE(0, "precision", precision, hl_train_precisions,
               "of the large products: bf16 on a CPU, too; fp8 on a Hopper GPU (on a CPU a slow simulation)"),
    OPT_FLAG(0, "recompute", recompute, "recompute activations: about half the memory, a few percent slower"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "train", "--data DIR --out DIR (--recipe NAME | --preset NAME | --config FILE | -m DIR) [options]",
    "Trains a model, or fine-tunes that of -m on conversations (hola prepare --format chat; then the default is\n"
    "three epochs, a rate of 1e-4 and up to 16 rows a step). The same command again resumes at the last checkpoint, "
    "with the same results.\n"
    "Ctrl-C finishes the slice, writes a checkpoint of the last whole step and exits. With MPI,\n"
    "mpirun -n 4 hola train ... splits every batch among four ranks.",
    options};

/* ---- the files of --config ---- */

/* Whether a file contains options rather than a model's config.json: a TOML file, or an object without any model
 * field. */
static bool holds_options(const char *path) {
    static const char *const fields[] = {"model_type", "architectures", "hidden_size",       "num_hidden_layers",
                                         "num_heads",  "vocab_size",    "intermediate_size", "head_dim"};
    const size_t n = strlen(path);
    struct stat st;
    if (n > 5 && !strcmp(path + n - 5, ".toml")) return true;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > HL_SETTINGS_BYTES) return false;
    json_t *root = json_load_file(path, 0, NULL);
    bool model = !json_is_object(root) || json_object_size(root) == 0; /* config.c refuses anything but an object */
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) model |= json_object_get(root, fields[i]) != NULL;
    json_decref(root);
    return !model;
}

/* The options of all files, in order. */
static int read_files(struct train_opts *o, const struct arg_list *files) {
    for (int i = 0; i < files->n; i++) {
        if (!holds_options(files->item[i])) continue;
        const int rc = args_file(&command, files->item[i], &o->file[i], o);
        if (rc != ARGS_RUN) return rc;
    }
    for (int i = 0; i < o->configs.n; i++)
        if (holds_options(o->configs.item[i]))
            return cli_usage("train", "%s: a file of options cannot name another", o->configs.item[i]);
    return ARGS_RUN;
}

/* The last model config among the files; the others have been read. */
static void find_config(struct train_opts *o) {
    o->config = NULL;
    for (int i = 0; i < o->configs.n; i++)
        if (!holds_options(o->configs.item[i])) o->config = o->configs.item[i];
    o->configs = (struct arg_list){.n = o->config != NULL, .item = {o->config}};
}

/* ---- all of it ---- */

/* The paper's recipe. The steps correspond to 15.0, 6.22 and 0.5 billion tokens. The paper gives no optimizer for 46m;
 * a warmup of 1000 would exceed its 954 steps, so that stays at the default. */
static void apply_recipe(struct train_opts *o) {
    static const struct {
        const char *preset;
        int64_t steps, warmup, seq_len;
    } recipe[] = {{"340m", 28610, 1000, 2048}, {"170m", 11864, 1000, 2048}, {"46m", 954, -1, 4096}};
    if (o->recipe >= 0) {
        if (!o->preset && !o->config && !o->model) o->preset = recipe[o->recipe].preset;
        if (o->steps < 0) o->steps = recipe[o->recipe].steps;
        if (o->warmup < 0) o->warmup = recipe[o->recipe].warmup;
        if (o->seq_len < 0) o->seq_len = recipe[o->recipe].seq_len;
        if (o->warmup > o->steps) o->warmup = -1; /* --steps made the run shorter */
    }
    if (o->steps < 0) o->steps = 0;
    if (o->seq_len < 0) o->seq_len = 2048;
}

/* Defaults that depend on the data. Fine-tuning starts near its goal: a lower rate, small batches (at least about 20
 * steps per epoch), and more than one epoch, because conversations are few. */
static int adapt_to_data(struct train_opts *o) {
    struct hl_dataset *d = NULL;
    const bool open = hl_dataset_open(&d, o->data, "train", 0) == HOLA_OK; /* otherwise the run reports the error */
    const bool chat = open && hl_dataset_info(d)->flagged, tune = chat && o->model;
    const int64_t rows = open ? hl_dataset_info(d)->tokens / o->seq_len / 20 : 0;
    hl_dataset_free(d);
    if (o->lr < 0) o->lr = tune ? 1e-4 : 4e-4;
    if (o->batch_tokens < 0) o->batch_tokens = tune ? o->seq_len * (rows < 1 ? 1 : rows > 16 ? 16 : rows) : 524288;
    if (o->epochs < 0) o->epochs = tune && o->steps == 0 ? 3 : 0;
    if (chat) o->documents = true;
    if (o->batch_tokens % o->seq_len != 0)
        return cli_usage("train", "--batch-tokens %lld must be a multiple of --seq-len %lld",
                         (long long)o->batch_tokens, (long long)o->seq_len);
    return ARGS_RUN;
}

static int check_usage(const struct train_opts *o) {
    const int sources = !!o->preset + !!o->config + !!o->model;
    hola_config cfg;
    if (sources == 0) return cli_usage("train", "one of --recipe, --preset, --config and -m is required");
    if (sources > 1) return cli_usage("train", "only one of --preset, --config and -m can be given");
    if (o->add_memory && !o->model) return cli_usage("train", "--add-memory needs -m");
    if (o->preset && cli_config(&cfg, o->preset, NULL, o->model_type) != HOLA_OK)
        return cli_usage("train", "%s", hola_last_error());
    if (o->steps > 0 && o->epochs > 0) return cli_usage("train", "only one of --steps and --epochs can be given");
    if (o->steps > 0 && o->warmup > o->steps)
        return cli_usage("train", "--warmup %lld is longer than the run of %lld steps", (long long)o->warmup,
                         (long long)o->steps);
    if (!o->eval_tasks && (o->eval_data || o->eval_limit))
        return cli_usage("train", "%s needs --eval-tasks", o->eval_data ? "--eval-data" : "--eval-limit");
    return ARGS_RUN;
}

int train_options(struct train_opts *o, int argc, char **argv) {
    static const struct train_opts defaults = {.steps = -1,
                                               .batch_tokens = -1,
                                               .epochs = -1,
                                               .seq_len = -1,
                                               .warmup = -1,
                                               .decay = -1,
                                               .save_every = 1000,
                                               .keep = 3,
                                               .log_every = 10,
                                               .lr = -1,
                                               .min_lr = 0.1,
                                               .weight_decay = 0.01,
                                               .memory_decay = -1,
                                               .beta1 = 0.9,
                                               .beta2 = 0.95,
                                               .eps = 1e-8,
                                               .clip = 1,
                                               .diverge = 2,
                                               .recipe = -1,
                                               .model_type = -1};
    struct train_opts first = defaults; /* only for the file names: the command line comes last and overrides */
    *o = defaults;
    int rc = args_words(&command, argc, argv, &first);
    if (rc == ARGS_RUN) rc = read_files(o, &first.configs);
    if (rc == ARGS_RUN) rc = args_words(&command, argc, argv, o);
    if (rc == ARGS_RUN) rc = args_needed(&command, o);
    if (rc != ARGS_RUN) return rc;
    find_config(o);
    apply_recipe(o);
    const int bad = check_usage(o);
    return bad == ARGS_RUN ? adapt_to_data(o) : bad;
}

char *train_options_text(const struct train_opts *o) {
    struct train_opts kept = *o;
    kept.restart = kept.json = false; /* options of this command, not of the run */
    return args_text(&command, &kept);
}

void train_options_free(struct train_opts *o) {
    for (int i = 0; i < ARG_LIST_MOST; i++) hl_settings_free(&o->file[i]);
}
