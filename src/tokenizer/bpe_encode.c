/* bpe_encode.c -- words to ids: a cache of short words, a scan for short ones, a heap for long ones.
 *
 * Cost: a cached word takes one hash and one cache line. Otherwise n symbols take O(n^2) steps up to SHORT bytes and
 * O(n log n) beyond, so that no input (a megabyte of one letter) is slow. */
#include "tokenizer/pretoken.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>

enum { KEY = 28, LINE_IDS = 8, LINE_BITS = 17, SHORT = 64, BATCH = 16 };

/* One cache line: the word in 28 bytes, zero-padded; then, in word[3], its length and number of ids; its ids. */
struct line {
    uint64_t word[4];
    int32_t ids[LINE_IDS];
};

struct hl_bpe_work {
    void *memory;
    struct line *line;
    /* long words: a linked list of symbols, the pair that each starts, a heap of rank << 32 | position */
    int32_t *symbol, *offset, *prev, *next;
    uint64_t *pair, *heap;
    int64_t room, heap_n, heap_room;
};

hola_status hl_bpe_work_new(struct hl_bpe_work **out) {
    size_t bytes = sizeof(struct line) << LINE_BITS;
    struct hl_bpe_work *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) w->memory = calloc(1, bytes + 64);
    if (!w || !w->memory) {
        free(w);
        return hl_fail(HOLA_ENOMEM, "tokenizer: %zu bytes for a cache of words", bytes);
    }
    w->line = (struct line *)(((uintptr_t)w->memory + 63) & ~(uintptr_t)63);
    *out = w;
    return HOLA_OK;
}

void hl_bpe_work_free(struct hl_bpe_work *w) {
    if (!w) return;
    free(w->memory), free(w->symbol), free(w->offset), free(w->prev), free(w->next);
    free(w->pair), free(w->heap), free(w);
}

/* ---- symbols ---- */

#define NO_PAIR UINT64_MAX

static inline uint64_t pair_of(const struct hl_bpe *b, int32_t left, int32_t right) {
    const struct hl_slot *s;
    if ((left | right) < 0) return NO_PAIR;
    s = hl_table_get(&b->pairs, (uint64_t)left << 32 | (uint32_t)right);
    return s ? s->value : NO_PAIR;
}

/* The symbols of a word and their offsets; offset has room for one more. Returns the number of symbols. */
static int64_t symbols_of(const struct hl_bpe *b, const char *word, int64_t len, int32_t *symbol, int32_t *offset) {
    int64_t n = 0;
    for (int64_t i = 0; i < len; n++) {
        unsigned char first = (unsigned char)word[i];
        offset[n] = (int32_t)i;
        if (first < 0x80 || b->byte_level) {
            symbol[n] = b->ascii[first];
            i++;
            continue;
        }
        uint32_t c;
        int size = hl_utf8(word + i, len - i, &c);
        const struct hl_slot *s = size ? hl_table_get(&b->chars, c) : NULL;
        symbol[n] = s ? (int32_t)s->value : -1;
        i += size ? size : 1;
    }
    offset[n] = (int32_t)len;
    return n;
}

/* A symbol that is not a token: its bytes' tokens if all have one, else the unknown token. */
static void put_unknown(const struct hl_bpe *b, const char *text, int64_t len, bool fused, struct hl_ids *out) {
    bool bytes = true;
    if (b->space_is_meta && len == 1 && text[0] == ' ') text = HL_META_TEXT, len = 3;
    for (int64_t i = 0; i < len; i++) bytes = bytes && b->byte[(unsigned char)text[i]] >= 0;
    if (bytes)
        for (int64_t i = 0; i < len; i++) out->data[out->n++] = b->byte[(unsigned char)text[i]];
    else if (b->unknown >= 0 && !fused) out->data[out->n++] = b->unknown;
}

