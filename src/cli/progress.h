/* progress.h -- one line on stderr that shows how far a long command is. Only where stderr is a terminal:
 * logs and scripts never see it. */
#ifndef HOLA_CLI_PROGRESS_H
#define HOLA_CLI_PROGRESS_H
#include "cli/cli.h"

struct progress {
    bool on;
    double begun, shown; /* seconds */
};
void progress_begin(struct progress *p);
/* Replaces the line, ten times a second at most. part: of the whole, 0 to 1; negative: not known, no bar. */
void progress_show(struct progress *p, double part, const char *fmt, ...) CLI_PRINTF(3, 4);
void progress_end(struct progress *p); /* takes the line away; before anything else is printed */
double progress_seconds(const struct progress *p);

#endif
