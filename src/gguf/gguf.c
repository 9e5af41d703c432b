/* gguf.c -- reading. File layout: "GGUF", version (4 bytes), number of tensors and of keys (8 each); the keys; the
 * tensors' names, shapes, types and offsets; padding; data. A string is its length (8 bytes) and its bytes. */
#define _POSIX_C_SOURCE 200809L
#include "gguf/gguf.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in the file");

/* ---- types ---- */

static const struct {
    const char *name;
    int bytes; /* of an item; 0: variable size */
} value_types[HL_GGUF_TYPES] = {{"UINT8", 1},  {"INT8", 1},    {"UINT16", 2}, {"INT16", 2},  {"UINT32", 4},
                                {"INT32", 4},  {"FLOAT32", 4}, {"BOOL", 1},   {"STRING", 0}, {"ARRAY", 0},
                                {"UINT64", 8}, {"INT64", 8},   {"FLOAT64", 8}};

/* By number. No name: a removed type. */
static const struct {
    const char *name;
    int block, bytes;
} tensor_types[] = {
    {"F32", 1, 4},      {"F16", 1, 2},        {"Q4_0", 32, 18},    {"Q4_1", 32, 20},     {NULL, 0, 0},
    {NULL, 0, 0},       {"Q5_0", 32, 22},     {"Q5_1", 32, 24},    {"Q8_0", 32, 34},     {"Q8_1", 32, 36},
    {"Q2_K", 256, 84},  {"Q3_K", 256, 110},   {"Q4_K", 256, 144},  {"Q5_K", 256, 176},   {"Q6_K", 256, 210},
    {"Q8_K", 256, 292}, {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18}, {"IQ3_S", 256, 110},  {"IQ2_S", 256, 82},  {"IQ4_XS", 256, 136}, {"I8", 1, 1},
    {"I16", 1, 2},      {"I32", 1, 4},        {"I64", 1, 8},       {"F64", 1, 8},        {"IQ1_M", 256, 56},
    {"BF16", 1, 2},     {NULL, 0, 0},         {NULL, 0, 0},        {NULL, 0, 0},         {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66}, {NULL, 0, 0},         {NULL, 0, 0},        {NULL, 0, 0},         {"MXFP4", 32, 17}};

bool hl_gguf_tensor_type(uint32_t type, const char **name, int64_t *block, int64_t *bytes) {
    if (type >= sizeof tensor_types / sizeof *tensor_types || !tensor_types[type].name) return false;
    *name = tensor_types[type].name;
    *block = tensor_types[type].block;
    *bytes = tensor_types[type].bytes;
    return true;
}

/* ---- the bytes ---- */

struct cursor {
    const char *at, *end;
    const char *path;
};

static int64_t left(const struct cursor *c) { return c->end - c->at; }

static hola_status cut_off(const struct cursor *c, const char *where) {
    return hl_fail(HOLA_EFORMAT, "%s: %.200s: the file ends here", c->path, where);
}

/* Reads the next n bytes; where: context for messages. */
static hola_status take(struct cursor *c, void *out, int64_t n, const char *where) {
    if (left(c) < n) return cut_off(c, where);
    memcpy(out, c->at, (size_t)n);
    c->at += n;
    return HOLA_OK;
}

/* Skips a string. */
static hola_status skip_string(struct cursor *c, const char *where) {
    uint64_t len = 0;
    hola_status s = take(c, &len, 8, where);
    if (s == HOLA_OK && len > (uint64_t)left(c)) s = cut_off(c, where);
    if (s == HOLA_OK) c->at += len;
    return s;
}

/* A name of 1..most bytes, without a NUL, malloced. */
static hola_status take_name(struct cursor *c, char **out, uint64_t most, const char *what) {
    uint64_t len = 0;
    hola_status s = take(c, &len, 8, what);
    if (s != HOLA_OK) return s;
    if (len == 0 || len > most)
        return hl_fail(HOLA_EFORMAT, "%s: %s of %" PRIu64 " bytes: 1 to %" PRIu64 " are possible", c->path, what, len,
                       most);
    if (len > (uint64_t)left(c)) return cut_off(c, what);
    if (memchr(c->at, 0, len)) return hl_fail(HOLA_EFORMAT, "%s: %s with a NUL in it", c->path, what);
    *out = calloc(1, len + 1);
    if (!*out) return hl_fail(HOLA_ENOMEM, "%s: no memory for %s", c->path, what);
    memcpy(*out, c->at, len);
    c->at += len;
    return HOLA_OK;
}

