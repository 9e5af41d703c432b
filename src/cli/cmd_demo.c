/* cmd_demo.c -- hola demo: shows what the exact memory is for, in a few minutes on two cores.
 *
 * Three small models with the same backbone learn to recall facts, from the same batches in the same number of steps:
 * Gated DeltaNet, HOLA, and HOLA with a memory that keeps the latest tokens instead of the surprising ones. Then each
 * is tested with more and more facts, and with longer and longer texts. */
#include "cli/args.h"
#include "cli/demo.h"
#include "cli/progress.h"
#include "core/file.h"
#include "core/pool.h"
#include "model/config.h"
#include "model/trainer.h"
#include "train/schedule.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct demo_opts {
    const char *out;
    int64_t steps, samples, seed, threads;
    bool quick;
};

#define OPTS struct demo_opts
static const struct arg options[] = {
    OPT_STRING('o', "out", out, "DIR", "directory for the models, recall.json and recall.svg (default build/demo)"),
    OPT_INT(0, "steps", steps, 1, 1000000, "N", "training steps per model (default 1600)"),
    OPT_INT(0, "samples", samples, 2, 1000000, "N", "samples per measurement (default 300)"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "seed of the weights and the data (default 1)"),
    OPT_FLAG(0, "quick", quick, "20 steps, 4 samples: shows everything, learns nothing"),
    OPT_THREADS,
    OPT_END,
};
static const struct args_command command = {"demo", "[options]",
                                            "Trains a small Gated DeltaNet to recall facts, with and "
                                            "without the exact memory, and measures how\n"
                                            "many facts each recalls and over which length of text.",
                                            options};

const char *const demo_names[] = {"gdn", "hola", "hola-recency"};
const char *const demo_titles[] = {"Gated DeltaNet", "HOLA", "HOLA+recency"};

/* ---- training and test settings ---- */

static const int64_t facts_asked[DEMO_FACTS] = {4, 8, 16, 32, 48, 64, 96};
static const int64_t times_asked[DEMO_LENGTHS] = {1, 2, 4, 8, 16};

static struct demo the_demo(const struct demo_opts *o) {
    return (struct demo){
        .out = o->out ? o->out : "build/demo",
        .samples = o->samples ? o->samples
                   : o->quick ? 4
                              : 300,
        .lr = 4e-3,
        .warmup = 50,
        .curriculum = {
            .task = {.fillers = 8, .keys = 128, .values = 64, .facts = 2, .queries = 16, .length = 320, .distance = 48},
            .most_facts = 64,
            .steps = o->steps   ? o->steps
                     : o->quick ? 20
                                : 1600,
            .batch_tokens = 4096,
            .seed = (uint64_t)o->seed}};
}

/* One layer, two heads of 16. The initial weights are larger than in big models, where 0.02 is usual; the memory's gate
 * starts at -2, not the paper's -4, because the training is short. The rest is as in the paper. */
static hola_config backbone(const struct demo *d, int which) {
    hola_config c;
    hl_config_defaults(&c, which == DEMO_GDN ? HOLA_TYPE_GATED_DELTANET : HOLA_TYPE_HOLA);
    c.hidden_size = 64;
    c.num_hidden_layers = 1;
    c.num_heads = c.num_v_heads = 2;
    c.head_dim = c.head_v_dim = 16;
    c.intermediate_size = 128;
    c.vocab_size = hl_recall_vocab(&d->curriculum.task);
    c.tie_word_embeddings = true;
    c.initializer_range = 0.08;
    c.max_position_embeddings = d->curriculum.task.length;
    c.bos_token_id = HL_RECALL_BEGIN;
    c.eos_token_id = -1;
    c.cache_window = 64;
    c.cache_chunk = 32;
    c.cache_gate_init = -2;
    if (which == DEMO_RECENCY) c.cache_evict = HOLA_EVICT_RECENCY;
    return c;
}

struct hl_recall demo_task(const struct demo *d, int64_t facts, int64_t times) {
    struct hl_recall r = d->curriculum.task;
    r.facts = facts;
    if (r.queries > facts) r.queries = facts;
    r.distance += (times - 1) * r.length;
    r.length *= times;
    return r;
}

/* ---- all models at once, one thread each ---- */

struct school {
    struct demo *d;
    struct hl_pool *pool;
    hola_trainer *trainer[DEMO_MODELS];
    struct hl_recall_batch batch;
    double lr, loss[DEMO_MODELS];
    const struct hl_recall *task; /* the task being measured */
    double *right;                /* [DEMO_MODELS][samples] */
    hola_status status[DEMO_MODELS];
    char message[DEMO_MODELS][256];
};

