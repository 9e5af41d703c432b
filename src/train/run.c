/* run.c -- the training loop: a step, an evaluation, a checkpoint. */
#define _GNU_SOURCE
#include "train/run.h"
#include "core/clock.h"
#include "plot/training_plot.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SKIPPED = 5 }; /* steps in a row */

void hl_run_note(const struct hl_run *r, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    if (!r->root || !r->o->report.note) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->o->report.note(r->o->report.ctx, text);
}

/* This rank's share of n rows, in rank order without gaps. */
static void share_of(const struct hl_run *r, int64_t n, int64_t *from, int64_t *to) {
    *from = n * r->dist->rank / r->dist->size;
    *to = n * (r->dist->rank + 1) / r->dist->size;
}

/* ---- one step ---- */

/* Gradients of this rank's rows, in micro-batches. */
static hola_status accumulate(struct hl_run *r, double *loss) {
    const double weight = r->batch.targets > 0 ? 1.0 / (double)r->batch.targets : 0;
    int64_t at, end;
    share_of(r, r->rows_per_step, &at, &end);
    for (*loss = 0; at < end; at += r->rows_per_micro) {
        const int64_t to = at + r->rows_per_micro < end ? at + r->rows_per_micro : end;
        const struct hl_slice x = hl_batch_slice(&r->batch, at, to);
        double sum;
        if (to == end) hl_trainer_announce(r->trainer);
        hola_status s = hola_trainer_accumulate(r->trainer, x.ids, x.n, x.starts, x.n_starts, weight, &sum, NULL);
        if (s != HOLA_OK) return s;
        *loss += sum;
    }
    return HOLA_OK;
}

/* The update from the gradients of all ranks; each updates its part and receives the others'. */
static hola_status update(struct hl_run *r, double lr, double loss, double *norm) {
    const bool linked = hl_trainer_linked(r->trainer), by_host = r->dist->size > 1 && !linked;
    double squares;
    hola_status s = by_host ? hl_trainer_fetch(r->trainer, HL_GRADS) : HOLA_OK;
    struct hl_trainer_view v = hl_trainer_view(r->trainer);
    if (s == HOLA_OK && by_host) s = r->dist->reduce(v.grads, v.part);
    if (s == HOLA_OK && by_host) s = hl_trainer_store(r->trainer, HL_GRADS);
    if (s != HOLA_OK) return s;
    if (linked) hl_trainer_reduce(r->trainer);
    squares = hl_trainer_sumsq(r->trainer);
    r->dist->sum(&squares, 1);
    *norm = sqrt(squares);
    if (isfinite(*norm) && isfinite(loss)) {
        hl_trainer_apply(r->trainer, lr, *norm);
        if (linked) hl_trainer_share(r->trainer);
        if (by_host) {
            s = hl_trainer_fetch(r->trainer, HL_PARAMS);
            if (s == HOLA_OK) r->dist->share(v.params, v.part, v.total);
            if (s == HOLA_OK) s = hl_trainer_store(r->trainer, HL_PARAMS);
        }
        r->state.skipped_in_row = 0;
    } else {
        r->state.skipped++;
        r->state.skipped_in_row++;
    }
    hl_trainer_clear(r->trainer);
    return s;
}

/* stop: whether any rank was asked to. */
static hola_status one_step(struct hl_run *r, struct hl_metric *m, bool *stop) {
    const int64_t rows = hl_dataset_info(r->train)->rows;
    struct hl_train_state *t = &r->state;
    double shared[3] = {0};
    const double lr = hl_schedule_lr(&r->schedule, t->step);
    hola_status s = hl_batch_load(&r->batch, r->train, &t->seed, t->cursor, r->rows_per_step);
    if (s == HOLA_OK) s = accumulate(r, &shared[0]);
    shared[1] = s != HOLA_OK;
    shared[2] = r->o->stop && *r->o->stop;
    r->dist->sum(shared, 3);
    if (shared[1] != 0) return hl_dist_agree(r->dist, s, &r->speaks);
    *stop = shared[2] != 0;
    m->loss = shared[0] / (double)r->batch.targets;
    s = update(r, lr, m->loss, &m->grad_norm);
    if (s != HOLA_OK) return s;
    m->epoch = t->cursor / rows;
    t->step++;
    t->updates = hl_trainer_view(r->trainer).updates;
    t->cursor += r->rows_per_step;
    t->tokens += r->batch.tokens;
    m->step = t->step, m->tokens = t->tokens, m->lr = lr, m->skipped = t->skipped;
    if (t->skipped_in_row >= MOST_SKIPPED) {
        r->speaks = r->root;
        return hl_fail(HOLA_ENUMERIC,
                       "step %" PRId64 ": the gradients of %d steps in a row were not finite; "
                       "a smaller learning rate may help",
                       t->step, MOST_SKIPPED);
    }
    return HOLA_OK;
}

