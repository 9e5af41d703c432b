/* jsonl.c -- see jsonl.h. */
#include "eval/jsonl.h"
#include <stdarg.h>
#include <stdio.h>

enum { MOST = 1 << 26 }; /* bytes of a row */

hola_status hl_rowfile_open(struct hl_rowfile *f, const char *path) {
    *f = (struct hl_rowfile){.path = path};
    return hl_map_open(&f->map, path);
}

void hl_rowfile_close(struct hl_rowfile *f) {
    json_decref(f->now);
    hl_map_close(&f->map);
    *f = (struct hl_rowfile){0};
}

hola_status hl_row_fail(const struct hl_rowfile *f, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hl_fail(HOLA_EFORMAT, "%s: row %lld: %s", f->path, (long long)f->row, text);
}

hola_status hl_rowfile_next(struct hl_rowfile *f) {
    json_decref(f->now);
    f->now = NULL;
    while (f->at < f->map.size) {
        const char *line = f->map.data + f->at;
        const char *end = memchr(line, '\n', (size_t)(f->map.size - f->at));
        const int64_t len = end ? end - line : f->map.size - f->at;
        int64_t i = 0;
        f->at += len + 1;
        f->row++;
        while (i < len && strchr(" \t\r", line[i]) && line[i]) i++;
        if (i == len) continue;
        if (len > MOST) return hl_row_fail(f, "larger than %d bytes", MOST);
        if (memchr(line, 0, (size_t)len)) return hl_row_fail(f, "a NUL byte");
        json_error_t e;
        f->now = json_loadb(line, (size_t)len, JSON_REJECT_DUPLICATES, &e);
        if (!f->now) return hl_row_fail(f, "not JSON: %s", e.text);
        if (!json_is_object(f->now)) return hl_row_fail(f, "not a JSON object");
        return HOLA_OK;
    }
    return HOLA_OK;
}

bool hl_row_has(const struct hl_rowfile *f, const char *name) { return json_object_get(f->now, name) != NULL; }

hola_status hl_row_text(const struct hl_rowfile *f, const char *name, struct hl_span *out) {
    const json_t *v = json_object_get(f->now, name);
    if (!v) return hl_row_fail(f, "no field \"%s\"", name);
    if (!json_is_string(v)) return hl_row_fail(f, "\"%s\" is not a string", name);
    *out = (struct hl_span){json_string_value(v), (int64_t)json_string_length(v)};
    return HOLA_OK;
}

hola_status hl_row_text_or(const struct hl_rowfile *f, const char *name, const char *other, struct hl_span *out) {
    return hl_row_text(f, hl_row_has(f, name) || !hl_row_has(f, other) ? name : other, out);
}

hola_status hl_row_index(const struct hl_rowfile *f, const char *name, int64_t n, int64_t *out) {
    const json_t *v = json_object_get(f->now, name);
    const char *text = json_string_value(v);
    if (!v) return hl_row_fail(f, "no field \"%s\"", name);
    *out = -1;
    if (json_is_integer(v)) *out = json_integer_value(v);
    else if (text && text[0] >= '0' && text[0] <= '9' && !text[1]) *out = text[0] - '0';
    else return hl_row_fail(f, "\"%s\" is not a number", name);
    if (*out < 0 || *out >= n)
        return hl_row_fail(f, "\"%s\" is %lld, not from 0 to %lld", name, (long long)*out, (long long)n - 1);
    return HOLA_OK;
}

hola_status hl_row_list(const struct hl_rowfile *f, const char *name, struct hl_span *out, int most, int *n,
                        const json_t **labels) {
    const json_t *v = json_object_get(f->now, name);
    if (!v) return hl_row_fail(f, "no field \"%s\"", name);
    if (labels) *labels = NULL;
    if (labels && json_is_object(v)) {
        *labels = json_object_get(v, "label");
        v = json_object_get(v, "text");
        if (!json_is_array(v) || !json_is_array(*labels) || json_array_size(v) != json_array_size(*labels))
            return hl_row_fail(f, "\"%s\" has different numbers of \"label\" and \"text\"", name);
    }
    if (!json_is_array(v)) return hl_row_fail(f, "\"%s\" is not a list", name);
    const size_t count = json_array_size(v);
    if (count < 2 || count > (size_t)most)
        return hl_row_fail(f, "\"%s\" has %zu entries, not 2 to %d", name, count, most);
    for (size_t i = 0; i < count; i++) {
        const json_t *e = json_array_get(v, i);
        if (!json_is_string(e)) return hl_row_fail(f, "\"%s\"[%zu] is not a string", name, i);
        out[i] = (struct hl_span){json_string_value(e), (int64_t)json_string_length(e)};
    }
    *n = (int)count;
    return HOLA_OK;
}
