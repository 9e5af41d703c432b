/* json.c -- strict reading of a JSON object. */
#include "core/json.h"
#include <string.h>

hola_status hl_json_object(json_t **out, const char *text, int64_t len, int64_t max, const char *path) {
    json_error_t e = {.line = 0};
    *out = NULL;
    if (len > max) return hl_fail(HOLA_EFORMAT, "%s: larger than %lld bytes", path, (long long)max);
    /* jansson drops a NUL behind a number */
    if (len > 0 && memchr(text, 0, (size_t)len)) return hl_fail(HOLA_EFORMAT, "%s: a NUL byte in JSON text", path);
    json_t *root = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &e);
    if (!root) return hl_fail(HOLA_EFORMAT, "%s: line %d: %s", path, e.line, e.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return hl_fail(HOLA_EFORMAT, "%s: not a JSON object", path);
    }
    *out = root;
    return HOLA_OK;
}
