/* settings.h -- a settings file, name = value, in JSON or a subset of TOML.
 *
 * TOML: one `name = value` per line, # comments and blank lines. Names are letters, digits, - and _. Values are
 * "strings" (escapes \" \\ \n \t \r \uXXXX), literal 'strings', integers and floats (with _ between digits), true and
 * false. Tables, arrays, dates and multi-line strings are refused. JSON: one object of such values. */
#ifndef HL_SETTINGS_H
#define HL_SETTINGS_H
#include "core/status.h"
#include <jansson.h>
#include <stdint.h>

enum { HL_SETTINGS_BYTES = 1 << 20 }; /* maximum file size */

struct hl_settings {
    int64_t n, room;
    struct hl_setting {
        char *name;
        json_t *value; /* string, integer, real or boolean */
        int64_t line;  /* from 1 */
    } * at;
};
/* On failure *out is empty, and the message begins with "path:line: ". */
hola_status hl_settings_toml(struct hl_settings *out, const char *text, int64_t n, const char *path);
hola_status hl_settings_json(struct hl_settings *out, const char *text, int64_t n, const char *path);
/* The file name decides: .toml or JSON. */
hola_status hl_settings_read(struct hl_settings *out, const char *path);
void hl_settings_free(struct hl_settings *s); /* also accepts zeroed ones */

#endif
