/* safetensors.c -- reading. A file is: header length (8 bytes, little endian), header (a JSON object of
 * name -> {dtype, shape, data_offsets}), data. The tensors must tile the data: no overlap, no gap. */
#define _GNU_SOURCE
#include "model/safetensors.h"
#include "core/half.h"
#include "core/json.h"
#include "model/gguf_names.h"
#include "model/quant_blocks.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in the file");

struct part {
    struct hl_map map; /* empty if the caller owns the data */
    char *path;
    json_t *header; /* owns the names */
};
struct hl_stfile {
    struct part *part;
    int64_t n_parts;
    struct hl_st_tensor *tensor; /* sorted by name once open */
    int64_t n;
    void *owner; /* of tensors from another format */
    void (*close)(void *);
};

/* ---- one header entry ---- */

static hola_status bad(const char *path, const char *name, const char *what) {
    return hl_fail(HOLA_EFORMAT, "%s: %.200s: %s", path, name, what);
}

static hola_dtype float_type(const char *name) {
    for (int t = HOLA_F32; t <= HOLA_F16; t++)
        if (strcmp(name, hola_dtype_name((hola_dtype)t)) == 0) return (hola_dtype)t;
    return HOLA_DTYPE_COUNT;
}
/* Bytes per element; 0: an unsupported type. */
static int element_size(hola_dtype t) { return t == HOLA_F32 ? 4 : t == HOLA_DTYPE_COUNT ? 0 : 2; }

static hola_status read_shape(struct hl_st_tensor *t, const json_t *shape) {
    if (!json_is_array(shape)) return bad(t->path, t->name, "no shape");
    if (json_array_size(shape) > HL_ST_MAX_DIMS) return bad(t->path, t->name, "more than 8 dimensions");
    t->ndim = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        t->dim[i] = json_integer_value(v);
        if (!json_is_integer(v) || t->dim[i] < 0) return bad(t->path, t->name, "a size that is not 0, 1, 2, ...");
        if (__builtin_mul_overflow(t->count, t->dim[i], &t->count)) return bad(t->path, t->name, "shape overflows");
    }
    return HOLA_OK;
}

/* Fills *t from the header entry v; the data area has `size` bytes at `data`. */
static hola_status read_entry(struct hl_st_tensor *t, const json_t *v, const char *data, int64_t size) {
    const json_t *dtype = json_object_get(v, "dtype"), *offsets = json_object_get(v, "data_offsets");
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    int64_t begin = json_integer_value(from), end = json_integer_value(to), bytes;
    if (!json_is_object(v)) return bad(t->path, t->name, "not an object");
    if (!json_is_string(dtype)) return bad(t->path, t->name, "no dtype");
    snprintf(t->stored, sizeof t->stored, "%s", json_string_value(dtype));
    t->dtype = float_type(json_string_value(dtype));
    hola_status s = read_shape(t, json_object_get(v, "shape"));
    if (s != HOLA_OK) return s;
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return bad(t->path, t->name, "no data_offsets of two integers");
    if (begin < 0 || begin > end || end > size)
        return hl_fail(HOLA_EFORMAT,
                       "%s: %.200s: data_offsets [%" PRId64 ",%" PRId64 "] do not lie in the %" PRId64 " bytes of data",
                       t->path, t->name, begin, end, size);
    t->data = data + begin;
    t->bytes = end - begin;
    if (t->dtype == HOLA_DTYPE_COUNT) return HOLA_OK;
    if (__builtin_mul_overflow(t->count, element_size(t->dtype), &bytes) || bytes != t->bytes) {
        char shape[200];
        return hl_fail(HOLA_EFORMAT, "%s: %.200s: %" PRId64 " bytes for %s of %s", t->path, t->name, t->bytes,
                       hl_st_shape(shape, sizeof shape, t->ndim, t->dim), t->stored);
    }
    return HOLA_OK;
}

static int by_data(const void *a, const void *b) {
    const struct hl_st_tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}
