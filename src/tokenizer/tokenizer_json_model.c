/* tokenizer_json_model.c -- the "model" of a tokenizer.json: vocabulary and merges of a BPE. */
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>

/* Bytes that print stand for themselves; the others follow from U+0100 on, in order. */
static bool prints(unsigned c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174; }

uint32_t hl_char_of_byte(unsigned char byte) {
    uint32_t c = 256;
    if (prints(byte)) return byte;
    for (unsigned b = 0; b < byte; b++) c += !prints(b);
    return c;
}

int hl_byte_of_char(uint32_t c) {
    if (c < 256) return prints(c) ? (int)c : -1;
    for (unsigned b = 0, next = 256; b < 256; b++)
        if (!prints(b) && next++ == c) return (int)b;
    return -1;
}

/* A token's text to bytes in place of characters; false: some character stands for no byte. */
static bool to_bytes(const int16_t map[512], const char *text, int64_t len, char *out, int32_t *n) {
    uint32_t c;
    *n = 0;
    for (int64_t i = 0, size; i < len; i += size) {
        size = hl_utf8(text + i, len - i, &c);
        if (size == 0 || c >= 512 || map[c] < 0) return false;
        out[(*n)++] = (char)map[c];
    }
    return true;
}

/* The largest id in use and the bytes of all tokens; HOLA_EFORMAT where the vocabulary is not one. */
static hola_status measure(json_t *vocab, const char *path, int64_t *size, int64_t *bytes) {
    const char *text;
    json_t *id;
    *bytes = 1;
    json_object_foreach(vocab, text, id) {
        json_int_t i = json_integer_value(id);
        size_t len = strlen(text);
        if (!json_is_integer(id) || i < 0 || i >= HL_JSON_MAX_ID || len > HL_JSON_MAX_TOKEN)
            return hl_json_bad(path, "model.vocab", "an id or a token that is impossible");
        if (i >= *size) *size = i + 1;
        *bytes += (int64_t)len;
    }
    return HOLA_OK;
}

static hola_status read_vocab(struct hl_bpe *b, json_t *vocab, int64_t more, const char *path) {
    const char *text;
    json_t *value;
    int16_t map[512];
    int64_t bytes;
    char *store;
    b->size = more;
    if (!json_is_object(vocab)) return hl_json_bad(path, "model.vocab", "not an object");
    hola_status s = measure(vocab, path, &b->size, &bytes);
    if (s != HOLA_OK) return s;
    b->piece = calloc((size_t)b->size + 1, sizeof *b->piece);
    b->store = store = malloc((size_t)bytes);
    if (!b->piece || !store) return hl_fail(HOLA_ENOMEM, "%s: %lld tokens", path, (long long)b->size);
    for (uint32_t c = 0; c < 512; c++) map[c] = (int16_t)hl_byte_of_char(c);
    json_object_foreach(vocab, text, value) {
        struct hl_token_piece *p = &b->piece[json_integer_value(value)];
        int32_t len = (int32_t)strlen(text);
        if (p->type != HL_PIECE_NONE) return hl_json_bad(path, "model.vocab", "an id that two tokens have");
        p->type = HL_PIECE_NORMAL;
        p->text = store, p->len = len;
        if (!b->byte_level || !to_bytes(map, text, len, store, &p->len)) {
            memcpy(store, text, (size_t)len);
            p->len = len;
            if (b->byte_level) p->type = HL_PIECE_UNUSED; /* not what any bytes look like */
        }
        store += p->len;
    }
    return HOLA_OK;
}

static bool is_normal(const struct hl_token_piece *p) { return p->type == HL_PIECE_NORMAL; }

