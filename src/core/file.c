/* file.c -- mapping files, and replacing them atomically. */
#define _GNU_SOURCE
#include "core/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading ---- */

hola_status hl_map_open(struct hl_map *m, const char *path) {
    hola_status s = HOLA_OK;
    struct stat st;
    int fd;
    *m = (struct hl_map){0};
    /* O_NONBLOCK: opening a FIFO must not wait for a writer */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0) {
        s = hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        s = hl_fail(HOLA_EIO, "%s: is a directory", path);
    } else if (!S_ISREG(st.st_mode)) {
        s = hl_fail(HOLA_EIO, "%s: not a regular file", path);
    } else if (st.st_size == 0) {
        s = hl_fail(HOLA_EFORMAT, "%s: empty file", path);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) s = hl_fail(HOLA_EIO, "%s: cannot map: %s", path, strerror(errno));
        else *m = (struct hl_map){.data = p, .size = st.st_size};
    }
    close(fd);
    return s;
}

void hl_map_close(struct hl_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    *m = (struct hl_map){0};
}

hola_status hl_bytes_read(struct hl_bytes *b, void *to, int64_t n) {
    if (n > b->size - b->at) return hl_fail(HOLA_EFORMAT, "%s: cut off", b->path);
    if (b->data && n > 0) memcpy(to, b->data + b->at, (size_t)n), b->at += n;
    for (char *p = to; !b->data && n > 0;) {
        const ssize_t got = pread(b->fd, p, (size_t)n, b->at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return hl_fail(HOLA_EIO, "%s: cannot read: %s", b->path, strerror(errno));
        if (got == 0) return hl_fail(HOLA_EFORMAT, "%s: cut off", b->path);
        p += got, n -= got, b->at += got;
    }
    return HOLA_OK;
}

/* ---- names ---- */

char *hl_path_join(const char *dir, const char *name) {
    size_t d = strlen(dir), n = strlen(name);
    char *p = malloc(d + n + 2);
    if (!p) return NULL;
    memcpy(p, dir, d);
    if (d > 0 && dir[d - 1] != '/') p[d++] = '/';
    memcpy(p + d, name, n + 1);
    return p;
}

hola_status hl_make_dirs(const char *path) {
    hola_status s = HOLA_OK;
    char *p = strdup(path);
    struct stat st;
    if (!p) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    for (char *c = p + 1; s == HOLA_OK && p[0]; c++) {
        char keep = *c;
        if (keep != '/' && keep != 0) continue;
        *c = 0;
        if (mkdir(p, 0777) != 0 && errno != EEXIST) s = hl_fail(HOLA_EIO, "%s: %s", p, strerror(errno));
        *c = keep;
        if (keep == 0) break;
    }
    if (s == HOLA_OK && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)))
        s = hl_fail(HOLA_EIO, "%s: not a directory", path);
    free(p);
    return s;
}

/* The directory part with its slash: "a/b" -> "a/", "b" -> "". */
static size_t dir_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* ---- writing ---- */

/* Closes the writer and releases its file descriptor, temporary file and memory. */
static hola_status give_up(struct hl_writer *w, hola_status code) {
    if (w->f) fclose(w->f);
    if (w->temp) unlink(w->temp);
    free(w->path);
    free(w->temp);
    *w = (struct hl_writer){.failed = code};
    return code;
}

static hola_status fail_errno(struct hl_writer *w, int error) {
    return give_up(w,
                   hl_fail(error == ENOMEM ? HOLA_ENOMEM : HOLA_EIO, "%s: cannot write: %s", w->path, strerror(error)));
}

/* Devices and pipes (such as /dev/stdout) are written to directly; as root, a rename would even replace them. */
static bool is_stream(const char *path) {
    struct stat st;
    if (strncmp(path, "/dev/", 5) == 0 && lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) return true;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}
static hola_status open_stream(struct hl_writer *w, const char *path) {
    /* O_NONBLOCK: a FIFO without a reader fails instead of blocking forever */
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_errno(w, errno);
    if (fcntl(fd, F_SETFL, 0) == 0) w->f = fdopen(fd, "wb");
    if (w->f) return HOLA_OK;
    int error = errno;
    close(fd);
    return fail_errno(w, error);
}

hola_status hl_writer_open(struct hl_writer *w, const char *path) {
    static atomic_uint serial; /* writers of one process never share a temporary file */
    size_t dir = dir_length(path), room = strlen(path) + 48;
    int fd = -1;
    *w = (struct hl_writer){.path = strdup(path), .temp = NULL};
    if (w->path && is_stream(path)) return open_stream(w, path);
    char *temp = malloc(room);
    if (!w->path || !temp) {
        free(temp);
        return give_up(w, hl_fail(HOLA_ENOMEM, "%s: no memory", path));
    }
    /* skips a leftover of a killed process with the same PID */
    for (int tries = 0; fd < 0 && tries < 1000; tries++) {
        snprintf(temp, room, "%.*s.%s.tmp-%ld-%u", (int)dir, path, path + dir, (long)getpid(),
                 atomic_fetch_add(&serial, 1));
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        int error = errno;
        free(temp);
        return fail_errno(w, error);
    }
    w->temp = temp;
    w->f = fdopen(fd, "wb");
    if (!w->f) {
        int error = errno;
        close(fd);
        return fail_errno(w, error);
    }
    return HOLA_OK;
}

hola_status hl_writer_write(struct hl_writer *w, const void *data, int64_t size) {
    if (w->failed) return w->failed;
    errno = EIO; /* in case stdio does not set it */
    if (size > 0 && fwrite(data, 1, (size_t)size, w->f) != (size_t)size) return fail_errno(w, errno);
    w->written += size;
    return HOLA_OK;
}

/* The rename itself must reach the disk. File systems that cannot sync a directory return EINVAL. */
static int sync_directory(const char *path) {
    size_t n = dir_length(path);
    char *dir = n > 0 ? strndup(path, n) : strdup(".");
    int error = 0, fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(dir);
    if (fd < 0) return 0; /* the directory is writable but not readable */
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) error = errno;
    close(fd);
    return error;
}

hola_status hl_writer_commit(struct hl_writer *w) {
    int error = 0;
    FILE *f = w->f;
    if (w->failed) return w->failed;
    errno = EIO;
    if (fflush(f) != 0) return fail_errno(w, errno);
    if (fsync(fileno(f)) != 0 && errno != EINVAL) return fail_errno(w, errno);
    w->f = NULL;
    if (fclose(f) != 0) return fail_errno(w, errno);
    if (!w->temp) return give_up(w, HOLA_OK);
    if (rename(w->temp, w->path) != 0) return fail_errno(w, errno);
    free(w->temp);
    w->temp = NULL;
    error = sync_directory(w->path);
    return error ? fail_errno(w, error) : give_up(w, HOLA_OK);
}

void hl_writer_abort(struct hl_writer *w) { give_up(w, w->failed); }

hola_status hl_write_file(const char *path, const void *data, int64_t size) {
    struct hl_writer w;
    hola_status s = hl_writer_open(&w, path);
    if (s == HOLA_OK) s = hl_writer_write(&w, data, size);
    if (s == HOLA_OK) s = hl_writer_commit(&w);
    hl_writer_abort(&w);
    return s;
}
