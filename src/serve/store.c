/* store.c -- the folder of conversations and its worker thread; see store.h. */
#define _GNU_SOURCE
#include "serve/store_internal.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/thread.h"
#include "model/session.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STOP = -1 };
struct errand { /* a job and its reply queue */
    struct hl_message message;
    struct hl_store_job *job;
    struct hl_queue *reply;
};

/* ---- names ---- */

void hl_store_file(char name[HL_FILE_NAME], const struct hl_store *s, const char *id, const char *suffix) {
    snprintf(name, HL_FILE_NAME, "%s.%016" PRIx64 "%s", id, s->model, suffix);
}
void hl_store_temp(char name[HL_FILE_NAME], const struct hl_store *s, const char *id, const char *token) {
    snprintf(name, HL_FILE_NAME, ".%s.%016" PRIx64 HL_SESSION_SUFFIX "%s%s.tmp", id, s->model, token[0] ? "." : "",
             token);
}
bool hl_store_id(const struct hl_store *s, const char *name, char id[HL_ID_MOST + 1]) {
    char tail[32];
    snprintf(tail, sizeof tail, ".%016" PRIx64 HL_SESSION_SUFFIX, s->model);
    const size_t n = strlen(name), t = strlen(tail);
    if (n <= t || n - t > HL_ID_MOST || strcmp(name + n - t, tail) != 0 || name[0] == '.') return false;
    memcpy(id, name, n - t);
    id[n - t] = 0;
    return true;
}
struct hl_stamp hl_stamp_of(const struct stat *st) {
    return (struct hl_stamp){(uint64_t)st->st_ino, (int64_t)st->st_size, (int64_t)st->st_mtim.tv_sec,
                             (int64_t)st->st_mtim.tv_nsec};
}

/* ---- the three verbs ---- */

static hola_status fail_errno(const char *verb, const char *name, int error) {
    return hl_fail(error == ENOMEM ? HOLA_ENOMEM : HOLA_EIO, "%s: cannot %s: %s", name, verb, strerror(error));
}

