/* look.c -- evaluation of the model during training: validation, benchmarks, and a check that its loss is finite. */
#define _GNU_SOURCE
#include "train/run.h"
#include <inttypes.h>
#include <math.h>

void hl_run_share(const struct hl_run *r, int64_t n, int64_t *from, int64_t *to) {
    *from = n * r->dist->rank / r->dist->size;
    *to = n * (r->dist->rank + 1) / r->dist->size;
}

bool hl_run_stopped(const struct hl_run *r) {
    double asked = r->o->stop && *r->o->stop;
    r->dist->sum(&asked, 1);
    return asked != 0;
}

void hl_run_work(const struct hl_run *r, enum hl_train_phase phase, int64_t done, int64_t of) {
    const struct hl_train_work w = {
        .phase = phase, .step = r->state.step + (phase == HL_TRAIN_STEP), .done = done, .of = of};
    if (r->root && r->o->report.work) r->o->report.work(r->o->report.ctx, &w);
}

/* Adds the loss of n rows of a set, from row `first`, to *sum and *targets. */
static hola_status loss_of(struct hl_run *r, const struct hl_dataset *d, int64_t first, int64_t n, double *sum,
                           double *targets) {
    double loss = 0;
    int64_t count = 0;
    hola_status s = hl_batch_load(&r->batch, d, NULL, first, n);
    if (s != HOLA_OK) return s;
    const struct hl_slice x = hl_batch_slice(&r->batch, 0, n);
    s = hola_trainer_evaluate_masked(r->trainer, x.ids, x.n, x.starts, x.n_starts, x.trained, &loss, &count);
    *sum += loss;
    *targets += (double)count;
    return s;
}

/* Checks for a stop request before every slice that all ranks have. */
static hola_status validate(struct hl_run *r, double *val_loss, bool *stopped) {
    double shared[3] = {0}; /* loss, targets, failures */
    int64_t at, end;
    hl_run_share(r, r->eval_rows, &at, &end);
    const int64_t slices = (end - at + r->rows_per_micro - 1) / r->rows_per_micro;
    const int64_t common = r->eval_rows / r->dist->size / r->rows_per_micro;
    hola_status s = HOLA_OK;
    hl_run_work(r, HL_TRAIN_VALIDATION, 0, slices);
    for (int64_t i = 0; at < end; at += r->rows_per_micro, i++) {
        if (i < common && hl_run_stopped(r)) {
            *stopped = true;
            break;
        }
        if (s != HOLA_OK) continue; /* a rank that failed still takes part in the collective calls */
        s = loss_of(r, r->val, at, at + r->rows_per_micro < end ? r->rows_per_micro : end - at, &shared[0], &shared[1]);
        hl_run_work(r, HL_TRAIN_VALIDATION, i + 1, slices);
    }
    shared[2] = s != HOLA_OK;
    r->dist->sum(shared, 3);
    if (shared[2] != 0) return hl_dist_agree(r->dist, s, &r->speaks);
    *val_loss = shared[0] / shared[1];
    return HOLA_OK;
}

/* On rank 0 only: the others wait for its result. */
static hola_status benchmarks(struct hl_run *r, bool *stopped) {
    int64_t asked = 0;
    hola_status s = HOLA_OK;
    hl_run_work(r, HL_TRAIN_BENCHMARKS, 0, 0);
    r->figures.n = 0;
    if (r->root) {
        bool stop = false;
        s = hl_trainer_fetch(r->trainer, HL_PARAMS);
        if (s == HOLA_OK) s = r->o->benchmark(r->o->benchmark_ctx, r->model, &r->figures, &stop);
        asked = stop;
    }
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) return s;
    r->dist->broadcast(&asked, sizeof asked);
    *stopped = asked != 0;
    if (asked) r->figures.n = 0;
    return HOLA_OK;
}

hola_status hl_run_look(struct hl_run *r, double *val_loss, bool *stopped) {
    hola_status s = r->val ? validate(r, val_loss, stopped) : HOLA_OK;
    if (s == HOLA_OK && !*stopped && r->o->benchmark) s = benchmarks(r, stopped);
    if (*stopped) *val_loss = (double)NAN;
    return s;
}

hola_status hl_run_sound(struct hl_run *r, double val_loss) {
    const struct hl_trainer_view v = hl_trainer_view(r->trainer);
    double sum = val_loss, targets = 1;
    if (!isfinite(val_loss)) {
        sum = targets = 0;
        hola_status s = loss_of(r, r->val ? r->val : r->train, 0, 1, &sum, &targets);
        if (s != HOLA_OK) return s;
    }
    bool finite = isfinite(sum);
    for (int64_t i = 0; finite && i < v.total; i++) finite = isfinite((double)v.params[i]);
    return finite ? HOLA_OK : hl_fail(HOLA_ENUMERIC, "the model's loss is not finite");
}
