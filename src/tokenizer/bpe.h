/* bpe.h -- byte pair encoding of one word: repeatedly merge the adjacent pair of best rank, leftmost first among
 * equals. This is the rule of SentencePiece and Hugging Face tokenizers.
 *
 * A word starts as symbols: its bytes (byte level) or its characters. Symbols below `size` are tokens; those above are
 * characters that are not tokens themselves but occur in one, so that they can be merged; -1 is any other character,
 * which is never merged.
 *
 * Where a word may be split. Every merged symbol is the text of a token produced by some merge. If no such token
 * contains the characters a and b adjacent, then no symbol ever spans the boundary a|b of a text: the two sides do not
 * interact, and since merges are applied by (rank, position), each side undergoes the same merges in the same order as
 * it would alone. So a text may be split there. `joined` decides by the two bytes at the boundary (a continuation byte
 * on its right: no boundary); `bigrams` decides exactly, by the two characters. Invalid UTF-8 is split on both sides of
 * each byte. */
#ifndef HL_BPE_H
#define HL_BPE_H
#include "core/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* uint64 -> uint64, open addressing; keys must not be UINT64_MAX. Zeroed: empty. */
struct hl_table {
    struct hl_slot {
        uint64_t key, value;
    } * slot;
    uint64_t mask;
    int64_t n;
};
hola_status hl_table_put(struct hl_table *t, uint64_t key, uint64_t value); /* overwrites */
void hl_table_free(struct hl_table *t);
static inline uint64_t hl_mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}
static inline const struct hl_slot *hl_table_get(const struct hl_table *t, uint64_t key) {
    if (!t->slot) return NULL;
    for (uint64_t i = hl_mix(key) & t->mask;; i = (i + 1) & t->mask) {
        if (t->slot[i].key == key) return &t->slot[i];
        if (t->slot[i].key == UINT64_MAX) return NULL;
    }
}

enum hl_words {                  /* how a text is split into words */
                HL_WORDS_JOINED, /* no pattern: wherever a split is safe */
                HL_WORDS_SPACES, /* before every space (Metaspace) */
                HL_WORDS_PATTERN /* by patterns: hl_bpe.cuts */
};

struct hl_token_piece {
    const char *text; /* in hl_bpe.store; for byte level: the bytes themselves */
    int32_t len;
    uint8_t type;
};

struct hl_bpe {
    int64_t size; /* tokens */
    struct hl_token_piece *piece;
    char *store;
    int32_t *by_text; /* open addressing: token of a text, -1: empty */
    uint64_t by_text_mask;

    int64_t symbols;         /* size + characters that are no tokens */
    struct hl_table pairs;   /* left << 32 | right -> rank << 32 | merged */
    struct hl_table chars;   /* character -> symbol; below 128: ascii[] */
    struct hl_table bigrams; /* characters adjacent in a merged token */
    uint64_t joined[256][4]; /* bit b of joined[a]: bytes that may be adjacent in one */
    int32_t ascii[256];      /* symbol of a byte (byte level: all; else those below 128), -1: none */
    int32_t byte[256];       /* byte fallback token of a byte, -1: none */
    int32_t unknown;         /* -1: unknown symbols are dropped */
    enum hl_words words;
    struct hl_cuts *cuts; /* pretoken.h */
    bool byte_level;      /* symbols are bytes */
    bool space_is_meta;   /* ' ' in a text is U+2581 in the tokens */
    bool fuse_unknown;    /* a run of unknown symbols in a word is one token */
    bool whole_words;     /* a word that is a token is that token (ignore_merges) */
    bool uncut;           /* words must not be split, because one of the two options above needs them whole */
};

enum { HL_META = 0x2581 }; /* the visible space */
#define HL_META_TEXT "\xe2\x96\x81"

/* Building one: pieces first, then hl_bpe_index, then merges, then hl_bpe_finish. */
hola_status hl_bpe_index(struct hl_bpe *b, bool (*counts)(const struct hl_token_piece *), bool unique);
int32_t hl_bpe_find(const struct hl_bpe *b, const char *text, int64_t len); /* -1: none */
#define HL_HASH_FACTOR 0x9e3779b97f4a7c15u
uint64_t hl_text_hash(const char *text, int64_t len);
int32_t hl_bpe_find_hashed(const struct hl_bpe *b, const char *text, int64_t len, uint64_t hash);
hola_status hl_bpe_char(struct hl_bpe *b, uint32_t c, int32_t *symbol); /* creates one if there is none */
hola_status hl_bpe_merge(struct hl_bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank);
hola_status hl_bpe_finish(struct hl_bpe *b);
void hl_bpe_free(struct hl_bpe *b);

/* Decodes the character at text[0..len), len > 0, into *c; returns its length, or 0 if not UTF-8. */
static inline int hl_utf8(const char *text, int64_t len, uint32_t *c) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return *c = s[0], 1;
    *c = 0xfffd;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len < 2 || (s[1] & 0xc0) != 0x80) return 0;
    *c = (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    if (s[0] < 0xe0) return 2;
    if (len < 3 || (s[2] & 0xc0) != 0x80) return 0;
    *c = (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    if (s[0] < 0xf0) return *c >= 0x800 && (*c < 0xd800 || *c > 0xdfff) ? 3 : 0;
    if (len < 4 || (s[3] & 0xc0) != 0x80) return 0;
    *c = (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
    return *c >= 0x10000 && *c <= 0x10ffff ? 4 : 0;
}
bool hl_is_utf8(const char *text, int64_t len);
/* The byte that "<0xE2>" names; -1: not of this form. */
int hl_byte_piece(const char *text, int64_t len);

/* Whether a text may always be split before text[i], 0 < i < len (see above; patterns: pretoken.h). */
bool hl_bpe_may_cut(const struct hl_bpe *b, const char *text, int64_t len, int64_t i);

/* Memory of one thread: a cache of words and merge buffers. Fixed size. */
struct hl_bpe_work;
hola_status hl_bpe_work_new(struct hl_bpe_work **out);
void hl_bpe_work_free(struct hl_bpe_work *w);
struct hl_ids;
/* Appends the ids of text[0..len), split into words. */
hola_status hl_bpe_encode(const struct hl_bpe *b, struct hl_bpe_work *w, const char *text, int64_t len,
                          struct hl_ids *out);

#endif