/* ---- validation ---- */

static hola_status evaluate(struct hl_run *r, double *val_loss) {
    double shared[3] = {0}; /* loss, targets, failures */
    int64_t at, end;
    hola_status s = HOLA_OK;
    share_of(r, r->eval_rows, &at, &end);
    for (; at < end && s == HOLA_OK; at += r->rows_per_micro) {
        const int64_t n = at + r->rows_per_micro < end ? r->rows_per_micro : end - at;
        double sum = 0;
        int64_t targets = 0;
        s = hl_batch_load(&r->batch, r->val, NULL, at, n);
        if (s != HOLA_OK) break;
        const struct hl_slice x = hl_batch_slice(&r->batch, 0, n);
        s = hola_trainer_evaluate(r->trainer, x.ids, x.n, x.starts, x.n_starts, &sum, &targets);
        shared[0] += sum;
        shared[1] += (double)targets;
    }
    shared[2] = s != HOLA_OK;
    r->dist->sum(shared, 3);
    if (shared[2] != 0) return hl_dist_agree(r->dist, s, &r->speaks);
    *val_loss = shared[0] / shared[1];
    return HOLA_OK;
}

/* ---- files ---- */

static hola_status write_checkpoint(struct hl_run *r, const real *m, const real *v) {
    struct hl_train_state *t = &r->state;
    const struct hl_checkpoint c = {
        .model = r->model, .m = m, .v = v, .state = *t, .run = r->identity, .files = (const char *const *)r->files};
    hola_status s = hl_metrics_sync(&r->metrics); /* no line of a step that is in a checkpoint may be missing */
    if (s == HOLA_OK) s = hl_checkpoint_write(r->dir.checkpoints, &c);
    if (s == HOLA_OK) s = hl_rundir_point(&r->dir, "latest", t->step);
    if (s == HOLA_OK && t->best_step == t->step) s = hl_rundir_point(&r->dir, "best", t->step);
    if (s == HOLA_OK) s = hl_rundir_prune(&r->dir, r->o->keep, t->step, t->best_step);
    return s;
}

/* Rank 0 collects the moments and writes. What it returns is the same on all ranks. */
static hola_status save(struct hl_run *r) {
    hola_status s = hl_trainer_fetch(r->trainer, HL_PARAMS | HL_MOMENTS);
    const struct hl_trainer_view v = hl_trainer_view(r->trainer);
    const struct hl_train_state before = r->state;
    struct hl_train_state *t = &r->state;
    const size_t bytes = (size_t)v.total * sizeof(real);
    const bool alone = r->dist->size == 1;
    real *all_m = !alone && r->root ? malloc(bytes) : NULL, *all_v = !alone && r->root ? malloc(bytes) : NULL;
    /* the lowest loss seen; without any, the latest */
    if (!isfinite(t->best_val) || t->val_loss <= t->best_val) t->best_step = t->step, t->best_val = t->val_loss;
    if (!alone && s == HOLA_OK) {
        int64_t good = !r->root || (all_m && all_v);
        r->dist->broadcast(&good, sizeof good);
        if (good) r->dist->gather(v.m, all_m, v.part, v.total), r->dist->gather(v.v, all_v, v.part, v.total);
        else s = hl_fail(HOLA_ENOMEM, "checkpoint: no memory for the moments");
    }
    if (s == HOLA_OK && r->root) s = write_checkpoint(r, alone ? v.m : all_m, alone ? v.v : all_v);
    if (s != HOLA_OK) t->best_val = before.best_val, t->best_step = before.best_step;
    free(all_m);
    free(all_v);
    return hl_dist_agree(r->dist, s, &r->speaks);
}

