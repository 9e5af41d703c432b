/* stream.c -- see stream.h. libarchive decompresses; without it compressed files are refused. */
#define _POSIX_C_SOURCE 200809L
#include "data/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HL_HAVE_LIBARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

enum { BLOCK = 256 << 10, PEEK = 4096 };

struct hl_stream {
    int fd;
    char *name;
    int64_t consumed;
    int64_t peeked; /* bytes of block that were peeked at and not yet returned */
    bool end;
    struct archive *archive; /* NULL: uncompressed */
    char block[BLOCK];
};

/* ---- the raw file ---- */

/* Reads up to BLOCK bytes into block[at..]; -1: failed, with a message. */
static int64_t read_some(struct hl_stream *s, int64_t at) {
    ssize_t n;
    do n = read(s->fd, s->block + at, (size_t)(BLOCK - at));
    while (n < 0 && errno == EINTR);
    if (n < 0) hl_fail(HOLA_EIO, "%s: cannot read: %s", s->name, strerror(errno));
    else s->consumed += n;
    if (n == 0) s->end = true;
    return n;
}

/* Reads enough of the start to detect the format; pipes return less at a time. */
static hola_status peek(struct hl_stream *s) {
    while (s->peeked < PEEK && !s->end) {
        int64_t n = read_some(s, s->peeked);
        if (n < 0) return HOLA_EIO;
        s->peeked += n;
    }
    return HOLA_OK;
}

static hola_status read_plain(struct hl_stream *s, const char **data, int64_t *n) {
    *data = s->block;
    *n = s->peeked;
    s->peeked = 0;
    if (*n > 0 || s->end) return HOLA_OK;
    *n = read_some(s, 0);
    return *n < 0 ? HOLA_EIO : HOLA_OK;
}

/* ---- compression ---- */

static const struct {
    const char *suffix, *magic;
    int64_t n;
} kinds[] = {{".gz", "\x1f\x8b", 2}, {".xz", "\xfd\x37zXZ", 6}, {".zst", "\x28\xb5\x2f\xfd", 4}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n > k && !strcmp(text + n - k, end);
}

#ifdef HL_HAVE_LIBARCHIVE

static la_ssize_t feed(struct archive *a, void *ctx, const void **data) {
    struct hl_stream *s = ctx;
    int64_t n = 0;
    const char *bytes = NULL;
    if (read_plain(s, &bytes, &n) != HOLA_OK) {
        archive_set_error(a, errno, "cannot read: %s", strerror(errno));
        return ARCHIVE_FATAL;
    }
    *data = bytes;
    return (la_ssize_t)n;
}

static hola_status fail_archive(struct hl_stream *s) {
    const char *why = archive_error_string(s->archive);
    return hl_fail(HOLA_EFORMAT, "%s: damaged: %s", s->name, why ? why : "cannot decompress");
}

static hola_status open_archive(struct hl_stream *s) {
    struct archive_entry *entry;
    struct archive *a = s->archive = archive_read_new();
    int rc;
    if (!a) return hl_fail(HOLA_ENOMEM, "%s: no memory", s->name);
    /* a filter that needs an external program returns a warning here, and fails later if used */
    archive_read_support_filter_gzip(a);
    archive_read_support_filter_xz(a);
    archive_read_support_filter_zstd(a);
    archive_read_support_format_raw(a);
    archive_read_support_format_empty(a);
    if (archive_read_open(a, s, NULL, feed, NULL) != ARCHIVE_OK) return fail_archive(s);
    rc = archive_read_next_header(a, &entry);
    if (rc == ARCHIVE_EOF) s->end = true;
    return rc == ARCHIVE_OK || rc == ARCHIVE_EOF || rc == ARCHIVE_WARN ? HOLA_OK : fail_archive(s);
}

static hola_status read_archive(struct hl_stream *s, const char **data, int64_t *n) {
    const void *bytes = NULL;
    size_t size = 0;
    la_int64_t offset;
    int rc = ARCHIVE_OK;
    *n = 0;
    if (archive_format(s->archive) == ARCHIVE_FORMAT_EMPTY) return HOLA_OK;
    while (size == 0 && rc == ARCHIVE_OK) rc = archive_read_data_block(s->archive, &bytes, &size, &offset);
    if (rc != ARCHIVE_OK && rc != ARCHIVE_EOF) return fail_archive(s);
    *data = bytes;
    *n = (int64_t)size;
    return HOLA_OK;
}

static void free_archive(struct hl_stream *s) { archive_read_free(s->archive); }

#else

static hola_status open_archive(struct hl_stream *s) {
    return hl_fail(HOLA_ENOTSUP, "%s: compressed, and this hola was built without libarchive", s->name);
}
static hola_status read_archive(struct hl_stream *s, const char **data, int64_t *n) {
    *data = s->block, *n = 0;
    return HOLA_OK;
}
static void free_archive(struct hl_stream *s) { (void)s; }

#endif

/* ---- both ---- */

static hola_status begin(struct hl_stream *s, const char *path) {
    bool standard = !strcmp(path, "-");
    hola_status status;
    s->fd = -1;
    s->name = strdup(standard ? "standard input" : path);
    if (!s->name) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    s->fd = standard ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) return hl_fail(HOLA_EIO, "%s: %s", s->name, strerror(errno));
    status = peek(s);
    if (status != HOLA_OK) return status;
    for (int k = 0; k < KINDS; k++) {
        bool is = s->peeked >= kinds[k].n && !memcmp(s->block, kinds[k].magic, (size_t)kinds[k].n);
        if (is) return open_archive(s);
        if (ends_with(path, kinds[k].suffix)) return hl_fail(HOLA_EFORMAT, "%s: not %s data", s->name, kinds[k].suffix);
    }
    return HOLA_OK;
}

hola_status hl_stream_open(struct hl_stream **out, const char *path) {
    struct hl_stream *s = calloc(1, sizeof *s);
    hola_status status = s ? begin(s, path) : hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    *out = NULL;
    if (status == HOLA_OK) *out = s;
    else hl_stream_free(s);
    return status;
}

void hl_stream_free(struct hl_stream *s) {
    if (!s) return;
    if (s->archive) free_archive(s);
    if (s->fd >= 0) close(s->fd);
    free(s->name);
    free(s);
}

hola_status hl_stream_read(struct hl_stream *s, const char **data, int64_t *n) {
    return s->archive ? read_archive(s, data, n) : read_plain(s, data, n);
}

int64_t hl_stream_consumed(const struct hl_stream *s) { return s->consumed; }
const char *hl_stream_name(const struct hl_stream *s) { return s->name; }
