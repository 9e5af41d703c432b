/* memory.h -- what a run will take before it takes it.
 *
 * Of the host: what the process holds once the model is there (its weights included), then gradients and two moments,
 * the activations of a slice, the logits and the batch. Of a device: the same with its own copies of the weights. */
#ifndef HL_TRAIN_MEMORY_H
#define HL_TRAIN_MEMORY_H
#include "core/status.h"
#include <stdbool.h>

/* How a slice is cut: for the chunks and blocks of its rows. */
struct hl_slice_shape {
    int64_t tokens, pieces; /* pieces: documents, or rows where they run across documents */
    bool recompute, fp8;
};
struct hl_memory {
    int64_t held;  /* by the process, or of the device, before the trainer is there */
    int64_t fixed; /* gradients, moments and what does not depend on the slice */
    int64_t slice; /* activations and logits of one */
    int64_t left;  /* free before; 0: not known */
    bool device;
};
/* Of a model that has no trainer yet. parts: among how many ranks the moments are split. */
hola_status hl_memory_predict(struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape, int parts,
                              int64_t batch_tokens);
static inline int64_t hl_memory_total(const struct hl_memory *m) { return m->held + m->fixed + m->slice; }

/* HOLA_ENOMEM, with what would fit, unless it fits in what is free and in `most` (0: no limit). row: tokens of one. */
hola_status hl_memory_check(const struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape,
                            int64_t row, int64_t most);

int64_t hl_memory_free(void); /* bytes the host can still give this process: /proc and control groups; 0: not known */

#endif
