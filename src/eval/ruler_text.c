/* ruler_text.c -- lists of spans, files of the data. */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- spans ---- */

hola_status hl_spans_add(struct hl_spans *v, const char *text, int64_t n, int32_t value) {
    if (v->n == v->cap) {
        int64_t cap = 2 * v->cap + 64;
        struct hl_ruler_span *at = realloc(v->at, (size_t)cap * sizeof *at);
        if (!at) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        v->at = at, v->cap = cap;
    }
    v->at[v->n++] = (struct hl_ruler_span){text, n, value};
    return HOLA_OK;
}

int hl_span_compare(const void *a, const void *b) {
    const struct hl_ruler_span *x = a, *y = b;
    int c = memcmp(x->text, y->text, (size_t)(x->n < y->n ? x->n : y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

void hl_spans_sort(struct hl_spans *v, bool unique) {
    int64_t n = 0;
    if (v->n > 0) qsort(v->at, (size_t)v->n, sizeof *v->at, hl_span_compare);
    for (int64_t i = 0; unique && i < v->n; i++)
        if (i == 0 || hl_span_compare(&v->at[i], &v->at[n - 1]) != 0) v->at[n++] = v->at[i];
    if (unique) v->n = n;
}

const struct hl_ruler_span *hl_spans_find(const struct hl_spans *v, const char *text, int64_t n) {
    const struct hl_ruler_span key = {text, n, 0};
    return v->n ? bsearch(&key, v->at, (size_t)v->n, sizeof *v->at, hl_span_compare) : NULL;
}

/* ---- files ---- */

hola_status hl_ruler_file(const char *dir, const char *name, const char *source, char **path) {
    *path = hl_path_join(dir ? dir : "", name);
    if (!*path) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (access(*path, R_OK) == 0) return HOLA_OK;
    return hl_fail(HOLA_EIO, "%s: %s; RULER needs %s", *path, strerror(errno), source);
}

hola_status hl_ruler_json(const char *dir, const char *name, const char *source, json_t **out) {
    char *path = NULL;
    struct hl_map m = {.data = NULL};
    json_error_t e = {.line = 0};
    hola_status s = hl_ruler_file(dir, name, source, &path);
    *out = NULL;
    if (s == HOLA_OK) s = hl_map_open(&m, path);
    if (s == HOLA_OK) {
        *out = json_loadb(m.data, (size_t)m.size, 0, &e);
        if (!*out) s = hl_fail(HOLA_EFORMAT, "%s: line %d: %s", path, e.line, e.text);
    }
    hl_map_close(&m);
    free(path);
    return s;
}