/* ---- keys ---- */

static hola_status bad(const struct cursor *c, const char *name, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %.200s: %s", c->path, name, what);
}

static hola_status take_type(struct cursor *c, struct hl_gguf_value *v) {
    uint32_t type = 0;
    hola_status s = take(c, &type, 4, v->key);
    if (s == HOLA_OK && type >= HL_GGUF_TYPES)
        s = hl_fail(HOLA_EFORMAT, "%s: %.200s: a value of type %" PRIu32 ", which is none", c->path, v->key, type);
    if (s == HOLA_OK) v->type = (enum hl_gguf_type)type;
    return s;
}

static hola_status read_value(struct cursor *c, struct hl_gguf_value *v) {
    uint64_t n = 1;
    hola_status s = take_name(c, &v->key, HL_GGUF_MAX_KEY, "a key");
    if (s == HOLA_OK) s = take_type(c, v);
    if (s == HOLA_OK && v->type == HL_GGUF_ARRAY) {
        v->array = true;
        s = take_type(c, v);
        if (s == HOLA_OK && v->type == HL_GGUF_ARRAY)
            s = hl_fail(HOLA_ENOTSUP, "%s: %.200s: an array of arrays", c->path, v->key);
        if (s == HOLA_OK) s = take(c, &n, 8, v->key);
    }
    if (s != HOLA_OK) return s;
    const int size = value_types[v->type].bytes;
    if (n > (uint64_t)left(c) / (uint64_t)(size ? size : 8)) return cut_off(c, v->key);
    v->n = (int64_t)n;
    v->data = c->at;
    if (size) c->at += v->n * size;
    for (int64_t i = 0; i < v->n && !size && s == HOLA_OK; i++) s = skip_string(c, v->key);
    v->bytes = c->at - v->data;
    for (int64_t i = 0; i < v->n && v->type == HL_GGUF_BOOL; i++)
        if (v->data[i] & ~1) return bad(c, v->key, "neither true nor false");
    return s;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct hl_gguf_value *)a)->key, ((const struct hl_gguf_value *)b)->key);
}

static hola_status read_values(struct hl_gguf *g, struct cursor *c, uint64_t n) {
    enum { LEAST = 8 + 1 + 4 + 1 }; /* minimum bytes of a key and its value */
    if (n > (uint64_t)left(c) / LEAST)
        return hl_fail(HOLA_EFORMAT, "%s: %" PRIu64 " keys in %" PRId64 " bytes", c->path, n, left(c));
    g->value = calloc(n + 1, sizeof *g->value);
    if (!g->value) return hl_fail(HOLA_ENOMEM, "%s: no memory for %" PRIu64 " keys", c->path, n);
    for (uint64_t i = 0; i < n; i++) {
        hola_status s = read_value(c, &g->value[g->n_values++]);
        if (s != HOLA_OK) return s;
    }
    if (n > 0) qsort(g->value, n, sizeof *g->value, by_key);
    for (uint64_t i = 1; i < n; i++)
        if (strcmp(g->value[i - 1].key, g->value[i].key) == 0) return bad(c, g->value[i].key, "there twice");
    return HOLA_OK;
}

/* ---- tensors ---- */

static hola_status read_shape(struct cursor *c, struct hl_gguf_tensor *t) {
    uint32_t ndim = 0;
    hola_status s = take(c, &ndim, 4, t->name);
    if (s != HOLA_OK) return s;
    if (ndim < 1 || ndim > HL_GGUF_MAX_DIMS)
        return hl_fail(HOLA_EFORMAT, "%s: %s: %" PRIu32 " dimensions: 1 to %d are possible", c->path, t->name, ndim,
                       HL_GGUF_MAX_DIMS);
    t->ndim = (int)ndim;
    t->count = 1;
    s = take(c, t->dim, 8 * (int64_t)ndim, t->name);
    for (int i = 0; i < t->ndim && s == HOLA_OK; i++) {
        if (t->dim[i] < 1) s = bad(c, t->name, "a size that is not 1, 2, 3, ...");
        else if (__builtin_mul_overflow(t->count, t->dim[i], &t->count)) s = bad(c, t->name, "shape overflows");
    }
    return s;
}

