/* memory.h -- predicts the memory of a run before allocating it.
 *
 * Host: what the process holds once the model is loaded (including its weights), plus gradients and two moments, the
 * activations of a slice, the logits and the batch. Device: the same with its own copies of the weights. */
#ifndef HL_TRAIN_MEMORY_H
#define HL_TRAIN_MEMORY_H
#include "core/status.h"
#include <stdbool.h>

/* How a slice is cut, which determines the chunks and blocks of its rows. */
struct hl_slice_shape {
    int64_t tokens, pieces; /* pieces: documents, or rows if they run across documents */
    bool recompute, fp8;
};
struct hl_memory {
    int64_t held;  /* used by the process, or on the device, before the trainer exists */
    int64_t fixed; /* gradients, moments and everything independent of the slice */
    int64_t slice; /* activations and logits of one slice */
    int64_t left;  /* free before the run; 0: unknown */
    bool device;
};
/* For a model without a trainer yet. parts: ranks that share the moments. */
hola_status hl_memory_predict(struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape, int parts,
                              int64_t batch_tokens);
static inline int64_t hl_memory_total(const struct hl_memory *m) { return m->held + m->fixed + m->slice; }

/* HOLA_ENOMEM, with what would fit, if it exceeds the free memory or `most` (0: no limit). row: tokens of one row. */
hola_status hl_memory_check(const struct hl_memory *m, hola_model *model, const struct hl_slice_shape *shape,
                            int64_t row, int64_t most);

int64_t hl_memory_free(void); /* bytes the host can still give this process, by /proc and control groups; 0: unknown */

#endif
