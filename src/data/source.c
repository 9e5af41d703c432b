/* source.c -- see source.h. */
#define _GNU_SOURCE
#include "data/source.h"
#include "core/file.h"
#include "core/text.h"
#include "data/stream.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct hl_source {
    struct hl_source_opts opts;
    struct file {
        char *path;
        int64_t size;
    } * file;
    int64_t files, room, all;
    bool unknown; /* the size of some input is unknown */

    int64_t at, before; /* the open file; bytes of earlier files */
    struct hl_stream *stream;
    bool json, lines;
    int64_t line;
    const char *rest; /* rest of the block borrowed from the stream */
    int64_t left;
    struct hl_text part; /* an incomplete line or file */
};

/* ---- finding files ---- */

static bool ends_with(const char *text, size_t n, const char *end) {
    size_t k = strlen(end);
    return n > k && !memcmp(text + n - k, end, k);
}

/* By file name, ignoring .gz and so on; auto: unknown. */
static enum hl_format format_of(const char *path) {
    static const char *const packed[] = {".gz", ".xz", ".zst"};
    size_t n = strlen(path);
    for (int i = 0; i < 3; i++)
        if (ends_with(path, n, packed[i])) {
            n -= strlen(packed[i]);
            break;
        }
    if (ends_with(path, n, ".txt")) return HL_FORMAT_TEXT;
    return ends_with(path, n, ".jsonl") ? HL_FORMAT_JSONL : HL_FORMAT_AUTO;
}

static hola_status add_file(struct hl_source *s, const char *path, const struct stat *st) {
    char *copy = strdup(path);
    struct file *grown = s->file;
    if (s->files == s->room) grown = realloc(s->file, (size_t)(s->room = 2 * s->room + 16) * sizeof *s->file);
    if (grown) s->file = grown;
    if (!copy || !grown) {
        free(copy);
        return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    }
    if (!st || !S_ISREG(st->st_mode)) s->unknown = true;
    s->file[s->files] = (struct file){copy, st ? (int64_t)st->st_size : 0};
    s->all += s->file[s->files++].size;
    return HOLA_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort depends on the locale */
}
static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static hola_status walk(struct hl_source *s, const char *dir, int depth) {
    struct dirent **entry;
    int n = scandir(dir, &entry, visible, by_name);
    hola_status status = HOLA_OK;
    if (n < 0) return hl_fail(HOLA_EIO, "%s: %s", dir, strerror(errno));
    if (depth > 32) status = hl_fail(HOLA_EIO, "%s: more than 32 directories deep", dir);
    for (int i = 0; i < n; i++) {
        char *path = status == HOLA_OK ? hl_path_join(dir, entry[i]->d_name) : NULL;
        struct stat st;
        free(entry[i]);
        if (status != HOLA_OK) continue;
        if (!path) status = hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
        else if (stat(path, &st) != 0) status = hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
        else if (S_ISDIR(st.st_mode)) status = walk(s, path, depth + 1);
        else if (S_ISREG(st.st_mode) && format_of(path)) status = add_file(s, path, &st);
        free(path);
    }
    free(entry);
    return status;
}

static hola_status add_input(struct hl_source *s, const char *path) {
    struct stat st;
    int64_t before = s->files;
    hola_status status;
    if (!strcmp(path, "-")) return add_file(s, path, NULL);
    if (stat(path, &st) != 0) return hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return add_file(s, path, &st);
    status = walk(s, path, 0);
    if (status == HOLA_OK && s->files == before) status = hl_fail(HOLA_EIO, "%s: no .txt or .jsonl files in it", path);
    return status;
}

hola_status hl_source_open(struct hl_source **out, const char *const *inputs, int64_t n,
                           const struct hl_source_opts *opts) {
    struct hl_source *s = calloc(1, sizeof *s);
    hola_status status = s ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%zu bytes", sizeof *s);
    *out = NULL;
    if (s && opts) s->opts = *opts;
    for (int64_t i = 0; i < n && status == HOLA_OK; i++) status = add_input(s, inputs[i]);
    if (status == HOLA_OK) *out = s;
    else hl_source_free(s);
    return status;
}

void hl_source_free(struct hl_source *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->files; i++) free(s->file[i].path);
    free(s->file);
    free(s->part.data);
    hl_stream_free(s->stream);
    free(s);
}

int64_t hl_source_files(const struct hl_source *s) { return s->files; }
const char *hl_source_path(const struct hl_source *s, int64_t i) { return s->file[i].path; }

void hl_source_progress(const struct hl_source *s, int64_t *done, int64_t *all) {
    *done = s->before + (s->stream ? hl_stream_consumed(s->stream) : 0);
    *all = s->unknown ? 0 : s->all;
}

/* ---- reading ---- */

static hola_status append(struct hl_source *s, const char *data, int64_t n) {
    if (hl_text_put(&s->part, data, n) == HOLA_OK) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "%s: no memory for a document of %" PRId64 " bytes", hl_stream_name(s->stream),
                   s->part.n + n);
}

/* Fills rest; left stays 0 at the end of the file. */
static hola_status refill(struct hl_source *s) {
    return s->left > 0 ? HOLA_OK : hl_stream_read(s->stream, &s->rest, &s->left);
}

