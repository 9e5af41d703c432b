/* store_shared.c -- a folder shared by several processes: file versions and leases. See store.h. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "serve/store_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- versions ---- */

bool hl_stamp_same(const struct hl_stamp *a, const struct hl_stamp *b) {
    return a->inode == b->inode && a->size == b->size && a->seconds == b->seconds && a->nanoseconds == b->nanoseconds;
}

bool hl_store_look(struct hl_store *s, const char *id, struct hl_stamp *known, bool *same, json_t **about) {
    char name[HL_FILE_NAME];
    struct stat st;
    *about = NULL;
    hl_store_file(name, s, id, HL_SESSION_SUFFIX);
    for (struct hl_stamp unread = {0};;) {
        /* a file that cannot be examined for another reason exists but is damaged */
        if (fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            *same = false, *known = (struct hl_stamp){0};
            return errno != ENOENT;
        }
        const struct hl_stamp now = hl_stamp_of(&st);
        *same = hl_stamp_same(&now, known);
        if (*same) return true;
        struct hl_stamp read = now;
        *about = hl_store_about(s, id, &read);
        /* unreadable twice: damaged, not just removed or replaced since we looked */
        if (*about || hl_stamp_same(&now, &unread)) {
            *known = read;
            return true;
        }
        unread = now;
    }
}

/* ---- leases ---- */

static void remember(struct hl_store *s, const char *id, const char *token) {
    pthread_mutex_lock(&s->held_lock);
    if (s->n_held == s->held_room) {
        const int room = 2 * s->held_room + 8;
        struct hl_held *more = realloc(s->held, (size_t)room * sizeof *more);
        if (more) s->held = more, s->held_room = room;
    }
    if (s->n_held < s->held_room) { /* out of memory: it is not renewed and expires */
        struct hl_held *h = &s->held[s->n_held++];
        memcpy(h->id, id, strlen(id) + 1);
        memcpy(h->token, token, HL_TOKEN + 1);
        h->lost = false;
    }
    pthread_mutex_unlock(&s->held_lock);
}

static struct hl_held *find(const struct hl_store *s, const char *token) {
    for (int i = 0; i < s->n_held; i++)
        if (strcmp(s->held[i].token, token) == 0) return &s->held[i];
    return NULL;
}

enum hl_lease_answer hl_store_claim(struct hl_store *s, const char *id, char token[HL_TOKEN + 1]) {
    char name[HL_FILE_NAME], temp[HL_FILE_NAME], before[HL_TOKEN + 1];
    hl_store_file(name, s, id, HL_LEASE_SUFFIX);
    const enum hl_lease_answer a = hl_lease_take(s->fd, name, s->lease, false, token, before);
    if (a != HL_LEASE_MINE) return a;
    if (before[0]) { /* the file it was writing when it died */
        hl_store_temp(temp, s, id, before);
        unlinkat(s->fd, temp, 0);
    }
    remember(s, id, token);
    return a;
}

void hl_store_release(struct hl_store *s, const char *id, const char *token) {
    char name[HL_FILE_NAME], mine[HL_TOKEN + 1];
    int fd;
    memcpy(mine, token, sizeof mine); /* it may point into the list */
    hl_store_file(name, s, id, HL_LEASE_SUFFIX);
    if (hl_lease_open(s->fd, name, mine, 0.2, &fd) == HL_LEASE_MINE) hl_lease_close(s->fd, name, fd, true);
    pthread_mutex_lock(&s->held_lock);
    struct hl_held *h = find(s, mine);
    if (h) *h = s->held[--s->n_held];
    pthread_mutex_unlock(&s->held_lock);
}

bool hl_store_lost(struct hl_store *s, const char *token) {
    pthread_mutex_lock(&s->held_lock);
    const struct hl_held *h = find(s, token);
    const bool lost = h && h->lost;
    pthread_mutex_unlock(&s->held_lock);
    return lost;
}

bool hl_store_claimed(struct hl_store *s, const char *id) {
    char name[HL_FILE_NAME];
    hl_store_file(name, s, id, HL_LEASE_SUFFIX);
    return hl_lease_is_out(s->fd, name);
}

enum hl_lease_answer hl_store_delete(struct hl_store *s, const char *id) {
    char name[HL_FILE_NAME], lease[HL_FILE_NAME], temp[HL_FILE_NAME], token[HL_TOKEN + 1], before[HL_TOKEN + 1];
    struct stat st;
    int fd;
    hl_store_file(name, s, id, HL_SESSION_SUFFIX);
    hl_store_file(lease, s, id, HL_LEASE_SUFFIX);
    if (fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? HL_LEASE_OTHERS : HL_LEASE_FAILED;
    enum hl_lease_answer a = hl_lease_take(s->fd, lease, s->lease, true, token, before);
    if (a != HL_LEASE_MINE) return a == HL_LEASE_FAILED ? a : HL_LEASE_LOCKED;
    if (before[0]) hl_store_temp(temp, s, id, before), unlinkat(s->fd, temp, 0);
    if (unlinkat(s->fd, name, 0) != 0) a = errno == ENOENT ? HL_LEASE_OTHERS : HL_LEASE_FAILED;
    if (hl_lease_open(s->fd, lease, token, 0.2, &fd) == HL_LEASE_MINE) hl_lease_close(s->fd, lease, fd, true);
    return a;
}

/* Renews leases after a third of their time; works on copies, so that no one waits for the disk while the list is
 * locked. */
double hl_store_renew(struct hl_store *s) {
    const double now = hl_clock();
    if (s->lease <= 0) return -1;
    if (now < s->next_renewal) return s->next_renewal - now;
    s->next_renewal = now + s->lease / 3;
    pthread_mutex_lock(&s->held_lock);
    const int n = s->n_held;
    struct hl_held *copy = n > 0 ? malloc((size_t)n * sizeof *copy) : NULL;
    if (copy) memcpy(copy, s->held, (size_t)n * sizeof *copy);
    pthread_mutex_unlock(&s->held_lock);
    for (int i = 0; copy && i < n; i++) {
        char name[HL_FILE_NAME];
        hl_store_file(name, s, copy[i].id, HL_LEASE_SUFFIX);
        if (hl_lease_renew(s->fd, name, s->lease, copy[i].token) != HL_LEASE_OTHERS) continue;
        pthread_mutex_lock(&s->held_lock);
        struct hl_held *h = find(s, copy[i].token);
        if (h) h->lost = true;
        pthread_mutex_unlock(&s->held_lock);
    }
    free(copy);
    return s->lease / 3;
}
