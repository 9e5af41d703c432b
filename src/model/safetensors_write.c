/* safetensors_write.c -- writing in pieces, without a second copy of the weights in memory. */
#include "core/half.h"
#include "core/json.h"
#include "model/safetensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 8192 };

static int64_t count_of(const struct hl_st_entry *e) {
    int64_t n = 1;
    for (int i = 0; i < e->ndim; i++) n *= e->dim[i];
    return n;
}
static int64_t element_size(hola_dtype t) { return t == HOLA_F32 ? 4 : t <= HOLA_F16 ? 2 : 1; }
static int64_t bytes_of(const struct hl_st_entry *e) { return count_of(e) * element_size(e->dtype); }
static const char *type_name(hola_dtype t) {
    return t == HOLA_INT8 ? "I8" : t == HOLA_INT4 ? "U8" : hola_dtype_name(t);
}

/* ---- header ---- */

static json_t *metadata_object(const char *const *metadata) {
    json_t *meta = json_pack("{s:s}", "format", "pt");
    bool good = meta != NULL;
    for (; good && metadata && *metadata; metadata += 2)
        good = json_object_set_new(meta, metadata[0], json_string(metadata[1])) == 0;
    if (good) return meta;
    json_decref(meta);
    return NULL;
}

static json_t *entry_object(const struct hl_st_entry *e, int64_t offset) {
    json_t *shape = json_array();
    for (int i = 0; i < e->ndim; i++) json_array_append_new(shape, json_integer(e->dim[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", type_name(e->dtype), "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)(offset + bytes_of(e)));
}

/* The header's text, padded with spaces so that the data is 8-byte aligned; NULL: out of memory. */
static char *header_text(const struct hl_st_entry *entry, int64_t n, const char *const *metadata, int64_t *length) {
    json_t *root = json_object();
    int64_t offset = 0;
    bool good = json_object_set_new(root, "__metadata__", metadata_object(metadata)) == 0;
    for (int64_t i = 0; i < n && good; i++) {
        HL_ASSERT((unsigned)entry[i].dtype < HOLA_DTYPE_COUNT && entry[i].ndim <= HL_ST_MAX_DIMS);
        HL_ASSERT(entry[i].raw || entry[i].dtype <= HOLA_F16);
        HL_ASSERT(!json_object_get(root, entry[i].name));
        good = json_object_set_new(root, entry[i].name, entry_object(&entry[i], offset)) == 0;
        offset += bytes_of(&entry[i]);
    }
    char *text = good ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    size_t len = text ? strlen(text) : 0, padded = (len + 7) / 8 * 8;
    char *wide = text ? realloc(text, padded + 1) : NULL;
    if (!wide) {
        free(text);
        return NULL;
    }
    memset(wide + len, ' ', padded - len);
    *length = (int64_t)padded;
    return wide;
}

/* ---- data ---- */

/* Converts n numbers; false if one is not finite or overflows dtype. */
static bool convert(hola_dtype dtype, const real *src, int64_t n, void *out) {
    int bad = 0;
    if (dtype == HOLA_F32) {
        float *f = out;
        for (int64_t i = 0; i < n; i++) {
            f[i] = (float)src[i];
            bad |= f[i] - f[i] != 0;
        }
        return !bad;
    }
    uint16_t *h = out;
    for (int64_t i = 0; i < n; i++) {
        h[i] = dtype == HOLA_BF16 ? hl_to_bf16((float)src[i]) : hl_to_f16((float)src[i]);
        uint16_t top = dtype == HOLA_BF16 ? 0x7f80 : 0x7c00; /* the exponent of infinities and NaN */
        bad |= (h[i] & top) == top;
    }
    return !bad;
}

static hola_status write_tensor(struct hl_writer *w, const char *path, const struct hl_st_entry *e) {
    float piece[PIECE];
    int64_t count = count_of(e), size = element_size(e->dtype);
    if (e->raw) return hl_writer_write(w, e->raw, bytes_of(e));
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t n = count - i < PIECE ? count - i : PIECE;
        if (!convert(e->dtype, e->src + i, n, piece))
            return hl_fail(HOLA_ENUMERIC, "%s: %s: holds values that are not finite as %s", path, e->name,
                           hola_dtype_name(e->dtype));
        hola_status s = hl_writer_write(w, piece, n * size);
        if (s != HOLA_OK) return s;
    }
    return HOLA_OK;
}

hola_status hl_st_write(const char *path, const struct hl_st_entry *entry, int64_t n, const char *const *metadata) {
    struct hl_writer w = {0};
    hola_status s;
    int64_t length = 0;
    char *header = header_text(entry, n, metadata, &length);
    if (!header) return hl_fail(HOLA_ENOMEM, "%s: no memory for the header", path);
    uint64_t stored = (uint64_t)length;
    if (length > HL_ST_MAX_HEADER) s = hl_fail(HOLA_EINVAL, "%s: a header of %" PRId64 " bytes", path, length);
    else s = hl_writer_open(&w, path);
    if (s == HOLA_OK) s = hl_writer_write(&w, &stored, 8);
    if (s == HOLA_OK) s = hl_writer_write(&w, header, length);
    for (int64_t i = 0; i < n && s == HOLA_OK; i++) s = write_tensor(&w, path, &entry[i]);
    if (s == HOLA_OK) s = hl_writer_commit(&w);
    hl_writer_abort(&w);
    free(header);
    return s;
}
