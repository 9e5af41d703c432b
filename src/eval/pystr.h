/* pystr.h -- the parts of Python's str that define benchmarks, on UTF-8. */
#ifndef HL_PYSTR_H
#define HL_PYSTR_H
#include "core/text.h"
#include <string.h>

struct hl_span { /* a borrowed text */
    const char *p;
    int64_t n;
};
static inline struct hl_span hl_span_of(const char *text) { return (struct hl_span){text, (int64_t)strlen(text)}; }
static inline struct hl_span hl_span_text(const struct hl_text *t) { return (struct hl_span){t->data, t->n}; }
static inline bool hl_span_equal(struct hl_span a, struct hl_span b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, (size_t)a.n) == 0);
}

static inline hola_status hl_text_add(struct hl_text *t, struct hl_span s) { return hl_text_put(t, s.p, s.n); }

/* str.isspace() of the first character (White_Space and the separators 0x1c to 0x1f): its bytes, else 0. */
int hl_py_space(struct hl_span s);
struct hl_span hl_py_lstrip(struct hl_span s);
struct hl_span hl_py_rstrip(struct hl_span s);
struct hl_span hl_py_strip(struct hl_span s);
int64_t hl_py_len(struct hl_span s);                    /* code points; a byte that is not UTF-8 counts as one */
int64_t hl_py_words(struct hl_span s);                  /* len(re.split(r"\s+", s)) */
int64_t hl_py_find(struct hl_span s, const char *what); /* bytes before it; -1: not in it */
/* Appends s with every `old` replaced, in one pass from the left. */
hola_status hl_py_replace(struct hl_text *out, struct hl_span s, const char *old, const char *new_text);
/* str.lower() of one character, where that is one character; of s, appended. Final sigmas are sigmas. */
uint32_t hl_py_lower_char(uint32_t c);
hola_status hl_py_lower(struct hl_text *out, struct hl_span s);
/* Appends repr() of a list of strings. Characters beyond ASCII count as printable. */
hola_status hl_py_repr(struct hl_text *out, char *const *list, int64_t n);
/* Appends s.capitalize(): the first character in title case, the rest in lower case (final sigmas too). */
hola_status hl_py_capitalize(struct hl_text *out, struct hl_span s);
/* bool(re.search(re.escape(what), s, re.IGNORECASE)) */
bool hl_py_contains(struct hl_span s, struct hl_span what);
/* Appends s with every invalid UTF-8 byte replaced by U+FFFD, for JSON. */
hola_status hl_text_add_valid(struct hl_text *out, struct hl_span s);

#endif