/* Error messages are per thread; this passes one to the thread that prints it. */
static void keep_status(struct school *y, int64_t k, hola_status s) {
    y->status[k] = s;
    if (s != HOLA_OK) snprintf(y->message[k], sizeof y->message[k], "%s", hola_last_error());
}

static hola_status at_once(struct school *y, hl_task task) {
    hl_pool_run(y->pool, DEMO_MODELS, task, y);
    for (int k = 0; k < DEMO_MODELS; k++)
        if (y->status[k] != HOLA_OK) return hl_fail(y->status[k], "%s: %s", demo_names[k], y->message[k]);
    return HOLA_OK;
}

/* ---- training ---- */

static void learn(void *ctx, int64_t k, int worker) {
    struct school *y = ctx;
    const struct hl_recall_batch *b = &y->batch;
    double loss = 0;
    (void)worker;
    hola_status s = hola_trainer_accumulate_masked(y->trainer[k], b->ids, b->tokens, b->starts, b->documents, b->mask,
                                                   1.0 / (double)b->answers, &loss, NULL);
    if (s == HOLA_OK) s = hola_trainer_update(y->trainer[k], y->lr, NULL);
    y->loss[k] += 0.05 * (loss / (double)b->answers - y->loss[k]);
    keep_status(y, k, s);
}

/* One line, redrawn on a terminal; otherwise ten lines in total. */
static void show_step(struct progress *p, const struct school *y, int64_t step) {
    const int64_t steps = y->d->curriculum.steps, every = steps > 10 ? steps / 10 : 1;
    const double part = (double)step / (double)steps, spent = progress_seconds(p);
    const double *loss = y->loss;
    progress_show(p, part, "loss: GDN %.2f, HOLA %.2f, recency %.2f | %.0f s left", loss[DEMO_GDN], loss[DEMO_HOLA],
                  loss[DEMO_RECENCY], spent / part - spent); /* fits in 80 columns */
    if (!p->on && (step % every == 0 || step == steps))
        fprintf(stderr, "step %lld/%lld | loss: GDN %.3f, HOLA %.3f, HOLA+recency %.3f | %.0f s\n", (long long)step,
                (long long)steps, loss[DEMO_GDN], loss[DEMO_HOLA], loss[DEMO_RECENCY], spent);
}

static hola_status train(struct school *y) {
    const struct hl_recall_curriculum *c = &y->d->curriculum;
    const struct hl_schedule lr = {
        .kind = HL_COSINE, .peak = y->d->lr, .floor = 0.1, .warmup = y->d->warmup, .steps = c->steps};
    struct progress p;
    hola_status s = hl_recall_batch_new(&y->batch, c);
    for (int k = 0; s == HOLA_OK && k < DEMO_MODELS; k++) {
        s = hola_trainer_new(&y->trainer[k], y->d->model[k], &(hola_train_opts){.max_tokens = c->batch_tokens});
        y->loss[k] = log((double)hl_recall_vocab(&c->task)); /* the loss of an untrained model */
    }
    progress_begin(&p);
    for (int64_t step = 0; s == HOLA_OK && step < c->steps; step++) {
        y->lr = hl_schedule_lr(&lr, step);
        s = hl_recall_batch_make(&y->batch, c, step);
        if (s == HOLA_OK) s = at_once(y, learn);
        if (s == HOLA_OK) show_step(&p, y, step + 1);
    }
    progress_end(&p);
    hl_recall_batch_free(&y->batch);
    for (int k = 0; k < DEMO_MODELS; k++) hola_trainer_free(y->trainer[k]);
    return s;
}

static hola_status make_model(struct demo *d, int which) {
    const hola_config cfg = backbone(d, which);
    char count[CLI_GROUPED];
    hola_session *y = NULL;
    hola_status s = hola_model_new(&d->model[which], &cfg, d->curriculum.seed, &(hola_options){.threads = 1});
    if (s == HOLA_OK) s = hola_session_new(&y, d->model[which]);
    if (s != HOLA_OK) return s;
    d->state_bytes[which] = hola_session_bytes(y);
    hola_session_free(y);
    printf("%-16s %s parameters, ", demo_titles[which], cli_grouped(count, hola_config_parameters(&cfg)));
    printf("%s bytes of state\n", cli_grouped(count, d->state_bytes[which]));
    return HOLA_OK;
}

static hola_status save_model(const struct demo *d, int which) {
    char *dir = hl_path_join(d->out, demo_names[which]);
    hola_status s = dir ? hola_model_save(d->model[which], dir, HOLA_F32) : hl_fail(HOLA_ENOMEM, "demo: no memory");
    free(dir);
    return s;
}

