/* gguf.h -- GGUF files: keys with typed values, then tensors, each with a name. Little endian; docs/format.md has the
 * layout. A file is untrusted: every length, count, offset and type in it is checked before it is used, and a bad one
 * is one line that names the file and the key or tensor. */
#ifndef HL_GGUF_H
#define HL_GGUF_H
#include "core/file.h"
#include "core/text.h"

enum { HL_GGUF_MAX_DIMS = 4, HL_GGUF_MAX_NAME = 63, HL_GGUF_MAX_KEY = 65535, HL_GGUF_ALIGNMENT = 32 };

enum hl_gguf_type { /* of a value, as the file numbers them */
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
enum { /* of a tensor, as the file numbers them: those that hola reads and writes */
       HL_GGML_F32 = 0,
       HL_GGML_F16 = 1,
       HL_GGML_Q4_0 = 2,
       HL_GGML_Q8_0 = 8,
       HL_GGML_BF16 = 30
};
/* The name of a tensor's type, how many numbers a block of it has, and its bytes; false: no such type. */
bool hl_gguf_tensor_type(uint32_t type, const char **name, int64_t *block, int64_t *bytes);

/* ---- reading ---- */

struct hl_gguf_value {
    char *key;
    enum hl_gguf_type type; /* of an array: of its items */
    bool array;
    int64_t n;        /* items; 1 where it is no array */
    const char *data; /* the items, in the file; aligned to nothing */
    int64_t bytes;
};
struct hl_gguf_tensor {
    char *name;
    uint32_t type;
    int ndim;
    int64_t dim[HL_GGUF_MAX_DIMS], count; /* the first dimension is the one without gaps: of a matrix the columns */
    const char *data;
    int64_t bytes;
};
struct hl_gguf {
    struct hl_map map; /* empty when the data is the caller's */
    char *path;
    struct hl_gguf_value *value;   /* sorted by key */
    struct hl_gguf_tensor *tensor; /* as in the file */
    int64_t n_values, n_tensors;
};

/* Whether a file begins as GGUF files do; false also where it cannot be read. */
bool hl_is_gguf(const char *path);
/* On failure *out is NULL. Values, tensors and their data are lent until close. */
hola_status hl_gguf_open(struct hl_gguf **out, const char *path);
/* The same over memory, which must outlive the reader; path is only for messages. */
hola_status hl_gguf_parse(struct hl_gguf **out, const char *data, int64_t size, const char *path);
void hl_gguf_close(struct hl_gguf *g);

const struct hl_gguf_value *hl_gguf_find(const struct hl_gguf *g, const char *key); /* NULL: none */
/* Values of one type; no such key leaves *out as it is, another type or (int) limit is refused. */
hola_status hl_gguf_int(const struct hl_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out);
hola_status hl_gguf_real(const struct hl_gguf *g, const char *key, double *out);
hola_status hl_gguf_bool(const struct hl_gguf *g, const char *key, bool *out);
/* The text is in the file, without a NUL behind it. */
hola_status hl_gguf_string(const struct hl_gguf *g, const char *key, const char **text, int64_t *len);
/* An array of one type of items; *out is NULL where there is none. */
hola_status hl_gguf_array(const struct hl_gguf *g, const char *key, enum hl_gguf_type type,
                          const struct hl_gguf_value **out);
/* The string at *at, which then is that of the next one. */
const char *hl_gguf_next_string(const char **at, int64_t *len);
/* Whether a value is this string. */
bool hl_gguf_is(const struct hl_gguf *g, const char *key, const char *text);

/* ---- writing ---- */

/* Keys and values to be written; zeroed: none. Failure is sticky (core/text.h). */
struct hl_gguf_keys {
    struct hl_text text;
    int64_t n;
};
void hl_gguf_put_int(struct hl_gguf_keys *k, const char *key, int64_t v); /* as U32 */
void hl_gguf_put_real(struct hl_gguf_keys *k, const char *key, double v); /* as F32 */
void hl_gguf_put_bool(struct hl_gguf_keys *k, const char *key, bool v);
void hl_gguf_put_string(struct hl_gguf_keys *k, const char *key, const char *text, int64_t len);
/* An array's key; its n items follow. */
void hl_gguf_put_array(struct hl_gguf_keys *k, const char *key, enum hl_gguf_type type, int64_t n);
void hl_gguf_put_item(struct hl_gguf_keys *k, const void *bytes, int64_t n);
void hl_gguf_put_item_string(struct hl_gguf_keys *k, const char *text, int64_t len);
void hl_gguf_put_value(struct hl_gguf_keys *k, const struct hl_gguf_value *v); /* as it was read */

/* A tensor to be written. Its data is made when it is needed, row after row. */
struct hl_gguf_entry {
    char name[HL_GGUF_MAX_NAME + 1];
    uint32_t type;
    int ndim;
    int64_t dim[HL_GGUF_MAX_DIMS]; /* as in the file */
    int64_t row;                   /* bytes of dim[0] numbers */
    const void *from;              /* row() knows what it is */
};
struct hl_gguf_rows {
    /* Puts row i of an entry into out. */
    hola_status (*row)(void *ctx, const struct hl_gguf_entry *e, int64_t i, char *out);
    void *ctx;
};
/* Writes a file, whole or not at all, tensors in the given order. */
hola_status hl_gguf_write(const char *path, const struct hl_gguf_keys *keys, const struct hl_gguf_entry *entry,
                          int64_t n, const struct hl_gguf_rows *rows);

#endif
