/* pool.c -- workers spin briefly for the next job (decoding starts hundreds of short ones per token),
 * then sleep. Tasks are handed out by one atomic counter. */
#define _GNU_SOURCE
#include "core/pool.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPIN = 20000, MAX_THREADS = 1024 };

struct worker {
    pthread_t thread;
    struct hl_pool *pool;
    int id;
    char *scratch;
};

struct hl_pool {
    int threads;
    struct worker *worker;
    int64_t scratch_bytes;
    pthread_mutex_t busy; /* one job at a time */

    /* the job; written before `job` is raised */
    hl_task task;
    void *ctx;
    int64_t n;
    _Alignas(64) atomic_int_fast64_t next; /* first task not yet taken */
    _Alignas(64) atomic_uint job;          /* number of the current job */
    _Alignas(64) atomic_int running;       /* helpers still inside it */

    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    atomic_int sleeping;
    atomic_bool stop;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(struct hl_pool *p, int id) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->task(p->ctx, i, id);
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct hl_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&p->job, memory_order_acquire) == seen) {
            if (++spins < SPIN) {
                relax();
                continue;
            }
            pthread_mutex_lock(&p->sleep_lock);
            atomic_fetch_add(&p->sleeping, 1);
            while (atomic_load(&p->job) == seen) pthread_cond_wait(&p->wake, &p->sleep_lock);
            atomic_fetch_sub(&p->sleeping, 1);
            pthread_mutex_unlock(&p->sleep_lock);
        }
        seen = atomic_load_explicit(&p->job, memory_order_acquire);
        if (atomic_load(&p->stop)) return NULL;
        work(p, w->id);
        atomic_fetch_sub_explicit(&p->running, 1, memory_order_release);
    }
}

static void raise_job(struct hl_pool *p) {
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->sleeping) > 0) {
        pthread_mutex_lock(&p->sleep_lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->sleep_lock);
    }
}

void hl_pool_run(struct hl_pool *p, int64_t n, hl_task task, void *ctx) {
    if (n <= 0) return;
    pthread_mutex_lock(&p->busy);
    if (p->threads == 1 || n == 1) {
        for (int64_t i = 0; i < n; i++) task(ctx, i, 0);
        pthread_mutex_unlock(&p->busy);
        return;
    }
    p->task = task;
    p->ctx = ctx;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->running, p->threads - 1, memory_order_relaxed);
    raise_job(p);
    work(p, 0);
    for (int spins = 0; atomic_load_explicit(&p->running, memory_order_acquire) > 0; spins++)
        if (spins < SPIN) relax();
        else sched_yield(); /* another process holds the processor of a worker */
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
    pthread_cond_init(&p->wake, NULL);
    p->worker = calloc((size_t)threads, sizeof *p->worker);
    if (!p->worker) {
        hl_pool_free(p);
        return hl_fail(HOLA_ENOMEM, "thread pool: %d workers", threads);
    }
    p->threads = 1;
    for (int i = 1; i < threads; i++) {
        p->worker[i] = (struct worker){.pool = p, .id = i};
        if (pthread_create(&p->worker[i].thread, NULL, worker_main, &p->worker[i])) {
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
    raise_job(p);
    for (int i = 1; i < p->threads; i++) pthread_join(p->worker[i].thread, NULL);
    for (int i = 0; p->worker && i < p->threads; i++) free(p->worker[i].scratch);
    free(p->worker);
    pthread_mutex_destroy(&p->busy);
    pthread_mutex_destroy(&p->sleep_lock);
    pthread_cond_destroy(&p->wake);
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
        free(p->worker[i].scratch); /* the old block is smaller than what is now asked for */
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
