/* test_core.c -- the thread pool (every task once, callers in turn, scratch, signals), the error line, the arithmetic of
 * segments, texts that grow, arrays in one block. */
#define _GNU_SOURCE
#include "check.h"
#include "core/argmax.h"
#include "core/carve.h"
#include "core/clock.h"
#include "core/rows.h"
#include "core/text.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

/* One test asks for more memory than there is; a sanitizer shall say no instead of stopping. */
#define SANITIZER __attribute__((visibility("default"))) const char *
SANITIZER __asan_default_options(void);
SANITIZER __asan_default_options(void) { return "allocator_may_return_null=1"; }
SANITIZER __tsan_default_options(void);
SANITIZER __tsan_default_options(void) { return "allocator_may_return_null=1"; }

/* ---- pool ---- */

enum { MAX_N = 5000, MAX_WORKERS = 16 };

struct job {
    atomic_int runs[MAX_N];
    atomic_int inside[MAX_WORKERS]; /* tasks that a worker is in: 0 or 1 */
    atomic_int faults;
    int threads;
};

static void count(void *ctx, int64_t i, int worker) {
    struct job *j = ctx;
    if (worker < 0 || worker >= j->threads) {
        atomic_fetch_add(&j->faults, 1);
        return;
    }
    if (atomic_fetch_add(&j->inside[worker], 1) != 0) atomic_fetch_add(&j->faults, 1);
    atomic_fetch_add(&j->runs[i], 1);
    atomic_fetch_sub(&j->inside[worker], 1);
}

/* whether each of the n tasks ran exactly `times`, and no other */
static bool ran(struct job *j, int64_t n, int times) {
    for (int64_t i = 0; i < MAX_N; i++)
        if (atomic_load(&j->runs[i]) != (i < n ? times : 0)) return false;
    return atomic_load(&j->faults) == 0;
}

static void test_each_task_once(void **state) {
    static const int64_t ns[] = {-1, 0, 1, 2, 3, 7, 64, 65, 1000, MAX_N};
    static const int threads[] = {1, 2, 3, 6};
    struct job *j = calloc(1, sizeof *j);
    (void)state;
    assert_non_null(j);
    for (int t = 0; t < 4; t++) {
        struct hl_pool *p = check_pool(threads[t], 0);
        assert_int_equal(hl_pool_threads(p), threads[t]);
        for (size_t k = 0; k < sizeof ns / sizeof *ns; k++)
            for (int times = 1; times <= 5; times++) {
                if (times == 1) memset(j, 0, sizeof *j);
                j->threads = threads[t];
                hl_pool_run(p, ns[k], count, j);
                if (!ran(j, ns[k], times)) fail_msg("%d threads, %d tasks, run %d", threads[t], (int)ns[k], times);
            }
        hl_pool_free(p);
    }
    memset(j, 0, sizeof *j); /* wrong pools: one task forgotten, one done twice, one worker shared */
    j->threads = 1;
    for (int64_t i = 0; i < 9; i++) count(j, i, 0);
    assert_false(ran(j, 10, 1));
    count(j, 9, 0);
    assert_true(ran(j, 10, 1));
    count(j, 9, 0);
    assert_false(ran(j, 10, 1));
    memset(j, 0, sizeof *j);
    j->threads = 1;
    atomic_store(&j->inside[0], 1);
    count(j, 0, 0);
    assert_false(ran(j, 1, 1));
    free(j);
}

/* Each worker begins with the first task of its share; whoever is done takes what others have not begun. */
enum { SHARE = 5, SHARERS = 3 };
struct shares {
    atomic_int come; /* workers */
    int first[SHARERS], runs[SHARERS * SHARE];
};
static void take_share(void *ctx, int64_t i, int worker) {
    struct shares *s = ctx;
    s->runs[i]++;
    if (s->first[worker] >= 0) return;
    s->first[worker] = (int)i;
    atomic_fetch_add(&s->come, 1);
    while (atomic_load(&s->come) < SHARERS) usleep(10); /* nobody is done before all have begun */
}
static bool begin_in_their_shares(const struct shares *s) {
    for (int w = 0; w < SHARERS; w++)
        if (s->first[w] != w * SHARE) return false;
    return true;
}
static void test_shares(void **state) {
    struct shares s = {.first = {-1, -1, -1}};
    struct hl_pool *p = check_pool(SHARERS, 0);
    (void)state;
    hl_pool_run(p, SHARERS * SHARE, take_share, &s);
    assert_true(begin_in_their_shares(&s));
    for (int i = 0; i < SHARERS * SHARE; i++) assert_int_equal(s.runs[i], 1);
    s.first[1] = 1; /* one counter for all workers would give this */
    assert_false(begin_in_their_shares(&s));
    hl_pool_free(p);
}