static hola_status open_next(struct hl_source *s) {
    const char *path = s->file[s->at].path;
    enum hl_format format = s->opts.format ? s->opts.format : format_of(path);
    hola_status status = hl_stream_open(&s->stream, path);
    s->left = s->line = s->part.n = 0;
    if (status == HOLA_OK) status = refill(s);
    if (status != HOLA_OK) return status;
    if (s->left > 3 && format != HL_FORMAT_TEXT && !memcmp(s->rest, "\xef\xbb\xbf{", 4))
        s->rest += 3, s->left -= 3; /* a byte order mark */
    if (format == HL_FORMAT_AUTO) {
        int64_t i = 0;
        while (i < s->left && s->rest[i] && strchr(" \t\r\n", s->rest[i])) i++;
        format = i < s->left && s->rest[i] == '{' ? HL_FORMAT_JSONL : HL_FORMAT_TEXT;
    }
    s->json = format == HL_FORMAT_JSONL;
    s->lines = s->json || s->opts.split_lines;
    return HOLA_OK;
}

static void close_file(struct hl_source *s) {
    hl_stream_free(s->stream);
    s->stream = NULL;
    s->before += s->file[s->at++].size;
}

/* Returns a document: part plus the n bytes at data. */
static hola_status give(struct hl_source *s, const char *data, int64_t n, struct hl_record *r) {
    const char *path = s->file[s->at].path;
    hola_status status = append(s, data, n);
    if (status != HOLA_OK) return status;
    *r = (struct hl_record){
        .len = s->part.n, .name = strcmp(path, "-") ? path : "standard input", .line = s->line, .json = s->json};
    if (!s->lines) { /* may be large: no copy */
        r->text = s->part.data;
        s->part = (struct hl_text){0};
    } else if ((r->text = malloc((size_t)s->part.n + 1))) {
        memcpy(r->text, s->part.data, (size_t)s->part.n);
    }
    s->part.n = 0;
    return r->text ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", path);
}

static bool is_blank(const char *p, int64_t n) {
    while (n > 0 && (*p == ' ' || *p == '\t' || *p == '\r')) p++, n--;
    return n == 0;
}

/* The next line that is not blank; r->text stays NULL at the end of the file. */
static hola_status next_line(struct hl_source *s, struct hl_record *r) {
    hola_status status = HOLA_OK;
    while (status == HOLA_OK && (status = refill(s)) == HOLA_OK) {
        const char *line = s->rest, *end = s->left > 0 ? memchr(line, '\n', (size_t)s->left) : NULL;
        int64_t n = end ? end - line : s->left;
        bool last = s->left == 0, blank = is_blank(line, n) && is_blank(s->part.data, s->part.n);
        s->rest += n + (end != NULL), s->left -= n + (end != NULL);
        if (!end && !last) { /* it continues in the next block */
            status = append(s, line, n);
            continue;
        }
        s->line++;
        if (!blank) return give(s, line, n, r);
        s->part.n = 0;
        if (last) return HOLA_OK;
    }
    return status;
}

static hola_status whole_file(struct hl_source *s, struct hl_record *r) {
    hola_status status = HOLA_OK;
    while (status == HOLA_OK && (status = refill(s)) == HOLA_OK && s->left > 0) {
        status = append(s, s->rest, s->left);
        s->left = 0;
    }
    return status == HOLA_OK ? give(s, NULL, 0, r) : status;
}

hola_status hl_source_next(struct hl_source *s, struct hl_record *r) {
    hola_status status = HOLA_OK;
    *r = (struct hl_record){0};
    while (status == HOLA_OK && !r->text && s->at < s->files) {
        if (!s->stream) status = open_next(s);
        if (status != HOLA_OK) break;
        if (s->lines) {
            status = next_line(s, r);
            if (status == HOLA_OK && !r->text) close_file(s);
        } else {
            status = whole_file(s, r);
            if (status == HOLA_OK) close_file(s);
        }
    }
    return status;
}

hola_status hl_record_decode(struct hl_record *r, const char *field) {
    json_error_t e = {.line = 0};
    json_t *root, *text;
    hola_status s = HOLA_OK;
    if (!r->json) return HOLA_OK;
    /* large integers in other fields are allowed */
    root = json_loadb(r->text, (size_t)r->len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    text = json_object_get(root, field);
    if (!root) s = hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": %s", r->name, r->line, e.text);
    else if (!json_is_object(root))
        s = hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": not a JSON object", r->name, r->line);
    else if (!text) {
        const bool chat = json_object_get(root, "messages") || json_object_get(root, "completion");
        s = hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": no field \"%s\"%s", r->name, r->line, field,
                    chat ? "; --format chat reads conversations" : "");
    } else if (!json_is_string(text))
        s = hl_fail(HOLA_EFORMAT, "%s: line %" PRId64 ": \"%s\" is not a string", r->name, r->line, field);
    else { /* never longer than its JSON */ r->len = (int64_t)json_string_length(text);
        memcpy(r->text, json_string_value(text), (size_t)r->len);
        r->json = false;
    }
    json_decref(root);
    return s;
}
