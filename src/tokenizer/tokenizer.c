/* tokenizer.c -- loading a tokenizer by path, and ids back to bytes. Encoding: tokenizer_encode.c. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer/tokenizer.h"
#include "core/file.h"
#include "tokenizer/gguf_keys.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { BYTE_BOS = 256, BYTE_EOS = 257, BYTE_SIZE = 258 };

/* ---- load ---- */

char *hl_tokenizer_file(const char *path) {
    struct stat st;
    char *model;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return hl_path_join("", path);
    model = hl_path_join(path, "tokenizer.model");
    if (!model || stat(model, &st) == 0) return model;
    free(model);
    return hl_path_join(path, "tokenizer.json");
}

bool hl_is_tokenizer_json(const char *data, int64_t size) {
    int64_t i = 0;
    while (i < size && strchr(" \t\r\n", data[i]) && data[i]) i++;
    /* a SentencePiece model begins with the tag of its first piece, a line feed */
    return i < size && data[i] == '{' && (i == 0 || data[0] != '\n' || size - i < 2 || data[1] != '{');
}

static hola_status load_gguf(hola_tokenizer *t, const char *path) {
    struct hl_gguf *g;
    struct hl_text text = {0};
    const char *name;
    hola_status s = hl_gguf_open(&g, path);
    if (s == HOLA_OK) s = hl_gguf_tokenizer(g, &text, &name);
    if (s == HOLA_OK)
        s = (hl_is_tokenizer_json(text.data, text.n) ? hl_tokenizer_json_read : hl_spm_read)(t, text.data, text.n,
                                                                                             path);
    hl_gguf_close(g);
    hl_text_free(&text);
    return s;
}

static hola_status load_file(hola_tokenizer *t, const char *path) {
    struct hl_map m = {0};
    struct stat st;
    char *file = hl_tokenizer_file(path);
    hola_status s;
    if (!file) return hl_fail(HOLA_ENOMEM, "%s: no memory for its name", path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode) && stat(file, &st) != 0 && errno == ENOENT)
        s = hl_fail(
            HOLA_EIO,
            "%s: holds neither tokenizer.model nor tokenizer.json; name a tokenizer (--tokenizer PATH), or take "
            "bytes as tokens (--tokenizer byte)",
            path);
    else s = hl_map_open(&m, file);
    if (s != HOLA_OK) goto done;
    if (hl_is_gguf(file)) s = load_gguf(t, file);
    else if (hl_is_tokenizer_json(m.data, m.size)) s = hl_tokenizer_json_read(t, m.data, m.size, file);
    else s = hl_spm_read(t, m.data, m.size, file);
done:
    hl_map_close(&m);
    free(file);
    return s;
}

hola_status hola_tokenizer_load(hola_tokenizer **out, const char *path) {
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(path, "path");
    hola_tokenizer *t = calloc(1, sizeof *t);
    hola_status s = HOLA_OK;
    if (!t) return hl_fail(HOLA_ENOMEM, "tokenizer: %zu bytes", sizeof *t);
    t->bos = t->eos = t->bpe.unknown = -1;
    memset(t->bpe.byte, 0xff, sizeof t->bpe.byte);
    if (strcmp(path, "byte") == 0) {
        t->plain_bytes = true;
        t->size = BYTE_SIZE, t->bos = BYTE_BOS, t->eos = BYTE_EOS;
    } else {
        s = load_file(t, path);
        t->size = t->bpe.size;
    }
    if (s == HOLA_OK) s = hl_caches_new(&t->caches);
    if (s == HOLA_OK) *out = t, t = NULL;
    hola_tokenizer_free(t);
    return s;
}

void hola_tokenizer_free(hola_tokenizer *t) {
    if (!t) return;
    hl_bpe_free(&t->bpe);
    hl_normaliser_free(&t->normaliser);
    hl_caches_free(t->caches);
    hl_added_free(&t->raw), hl_added_free(&t->normalised);
    free(t->unknown_text), free(t->added_store);
    free(t);
}

hola_tokenizer *hl_tokenizer_continuing(const hola_tokenizer *t) {
    hola_tokenizer *view = malloc(sizeof *view);
    if (!view) return NULL;
    *view = *t;
    view->prefix = HL_PREFIX_NONE;
    view->continuing = true;
    view->squeeze = false;
    return view;
}

int64_t hola_tokenizer_size(const hola_tokenizer *t) { return t ? t->size : 0; }
int32_t hola_tokenizer_bos(const hola_tokenizer *t) { return t ? t->bos : -1; }
int32_t hola_tokenizer_eos(const hola_tokenizer *t) { return t ? t->eos : -1; }

/* ---- decode ---- */

