/* bpe.c -- building the model of bpe.h: tokens by text, merges, and where texts may be cut. */
#include "tokenizer/bpe.h"
#include "tokenizer/pretoken.h"
#include <stdlib.h>

/* ---- tables ---- */

static void table_insert(struct hl_table *t, uint64_t key, uint64_t value) {
    uint64_t i = hl_mix(key) & t->mask;
    while (t->slot[i].key != UINT64_MAX && t->slot[i].key != key) i = (i + 1) & t->mask;
    if (t->slot[i].key != key) t->n++;
    t->slot[i] = (struct hl_slot){key, value};
}

hola_status hl_table_put(struct hl_table *t, uint64_t key, uint64_t value) {
    uint64_t room = t->slot ? t->mask + 1 : 0;
    if ((uint64_t)t->n * 2 >= room) { /* at most half full */
        struct hl_table old = *t;
        uint64_t more = room ? room * 2 : 64;
        struct hl_slot *slot = malloc(more * sizeof *slot);
        if (!slot) return hl_fail(HOLA_ENOMEM, "tokenizer: a table of %llu", (unsigned long long)more);
        for (uint64_t i = 0; i < more; i++) slot[i].key = UINT64_MAX;
        *t = (struct hl_table){slot, more - 1, 0};
        for (uint64_t i = 0; i < room; i++)
            if (old.slot[i].key != UINT64_MAX) table_insert(t, old.slot[i].key, old.slot[i].value);
        free(old.slot);
    }
    table_insert(t, key, value);
    return HOLA_OK;
}

void hl_table_free(struct hl_table *t) {
    free(t->slot);
    *t = (struct hl_table){0};
}

/* ---- tokens by text ---- */

bool hl_is_utf8(const char *text, int64_t len) {
    uint32_t c;
    for (int64_t i = 0; i < len;) {
        int n = hl_utf8(text + i, len - i, &c);
        if (!n) return false;
        i += n;
    }
    return true;
}

int hl_byte_piece(const char *text, int64_t len) {
    static const char digits[] = "0123456789ABCDEF";
    const char *hi, *lo;
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    hi = memchr(digits, text[3], 16), lo = memchr(digits, text[4], 16);
    return hi && lo ? (int)(16 * (hi - digits) + (lo - digits)) : -1;
}

/* A polynomial, so that the hashes of all prefixes and suffixes of a text cost one pass over it. */
uint64_t hl_text_hash(const char *text, int64_t len) {
    uint64_t h = 0;
    for (int64_t i = 0; i < len; i++) h = h * HL_HASH_FACTOR + (unsigned char)text[i] + 1;
    return h;
}

int32_t hl_bpe_find_hashed(const struct hl_bpe *b, const char *text, int64_t len, uint64_t hash) {
    if (!b->by_text) return -1;
    for (uint64_t i = hl_mix(hash) & b->by_text_mask;; i = (i + 1) & b->by_text_mask) {
        int32_t id = b->by_text[i];
        if (id < 0) return -1;
        if (b->piece[id].len == len && memcmp(b->piece[id].text, text, (size_t)len) == 0) return id;
    }
}

int32_t hl_bpe_find(const struct hl_bpe *b, const char *text, int64_t len) {
    return hl_bpe_find_hashed(b, text, len, hl_text_hash(text, len));
}

hola_status hl_bpe_index(struct hl_bpe *b, bool (*counts)(const struct hl_token_piece *), bool unique) {
    uint64_t room = 64;
    while (room < 2 * (uint64_t)b->size) room *= 2;
    b->by_text = malloc(room * sizeof *b->by_text);
    if (!b->by_text) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld tokens", (long long)b->size);
    b->by_text_mask = room - 1;
    memset(b->by_text, 0xff, room * sizeof *b->by_text);
    memset(b->ascii, 0xff, sizeof b->ascii);
    b->symbols = b->size;
    for (int64_t id = 0; id < b->size; id++) {
        const struct hl_token_piece *p = &b->piece[id];
        uint64_t i = hl_mix(hl_text_hash(p->text, p->len)) & b->by_text_mask;
        uint32_t c;
        if (p->len == 0 || !counts(p)) continue;
        if (unique && hl_bpe_find(b, p->text, p->len) >= 0)
            return hl_fail(HOLA_EFORMAT, "piece %lld: \"%.*s\" occurs twice", (long long)id,
                           (int)(p->len < 64 ? p->len : 64), p->text);
        while (b->by_text[i] >= 0) i = (i + 1) & b->by_text_mask;
        b->by_text[i] = (int32_t)id;
        if (b->byte_level) {
            if (p->len == 1) b->ascii[(unsigned char)p->text[0]] = (int32_t)id;
        } else if (hl_utf8(p->text, p->len, &c) == p->len) {
            hola_status s = hl_table_put(&b->chars, c, (uint64_t)id);
            if (s != HOLA_OK) return s;
        }
    }
    return HOLA_OK;
}

