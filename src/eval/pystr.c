/* pystr.c -- see pystr.h. */
#include "eval/pystr.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode.h"

struct case_range { /* first, first + step .. last: add difference */
    uint32_t first, last;
    int32_t step, difference;
};
struct case_text {
    uint32_t c;
    const char *text;
};
#include "eval/case_table.h"

/* ---- characters ---- */

/* Takes the first character off s; an invalid UTF-8 byte is a character equal to no other. */
static uint32_t take(struct hl_span *s) {
    uint32_t c;
    int len = hl_utf8(s->p, s->n, &c);
    if (len == 0) c = 0x110000 + (unsigned char)*s->p, len = 1;
    s->p += len, s->n -= len;
    return c;
}

static hola_status put(struct hl_text *t, uint32_t c) {
    char u[4];
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    const int n = c < 0x80 || c >= 0x110000 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (c >= 0x110000) c -= 0x110000; /* a byte that is not UTF-8: see take() */
    for (int i = n - 1; i > 0; i--, c >>= 6) u[i] = (char)(0x80 | (c & 63));
    u[0] = (char)(lead[n] | c);
    return hl_text_put(t, u, n);
}

static uint32_t mapped(uint32_t c, const struct case_range *r, size_t n) {
    for (size_t i = 0; i < n && r[i].first <= c; i++)
        if (c <= r[i].last && (c - r[i].first) % (uint32_t)r[i].step == 0) return c + (uint32_t)r[i].difference;
    return c;
}
#define COUNT(x) (sizeof(x) / sizeof *(x))
uint32_t hl_py_lower_char(uint32_t c) {
    if (c < 128) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return mapped(c, lower_case, COUNT(lower_case));
}

/* ---- strings ---- */

hola_status hl_text_add_valid(struct hl_text *out, struct hl_span s) {
    hola_status st = HOLA_OK;
    while (st == HOLA_OK && s.n > 0) {
        const uint32_t c = take(&s);
        st = put(out, c < 0x110000 ? c : 0xfffd);
    }
    return st;
}

int hl_py_space(struct hl_span s) {
    uint32_t c;
    const int len = s.n > 0 ? hl_utf8(s.p, s.n, &c) : 0;
    return len > 0 && (hl_is_space(c) || (c >= 0x1c && c <= 0x1f)) ? len : 0;
}

struct hl_span hl_py_lstrip(struct hl_span s) {
    for (int k = hl_py_space(s); k > 0; k = hl_py_space(s)) s.p += k, s.n -= k;
    return s;
}

struct hl_span hl_py_rstrip(struct hl_span s) {
    for (int k = 1; k <= 3 && k <= s.n; k++) /* no white space has more than three bytes */
        if (hl_py_space((struct hl_span){s.p + s.n - k, k}) == k) s.n -= k, k = 0;
    return s;
}

struct hl_span hl_py_strip(struct hl_span s) {
    return hl_py_lstrip(hl_py_rstrip(s));
}

int64_t hl_py_len(struct hl_span s) {
    int64_t n = 0;
    for (; s.n > 0; n++) take(&s);
    return n;
}

int64_t hl_py_words(struct hl_span s) {
    int64_t n = 1;
    for (bool in_space = false; s.n > 0;) {
        const bool space = hl_py_space(s) > 0;
        take(&s);
        n += space && !in_space;
        in_space = space;
    }
    return n;
}

int64_t hl_py_find(struct hl_span s, const char *what) {
    const int64_t len = (int64_t)strlen(what);
    for (int64_t i = 0; i + len <= s.n; i++) {
        const char *p = memchr(s.p + i, what[0], (size_t)(s.n - len - i) + 1);
        if (!p) return -1;
        i = p - s.p;
        if (memcmp(p, what, (size_t)len) == 0) return i;
    }
    return -1;
}

hola_status hl_py_replace(struct hl_text *out, struct hl_span s, const char *old, const char *new_text) {
    const int64_t len = (int64_t)strlen(old);
    hola_status st = HOLA_OK;
    for (int64_t at; st == HOLA_OK && (at = hl_py_find(s, old)) >= 0; s.p += at + len, s.n -= at + len) {
        st = hl_text_add(out, (struct hl_span){s.p, at});
        if (st == HOLA_OK) st = hl_text_puts(out, new_text);
    }
    return st == HOLA_OK ? hl_text_add(out, s) : st;
}

hola_status hl_py_lower(struct hl_text *out, struct hl_span s) {
    hola_status st = HOLA_OK;
    while (st == HOLA_OK && s.n > 0) {
        const uint32_t c = take(&s);
        st = c == 0x130 ? hl_text_puts(out, "i\xcc\x87") : put(out, hl_py_lower_char(c));
    }
    return st;
}

hola_status hl_py_capitalize(struct hl_text *out, struct hl_span s) {
    hola_status st = HOLA_OK;
    if (s.n == 0) return HOLA_OK;
    const uint32_t first = take(&s);
    const char *several = NULL;
    for (size_t i = 0; i < COUNT(long_title); i++)
        if (long_title[i].c == first) several = long_title[i].text;
    st = several ? hl_text_puts(out, several) : put(out, mapped(first, title_case, COUNT(title_case)));
    return st == HOLA_OK ? hl_py_lower(out, s) : st;
}

static bool same_letter(uint32_t text, uint32_t pattern) {
    text = hl_py_lower_char(text), pattern = hl_py_lower_char(pattern);
    if (text == pattern) return true;
    if (text < 128 && pattern < 128) return false;
    for (size_t i = 0; i < COUNT(extra_case); i++)
        if (extra_case[i][0] == pattern && extra_case[i][1] == text) return true;
    return false;
}

bool hl_py_contains(struct hl_span s, struct hl_span what) {
    for (;; take(&s)) {
        struct hl_span a = s, b = what;
        while (a.n > 0 && b.n > 0 && same_letter(take(&a), take(&b)))
            if (b.n == 0) return true;
        if (what.n == 0) return true;
        if (s.n == 0) return false;
    }
}

/* As Python: single quotes unless there are only single ones inside. */
static void repr_one(struct hl_text *s, const char *t) {
    const char quote = strchr(t, '\'') && !strchr(t, '"') ? '"' : '\'';
    hl_text_put(s, &quote, 1);
    for (; *t; t++) {
        unsigned char c = (unsigned char)*t;
        if (c == (unsigned char)quote || c == '\\') hl_text_printf(s, "\\%c", c);
        else if (c == '\n') hl_text_puts(s, "\\n");
        else if (c == '\t') hl_text_puts(s, "\\t");
        else if (c == '\r') hl_text_puts(s, "\\r");
        else if (c < 32 || c == 127) hl_text_printf(s, "\\x%02x", c);
        else hl_text_put(s, t, 1);
    }
    hl_text_put(s, &quote, 1);
}

hola_status hl_py_repr(struct hl_text *s, char *const *list, int64_t n) {
    hl_text_puts(s, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) hl_text_puts(s, ", ");
        repr_one(s, list[i]);
    }
    return hl_text_puts(s, "]");
}
