/* terminal.h -- what stderr is: a terminal whose line can be rewritten, how wide it is, whether it wants colour. */
#ifndef HOLA_CLI_TERMINAL_H
#define HOLA_CLI_TERMINAL_H
#include <stdbool.h>

bool terminal_rewrites(void); /* a terminal, and not TERM=dumb */
bool terminal_colours(void);  /* that, and NO_COLOR is not set (or is empty: no-color.org) */
int terminal_columns(void);   /* now: it may change at any time; 80 where it is not known */

#endif