/* Appends the tokens of symbols next[0], next[next[0]], ...; next NULL: all n, one after the other. */
static void put_symbols(const struct hl_bpe *b, const char *word, const int32_t *symbol, const int32_t *offset,
                        const int32_t *next, int64_t n, struct hl_ids *out) {
    bool fuse = false;
    for (int64_t i = 0, j; i < n; i = j) {
        j = next ? next[i] : i + 1;
        if (symbol[i] >= 0 && symbol[i] < b->size) {
            out->data[out->n++] = symbol[i];
            fuse = false;
        } else {
            int64_t before = out->n;
            put_unknown(b, word + offset[i], offset[j] - offset[i], fuse, out);
            if (out->n > before) fuse = b->fuse_unknown && out->data[before] == b->unknown;
        }
    }
}

/* ---- short words ---- */

static void merge_short(const struct hl_bpe *b, const char *word, int64_t len, struct hl_ids *out) {
    int32_t symbol[SHORT], offset[SHORT + 1];
    uint64_t pair[SHORT];
    int64_t n = symbols_of(b, word, len, symbol, offset);
    for (int64_t i = 0; i + 1 < n; i++) pair[i] = pair_of(b, symbol[i], symbol[i + 1]);
    for (;;) {
        uint64_t best = NO_PAIR >> 32;
        int64_t at = -1;
        for (int64_t i = 0; i + 1 < n; i++)
            if (pair[i] >> 32 < best) best = pair[i] >> 32, at = i;
        if (at < 0) break;
        symbol[at] = (int32_t)(uint32_t)pair[at];
        n--;
        for (int64_t i = at + 1; i < n; i++) {
            symbol[i] = symbol[i + 1];
            offset[i] = offset[i + 1];
            pair[i - 1] = pair[i];
        }
        offset[n] = (int32_t)len;
        if (at + 1 < n) pair[at] = pair_of(b, symbol[at], symbol[at + 1]);
        if (at > 0) pair[at - 1] = pair_of(b, symbol[at - 1], symbol[at]);
    }
    put_symbols(b, word, symbol, offset, NULL, n, out);
}

/* ---- long words ---- */

static hola_status work_room(struct hl_bpe_work *w, int64_t n) {
    if (n <= w->room) return HOLA_OK;
    free(w->symbol), free(w->offset), free(w->prev), free(w->next), free(w->pair);
    w->room = 0;
    w->symbol = malloc((size_t)n * sizeof *w->symbol);
    w->offset = malloc((size_t)n * sizeof *w->offset);
    w->prev = malloc((size_t)n * sizeof *w->prev);
    w->next = malloc((size_t)n * sizeof *w->next);
    w->pair = malloc((size_t)n * sizeof *w->pair);
    if (!w->symbol || !w->offset || !w->prev || !w->next || !w->pair)
        return hl_fail(HOLA_ENOMEM, "tokenizer: a word of %lld bytes", (long long)n);
    w->room = n;
    return HOLA_OK;
}

