/* jsonl.h -- the rows of a dataset: one JSON object per line. Errors name the file and row. */
#ifndef HL_EVAL_ROWS_H
#define HL_EVAL_ROWS_H
#include "core/file.h"
#include "core/json.h"
#include "eval/eval.h"

struct hl_rowfile {
    const char *path;
    struct hl_map map;
    int64_t at, row; /* bytes read; the row in *now, from 1 */
    json_t *now;
};
hola_status hl_rowfile_open(struct hl_rowfile *f, const char *path);
void hl_rowfile_close(struct hl_rowfile *f); /* zeroed ones too */
/* Reads the next row into f->now; NULL at the end. Skips blank lines. */
hola_status hl_rowfile_next(struct hl_rowfile *f);
/* "FILE: row N: ..." */
hola_status hl_row_fail(const struct hl_rowfile *f, const char *fmt, ...) HL_PRINTF(2, 3);

/* A required field of the given type. Texts are valid until the next row. */
hola_status hl_row_text(const struct hl_rowfile *f, const char *name, struct hl_span *out);
/* The first of two names that exists. */
hola_status hl_row_text_or(const struct hl_rowfile *f, const char *name, const char *other, struct hl_span *out);
/* An integer, or a string of digits, below n and not negative. */
hola_status hl_row_index(const struct hl_rowfile *f, const char *name, int64_t n, int64_t *out);
bool hl_row_has(const struct hl_rowfile *f, const char *name);
/* A list of 2 to most texts: ["a", ..] or, where labels is not NULL, {"text": ["a", ..], "label": ["A", ..]}
 * too (without labels *labels is NULL). */
hola_status hl_row_list(const struct hl_rowfile *f, const char *name, struct hl_span *out, int most, int *n,
                        const json_t **labels);

#endif
