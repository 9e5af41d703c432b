/* settings.c -- see settings.h. */
#define _POSIX_C_SOURCE 200809L
#include "core/settings.h"
#include "core/file.h"
#include "core/json.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *p, *end, *path;
    int64_t line;
};
static hola_status wrong(const struct reader *r, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s:%" PRId64 ": %s", r->path, r->line, what);
}
static hola_status no_memory(const struct reader *r) { return hl_fail(HOLA_ENOMEM, "%s: no memory", r->path); }

/* Takes ownership of value; NULL: no memory. */
static hola_status add(struct hl_settings *s, const struct reader *r, const char *name, size_t n, json_t *value) {
    if (s->n == s->room) {
        struct hl_setting *more = realloc(s->at, (size_t)(2 * s->room + 16) * sizeof *more);
        if (more) s->at = more, s->room = 2 * s->room + 16;
    }
    char *copy = strndup(name, n);
    if (!value || !copy || s->n == s->room) {
        json_decref(value);
        free(copy);
        return no_memory(r);
    }
    for (int64_t i = 0; i < s->n; i++)
        if (!strcmp(s->at[i].name, copy)) {
            hola_status st = hl_fail(HOLA_EFORMAT, "%s:%" PRId64 ": '%s' is already given in line %" PRId64, r->path,
                                     r->line, copy, s->at[i].line);
            json_decref(value);
            free(copy);
            return st;
        }
    s->at[s->n++] = (struct hl_setting){copy, value, r->line};
    return HOLA_OK;
}

void hl_settings_free(struct hl_settings *s) {
    for (int64_t i = 0; i < s->n; i++) free(s->at[i].name), json_decref(s->at[i].value);
    free(s->at);
    *s = (struct hl_settings){0};
}

/* ---- TOML ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_bare(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}
static void skip_blanks(struct reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t')) r->p++;
}

/* \uXXXX as UTF-8; 0: not a character. */
static int escape_unicode(struct reader *r, char out[4]) {
    uint32_t x = 0;
    if (r->end - r->p < 4) return 0;
    for (int i = 0; i < 4; i++) {
        const char c = *r->p++;
        const int d = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0) return 0;
        x = 16 * x + (uint32_t)d;
    }
    if (x == 0 || (x >= 0xd800 && x < 0xe000)) return 0;
    if (x < 0x80) return out[0] = (char)x, 1;
    if (x < 0x800) return out[0] = (char)(0xc0 | x >> 6), out[1] = (char)(0x80 | (x & 63)), 2;
    out[0] = (char)(0xe0 | x >> 12), out[1] = (char)(0x80 | (x >> 6 & 63)), out[2] = (char)(0x80 | (x & 63));
    return 3;
}

static hola_status read_string(struct reader *r, json_t **value) {
    static const char letters[] = "\"\\ntr", means[] = "\"\\\n\t\r";
    const char quote = *r->p++;
    char *text = malloc((size_t)(r->end - r->p) + 4);
    size_t n = 0;
    hola_status s = text ? HOLA_OK : no_memory(r);
    while (s == HOLA_OK && r->p < r->end && *r->p != quote && *r->p != '\n') {
        const char c = *r->p++;
        if ((unsigned char)c < 32 && c != '\t') s = wrong(r, "a control character in a string");
        else if (c != '\\' || quote == '\'') text[n++] = c;
        else if (r->p < r->end && *r->p == 'u') {
            r->p++;
            const int k = escape_unicode(r, text + n);
            if (k == 0) s = wrong(r, "\\u takes the four hexadecimal digits of a character");
            n += (size_t)k;
        } else {
            const char *at = r->p < r->end ? memchr(letters, *r->p, sizeof letters - 1) : NULL;
            if (!at) s = wrong(r, "an unknown escape in a string");
            else text[n++] = means[at - letters], r->p++;
        }
    }
    if (s == HOLA_OK && (r->p == r->end || *r->p != quote)) s = wrong(r, "an unterminated string");
    if (s == HOLA_OK) {
        r->p++;
        *value = json_stringn(text, n);
        if (!*value) s = wrong(r, "a string that is not UTF-8");
    }
    free(text);
    return s;
}

/* An integer, or a float as TOML writes it: digits on both sides of a point, _ only between digits. */
static hola_status read_number(struct reader *r, json_t **value) {
    char text[64];
    size_t n = 0, digits = 0;
    bool real = false;
    const char *from = r->p;
    while (r->p < r->end && (is_bare(*r->p) || *r->p == '+' || *r->p == '.')) {
        const char c = *r->p, before = r->p > from ? r->p[-1] : 0, after = r->p + 1 < r->end ? r->p[1] : 0;
        r->p++;
        if (c == '_' && is_digit(before) && is_digit(after)) continue;
        const bool exponent = c == 'e' || c == 'E';
        const bool fits = is_digit(c) || ((c == '+' || c == '-') && (n == 0 || before == 'e' || before == 'E')) ||
                          (c == '.' && !real && is_digit(before) && is_digit(after)) ||
                          (exponent && digits > 0 && !memchr(text, 'e', n));
        if (!fits || n + 1 == sizeof text)
            return wrong(r, "a value that is neither a number, a \"string\", true nor false");
        real |= c == '.' || exponent;
        digits += is_digit(c);
        text[n++] = exponent ? 'e' : c;
    }
    text[n] = 0;
    const char *first = text + (text[0] == '+' || text[0] == '-');
    if (digits == 0 || !is_digit(text[n - 1]))
        return wrong(r, "a value that is neither a number, a \"string\", true nor false");
    if (first[0] == '0' && is_digit(first[1])) return wrong(r, "a number with a leading zero");
    errno = 0;
    if (real) {
        const double x = strtod(text, NULL);
        if (!isfinite(x)) return wrong(r, "a number that is too large");
        *value = json_real(x);
    } else {
        const long long x = strtoll(text, NULL, 10);
        if (errno) return wrong(r, "a number that is too large");
        *value = json_integer(x);
    }
    return *value ? HOLA_OK : no_memory(r);
}

