/* json.h -- JSON from untrusted files: jansson, strict. */
#ifndef HL_JSON_H
#define HL_JSON_H
#include "core/text.h"
#include <jansson.h>
#include <stdint.h>

/* Parses an object: refuses duplicate keys, bad UTF-8, NUL bytes, NaN, numbers that overflow, nesting beyond jansson's
 * 2048 levels and anything but an object. The caller must json_decref(*out); path is used in messages; max: size limit
 * in bytes. */
hola_status hl_json_object(json_t **out, const char *text, int64_t len, int64_t max, const char *path);

/* Bytes as a JSON string: invalid UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *hl_json_text(const char *data, int64_t len);
/* The same in quotation marks, as json_dumps writes it, without a json_t: for hot paths. */
hola_status hl_json_put(struct hl_text *out, const char *data, int64_t len);
/* Length in bytes of the character at p, at most n; 0 if there is none. */
int64_t hl_utf8_character(const unsigned char *p, int64_t n);

#endif
