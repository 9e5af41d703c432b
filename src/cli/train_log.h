/* train_log.h -- a run's progress on stderr.
 *
 * On a terminal: one line, rewritten in place several times a second by a thread of its own, so that it lives inside
 * slow steps and follows the terminal's width; pieces that do not fit are left out, the least needed first. Lines with
 * an evaluation stay. Elsewhere: a line every `every` steps. */
#ifndef HOLA_CLI_TRAIN_LOG_H
#define HOLA_CLI_TRAIN_LOG_H
#include "train/train.h"
#include <pthread.h>

struct train_log {
    bool terminal, colour;
    int64_t every;
    pthread_mutex_t lock; /* of all that follows, and of stderr */
    pthread_cond_t wake;
    pthread_t thread;
    bool ticking, quit;
    int drawn;       /* columns of the line that stands on the terminal; 0: none */
    double drawn_at; /* when */
    double average;  /* seconds of a step, lately; 0: none yet */
    double peak;
    struct hl_train_begin begin;
    struct hl_metric last; /* step 0: none yet */
    double val_loss;       /* the last; NaN: none */
    struct hl_train_work work;
    double phase_begun, slice_begun, slice_seconds; /* slice_seconds: of the last one */
    bool timed;                                     /* the line about seconds a step was printed */
};
void train_log_begin(struct train_log *l, int64_t every);
struct hl_train_report train_log_report(struct train_log *l);
void train_log_end(struct train_log *l); /* before anything else is printed; the thread ends */

/* A signal was caught: said at once. Safe in a signal's handler. */
void train_log_stopping(void);

#endif
