/* terminal.c -- see terminal.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/terminal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_rewrites(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
}

bool terminal_colours(void) {
    const char *no = getenv("NO_COLOR");
    return terminal_rewrites() && !(no && *no);
}

int terminal_columns(int fd) {
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}
