/* cmd_train.c -- hola train: from token shards to a model; stops and goes on at any step. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/train_log.h"
#include "data/dataset.h"
#include "train/train.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct train_opts {
    const char *data, *out, *preset, *config, *model;
    int64_t steps, batch_tokens, micro_tokens, seq_len, warmup, decay, seed, eval_every, eval_tokens;
    int64_t save_every, keep, plot_every, log_every, threads;
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip;
    int recipe, model_type, schedule, backend;
    bool documents, recompute, restart, json;
};

static const char *const recipes[] = {"340m", "170m", "46m", NULL};

#define OPTS struct train_opts
static const struct arg options[] = {
    OPT_NEEDED(0, "data", data, "DIR", "token shards written by hola prepare"),
    OPT_NEEDED('o', "out", out, "DIR", "directory of the run; an existing run is resumed"),
    OPT_STRING(0, "preset", preset, "NAME", "46m, 170m or 340m, also with -gate or -nogate"),
    OPT_STRING(0, "config", config, "FILE", "config.json of the model"),
    OPT_STRING('m', "model", model, "DIR", "start from the weights of this model"),
    OPT_CHOICE(0, "recipe", recipe, recipes, "the paper's settings; other options override them"),
    OPT_CHOICE(0, "model-type", model_type, cli_model_types, "type of model (default: hola, or the config's)"),
    OPT_INT(0, "steps", steps, 1, INT32_MAX, "N", "training steps (default: one epoch)"),
    OPT_INT(0, "batch-tokens", batch_tokens, 1, 1 << 30, "N", "tokens per step (default 524288)"),
    OPT_INT(0, "micro-tokens", micro_tokens, 1, 1 << 24, "N",
            "tokens per forward and backward pass (default 8192; cuda: 32768)"),
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
    OPT_INT(0, "eval-every", eval_every, 1, INT32_MAX, "N", "steps between validations (default 250)"),
    OPT_INT(0, "eval-tokens", eval_tokens, 1, INT64_MAX, "N",
            "tokens per validation (default: 16 batches, at most 524288)"),
    OPT_INT(0, "save-every", save_every, 1, INT32_MAX, "N", "steps between checkpoints (default 1000)"),
    OPT_INT(0, "keep", keep, 1, 4096, "N", "recent checkpoints to keep besides the best (default 3)"),
    OPT_INT(0, "plot-every", plot_every, 1, INT32_MAX, "N", "steps between plots (default: as --eval-every)"),
    OPT_INT(0, "log-every", log_every, 1, INT32_MAX, "N",
            "steps between log lines if stderr is not a terminal (default 10)"),
    OPT_FLAG(0, "restart", restart, "start over; an existing run is moved to OUT/old-N"),
    OPT_FLAG(0, "recompute", recompute, "recompute activations: about half the memory, a few percent slower"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "train", "--data DIR --out DIR (--recipe NAME | --preset NAME | --config FILE | -m DIR) [options]",
    "Trains a model. The same command again resumes at the last checkpoint, with the same results.\n"
    "Ctrl-C finishes the step, writes a checkpoint and exits. With MPI, mpirun -n 4 hola train ...\n"
    "splits every batch among four ranks.",
    options};

/* ---- options ---- */

/* As the paper trains. The steps are those of 15.0, 6.22 and 0.5 billion tokens. The paper states no optimizer
 * for 46m; a warmup of 1000 would outlast its 954 steps, so that stays at the default. */
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
        if (o->warmup > o->steps) o->warmup = -1; /* --steps made the run shorter than that */
    }
    if (o->steps < 0) o->steps = 0;
    if (o->seq_len < 0) o->seq_len = 2048;
}

/* A preset is about the shape; the special tokens are the tokenizer's. */
static hola_status adopt_tokenizer(hola_config *cfg, const char *data) {
    struct hl_dataset *d = NULL;
    hola_tokenizer *t = NULL;
    hola_status s = hl_dataset_open(&d, data, "train", 0);
    if (s == HOLA_OK && hl_dataset_info(d)->tokenizer) {
        s = hola_tokenizer_load(&t, hl_dataset_info(d)->tokenizer);
        if (s == HOLA_OK) cfg->bos_token_id = hola_tokenizer_bos(t), cfg->eos_token_id = hola_tokenizer_eos(t);
        if (cfg->bos_token_id >= cfg->vocab_size) cfg->bos_token_id = -1;
        if (cfg->eos_token_id >= cfg->vocab_size) cfg->eos_token_id = -1;
    }
    hola_tokenizer_free(t);
    hl_dataset_free(d);
    return s;
}

static hola_status make_config(const struct train_opts *o, hola_config *cfg) {
    hola_status s = cli_config(cfg, o->preset, o->model ? o->model : o->config, o->model_type);
    if (s != HOLA_OK || !o->preset) return s;
    cfg->max_position_embeddings = o->seq_len;
    return adopt_tokenizer(cfg, o->data);
}

