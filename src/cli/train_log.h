/* train_log.h -- a run's progress on stderr.
 *
 * On a terminal: one line, redrawn several times a second by its own thread, so that it updates during slow steps and
 * follows the terminal's width; the least important pieces are dropped if they do not fit. Lines with an evaluation
 * stay. Otherwise: a line every `every` steps. */
#ifndef HOLA_CLI_TRAIN_LOG_H
#define HOLA_CLI_TRAIN_LOG_H
#include "train/train.h"
#include <pthread.h>

struct train_log {
    bool terminal, colour;
    int64_t every;
    pthread_mutex_t lock; /* guards everything below, and stderr */
    pthread_cond_t wake;
    pthread_t thread;
    bool ticking, quit;
    int drawn;       /* columns of the line currently drawn; 0: none */
    double drawn_at; /* when */
    double average;  /* recent seconds per step; 0: none yet */
    double peak;
    struct hl_train_begin begin;
    struct hl_metric last; /* step 0: none yet */
    double val_loss;       /* the last; NaN: none */
    struct hl_train_work work;
    double phase_begun, slice_begun, slice_seconds; /* slice_seconds: of the previous one */
    bool timed;                                     /* the line about seconds per step was printed */
};
void train_log_begin(struct train_log *l, int64_t every);
struct hl_train_report train_log_report(struct train_log *l);
void train_log_end(struct train_log *l); /* call before printing anything else; ends the thread */

/* Announces a caught signal at once. Async-signal-safe. */
void train_log_stopping(void);

#endif
