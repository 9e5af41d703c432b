/* gguf.h -- reading and writing GGUF files: typed key-value metadata, then named tensors. Little endian; docs/format.md
 * describes the layout. Files are untrusted: every length, count, offset and type is checked before use, and an error
 * is one line that names the file and the key or tensor. */
#ifndef HL_GGUF_H
#define HL_GGUF_H
#include "core/file.h"
#include "core/text.h"

enum { HL_GGUF_MAX_DIMS = 4, HL_GGUF_MAX_NAME = 63, HL_GGUF_MAX_KEY = 65535, HL_GGUF_ALIGNMENT = 32 };

enum hl_gguf_type { /* type of a value, numbered as in the file */
                    HL_GGUF_U8,
                    HL_GGUF_I8,
                    HL_GGUF_U16,
                    HL_GGUF_I16,
                    HL_GGUF_U32,
                    HL_GGUF_I32,
                    HL_GGUF_F32,
                    HL_GGUF_BOOL,
                    HL_GGUF_STRING,
                    HL_GGUF_ARRAY,
                    HL_GGUF_U64,
                    HL_GGUF_I64,
                    HL_GGUF_F64,
                    HL_GGUF_TYPES
};
enum { /* type of a tensor, numbered as in the file: the types that hola reads and writes */
       HL_GGML_F32 = 0,
       HL_GGML_F16 = 1,
       HL_GGML_Q4_0 = 2,
       HL_GGML_Q8_0 = 8,
       HL_GGML_BF16 = 30
};
/* Name, elements per block and bytes per block of a tensor type; false: unknown type. */
bool hl_gguf_tensor_type(uint32_t type, const char **name, int64_t *block, int64_t *bytes);

/* ---- reading ---- */

struct hl_gguf_value {
    char *key;
    enum hl_gguf_type type; /* for an array: the type of its items */
    bool array;
    int64_t n;        /* items; 1 for a scalar */
    const char *data; /* the items, in the file; unaligned */
    int64_t bytes;
};
struct hl_gguf_tensor {
    char *name;
    uint32_t type;
    int ndim;
    int64_t dim[HL_GGUF_MAX_DIMS], count; /* dim[0] is the contiguous dimension (the columns of a matrix) */
    const char *data;
    int64_t bytes;
};
struct hl_gguf {
    struct hl_map map; /* empty if the caller owns the data */
    char *path;
    struct hl_gguf_value *value;   /* sorted by key */
    struct hl_gguf_tensor *tensor; /* as in the file */
    int64_t n_values, n_tensors;
};

/* Whether a file starts with the GGUF magic; false also if it cannot be read. */
bool hl_is_gguf(const char *path);
/* On failure *out is NULL. Values, tensors and their data are valid until close. */
hola_status hl_gguf_open(struct hl_gguf **out, const char *path);
/* The same for a buffer, which must outlive the reader; path is only used in messages. */
hola_status hl_gguf_parse(struct hl_gguf **out, const char *data, int64_t size, const char *path);
void hl_gguf_close(struct hl_gguf *g);

const struct hl_gguf_value *hl_gguf_find(const struct hl_gguf *g, const char *key); /* NULL: not found */
/* Typed values. A missing key leaves *out unchanged; another type or (int) a value out of range is an error. */
hola_status hl_gguf_int(const struct hl_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out);
hola_status hl_gguf_real(const struct hl_gguf *g, const char *key, double *out);
hola_status hl_gguf_bool(const struct hl_gguf *g, const char *key, bool *out);
/* The string is in the file and not NUL-terminated. */
hola_status hl_gguf_string(const struct hl_gguf *g, const char *key, const char **text, int64_t *len);
/* An array with items of one type; *out is NULL if the key is missing. */
hola_status hl_gguf_array(const struct hl_gguf *g, const char *key, enum hl_gguf_type type,
                          const struct hl_gguf_value **out);
/* The string at *at; advances *at to the next one. */
const char *hl_gguf_next_string(const char **at, int64_t *len);
/* Whether a value equals this string. */
bool hl_gguf_is(const struct hl_gguf *g, const char *key, const char *text);

/* ---- writing ---- */

/* Keys and values to write; starts zeroed. Errors are sticky (core/text.h). */
struct hl_gguf_keys {
    struct hl_text text;
    int64_t n;
};
void hl_gguf_put_int(struct hl_gguf_keys *k, const char *key, int64_t v); /* as U32 */
void hl_gguf_put_real(struct hl_gguf_keys *k, const char *key, double v); /* as F32 */
void hl_gguf_put_bool(struct hl_gguf_keys *k, const char *key, bool v);
void hl_gguf_put_string(struct hl_gguf_keys *k, const char *key, const char *text, int64_t len);
/* The key of an array; its n items follow. */
void hl_gguf_put_array(struct hl_gguf_keys *k, const char *key, enum hl_gguf_type type, int64_t n);
void hl_gguf_put_item(struct hl_gguf_keys *k, const void *bytes, int64_t n);
void hl_gguf_put_item_string(struct hl_gguf_keys *k, const char *text, int64_t len);
void hl_gguf_put_value(struct hl_gguf_keys *k, const struct hl_gguf_value *v); /* copies a value that was read */

/* A tensor to write. Its data is generated on demand, row by row. */
struct hl_gguf_entry {
    char name[HL_GGUF_MAX_NAME + 1];
    uint32_t type;
    int ndim;
    int64_t dim[HL_GGUF_MAX_DIMS]; /* as in the file */
    int64_t row;                   /* bytes of dim[0] numbers */
    const void *from;              /* passed through to row() */
};
struct hl_gguf_rows {
    /* Writes row i of an entry to out. */
    hola_status (*row)(void *ctx, const struct hl_gguf_entry *e, int64_t i, char *out);
    void *ctx;
};
/* Writes a file atomically, tensors in the given order. */
hola_status hl_gguf_write(const char *path, const struct hl_gguf_keys *keys, const struct hl_gguf_entry *entry,
                          int64_t n, const struct hl_gguf_rows *rows);

#endif