/* *next: where this tensor's data must begin; advanced to the next tensor's. */
static hola_status read_tensor(struct cursor *c, struct hl_gguf_tensor *t, int64_t alignment, int64_t *next,
                               int64_t *offset) {
    const char *type;
    int64_t block, bytes, end;
    uint64_t begin = 0;
    hola_status s = take_name(c, &t->name, HL_GGUF_MAX_NAME, "a tensor's name");
    if (s == HOLA_OK) s = read_shape(c, t);
    if (s == HOLA_OK) s = take(c, &t->type, 4, t->name);
    if (s == HOLA_OK) s = take(c, &begin, 8, t->name);
    if (s != HOLA_OK) return s;
    if (!hl_gguf_tensor_type(t->type, &type, &block, &bytes))
        return hl_fail(HOLA_ENOTSUP, "%s: %s: a tensor of type %" PRIu32 ", which is not known", c->path, t->name,
                       t->type);
    if (t->dim[0] % block != 0)
        return hl_fail(HOLA_EFORMAT, "%s: %s: rows of %" PRId64 " are not whole blocks of %s", c->path, t->name,
                       t->dim[0], type);
    if (__builtin_mul_overflow(t->count / block, bytes, &t->bytes) || __builtin_add_overflow(*next, t->bytes, &end) ||
        __builtin_add_overflow(end, alignment - 1, &end))
        return bad(c, t->name, "shape overflows");
    if (begin < (uint64_t)*next) return bad(c, t->name, "its data overlaps another tensor's");
    if (begin > (uint64_t)*next) return bad(c, t->name, "a gap before its data");
    *offset = *next;
    *next = end / alignment * alignment;
    return HOLA_OK;
}

static hola_status check_names(const struct hl_gguf *g, const struct cursor *c) {
    struct hl_gguf_value *sorted = calloc((size_t)g->n_tensors + 1, sizeof *sorted); /* sorted by by_key */
    hola_status s = HOLA_OK;
    if (!sorted) return hl_fail(HOLA_ENOMEM, "%s: no memory for %" PRId64 " names", c->path, g->n_tensors);
    for (int64_t i = 0; i < g->n_tensors; i++) sorted[i].key = g->tensor[i].name;
    if (g->n_tensors > 0) qsort(sorted, (size_t)g->n_tensors, sizeof *sorted, by_key);
    for (int64_t i = 1; i < g->n_tensors && s == HOLA_OK; i++)
        if (strcmp(sorted[i - 1].key, sorted[i].key) == 0) s = bad(c, sorted[i].key, "there twice");
    free(sorted);
    return s;
}

/* data: file offset of the data. */
static hola_status read_tensors(struct hl_gguf *g, struct cursor *c, const char *data, uint64_t n, int64_t alignment) {
    enum { LEAST = 8 + 1 + 4 + 8 + 4 + 8 }; /* minimum bytes of a tensor's header */
    int64_t next = 0;
    if (n > (uint64_t)left(c) / LEAST)
        return hl_fail(HOLA_EFORMAT, "%s: %" PRIu64 " tensors in %" PRId64 " bytes", c->path, n, left(c));
    int64_t *offset = calloc(n + 1, sizeof *offset);
    g->tensor = calloc(n + 1, sizeof *g->tensor);
    hola_status s =
        offset && g->tensor ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory for %" PRIu64 " tensors", c->path, n);
    while (s == HOLA_OK && (uint64_t)g->n_tensors < n) {
        s = read_tensor(c, &g->tensor[g->n_tensors], alignment, &next, &offset[g->n_tensors]);
        g->n_tensors++;
    }
    if (s == HOLA_OK) s = check_names(g, c);
    const int64_t size = c->end - data, used = c->at - data, start = (used + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < g->n_tensors && s == HOLA_OK; i++) {
        struct hl_gguf_tensor *t = &g->tensor[i];
        if (start > size || offset[i] > size - start || t->bytes > size - start - offset[i])
            s = hl_fail(HOLA_EFORMAT, "%s: %s: %" PRId64 " bytes of data from %" PRId64 " on do not lie in the file",
                        c->path, t->name, t->bytes, offset[i]);
        t->data = data + start + offset[i];
    }
    if (s == HOLA_OK && n > 0 && size - start > next)
        s = hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " bytes after the last tensor", c->path, size - start - next);
    free(offset);
    return s;
}

