/* pool.c -- helpers spin briefly for the next job (decoding starts hundreds of short ones per token), then sleep.
 *
 * Every thread has a share of consecutive tasks, usually neighbours in memory too, and takes them in order; when its
 * share is done it takes from the others'.
 *
 * The calling thread works on its own job too and waits only for helpers that are running a task: a late helper,
 * preempted by another process, finds the job closed. If a helper is preempted in the middle of a task, the caller must
 * wait; a helper that costs more this way than it contributes is left out for a while (keep_score). This affects which
 * thread runs which task, but not the tasks, and so not the results. */
#define _GNU_SOURCE
#include "core/pool.h"
#include "core/clock.h"
#include "core/thread.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, GLANCES = 64 /* GLANCES: polls between two reads of the clock */ };
enum {                        /* nanoseconds */
       SPIN = 300 * 1000,     /* how long an idle helper spins before it sleeps */
       PATIENCE = 300 * 1000, /* how long a caller waits for a helper before it checks what that one is doing */
       SHORTEST_REST = 10 * 1000 * 1000,
       LONGEST_REST = 500 * 1000 * 1000
};

struct worker {
    _Alignas(64) atomic_bool inside; /* reading the job, or running one of its tasks */
    atomic_bool asleep, resting;     /* resting: takes no jobs */
    pthread_t thread;
    struct hl_pool *pool;
    int id;
    char *scratch;
    pthread_cond_t wake;
    _Alignas(64) atomic_int_fast64_t next; /* first task of its share not yet taken */
    int64_t end;                           /* of its share */
    /* the caller's; times in nanoseconds */
    int64_t since;      /* when it last began to work after a rest or a stall */
    int64_t rest_until; /* end of the latest rest */
    int64_t rest;       /* and its length */
};

struct hl_pool {
    int threads, resting; /* helpers that are resting */
    struct worker *worker;
    int64_t scratch_bytes;
    pthread_mutex_t busy; /* one job at a time */
    unsigned count;       /* jobs so far */

    /* the job; written before `job` is set, read by helpers inside */
    hl_task task;
    void *ctx;
    _Alignas(64) atomic_uint job; /* number of the open job; 0: none */
    pthread_mutex_t sleep_lock;
    atomic_bool stop;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* All shares, beginning with its own. */
static void work(struct hl_pool *p, int id) {
    for (int k = 0; k < p->threads; k++) {
        struct worker *w = &p->worker[id + k < p->threads ? id + k : id + k - p->threads];
        while (atomic_load_explicit(&w->next, memory_order_relaxed) < w->end) {
            const int64_t i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
            if (i < w->end) p->task(p->ctx, i, id);
        }
    }
}

/* ---- helpers ---- */

/* Whether there is a job that this helper has not seen yet. */
static bool has_job(const struct worker *w, unsigned seen) {
    const unsigned job = atomic_load(&w->pool->job);
    return job != 0 && job != seen && !atomic_load(&w->resting);
}

static void wait_for_job(struct worker *w, unsigned seen) {
    struct hl_pool *p = w->pool;
    const int64_t start = hl_clock_ns();
    while (!atomic_load(&w->resting) && hl_clock_ns() - start < SPIN)
        for (int i = 0; i < GLANCES; i++) {
            if (has_job(w, seen) || atomic_load(&p->stop)) return;
            relax();
        }
    pthread_mutex_lock(&p->sleep_lock);
    atomic_store(&w->asleep, true); /* before reading `job`: raise_job does the reverse */
    while (!has_job(w, seen) && !atomic_load(&p->stop)) pthread_cond_wait(&w->wake, &p->sleep_lock);
    atomic_store(&w->asleep, false);
    pthread_mutex_unlock(&p->sleep_lock);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct hl_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        if (!has_job(w, seen)) wait_for_job(w, seen);
        if (atomic_load(&p->stop)) return NULL;
        seen = atomic_load(&p->job);
        /* Either this is still the open job, and its caller will see us inside, or it is closed, and we see that. */
        atomic_store(&w->inside, true);
        if (seen != 0 && atomic_load(&p->job) == seen) work(p, w->id);
        atomic_store_explicit(&w->inside, false, memory_order_release);
    }
}

/* ---- callers ---- */

static void wake(struct worker *w) {
    if (!atomic_load(&w->asleep)) return;
    pthread_mutex_lock(&w->pool->sleep_lock);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->pool->sleep_lock);
}

static void end_rests(struct hl_pool *p) {
    const int64_t now = hl_clock_ns();
    for (int i = 1; i < p->threads; i++) {
        struct worker *w = &p->worker[i];
        if (!atomic_load_explicit(&w->resting, memory_order_relaxed) || now < w->rest_until) continue;
        w->since = now;
        p->resting--;
        atomic_store(&w->resting, false);
    }
}

/* Called when a preempted helper made the caller wait. A helper is worth 1 / threads of the speed, a stall costs all of
 * it: if stalls take more than half of what it is worth, it rests, longer each time the previous rest did not help. */
static void keep_score(struct worker *w, int64_t stall, int64_t now) {
    const int64_t worked = now - stall - w->since, before = w->rest;
    if (stall * 2 * w->pool->threads > stall + worked) {
        w->rest = before > 0 && w->since - w->rest_until < before && worked < before ? 2 * before : SHORTEST_REST;
        if (w->rest > LONGEST_REST) w->rest = LONGEST_REST;
        w->rest_until = now + w->rest;
        w->pool->resting++;
        atomic_store(&w->resting, true);
    }
    w->since = now;
}

