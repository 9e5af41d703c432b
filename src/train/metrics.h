/* metrics.h -- metrics.jsonl: one JSON object per step. */
#ifndef HL_METRICS_H
#define HL_METRICS_H
#include "core/status.h"

/* What is not finite (a skipped step, no evaluation at this step) is null in the file, val_loss absent. */
struct hl_metric {
    int64_t step, tokens, epoch, skipped;                     /* step from 1; tokens and skipped: since the run began */
    double loss, lr, grad_norm, tok_per_s, seconds, val_loss; /* seconds: of training since the run began */
};

/* Lines that cannot be written (a full disk) wait in memory and follow with the next one that can. */
struct hl_metrics_log {
    int fd;
    char *path;
    int64_t size; /* of the file: whole lines */
    char *pending;
    int64_t n, room;
};
/* Opens for appending. Lines of steps after last_step, and malformed ones, are dropped; the others stay as
 * they are, byte for byte. */
hola_status hl_metrics_open(struct hl_metrics_log *w, const char *path, int64_t last_step);
struct hl_train_figures;
/* figures: of benchmarks, as the field "eval"; NULL: none. */
hola_status hl_metrics_add(struct hl_metrics_log *w, const struct hl_metric *m, const struct hl_train_figures *figures);
hola_status hl_metrics_sync(struct hl_metrics_log *w); /* everything is on the disk */
void hl_metrics_close(struct hl_metrics_log *w);

struct hl_metrics_history {
    int64_t n, bad; /* bad: malformed lines, left out */
    struct hl_metric *at;
};
hola_status hl_metrics_history_read(struct hl_metrics_history *h, const char *path);
void hl_metrics_history_free(struct hl_metrics_history *h);

#endif
