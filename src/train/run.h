/* run.h -- the parts of a run, shared by setup.c (how it begins) and run.c (how it goes). */
#ifndef HL_RUN_H
#define HL_RUN_H
#include "model/trainer.h"
#include "train/batch.h"
#include "train/checkpoint.h"
#include "train/rundir.h"
#include "train/train.h"

enum { HL_RUN_FILES = 8 };

struct hl_run {
    const struct hl_train *o;
    const struct hl_dist *dist;
    bool root, speaks;              /* root: rank 0, who writes; speaks: see hl_train_result */
    struct hl_dataset *train, *val; /* val NULL: none */
    struct hl_batch batch;
    int64_t rows_per_step, rows_per_micro, eval_rows, eval_every;
    struct hl_schedule schedule;
    json_t *identity;              /* what defines the run, as in run.json */
    char *files[HL_RUN_FILES + 1]; /* tokenizer files that go into checkpoints */
    hola_model *model;
    hola_trainer *trainer;
    struct hl_rundir dir;
    struct hl_metrics_log metrics;
    bool metrics_late, plot_failed;
    struct hl_train_state state;
};

/* Everything up to the first step. Fails on all ranks or on none. */
hola_status hl_run_setup(struct hl_run *r, const struct hl_train *o);
void hl_run_free(struct hl_run *r);
void hl_run_note(const struct hl_run *r, const char *fmt, ...) HL_PRINTF(2, 3);

#endif
