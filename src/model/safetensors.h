/* safetensors.h -- model files. A file is untrusted: every length, offset and number in it is checked
 * before it is used, and a bad one is one line that names the file and the tensor. */
#ifndef HL_SAFETENSORS_H
#define HL_SAFETENSORS_H
#include "core/file.h"
#include "core/real.h"

enum { HL_ST_MAX_DIMS = 8, HL_ST_MAX_HEADER = 100000000 };

struct hl_st_tensor {
    const char *name;
    const char *path; /* the file it is in */
    char stored[16];  /* the type as the file spells it */
    hola_dtype dtype; /* F32, BF16, F16; HOLA_DTYPE_COUNT: no float that we read */
    int ndim;
    int64_t dim[HL_ST_MAX_DIMS], count;
    const void *data; /* in the file; aligned to nothing */
    int64_t bytes;
    bool blocks;   /* of a GGUF file: Q8_0 or Q4_0, and of the bytes that its shape needs */
    int64_t heads; /* > 0: it has the rows of so many heads in the order of llama (gguf_names.h) */
};

struct hl_stfile;

/* Opens DIR/model.safetensors, else the shards of DIR/model.safetensors.index.json. Tensors and their data
 * are lent until close. On failure *out is NULL. */
hola_status hl_st_open(struct hl_stfile **out, const char *dir);
/* One file, whatever its name. */
hola_status hl_st_open_file(struct hl_stfile **out, const char *path);
/* The same over memory, which must outlive the reader; path is only for messages. */
hola_status hl_st_parse(struct hl_stfile **out, const char *data, int64_t size, const char *path);
/* Tensors of another kind of file. n of them, malloced, are taken over, and so is owner, which holds their names and
 * data; both are freed on failure too. */
hola_status hl_st_of(struct hl_stfile **out, struct hl_st_tensor *tensor, int64_t n, void *owner,
                     void (*close)(void *));
void hl_st_close(struct hl_stfile *f);

int64_t hl_st_count(const struct hl_stfile *f);
const struct hl_st_tensor *hl_st_at(const struct hl_stfile *f, int64_t i);          /* sorted by name */
const struct hl_st_tensor *hl_st_find(const struct hl_stfile *f, const char *name); /* NULL: none */
/* A value of the file's __metadata__, NULL where there is none. */
const char *hl_st_metadata(const struct hl_stfile *f, const char *key);
/* "[32,16]": for messages. */
const char *hl_st_shape(char *out, size_t size, int ndim, const int64_t *dim);

/* Converts elements [first, first+n) to real: those of a tensor with heads all at once. HOLA_ENOTSUP: a type that we do
 * not read. */
hola_status hl_st_read(const struct hl_st_tensor *t, int64_t first, int64_t n, real *out);

struct hl_st_entry {
    const char *name;
    hola_dtype dtype; /* to store as */
    int ndim;
    int64_t dim[HL_ST_MAX_DIMS];
    const real *src;
    const void *raw; /* instead of src: the bytes as they are; INT8 is then written as I8, INT4 as U8 */
};
/* Writes a file, whole or not at all, tensors in the given order. metadata: NULL, or key, value, ..., NULL;
 * {"format": "pt"} is always there. Values that are not finite, or would not be as dtype, are refused
 * (HOLA_ENUMERIC): nothing could read them back. */
hola_status hl_st_write(const char *path, const struct hl_st_entry *entry, int64_t n, const char *const *metadata);

#endif
