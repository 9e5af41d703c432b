/* json.h -- JSON from a file somebody else wrote: jansson, strict. */
#ifndef HL_JSON_H
#define HL_JSON_H
#include "core/text.h"
#include <jansson.h>
#include <stdint.h>

/* The object that text holds: duplicate keys, bad UTF-8, NUL bytes, NaN, numbers that overflow, nesting beyond
 * jansson's 2048 levels and anything but an object are refused. json_decref(*out) it; path and max (bytes)
 * are for the caller's limits and messages. */
hola_status hl_json_object(json_t **out, const char *text, int64_t len, int64_t max, const char *path);

/* Bytes as a JSON string: those that are no UTF-8 become U+FFFD. NULL: no memory. */
json_t *hl_json_text(const char *data, int64_t len);
/* The same, between its quotation marks, as json_dumps writes it: for what is written by the thousand. */
hola_status hl_json_put(struct hl_text *out, const char *data, int64_t len);
/* Bytes of the character that begins at p, at most n: 0 where none does. */
int64_t hl_utf8_character(const unsigned char *p, int64_t n);

#endif
