/* run.h -- the parts of a run, shared by setup.c (setup) and run.c (the loop). */
#ifndef HL_RUN_H
#define HL_RUN_H
#include "model/trainer.h"
#include "train/batch.h"
#include "train/checkpoint.h"
#include "train/memory.h"
#include "train/rundir.h"
#include "train/tensorboard.h"
#include "train/train.h"
#include "train/watch.h"

enum { HL_RUN_FILES = 8 };

struct hl_run {
    const struct hl_train *o;
    const struct hl_dist *dist;
    bool root, speaks;              /* root: rank 0, which writes files; speaks: see hl_train_result */
    struct hl_dataset *train, *val; /* val NULL: none */
    struct hl_batch batch;
    int64_t rows_per_step, rows_per_micro, eval_rows, eval_every;
    bool chooses; /* its slices: --micro-tokens was not given */
    struct hl_schedule schedule;
    json_t *identity;              /* what defines the run, as in run.json */
    char *files[HL_RUN_FILES + 1]; /* tokenizer files to copy into checkpoints */
    hola_model *model;
    hola_trainer *trainer;
    struct hl_rundir dir;
    struct hl_metrics_log metrics;
    struct hl_tensorboard board;
    bool metrics_late, plot_failed, board_failed, fp8_said;
    struct hl_train_state state;
    struct hl_metric owed; /* if state.pending: the line of that step, to be rewritten with its evaluation */
    struct hl_watch watch;
    struct hl_memory memory;
    struct hl_train_figures figures;
    double peak;       /* flop/s of a large matrix product */
    int peak_measured; /* times measured */
    int64_t latest;    /* step of the last checkpoint; -1: none */
};

/* Everything before the first step. Fails on all ranks or none. */
hola_status hl_run_setup(struct hl_run *r, const struct hl_train *o);
void hl_run_free(struct hl_run *r);
/* look.c: validation and benchmarks of the current model. *stopped: interrupted by a stop request. */
hola_status hl_run_look(struct hl_run *r, double *val_loss, bool *stopped);
/* Whether the model's loss is finite: that of the evaluation just made, else (NaN) of one row read for this purpose. */
hola_status hl_run_sound(struct hl_run *r, double val_loss);
/* Whether any rank was asked to stop. A collective call. */
bool hl_run_stopped(const struct hl_run *r);
void hl_run_work(const struct hl_run *r, enum hl_train_phase phase, int64_t done, int64_t of);
/* This rank's share of n rows, contiguous in rank order. */
void hl_run_share(const struct hl_run *r, int64_t n, int64_t *from, int64_t *to);
void hl_run_note(const struct hl_run *r, const char *fmt, ...) HL_PRINTF(2, 3);

#endif
