/* progress.h -- a one-line progress display on stderr, only if stderr is a terminal: logs and scripts never see it. */
#ifndef HOLA_CLI_PROGRESS_H
#define HOLA_CLI_PROGRESS_H
#include "cli/cli.h"

struct progress {
    bool on;
    double begun, shown; /* seconds */
};
void progress_begin(struct progress *p);
/* Redraws the line, at most ten times a second. part: fraction done, 0 to 1; negative: unknown, no bar. */
void progress_show(struct progress *p, double part, const char *fmt, ...) CLI_PRINTF(3, 4);
void progress_end(struct progress *p); /* erases the line; call before printing anything else */
double progress_seconds(const struct progress *p);

#endif