/* The two tokens of a merge, as "a b" or ["a", "b"]; scratch holds the first form's copy. */
static bool merge_parts(const json_t *merge, char *scratch, const char **left, const char **right) {
    char *space;
    if (json_is_array(merge)) {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        return json_array_size(merge) == 2 && *left && *right && strlen(*left) <= HL_JSON_MAX_TOKEN &&
               strlen(*right) <= HL_JSON_MAX_TOKEN;
    }
    if (!json_is_string(merge) || json_string_length(merge) > 2 * HL_JSON_MAX_TOKEN) return false;
    strcpy(scratch, json_string_value(merge));
    space = strchr(scratch, ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    *space = 0;
    *left = scratch, *right = space + 1;
    return true;
}

static int32_t id_of(const json_t *vocab, const char *text) {
    const json_t *id = json_object_get(vocab, text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

static hola_status read_merge(struct hl_bpe *b, const json_t *vocab, const json_t *merge, uint32_t rank, char *scratch,
                              const char *path) {
    const char *left, *right;
    char *joined = scratch + 2 * HL_JSON_MAX_TOKEN + 1;
    int32_t l, r, m;
    if (!merge_parts(merge, scratch, &left, &right)) return hl_json_bad(path, "model.merges", "not a pair of tokens");
    strcpy(joined, left);
    strcat(joined, right);
    l = id_of(vocab, left), r = id_of(vocab, right), m = id_of(vocab, joined);
    if (l < 0 || r < 0 || m < 0)
        return hl_fail(HOLA_EFORMAT, "%s: model.merges[%u]: merges tokens that are not in the vocabulary", path, rank);
    if (hl_byte_piece(left, (int64_t)strlen(left)) >= 0 || hl_byte_piece(right, (int64_t)strlen(right)) >= 0)
        return hl_json_refuse(path, "model.merges", "a merge of byte tokens");
    if (b->space_is_meta && strchr(joined, ' ')) return HOLA_OK; /* no text has a space in it */
    return hl_bpe_merge(b, l, r, m, rank);
}

static hola_status read_merges(struct hl_bpe *b, const json_t *vocab, const json_t *merges, const char *path) {
    hola_status s = HOLA_OK;
    char *scratch;
    if (!json_is_array(merges)) return hl_json_bad(path, "model.merges", "not an array");
    scratch = malloc(4 * HL_JSON_MAX_TOKEN + 8);
    if (!scratch) return hl_fail(HOLA_ENOMEM, "%s: no memory for the merges", path);
    for (size_t i = 0; i < json_array_size(merges) && s == HOLA_OK; i++)
        s = read_merge(b, vocab, json_array_get(merges, i), (uint32_t)i, scratch, path);
    free(scratch);
    return s;
}

/* Whether every symbol of every text has a token, so that nothing can be unknown. */
static bool all_known(const struct hl_bpe *b) {
    for (int i = 0; i < 256; i++)
        if ((b->byte_level ? b->ascii[i] : b->byte[i]) < 0) return false;
    return true;
}

static hola_status check_fields(const json_t *model, const char *path) {
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    if (!json_is_object(model)) return hl_json_bad(path, "model", "not an object");
    if (type && !hl_json_is(type, "BPE")) return hl_json_refuse(path, "model.type", "only BPE is known");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return hl_json_refuse(path, "model.dropout", "a random tokenizer");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        if (v && !json_is_null(v) && !hl_json_is(v, "")) return hl_json_refuse(path, empty[i], "not known");
    }
    return HOLA_OK;
}

/* Byte tokens: those that unknown characters become, and those that decode to a byte. */
static void read_bytes(struct hl_bpe *b, const json_t *vocab, bool fallback, bool decoded) {
    for (unsigned i = 0; i < 256; i++) {
        char name[8] = "<0x00>", digits[] = "0123456789ABCDEF";
        name[3] = digits[i >> 4], name[4] = digits[i & 15];
        int32_t id = id_of(vocab, name);
        if (id < 0 || b->byte_level) continue;
        if (fallback) b->byte[i] = id;
        if (!fallback && !decoded) continue;
        b->piece[id].type = HL_PIECE_BYTE;
        ((char *)b->store)[b->piece[id].text - b->store] = (char)i;
        b->piece[id].len = 1;
    }
}

hola_status hl_json_model(hola_tokenizer *t, const json_t *model, int64_t more, bool bytes_decoded, const char *path) {
    struct hl_bpe *b = &t->bpe;
    json_t *vocab = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_token");
    hola_status s = check_fields(model, path);
    if (s == HOLA_OK) s = read_vocab(b, vocab, more, path);
    if (s != HOLA_OK) return s;
    if (unk && !json_is_null(unk)) {
        b->unknown = json_is_string(unk) ? id_of(vocab, json_string_value(unk)) : -1;
        if (b->unknown < 0) return hl_json_bad(path, "model.unk_token", "not in the vocabulary");
    }
    b->whole_words = hl_json_flag(model, "ignore_merges", false);
    if (b->whole_words && b->space_is_meta)
        return hl_json_refuse(path, "model.ignore_merges", "not known together with spaces as U+2581");
    s = hl_bpe_index(b, is_normal, false);
    if (s == HOLA_OK) s = read_merges(b, vocab, json_object_get(model, "merges"), path);
    if (s == HOLA_OK) s = hl_bpe_finish(b);
    if (s == HOLA_OK) read_bytes(b, vocab, hl_json_flag(model, "byte_fallback", false), bytes_decoded);
    b->fuse_unknown = hl_json_flag(model, "fuse_unk", false) && b->unknown >= 0 && !all_known(b);
    b->uncut = b->whole_words || b->fuse_unknown;
    return s;
}
