/* tokenizer_load.h -- a tokenizer from a file written here, and its encoding of a text. */
#ifndef TOKENIZER_LOAD_H
#define TOKENIZER_LOAD_H
#include "check.h"
#include "temp.h"
#include "tokenizer/tokenizer.h"

static inline hola_tokenizer *load(const char *dir, const char *name, const void *data, int64_t size) {
    hola_tokenizer *t = NULL;
    char *path = hl_path_join(dir, name);
    temp_write(dir, name, data, size);
    CHECK_OK(hola_tokenizer_load(&t, path));
    free(path);
    return t;
}
static inline bool encodes_to(const hola_tokenizer *t, const char *text, int64_t len, const int32_t *want, int64_t n) {
    int32_t *ids;
    int64_t got;
    CHECK_OK(hola_tokenizer_encode(t, text, len, 1, &ids, &got));
    bool same = got == n && (n == 0 || memcmp(ids, want, (size_t)n * sizeof *ids) == 0);
    free(ids);
    return same;
}

#endif
