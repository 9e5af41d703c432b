/* run.c -- the training loop: a step, an evaluation, a checkpoint. */
#define _GNU_SOURCE
#include "train/run.h"
#include "core/clock.h"
#include "plot/training_plot.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SKIPPED = 5 }; /* consecutive updates */

void hl_run_note(const struct hl_run *r, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    if (!r->root || !r->o->report.note) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->o->report.note(r->o->report.ctx, text);
}

/* ---- one step ---- */

/* Computes the gradients of this rank's rows, slice by slice (micro-batches). Checks for a stop request before every
 * slice that all ranks have; the partial step is then dropped, and a resumed run repeats it. */
static hola_status accumulate(struct hl_run *r, double *loss, bool *stopped) {
    const double weight = r->batch.targets > 0 ? 1.0 / (double)r->batch.targets : 0;
    const int64_t common = r->rows_per_step / r->dist->size / r->rows_per_micro;
    int64_t at, end, i = 0;
    hola_status s = HOLA_OK;
    hl_run_share(r, r->rows_per_step, &at, &end);
    const int64_t slices = (end - at + r->rows_per_micro - 1) / r->rows_per_micro;
    hl_run_work(r, HL_TRAIN_STEP, 0, slices);
    for (*loss = 0; at < end; at += r->rows_per_micro, i++) {
        if ((i == 0 || i < common) && hl_run_stopped(r)) {
            *stopped = true;
            hl_trainer_clear(r->trainer);
            return s;
        }
        if (s != HOLA_OK) continue; /* a rank that failed still takes part in the collective calls */
        const int64_t to = at + r->rows_per_micro < end ? at + r->rows_per_micro : end;
        const struct hl_slice x = hl_batch_slice(&r->batch, at, to);
        double sum = 0;
        if (to == end) hl_trainer_announce(r->trainer);
        s = hola_trainer_accumulate_masked(r->trainer, x.ids, x.n, x.starts, x.n_starts, x.trained, weight, &sum, NULL);
        *loss += sum;
        if (s == HOLA_OK) hl_run_work(r, HL_TRAIN_STEP, i + 1, slices);
    }
    return s;
}

/* Updates from the gradients of all ranks; each rank updates its part and receives the others'. */
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

/* Advice for a run that diverged; `why` comes first. */
static hola_status diverged(struct hl_run *r, const char *why) {
    char kept[64] = "no checkpoint was written";
    r->speaks = r->root;
    if (r->latest >= 0) snprintf(kept, sizeof kept, "latest stays at step %" PRId64, r->latest);
    return hl_fail(HOLA_ENUMERIC,
                   "step %" PRId64 ": %s; %" PRId64 " of %" PRId64 " updates skipped, %s. Try a lower --lr (it was %g)"
                   ", more --warmup (it was %" PRId64 ")%s",
                   r->state.step, why, r->state.skipped, r->state.step, kept, r->schedule.peak, r->schedule.warmup,
                   r->o->adamw.clip > 0 && r->o->adamw.clip <= 1 ? "" : ", --clip 1");
}

/* *stop: asked to stop before the step was done; then nothing has changed. */
static hola_status one_step(struct hl_run *r, struct hl_metric *m, bool *stop) {
    const int64_t rows = hl_dataset_info(r->train)->rows;
    struct hl_train_state *t = &r->state;
    double shared[2] = {0};
    const double lr = hl_schedule_lr(&r->schedule, t->step);
    hola_status s = hl_batch_load(&r->batch, r->train, &t->seed, t->cursor, r->rows_per_step);
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) return s;
    s = accumulate(r, &shared[0], stop);
    if (*stop) return hl_dist_agree(r->dist, s, &r->speaks);
    shared[1] = s != HOLA_OK;
    r->dist->sum(shared, 2);
    if (shared[1] != 0) return hl_dist_agree(r->dist, s, &r->speaks);
    if (r->batch.targets > 0) {
        m->loss = shared[0] / (double)r->batch.targets;
        s = update(r, lr, m->loss, &m->grad_norm);
    } else { /* no targets: nothing changes */
        m->loss = (double)NAN;
        hl_trainer_clear(r->trainer);
    }
    if (s != HOLA_OK) return s;
    m->epoch = t->cursor / rows;
    t->step++;
    t->updates = hl_trainer_view(r->trainer).updates;
    t->cursor += r->rows_per_step;
    t->tokens += r->batch.tokens;
    m->step = t->step, m->tokens = t->tokens, m->lr = lr, m->skipped = t->skipped;
    return HOLA_OK;
}