static int check_usage(const struct train_opts *o) {
    const int sources = !!o->preset + !!o->config + !!o->model;
    if (sources == 0) return cli_usage("train", "one of --recipe, --preset, --config and -m is required");
    if (sources > 1) return cli_usage("train", "only one of --preset, --config and -m can be given");
    if (o->model && o->model_type >= 0) return cli_usage("train", "--model-type cannot be used with -m");
    return ARGS_RUN;
}

/* ---- signals ---- */

static volatile sig_atomic_t stop_asked;
static void ask_to_stop(int sig) {
    (void)sig;
    stop_asked = 1;
}
/* The second one finds the default action: it ends the process at once. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = ask_to_stop, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write error like any other */
}

/* ---- ranks ---- */

static int begin_ranks(struct hl_dist *d, int *argc, char ***argv) {
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    *d = hl_dist_alone;
    if (!size) size = getenv("PMI_SIZE");
    if (!size || atoi(size) < 2) return CLI_OK;
#ifdef HL_HAVE_MPI
    return hl_mpi_begin(d, argc, argv) == HOLA_OK ? CLI_OK : cli_fail_library();
#else
    (void)argc, (void)argv;
    return cli_fail("started as one of %s ranks, but this hola was built without MPI", size);
#endif
}

static void end_ranks(const struct hl_dist *d) {
#ifdef HL_HAVE_MPI
    if (d->size > 1) hl_mpi_end();
#endif
    (void)d;
}

/* ---- the command ---- */

static int print_result(const struct train_opts *o, const struct train_log *log, const struct hl_train_result *r) {
    const struct hl_metric *m = &log->last;
    if (r->stopped) fprintf(stderr, "stopped at step %lld; the same command resumes\n", (long long)r->step);
    if (o->json)
        return cli_print_json(json_pack("{s:I, s:I, s:I, s:o, s:o, s:b}", "step", (json_int_t)r->step, "steps",
                                        (json_int_t)log->begin.steps, "tokens", (json_int_t)m->tokens, "loss",
                                        cli_json_number(m->step ? m->loss : NAN), "val_loss",
                                        cli_json_number(m->step ? m->val_loss : NAN), "stopped", r->stopped));
    if (r->stopped) return CLI_OK;
    printf("%s: step %lld of %lld", o->out, (long long)r->step, (long long)log->begin.steps);
    if (m->step) printf(", loss %.4f", m->loss);
    else printf(", nothing left to do");
    if (m->step && m->val_loss == m->val_loss) printf(", val loss %.4f", m->val_loss);
    printf("\n");
    return CLI_OK;
}

static bool on_device(const struct train_opts *o) { return strncmp(cli_backend(o->backend), "cuda", 4) == 0; }

static int run_training(const struct train_opts *o, const struct hl_dist *dist) {
    struct train_log log;
    struct hl_train_result r;
    struct hl_train t = {.data = o->data,
                         .out = o->out,
                         .from = o->model,
                         .steps = o->steps,
                         .batch_tokens = o->batch_tokens,
                         .micro_tokens = o->micro_tokens ? o->micro_tokens
                                         : on_device(o)  ? 32768
                                                         : 8192,
                         .seq_len = o->seq_len,
                         .documents = o->documents,
                         .schedule = {.kind = (enum hl_schedule_kind)o->schedule,
                                      .peak = o->lr,
                                      .floor = o->min_lr,
                                      .warmup = o->warmup,
                                      .decay = o->decay},
                         .adamw = {.beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .weight_decay = o->weight_decay,
                                   .clip = o->clip,
                                   .recompute = o->recompute},
                         .seed = (uint64_t)o->seed,
                         .eval_every = o->eval_every,
                         .eval_tokens = o->eval_tokens,
                         .save_every = o->save_every,
                         .keep = o->keep,
                         .plot_every = o->plot_every,
                         .restart = o->restart,
                         .model = {.threads = (int)o->threads, .backend = cli_backend(o->backend)},
                         .dist = dist,
                         .stop = &stop_asked};
    hola_status s = make_config(o, &t.config);
    if (s != HOLA_OK) return dist->rank == 0 ? cli_fail_library() : CLI_FAILED; /* the same on every rank */
    catch_signals();
    train_log_begin(&log, o->log_every);
    t.report = train_log_report(&log);
    s = hl_train_run(&t, &r);
    train_log_end(&log);
    if (s != HOLA_OK) return r.speaks ? cli_fail_library() : CLI_FAILED;
    return dist->rank == 0 ? print_result(o, &log, &r) : CLI_OK;
}

int cmd_train(int argc, char **argv) {
    struct train_opts o = {.steps = -1,
                           .batch_tokens = 524288,
                           .seq_len = -1,
                           .warmup = -1,
                           .decay = -1,
                           .save_every = 1000,
                           .keep = 3,
                           .log_every = 10,
                           .lr = 4e-4,
                           .min_lr = 0.1,
                           .weight_decay = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .clip = 1,
                           .recipe = -1,
                           .model_type = -1};
    struct hl_dist dist;
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    apply_recipe(&o);
    rc = check_usage(&o);
    if (rc != ARGS_RUN) return rc;
    rc = begin_ranks(&dist, &argc, &argv);
    if (rc != CLI_OK) return rc;
    rc = run_training(&o, &dist);
    end_ranks(&dist);
    return rc;
}