static int by_name(const void *a, const void *b) {
    return strcmp(((const struct hl_st_tensor *)a)->name, ((const struct hl_st_tensor *)b)->name);
}

static hola_status check_tiling(struct hl_st_tensor *t, int64_t n, const char *data, int64_t size, const char *path) {
    const char *at = data;
    if (n > 0) qsort(t, (size_t)n, sizeof *t, by_data);
    for (int64_t i = 0; i < n; i++) {
        const char *begin = t[i].data;
        if (begin < at) return bad(path, t[i].name, "its data overlaps another tensor's");
        if (begin > at) return bad(path, t[i].name, "a gap before its data");
        at = begin + t[i].bytes;
    }
    if (at < data + size)
        return hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " bytes after the last tensor", path, (int64_t)(data + size - at));
    return HOLA_OK;
}

static hola_status check_metadata(const json_t *meta, const char *path) {
    const char *key;
    json_t *v;
    if (!json_is_object(meta)) return bad(path, "__metadata__", "not an object");
    json_object_foreach((json_t *)(uintptr_t)meta, key,
                        v) if (!json_is_string(v)) return bad(path, "__metadata__", "a value that is not a string");
    return HOLA_OK;
}

/* ---- one file ---- */

/* Parses the header of part p from memory and appends its tensors. */
static hola_status read_part(struct hl_stfile *f, struct part *p, const char *data, int64_t size) {
    uint64_t length = 0;
    int64_t first = f->n, room;
    const char *key;
    hola_status s;
    json_t *v;
    if (size < 8) return hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " bytes are no safetensors file", p->path, size);
    memcpy(&length, data, 8);
    if (length > HL_ST_MAX_HEADER || (int64_t)length > size - 8)
        return hl_fail(HOLA_EFORMAT, "%s: a header of %" PRIu64 " bytes in a file of %" PRId64, p->path, length, size);
    s = hl_json_object(&p->header, data + 8, (int64_t)length, HL_ST_MAX_HEADER, p->path);
    if (s != HOLA_OK) return s;
    data += 8 + length;
    size -= 8 + (int64_t)length;
    room = f->n + (int64_t)json_object_size(p->header);
    struct hl_st_tensor *more = realloc(f->tensor, ((size_t)room + 1) * sizeof *more);
    if (!more) return hl_fail(HOLA_ENOMEM, "%s: no memory for %" PRId64 " tensors", p->path, room);
    f->tensor = more;
    json_object_foreach(p->header, key, v) {
        struct hl_st_tensor *t = &f->tensor[f->n];
        if (strcmp(key, "__metadata__") == 0) {
            s = check_metadata(v, p->path);
        } else {
            *t = (struct hl_st_tensor){.name = key, .path = p->path};
            s = read_entry(t, v, data, size);
            f->n++;
        }
        if (s != HOLA_OK) return s;
    }
    return check_tiling(f->tensor + first, f->n - first, data, size, p->path);
}

/* Appends a file, mapped here (bytes NULL) or provided by the caller. */
static hola_status add_part(struct hl_stfile *f, const char *path, const char *bytes, int64_t size) {
    hola_status s = HOLA_OK;
    struct part *more = realloc(f->part, (size_t)(f->n_parts + 1) * sizeof *more), *p;
    if (!more) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    f->part = more;
    p = &more[f->n_parts++];
    *p = (struct part){.path = strdup(path)};
    if (!p->path) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    if (!bytes) {
        s = hl_map_open(&p->map, path);
        bytes = p->map.data;
        size = p->map.size;
    }
    return s == HOLA_OK ? read_part(f, p, bytes, size) : s;
}

static hola_status sort_names(struct hl_stfile *f) {
    if (f->n > 0) qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_name);
    for (int64_t i = 1; i < f->n; i++)
        if (strcmp(f->tensor[i - 1].name, f->tensor[i].name) == 0)
            return hl_fail(HOLA_EFORMAT, "%s: %.200s: also in %s", f->tensor[i].path, f->tensor[i].name,
                           f->tensor[i - 1].path);
    return HOLA_OK;
}