static int write_all(int fd, const char *data, int64_t size) {
    while (size > 0) {
        const ssize_t n = write(fd, data, (size_t)(size < 1 << 30 ? size : 1 << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        data += n, size -= n;
    }
    return 0;
}

/* Renames the new file over the old one; in a shared folder only while we hold the lease, which is then released. */
static int put_in_place(const struct hl_store *s, struct hl_store_job *j, const char *temp, const char *name) {
    char lease[HL_FILE_NAME];
    int error = 0, lock = -1;
    if (j->token[0]) {
        hl_store_file(lease, s, j->id, HL_LEASE_SUFFIX);
        const enum hl_lease_answer a = hl_lease_open(s->fd, lease, j->token, s->lease, &lock);
        if (a == HL_LEASE_FAILED) return errno;
        if (a != HL_LEASE_MINE) {
            j->lost = true;
            return EBUSY;
        }
    }
    if (renameat(s->fd, temp, s->fd, name) != 0) error = errno;
    if (!error && fsync(s->fd) != 0 && errno != EINVAL && errno != EROFS) error = errno;
    if (lock >= 0) hl_lease_close(s->fd, lease, lock, !error);
    return error;
}

/* Temporary files begin with a dot, which no id does; files left by a killed process are overwritten, and in a shared
 * folder removed by the next owner of the lease. */
static hola_status save(const struct hl_store *s, struct hl_store_job *j) {
    char name[HL_FILE_NAME], temp[HL_FILE_NAME];
    char *head, *session = NULL;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}};
    struct stat st;
    int64_t size;
    hl_store_file(name, s, j->id, HL_SESSION_SUFFIX);
    hl_store_temp(temp, s, j->id, j->token);
    hola_status status = hl_stored_pack(&j->record, s->model, &head, &size);
    if (status == HOLA_OK && j->record.state) {
        int64_t bytes;
        status = hl_snapshot_pack(j->record.model, s->model, j->record.state, j->id, j->record.dtype, &session, &bytes);
        if (status != HOLA_OK) free(head);
        HL_ASSERT(status != HOLA_OK || bytes == j->record.session_bytes);
    }
    if (status != HOLA_OK) return status;
    unlinkat(s->fd, temp, 0);
    const int fd = openat(s->fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : write_all(fd, head, size);
    if (!error && session) error = write_all(fd, session, j->record.session_bytes);
    free(head), free(session);
    /* The kernel's own timestamps advance only every few milliseconds, and inodes are reused: in a shared folder two
     * versions could look the same. */
    if (fd >= 0 && !error && clock_gettime(CLOCK_REALTIME, &times[1]) == 0) futimens(fd, times);
    if (fd >= 0 && !error && fsync(fd) != 0 && errno != EINVAL) error = errno;
    if (fd >= 0 && !error && fstat(fd, &st) == 0) j->stamp = hl_stamp_of(&st);
    if (fd >= 0 && close(fd) != 0 && !error) error = errno;
    if (!error) error = put_in_place(s, j, temp, name);
    if (error && fd >= 0) unlinkat(s->fd, temp, 0);
    return error ? fail_errno("write", name, error) : HOLA_OK;
}

/* Opens a regular file; the descriptor stays valid when a newer file replaces it. */
static hola_status open_file(const struct hl_store *s, const char *name, int *fd, struct stat *st) {
    *fd = openat(s->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return fail_errno("read", name, errno);
    hola_status status = HOLA_OK;
    if (fstat(*fd, st) != 0) status = fail_errno("read", name, errno);
    else if (!S_ISREG(st->st_mode)) status = hl_fail(HOLA_EFORMAT, "%s: not a regular file", name);
    if (status != HOLA_OK) close(*fd), *fd = -1;
    return status;
}

/* Reads its first bytes, at most `most`. */
static hola_status read_bytes(int fd, const char *name, int64_t most, char **data, int64_t *size) {
    hola_status status = HOLA_OK;
    *size = 0;
    *data = malloc((size_t)most + 1);
    if (!*data) return hl_fail(HOLA_ENOMEM, "%s: no memory", name);
    while (status == HOLA_OK && *size < most) {
        const ssize_t n = pread(fd, *data + *size, (size_t)(most - *size), *size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = fail_errno("read", name, errno);
        if (n <= 0) break;
        *size += n;
    }
    if (status != HOLA_OK) free(*data), *data = NULL;
    return status;
}

static hola_status load(const struct hl_store *s, struct hl_store_job *j) {
    char name[HL_FILE_NAME];
    struct stat about;
    struct hl_bytes from = {.path = name};
    hl_store_file(name, s, j->id, HL_SESSION_SUFFIX);
    hola_status st = open_file(s, name, &from.fd, &about);
    if (st != HOLA_OK) return st;
    j->stamp = hl_stamp_of(&about);
    from.size = about.st_size;
    st = hl_stored_read(&j->record, &from, s->model);
    close(from.fd);
    return st;
}

json_t *hl_store_about(const struct hl_store *s, const char *id, struct hl_stamp *stamp) {
    char name[HL_FILE_NAME], *data = NULL;
    int64_t size = 0, end = -1;
    json_t *about = NULL;
    struct stat st;
    int fd;
    hl_store_file(name, s, id, HL_SESSION_SUFFIX);
    if (open_file(s, name, &fd, &st) != HOLA_OK) return NULL;
    *stamp = hl_stamp_of(&st);
    if (read_bytes(fd, name, HL_RECORD_HEAD, &data, &size) == HOLA_OK) end = hl_stored_about_end(data, size, s->model);
    free(data), data = NULL;
    if (end >= HL_RECORD_HEAD && end <= st.st_size && read_bytes(fd, name, end, &data, &size) == HOLA_OK && size == end)
        about = json_loadb(data + HL_RECORD_HEAD, (size_t)(size - HL_RECORD_HEAD), JSON_ALLOW_NUL, NULL);
    close(fd);
    free(data);
    if (!json_is_object(about)) json_decref(about), about = NULL;
    return about;
}

static hola_status take_away(const struct hl_store *s, const char *id) {
    char name[HL_FILE_NAME];
    hl_store_file(name, s, id, HL_SESSION_SUFFIX);
    if (unlinkat(s->fd, name, 0) != 0 && errno != ENOENT) return fail_errno("remove", name, errno);
    return HOLA_OK;
}

void hl_store_do(struct hl_store *s, struct hl_store_job *j) {
    j->status = HOLA_EINVAL;
    if (j->verb == HL_STORE_SAVE) j->status = save(s, j);
    else if (j->verb == HL_STORE_LOAD) j->status = load(s, j);
    else if (j->verb == HL_STORE_REMOVE) j->status = take_away(s, j->id);
    snprintf(j->error, sizeof j->error, "%s", j->status == HOLA_OK ? "" : hola_last_error());
}

/* ---- the thread ---- */

static void *work(void *ctx) {
    struct hl_store *s = ctx;
    for (bool go = true; go;) {
        struct hl_message *m = hl_queue_take(&s->inbox, hl_store_renew(s)), *next;
        for (; m; m = next) {
            struct errand *e = (struct errand *)m;
            next = m->next;
            if (m->kind == STOP) go = false;
            else {
                hl_store_do(s, e->job);
                e->job->message.kind = e->job->reply_kind;
                hl_queue_put(e->reply, &e->job->message);
            }
            free(e);
        }
    }
    return NULL;
}

void hl_store_ask(struct hl_store *s, struct hl_store_job *j, struct hl_queue *reply) {
    struct errand *e = malloc(sizeof *e);
    if (e && s->threaded) {
        *e = (struct errand){.job = j, .reply = reply};
        hl_queue_put(&s->inbox, &e->message);
        return;
    }
    free(e); /* no memory for the job entry: execute it now */
    hl_store_do(s, j);
    j->message.kind = j->reply_kind;
    hl_queue_put(reply, &j->message);
}

/* ---- life ---- */

hola_status hl_store_open(struct hl_store **out, const char *dir, uint64_t model, double wait, double lease) {
    const double until = hl_clock() + wait;
    *out = NULL;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        hola_status st = errno == ENOENT ? hl_make_dirs(dir) : fail_errno("make", dir, errno);
        if (st != HOLA_OK) return st;
        chmod(dir, 0700);
    }
    struct hl_store *s = calloc(1, sizeof *s);
    if (!s) return hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    s->model = model;
    s->lease = lease;
    pthread_mutex_init(&s->held_lock, NULL);
    s->dir = strdup(dir);
    s->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hola_status st = s->fd < 0 ? fail_errno("open", dir, errno) : HOLA_OK;
    while (st == HOLA_OK && flock(s->fd, (lease > 0 ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) st = fail_errno("lock", dir, errno);
        else if (hl_clock() >= until) st = hl_fail(HOLA_EIO, "%s: another process uses this session folder", dir);
        else nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (st == HOLA_OK) {
        hl_queue_init(&s->inbox, -1);
        s->threaded = hl_thread_start(&s->thread, work, s);
        *out = s;
        return HOLA_OK;
    }
    if (s->fd >= 0) close(s->fd);
    pthread_mutex_destroy(&s->held_lock);
    free(s->dir);
    free(s);
    return st;
}

void hl_store_close(struct hl_store *s) {
    if (!s) return;
    struct errand stop = {.message = {.kind = STOP}}, *e = malloc(sizeof *e);
    if (e) *e = stop, hl_queue_put(&s->inbox, &e->message);
    if (e && s->threaded) pthread_join(s->thread, NULL);
    else free(e);
    hl_queue_free(&s->inbox);
    while (s->n_held > 0) hl_store_release(s, s->held[0].id, s->held[0].token);
    pthread_mutex_destroy(&s->held_lock);
    close(s->fd);
    free(s->held);
    free(s->dir);
    free(s);
}

void hl_store_ids(struct hl_store *s, void (*each)(void *ctx, const char *id), void *ctx) {
    const int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    char id[HL_ID_MOST + 1];
    if (!d && fd >= 0) close(fd);
    for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d))
        if (hl_store_id(s, f->d_name, id)) each(ctx, id);
    if (d) closedir(d);
}

struct listing {
    struct hl_store *s;
    void (*each)(void *ctx, const char *id, json_t *about);
    void *ctx;
};
static void list_one(void *ctx, const char *id) {
    const struct listing *l = ctx;
    struct hl_stamp stamp;
    json_t *about = hl_store_about(l->s, id, &stamp);
    l->each(l->ctx, id, about);
    json_decref(about);
}
void hl_store_list(struct hl_store *s, void (*each)(void *ctx, const char *id, json_t *about), void *ctx) {
    struct listing l = {s, each, ctx};
    hl_store_ids(s, list_one, &l);
}