/* ---- measuring ---- */

/* All models answer the same samples, from a different seed than the training data. */
static void answer(void *ctx, int64_t k, int worker) {
    struct school *y = ctx;
    (void)worker;
    keep_status(y, k,
                hl_recall_measure(y->d->model[k], y->task, ~y->d->curriculum.seed, y->d->samples,
                                  y->right + k * y->d->samples));
}

static hola_status measure_point(struct school *y, const struct hl_recall *task, struct hl_recall_point *point,
                                 struct hl_mean *ahead) {
    const int64_t n = y->d->samples;
    y->task = task;
    hola_status s = at_once(y, answer);
    if (s != HOLA_OK) return s;
    for (int k = 0; k < DEMO_MODELS; k++) point->recall[k] = hl_mean(y->right + k * n, n);
    *ahead = hl_mean_difference(y->right + DEMO_HOLA * n, y->right + DEMO_GDN * n, n);
    return HOLA_OK;
}

static hola_status measure(struct school *y) {
    struct demo *d = y->d;
    struct progress p;
    hola_status s = HOLA_OK;
    y->right = malloc((size_t)(DEMO_MODELS * d->samples) * sizeof *y->right);
    if (!y->right) return hl_fail(HOLA_ENOMEM, "demo: no memory");
    progress_begin(&p);
    for (int i = 0; s == HOLA_OK && i < DEMO_FACTS; i++) {
        const struct hl_recall task = demo_task(d, facts_asked[i], 1);
        progress_show(&p, (double)i / (DEMO_FACTS + 31), "asking: %lld facts", (long long)task.facts);
        d->by_facts[i].x = task.facts;
        s = measure_point(y, &task, &d->by_facts[i], &d->ahead_facts[i]);
    }
    for (int i = 0; s == HOLA_OK && i < DEMO_LENGTHS; i++) {
        const struct hl_recall task = demo_task(d, DEMO_LISTED_FACTS, times_asked[i]);
        progress_show(&p, (double)(DEMO_FACTS + times_asked[i]) / (DEMO_FACTS + 31), "asking: %lld tokens",
                      (long long)task.length);
        d->by_length[i].x = task.length;
        d->by_length[i].times = times_asked[i];
        s = measure_point(y, &task, &d->by_length[i], &d->ahead_length[i]);
    }
    progress_end(&p);
    free(y->right);
    return s;
}

/* ---- the command ---- */

/* Checks before the training that the output directory is writable. */
static hola_status check_out(const char *dir) {
    struct hl_writer w;
    hola_status s = hl_make_dirs(dir);
    char *path = hl_path_join(dir, "recall.json");
    if (s == HOLA_OK) s = path ? hl_writer_open(&w, path) : hl_fail(HOLA_ENOMEM, "demo: no memory");
    if (s == HOLA_OK) hl_writer_abort(&w);
    free(path);
    return s;
}

static hola_status report(const struct demo *d) {
    demo_print_tables(d);
    json_t *kept = demo_print_kept(d);
    hola_status s = kept ? demo_write_json(d, kept) : HOLA_ENOMEM;
    if (s == HOLA_OK) s = demo_write_figure(d);
    if (s == HOLA_OK) printf("\n%s: recall.svg (the figure), recall.json (all numbers), the models\n", d->out);
    return s;
}

static hola_status run_demo(struct demo *d, int threads) {
    struct school y = {.d = d};
    hola_status s = hl_recall_curriculum_check(&d->curriculum);
    if (s == HOLA_OK) s = check_out(d->out);
    if (s == HOLA_OK) s = hl_pool_new(&y.pool, threads);
    for (int k = 0; s == HOLA_OK && k < DEMO_MODELS; k++) s = make_model(d, k);
    cli_flush();
    if (s == HOLA_OK) s = train(&y);
    for (int k = 0; s == HOLA_OK && k < DEMO_MODELS; k++) s = save_model(d, k);
    if (s == HOLA_OK) s = measure(&y);
    hl_pool_free(y.pool);
    return s == HOLA_OK ? report(d) : s;
}

int cmd_demo(int argc, char **argv) {
    struct demo_opts o = {.seed = 1};
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    struct demo d = the_demo(&o);
    if (run_demo(&d, (int)o.threads) != HOLA_OK) rc = cli_fail_library();
    else rc = CLI_OK;
    for (int k = 0; k < DEMO_MODELS; k++) hola_model_free(d.model[k]);
    return rc;
}
