/* checkpoint.h -- one checkpoint: a model directory (F32) plus the training state.
 *
 *     config.json, model.safetensors, tokenizer files     as in every model directory
 *     training.safetensors                                AdamW's moments, m.NAME and v.NAME
 *     training.json                                       struct hl_train_state
 * It is written to DIR/.step-NNNNNNNN.tmp, synced, and renamed: a step-NNNNNNNN is always complete. */
#ifndef HL_CHECKPOINT_H
#define HL_CHECKPOINT_H
#include "core/real.h"
#include "core/status.h"
#include <jansson.h>

struct hl_trainer_view;

struct hl_train_state {
    int64_t step;           /* steps done, including skipped ones */
    int64_t updates;        /* AdamW steps: without skipped ones */
    int64_t tokens, cursor; /* tokens read; rows of the dataset consumed */
    int64_t skipped, skipped_in_row;
    uint64_t seed;
    double seconds;  /* of training time */
    double val_loss; /* of this step; NaN: not evaluated */
    double best_val; /* lowest of all checkpoints; NaN: none so far */
    int64_t best_step;
    bool pending;       /* this step's evaluation was interrupted and must be repeated */
    int64_t slice_rows; /* what the run chose, so that it goes on with it; 0: it did not choose */
};

struct hl_checkpoint {
    const hola_model *model;
    const real *m, *v; /* laid out like the parameter block */
    struct hl_train_state state;
    json_t *run;              /* what defines the run, for training.json; borrowed */
    const char *const *files; /* files to copy into it; NULL-terminated */
};

/* Writes "step-00000012" to buf and returns it. */
enum { HL_STEP_NAME = 32 };
char *hl_step_name(char buf[HL_STEP_NAME], int64_t step);
/* dir: the parent of the step directories. Replaces an existing checkpoint of that step. A failure leaves nothing of
 * it. */
hola_status hl_checkpoint_write(const char *dir, const struct hl_checkpoint *c);
/* dir: the checkpoint itself. */
hola_status hl_checkpoint_state(const char *dir, struct hl_train_state *out);
/* Loads a trainer's moments and update count. */
hola_status hl_checkpoint_moments(const char *dir, const hola_model *model, const struct hl_trainer_view *t);

/* Removes a directory recursively. */
hola_status hl_remove_tree(const char *path);
hola_status hl_sync_dir(const char *path);

#endif