/* Workers that fell asleep between jobs must wake up. */
static void test_after_a_pause(void **state) {
    struct hl_pool *p = check_pool(3, 0);
    struct job *j = calloc(1, sizeof *j);
    (void)state;
    assert_non_null(j);
    j->threads = 3;
    for (int times = 1; times <= 5; times++) {
        usleep(20000);
        hl_pool_run(p, 100, count, j);
        assert_true(ran(j, 100, times));
    }
    usleep(20000); /* and must notice the end */
    hl_pool_free(p);
    hl_pool_free(NULL);
    free(j);
}

/* A helper that is kept from running in the middle of its tasks is left out for a while, and taken back. */
struct stalling {
    bool stall;            /* helpers sleep, which looks as if another process had their processor */
    atomic_int by_helpers; /* tasks */
};
static void stall(void *ctx, int64_t i, int worker) {
    struct stalling *s = ctx;
    const int64_t start = hl_clock_ns();
    (void)i;
    if (worker > 0) atomic_fetch_add(&s->by_helpers, 1);
    if (worker > 0 && s->stall) usleep(20000);
    while (hl_clock_ns() - start < 100000) {} /* long enough for a helper to come */
}
static int tasks_of_helpers(struct hl_pool *p, bool stalls) {
    struct stalling s = {.stall = stalls};
    hl_pool_run(p, 20, stall, &s);
    return atomic_load(&s.by_helpers);
}
/* Two stalls (a first one is not held against it), then three jobs, 6 ms in all, while the rest is of 10. A busy machine
 * may be late anywhere: the caller tries again. */
static bool stalls_and_is_left_out(struct hl_pool *p) {
    int stalls = 0, took_part = 0;
    for (int i = 0; i < 200 && stalls < 2; i++) stalls += tasks_of_helpers(p, true) > 0;
    for (int i = 0; i < 3; i++) took_part += tasks_of_helpers(p, false) > 0;
    return stalls == 2 && took_part == 0;
}
static void test_helpers_that_stall(void **state) {
    struct hl_pool *p = check_pool(2, 0);
    bool left_out = false;
    int back = 0;
    (void)state;
    for (int i = 0; i < 20 && !left_out; i++) left_out = stalls_and_is_left_out(p);
    assert_true(left_out);
    for (int i = 0; i < 2000 && back == 0; i++) back = tasks_of_helpers(p, false);
    assert_true(back > 0);
    hl_pool_free(p);
}

struct caller {
    struct hl_pool *pool;
    struct job *shared;
    int64_t sum[64];
    bool wrong;
};
static void square(void *ctx, int64_t i, int worker) {
    struct caller *c = ctx;
    c->sum[i] = i * i;
    count(c->shared, i, worker);
}
static void *call(void *arg) {
    struct caller *c = arg;
    for (int k = 0; k < 100; k++) {
        memset(c->sum, 0, sizeof c->sum);
        hl_pool_run(c->pool, 64, square, c);
        for (int64_t i = 0; i < 64; i++) c->wrong |= c->sum[i] != i * i; /* all done on return */
    }
    return NULL;
}

static void test_callers_in_turn(void **state) {
    enum { CALLERS = 4 };
    struct hl_pool *p = check_pool(3, 0);
    struct job *j = calloc(1, sizeof *j);
    struct caller c[CALLERS];
    pthread_t th[CALLERS];
    (void)state;
    assert_non_null(j);
    j->threads = 3;
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (struct caller){.pool = p, .shared = j};
        assert_int_equal(pthread_create(&th[i], NULL, call, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(th[i], NULL);
        assert_false(c[i].wrong);
    }
    assert_true(ran(j, 64, CALLERS * 100)); /* nor did two jobs share a worker */
    hl_pool_free(p);
    free(j);
}

static void test_threads(void **state) {
    struct hl_pool *p = NULL;
    (void)state;
    CHECK_OK(hl_pool_new(&p, 0));
    assert_true(hl_pool_threads(p) >= 1);
    hl_pool_free(p);
    assert_int_equal(hl_pool_new(&p, 1000000), HOLA_EINVAL);
    assert_null(p);
    assert_non_null(strstr(hola_last_error(), "1000000"));
}

static volatile sig_atomic_t caught;
static pthread_t catcher;
static void on_signal(int sig) { catcher = pthread_self(), caught = sig; }

/* A signal that the calling thread blocks waits for it: no helper takes it. */
static void test_signals(void **state) {
    const struct sigaction a = {.sa_handler = on_signal};
    struct sigaction before;
    sigset_t usr1, old;
    struct hl_pool *p = check_pool(3, 0);
    (void)state;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    assert_int_equal(sigaction(SIGUSR1, &a, &before), 0);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &usr1, &old), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* a helper would have run the handler by now */
    assert_int_equal(caught, 0);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
    assert_int_equal(caught, SIGUSR1);
    assert_true(pthread_equal(catcher, pthread_self()));
    sigaction(SIGUSR1, &before, NULL);
    hl_pool_free(p);
}

