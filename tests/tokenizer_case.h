/* tokenizer_case.h -- for tokenizer tests: SentencePiece models written byte by byte, random texts, and the simplest
 * encoder: try all pairs, merge the best, repeat. */
#ifndef HL_TOKENIZER_CASE_H
#define HL_TOKENIZER_CASE_H
#include "check.h"
#include "tokenizer/tokenizer.h"

/* ---- models ---- */

struct bytes {
    char data[1 << 16];
    int64_t n;
};
static void put(struct bytes *b, const void *data, int64_t n) {
    assert_true(b->n + n <= (int64_t)sizeof b->data);
    memcpy(b->data + b->n, data, (size_t)n);
    b->n += n;
}
static void put_byte(struct bytes *b, int x) { put(b, &(char){(char)x}, 1); }
static void put_head(struct bytes *b, int field, int64_t n) {
    put_byte(b, field << 3 | 2);
    for (; n > 127; n >>= 7) put_byte(b, (int)(n & 127) | 128);
    put_byte(b, (int)n);
}
static void put_string(struct bytes *b, int field, const char *text, int64_t n) {
    put_head(b, field, n);
    put(b, text, n);
}

enum { PIECES = 400 };
struct model {
    struct {
        char text[64];
        int len, type;
        float score;
    } piece[PIECES];
    int n;
    bool bytes, prefix, squeeze, escape;
    int model_type;
    const char *charsmap;
};
static void add_piece(struct model *m, const char *text, int len, float score, int type) {
    for (int i = 0; i < m->n; i++)
        if (m->piece[i].len == len && memcmp(m->piece[i].text, text, (size_t)len) == 0) return;
    memcpy(m->piece[m->n].text, text, (size_t)len);
    m->piece[m->n].len = len, m->piece[m->n].type = type, m->piece[m->n].score = score;
    m->n++;
}
static void write_model(const struct model *m, struct bytes *out) {
    static struct bytes part;
    out->n = 0;
    for (int i = 0; i < m->n; i++) {
        part.n = 0;
        put_string(&part, 1, m->piece[i].text, m->piece[i].len);
        put_byte(&part, 2 << 3 | 5), put(&part, &m->piece[i].score, 4);
        put_byte(&part, 3 << 3), put_byte(&part, m->piece[i].type);
        put_string(out, 1, part.data, part.n);
    }
    part.n = 0;
    put_byte(&part, 3 << 3), put_byte(&part, m->model_type);
    put_byte(&part, (35 << 3 & 127) | 128), put_byte(&part, 35 >> 4), put_byte(&part, m->bytes);
    put_string(out, 2, part.data, part.n);
    part.n = 0;
    put_string(&part, 2, m->charsmap, (int64_t)strlen(m->charsmap));
    put_byte(&part, 3 << 3), put_byte(&part, m->prefix);
    put_byte(&part, 4 << 3), put_byte(&part, m->squeeze);
    put_byte(&part, 5 << 3), put_byte(&part, m->escape);
    put_string(out, 3, part.data, part.n);
}

static int pick(uint64_t *seed, int n) { return (int)check_uniform(seed, 0, n); }
static const char *const letters[] = {HL_META_TEXT, "a", "b", "c", "\xc3\xa9", "\xe5\xa5\xbd", "\n"};

/* Few letters and few scores, so that pieces overlap and ranks tie. */
static struct model random_model(uint64_t seed, bool bytes, bool user) {
    struct model m = {.bytes = bytes, .prefix = true, .escape = true, .model_type = 2, .charsmap = ""};
    add_piece(&m, "<unk>", 5, 0, HL_PIECE_UNKNOWN);
    add_piece(&m, "<s>", 3, 0, HL_PIECE_CONTROL);
    add_piece(&m, "</s>", 4, 0, HL_PIECE_CONTROL);
    for (int i = 0; bytes && i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        add_piece(&m, name, 6, 0, HL_PIECE_BYTE);
    }
    for (int i = 0; i < 6; i++)
        if (i != 4)
            add_piece(&m, letters[i], (int)strlen(letters[i]), -100, HL_PIECE_NORMAL); /* e' is inside others only */
    for (int i = 0; i < 60; i++) {
        char text[64] = "";
        for (int k = 2 + pick(&seed, 3); k > 0; k--) strcat(text, letters[pick(&seed, 6)]);
        add_piece(&m, text, (int)strlen(text), (float)-pick(&seed, 12), HL_PIECE_NORMAL);
    }
    if (user)
        add_piece(&m, "[x]", 3, 0, HL_PIECE_USER), add_piece(&m,
                                                             "a\xe2\x96\x81"
                                                             "a",
                                                             5, 0, HL_PIECE_USER);
    return m;
}

