/* train_log.h -- a run's progress on stderr: one line per step, rewritten in place on a terminal. */
#ifndef HOLA_CLI_TRAIN_LOG_H
#define HOLA_CLI_TRAIN_LOG_H
#include "train/train.h"

struct train_log {
    bool terminal, open; /* open: an unfinished line stands on the terminal */
    int64_t every;
    double average; /* seconds of a step, lately */
    struct hl_train_begin begin;
    struct hl_metric last; /* step 0: none yet */
};
void train_log_begin(struct train_log *l, int64_t every);
struct hl_train_report train_log_report(struct train_log *l);
void train_log_end(struct train_log *l); /* before anything else is printed */

#endif
