/* pattern.h -- the patterns that split texts into words, as automata.
 *
 * A pattern is parsed (pattern_parse.c) into a Thompson program of threads; the program is simulated in advance on
 * every character class (pattern.c), which gives a table: state and class of the next character -> next state, and
 * whether a match ends before that character. A state is the list of the program's threads in order of preference, cut
 * off after one that has matched; so it finds the same matches as a backtracking matcher, in one pass without
 * backtracking.
 *
 * It supports what the word patterns of language models use: a|b, (...), (?:...), (?i:...), [...] with ranges, . $ \r
 * \n \t \s \d \w and their opposites, \p{L} and all other general categories, the quantifiers ? * + {m,n} greedy or
 * lazy, possessive on one character, and (?=x) (?!x) with one character. The semantics are those of Oniguruma with Ruby
 * syntax, as used by Hugging Face tokenizers: $ is the end of a line, {1,3}+ is (?:{1,3})+. Everything else is refused,
 * as are patterns that match the empty text. */
#ifndef HL_PATTERN_H
#define HL_PATTERN_H
#include "core/status.h"
#include "tokenizer/bpe.h"
#include <stdbool.h>
#include <stdint.h>

enum hl_pattern_kind {
    HL_PATTERN_REGEX,
    HL_PATTERN_STRING,      /* the text itself */
    HL_PATTERN_PUNCTUATION, /* one character of the pre-tokenizer Punctuation; without a text */
    HL_PATTERN_WORDS        /* \w+|[^\w\s]+ of the pre-tokenizer Whitespace; without a text */
};

struct hl_pattern {
    int64_t states;
    int classes;              /* of characters; the last is the end of the text */
    uint32_t *next;           /* [state][class]: the next state << 1 | whether a match ends before the character */
    uint32_t (*on_byte)[256]; /* [state][byte]: the same, for bytes that are a character; of others HL_PATTERN_BEYOND */
    uint8_t of[256];          /* class of a byte: those below 128; of bytes that stand for characters: all */
    bool bytes;               /* the text is bytes, each standing for a character as in byte-level BPE */
    uint8_t invalid;          /* class of a byte that is not UTF-8: in no class of Unicode */
    uint8_t (*block)[256];
    uint16_t page[0x1100]; /* a character's class: block[page[c >> 8]][c & 255] */
};
enum { HL_PATTERN_DEAD, HL_PATTERN_START };
#define HL_PATTERN_BEYOND UINT32_MAX
/* The next state for a class, and whether a match ends before it. */
static inline uint32_t hl_pattern_next(const struct hl_pattern *p, uint32_t state, int class) {
    return p->next[state * (uint32_t)p->classes + (uint32_t) class] >> 1;
}
static inline bool hl_pattern_ends(const struct hl_pattern *p, uint32_t state, int class) {
    return p->next[state * (uint32_t)p->classes + (uint32_t) class] & 1;
}

/* `where` begins the message of a failure. *out is yours: hl_pattern_free it. */
hola_status hl_pattern_new(struct hl_pattern **out, enum hl_pattern_kind kind, const char *text, int64_t len,
                           bool bytes, const char *where);
void hl_pattern_free(struct hl_pattern *p);

/* The class of the character at text[at], at < len, and its length. */
static inline int hl_pattern_class(const struct hl_pattern *p, const char *text, int64_t len, int64_t at, int *size) {
    unsigned char first = (unsigned char)text[at];
    uint32_t c;
    *size = 1;
    if (first < 0x80 || p->bytes) return p->of[first];
    int n = hl_utf8(text + at, len - at, &c);
    if (n == 0) return p->invalid;
    *size = n;
    return p->block[p->page[c >> 8]][c & 255];
}
/* The end of the match that starts at text[at], at < len; -1: none. *seen: how far the text was read. */
static inline int64_t hl_pattern_match(const struct hl_pattern *p, const char *text, int64_t len, int64_t at,
                                       int64_t *seen) {
    uint32_t state = HL_PATTERN_START, v = p->on_byte[state][(unsigned char)text[at]];
    int64_t last = -1;
    for (;;) {
        int size = 1;
        if (v == HL_PATTERN_BEYOND)
            v = p->next[state * (uint32_t)p->classes + (uint32_t)hl_pattern_class(p, text, len, at, &size)];
        last = v & 1 ? at : last;
        state = v >> 1;
        if (state == HL_PATTERN_DEAD) return *seen = at, last;
        if ((at += size) >= len) break;
        /* characters that leave it in its state, where a match may end before each: most of a word */
        const uint32_t *on_byte = p->on_byte[state], stay = state << 1 | 1;
        if ((v = on_byte[(unsigned char)text[at]]) != stay) continue;
        while (++at < len && (v = on_byte[(unsigned char)text[at]]) == stay) {}
        last = at - 1;
        if (at == len) break;
    }
    *seen = at;
    return hl_pattern_ends(p, state, p->classes - 1) ? at : last;
}
/* Whether a match always starts at a character of this class. */
bool hl_pattern_always(const struct hl_pattern *p, int class);

#endif
