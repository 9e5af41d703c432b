/* pretoken.c -- where words end: the patterns of known tokenizers, written out by hand.
 *
 * GPT-2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *          \s*[\r\n]+|\s+(?!\S)|\s+
 * Qwen 2:  the same with \p{N} for \p{N}{1,3}
 *
 * A byte that is not UTF-8 counts as a character of no class. Alternatives are tried in order, as a
 * backtracking matcher does. No word holds a character that is no space followed by ' ', none looks behind,
 * and only a word of spaces looks ahead, by one character: so a text may be cut between an ASCII character
 * that is no space and a ' '. */
#include "tokenizer/bpe.h"
#include "tokenizer/unicode.h"

struct reader {
    const char *text;
    int64_t len;
};

/* The character at `at`: its class and length (0: the end). */
static inline int look(const struct reader *r, int64_t at, uint32_t *c, int *size) {
    if (at >= r->len) return *size = 0, *c = 0, 0;
    unsigned char first = (unsigned char)r->text[at];
    if (first < 0x80) return *size = 1, *c = first, hl_class_ascii[first];
    *size = hl_utf8(r->text + at, r->len - at, c);
    if (*size == 0) return *size = 1, *c = 0xfffd, 0;
    return hl_class_beyond_ascii(*c);
}

enum { ANY = HL_LETTER | HL_NUMBER | HL_SPACE };

/* The end of the run, from `at` on, of characters whose class within ANY is `want`. */
static inline int64_t run_of(const struct reader *r, int64_t at, int want) {
    uint32_t c;
    int size;
    while ((look(r, at, &c, &size) & ANY) == want && size > 0) at += size;
    return at;
}

static int lower(const struct reader *r, int64_t at) {
    int c = at < r->len ? (unsigned char)r->text[at] : 0;
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

/* The end of 's 't 're 've 'm 'll 'd at `at`, or `at`. */
static int64_t contraction(const struct reader *r, int64_t at, bool any_case) {
    int a, b;
    if (r->text[at] != '\'' || at + 1 >= r->len) return at;
    a = any_case ? lower(r, at + 1) : (unsigned char)r->text[at + 1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if (any_case && a == 0xc5 && at + 2 < r->len && (unsigned char)r->text[at + 2] == 0xbf)
        return at + 3; /* U+017F, the long s, is an s in any case */
    b = any_case ? lower(r, at + 2) : at + 2 < r->len ? (unsigned char)r->text[at + 2] : 0;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? at + 3 : at;
}

/* \s+(?!\S)|\s+: spaces up to, not including, the last one before a word. */
static int64_t spaces_end(const struct reader *r, int64_t at) {
    uint32_t c;
    int size;
    int64_t end = run_of(r, at, HL_SPACE), last = at;
    if (end == r->len) return end;
    for (int64_t i = at; i < end; i += size) last = i, look(r, i, &c, &size);
    return last > at ? last : end;
}

static int64_t gpt2_end(const struct reader *r, int64_t at) {
    uint32_t c;
    int size, skip = r->text[at] == ' ';
    int64_t end = contraction(r, at, false);
    if (end > at) return end;
    int class = look(r, at + skip, &c, &size) & ANY;
    if (size > 0 && class != HL_SPACE) return run_of(r, at + skip, class);
    return spaces_end(r, at);
}

/* \s*[\r\n]+: the end of the last line break in a run of spaces, or `at`. */
static int64_t breaks_end(const struct reader *r, int64_t at) {
    int64_t end = run_of(r, at, HL_SPACE);
    while (end > at && r->text[end - 1] != '\r' && r->text[end - 1] != '\n') end--;
    return end;
}

static int64_t llama3_end(const struct reader *r, int64_t at, int digits) {
    uint32_t c, next;
    int size, next_size, class, next_class;
    int64_t end = contraction(r, at, true);
    if (end > at) return end;
    class = look(r, at, &c, &size) & ANY;
    if (class == HL_LETTER) return run_of(r, at, HL_LETTER);
    next_class = look(r, at + size, &next, &next_size) & ANY;
    if (class != HL_NUMBER && c != '\r' && c != '\n' && next_size > 0 && next_class == HL_LETTER)
        return run_of(r, at + size, HL_LETTER);
    if (class == HL_NUMBER) {
        for (end = at; digits > 0 && (look(r, end, &c, &size) & ANY) == HL_NUMBER; digits--) end += size;
        return end;
    }
    if (class == 0 || (c == ' ' && next_size > 0 && next_class == 0)) {
        end = run_of(r, class == 0 ? at : at + 1, 0);
        while (end < r->len && (r->text[end] == '\r' || r->text[end] == '\n')) end++;
        return end;
    }
    end = breaks_end(r, at);
    return end > at ? end : spaces_end(r, at);
}

/* Metaspace: a word begins at every space, visible or not. */
static int64_t meta_end(const char *text, int64_t len, int64_t at) {
    for (at++; at < len && text[at] != ' '; at++)
        if (len - at >= 3 && memcmp(text + at, HL_META_TEXT, 3) == 0) break;
    return at;
}

int64_t hl_word_end(enum hl_words words, const char *text, int64_t len, int64_t at) {
    struct reader r = {text, len};
    switch (words) {
    case HL_WORDS_JOINED: break;
    case HL_WORDS_SPACES: return meta_end(text, len, at);
    case HL_WORDS_GPT2: return gpt2_end(&r, at);
    case HL_WORDS_LLAMA3: return llama3_end(&r, at, 3);
    case HL_WORDS_QWEN2: return llama3_end(&r, at, 1);
    }
    return len;
}
