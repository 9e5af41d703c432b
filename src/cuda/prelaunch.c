/* prelaunch.c -- a kernel that is launched ahead, for a piece of work that the host does not know yet: it is on the device
 * with all its tables when the last one ends, and what it is to do comes by mail. So neither waits for a launch.
 *
 * Pieces have numbers. The host writes one word with the number of the piece and what it is, and waits until the
 * kernel says of this number that it took it or left without: then the host launches a kernel for it. A kernel leaves
 * when it is told to, or when nothing comes for a while, and never looks at the mail again; so neither side can wait
 * for the other without end, whatever the order in which they look. Everybody else who wants the device tells the
 * kernel to go (hl_stream), and is behind it in the stream. */
#define _POSIX_C_SOURCE 200809L
#include "cuda/device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ROOM = 1024,        /* bytes of what a piece of work is */
    PATIENCE = 1 << 12, /* looks before the driver is asked whether the kernel is still there */
    STAYS = 200000,     /* ns that a kernel waits for its piece */
    QUICK = 100000      /* ns between an answer and the next piece for which that pays */
};

struct line { /* the host's memory, where the device reads and writes it: each word has a line of its own */
    _Atomic uint64_t request;
    char apart[120];
    _Atomic uint64_t reply;
};
struct hl_prelaunch {
    pthread_mutex_t lock; /* of what follows: memory may come and go while another thread decodes */
    struct line *line;
    _Atomic bool on; /* a kernel was launched for the next piece; it may have left */
    bool again;      /* the last piece was as the one before it, and came quickly */
    uint32_t next;   /* number of the next piece */
    int64_t handed, size;
    char what[ROOM];
    int64_t answered; /* when, ns */
};

static int64_t clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static void post(struct hl_prelaunch *s, uint32_t number, uint32_t value) {
    atomic_store_explicit(&s->line->request, (uint64_t)number << 32 | value, memory_order_release);
}

void hl_prelaunch_open(struct hl_cuda *c) {
    c->prelaunch = calloc(1, sizeof *c->prelaunch);
    if (!c->prelaunch) return;
    pthread_mutex_init(&c->prelaunch->lock, NULL);
    c->prelaunch->next = 1;
}
/* There is memory for the two words; else nothing stays. */
static bool has_line(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || s->line) return s;
    s->line = hl_cuda_malloc_host(c, sizeof *s->line);
    if (s->line) memset(s->line, 0, sizeof *s->line);
    return s->line;
}
void hl_prelaunch_close(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s) return;
    c->prelaunch = NULL;
    if (s->line) hl_cuda_free_host(c, s->line);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void hl_prelaunch_cancel(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || !atomic_load_explicit(&s->on, memory_order_acquire)) return;
    pthread_mutex_lock(&s->lock);
    if (atomic_exchange(&s->on, false)) post(s, s->next, HL_PRELAUNCH_STOP);
    pthread_mutex_unlock(&s->lock);
}

uint32_t hl_prelaunch_number(const struct hl_cuda *c) { return c->prelaunch ? c->prelaunch->next : 0; }

/* Whether the kernel says that it took the piece. */
static bool taken(struct hl_cuda *c, const struct hl_prelaunch *s, uint32_t number) {
    bool over = false;
    for (int64_t looks = 1;; looks++) {
        const uint64_t said = atomic_load_explicit(&s->line->reply, memory_order_acquire);
        if ((uint32_t)(said >> 32) == number) return (uint32_t)said != HL_PRELAUNCH_STOP;
        if (over) {
            hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: a kernel ended without its answer");
            return false;
        }
        if (looks % PATIENCE == 0) over = !hl_cuda_busy(c); /* then a last look */
    }
}
bool hl_prelaunch_submit(struct hl_cuda *c, const void *what, int64_t size, uint32_t value) {
    struct hl_prelaunch *s = c->prelaunch;
    HL_ASSERT(size <= ROOM && value < HL_PRELAUNCH_STOP);
    if (!has_line(c)) return false;
    const bool same = size == s->size && !memcmp(what, s->what, (size_t)size);
    s->again = same && clock_now() - s->answered < QUICK;
    if (!same) {
        hl_prelaunch_cancel(c);
        memcpy(s->what, what, (size_t)size);
        s->size = size;
    }
    pthread_mutex_lock(&s->lock);
    const uint32_t number = s->next++;
    const bool on = atomic_exchange(&s->on, false);
    if (on) post(s, number, value);
    pthread_mutex_unlock(&s->lock);
    if (!on || !taken(c, s, number)) return false;
    s->handed++;
    return true;
}

bool hl_prelaunch_arm(struct hl_cuda *c, struct hl_prelaunch_slot *out) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || !s->again) return false;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->on, true);
    *out = (struct hl_prelaunch_slot){.number = s->next,
                                      .timeout_ns = STAYS,
                                      .request = (const uint64_t *)&s->line->request,
                                      .reply = (uint64_t *)&s->line->reply};
    pthread_mutex_unlock(&s->lock);
    return true;
}
void hl_prelaunch_done(struct hl_cuda *c) {
    if (c->prelaunch) c->prelaunch->answered = clock_now();
}
int64_t hl_prelaunch_submitted(const struct hl_cuda *c) { return c->prelaunch ? c->prelaunch->handed : 0; }
