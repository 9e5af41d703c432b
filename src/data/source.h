/* source.h -- documents from files: .txt (a file is a document), .jsonl (a line is one, its text in a field),
 * both also as .gz, .xz, .zst; "-" is standard input; directories are walked in sorted order. Bytes that are
 * not UTF-8 pass through. */
#ifndef HL_SOURCE_H
#define HL_SOURCE_H
#include "core/status.h"

/* auto: by the name's end; other names and standard input are jsonl where the first byte that is no space is
 * '{', else text. */
enum hl_format { HL_FORMAT_AUTO, HL_FORMAT_TEXT, HL_FORMAT_JSONL };
struct hl_source_opts { /* zero means default */
    enum hl_format format;
    bool split_lines; /* text: every line is a document */
};

struct hl_source;
/* Finds all files. A directory gives those of the names above that do not begin with a dot. */
hola_status hl_source_open(struct hl_source **out, const char *const *inputs, int64_t n,
                           const struct hl_source_opts *opts);
void hl_source_free(struct hl_source *s);
int64_t hl_source_files(const struct hl_source *s);
const char *hl_source_path(const struct hl_source *s, int64_t i);
/* Bytes of files read, and of all; all is 0 where a pipe makes it unknown. */
void hl_source_progress(const struct hl_source *s, int64_t *done, int64_t *all);

struct hl_record {
    char *text; /* yours: free() it. NULL: there are no more */
    int64_t len;
    const char *name; /* of the file, lent by the source */
    int64_t line;     /* 0: the whole file */
    bool json;        /* a line of JSON that hl_record_decode has not seen yet */
};
hola_status hl_source_next(struct hl_source *s, struct hl_record *r);
/* Turns a line of JSON into the text of its field; leaves text alone. Any thread. */
hola_status hl_record_decode(struct hl_record *r, const char *field);

#endif
