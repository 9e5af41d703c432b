/* trainer.h -- the inside of a trainer: what a checkpoint keeps, and the parts that ranks share.
 *
 * With several ranks every rank holds all parameters and gradients but the moments of its own part alone, one
 * of `ranks` equal parts of the parameter block (ZeRO-1); it updates that part. */
#ifndef HL_TRAINER_H
#define HL_TRAINER_H
#include "core/real.h"
#include "core/status.h"
#include "ops/linear/fp8.h"

hola_status hl_trainer_new_part(hola_trainer **out, hola_model *model, const hola_train_opts *opt, int rank, int ranks);

/* The host's view of a trainer, lent until it is freed. Where the backend's arrays are not the host's, it is a
 * copy: fetched from there before it is read, stored there after it was changed. */
enum hl_trainer_part { HL_PARAMS = 1, HL_GRADS = 2, HL_MOMENTS = 4 };
hola_status hl_trainer_fetch(hola_trainer *t, enum hl_trainer_part what); /* parts may be or-ed */
hola_status hl_trainer_store(hola_trainer *t, enum hl_trainer_part what);
struct hl_trainer_view {
    int64_t total;    /* reals of the parameter block */
    int64_t part;     /* reals of a part; part * ranks >= total */
    int64_t first, n; /* this rank's; n < part, even 0, where the block ends */
    real *params;     /* [total] */
    real *grads;      /* [part * ranks]; after total: zeros */
    real *m, *v;      /* [n]: moments of [first, first + n) */
    int64_t updates;  /* AdamW steps taken */
};
struct hl_trainer_view hl_trainer_view(const hola_trainer *t);
void hl_trainer_set_updates(hola_trainer *t, int64_t updates);

/* The exact memory's tensors are updated with a rate and a weight decay of their own. rate: times that of the others;
 * decay: negative: that of the others. */
void hl_trainer_set_memory(hola_trainer *t, double rate, double decay);

/* hola_trainer_update in three: the squares of this part's gradients summed; AdamW on this part with the
 * gradients clipped by the norm of the whole; all gradients cleared. */
double hl_trainer_sumsq(const hola_trainer *t);
void hl_trainer_apply(hola_trainer *t, double lr, double norm);
void hl_trainer_clear(hola_trainer *t);

/* Several ranks on devices that talk to each other (struct hl_collectives): after linking, gradients are summed beside
 * the backward pass of the accumulation that was announced as the step's last, and exchange replaces the host's copies:
 * reduce waits for the sums, share hands the updated parts around. broadcast: from rank 0. */
hola_status hl_trainer_link(hola_trainer *t, int rank, void (*broadcast)(void *, int64_t bytes));
bool hl_trainer_linked(const hola_trainer *t);
void hl_trainer_announce(hola_trainer *t);
void hl_trainer_reduce(hola_trainer *t);
void hl_trainer_share(hola_trainer *t);

/* ---- FP8 ---- */

/* What FP8 means for a model and calls of so many tokens. */
struct hl_fp8_sizes hl_trainer_fp8_sizes(const hola_model *m, int64_t tokens);
/* How many kinds of products the device's library did not have in FP8 so far. */
int64_t hl_trainer_fp8_refused(const hola_trainer *t);

#endif
