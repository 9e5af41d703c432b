/* metrics.h -- metrics.jsonl: one JSON object per step. */
#ifndef HL_METRICS_H
#define HL_METRICS_H
#include "core/status.h"

/* Non-finite values (a skipped step, no evaluation) are null in the file; val_loss is omitted. */
struct hl_metric {
    int64_t step, tokens, epoch, skipped;                     /* step from 1; tokens and skipped: since the run began */
    double loss, lr, grad_norm, tok_per_s, seconds, val_loss; /* seconds: training time since the run began */
};

/* Lines that cannot be written (disk full) are kept in memory and written with the next one that can. */
struct hl_metrics_log {
    int fd;
    char *path;
    int64_t size; /* bytes of complete lines in the file */
    char *pending;
    int64_t n, room;
};
/* Opens for appending. Drops malformed lines and lines of steps after last_step; keeps the others byte for byte. */
hola_status hl_metrics_open(struct hl_metrics_log *w, const char *path, int64_t last_step);
struct hl_train_figures;
/* figures: benchmark results, as the field "eval"; NULL: none. */
hola_status hl_metrics_add(struct hl_metrics_log *w, const struct hl_metric *m, const struct hl_train_figures *figures);
hola_status hl_metrics_sync(struct hl_metrics_log *w); /* flushes everything to disk */
void hl_metrics_close(struct hl_metrics_log *w);

struct hl_metrics_history {
    int64_t n, bad; /* bad: malformed lines that were skipped */
    struct hl_metric *at;
};
hola_status hl_metrics_history_read(struct hl_metrics_history *h, const char *path);
void hl_metrics_history_free(struct hl_metrics_history *h);

#endif
