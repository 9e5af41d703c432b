/* cmd_train.c -- hola train: trains a model from token shards; can stop and resume at any step. */
#define _POSIX_C_SOURCE 200809L
#include "chat/template.h"
#include "cli/cli.h"
#include "cli/train.h"
#include "cli/train_log.h"
#include "data/dataset.h"
#include "model/config.h"
#include "train/train.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the model ---- */

/* The vocabulary of an existing run: one started by an earlier version keeps its own. */
static int64_t vocab_of_run(const struct train_opts *o) {
    char path[4096];
    json_int_t vocab = 0;
    snprintf(path, sizeof path, "%s/run.json", o->out);
    json_t *root = o->restart ? NULL : json_load_file(path, 0, NULL);
    if (root) json_unpack(root, "{s:{s:{s:I}}}", "run", "config", "vocab_size", &vocab);
    json_decref(root);
    return vocab;
}

/* A preset defines the shape; vocabulary and special tokens come from the tokenizer. */
static hola_status adopt_tokenizer(hola_config *cfg, const struct train_opts *o) {
    struct hl_dataset *d = NULL;
    hola_tokenizer *t = NULL;
    hola_status s = hl_dataset_open(&d, o->data, "train", 0);
    if (s == HOLA_OK && hl_dataset_info(d)->vocab > 0 && vocab_of_run(o) != cfg->vocab_size)
        cfg->vocab_size = hl_dataset_info(d)->vocab;
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

/* The config of -m, unchanged or with an exact memory; --model-type may request it by name. */
static hola_status started_config(const struct train_opts *o, hola_config *cfg) {
    hola_status s = hola_config_read(cfg, o->model);
    const bool other = o->model_type >= 0 && (int)cfg->model_type != o->model_type;
    if (s == HOLA_OK && (o->add_memory || (other && o->model_type == HOLA_TYPE_HOLA)))
        s = hl_config_add_memory(cfg, o->model);
    if (s == HOLA_OK && o->model_type >= 0 && (int)cfg->model_type != o->model_type)
        s = hl_fail(HOLA_EINVAL, "%s: a %s, which cannot become a %s", o->model, hola_model_type_name(cfg->model_type),
                    hola_model_type_name((hola_model_type)o->model_type));
    return s;
}

/* A config.json keeps its special tokens; generation begins and ends with them. */
static void compare_tokens(const hola_config *cfg, const struct train_opts *o) {
    hola_config theirs = *cfg;
    if (adopt_tokenizer(&theirs, o) != HOLA_OK) return; /* whoever opens the dataset next says why */
    if (theirs.vocab_size != cfg->vocab_size) return;   /* as above */
    if (theirs.bos_token_id != cfg->bos_token_id || theirs.eos_token_id != cfg->eos_token_id)
        fprintf(stderr, "%s: bos and eos are %d and %d there, %d and %d in the dataset's tokenizer\n", o->config,
                (int)cfg->bos_token_id, (int)cfg->eos_token_id, (int)theirs.bos_token_id, (int)theirs.eos_token_id);
}

/* speaks: the rank that prints. */
static hola_status make_config(const struct train_opts *o, hola_config *cfg, bool speaks) {
    char vocab[CLI_GROUPED], preset[CLI_GROUPED];
    hola_status s = o->model ? started_config(o, cfg) : cli_config(cfg, o->preset, o->config, o->model_type);
    if (s != HOLA_OK || !o->preset) return s;
    const int64_t before = cfg->vocab_size;
    cfg->max_position_embeddings = o->seq_len;
    s = adopt_tokenizer(cfg, o);
    if (s == HOLA_OK && speaks && cfg->vocab_size != before)
        fprintf(stderr, "vocabulary: %s tokens, the tokenizer's (the preset has %s)\n",
                cli_grouped(vocab, cfg->vocab_size), cli_grouped(preset, before));
    return s;
}

/* ---- signals ---- */

static volatile sig_atomic_t stop_asked, speaking;
static void ask_to_stop(int sig) {
    (void)sig;
    stop_asked = 1;
    if (speaking) train_log_stopping();
}
/* A second signal finds the default action, which ends the process at once. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = ask_to_stop, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGXFSZ, SIG_IGN); /* treat a file size limit as an ordinary write error */
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

/* A path quoted for the shell. */
static const char *quoted(char buf[512], const char *path) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@";
    size_t n = 0;
    if (path[strspn(path, plain)] == 0 && *path) return path;
    buf[n++] = '\'';
    for (; *path && n < 500; path++)
        if (*path == '\'') memcpy(buf + n, "'\\''", 4), n += 4;
        else buf[n++] = *path;
    buf[n++] = '\'';
    buf[n] = 0;
    return buf;
}

/* Prints where the model is, and what to do next. */
static void print_next(const struct train_opts *o, const struct hl_train_result *r) {
    char buf[512], path[4096];
    bool text = false;
    static const char *const files[] = {"tokenizer.json", "tokenizer.model"};
    if (isfinite(r->low_val)) printf("best validation loss: %.4f at step %lld\n", r->low_val, (long long)r->low_step);
    if (isfinite(r->best_val) && r->best_step != r->low_step)
        printf("best checkpoint: step %lld, validation loss %.4f (--save-every decides which steps are kept)\n",
               (long long)r->best_step, r->best_val);
    if (r->skipped > 0) printf("updates skipped: %lld\n", (long long)r->skipped);
    if (r->latest < 0) return;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/best/%s", o->out, files[i]);
        text |= access(path, R_OK) == 0;
    }
    printf("model: %s/best (step %lld)\n", o->out, (long long)r->best_step);
    snprintf(path, sizeof path, "%s/best/" HL_TEMPLATE_FILE, o->out);
    if (text && access(path, R_OK) == 0)
        printf("next: hola generate -m %s/best --chat -p 'a question'\n", quoted(buf, o->out));
    else if (text) printf("next: hola generate -m %s/best -p 'Once upon a time'\n", quoted(buf, o->out));
    else printf("next: hola inspect -m %s/best\n", quoted(buf, o->out));
}