static void plot(struct hl_run *r, bool running) {
    struct hl_metrics_history h;
    if (!r->root) return;
    hola_status s = hl_metrics_history_read(&h, r->dir.metrics);
    if (s == HOLA_OK) {
        const struct hl_plot_run run = {.name = r->o->out, .history = &h};
        s = hl_plot_write(r->dir.plot, &run, 1, running ? 30 : 0);
        hl_metrics_history_free(&h);
    }
    if (s != HOLA_OK && !r->plot_failed) hl_run_note(r, "the plot is out of date: %s", hola_last_error());
    r->plot_failed = s != HOLA_OK;
}

static void log_step(struct hl_run *r, const struct hl_metric *m, double seconds) {
    if (!r->root) return;
    if (hl_metrics_add(&r->metrics, m) == HOLA_OK) r->metrics_late = false;
    else if (!r->metrics_late) {
        r->metrics_late = true;
        hl_run_note(r, "%s; its lines are kept in memory for now", hola_last_error());
    }
    if (r->o->report.step) r->o->report.step(r->o->report.ctx, m, seconds);
}

/* ---- the loop ---- */

static void announce(struct hl_run *r) {
    const struct hl_train *o = r->o;
    const struct hl_dataset_info *train = hl_dataset_info(r->train);
    struct hl_train_begin b = {.steps = r->schedule.steps,
                               .step = r->state.step,
                               .parameters = hola_config_parameters(&o->config),
                               .train_tokens = train->tokens,
                               .val_tokens = r->val ? hl_dataset_info(r->val)->tokens : 0,
                               .tokens_per_step = o->batch_tokens};
    if (!r->root || !o->report.begin) return;
    b.epochs = (double)(b.steps * r->rows_per_step) / (double)train->rows;
    b.flop_per_token = 6.0 * (double)b.parameters;
    if (!o->config.tie_word_embeddings)
        b.flop_per_token -= 6.0 * (double)(o->config.vocab_size * o->config.hidden_size);
    if (r->dist->size == 1) b.peak = hl_gemm_peak(r->model);
    o->report.begin(o->report.ctx, &b);
}

static bool every(int64_t n, int64_t step) { return n > 0 && step % n == 0; }

/* One step with all that is due after it. */
static hola_status advance(struct hl_run *r, bool *stop) {
    const struct hl_train *o = r->o;
    struct hl_metric m = {.val_loss = (double)NAN};
    const double begun = hl_clock();
    hola_status s = one_step(r, &m, stop);
    const double seconds = hl_clock() - begun;
    if (s != HOLA_OK && s != HOLA_ENUMERIC) return s;
    const bool last = m.step == r->schedule.steps, looked = every(r->eval_every, m.step) || last;
    r->state.seconds += seconds;
    m.seconds = r->state.seconds;
    m.tok_per_s = (double)r->batch.tokens / seconds;
    if (s == HOLA_OK && r->val && looked) s = evaluate(r, &m.val_loss);
    r->state.val_loss = m.val_loss;
    log_step(r, &m, seconds);
    if (s != HOLA_OK) return s;
    const bool due = every(o->save_every, m.step);
    if (due || last || *stop) {
        s = save(r);
        if (s != HOLA_OK && !last && !*stop) {
            hl_run_note(r, "step %" PRId64 ": no checkpoint: %s; training continues", m.step, hola_last_error());
            s = HOLA_OK;
        }
    }
    if (last || *stop || every(o->plot_every > 0 ? o->plot_every : r->eval_every, m.step)) plot(r, !last && !*stop);
    return s;
}

hola_status hl_train_run(const struct hl_train *o, struct hl_train_result *result) {
    struct hl_run *r = calloc(1, sizeof *r);
    bool stop = false;
    *result = (struct hl_train_result){.speaks = true};
    if (!r) return hl_fail(HOLA_ENOMEM, "no memory for the run");
    hola_status s = hl_run_setup(r, o);
    if (s == HOLA_OK) announce(r);
    while (s == HOLA_OK && !stop && r->state.step < r->schedule.steps) s = advance(r, &stop);
    result->step = r->state.step;
    result->stopped = s == HOLA_OK && r->state.step < r->schedule.steps;
    result->speaks = r->speaks;
    hl_run_free(r);
    free(r);
    return s;
}