static int random_text(uint64_t *seed, char *out) {
    static const char *const odd[] = {" ",    " ",    "  ",   "a",        "b",
                                      "c",    "x",    "[x]",  "a a",      "\xff",
                                      "\xe2", "\x96", "\x81", "\xe5\xa5", "\xf0\x9f\x98\x80",
                                      "<s>"};
    int n = 0;
    for (int k = pick(seed, 30); k > 0; k--) {
        bool is_odd = pick(seed, 3) == 0;
        const char *s = is_odd ? odd[pick(seed, 16)] : letters[pick(seed, 7)];
        memcpy(out + n, s, strlen(s));
        n += (int)strlen(s);
    }
    return n;
}

/* ---- the plain encoder ---- */

enum { MOST = 1024 };
struct plain { /* symbols: text, and whether nothing may touch it */
    char text[MOST][64];
    int len[MOST], n;
    bool frozen[MOST];
};
static int find_piece(const struct model *m, const char *text, int len) {
    for (int i = 0; i < m->n; i++)
        if (m->piece[i].len == len && memcmp(m->piece[i].text, text, (size_t)len) == 0)
            return m->piece[i].type == HL_PIECE_NORMAL || m->piece[i].type == HL_PIECE_USER ? i : -1;
    return -1;
}
static void plain_symbol(struct plain *p, const char *text, int len, bool frozen) {
    memcpy(p->text[p->n], text, (size_t)len);
    p->len[p->n] = len, p->frozen[p->n++] = frozen;
}
static void plain_symbols(const struct model *m, const char *text, int len, struct plain *p) {
    for (int i = 0, k; i < len; i += k) {
        uint32_t c;
        int user = -1;
        for (int u = 0; u < m->n; u++)
            if (m->piece[u].type == HL_PIECE_USER && m->piece[u].len <= len - i &&
                memcmp(m->piece[u].text, text + i, (size_t)m->piece[u].len) == 0 &&
                (user < 0 || m->piece[u].len > m->piece[user].len))
                user = u;
        k = user >= 0 ? m->piece[user].len : hl_utf8(text + i, len - i, &c);
        plain_symbol(p, text + i, k ? k : 1, user >= 0 || k == 0);
        if (k == 0) k = 1;
    }
}
/* Wrong on purpose where `wrong`: of equal pairs, the last. */
static int plain_encode(const struct model *m, const char *text, int len, bool wrong, int32_t *ids) {
    static struct plain p;
    static char spaced[4 * MOST];
    int n = 0, w = 0;
    p.n = 0;
    if (len > 0 && m->prefix) memcpy(spaced, HL_META_TEXT, 3), w = 3;
    for (int i = 0; i < len; i++) {
        if (text[i] == ' ') memcpy(spaced + w, HL_META_TEXT, 3), w += 3;
        else spaced[w++] = text[i];
    }
    plain_symbols(m, spaced, w, &p);
    for (;;) {
        int best = -1;
        float score = 0;
        for (int i = 0; i + 1 < p.n; i++) {
            char both[128];
            if (p.frozen[i] || p.frozen[i + 1] || p.len[i] + p.len[i + 1] > 60) continue;
            memcpy(both, p.text[i], (size_t)p.len[i]), memcpy(both + p.len[i], p.text[i + 1], (size_t)p.len[i + 1]);
            int id = find_piece(m, both, p.len[i] + p.len[i + 1]);
            if (id >= 0 && (best < 0 || m->piece[id].score > score || (wrong && m->piece[id].score == score)))
                best = i, score = m->piece[id].score;
        }
        if (best < 0) break;
        memcpy(p.text[best] + p.len[best], p.text[best + 1], (size_t)p.len[best + 1]);
        p.len[best] += p.len[best + 1];
        for (int i = best + 1; i + 1 < p.n; i++)
            memcpy(p.text[i], p.text[i + 1], 64), p.len[i] = p.len[i + 1], p.frozen[i] = p.frozen[i + 1];
        p.n--;
    }
    for (int i = 0; i < p.n; i++) {
        int id = find_piece(m, p.text[i], p.len[i]);
        if (id >= 0) ids[n++] = id;
        else if (m->bytes)
            for (int k = 0; k < p.len[i]; k++) ids[n++] = 3 + (unsigned char)p.text[i][k];
        else if (n == 0 || ids[n - 1] != 0) ids[n++] = 0;
    }
    return n;
}

#endif
