/* safetensors.h -- reading and writing model files. Files are untrusted: every length, offset and number is checked
 * before use, and an error is one line that names the file and the tensor. */
#ifndef HL_SAFETENSORS_H
#define HL_SAFETENSORS_H
#include "core/file.h"
#include "core/real.h"

enum { HL_ST_MAX_DIMS = 8, HL_ST_MAX_HEADER = 100000000 };

struct hl_st_tensor {
    const char *name;
    const char *path; /* the file it is in */
    char stored[16];  /* the type as spelled in the file */
    hola_dtype dtype; /* F32, BF16, F16; HOLA_DTYPE_COUNT: not a supported float type */
    int ndim;
    int64_t dim[HL_ST_MAX_DIMS], count;
    const void *data; /* in the file; unaligned */
    int64_t bytes;
    bool blocks;   /* from a GGUF file: Q8_0 or Q4_0, of the size that its shape requires */
    int64_t heads; /* > 0: rows of this many heads, in llama's order (gguf_names.h) */
};

struct hl_stfile;

/* Opens DIR/model.safetensors, else the shards of DIR/model.safetensors.index.json. Tensors and their data are valid
 * until close. On failure *out is NULL. */
hola_status hl_st_open(struct hl_stfile **out, const char *dir);
/* A single file with any name. */
hola_status hl_st_open_file(struct hl_stfile **out, const char *path);
/* The same for a buffer, which must outlive the reader; path is only used in messages. */
hola_status hl_st_parse(struct hl_stfile **out, const char *data, int64_t size, const char *path);
/* Wraps tensors of another file format. Takes ownership of the n malloced tensors and of owner, which holds their names
 * and data; frees both on failure too. */
hola_status hl_st_of(struct hl_stfile **out, struct hl_st_tensor *tensor, int64_t n, void *owner,
                     void (*close)(void *));
void hl_st_close(struct hl_stfile *f);

int64_t hl_st_count(const struct hl_stfile *f);
const struct hl_st_tensor *hl_st_at(const struct hl_stfile *f, int64_t i);          /* sorted by name */
const struct hl_st_tensor *hl_st_find(const struct hl_stfile *f, const char *name); /* NULL: not found */
/* A value of the file's __metadata__; NULL: not found. */
const char *hl_st_metadata(const struct hl_stfile *f, const char *key);
/* The shape as text for messages: "[32,16]". */
const char *hl_st_shape(char *out, size_t size, int ndim, const int64_t *dim);

/* Converts elements [first, first+n) to real; a tensor with heads must be read whole. HOLA_ENOTSUP: an unsupported
 * type. */
hola_status hl_st_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out);

struct hl_st_entry {
    const char *name;
    hola_dtype dtype; /* stored type */
    int ndim;
    int64_t dim[HL_ST_MAX_DIMS];
    const real *src;
    const void *raw; /* instead of src: bytes to write unchanged; INT8 is then stored as I8, INT4 as U8 */
};
/* Writes a file atomically, tensors in the given order. metadata: NULL, or key, value, ..., NULL; {"format": "pt"} is
 * always added. Values that are not finite, or overflow dtype, are refused (HOLA_ENUMERIC), because the file could not
 * be loaded again. */
hola_status hl_st_write(const char *path, const struct hl_st_entry *entry, int64_t n, const char *const *metadata);

#endif
