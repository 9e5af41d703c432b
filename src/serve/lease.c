/* lease.c -- see lease.h. */
#define _GNU_SOURCE
#include "serve/lease.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = HL_TOKEN + 1 + 20 + 1 }; /* the token, a space, milliseconds since 1970, a line feed */
static const double glance = 0.02;     /* seconds: the lock is only held for a few system calls */

struct lease {
    char token[HL_TOKEN + 1];
    int64_t until;
};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* false: no file, or garbage left by a crash. */
static bool read_lease(int fd, struct lease *l) {
    char line[LINE + 1], *end;
    memset(l, 0, sizeof *l);
    if (pread(fd, line, sizeof line, 0) != LINE || line[LINE - 1] != '\n' || line[HL_TOKEN] != ' ') return false;
    line[LINE - 1] = 0;
    memcpy(l->token, line, HL_TOKEN);
    l->until = strtoll(line + HL_TOKEN + 1, &end, 10);
    return !*end && strspn(l->token, "0123456789abcdef") == HL_TOKEN;
}

static bool write_lease(int fd, const char *token, double seconds) {
    char line[LINE + 1];
    snprintf(line, sizeof line, "%.*s %020" PRId64 "\n", HL_TOKEN, token, now_ms() + (int64_t)(1000 * seconds));
    const ssize_t n = pwrite(fd, line, LINE, 0);
    if (n >= 0 && n != LINE) errno = ENOSPC;
    return n == LINE;
}

/* Opens and locks the file. It may have been replaced while we waited for the lock: then retries. -1: see errno,
 * EWOULDBLOCK if another process holds it. */
static int open_locked(int folder, const char *name, int flags, double wait) {
    const double until = hl_clock() + wait;
    struct stat st;
    for (;;) {
        const int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
        if (fd < 0) return -1;
        while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            const int error = errno;
            if ((error == EWOULDBLOCK || error == EINTR) && hl_clock() < until) {
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
                continue;
            }
            close(fd);
            errno = error;
            return -1;
        }
        if (fstat(fd, &st) == 0 && st.st_nlink > 0) return fd;
        close(fd);
    }
}

static bool make_token(char token[HL_TOKEN + 1]) {
    uint64_t x[2];
    if (getrandom(x, sizeof x, 0) != sizeof x) return false;
    snprintf(token, HL_TOKEN + 1, "%016" PRIx64 "%016" PRIx64, x[0], x[1]);
    return true;
}

static enum hl_lease_answer refusal(void) {
    return errno == EWOULDBLOCK ? HL_LEASE_LOCKED : errno == ENOENT ? HL_LEASE_OTHERS : HL_LEASE_FAILED;
}

enum hl_lease_answer hl_lease_take(int folder, const char *name, double seconds, bool force, char token[HL_TOKEN + 1],
                                   char before[HL_TOKEN + 1]) {
    struct lease l;
    before[0] = 0;
    if (!make_token(token)) return HL_LEASE_FAILED;
    const int fd = open_locked(folder, name, O_CREAT, force ? 10 * glance : glance);
    if (fd < 0) return refusal();
    enum hl_lease_answer answer = HL_LEASE_MINE;
    const bool is = read_lease(fd, &l);
    if (is && l.until > now_ms() && !force) answer = HL_LEASE_OTHERS;
    else if (!write_lease(fd, token, seconds)) {
        const int error = errno;
        if (!is) unlinkat(folder, name, 0); /* an empty file holds no lease */
        errno = error;
        answer = HL_LEASE_FAILED;
    } else if (is) memcpy(before, l.token, HL_TOKEN + 1);
    const int error = errno;
    close(fd);
    errno = error;
    return answer;
}

enum hl_lease_answer hl_lease_open(int folder, const char *name, const char *token, double wait, int *fd) {
    struct lease l;
    *fd = open_locked(folder, name, 0, wait);
    if (*fd < 0) return refusal();
    if (read_lease(*fd, &l) && strcmp(l.token, token) == 0) return HL_LEASE_MINE;
    close(*fd);
    *fd = -1;
    return HL_LEASE_OTHERS;
}

void hl_lease_close(int folder, const char *name, int fd, bool give_up) {
    if (give_up) unlinkat(folder, name, 0);
    close(fd);
}

enum hl_lease_answer hl_lease_renew(int folder, const char *name, double seconds, const char *token) {
    int fd;
    enum hl_lease_answer answer = hl_lease_open(folder, name, token, 10 * glance, &fd);
    if (answer != HL_LEASE_MINE) return answer;
    if (!write_lease(fd, token, seconds)) answer = HL_LEASE_FAILED;
    close(fd);
    return answer;
}

bool hl_lease_is_out(int folder, const char *name) {
    struct lease l;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    const bool is = read_lease(fd, &l) && l.until > now_ms();
    close(fd);
    return is;
}
