/* checkpoint.h -- one checkpoint: a model directory (F32) with the training state beside the weights.
 *
 *     config.json, model.safetensors, tokenizer files     as every model directory
 *     training.safetensors                                AdamW's moments, m.NAME and v.NAME
 *     training.json                                       struct hl_train_state
 * It is written into DIR/.step-NNNNNNNN.tmp, made durable, and renamed: a step-NNNNNNNN is always complete. */
#ifndef HL_CHECKPOINT_H
#define HL_CHECKPOINT_H
#include "core/real.h"
#include "core/status.h"
#include <jansson.h>

struct hl_trainer_view;

struct hl_train_state {
    int64_t step;           /* steps done, skipped ones included */
    int64_t updates;        /* AdamW steps: those not skipped */
    int64_t tokens, cursor; /* tokens read; rows of the dataset consumed */
    int64_t skipped, skipped_in_row;
    uint64_t seed;
    double seconds;  /* of training */
    double val_loss; /* of this step; NaN: not evaluated */
    double best_val; /* the lowest of a checkpoint; NaN: none so far */
    int64_t best_step;
    bool pending; /* a stop cut the evaluation of this step short: it is to be made up for */
};

struct hl_checkpoint {
    const hola_model *model;
    const real *m, *v; /* laid out as the parameter block */
    struct hl_train_state state;
    json_t *run;              /* what defines the run, for training.json; borrowed */
    const char *const *files; /* to be copied into it; NULL ends */
};

/* "step-00000012" in buf, which it returns. */
enum { HL_STEP_NAME = 32 };
char *hl_step_name(char buf[HL_STEP_NAME], int64_t step);
/* dir: where the step directories are. One that is there is replaced. On failure nothing of it is left. */
hola_status hl_checkpoint_write(const char *dir, const struct hl_checkpoint *c);
/* dir: the checkpoint itself. */
hola_status hl_checkpoint_state(const char *dir, struct hl_train_state *out);
/* Fills the moments and the count of updates of a trainer. */
hola_status hl_checkpoint_moments(const char *dir, const hola_model *model, const struct hl_trainer_view *t);

/* A directory of files and directories, gone. */
hola_status hl_remove_tree(const char *path);
hola_status hl_sync_dir(const char *path);

#endif