static hola_status heap_push(struct hl_bpe_work *w, uint64_t key) {
    int64_t i = w->heap_n;
    if (i == w->heap_room) {
        int64_t room = w->heap_room ? 2 * w->heap_room : 1024;
        uint64_t *heap = realloc(w->heap, (size_t)room * sizeof *heap);
        if (!heap) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld merges in a word", (long long)room);
        w->heap = heap, w->heap_room = room;
    }
    for (w->heap_n++; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
    return HOLA_OK;
}

static uint64_t heap_pop(struct hl_bpe_work *w) {
    uint64_t top = w->heap[0], last = w->heap[--w->heap_n];
    int64_t i = 0, n = w->heap_n;
    for (int64_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Looks up the pair that starts at symbol i, and pushes it on the heap. */
static hola_status renew(const struct hl_bpe *b, struct hl_bpe_work *w, int64_t i, int64_t n) {
    int32_t right = w->next[i];
    w->pair[i] = right < n ? pair_of(b, w->symbol[i], w->symbol[right]) : NO_PAIR;
    return w->pair[i] == NO_PAIR ? HOLA_OK : heap_push(w, (w->pair[i] >> 32 << 32) | (uint64_t)i);
}

static hola_status merge_long(const struct hl_bpe *b, struct hl_bpe_work *w, const char *word, int64_t len,
                              struct hl_ids *out) {
    int64_t n;
    hola_status s =
        len < INT32_MAX ? work_room(w, len + 1) : hl_fail(HOLA_ENOTSUP, "tokenizer: a word of 2 GiB or more");
    if (s != HOLA_OK) return s;
    n = symbols_of(b, word, len, w->symbol, w->offset);
    w->heap_n = 0;
    for (int64_t i = 0; i < n; i++) w->prev[i] = (int32_t)i - 1, w->next[i] = (int32_t)i + 1;
    for (int64_t i = 0; i < n; i++)
        if ((s = renew(b, w, i, n)) != HOLA_OK) return s;
    while (w->heap_n > 0) {
        uint64_t key = heap_pop(w);
        int32_t i = (int32_t)(uint32_t)key, gone, after;
        if (w->pair[i] == NO_PAIR || w->pair[i] >> 32 != key >> 32) continue; /* merged in the meantime */
        gone = w->next[i], after = w->next[gone];
        w->symbol[i] = (int32_t)(uint32_t)w->pair[i];
        w->pair[gone] = NO_PAIR;
        w->next[i] = after;
        if (after < n) w->prev[after] = i;
        if ((s = renew(b, w, i, n)) != HOLA_OK) return s;
        if (w->prev[i] >= 0 && (s = renew(b, w, w->prev[i], n)) != HOLA_OK) return s;
    }
    put_symbols(b, word, w->symbol, w->offset, w->next, n, out);
    return HOLA_OK;
}

/* ---- words ---- */

static hola_status merge(const struct hl_bpe *b, struct hl_bpe_work *w, const char *word, int64_t len,
                         struct hl_ids *out) {
    int32_t whole = b->whole_words ? hl_bpe_find(b, word, len) : -1;
    if (whole >= 0) return out->data[out->n++] = whole, HOLA_OK;
    if (len > SHORT) return merge_long(b, w, word, len, out);
    merge_short(b, word, len, out);
    return HOLA_OK;
}

/* The cache line of a word of up to KEY bytes, and its key. */
static struct line *line_of(struct hl_bpe_work *w, const char *word, int64_t len, int64_t readable, uint64_t key[4]) {
    static const uint8_t mask[64] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                                     255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t keep[4], h;
    uint32_t tail = 0, keep_tail;
    if (readable >= KEY) {
        memcpy(keep, mask + 32 - len, 24), memcpy(&keep_tail, mask + 32 - len + 24, 4);
        memcpy(key, word, 24), memcpy(&tail, word + 24, 4);
        for (int i = 0; i < 3; i++) key[i] &= keep[i];
        tail &= keep_tail;
    } else {
        char copy[KEY] = {0};
        memcpy(copy, word, (size_t)len);
        memcpy(key, copy, 24), memcpy(&tail, copy + 24, 4);
    }
    key[3] = tail | (uint64_t)len << 32;
    h = key[0] * 0x9e3779b97f4a7c15u + key[1] * 0xc2b2ae3d27d4eb4fu + key[2] * 0x165667b19e3779f9u +
        key[3] * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return &w->line[h >> (64 - LINE_BITS)];
}

/* A short word waiting for its cache line. */
struct waiting {
    const char *word;
    struct line *line;
    uint64_t key[4]; /* the length is in key[3] */
};

static hola_status room(struct hl_ids *out, int64_t len) {
    int64_t most = len < LINE_IDS ? 3 * LINE_IDS : 3 * len; /* a space may be three byte tokens */
    return out->cap - out->n < most ? hl_ids_room(out, most) : HOLA_OK;
}

static hola_status encode_waiting(const struct hl_bpe *b, struct hl_bpe_work *w, struct waiting *x,
                                  struct hl_ids *out) {
    struct line *line = x->line;
    int64_t len = (int64_t)(x->key[3] >> 32), before = out->n;
    hola_status s = room(out, len);
    if (s != HOLA_OK) return s;
    if (line->word[0] == x->key[0] && line->word[1] == x->key[1] && line->word[2] == x->key[2] &&
        (line->word[3] & 0xffffffffffu) == x->key[3]) {
        memcpy(out->data + out->n, line->ids, sizeof line->ids);
        out->n += (int64_t)(line->word[3] >> 40);
        return HOLA_OK;
    }
    s = merge(b, w, x->word, len, out);
    if (s == HOLA_OK && out->n - before <= LINE_IDS) {
        x->key[3] |= (uint64_t)(out->n - before) << 40;
        memcpy(line->word, x->key, sizeof line->word);
        memcpy(line->ids, out->data + before, sizeof line->ids);
    }
    return s;
}

/* Encodes a word of any length immediately, in the parts it may be split into. */
static hola_status encode_long(const struct hl_bpe *b, struct hl_bpe_work *w, const char *word, int64_t len,
                               struct hl_ids *out) {
    hola_status s = HOLA_OK;
    for (int64_t at = 0, end; at < len && s == HOLA_OK; at = end) {
        struct waiting x = {.word = word + at};
        for (end = b->uncut ? len : at + 1; end < len && !hl_bpe_may_cut(b, word, len, end);) end++;
        if (end - at <= KEY) {
            x.line = line_of(w, word + at, end - at, len - at, x.key);
            s = encode_waiting(b, w, &x, out);
        } else {
            s = room(out, end - at);
            if (s == HOLA_OK) s = merge(b, w, word + at, end - at, out);
        }
    }
    return s;
}

/* The end of the bytes from text[at] on that may belong together. */
static inline int64_t joined_end(const struct hl_bpe *b, const char *text, int64_t len, int64_t at) {
    unsigned char left = (unsigned char)text[at], right;
    for (at++; at < len; at++, left = right) {
        right = (unsigned char)text[at];
        if (!(b->joined[left][right >> 6] >> (right & 63) & 1)) break;
    }
    return at;
}

/* Metaspace: a word starts at every space, visible or not. */
static int64_t spaced_end(const char *text, int64_t len, int64_t at) {
    for (at++; at < len && text[at] != ' '; at++)
        if (len - at >= 3 && memcmp(text + at, HL_META_TEXT, 3) == 0) break;
    return at;
}

/* The bounds of the next word at or after *at; the text's end if there is none. */
static inline int64_t next_word(const struct hl_bpe *b, struct hl_cutter *cutter, const char *text, int64_t len,
                                int64_t *at) {
    struct hl_piece piece;
    int64_t seen;
    if (b->words == HL_WORDS_JOINED) return b->uncut ? len : joined_end(b, text, len, *at);
    if (b->words == HL_WORDS_SPACES) return spaced_end(text, len, *at);
    if (b->cuts->plain) return hl_pattern_match(b->cuts->level[0].pattern, text, len, *at, &seen);
    if (!hl_cutter_next(cutter, &piece)) return *at = len;
    *at = piece.begin;
    return piece.end;
}

hola_status hl_bpe_encode(const struct hl_bpe *b, struct hl_bpe_work *w, const char *text, int64_t len,
                          struct hl_ids *out) {
    struct waiting batch[BATCH];
    struct hl_cutter cutter;
    hola_status s = HOLA_OK;
    bool cuts = b->words == HL_WORDS_PATTERN && !b->cuts->plain;
    if (cuts) hl_cutter_begin(&cutter, b->cuts, text, len);
    for (int64_t at = 0, end = 0; at < len && s == HOLA_OK;) {
        int n = 0;
        for (; n < BATCH && at < len; at = end, n++) {
            end = next_word(b, &cutter, text, len, &at);
            if (end - at > KEY || at == len) break;
            batch[n].word = text + at;
            batch[n].line = line_of(w, text + at, end - at, len - at, batch[n].key);
            __builtin_prefetch(batch[n].line);
        }
        bool is_long = n < BATCH && at < len;
        for (int i = 0; i < n && s == HOLA_OK; i++) s = encode_waiting(b, w, &batch[i], out);
        if (!is_long || s != HOLA_OK) continue;
        s = encode_long(b, w, text + at, end - at, out);
        at = end;
    }
    if (cuts) hl_cutter_end(&cutter);
    return s;
}
