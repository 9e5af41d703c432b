/* progress.c -- see progress.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"
#include "cli/terminal.h"
#include "core/clock.h"
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { BAR = 16 };

void progress_begin(struct progress *p) { *p = (struct progress){.on = terminal_rewrites(), .begun = hl_clock()}; }

double progress_seconds(const struct progress *p) { return hl_clock() - p->begun; }

void progress_show(struct progress *p, double part, const char *fmt, ...) {
    char text[256];
    int n = 0;
    va_list ap;
    double t = hl_clock();
    if (!p->on || t - p->shown < 0.1) return;
    p->shown = t;
    if (part >= 0) {
        int full = (int)((part < 1 ? part : 1) * BAR);
        n = snprintf(text, sizeof text, "[%.*s%*s] %3d%%  ", full, "################", BAR - full, "",
                     (int)(100 * (part < 1 ? part : 1)));
    }
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\r\033[K%.*s", terminal_columns(STDERR_FILENO) - 1, text);
    fflush(stderr);
}

void progress_end(struct progress *p) {
    if (p->on && p->shown > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->on = false;
}