static int64_t processor_time(const struct worker *w) {
    struct timespec t;
    clockid_t clock;
    if (pthread_getcpuclockid(w->thread, &clock) || clock_gettime(clock, &t)) return 0;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The job is closed. Most helpers have left it, or will soon. */
static void wait_for(struct worker *w) {
    int64_t start, used, now, stalled = 0;
    for (int i = 0; i < 4 * GLANCES; i++, relax())
        if (!atomic_load(&w->inside)) return;
    start = now = hl_clock_ns();
    used = processor_time(w);
    while (atomic_load(&w->inside)) {
        for (int i = 0; i < GLANCES && atomic_load(&w->inside); i++) relax();
        now = hl_clock_ns();
        if (now - start < PATIENCE) continue;
        const int64_t ran = processor_time(w) - used;
        if (ran < (now - start) / 2) stalled = now - start - ran;
        sched_yield(); /* the helper may need this processor */
    }
    if (stalled > 0) keep_score(w, stalled, now);
}

/* Shares of n tasks; resting helpers get none. */
static void share(struct hl_pool *p, int64_t n) {
    const int64_t active = p->threads - p->resting;
    int64_t from = 0, given = 0;
    for (int i = 0; i < p->threads; i++) {
        struct worker *w = &p->worker[i];
        const int64_t end = atomic_load_explicit(&w->resting, memory_order_relaxed) ? from : n * ++given / active;
        atomic_store_explicit(&w->next, from, memory_order_relaxed);
        w->end = from = end;
    }
}

void hl_pool_run(struct hl_pool *p, int64_t n, hl_task task, void *ctx) {
    if (n <= 0) return;
    pthread_mutex_lock(&p->busy);
    if (p->resting > 0) end_rests(p);
    if (p->threads - p->resting == 1 || n == 1) {
        for (int64_t i = 0; i < n; i++) task(ctx, i, 0);
        pthread_mutex_unlock(&p->busy);
        return;
    }
    p->task = task;
    p->ctx = ctx;
    share(p, n);
    if (++p->count == 0) p->count = 1;
    atomic_store(&p->job, p->count);
    for (int i = 1; i < p->threads; i++)
        if (!atomic_load_explicit(&p->worker[i].resting, memory_order_relaxed)) wake(&p->worker[i]);
    work(p, 0);
    atomic_store(&p->job, 0); /* closed: no more helpers enter */
    for (int i = 1; i < p->threads; i++)
        if (atomic_load(&p->worker[i].inside)) wait_for(&p->worker[i]);
    pthread_mutex_unlock(&p->busy);
}

static int processors(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

hola_status hl_pool_new(struct hl_pool **out, int threads) {
    struct hl_pool *p;
    *out = NULL;
    if (threads > MAX_THREADS) return hl_fail(HOLA_EINVAL, "threads: %d is more than %d", threads, MAX_THREADS);
    if (threads <= 0) threads = processors() < MAX_THREADS ? processors() : MAX_THREADS;
    p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return hl_fail(HOLA_ENOMEM, "thread pool: %zu bytes", sizeof *p);
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->busy, NULL);
    pthread_mutex_init(&p->sleep_lock, NULL);
    p->worker = aligned_alloc(64, (size_t)threads * sizeof *p->worker);
    if (!p->worker) {
        hl_pool_free(p);
        return hl_fail(HOLA_ENOMEM, "thread pool: %d workers", threads);
    }
    memset(p->worker, 0, (size_t)threads * sizeof *p->worker);
    p->threads = 1;
    for (int i = 1; i < threads; i++) {
        p->worker[i].pool = p;
        p->worker[i].id = i;
        pthread_cond_init(&p->worker[i].wake, NULL);
        if (!hl_thread_start(&p->worker[i].thread, worker_main, &p->worker[i])) {
            hl_pool_free(p);
            return hl_fail(HOLA_ENOMEM, "thread pool: cannot start thread %d of %d", i + 1, threads);
        }
        p->threads = i + 1;
    }
    *out = p;
    return HOLA_OK;
}

void hl_pool_free(struct hl_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    for (int i = 1; i < p->threads; i++) {
        wake(&p->worker[i]);
        pthread_join(p->worker[i].thread, NULL);
        pthread_cond_destroy(&p->worker[i].wake);
    }
    for (int i = 0; p->worker && i < p->threads; i++) free(p->worker[i].scratch);
    free(p->worker);
    pthread_mutex_destroy(&p->busy);
    pthread_mutex_destroy(&p->sleep_lock);
    free(p);
}

int hl_pool_threads(const struct hl_pool *p) { return p->threads; }

hola_status hl_pool_reserve(struct hl_pool *p, int64_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    if (bytes <= p->scratch_bytes) return HOLA_OK;
    pthread_mutex_lock(&p->busy);
    for (int i = 0; i < p->threads; i++) {
        char *s = aligned_alloc(4096, (size_t)bytes);
        if (!s) {
            pthread_mutex_unlock(&p->busy);
            return hl_fail(HOLA_ENOMEM, "thread scratch: %lld bytes", (long long)bytes);
        }
        free(p->worker[i].scratch); /* the old block is smaller than the request */
        p->worker[i].scratch = s;
    }
    p->scratch_bytes = bytes;
    pthread_mutex_unlock(&p->busy);
    return HOLA_OK;
}

void *hl_pool_scratch(struct hl_pool *p, int worker, int64_t bytes) {
    HL_ASSERT(bytes <= p->scratch_bytes);
    return p->worker[worker].scratch;
}
