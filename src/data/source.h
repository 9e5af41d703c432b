/* source.h -- documents from files: .txt (one document per file), .jsonl (one per line, its text in a field), both also
 * as .gz, .xz, .zst; "-" is standard input; directories are walked in sorted order. Invalid UTF-8 passes through
 * unchanged. */
#ifndef HL_SOURCE_H
#define HL_SOURCE_H
#include "core/status.h"

/* auto: by file extension; other names and standard input are jsonl if the first non-space byte is '{', else text. */
enum hl_format { HL_FORMAT_AUTO, HL_FORMAT_TEXT, HL_FORMAT_JSONL };
struct hl_source_opts { /* zero means default */
    enum hl_format format;
    bool split_lines; /* text: every line is a document */
};

struct hl_source;
/* Finds all files. In a directory: those with one of the extensions above whose name does not begin with a dot. */
hola_status hl_source_open(struct hl_source **out, const char *const *inputs, int64_t n,
                           const struct hl_source_opts *opts);
void hl_source_free(struct hl_source *s);
int64_t hl_source_files(const struct hl_source *s);
const char *hl_source_path(const struct hl_source *s, int64_t i);
/* Bytes of files read, and in total; all is 0 if unknown because of a pipe. */
void hl_source_progress(const struct hl_source *s, int64_t *done, int64_t *all);

struct hl_record {
    char *text; /* the caller frees it. NULL: end of input */
    int64_t len;
    const char *name; /* of the file; owned by the source */
    int64_t line;     /* 0: the whole file */
    bool json;        /* a JSON line not yet passed to hl_record_decode */
};
hola_status hl_source_next(struct hl_source *s, struct hl_record *r);
/* Replaces a JSON line by the text of its field; leaves text unchanged. Thread-safe. */
hola_status hl_record_decode(struct hl_record *r, const char *field);

#endif
