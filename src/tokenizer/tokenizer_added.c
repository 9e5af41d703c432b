/* tokenizer_added.c -- tokens that are matched before anything else: leftmost first, then longest. */
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>

hola_status hl_added_put(struct hl_added *a, const char *text, int64_t len, int32_t id) {
    struct hl_added_token *more = realloc(a->token, (size_t)(a->n + 1) * sizeof *more);
    if (more) a->token = more;
    char *copy = malloc((size_t)len + 1);
    if (!more || !copy) {
        free(copy);
        return hl_fail(HOLA_ENOMEM, "tokenizer: %lld added tokens", (long long)a->n + 1);
    }
    memcpy(copy, text, (size_t)len);
    copy[len] = 0;
    a->token[a->n++] = (struct hl_added_token){.text = copy, .len = (int32_t)len, .id = id};
    return HOLA_OK;
}

static int by_first_then_longest(const void *x, const void *y) {
    const struct hl_added_token *a = x, *b = y;
    int first = (unsigned char)a->text[0] - (unsigned char)b->text[0];
    if (first) return first;
    if (a->len != b->len) return a->len > b->len ? -1 : 1;
    int text = memcmp(a->text, b->text, (size_t)a->len);
    return text ? text : (a->id > b->id) - (a->id < b->id);
}

void hl_added_sort(struct hl_added *a) {
    if (a->n > 0) qsort(a->token, (size_t)a->n, sizeof *a->token, by_first_then_longest);
    for (int64_t c = 0, i = 0; c <= 256; c++) {
        while (i < a->n && (unsigned char)a->token[i].text[0] < c) i++;
        a->first[c] = i;
    }
}

void hl_added_free(struct hl_added *a) {
    for (int64_t i = 0; i < a->n; i++) free(a->token[i].text);
    free(a->token);
    *a = (struct hl_added){0};
}

/* The longest token that starts at text[at], or NULL. */
static const struct hl_added_token *token_at(const struct hl_added *a, const char *text, int64_t len, int64_t at) {
    unsigned char c = (unsigned char)text[at];
    for (int64_t i = a->first[c]; i < a->first[c + 1]; i++) {
        const struct hl_added_token *t = &a->token[i];
        if (t->len <= len - at && memcmp(t->text, text + at, (size_t)t->len) == 0) return t;
    }
    return NULL;
}

static bool is_word_before(const char *text, int64_t at) {
    uint32_t c;
    int64_t begin = at - 1;
    if (at == 0) return false;
    while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
    return hl_utf8(text + begin, at - begin, &c) == at - begin && hl_is_word(c);
}

static bool is_word_after(const char *text, int64_t len, int64_t at) {
    uint32_t c;
    return at < len && hl_utf8(text + at, len - at, &c) && hl_is_word(c);
}

/* The extent of white space on one side of text[at]. */
static int64_t skip_spaces(const char *text, int64_t from, int64_t len, int64_t at, bool forward) {
    uint32_t c;
    if (forward)
        for (int n; at < len && (n = hl_utf8(text + at, len - at, &c)) && hl_is_space(c);) at += n;
    else
        while (at > from) {
            int64_t begin = at - 1;
            while (begin > from && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
            if (hl_utf8(text + begin, at - begin, &c) != at - begin || !hl_is_space(c)) break;
            at = begin;
        }
    return at;
}

bool hl_added_find(const struct hl_added *a, const char *text, int64_t len, int64_t from, struct hl_found *f) {
    if (a->n == 0) return false;
    for (int64_t at = from; at < len; at++) {
        unsigned char c = (unsigned char)text[at];
        const struct hl_added_token *t;
        if (a->first[c] == a->first[c + 1] || !(t = token_at(a, text, len, at))) continue;
        f->begin = at, f->end = at + t->len, f->id = t->id;
        if (t->single_word && (is_word_before(text, at) || is_word_after(text, len, f->end))) {
            at = f->end - 1; /* a rejected match is skipped entirely, as in the original */
            continue;
        }
        if (t->lstrip) f->begin = skip_spaces(text, from, len, at, false);
        if (t->rstrip) f->end = skip_spaces(text, from, len, f->end, true);
        return true;
    }
    return false;
}
