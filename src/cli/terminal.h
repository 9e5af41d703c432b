/* terminal.h -- properties of stderr (rewritable terminal, colour) and of any terminal (width). */
#ifndef HOLA_CLI_TERMINAL_H
#define HOLA_CLI_TERMINAL_H
#include <stdbool.h>

bool terminal_rewrites(void); /* a terminal, and not TERM=dumb */
bool terminal_colours(void);  /* the same, and NO_COLOR is unset or empty (no-color.org) */
int terminal_columns(int fd); /* current width, which may change at any time; 80 if unknown */

#endif
