/* text.h -- growable arrays: a text, a list of token ids. Zeroed memory is an empty one; free() its data. */
#ifndef HL_TEXT_H
#define HL_TEXT_H
#include "core/status.h"
#include <stdbool.h>
#include <stdint.h>

/* Failure is sticky: once memory has run out, additions are dropped and every call returns HOLA_ENOMEM. So a page can
 * be written line by line and checked once, at the end. */
struct hl_text {
    char *data; /* NUL-terminated by put, puts, printf and clear */
    int64_t n, cap;
    bool failed;
};
hola_status hl_text_room(struct hl_text *t, int64_t more); /* for `more` bytes after the n that are there */
hola_status hl_text_put(struct hl_text *t, const char *bytes, int64_t n);
hola_status hl_text_puts(struct hl_text *t, const char *string);
hola_status hl_text_printf(struct hl_text *t, const char *fmt, ...) HL_PRINTF(2, 3);
hola_status hl_text_clear(struct hl_text *t); /* keeps the capacity */
hola_status hl_text_status(const struct hl_text *t);
void hl_text_free(struct hl_text *t);

struct hl_ids {
    int32_t *data;
    int64_t n, cap;
};
hola_status hl_ids_room(struct hl_ids *v, int64_t more);

#endif
