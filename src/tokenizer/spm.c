/* spm.c -- reads a SentencePiece model (tokenizer.model) of type BPE.
 *
 * The file is a protobuf: ModelProto { 1: pieces { 1: text, 2: score, 3: type }, 2: trainer_spec, 3: normalizer_spec,
 * 5: denormalizer_spec }. It does not list merges: SentencePiece merges two adjacent symbols if their concatenation is
 * a piece, ranked by that piece's score. So every split of a piece into two pieces or characters is a merge, with one
 * rank per score. */
#include "tokenizer/spm.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_PIECES = 1 << 24, MAX_PIECE = 512, MAX_FILE = 1 << 28 };

/* ---- protobuf ---- */

struct field {
    uint32_t number, wire;
    uint64_t value;   /* wire types 0, 1, 5 */
    const char *data; /* wire type 2 */
    int64_t len;
};

struct cursor {
    const char *at, *end;
    bool bad;
};

static uint64_t varint(struct cursor *c) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        unsigned char byte = (unsigned char)*c->at++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return v;
    }
    c->bad = true;
    return 0;
}

static uint64_t fixed(struct cursor *c, int bytes) {
    uint64_t v = 0;
    if (c->end - c->at < bytes) return c->bad = true, 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)(unsigned char)*c->at++ << (8 * i);
    return v;
}

/* The next field; false at the end, or if the bytes are malformed (c->bad). */
static bool next_field(struct cursor *c, struct field *f) {
    uint64_t tag, len;
    if (c->bad || c->at == c->end) return false;
    tag = varint(c);
    *f = (struct field){.number = (uint32_t)(tag >> 3), .wire = (uint32_t)(tag & 7)};
    if (tag >> 32 || f->number == 0) c->bad = true;
    switch (f->wire) {
    case 0: f->value = varint(c); break;
    case 1: f->value = fixed(c, 8); break;
    case 5: f->value = fixed(c, 4); break;
    case 2:
        len = varint(c);
        if (len > (uint64_t)(c->end - c->at)) return c->bad = true, false;
        f->data = c->at, f->len = (int64_t)len;
        c->at += len;
        break;
    default: c->bad = true; /* groups are never used */
    }
    return !c->bad;
}

/* ---- the messages ---- */

static hola_status bad_file(const struct hl_spm *m, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %s: not a SentencePiece model, or a damaged one", m->path, what);
}

static hola_status read_trainer(struct hl_spm *m, hola_tokenizer *t, struct cursor c) {
    struct field f;
    while (next_field(&c, &f)) {
        if (f.number == 46 && f.wire == 2) m->bos = (struct hl_spm_text){f.data, f.len};
        if (f.number == 47 && f.wire == 2) m->eos = (struct hl_spm_text){f.data, f.len};
        if (f.number == 44 && f.wire == 2) {
            char *copy = malloc((size_t)f.len + 1);
            if (!copy) return hl_fail(HOLA_ENOMEM, "%s: unk_surface", m->path);
            memcpy(copy, f.data, (size_t)f.len);
            copy[f.len] = 0;
            free(t->unknown_text);
            t->unknown_text = copy;
        }
        if (f.wire != 0) continue;
        switch (f.number) {
        case 3: m->model_type = (int64_t)f.value; break;
        case 24: m->suffix = f.value != 0; break;
        case 35: m->byte_fallback = f.value != 0; break;
        }
    }
    return c.bad ? bad_file(m, "trainer_spec") : HOLA_OK;
}

static hola_status read_normalizer(struct hl_spm *m, struct cursor c, const char *name) {
    struct field f;
    bool denormalizer = name[0] == 'd';
    while (next_field(&c, &f)) {
        if (f.number == 2 && f.wire == 2 && f.len > 0)
            return hl_fail(HOLA_ENOTSUP, "%s: %s: a character map (such as nmt_nfkc); only identity is supported",
                           m->path, name);
        if (f.wire != 0 || denormalizer) continue;
        if (f.number == 3) m->add_prefix = f.value != 0;
        if (f.number == 4) m->squeeze = f.value != 0;
        if (f.number == 5) m->escape = f.value != 0;
    }
    return c.bad ? bad_file(m, name) : HOLA_OK;
}

static hola_status read_piece(struct hl_spm *m, struct hl_bpe *b, struct cursor c, int64_t id) {
    struct hl_token_piece *p = &b->piece[id];
    uint64_t type = HL_PIECE_NORMAL;
    uint32_t bits = 0;
    struct field f;
    while (next_field(&c, &f)) {
        if (f.number == 1 && f.wire == 2) p->text = f.data, p->len = f.len <= MAX_PIECE ? (int32_t)f.len : -1;
        if (f.number == 2 && f.wire == 5) bits = (uint32_t)f.value;
        if (f.number == 3 && f.wire == 0) type = f.value;
    }
    memcpy(&m->score[id], &bits, sizeof bits);
    if (c.bad) return bad_file(m, "piece");
    if (p->len < 0) return hl_fail(HOLA_ENOTSUP, "%s: piece %lld: over %d bytes", m->path, (long long)id, MAX_PIECE);
    if (p->len == 0 || type < HL_PIECE_NORMAL || type > HL_PIECE_BYTE || isnan(m->score[id]) ||
        !hl_is_utf8(p->text, p->len))
        return hl_fail(HOLA_EFORMAT, "%s: piece %lld: empty, not UTF-8, or its type or score is impossible", m->path,
                       (long long)id);
    p->type = (uint8_t)type;
    return HOLA_OK;
}