/* ---- files ---- */

static hola_status write_checkpoint(struct hl_run *r, const real *m, const real *v) {
    struct hl_train_state *t = &r->state;
    const struct hl_checkpoint c = {
        .model = r->model, .m = m, .v = v, .state = *t, .run = r->identity, .files = (const char *const *)r->files};
    hola_status s = hl_metrics_sync(&r->metrics); /* every step in a checkpoint must have its line on disk */
    if (s == HOLA_OK) s = hl_checkpoint_write(r->dir.checkpoints, &c);
    if (s == HOLA_OK) s = hl_rundir_point(&r->dir, "latest", t->step);
    if (s == HOLA_OK && t->best_step == t->step) s = hl_rundir_point(&r->dir, "best", t->step);
    if (s == HOLA_OK) r->latest = t->step;
    if (s == HOLA_OK) s = hl_rundir_prune(&r->dir, r->o->keep, t->step, t->best_step);
    return s;
}

/* Rank 0 collects the moments and writes. The return value is the same on all ranks. A model without a finite loss is
 * not written: HOLA_ENUMERIC. */
static hola_status save(struct hl_run *r) {
    hl_run_work(r, HL_TRAIN_SAVING, 0, 0);
    hola_status s = hl_trainer_fetch(r->trainer, HL_PARAMS | HL_MOMENTS);
    if (s == HOLA_OK) s = hl_run_sound(r, r->state.val_loss);
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) return s;
    const struct hl_trainer_view v = hl_trainer_view(r->trainer);
    const struct hl_train_state before = r->state;
    struct hl_train_state *t = &r->state;
    const size_t bytes = (size_t)v.total * sizeof(real);
    const bool alone = r->dist->size == 1;
    real *all_m = !alone && r->root ? malloc(bytes) : NULL, *all_v = !alone && r->root ? malloc(bytes) : NULL;
    /* the lowest loss so far; without any, the latest */
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
        const struct hl_plot_run run = {.name = r->o->out, .dir = r->o->out, .history = &h};
        s = hl_plot_write(r->dir.plot, &run, 1, running ? 30 : 0);
        hl_metrics_history_free(&h);
    }
    if (s != HOLA_OK && !r->plot_failed) hl_run_note(r, "the plot is out of date: %s", hola_last_error());
    r->plot_failed = s != HOLA_OK;
}

/* ---- reporting ---- */

static void log_step(struct hl_run *r, const struct hl_metric *m, double seconds) {
    const struct hl_train_figures *f = r->figures.n > 0 ? &r->figures : NULL;
    const struct hl_train_step x = {.seconds = seconds, .peak = r->peak, .figure = f};
    if (!r->root) return;
    if (hl_metrics_add(&r->metrics, m, f) == HOLA_OK) r->metrics_late = false;
    else if (!r->metrics_late) {
        r->metrics_late = true;
        hl_run_note(r, "%s; its lines are kept in memory for now", hola_last_error());
    }
    if (r->o->tensorboard && !r->board_failed && hl_tensorboard_add(&r->board, m, f) != HOLA_OK) {
        r->board_failed = true;
        hl_run_note(r, "%s; nothing more goes to TensorBoard", hola_last_error());
    }
    if (!r->fp8_said && hl_trainer_fp8_refused(r->trainer) > 0)
        hl_run_note(r, "%" PRId64 " kinds of products are not in FP8: this machine's cuBLASLt does not have them",
                    hl_trainer_fp8_refused(r->trainer));
    r->fp8_said = true;
    if (r->o->report.step) r->o->report.step(r->o->report.ctx, m, &x);
    if (hl_watch_rising(&r->watch, m))
        hl_run_note(r,
                    "the validation loss has been above its lowest, %.4f at step %" PRId64
                    ", for %d evaluations: the model learns its data by heart; more data or fewer steps would help",
                    r->watch.low_val, r->watch.low_step, HL_WATCH_RISES);
}

