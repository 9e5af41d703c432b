/* trainer.h -- inside a trainer: what a checkpoint stores, and how ranks share the work.
 *
 * Each of several ranks holds all parameters and gradients, but only the moments of its own part, one of `ranks` equal
 * parts of the parameter block (ZeRO-1); it updates that part. */
#ifndef HL_TRAINER_H
#define HL_TRAINER_H
#include "core/real.h"
#include "core/status.h"
#include "ops/linear/fp8.h"

hola_status hl_trainer_new_part(hola_trainer **out, hola_model *model, const hola_train_opts *opt, int rank, int ranks);

/* The host's view of a trainer, valid until it is freed. If the backend's arrays are not in host memory it is a copy:
 * fetch it before reading, store it after changes. */
enum hl_trainer_part { HL_PARAMS = 1, HL_GRADS = 2, HL_MOMENTS = 4 };
hola_status hl_trainer_fetch(hola_trainer *t, enum hl_trainer_part what); /* parts may be or-ed */
hola_status hl_trainer_store(hola_trainer *t, enum hl_trainer_part what);
struct hl_trainer_view {
    int64_t total;    /* reals of the parameter block */
    int64_t part;     /* reals per part; part * ranks >= total */
    int64_t first, n; /* this rank's part; n < part, possibly 0, at the end of the block */
    real *params;     /* [total] */
    real *grads;      /* [part * ranks]; zeros after total */
    real *m, *v;      /* [n]: moments of [first, first + n) */
    int64_t updates;  /* AdamW steps taken */
};
struct hl_trainer_view hl_trainer_view(const hola_trainer *t);
void hl_trainer_set_updates(hola_trainer *t, int64_t updates);

/* The exact memory's tensors get their own learning rate and weight decay. rate: a factor on the others' rate; decay:
 * negative: the others' decay. */
void hl_trainer_set_memory(hola_trainer *t, double rate, double decay);

/* hola_trainer_update in three steps: the sum of squares of this part's gradients; AdamW on this part with gradients
 * clipped by the global norm; clearing all gradients. */
double hl_trainer_sumsq(const hola_trainer *t);
void hl_trainer_apply(hola_trainer *t, double lr, double norm);
void hl_trainer_clear(hola_trainer *t);

/* Several ranks on devices that communicate directly (struct hl_collectives). After linking, gradients are summed
 * during the backward pass of the accumulation announced as the step's last, and exchange replaces the host copies:
 * reduce waits for the sums, share distributes the updated parts. broadcast: from rank 0. */
hola_status hl_trainer_link(hola_trainer *t, int rank, void (*broadcast)(void *, int64_t bytes));
bool hl_trainer_linked(const hola_trainer *t);
void hl_trainer_announce(hola_trainer *t);
void hl_trainer_reduce(hola_trainer *t);
void hl_trainer_share(hola_trainer *t);

/* ---- precision ---- */

extern const char *const hl_train_precisions[]; /* by hola_precision; NULL-terminated */

/* What FP8 involves for a model and calls of this many tokens. */
struct hl_fp8_sizes hl_trainer_fp8_sizes(const hola_model *m, int64_t tokens);
/* How many kinds of FP8 products the device's library has refused so far. */
int64_t hl_trainer_fp8_refused(const hola_trainer *t);

#endif