/* ---- the file ---- */

static hola_status read_alignment(const struct hl_gguf *g, int64_t *alignment) {
    const char *key = "general.alignment";
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    *alignment = HL_GGUF_ALIGNMENT;
    if (v && (v->type != HL_GGUF_U32 || v->array))
        return hl_fail(HOLA_EFORMAT, "%s: %s: expected a UINT32", g->path, key);
    hola_status s = hl_gguf_int(g, key, 1, 1 << 20, alignment);
    if (s == HOLA_OK && (*alignment & (*alignment - 1)) != 0)
        s = hl_fail(HOLA_EFORMAT, "%s: %s: %" PRId64 " is no power of two", g->path, key, *alignment);
    return s;
}

static hola_status read_file(struct hl_gguf *g, const char *data, int64_t size) {
    struct cursor c = {data, data + size, g->path};
    char magic[4] = "";
    uint32_t version = 0;
    uint64_t tensors = 0, keys = 0;
    int64_t alignment;
    hola_status s = take(&c, magic, 4, "header");
    if (s == HOLA_OK && memcmp(magic, "GGUF", 4) != 0) s = hl_fail(HOLA_EFORMAT, "%s: not a GGUF file", g->path);
    if (s == HOLA_OK) s = take(&c, &version, 4, "header");
    if (s == HOLA_OK && version != 2 && version != 3) /* the two differ in nothing relevant here */
        s = hl_fail(HOLA_ENOTSUP, "%s: GGUF version %" PRIu32 "%s; 2 and 3 can be read", g->path, version,
                    version && !(version & 0xffff) ? " (big endian?)" : "");
    if (s == HOLA_OK) s = take(&c, &tensors, 8, "header");
    if (s == HOLA_OK) s = take(&c, &keys, 8, "header");
    if (s == HOLA_OK) s = read_values(g, &c, keys);
    if (s == HOLA_OK) s = read_alignment(g, &alignment);
    return s == HOLA_OK ? read_tensors(g, &c, data, tensors, alignment) : s;
}

void hl_gguf_close(struct hl_gguf *g) {
    if (!g) return;
    for (int64_t i = 0; i < g->n_values; i++) free(g->value[i].key);
    for (int64_t i = 0; i < g->n_tensors; i++) free(g->tensor[i].name);
    free(g->value), free(g->tensor), free(g->path);
    hl_map_close(&g->map);
    free(g);
}

static hola_status open_bytes(struct hl_gguf **out, const char *data, int64_t size, const char *path) {
    struct hl_gguf *g = calloc(1, sizeof *g);
    hola_status s = HOLA_OK;
    *out = NULL;
    if (g) g->path = strdup(path);
    if (!g || !g->path) s = hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    if (s == HOLA_OK && !data) {
        s = hl_map_open(&g->map, path);
        data = g->map.data, size = g->map.size;
    }
    if (s == HOLA_OK) s = read_file(g, data, size);
    if (s == HOLA_OK) *out = g;
    else hl_gguf_close(g);
    return s;
}

hola_status hl_gguf_parse(struct hl_gguf **out, const char *data, int64_t size, const char *path) {
    return open_bytes(out, data, size, path);
}
hola_status hl_gguf_open(struct hl_gguf **out, const char *path) { return open_bytes(out, NULL, 0, path); }

bool hl_is_gguf(const char *path) {
    char magic[4] = "";
    FILE *f = fopen(path, "rb");
    const bool is = f && fread(magic, 1, 4, f) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (f) fclose(f);
    return is;
}