static hola_status check(const struct hl_spm *m) {
    if (m->model_type != 2)
        return hl_fail(HOLA_ENOTSUP, "%s: trainer_spec.model_type is %lld; only BPE (2) is supported", m->path,
                       (long long)m->model_type);
    if (m->suffix)
        return hl_fail(HOLA_ENOTSUP, "%s: trainer_spec.treat_whitespace_as_suffix is not supported", m->path);
    return HOLA_OK;
}

hola_status hl_spm_parse(struct hl_spm *m, hola_tokenizer *t, const char *data, int64_t size, const char *path) {
    struct cursor c = {data, data + size, false}, in;
    struct field f;
    int64_t n = 0;
    hola_status s = HOLA_OK;
    /* what the fields are where the file leaves them out */
    *m = (struct hl_spm){.path = path,
                         .model_type = 1,
                         .add_prefix = true,
                         .squeeze = true,
                         .escape = true,
                         .bos = {.data = "<s>", .len = 3},
                         .eos = {.data = "</s>", .len = 4}};
    if (size > MAX_FILE) return hl_fail(HOLA_EFORMAT, "%s: over %d bytes", path, MAX_FILE);
    while (next_field(&c, &f)) n += f.number == 1 && f.wire == 2;
    if (c.bad || n == 0) return bad_file(m, c.bad ? "broken field" : "no pieces");
    if (n > MAX_PIECES) return hl_fail(HOLA_ENOTSUP, "%s: %lld pieces", m->path, (long long)n);
    t->bpe.piece = calloc((size_t)n, sizeof *t->bpe.piece);
    m->score = malloc((size_t)n * sizeof *m->score);
    if (!t->bpe.piece || !m->score) return hl_fail(HOLA_ENOMEM, "%s: %lld pieces", m->path, (long long)n);
    c.at = data;
    while (s == HOLA_OK && next_field(&c, &f)) {
        if (f.wire != 2) continue;
        in = (struct cursor){f.data, f.data + f.len, false};
        if (f.number == 1) s = read_piece(m, &t->bpe, in, t->bpe.size++);
        if (f.number == 2) s = read_trainer(m, t, in);
        if (f.number == 3) s = read_normalizer(m, in, "normalizer_spec");
        if (f.number == 5) s = read_normalizer(m, in, "denormalizer_spec");
    }
    return s == HOLA_OK ? check(m) : s;
}

/* ---- the model ---- */

/* Copies piece texts to the tokenizer's memory; a byte piece's text becomes that byte. */
static hola_status keep_texts(const struct hl_spm *m, hola_tokenizer *t) {
    struct hl_bpe *b = &t->bpe;
    int64_t total = 1, bytes = 0;
    for (int64_t i = 0; i < b->size; i++) total += b->piece[i].len;
    b->store = malloc((size_t)total);
    if (!b->store) return hl_fail(HOLA_ENOMEM, "%s: %lld bytes of pieces", m->path, (long long)total);
    total = 0;
    for (int64_t i = 0; i < b->size; i++) {
        struct hl_token_piece *p = &b->piece[i];
        char *to = b->store + total;
        memcpy(to, p->text, (size_t)p->len);
        p->text = to;
        total += p->len;
        if (p->type == HL_PIECE_UNKNOWN) {
            if (b->unknown >= 0) return hl_fail(HOLA_EFORMAT, "%s: two unknown pieces", m->path);
            b->unknown = (int32_t)i;
        }
        if (p->type != HL_PIECE_BYTE) continue;
        int value = hl_byte_piece(p->text, p->len);
        if (value < 0 || b->byte[value] >= 0)
            return hl_fail(HOLA_EFORMAT, "%s: piece %lld: not the piece of a byte, or its second one", m->path,
                           (long long)i);
        b->byte[value] = (int32_t)i;
        to[0] = (char)value;
        p->len = 1;
        bytes++;
    }
    if (b->unknown < 0) return hl_fail(HOLA_EFORMAT, "%s: no unknown piece", m->path);
    if (m->byte_fallback && bytes < 256) return hl_fail(HOLA_EFORMAT, "%s: byte pieces are missing", m->path);
    if (!m->byte_fallback) memset(b->byte, 0xff, sizeof b->byte);
    return HOLA_OK;
}

static bool in_text(const struct hl_token_piece *p) {
    return p->type == HL_PIECE_NORMAL || p->type == HL_PIECE_USER || p->type == HL_PIECE_UNUSED;
}

static int by_score(const void *x, const void *y) {
    float a = *(const float *)x, b = *(const float *)y;
    return (a < b) - (a > b);
}