/* ---- scratch ---- */

enum { BYTES = 100000 };

struct user {
    struct hl_pool *pool;
    atomic_int faults;
};
static void use_scratch(void *ctx, int64_t i, int worker) {
    struct user *u = ctx;
    unsigned char *s = hl_pool_scratch(u->pool, worker, BYTES);
    if ((uintptr_t)s % 64) atomic_fetch_add(&u->faults, 1);
    memset(s, (int)i & 255, BYTES);
    for (int k = 0; k < BYTES; k++) /* another worker's bytes would show */
        if (s[k] != (i & 255)) atomic_fetch_add(&u->faults, 1);
}

static void test_scratch(void **state) {
    struct user u = {.pool = check_pool(3, BYTES)};
    void *first = hl_pool_scratch(u.pool, 0, BYTES);
    (void)state;
    hl_pool_run(u.pool, 100, use_scratch, &u);
    assert_int_equal(atomic_load(&u.faults), 0);
    CHECK_OK(hl_pool_reserve(u.pool, 10)); /* never shrinks */
    assert_ptr_equal(hl_pool_scratch(u.pool, 0, BYTES), first);
    assert_int_equal(hl_pool_reserve(u.pool, INT64_C(1) << 60), HOLA_ENOMEM);
    hl_pool_run(u.pool, 100, use_scratch, &u); /* what was there stays */
    CHECK_OK(hl_pool_reserve(u.pool, 4 * BYTES));
    memset(hl_pool_scratch(u.pool, 2, 4 * BYTES), 1, 4 * BYTES);
    hl_pool_run(u.pool, 100, use_scratch, &u);
    assert_int_equal(atomic_load(&u.faults), 0);
    hl_pool_free(u.pool);
}

