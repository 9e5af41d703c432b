/* tensorboard.h -- event files for TensorBoard and W&B: OUT/tb/events.out.tfevents.SECONDS.HOST.PID.0.
 *
 * A record: length (8 bytes), masked CRC-32C of these 8, an Event, masked CRC-32C of it; integers little-endian. The
 * first event has file_version "brain.Event:2". In a resumed run the next is a SessionLog START of the next step, which
 * makes TensorBoard drop that step and later ones from earlier files. After that one Summary per step. */
#ifndef HL_TENSORBOARD_H
#define HL_TENSORBOARD_H
#include "train/train.h"
#include <stdio.h>

struct hl_tensorboard {
    FILE *f;
    char *path;
};
/* done: steps already made; 0: a new run. */
hola_status hl_tensorboard_open(struct hl_tensorboard *t, const char *out, int64_t done);
hola_status hl_tensorboard_add(struct hl_tensorboard *t, const struct hl_metric *m, const struct hl_train_figures *f);
void hl_tensorboard_close(struct hl_tensorboard *t); /* also accepts a zeroed one */

uint32_t hl_crc32c(const void *data, int64_t n);

#endif