/* rank[i]: the number of distinct scores better than piece i's. */
static uint32_t rank_of(const float *sorted, int64_t n, float score) {
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (sorted[mid] > score) lo = mid + 1;
        else hi = mid;
    }
    return (uint32_t)lo; /* the first index of that score */
}

static hola_status symbol_of(struct hl_bpe *b, const char *text, int64_t len, uint64_t hash, int32_t *symbol) {
    uint32_t c;
    if (hl_utf8(text, len, &c) == len) return hl_bpe_char(b, c, symbol);
    *symbol = hl_bpe_find_hashed(b, text, len, hash);
    return HOLA_OK;
}

/* All merges that give piece id. */
static hola_status add_merges(const struct hl_spm *m, struct hl_bpe *b, int64_t id, uint32_t rank) {
    const struct hl_token_piece *p = &b->piece[id];
    uint64_t hash[MAX_PIECE + 1], power[MAX_PIECE + 1];
    uint32_t c;
    hola_status s = HOLA_OK;
    hash[0] = 0, power[0] = 1;
    for (int64_t i = 0; i < p->len; i++) {
        hash[i + 1] = hash[i] * HL_HASH_FACTOR + (unsigned char)p->text[i] + 1;
        power[i + 1] = power[i] * HL_HASH_FACTOR;
    }
    for (int64_t i = hl_utf8(p->text, p->len, &c); i < p->len && s == HOLA_OK;
         i += hl_utf8(p->text + i, p->len - i, &c)) {
        int32_t left, right;
        uint64_t rest = hash[p->len] - hash[i] * power[p->len - i];
        s = symbol_of(b, p->text, i, hash[i], &left);
        if (s == HOLA_OK && left >= 0) s = symbol_of(b, p->text + i, p->len - i, rest, &right);
        if (s != HOLA_OK || left < 0 || right < 0) continue;
        if (p->type == HL_PIECE_UNUSED)
            return hl_fail(HOLA_ENOTSUP, "%s: piece %lld: an unused piece that merging can produce", m->path,
                           (long long)id);
        s = hl_bpe_merge(b, left, right, (int32_t)id, rank);
    }
    return s;
}

static hola_status make_merges(const struct hl_spm *m, hola_tokenizer *t) {
    struct hl_bpe *b = &t->bpe;
    hola_status s = HOLA_OK;
    float *sorted = malloc((size_t)b->size * sizeof *sorted);
    if (!sorted) return hl_fail(HOLA_ENOMEM, "%s: %lld scores", m->path, (long long)b->size);
    memcpy(sorted, m->score, (size_t)b->size * sizeof *sorted);
    qsort(sorted, (size_t)b->size, sizeof *sorted, by_score);
    for (int64_t id = 0; id < b->size && s == HOLA_OK; id++) {
        const struct hl_token_piece *p = &b->piece[id];
        /* A space in a piece can match nothing once spaces are U+2581. */
        if (!in_text(p) || (m->escape && memchr(p->text, ' ', (size_t)p->len))) continue;
        if (p->type == HL_PIECE_USER) s = hl_added_put(&t->normalised, p->text, p->len, (int32_t)id);
        else s = add_merges(m, b, id, rank_of(sorted, b->size, m->score[id]));
    }
    free(sorted);
    hl_added_sort(&t->normalised);
    return s;
}

int32_t hl_spm_control(const struct hl_bpe *b, const struct hl_spm_text *name) {
    for (int64_t i = 0; i < b->size; i++)
        if (b->piece[i].type == HL_PIECE_CONTROL && b->piece[i].len == name->len &&
            memcmp(b->piece[i].text, name->data, (size_t)name->len) == 0)
            return (int32_t)i;
    return -1;
}

hola_status hl_spm_read(hola_tokenizer *t, const char *data, int64_t size, const char *path) {
    struct hl_spm m;
    struct hl_bpe *b = &t->bpe;
    hola_status s = hl_spm_parse(&m, t, data, size, path);
    if (s == HOLA_OK && !t->unknown_text) {
        t->unknown_text = calloc(1, 8);
        if (t->unknown_text) strcpy(t->unknown_text, " \xe2\x81\x87 ");
        else s = hl_fail(HOLA_ENOMEM, "%s: 8 bytes", path);
    }
    if (s == HOLA_OK) s = keep_texts(&m, t);
    if (s == HOLA_OK) s = hl_bpe_index(b, in_text, true);
    b->words = HL_WORDS_JOINED;
    b->space_is_meta = m.escape;
    t->decoder = HL_DECODE_SPM;
    t->prefix = m.add_prefix ? HL_PREFIX_ALWAYS : HL_PREFIX_NONE;
    t->squeeze = m.squeeze;
    t->fuse_unknown = !m.byte_fallback;
    if (s == HOLA_OK) s = make_merges(&m, t);
    if (s == HOLA_OK) s = hl_bpe_finish(b);
    t->rewrite = t->squeeze || t->normalised.n > 0;
    t->bos = hl_spm_control(b, &m.bos), t->eos = hl_spm_control(b, &m.eos);
    free(m.score);
    return s;
}