/* Runs f in a child; true when it was stopped by an assertion that names `what`. */
static bool stops(void (*f)(void *), void *ctx, const char *what) {
    char text[512] = "";
    int fd[2], status = 0;
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka catches it */
        dup2(fd[1], 2);
        f(ctx);
        _exit(0);
    }
    close(fd[1]);
    for (ssize_t k; (k = read(fd[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)k;
    close(fd[0]);
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, what);
}
static void ask(void *pool) { hl_pool_scratch(pool, 0, 4096); }
static void ask_too_much(void *pool) { hl_pool_scratch(pool, 0, 4097); }
static void assert_one(void *x) { HL_ASSERT(*(int *)x == 1); }

static void test_asserts(void **state) {
    struct hl_pool *p = check_pool(1, 4096);
    int yes = 1, no = 0;
    (void)state;
    assert_true(stops(ask_too_much, p, "scratch_bytes"));
    assert_false(stops(ask, p, "scratch_bytes"));
    assert_true(stops(assert_one, &no, "*(int *)x == 1"));
    assert_true(stops(assert_one, &no, "test_core.c"));
    assert_false(stops(assert_one, &yes, ""));
    hl_pool_free(p);
}

/* ---- status ---- */

static void *fail_elsewhere(void *arg) {
    hl_fail(HOLA_EIO, "elsewhere");
    return strcmp(hola_last_error(), "elsewhere") ? NULL : arg;
}

static void test_status(void **state) {
    char big[5000];
    pthread_t th;
    void *ok = NULL;
    (void)state;
    assert_int_equal(hl_fail(HOLA_EFORMAT, "%s: line %d", "a.json", 7), HOLA_EFORMAT);
    assert_string_equal(hola_last_error(), "a.json: line 7");
    assert_int_equal(pthread_create(&th, NULL, fail_elsewhere, big), 0);
    pthread_join(th, &ok);
    assert_non_null(ok);
    assert_string_equal(hola_last_error(), "a.json: line 7"); /* each thread has its own */

    hl_fail(HOLA_EIO, "two\nlines\r\n\ttab \033[1m \177 %s", "caf\xc3\xa9"); /* a name from a file */
    assert_string_equal(hola_last_error(), "two?lines???tab ?[1m ? caf\xc3\xa9");
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    hl_fail(HOLA_EIO, "%s\n", big);
    assert_true(strlen(hola_last_error()) >= 500 && strlen(hola_last_error()) < sizeof big);
    assert_null(strchr(hola_last_error(), '\n'));
    hl_fail(HOLA_EIO, "begin %s: the cause", big); /* its middle is left out */
    assert_memory_equal(hola_last_error(), "begin xxx", 9);
    assert_string_equal(hola_last_error() + strlen(hola_last_error()) - 12, "x: the cause");

    for (int s = 0; s < HOLA_STATUS_COUNT; s++)
        for (int t = 0; t < s; t++)
            assert_string_not_equal(hola_status_text((hola_status)s), hola_status_text((hola_status)t));
    assert_string_equal(hola_status_text(HOLA_OK), "ok");
    assert_string_equal(hola_status_text((hola_status)HOLA_STATUS_COUNT), "unknown status");
    assert_string_equal(hola_status_text((hola_status)-1), "unknown status");
    assert_string_equal(hola_version(), HOLA_VERSION);
}

/* ---- rows.h ---- */

static void test_segments(void **state) {
    struct hl_seg seg[] = {{0, 1, 0, NULL}, {1, 64, 0, NULL}, {65, 65, 255, NULL}, {130, 300, 17, NULL}};
    const struct hl_rows rows = {.T = 430, .n = 4, .seg = seg};
    (void)state;
    for (int64_t n = 0, chunks = 0, blocks = 0; n <= 4; n++) { /* by counting, row by row */
        assert_int_equal(hl_chunks_before(&rows, n), chunks);
        assert_int_equal(hl_blocks_before(&rows, n, 256), blocks);
        for (int64_t t = 0; n < 4 && t < seg[n].len; t++) {
            chunks += t % HL_CHUNK == 0;
            blocks += t == 0 || (seg[n].pos + t) % 256 == 0;
        }
    }
    assert_int_equal(hl_pieces(0, 8), 0);
    assert_int_equal(hl_pieces(8, 8), 1);
    assert_int_equal(hl_pieces(9, 8), 2);
}

/* ---- small helpers ---- */

static void test_text(void **state) {
    struct hl_text t = {0};
    (void)state;
    for (int i = 0; i < 1000; i++) CHECK_OK(hl_text_printf(&t, "%d,", i % 10));
    assert_int_equal(t.n, 2000);
    assert_string_equal(t.data + 1996, "8,9,");
    CHECK_OK(hl_text_clear(&t));
    assert_string_equal(t.data, "");
    CHECK_OK(hl_text_put(&t, "abc", 2));
    CHECK_OK(hl_text_puts(&t, "|"));
    assert_string_equal(t.data, "ab|");
    /* no memory once is no memory for good: nothing is added behind a gap */
    assert_int_equal(hl_text_room(&t, INT64_MAX / 4), HOLA_ENOMEM);
    assert_int_equal(hl_text_puts(&t, "x"), HOLA_ENOMEM);
    assert_int_equal(hl_text_printf(&t, "x"), HOLA_ENOMEM);
    assert_int_equal(hl_text_status(&t), HOLA_ENOMEM);
    assert_int_equal(t.n, 3);
    hl_text_free(&t);
    CHECK_OK(hl_text_status(&t));
}

static int64_t place(char *base, char **a, int32_t **b) {
    struct hl_carve c = {.base = base, .align = 64};
    *a = hl_carve(&c, 65, 1);
    *b = hl_carve(&c, 3, sizeof **b);
    return c.used;
}

static void test_carve(void **state) {
    _Alignas(64) char block[192];
    char *a;
    int32_t *b;
    (void)state;
    assert_int_equal(place(NULL, &a, &b), sizeof block);
    assert_true(!a && !b);
    place(block, &a, &b);
    assert_true(a == block && (char *)b == block + 128);
}

static void test_argmax_and_clock(void **state) {
    const float x[] = {-1, 3, 2, 3};
    const double begun = hl_clock();
    const int64_t ns = hl_clock_ns();
    (void)state;
    assert_int_equal(hl_argmax(x, 4), 1); /* the first of equals */
    assert_int_equal(hl_argmax(x, 1), 0);
    assert_true(hl_clock() >= begun && fabs(hl_clock() - 1e-9 * (double)ns) < 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_carve),
        cmocka_unit_test(test_argmax_and_clock),
        cmocka_unit_test(test_each_task_once),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_after_a_pause),
        cmocka_unit_test(test_helpers_that_stall),
        cmocka_unit_test(test_callers_in_turn),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_asserts),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