/* ---- several files ---- */

static hola_status add_shard(struct hl_stfile *f, const char *dir, const char *index, const char *shard) {
    hola_status s;
    char *path;
    /* a downloaded checkpoint must not name files outside its directory */
    if (!shard[0] || strchr(shard, '/') || strstr(shard, ".."))
        return hl_fail(HOLA_EFORMAT, "%s: \"%.200s\" is no file name of a shard", index, shard);
    path = hl_path_join(dir, shard);
    if (!path) return hl_fail(HOLA_ENOMEM, "%s: no memory", index);
    s = add_part(f, path, NULL, 0);
    free(path);
    return s;
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static hola_status add_shards(struct hl_stfile *f, const char *dir, const char *index, json_t *map) {
    hola_status s = HOLA_OK;
    const char *name;
    json_t *v, *seen = json_object();
    if (!seen) return hl_fail(HOLA_ENOMEM, "%s: no memory", index);
    json_object_foreach(map, name, v) {
        const char *shard = json_string_value(v);
        if (!shard) s = bad(index, name, "its shard is not a string");
        else if (!json_object_get(seen, shard)) s = add_shard(f, dir, index, shard);
        if (s == HOLA_OK && json_object_set(seen, shard, v) != 0) s = hl_fail(HOLA_ENOMEM, "%s: no memory", index);
        if (s != HOLA_OK) break;
    }
    json_decref(seen);
    if (s == HOLA_OK) s = sort_names(f);
    if (s != HOLA_OK) return s;
    json_object_foreach(map, name, v) {
        const struct hl_st_tensor *t = hl_st_find(f, name);
        if (!t || strcmp(file_name(t->path), json_string_value(v)) != 0)
            return hl_fail(HOLA_EFORMAT, "%s: %.200s: not in %.200s", index, name, json_string_value(v));
    }
    return HOLA_OK;
}

static hola_status open_index(struct hl_stfile *f, const char *dir, const char *index) {
    struct hl_map text;
    json_t *root = NULL, *map;
    hola_status s = hl_map_open(&text, index);
    if (s != HOLA_OK) return s;
    s = hl_json_object(&root, text.data, text.size, HL_ST_MAX_HEADER, index);
    hl_map_close(&text);
    if (s != HOLA_OK) return s;
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) s = hl_fail(HOLA_EFORMAT, "%s: no weight_map", index);
    else s = add_shards(f, dir, index, map);
    json_decref(root);
    return s;
}

/* ---- opening and closing ---- */

void hl_st_close(struct hl_stfile *f) {
    if (!f) return;
    for (int64_t i = 0; i < f->n_parts; i++) {
        hl_map_close(&f->part[i].map);
        json_decref(f->part[i].header);
        free(f->part[i].path);
    }
    if (f->close) f->close(f->owner);
    free(f->part);
    free(f->tensor);
    free(f);
}

static hola_status finish(struct hl_stfile **out, struct hl_stfile *f, hola_status s) {
    if (s == HOLA_OK) *out = f;
    else hl_st_close(f);
    return s;
}

hola_status hl_st_parse(struct hl_stfile **out, const char *data, int64_t size, const char *path) {
    hola_status s;
    struct hl_stfile *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    s = add_part(f, path, data, size);
    if (s == HOLA_OK) s = sort_names(f);
    return finish(out, f, s);
}

hola_status hl_st_of(struct hl_stfile **out, struct hl_st_tensor *tensor, int64_t n, void *owner,
                     void (*close)(void *)) {
    struct hl_stfile *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) {
        free(tensor);
        close(owner);
        return hl_fail(HOLA_ENOMEM, "no memory for %" PRId64 " tensors", n);
    }
    *f = (struct hl_stfile){.tensor = tensor, .n = n, .owner = owner, .close = close};
    return finish(out, f, sort_names(f));
}

