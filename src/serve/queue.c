/* queue.c -- see queue.h. */
#define _GNU_SOURCE
#include "serve/queue.h"
#include <stdint.h>
#include <time.h>
#include <unistd.h>

void hl_queue_init(struct hl_queue *q, int wake) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->some, &attr);
    pthread_condattr_destroy(&attr);
    q->first = NULL, q->last = &q->first;
    q->wake = wake;
    q->nudged = false;
}

void hl_queue_free(struct hl_queue *q) {
    pthread_cond_destroy(&q->some);
    pthread_mutex_destroy(&q->lock);
}

static void wake(struct hl_queue *q) {
    const uint64_t one = 1;
    pthread_cond_signal(&q->some);
    if (q->wake >= 0) (void)!write(q->wake, &one, sizeof one);
}

void hl_queue_put_list(struct hl_queue *q, struct hl_message *first, struct hl_message *last) {
    pthread_mutex_lock(&q->lock);
    const bool empty = !q->first;
    last->next = NULL;
    *q->last = first;
    q->last = &last->next;
    if (empty) wake(q);
    pthread_mutex_unlock(&q->lock);
}
void hl_queue_put(struct hl_queue *q, struct hl_message *m) { hl_queue_put_list(q, m, m); }

void hl_queue_nudge(struct hl_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->nudged = true;
    wake(q);
    pthread_mutex_unlock(&q->lock);
}

bool hl_queue_empty(struct hl_queue *q) {
    pthread_mutex_lock(&q->lock);
    const bool empty = !q->first && !q->nudged;
    pthread_mutex_unlock(&q->lock);
    return empty;
}

struct hl_message *hl_queue_take(struct hl_queue *q, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (seconds > 0) {
        const double whole = (double)(int64_t)seconds;
        until.tv_sec += (time_t)whole;
        until.tv_nsec += (long)(1e9 * (seconds - whole));
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->nudged && seconds != 0) {
        if (seconds < 0) pthread_cond_wait(&q->some, &q->lock);
        else if (pthread_cond_timedwait(&q->some, &q->lock, &until) != 0) break;
    }
    struct hl_message *all = q->first;
    q->first = NULL, q->last = &q->first;
    q->nudged = false;
    pthread_mutex_unlock(&q->lock);
    return all;
}
