/* settings.h -- a file of settings, name = value, in JSON or in the part of TOML that this needs.
 *
 * TOML: one `name = value` a line, with comments from # and blank lines. Names are letters, digits, - and _. Values are
 * "strings" (escapes \" \\ \n \t \r \uXXXX), 'strings' as they are, integers and floats (with _ between digits), true
 * and false. Tables, arrays, dates and strings of several lines are refused. JSON: one object of such values. */
#ifndef HL_SETTINGS_H
#define HL_SETTINGS_H
#include "core/status.h"
#include <jansson.h>
#include <stdint.h>

enum { HL_SETTINGS_BYTES = 1 << 20 }; /* the largest file */

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
/* The file's name decides: .toml or not. */
hola_status hl_settings_read(struct hl_settings *out, const char *path);
void hl_settings_free(struct hl_settings *s); /* zeroed ones too */

#endif