static hola_status read_value(struct reader *r, json_t **value) {
    static const char *const words[] = {"false", "true"};
    if (r->p == r->end || *r->p == '\n' || *r->p == '#') return wrong(r, "no value after '='");
    if (*r->p == '"' || *r->p == '\'') {
        const char quote = *r->p;
        if (r->end - r->p >= 3 && r->p[1] == quote && r->p[2] == quote)
            return wrong(r, "multi-line strings are not supported");
        return read_string(r, value);
    }
    if (*r->p == '[' || *r->p == '{') return wrong(r, "arrays and tables are not supported");
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, words[i], n) != 0) continue;
        if (r->p + n < r->end && is_bare(r->p[n])) continue;
        r->p += n;
        *value = json_boolean(i);
        return HOLA_OK;
    }
    return read_number(r, value);
}

static hola_status read_line(struct hl_settings *out, struct reader *r) {
    json_t *value = NULL;
    hola_status s = HOLA_OK;
    skip_blanks(r);
    if (r->p < r->end && is_bare(*r->p)) {
        const char *name = r->p;
        while (r->p < r->end && is_bare(*r->p)) r->p++;
        const size_t n = (size_t)(r->p - name);
        skip_blanks(r);
        if (r->p == r->end || *r->p != '=') return wrong(r, "a line that is not name = value");
        r->p++;
        skip_blanks(r);
        s = read_value(r, &value);
        if (s == HOLA_OK) s = add(out, r, name, n, value);
        skip_blanks(r);
    } else if (r->p < r->end && *r->p == '[')
        return wrong(r, "sections are not supported: write all options at the top level");
    if (s != HOLA_OK) return s;
    if (r->p < r->end && *r->p == '#')
        while (r->p < r->end && *r->p != '\n') {
            if ((unsigned char)*r->p < 32 && *r->p != '\t' && *r->p != '\r') return wrong(r, "a control character");
            r->p++;
        }
    if (r->p < r->end && *r->p == '\r') r->p++;
    if (r->p < r->end && *r->p != '\n') return wrong(r, "a line that is not name = value");
    if (r->p < r->end) r->p++, r->line++;
    return HOLA_OK;
}

hola_status hl_settings_toml(struct hl_settings *out, const char *text, int64_t n, const char *path) {
    struct reader r = {.p = text, .end = text + n, .path = path, .line = 1};
    hola_status s = HOLA_OK;
    *out = (struct hl_settings){0};
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) r.p += 3; /* a byte order mark */
    if (n > HL_SETTINGS_BYTES) s = wrong(&r, "settings files this large are not supported");
    while (s == HOLA_OK && r.p < r.end) s = read_line(out, &r);
    if (s != HOLA_OK) hl_settings_free(out);
    return s;
}

/* ---- JSON ---- */

/* The line of a name in the object: the first "name" followed by a colon. */
static int64_t line_of(const char *text, int64_t n, const char *name) {
    const size_t len = strlen(name);
    int64_t line = 1;
    for (const char *p = text; p < text + n; p++) {
        if (*p == '\n') line++;
        if (*p != '"' || (size_t)(text + n - p) < len + 3 || memcmp(p + 1, name, len) != 0 || p[len + 1] != '"')
            continue;
        const char *q = p + len + 2;
        while (q < text + n && strchr(" \t\r\n", *q) && *q) q++;
        if (q < text + n && *q == ':') return line;
    }
    return 1;
}

hola_status hl_settings_json(struct hl_settings *out, const char *text, int64_t n, const char *path) {
    struct reader r = {.path = path, .line = 1};
    json_t *root = NULL, *value;
    const char *name;
    *out = (struct hl_settings){0};
    hola_status s = hl_json_object(&root, text, n, HL_SETTINGS_BYTES, path);
    if (s == HOLA_OK) json_object_foreach(root, name, value) {
            r.line = line_of(text, n, name);
            if (s == HOLA_OK && (json_is_object(value) || json_is_array(value) || json_is_null(value)))
                s = hl_fail(HOLA_EFORMAT, "%s:%" PRId64 ": the value of '%.64s' is not a string, number, true or false",
                            path, r.line, name);
            if (s == HOLA_OK) s = add(out, &r, name, strlen(name), json_incref(value));
        }
    json_decref(root);
    if (s != HOLA_OK) hl_settings_free(out);
    return s;
}

hola_status hl_settings_read(struct hl_settings *out, const char *path) {
    struct hl_map map = {0};
    const size_t n = strlen(path);
    *out = (struct hl_settings){0};
    hola_status s = hl_map_open(&map, path);
    if (s != HOLA_OK) return s;
    if (n > 5 && !strcmp(path + n - 5, ".toml")) s = hl_settings_toml(out, map.data, map.size, path);
    else s = hl_settings_json(out, map.data, map.size, path);
    hl_map_close(&map);
    return s;
}
