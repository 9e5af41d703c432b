/* prelaunch.c -- a kernel launched before its work is known: when the previous kernel ends, it is already on the device
 * with its tables loaded, and the host sends it the work. So neither waits for a launch.
 *
 * Host and kernel share two words of host memory, each number << 32 | value. Pieces of work are numbered; a
 * kernel is launched for one number and answers once.
 *
 *   host                                             kernel for number n
 *
 *   arm(n): launch the kernel; armed                 poll request, at most KERNEL_TIMEOUT_NS
 *     | submit: request = n, value                     |-- n, value:        reply = n, value; does the work
 *     |   poll reply                                   |-- n, STOP:         reply = n, STOP;  exits
 *     |     |-- n, value: the kernel has the work      `-- none in time:    reply = n, STOP;  exits
 *     |     |-- n, STOP:  the host launches another
 *     |     `-- none, and the stream is idle: error
 *     `-- cancel: request = n, STOP; does not wait
 *   not armed
 *     `-- submit: the host launches a kernel itself
 *
 * Neither can wait forever. The kernel has a timeout. It replies exactly once in every case, and reads no request after
 * that; so the host gets a reply to every request, even if the two cross. A kernel that died leaves the stream idle.
 * Any other use of the device cancels first (hl_stream) and follows the kernel in the stream. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "cuda/device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WORK = 1024,            /* bytes that describe a piece of work */
    SPINS = 1 << 12,            /* polls between driver queries whether the kernel still runs */
    KERNEL_TIMEOUT_NS = 200000, /* how long a kernel waits for its work */
    ARM_WITHIN_NS = 100000      /* arming pays off if the next piece of work comes this soon after a result */
};

struct words { /* host memory that the device reads and writes; each word has its own cache line */
    _Atomic uint64_t request;
    char padding[120];
    _Atomic uint64_t reply;
};
struct hl_prelaunch {
    pthread_mutex_t lock; /* guards armed and next: another thread may allocate, and so cancel, during a submit */
    struct words *words;
    _Atomic bool armed; /* a kernel was launched for number `next`; it may have exited */
    bool repeats;       /* the last piece of work matched the previous one and followed it soon */
    uint32_t next;      /* number of the next piece of work */
    int64_t submitted, work_size;
    char work[MAX_WORK];
    int64_t done_ns; /* when the last piece of work was done */
};

static void write_request(struct hl_prelaunch *s, uint32_t number, uint32_t value) {
    atomic_store_explicit(&s->words->request, (uint64_t)number << 32 | value, memory_order_release);
}

void hl_prelaunch_open(struct hl_cuda *c) {
    c->prelaunch = calloc(1, sizeof *c->prelaunch);
    if (!c->prelaunch) return;
    pthread_mutex_init(&c->prelaunch->lock, NULL);
    c->prelaunch->next = 1;
}
/* Without memory for the two words, nothing is prelaunched. */
static bool has_words(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || s->words) return s;
    s->words = hl_cuda_malloc_host(c, sizeof *s->words);
    if (s->words) memset(s->words, 0, sizeof *s->words);
    return s->words;
}
void hl_prelaunch_close(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s) return;
    c->prelaunch = NULL;
    if (s->words) hl_cuda_free_host(c, s->words);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void hl_prelaunch_cancel(struct hl_cuda *c) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || !atomic_load_explicit(&s->armed, memory_order_acquire)) return;
    pthread_mutex_lock(&s->lock);
    if (atomic_exchange(&s->armed, false)) write_request(s, s->next, HL_PRELAUNCH_STOP);
    pthread_mutex_unlock(&s->lock);
}

uint32_t hl_prelaunch_number(const struct hl_cuda *c) { return c->prelaunch ? c->prelaunch->next : 0; }

/* Waits for the reply; true: the kernel has the work. */
static bool accepted(struct hl_cuda *c, const struct hl_prelaunch *s, uint32_t number) {
    bool idle = false;
    for (int64_t polls = 1;; polls++) {
        const uint64_t reply = atomic_load_explicit(&s->words->reply, memory_order_acquire);
        if ((uint32_t)(reply >> 32) == number) return (uint32_t)reply != HL_PRELAUNCH_STOP;
        if (idle) {
            hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: a kernel ended without replying");
            return false;
        }
        if (polls % SPINS == 0) idle = !hl_cuda_busy(c); /* then one last poll */
    }
}
bool hl_prelaunch_submit(struct hl_cuda *c, const void *work, int64_t size, uint32_t value) {
    struct hl_prelaunch *s = c->prelaunch;
    HL_ASSERT(size <= MAX_WORK && value < HL_PRELAUNCH_STOP);
    if (!has_words(c)) return false;
    const bool same = size == s->work_size && !memcmp(work, s->work, (size_t)size);
    s->repeats = same && hl_clock_ns() - s->done_ns < ARM_WITHIN_NS;
    if (!same) {
        hl_prelaunch_cancel(c);
        memcpy(s->work, work, (size_t)size);
        s->work_size = size;
    }
    pthread_mutex_lock(&s->lock);
    const uint32_t number = s->next++;
    const bool armed = atomic_exchange(&s->armed, false);
    if (armed) write_request(s, number, value);
    pthread_mutex_unlock(&s->lock);
    if (!armed || !accepted(c, s, number)) return false;
    s->submitted++;
    return true;
}

bool hl_prelaunch_arm(struct hl_cuda *c, struct hl_prelaunch_slot *out) {
    struct hl_prelaunch *s = c->prelaunch;
    if (!s || !s->repeats) return false;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->armed, true);
    *out = (struct hl_prelaunch_slot){.number = s->next,
                                      .timeout_ns = KERNEL_TIMEOUT_NS,
                                      .request = (const uint64_t *)&s->words->request,
                                      .reply = (uint64_t *)&s->words->reply};
    pthread_mutex_unlock(&s->lock);
    return true;
}
void hl_prelaunch_done(struct hl_cuda *c) {
    if (c->prelaunch) c->prelaunch->done_ns = hl_clock_ns();
}
int64_t hl_prelaunch_submitted(const struct hl_cuda *c) { return c->prelaunch ? c->prelaunch->submitted : 0; }
