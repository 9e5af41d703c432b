/* status.c -- the last error of each thread. */
#include "core/status.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local char message[1024];

hola_status hl_fail(hola_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    for (char *p = message; *p; p++) /* a file may hold any bytes; the message stays one line */
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    return code;
}

void hl_assert_fail(const char *what, const char *file, int line) {
    fprintf(stderr, "hola: internal error: %s (%s:%d)\n", what, file, line);
    abort();
}

const char *hola_last_error(void) { return message; }
const char *hola_version(void) { return HOLA_VERSION; }

const char *hola_status_text(hola_status s) {
#define TEXT(name, text) text,
    static const char *const texts[] = {HOLA_STATUS_LIST(TEXT)};
#undef TEXT
    return (unsigned)s < HOLA_STATUS_COUNT ? texts[s] : "unknown status";
}
