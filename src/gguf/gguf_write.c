/* gguf_write.c -- writing: keys are collected in memory, tensors are written row by row. */
#include "gguf/gguf.h"
#include <stdlib.h>
#include <string.h>

enum { VERSION = 3 };

static void put_u32(struct hl_text *t, uint32_t v) { hl_text_put(t, (const char *)&v, 4); }
static void put_u64(struct hl_text *t, uint64_t v) { hl_text_put(t, (const char *)&v, 8); }
static void put_string(struct hl_text *t, const char *text, int64_t len) {
    put_u64(t, (uint64_t)len);
    hl_text_put(t, text, len);
}

/* ---- keys ---- */

static void put_key(struct hl_gguf_keys *k, const char *key, enum hl_gguf_type type) {
    put_string(&k->text, key, (int64_t)strlen(key));
    put_u32(&k->text, type);
    k->n++;
}
void hl_gguf_put_int(struct hl_gguf_keys *k, const char *key, int64_t v) {
    HL_ASSERT(v >= 0 && v <= UINT32_MAX);
    put_key(k, key, HL_GGUF_U32);
    put_u32(&k->text, (uint32_t)v);
}
void hl_gguf_put_real(struct hl_gguf_keys *k, const char *key, double v) {
    const float f = (float)v;
    put_key(k, key, HL_GGUF_F32);
    hl_text_put(&k->text, (const char *)&f, 4);
}
void hl_gguf_put_bool(struct hl_gguf_keys *k, const char *key, bool v) {
    put_key(k, key, HL_GGUF_BOOL);
    hl_text_put(&k->text, v ? "\1" : "\0", 1);
}
void hl_gguf_put_string(struct hl_gguf_keys *k, const char *key, const char *text, int64_t len) {
    put_key(k, key, HL_GGUF_STRING);
    put_string(&k->text, text, len);
}
void hl_gguf_put_array(struct hl_gguf_keys *k, const char *key, enum hl_gguf_type type, int64_t n) {
    put_key(k, key, HL_GGUF_ARRAY);
    put_u32(&k->text, type);
    put_u64(&k->text, (uint64_t)n);
}
void hl_gguf_put_item(struct hl_gguf_keys *k, const void *bytes, int64_t n) { hl_text_put(&k->text, bytes, n); }
void hl_gguf_put_item_string(struct hl_gguf_keys *k, const char *text, int64_t len) { put_string(&k->text, text, len); }
void hl_gguf_put_value(struct hl_gguf_keys *k, const struct hl_gguf_value *v) {
    if (v->array) hl_gguf_put_array(k, v->key, v->type, v->n);
    else put_key(k, v->key, v->type);
    hl_text_put(&k->text, v->data, v->bytes);
}

/* ---- the file ---- */

static int64_t padded(int64_t bytes) { return (bytes + HL_GGUF_ALIGNMENT - 1) / HL_GGUF_ALIGNMENT * HL_GGUF_ALIGNMENT; }
static int64_t rows_of(const struct hl_gguf_entry *e) {
    int64_t n = 1;
    for (int i = 1; i < e->ndim; i++) n *= e->dim[i];
    return n;
}

/* Everything before the data. */
static void put_head(struct hl_text *t, const struct hl_gguf_keys *keys, const struct hl_gguf_entry *entry, int64_t n) {
    int64_t offset = 0;
    hl_text_put(t, "GGUF", 4);
    put_u32(t, VERSION);
    put_u64(t, (uint64_t)n);
    put_u64(t, (uint64_t)keys->n);
    hl_text_put(t, keys->text.data, keys->text.n);
    for (int64_t i = 0; i < n; i++) {
        const struct hl_gguf_entry *e = &entry[i];
        put_string(t, e->name, (int64_t)strlen(e->name));
        put_u32(t, (uint32_t)e->ndim);
        for (int j = 0; j < e->ndim; j++) put_u64(t, (uint64_t)e->dim[j]);
        put_u32(t, e->type);
        put_u64(t, (uint64_t)offset);
        offset += padded(rows_of(e) * e->row);
    }
    while (!t->failed && t->n % HL_GGUF_ALIGNMENT) hl_text_put(t, "", 1);
}

static hola_status write_entry(struct hl_writer *w, const struct hl_gguf_entry *e, const struct hl_gguf_rows *rows) {
    static const char zeros[HL_GGUF_ALIGNMENT];
    const int64_t n = rows_of(e), bytes = n * e->row;
    char *row = malloc((size_t)e->row);
    hola_status s = row ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory for a row", e->name);
    for (int64_t i = 0; i < n && s == HOLA_OK; i++) {
        s = rows->row(rows->ctx, e, i, row);
        if (s == HOLA_OK) s = hl_writer_write(w, row, e->row);
    }
    if (s == HOLA_OK) s = hl_writer_write(w, zeros, padded(bytes) - bytes);
    free(row);
    return s;
}

hola_status hl_gguf_write(const char *path, const struct hl_gguf_keys *keys, const struct hl_gguf_entry *entry,
                          int64_t n, const struct hl_gguf_rows *rows) {
    struct hl_writer w = {0};
    struct hl_text head = {0};
    hola_status s = hl_text_status(&keys->text);
    if (s == HOLA_OK) {
        put_head(&head, keys, entry, n);
        s = hl_text_status(&head);
    }
    if (s == HOLA_OK) s = hl_writer_open(&w, path);
    if (s == HOLA_OK) s = hl_writer_write(&w, head.data, head.n);
    for (int64_t i = 0; i < n && s == HOLA_OK; i++) s = write_entry(&w, &entry[i], rows);
    if (s == HOLA_OK) s = hl_writer_commit(&w);
    hl_writer_abort(&w);
    hl_text_free(&head);
    return s;
}