static double flop_per_token(const struct hl_run *r) {
    const hola_config *c = &r->o->config;
    const double matrices =
        (double)(hola_config_parameters(c) - (c->tie_word_embeddings ? 0 : c->vocab_size * c->hidden_size));
    return 6.0 * matrices;
}

/* A peak measured on a busy machine is too low, which shows when a step comes close to it: it is then measured again,
 * and never set below what was reached. */
static void measure_peak(struct hl_run *r, double tok_per_s) {
    const double reached = flop_per_token(r) * tok_per_s;
    if (!r->o->report.begin || !r->root || r->dist->size > 1 || (r->peak_measured > 0 && r->peak <= 0)) return;
    if (r->peak_measured == 0 || (reached > 0.9 * r->peak && r->peak_measured < 5)) {
        const double peak = hl_gemm_peak(r->model);
        r->peak_measured++;
        if (peak > r->peak) r->peak = peak;
    }
    if (r->peak > 0 && reached > r->peak) r->peak = reached;
}

/* ---- the loop ---- */

/* Notes what truncation to the row length costs a dataset of conversations. */
static void note_talk(const struct hl_run *r, const struct hl_dataset_info *d) {
    if (d->flagged && d->talk.cut > 0)
        hl_run_note(r,
                    "conversations longer than a row: %" PRId64 "; what is behind its end is left out, %" PRId64
                    " tokens to learn; --seq-len %" PRId64 " holds all",
                    d->talk.cut, d->talk.lost, d->talk.longest);
    if (d->flagged && d->talk.idle > 0)
        hl_run_note(r, "conversations with nothing to learn within a row: %" PRId64 ", left out", d->talk.idle);
}

static void announce(struct hl_run *r) {
    const struct hl_train *o = r->o;
    const struct hl_dataset_info *train = hl_dataset_info(r->train);
    int64_t from, to;
    hl_run_share(r, r->rows_per_step, &from, &to);
    struct hl_train_begin b = {.steps = r->schedule.steps,
                               .step = r->state.step,
                               .parameters = hola_config_parameters(&o->config),
                               .train_tokens = train->tokens,
                               .trained = train->flagged ? train->trained : -1,
                               .val_tokens = r->val ? hl_dataset_info(r->val)->tokens : 0,
                               .tokens_per_step = o->batch_tokens,
                               .slices = (to - from + r->rows_per_micro - 1) / r->rows_per_micro,
                               .memory = hl_memory_total(&r->memory),
                               .left = r->memory.left,
                               .device = r->memory.device,
                               .flop_per_token = flop_per_token(r)};
    if (!r->root || !o->report.begin) return;
    b.epochs = (double)(b.steps * r->rows_per_step) / (double)train->rows;
    measure_peak(r, 0);
    o->report.begin(o->report.ctx, &b);
    note_talk(r, train);
    if (b.epochs > 4) hl_run_note(r, "%.3g epochs: past four, the data teaches little more", b.epochs);
}

static bool every(int64_t n, int64_t step) { return n > 0 && step % n == 0; }

/* Writes a checkpoint that is due. Before the end of the run, an error is reported and the run continues. */
static hola_status save_due(struct hl_run *r, bool ends) {
    hola_status s = save(r);
    if (s == HOLA_OK) return s;
    if (ends) return s == HOLA_ENUMERIC ? diverged(r, "the model's loss is not finite") : s;
    hl_run_note(r, "step %" PRId64 ": no checkpoint: %s; training continues", r->state.step, hola_last_error());
    return HOLA_OK;
}

/* Whether the losses so far must end the run. */
static hola_status judge(struct hl_run *r, const struct hl_metric *m, bool last) {
    char why[128];
    const struct hl_watch *w = &r->watch;
    if (w->limit > 0 && r->state.skipped_in_row >= MOST_SKIPPED) {
        snprintf(why, sizeof why, "the gradients of %d steps in a row were not finite", MOST_SKIPPED);
        return diverged(r, why);
    }
    if (hl_watch_diverged(w)) {
        snprintf(why, sizeof why,
                 "diverged: the loss, %.4g, was more than %g above its lowest mean of %.4f for %d steps", m->loss,
                 w->limit, w->low, HL_WATCH_STEPS);
        return diverged(r, why);
    }
    if (last && hl_watch_ended_badly(w, m->loss)) {
        snprintf(why, sizeof why, "diverged: the run ends with a loss of %.4g, it began with %.4g", m->loss, w->first);
        return diverged(r, why);
    }
    return HOLA_OK;
}