/* ---- values ---- */

const struct hl_gguf_value *hl_gguf_find(const struct hl_gguf *g, const char *key) {
    struct hl_gguf_value wanted = {.key = (char *)(uintptr_t)key};
    return g->n_values > 0 ? bsearch(&wanted, g->value, (size_t)g->n_values, sizeof wanted, by_key) : NULL;
}

static hola_status wrong_type(const struct hl_gguf *g, const struct hl_gguf_value *v, const char *expected) {
    return hl_fail(HOLA_EFORMAT, "%s: %.200s: expected %s, found %s%s", g->path, v->key, expected,
                   v->array ? "an array of " : "", value_types[v->type].name);
}

/* Any integer; false: another type, or out of int64 range. */
static bool integer(const struct hl_gguf_value *v, int64_t *out) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {0};
    if (v->array || v->type == HL_GGUF_STRING) return false;
    memcpy(&x, v->data, (size_t)v->bytes);
    switch (v->type) {
    case HL_GGUF_U8: *out = x.u8; return true;
    case HL_GGUF_I8: *out = x.i8; return true;
    case HL_GGUF_U16: *out = x.u16; return true;
    case HL_GGUF_I16: *out = x.i16; return true;
    case HL_GGUF_U32: *out = x.u32; return true;
    case HL_GGUF_I32: *out = x.i32; return true;
    case HL_GGUF_U64: *out = x.i64; return x.u64 <= INT64_MAX;
    case HL_GGUF_I64: *out = x.i64; return true;
    default: return false;
    }
}

hola_status hl_gguf_int(const struct hl_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    int64_t x;
    if (!v) return HOLA_OK;
    if (!integer(v, &x)) return wrong_type(g, v, "an integer");
    if (x < lo || x > hi)
        return hl_fail(HOLA_EFORMAT, "%s: %s: %" PRId64 " is not between %" PRId64 " and %" PRId64, g->path, key, x, lo,
                       hi);
    *out = x;
    return HOLA_OK;
}

hola_status hl_gguf_real(const struct hl_gguf *g, const char *key, double *out) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    float f;
    if (!v) return HOLA_OK;
    if (v->array || (v->type != HL_GGUF_F32 && v->type != HL_GGUF_F64)) return wrong_type(g, v, "a real number");
    if (v->type == HL_GGUF_F64) return memcpy(out, v->data, 8), HOLA_OK;
    memcpy(&f, v->data, 4);
    *out = (double)f;
    return HOLA_OK;
}

hola_status hl_gguf_bool(const struct hl_gguf *g, const char *key, bool *out) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    if (!v) return HOLA_OK;
    if (v->array || v->type != HL_GGUF_BOOL) return wrong_type(g, v, "a BOOL");
    *out = v->data[0] != 0;
    return HOLA_OK;
}

hola_status hl_gguf_string(const struct hl_gguf *g, const char *key, const char **text, int64_t *len) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    if (!v) return HOLA_OK;
    if (v->array || v->type != HL_GGUF_STRING) return wrong_type(g, v, "a STRING");
    const char *at = v->data;
    *text = hl_gguf_next_string(&at, len);
    return HOLA_OK;
}

hola_status hl_gguf_array(const struct hl_gguf *g, const char *key, enum hl_gguf_type type,
                          const struct hl_gguf_value **out) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    char expected[40];
    *out = NULL;
    snprintf(expected, sizeof expected, "an array of %s", value_types[type].name);
    if (v && (!v->array || v->type != type)) return wrong_type(g, v, expected);
    *out = v;
    return HOLA_OK;
}

const char *hl_gguf_next_string(const char **at, int64_t *len) {
    const char *text = *at + 8;
    memcpy(len, *at, 8);
    *at = text + *len;
    return text;
}

bool hl_gguf_is(const struct hl_gguf *g, const char *key, const char *text) {
    const struct hl_gguf_value *v = hl_gguf_find(g, key);
    if (!v || v->array || v->type != HL_GGUF_STRING) return false;
    return v->bytes == 8 + (int64_t)strlen(text) && memcmp(v->data + 8, text, strlen(text)) == 0;
}