/* Appends a piece's text; U+2581 becomes a space, except for the first `drop` leading ones. */
static void put_spaced(struct hl_text *out, const char *text, int64_t len, int64_t drop) {
    bool front = true;
    for (int64_t i = 0; i < len;) {
        bool meta = len - i >= 3 && memcmp(text + i, HL_META_TEXT, 3) == 0;
        if (!meta) out->data[out->n++] = text[i];
        else if (!front || drop-- <= 0) out->data[out->n++] = ' ';
        front = front && meta;
        i += meta ? 3 : 1;
    }
}

/* SentencePiece: the first text piece drops one leading U+2581 if encoding adds a space before the text, or, if extra
 * spaces are squeezed, all of them while the text is still empty. */
static void put_spm(const hola_tokenizer *t, const struct hl_token_piece *p, bool *at_front, bool *seen,
                    struct hl_text *out) {
    bool strips = t->prefix == HL_PREFIX_ALWAYS || t->squeeze, meta;
    if (p->type == HL_PIECE_BYTE) {
        out->data[out->n++] = p->text[0];
        return;
    }
    if (*seen || out->n > 0) *at_front = false;
    *seen = false;
    if (p->type == HL_PIECE_UNKNOWN) {
        memcpy(out->data + out->n, t->unknown_text, strlen(t->unknown_text));
        out->n += (int64_t)strlen(t->unknown_text);
        return;
    }
    meta = p->len >= 3 && memcmp(p->text, HL_META_TEXT, 3) == 0;
    put_spaced(out, p->text, p->len, *at_front && strips ? 1 : 0);
    *seen = *at_front && strips && meta && !t->squeeze;
}

static hola_status decode_pieces(const hola_tokenizer *t, const int32_t *ids, int64_t n, struct hl_text *out,
                                 int64_t *last) {
    bool at_front = true, seen = false, first = true;
    for (int64_t i = 0; i < n; i++) {
        *last = out->n;
        const struct hl_token_piece *p = ids[i] >= 0 && ids[i] < t->size ? &t->bpe.piece[ids[i]] : NULL;
        hola_status s;
        if (!p)
            return hl_fail(HOLA_EINVAL, "id %d is not below the tokenizer's size, %lld", (int)ids[i],
                           (long long)t->size);
        if (p->type == HL_PIECE_CONTROL) {
            seen = false;
            continue;
        }
        s = hl_text_room(out, p->len + (t->unknown_text ? (int64_t)strlen(t->unknown_text) : 0) + 1);
        if (s != HOLA_OK) return s;
        if (t->decoder == HL_DECODE_SPM) put_spm(t, p, &at_front, &seen, out);
        else if (t->decoder == HL_DECODE_BYTES || p->type == HL_PIECE_BYTE) {
            memcpy(out->data + out->n, p->text, (size_t)p->len);
            out->n += p->len;
        } else put_spaced(out, p->text, p->len, t->decoder == HL_DECODE_METASPACE && first ? INT64_MAX : 0);
        first = false;
    }
    if (t->decoder == HL_DECODE_STRIP && out->n > 0 && out->data[0] == ' ') {
        memmove(out->data, out->data + 1, (size_t)--out->n);
        if (*last > 0) --*last;
    }
    return HOLA_OK;
}

static hola_status decode_bytes(const int32_t *ids, int64_t n, struct hl_text *out, int64_t *last) {
    for (int64_t i = 0; i < n; i++) {
        *last = out->n;
        hola_status s = hl_text_room(out, 1);
        if (s != HOLA_OK) return s;
        if (ids[i] < 0 || ids[i] >= BYTE_SIZE)
            return hl_fail(HOLA_EINVAL, "id %d is not below the tokenizer's size, %d", (int)ids[i], BYTE_SIZE);
        if (ids[i] < BYTE_BOS) out->data[out->n++] = (char)ids[i];
    }
    return HOLA_OK;
}

hola_status hl_tokenizer_decode_last(const hola_tokenizer *t, const int32_t *ids, int64_t n, struct hl_text *out,
                                     int64_t *last) {
    out->n = *last = 0;
    return t->plain_bytes ? decode_bytes(ids, n, out, last) : decode_pieces(t, ids, n, out, last);
}
hola_status hola_tokenizer_decode(const hola_tokenizer *t, const int32_t *ids, int64_t n, char **text, int64_t *len) {
    struct hl_text out = {0};
    int64_t last;
    hola_status s;
    HL_NEED(text, "text");
    HL_NEED(len, "len");
    *text = NULL, *len = 0;
    HL_NEED(t, "the tokenizer");
    if (n < 0 || (n > 0 && !ids)) return hl_fail(HOLA_EINVAL, "tokenizer: no ids");
    s = hl_tokenizer_decode_last(t, ids, n, &out, &last);
    if (s == HOLA_OK) s = hl_text_room(&out, 1);
    if (s != HOLA_OK) {
        free(out.data);
        return s;
    }
    out.data[out.n] = 0;
    *text = out.data, *len = out.n;
    return HOLA_OK;
}