hola_status hl_st_open_file(struct hl_stfile **out, const char *path) {
    hola_status s;
    struct hl_stfile *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    s = add_part(f, path, NULL, 0);
    if (s == HOLA_OK) s = sort_names(f);
    return finish(out, f, s);
}

hola_status hl_st_open(struct hl_stfile **out, const char *dir) {
    hola_status s;
    char *one = hl_path_join(dir, "model.safetensors"), *index = hl_path_join(dir, "model.safetensors.index.json");
    struct hl_stfile *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f || !one || !index) {
        s = hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    } else if (access(dir, F_OK) != 0) {
        s = hl_fail(HOLA_EIO, "%s: %s", dir, strerror(errno));
    } else if (access(one, F_OK) == 0) {
        s = add_part(f, one, NULL, 0);
        if (s == HOLA_OK) s = sort_names(f);
    } else if (access(index, F_OK) == 0) {
        s = open_index(f, dir, index);
    } else {
        s = hl_fail(HOLA_EIO, "%s: neither model.safetensors nor model.safetensors.index.json", dir);
    }
    free(one);
    free(index);
    return finish(out, f, s);
}

/* ---- access ---- */

int64_t hl_st_count(const struct hl_stfile *f) { return f->n; }
const struct hl_st_tensor *hl_st_at(const struct hl_stfile *f, int64_t i) { return &f->tensor[i]; }

const struct hl_st_tensor *hl_st_find(const struct hl_stfile *f, const char *name) {
    struct hl_st_tensor key = {.name = name};
    return f->n > 0 ? bsearch(&key, f->tensor, (size_t)f->n, sizeof key, by_name) : NULL;
}

const char *hl_st_metadata(const struct hl_stfile *f, const char *key) {
    const char *value = NULL;
    for (int64_t i = 0; i < f->n_parts && !value; i++)
        value = json_string_value(json_object_get(json_object_get(f->part[i].header, "__metadata__"), key));
    return value;
}

const char *hl_st_shape(char *out, size_t size, int ndim, const int64_t *dim) {
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < ndim && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%" PRId64, i ? "," : "[", dim[i]);
    if (n < size) snprintf(out + n, size - n, ndim ? "]" : "[]");
    return out;
}

/* Reads elements [first, first+n) in file order. */
static void read_plain(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out) {
    const char *p = (const char *)t->data + first * element_size(t->dtype);
    if (t->dtype == HOLA_DTYPE_COUNT) hl_blocks_read(t, first, n, out);
    for (int64_t i = 0; i < n && t->dtype == HOLA_F32; i++) {
        float x;
        memcpy(&x, p + 4 * i, 4);
        out[i] = x;
    }
    for (int64_t i = 0; i < n && t->dtype == HOLA_BF16; i++) {
        uint16_t x;
        memcpy(&x, p + 2 * i, 2);
        out[i] = hl_from_bf16(x);
    }
    for (int64_t i = 0; i < n && t->dtype == HOLA_F16; i++) {
        uint16_t x;
        memcpy(&x, p + 2 * i, 2);
        out[i] = hl_from_f16(x);
    }
}

hola_status hl_st_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out) {
    if (t->dtype == HOLA_DTYPE_COUNT && !t->blocks)
        return hl_fail(HOLA_ENOTSUP,
                       "%s: %.200s: stored as %s; F32, BF16 and F16 can be read (of GGUF files also Q8_0 and Q4_0)",
                       t->path, t->name, t->stored);
    HL_ASSERT(first >= 0 && n >= 0 && first <= t->count - n);
    if (!t->heads) {
        read_plain(t, first, n, out);
        return HOLA_OK;
    }
    const int64_t rows = t->dim[0], cols = t->count / rows;
    HL_ASSERT(first == 0 && n == t->count);
    for (int64_t i = 0; i < rows; i++) read_plain(t, hl_llama_row(i, rows / t->heads) * cols, cols, out + i * cols);
    return HOLA_OK;
}
