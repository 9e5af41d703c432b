/* status.c -- the last error of each thread. */
#include "core/status.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[1024];

void hl_message(char *out, int size, const char *fmt, va_list ap) {
    static const char gap[] = " ... ";
    char all[6 * 1024]; /* the longest path and some words */
    int n = vsnprintf(all, sizeof all, fmt, ap);
    if (n < 0) n = 0, all[0] = 0;
    if (n > (int)sizeof all - 1) n = (int)sizeof all - 1;
    if (n < size) {
        memcpy(out, all, (size_t)n + 1);
        return;
    }
    const int end = size / 2, begin = size - end - (int)sizeof gap;
    memcpy(out, all, (size_t)begin);
    memcpy(out + begin, gap, sizeof gap - 1);
    memcpy(out + begin + sizeof gap - 1, all + n - end, (size_t)end + 1);
}

hola_status hl_fail(hola_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    hl_message(message, sizeof message, fmt, ap);
    va_end(ap);
    for (char *p = message; *p; p++) /* the message may quote any bytes, but stays one line */
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    return code;
}

hola_status hl_options_take(void *to, size_t known, const void *from, size_t first, const char *what) {
    size_t size = 0;
    memset(to, 0, known);
    if (!from) return HOLA_OK;
    memcpy(&size, from, sizeof size);
    if (size == 0) size = first;
    if (size < first) return hl_fail(HOLA_EINVAL, "%s: size %zu, the least is %zu", what, size, first);
    for (size_t i = known; i < size; i++) /* fields of a later version */
        if (((const char *)from)[i])
            return hl_fail(HOLA_ENOTSUP, "%s: byte %zu is set, libhola %s knows %zu", what, i, HOLA_VERSION, known);
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return HOLA_OK;
}

void hl_assert_fail(const char *what, const char *file, int line) {
    fprintf(stderr, "hola: internal error: %s (%s:%d)\n", what, file, line);
    abort();
}

const char *hola_last_error(void) { return message; }
const char *hola_version(void) { return HOLA_VERSION; }
void hola_free(void *p) { free(p); }

const char *hola_status_text(hola_status s) {
#define TEXT(name, text) text,
    static const char *const texts[] = {HOLA_STATUS_LIST(TEXT)};
#undef TEXT
    return (unsigned)s < HOLA_STATUS_COUNT ? texts[s] : "unknown status";
}
