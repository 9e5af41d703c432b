/* tokenizer_piece.c -- one token: its text, and special ones by name. */
#include "tokenizer/tokenizer.h"
#include <stdlib.h>

/* The names of the ids of the tokenizer "byte" beyond the bytes, as its tokenizer.json has them (byte_json.c). */
static const char *byte_special(int32_t id) {
    return id == 256 ? "<|begin_of_text|>" : id == 257 ? "<|end_of_text|>" : NULL;
}

static hola_status copy_out(const char *from, int64_t n, char **text, int64_t *len) {
    *text = malloc((size_t)n + 1);
    if (!*text) return hl_fail(HOLA_ENOMEM, "tokenizer: no memory for a token");
    memcpy(*text, from, (size_t)n);
    (*text)[n] = 0;
    *len = n;
    return HOLA_OK;
}

/* U+2581 stands for a space, except in what decoding takes as bytes. */
static void spaces_for_marks(char *text, int64_t *len) {
    int64_t to = 0;
    for (int64_t i = 0; i < *len;) {
        const bool mark = *len - i >= 3 && memcmp(text + i, HL_META_TEXT, 3) == 0;
        text[to++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    text[to] = 0;
    *len = to;
}

hola_status hola_tokenizer_piece(const hola_tokenizer *t, int32_t id, char **text, int64_t *len) {
    HL_NEED(text, "text");
    HL_NEED(len, "len");
    *text = NULL, *len = 0;
    HL_NEED(t, "the tokenizer");
    if (id < 0 || id >= t->size)
        return hl_fail(HOLA_EINVAL, "id %d is not below the tokenizer's size, %lld", (int)id, (long long)t->size);
    if (t->plain_bytes) {
        const char *name = byte_special(id), byte = (char)id;
        return name ? copy_out(name, (int64_t)strlen(name), text, len) : copy_out(&byte, 1, text, len);
    }
    const struct hl_token_piece *p = &t->bpe.piece[id];
    if (p->type == HL_PIECE_UNKNOWN && t->unknown_text)
        return copy_out(t->unknown_text, (int64_t)strlen(t->unknown_text), text, len);
    hola_status s = copy_out(p->text ? p->text : "", p->text ? p->len : 0, text, len);
    const bool marks = t->decoder != HL_DECODE_BYTES && p->type != HL_PIECE_BYTE && p->type != HL_PIECE_CONTROL;
    if (s == HOLA_OK && marks) spaces_for_marks(*text, len);
    return s;
}

bool hola_tokenizer_is_special(const hola_tokenizer *t, int32_t id) {
    if (!t || id < 0 || id >= t->size) return false;
    return t->plain_bytes ? byte_special(id) != NULL : t->bpe.piece[id].type == HL_PIECE_CONTROL;
}

int32_t hola_tokenizer_special(const hola_tokenizer *t, const char *name) {
    if (!t || !name) return -1;
    const int64_t n = (int64_t)strlen(name);
    for (int32_t id = 0; id < t->size; id++) {
        if (t->plain_bytes) {
            const char *special = byte_special(id);
            if (special && !strcmp(special, name)) return id;
            continue;
        }
        const struct hl_token_piece *p = &t->bpe.piece[id];
        if ((p->type == HL_PIECE_CONTROL || p->type == HL_PIECE_USER) && p->len == n &&
            !memcmp(p->text, name, (size_t)n))
            return id;
    }
    return -1;
}