/* Everything due after a step: evaluation, metrics line, checkpoint, plot. */
static hola_status after_step(struct hl_run *r, struct hl_metric *m, double seconds, bool *stop) {
    const struct hl_train *o = r->o;
    const bool last = m->step == r->schedule.steps, look = every(r->eval_every, m->step) || last;
    bool cut = false;
    hola_status s = HOLA_OK;
    r->figures.n = 0;
    if (look && (r->val || o->benchmark)) s = hl_run_look(r, &m->val_loss, &cut);
    if (s != HOLA_OK) return s;
    *stop |= cut;
    r->state.pending = cut;
    r->state.val_loss = m->val_loss;
    hl_watch_add(&r->watch, m);
    log_step(r, m, seconds);
    const hola_status bad = judge(r, m, last);
    if (bad != HOLA_OK && !last) return bad;
    if (every(o->save_every, m->step) || last || *stop) s = save_due(r, last || *stop);
    if (last || *stop || every(o->plot_every > 0 ? o->plot_every : r->eval_every, m->step)) plot(r, !last && !*stop);
    return s == HOLA_OK && bad != HOLA_OK ? judge(r, m, last) : s;
}

/* One step and everything due after it. */
static hola_status advance(struct hl_run *r, bool *stop) {
    struct hl_metric m = {.val_loss = (double)NAN};
    const double begun = hl_clock();
    hola_status s = one_step(r, &m, stop);
    const double seconds = hl_clock() - begun;
    if (s != HOLA_OK) return s;
    if (*stop) { /* keep the last whole step */
        if (r->state.step > 0 && r->latest != r->state.step) s = save_due(r, true);
        plot(r, false);
        return s;
    }
    r->state.seconds += seconds;
    m.seconds = r->state.seconds;
    m.tok_per_s = (double)r->batch.tokens / seconds;
    measure_peak(r, m.tok_per_s);
    return after_step(r, &m, seconds, stop);
}

/* Repeats an evaluation that a stop interrupted, before the next step, as if it had not been interrupted. The step's
 * old line stays until the new one can replace it. */
static hola_status make_up(struct hl_run *r, bool *stop) {
    struct hl_metric m = r->owed;
    hola_status s = hl_run_look(r, &m.val_loss, stop);
    if (s == HOLA_OK && r->root && !*stop) {
        hl_metrics_close(&r->metrics);
        s = hl_metrics_open(&r->metrics, r->dir.metrics, m.step - 1);
    }
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK || *stop) return s;
    r->state.pending = false;
    r->state.val_loss = m.val_loss;
    hl_watch_add(&r->watch, &m);
    log_step(r, &m, m.tok_per_s > 0 ? (double)r->o->batch_tokens / m.tok_per_s : 0);
    return save_due(r, true);
}

hola_status hl_train_run(const struct hl_train *o, struct hl_train_result *result) {
    struct hl_run *r = calloc(1, sizeof *r);
    bool stop = false;
    *result = (struct hl_train_result){.speaks = true, .latest = -1};
    if (!r) return hl_fail(HOLA_ENOMEM, "no memory for the run");
    hola_status s = hl_run_setup(r, o);
    if (s == HOLA_OK) announce(r);
    if (s == HOLA_OK && r->state.pending) s = make_up(r, &stop);
    while (s == HOLA_OK && !stop && r->state.step < r->schedule.steps) s = advance(r, &stop);
    result->step = r->state.step;
    result->skipped = r->state.skipped;
    result->best_val = r->state.best_val, result->best_step = r->state.best_step;
    result->low_val = r->watch.low_val, result->low_step = r->watch.low_step;
    result->latest = r->latest;
    result->stopped = s == HOLA_OK && (r->state.step < r->schedule.steps || r->state.pending);
    result->speaks = r->speaks;
    hl_run_free(r);
    free(r);
    return s;
}
