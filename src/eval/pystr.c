/* pystr.c -- see pystr.h. */
#include "eval/pystr.h"
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

/* The character at s->p, taken off its front; a byte that is not UTF-8 is one, and no other's equal. */
static uint32_t take(struct hl_span *s) {
    uint32_t c;
    int len = hl_utf8(s->p, s->n, &c);
    if (len == 0) c = 0x110000 + (unsigned char)*s->p, len = 1;
    s->p += len, s->n -= len;
    return c;
}

static hola_status put(struct hl_text *t, uint32_t c) {
    hola_status st = hl_text_room(t, 4);
    if (st != HOLA_OK) return st;
    char *p = t->data + t->n;
    if (c >= 0x110000) p[0] = (char)(c - 0x110000), t->n += 1;
    else if (c < 0x80) p[0] = (char)c, t->n += 1;
    else if (c < 0x800) p[0] = (char)(0xc0 | c >> 6), p[1] = (char)(0x80 | (c & 63)), t->n += 2;
    else if (c < 0x10000)
        p[0] = (char)(0xe0 | c >> 12), p[1] = (char)(0x80 | (c >> 6 & 63)), p[2] = (char)(0x80 | (c & 63)),
        t->n += 3;
    else {
        p[0] = (char)(0xf0 | c >> 18), p[1] = (char)(0x80 | (c >> 12 & 63));
        p[2] = (char)(0x80 | (c >> 6 & 63)), p[3] = (char)(0x80 | (c & 63));
        t->n += 4;
    }
    return HOLA_OK;
}

static uint32_t mapped(uint32_t c, const struct case_range *r, size_t n) {
    for (size_t i = 0; i < n && r[i].first <= c; i++)
        if (c <= r[i].last && (c - r[i].first) % (uint32_t)r[i].step == 0)
            return c + (uint32_t)r[i].difference;
    return c;
}
#define COUNT(x) (sizeof(x) / sizeof *(x))
static uint32_t lower(uint32_t c) {
    if (c < 128) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return mapped(c, lower_case, COUNT(lower_case));
}

bool hl_py_space(uint32_t c) { return (c >= 0x1c && c <= 0x1f) || (c < 0x110000 && hl_is_space(c)); }

/* ---- strings ---- */

hola_status hl_text_add(struct hl_text *t, struct hl_span s) {
    hola_status st = hl_text_room(t, s.n + 1);
    if (st != HOLA_OK) return st;
    if (s.n > 0) memcpy(t->data + t->n, s.p, (size_t)s.n);
    t->n += s.n;
    return HOLA_OK;
}

hola_status hl_text_add_valid(struct hl_text *out, struct hl_span s) {
    hola_status st = HOLA_OK;
    while (st == HOLA_OK && s.n > 0) {
        const uint32_t c = take(&s);
        st = put(out, c < 0x110000 ? c : 0xfffd);
    }
    return st;
}

struct hl_span hl_py_lstrip(struct hl_span s) {
    for (struct hl_span rest = s; s.n > 0 && hl_py_space(take(&rest));) s = rest;
    return s;
}

struct hl_span hl_py_rstrip(struct hl_span s) {
    struct hl_span rest = s;
    int64_t end = 0;
    while (rest.n > 0)
        if (!hl_py_space(take(&rest))) end = s.n - rest.n;
    s.n = end;
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
        const bool space = hl_py_space(take(&s));
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
        if (st == HOLA_OK) st = hl_text_add(out, hl_span_of(new_text));
    }
    return st == HOLA_OK ? hl_text_add(out, s) : st;
}

hola_status hl_py_capitalize(struct hl_text *out, struct hl_span s) {
    hola_status st = HOLA_OK;
    if (s.n == 0) return HOLA_OK;
    const uint32_t first = take(&s);
    const char *several = NULL;
    for (size_t i = 0; i < COUNT(long_title); i++)
        if (long_title[i].c == first) several = long_title[i].text;
    st = several ? hl_text_add(out, hl_span_of(several))
                 : put(out, mapped(first, title_case, COUNT(title_case)));
    while (st == HOLA_OK && s.n > 0) {
        const uint32_t c = take(&s);
        st = c == 0x130 ? hl_text_add(out, hl_span_of("i\xcc\x87")) : put(out, lower(c));
    }
    return st;
}

static bool same_letter(uint32_t text, uint32_t pattern) {
    text = lower(text), pattern = lower(pattern);
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
