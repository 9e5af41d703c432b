/* ruler_text.c -- texts that grow, Python's ways with strings, lists of spans, files of the data. */
#include "eval/ruler_internal.h"
#include "core/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hl_str_put(struct hl_str *s, const char *text, int64_t n) {
    if (s->bad) return;
    if (s->n + n + 1 > s->cap) {
        int64_t cap = 2 * (s->n + n) + 64;
        char *data = realloc(s->data, (size_t)cap);
        if (!data) {
            s->bad = true;
            return;
        }
        s->data = data, s->cap = cap;
    }
    if (n > 0) memcpy(s->data + s->n, text, (size_t)n);
    s->n += n;
    s->data[s->n] = 0;
}

void hl_str_add(struct hl_str *s, const char *text) { hl_str_put(s, text, (int64_t)strlen(text)); }

void hl_str_addf(struct hl_str *s, const char *fmt, ...) {
    char small[256];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    HL_ASSERT(n >= 0 && n < (int)sizeof small);
    hl_str_put(s, small, n);
}

void hl_str_clear(struct hl_str *s) {
    s->n = 0;
    hl_str_put(s, "", 0);
}

void hl_str_free(struct hl_str *s) {
    free(s->data);
    *s = (struct hl_str){.data = NULL};
}

void hl_str_replace(struct hl_str *s, const char *from, const char *to) {
    struct hl_str out = {.data = NULL};
    const size_t len = strlen(from);
    if (s->bad || !s->data || len == 0) return;
    const char *p = s->data;
    for (const char *q = strstr(p, from); q; q = strstr(p, from)) {
        hl_str_put(&out, p, q - p);
        hl_str_add(&out, to);
        p = q + len;
    }
    hl_str_add(&out, p);
    free(s->data);
    *s = out;
}

/* As Python: single quotes unless there are only single ones inside. */
static void repr_one(struct hl_str *s, const char *t) {
    const char quote = strchr(t, '\'') && !strchr(t, '"') ? '"' : '\'';
    hl_str_put(s, &quote, 1);
    for (; *t; t++) {
        unsigned char c = (unsigned char)*t;
        if (c == (unsigned char)quote || c == '\\') hl_str_addf(s, "\\%c", c);
        else if (c == '\n') hl_str_add(s, "\\n");
        else if (c == '\t') hl_str_add(s, "\\t");
        else if (c == '\r') hl_str_add(s, "\\r");
        else if (c < 32 || c == 127) hl_str_addf(s, "\\x%02x", c);
        else hl_str_put(s, t, 1);
    }
    hl_str_put(s, &quote, 1);
}

void hl_str_repr(struct hl_str *s, char *const *list, int64_t n) {
    hl_str_add(s, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) hl_str_add(s, ", ");
        repr_one(s, list[i]);
    }
    hl_str_add(s, "]");
}

uint32_t hl_lower(uint32_t c) {
    if (c < 128) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c >= 0xc0 && c <= 0xde) return c == 0xd7 ? c : c + 32;
    if ((c >= 0x100 && c <= 0x12f) || (c >= 0x132 && c <= 0x137) || (c >= 0x14a && c <= 0x177)) return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c + (c & 1);
    if (c == 0x178) return 0xff;
    if (c >= 0x391 && c <= 0x3ab && c != 0x3a2) return c + 32;
    if (c >= 0x400 && c <= 0x40f) return c + 80;
    if (c >= 0x410 && c <= 0x42f) return c + 32;
    if (c >= 0x1e00 && c <= 0x1eff && !(c >= 0x1e96 && c <= 0x1e9f)) return c | 1;
    return c;
}

void hl_str_lower(struct hl_str *s, const char *text, int64_t n) {
    for (int64_t i = 0, k; i < n; i += k) {
        uint32_t c;
        k = hl_utf8(text + i, n - i, &c);
        if (k == 0 || hl_lower(c) == c) {
            k = k ? k : 1;
            hl_str_put(s, text + i, k);
            continue;
        }
        c = hl_lower(c);
        char u[3] = {(char)c};
        if (c >= 0x80 && c < 0x800) u[0] = (char)(0xc0 | c >> 6), u[1] = (char)(0x80 | (c & 63));
        if (c >= 0x800)
            u[0] = (char)(0xe0 | c >> 12), u[1] = (char)(0x80 | (c >> 6 & 63)),
            u[2] = (char)(0x80 | (c & 63));
        hl_str_put(s, u, c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
    }
}

int hl_space(const char *text, int64_t n) {
    uint32_t c;
    int k = n > 0 ? hl_utf8(text, n, &c) : 0;
    return k && (hl_is_space(c) || (c >= 0x1c && c <= 0x1f)) ? k : 0;
}

int64_t hl_strip(const char **text, int64_t n) {
    for (int k = hl_space(*text, n); k > 0; k = hl_space(*text, n)) *text += k, n -= k;
    for (bool more = true; more;) {
        more = false;
        for (int k = 1; k <= 3 && k <= n && !more; k++)
            if (hl_space(*text + n - k, k) == k) n -= k, more = true;
    }
    return n;
}

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
