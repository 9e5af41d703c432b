/* json.c -- strict reading of a JSON object. */
#include "core/json.h"
#include <stdlib.h>
#include <string.h>

hola_status hl_json_object(json_t **out, const char *text, int64_t len, int64_t max, const char *path) {
    json_error_t e = {.line = 0};
    *out = NULL;
    if (len > max) return hl_fail(HOLA_EFORMAT, "%s: larger than %lld bytes", path, (long long)max);
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, len -= 3; /* a byte order mark */
    /* jansson ignores a NUL after a number */
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

int64_t hl_utf8_character(const unsigned char *p, int64_t n) {
    if (p[0] < 0x80) return 1;
    const int64_t len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n) return 0;
    for (int64_t i = 1; i < len; i++)
        if (p[i] < 0x80 || p[i] > 0xbf) return 0;
    /* overlong forms, surrogates, beyond U+10FFFF */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

json_t *hl_json_text(const char *data, int64_t len) {
    char *clean = malloc((size_t)(3 * len + 1));
    int64_t n = 0;
    if (!clean) return NULL;
    for (int64_t i = 0, k; i < len; i += k ? k : 1) {
        k = hl_utf8_character((const unsigned char *)data + i, len - i);
        memcpy(clean + n, k ? data + i : "\xef\xbf\xbd", (size_t)(k ? k : 3));
        n += k ? k : 3;
    }
    json_t *text = json_stringn(clean, (size_t)n);
    free(clean);
    return text;
}

/* The letter after the backslash of a short escape; 0: not escaped, or \u is needed. */
static char short_escape(char c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, c) : NULL;
    return at ? to[at - from] : 0;
}
/* Leading bytes that are written as they are. */
static int64_t plain(const char *p, int64_t n) {
    int64_t i = 0;
    while (i < n && (signed char)p[i] >= ' ' && p[i] != '"' && p[i] != '\\') i++;
    return i;
}
hola_status hl_json_put(struct hl_text *out, const char *data, int64_t len) {
    for (int64_t i = 0, k; i < len; i += k ? k : 1) {
        k = plain(data + i, len - i);
        if (k > 0) {
            hl_text_put(out, data + i, k);
            continue;
        }
        k = hl_utf8_character((const unsigned char *)data + i, len - i);
        const char escape = k == 1 ? short_escape(data[i]) : 0;
        if (escape) hl_text_put(out, (const char[]){'\\', escape}, 2);
        else if (k == 1 && (unsigned char)data[i] < 32) hl_text_printf(out, "\\u%04X", (unsigned)data[i]);
        else hl_text_put(out, k ? data + i : "\xef\xbf\xbd", k ? k : 3);
    }
    return hl_text_status(out);
}