hola_status hl_bpe_char(struct hl_bpe *b, uint32_t c, int32_t *symbol) {
    const struct hl_slot *known = hl_table_get(&b->chars, c);
    *symbol = known ? (int32_t)known->value : (int32_t)b->symbols;
    if (known) return HOLA_OK;
    return hl_table_put(&b->chars, c, (uint64_t)b->symbols++);
}

/* ---- merges, and the characters they join ---- */

hola_status hl_bpe_merge(struct hl_bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank) {
    return hl_table_put(&b->pairs, (uint64_t)left << 32 | (uint32_t)right, (uint64_t)rank << 32 | (uint32_t)merged);
}

static void join(struct hl_bpe *b, unsigned char left, unsigned char right) {
    b->joined[left][right >> 6] |= (uint64_t)1 << (right & 63);
}

/* The boundary between characters a (its last byte is `last`) and c (its first is `first`) of a token. */
static hola_status join_chars(struct hl_bpe *b, uint32_t a, char last, uint32_t c, char first) {
    bool space_a = b->space_is_meta && a == HL_META, space_c = b->space_is_meta && c == HL_META;
    join(b, (unsigned char)last, (unsigned char)first);
    if (space_a) join(b, ' ', (unsigned char)first);
    if (space_c) join(b, (unsigned char)last, ' ');
    if (space_a && space_c) join(b, ' ', ' ');
    return hl_table_put(&b->bigrams, (uint64_t)a << 32 | c, 0);
}

static hola_status join_piece(struct hl_bpe *b, const struct hl_token_piece *p) {
    uint32_t before = 0, c;
    hola_status s = HOLA_OK;
    for (int64_t i = 0, n; i < p->len && s == HOLA_OK; i += n, before = c) {
        n = b->byte_level ? 1 : hl_utf8(p->text + i, p->len - i, &c);
        if (n == 0) return hl_fail(HOLA_EFORMAT, "a token is not UTF-8"); /* already checked by the readers */
        if (b->byte_level) c = 0;
        if (i == 0) continue;
        if (b->byte_level) join(b, (unsigned char)p->text[i - 1], (unsigned char)p->text[i]);
        else s = join_chars(b, before, p->text[i - 1], c, p->text[i]);
    }
    return s;
}

hola_status hl_bpe_finish(struct hl_bpe *b) {
    uint64_t room = b->pairs.slot ? b->pairs.mask + 1 : 0;
    hola_status s = HOLA_OK;
    bool *seen = calloc((size_t)b->size + 1, 1);
    if (!seen) return hl_fail(HOLA_ENOMEM, "tokenizer: %lld tokens", (long long)b->size);
    for (uint64_t i = 0; i < room && s == HOLA_OK; i++) {
        uint32_t id = (uint32_t)b->pairs.slot[i].value;
        if (b->pairs.slot[i].key == UINT64_MAX || seen[id]) continue;
        seen[id] = true;
        s = join_piece(b, &b->piece[id]);
    }
    free(seen);
    if (b->byte_level) return s;
    for (uint32_t c = 0; c < 128; c++) {
        const struct hl_slot *known = hl_table_get(&b->chars, b->space_is_meta && c == ' ' ? HL_META : c);
        b->ascii[c] = known ? (int32_t)known->value : -1;
    }
    for (int a = 0; a < 256; a++) /* a continuation byte never starts a character */
        for (int c = 0x80; c < 0xc0; c++) join(b, (unsigned char)a, (unsigned char)c);
    return s;
}

void hl_bpe_free(struct hl_bpe *b) {
    free(b->piece), free(b->store), free(b->by_text);
    hl_table_free(&b->pairs), hl_table_free(&b->chars), hl_table_free(&b->bigrams);
    hl_cuts_free(b->cuts);
}

/* ---- cutting ---- */

/* The character that ends right before text[i]; false: a byte that is not UTF-8. */
static bool char_before(const char *text, int64_t i, uint32_t *c) {
    int64_t begin = i - 1;
    while (begin > 0 && i - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
    return hl_utf8(text + begin, i - begin, c) == i - begin;
}

bool hl_bpe_may_cut(const struct hl_bpe *b, const char *text, int64_t len, int64_t i) {
    unsigned char left = (unsigned char)text[i - 1], right = (unsigned char)text[i];
    uint32_t a, c;
    if (b->uncut) return false;
    if (!(b->joined[left][right >> 6] >> (right & 63) & 1)) return true;
    if (b->byte_level) return false;
    if ((right & 0xc0) == 0x80 || !char_before(text, i, &a) || !hl_utf8(text + i, len - i, &c)) {
        /* Between whole characters only: a continuation byte may belong to the character before it. */
        return (right & 0xc0) != 0x80;
    }
    if (b->space_is_meta && a == ' ') a = HL_META;
    if (b->space_is_meta && c == ' ') c = HL_META;
    return !hl_table_get(&b->bigrams, (uint64_t)a << 32 | c);
}