static int print_result(const struct train_opts *o, const struct train_log *log, const struct hl_train_result *r) {
    const struct hl_metric *m = &log->last;
    if (r->stopped) fprintf(stderr, "stopped at step %lld; the same command resumes\n", (long long)r->step);
    if (o->json)
        return cli_print_json(json_pack("{s:I, s:I, s:I, s:o, s:o, s:b, s:o, s:I, s:o, s:I, s:I}", "step",
                                        (json_int_t)r->step, "steps", (json_int_t)log->begin.steps, "tokens",
                                        (json_int_t)m->tokens, "loss", cli_json_number(m->step ? m->loss : NAN),
                                        "val_loss", cli_json_number(m->step ? m->val_loss : NAN), "stopped", r->stopped,
                                        "lowest_val_loss", cli_json_number(r->low_val), "lowest_val_step",
                                        (json_int_t)r->low_step, "best_val_loss", cli_json_number(r->best_val),
                                        "best_step", (json_int_t)r->best_step, "skipped", (json_int_t)r->skipped));
    if (r->stopped) return CLI_OK;
    printf("%s: step %lld of %lld", o->out, (long long)r->step, (long long)log->begin.steps);
    if (m->step) printf(", loss %.4f", m->loss);
    else printf(", nothing left to do");
    if (m->step && m->val_loss == m->val_loss) printf(", val loss %.4f", m->val_loss);
    printf("\n");
    print_next(o, r);
    return CLI_OK;
}

static bool on_device(const struct train_opts *o) { return strncmp(cli_backend(o->backend), "cuda", 4) == 0; }

static int run_training(const struct train_opts *o, const struct hl_dist *dist) {
    struct train_log log;
    struct train_eval eval = {0};
    struct hl_train_result r;
    const bool root = dist->rank == 0;
    struct hl_train t = {.data = o->data,
                         .out = o->out,
                         .from = o->model,
                         .memory = {.only = o->only == TRAIN_MEMORY,
                                    .rate = o->memory_lr,
                                    .own_decay = o->memory_decay >= 0,
                                    .decay = o->memory_decay,
                                    .layers = o->memory_layers},
                         .steps = o->steps,
                         .epochs = o->epochs,
                         .batch_tokens = o->batch_tokens,
                         .micro_tokens = o->micro_tokens ? o->micro_tokens
                                         : on_device(o)  ? 0
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
                                   .recompute = o->recompute,
                                   .precision = (hola_precision)o->precision},
                         .seed = (uint64_t)o->seed,
                         .eval_every = o->eval_every,
                         .eval_tokens = o->eval_tokens,
                         .save_every = o->save_every,
                         .keep = o->keep,
                         .plot_every = o->plot_every,
                         .restart = o->restart,
                         .tensorboard = o->tensorboard,
                         .diverge = o->diverge,
                         .max_memory = (int64_t)(1e9 * o->max_memory),
                         .model = {.threads = (int)o->threads, .backend = cli_backend(o->backend)},
                         .dist = dist,
                         .stop = &stop_asked};
    hola_status s = make_config(o, &t.config, root);
    if (s != HOLA_OK) return root ? cli_fail_library() : CLI_FAILED; /* the same on every rank */
    if (o->eval_tasks) {
        const int rc = train_eval_open(&eval, o, &t.config);
        if (rc != ARGS_RUN) return train_eval_close(&eval), rc;
        eval.stop = &stop_asked;
        t.benchmark = train_eval_run, t.benchmark_ctx = &eval;
    }
    if (root && o->config && !o->model && !o->preset) compare_tokens(&t.config, o);
    char *settings = train_options_text(o);
    t.settings = settings;
    speaking = root;
    catch_signals();
    train_log_begin(&log, o->log_every);
    t.report = train_log_report(&log);
    s = hl_train_run(&t, &r);
    train_log_end(&log);
    train_eval_close(&eval);
    free(settings);
    if (s != HOLA_OK) return r.speaks ? cli_fail_library() : CLI_FAILED;
    return root ? print_result(o, &log, &r) : CLI_OK;
}

/* With several ranks, only the first prints errors in the command; the others parse silently. */
static int read_options(struct train_opts *o, const struct hl_dist *dist, int argc, char **argv) {
    const int kept = dist->rank > 0 ? dup(STDERR_FILENO) : -1, nowhere = kept >= 0 ? open("/dev/null", O_WRONLY) : -1;
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    const int rc = train_options(o, argc, argv);
    if (nowhere >= 0) dup2(kept, STDERR_FILENO), close(nowhere);
    if (kept >= 0) close(kept);
    return rc;
}

int cmd_train(int argc, char **argv) {
    struct train_opts o = {0};
    struct hl_dist dist;
    int rc = begin_ranks(&dist, &argc, &argv);
    if (rc != CLI_OK) return rc;
    rc = read_options(&o, &dist, argc, argv);
    if (rc == ARGS_RUN) rc = run_training(&o, &dist);
    end_ranks(&dist);
    train_options_free(&o);
    return rc;
}
