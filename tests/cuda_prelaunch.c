/* cuda_prelaunch.c -- kernels launched before their work is known (cuda/prelaunch.c): that host and kernel
 * agree on who does the work, with a thread in the kernel's place; and on a device, that sessions get the
 * same bits whether tokens go to such kernels or not, whatever else happens between two tokens. */
#define _GNU_SOURCE
#include "cuda.h"
#include "cuda/device.h"
#include "model/session.h"
#include "models.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- host and kernel ---- */

extern atomic_int hl_emu_busy __attribute__((weak)); /* the emulated device's: a kernel runs */

enum { PIECES = 2000 };
struct kernel {
    pthread_t thread;
    bool runs;
    struct hl_prelaunch_slot slot;
    bool dies, wrong; /* never replies; replies STOP but does the work */
    uint64_t seed;
    uint32_t *done; /* values of the work done, in order */
    int n;
};
static bool wait_for_request(struct kernel *k, uint32_t *value) {
    const _Atomic uint64_t *request = (const _Atomic uint64_t *)k->slot.request;
    const uint64_t polls = check_mix(k->seed++) % 2000; /* so its timeout may come just as the request does */
    for (uint64_t i = 0; i < polls || (polls % 4 && i < 1000000); i++) {
        const uint64_t word = atomic_load(request);
        *value = (uint32_t)word;
        if (word >> 32 == k->slot.number) return *value != HL_PRELAUNCH_STOP;
        if (i % 64 == 63) sched_yield();
    }
    return false;
}
static void *run_kernel(void *ctx) {
    struct kernel *k = ctx;
    uint32_t value = HL_PRELAUNCH_STOP;
    const bool has = !k->dies && wait_for_request(k, &value);
    if (has) k->done[k->n++] = value;
    if (!has || k->wrong) value = HL_PRELAUNCH_STOP;
    if (!k->dies) atomic_store((_Atomic uint64_t *)k->slot.reply, (uint64_t)k->slot.number << 32 | value);
    atomic_store(&hl_emu_busy, 0);
    return NULL;
}
static void end_kernel(struct kernel *k) { /* the next one comes after it in the stream */
    if (k->runs) pthread_join(k->thread, NULL);
    k->runs = false;
}
/* Submits a piece of work; returns whether a kernel for the next one was launched. */
static bool submit(struct hl_cuda *c, struct kernel *k, uint32_t work, uint32_t value) {
    const bool accepted = hl_prelaunch_submit(c, &work, sizeof work, value);
    end_kernel(k);
    if (!accepted) k->done[k->n++] = value;
    k->runs = hl_prelaunch_arm(c, &k->slot);
    if (k->runs) {
        atomic_store(&hl_emu_busy, 1);
        assert_int_equal(pthread_create(&k->thread, NULL, run_kernel, k), 0);
    }
    hl_prelaunch_done(c);
    return k->runs;
}
/* Another thread that uses the device now and then. */
struct other {
    struct hl_cuda *c;
    atomic_bool over;
};
static void *use_device(void *ctx) {
    struct other *o = ctx;
    while (!atomic_load(&o->over)) {
        hl_prelaunch_cancel(o->c);
        for (int i = 0; i < 50; i++) sched_yield();
    }
    return NULL;
}
/* Whether every piece of work was done once, in order. */
static bool in_order(struct hl_cuda *c, struct kernel *k, bool others) {
    static uint32_t done[2 * PIECES];
    struct other o = {.c = c};
    pthread_t thread;
    k->done = done, k->n = 0;
    if (others) assert_int_equal(pthread_create(&thread, NULL, use_device, &o), 0);
    for (uint32_t i = 0; i < PIECES; i++) {
        submit(c, k, i / 400, i); /* other work now and then */
        if (check_mix(i) % 50 == 0) hl_prelaunch_cancel(c);
    }
    atomic_store(&o.over, true);
    if (others) pthread_join(thread, NULL);
    hl_prelaunch_cancel(c);
    end_kernel(k);
    bool right = k->n == PIECES;
    for (int i = 0; i < PIECES; i++) right = right && done[i] == (uint32_t)i;
    return right;
}
static void submitted_once(void **state) {
    (void)state;
    if (!&hl_emu_busy) skip();
    struct dev d = dev_open(false);
    struct hl_cuda *c = hl_cuda_of(d.backend);
    struct kernel k = {.seed = 7};
    assert_true(in_order(c, &k, false));
    assert_true(hl_prelaunch_submitted(c) > 0 &&
                hl_prelaunch_submitted(c) < PIECES); /* how many depends on the machine's load */
    assert_true(in_order(c, &k, true));
    CHECK_OK(d.backend->storage.status(d.backend));
    k.wrong = true;
    assert_false(in_order(c, &k, false));
    dev_close(&d);
}
/* A kernel that dies is an error, not an endless wait; the next one is not affected. */
static void kernel_dies(void **state) {
    uint32_t done[64];
    const uint32_t work = 5;
    int times = 0;
    (void)state;
    if (!&hl_emu_busy) skip();
    struct dev d = dev_open(false);
    struct hl_cuda *c = hl_cuda_of(d.backend);
    struct kernel k = {.done = done, .dies = true};
    submit(c, &k, work, 1);
    while (!submit(c, &k, work, 2)) assert_true(++times < 5000); /* it was too slow to arm */
    assert_false(hl_prelaunch_submit(c, &work, sizeof work, 3));
    assert_int_equal(d.backend->storage.status(d.backend), HOLA_EDEVICE);
    end_kernel(&k);
    k.dies = false, k.n = 0;
    for (uint32_t i = 0; i < 40; i++) submit(c, &k, work, i);
    hl_prelaunch_cancel(c);
    end_kernel(&k);
    CHECK_OK(d.backend->storage.status(d.backend));
    assert_int_equal(k.n, 40);
    dev_close(&d);
}

/* ---- sessions ---- */

static const struct variant kinds[] = {
    {"64", "{\"num_hidden_layers\":2,\"vocab_size\":101,\"intermediate_size\":96,\"initializer_range\":0.15,"
           "\"cache_gate_init\":0.5,\"model_type\":\"hola\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":64,"
           "\"expand_v\":1,\"cache_window\":16,\"cache_chunk\":32}"},
    {"gated_deltanet",
     "{\"num_hidden_layers\":3,\"vocab_size\":101,\"intermediate_size\":96,\"initializer_range\":0.15,"
     "\"model_type\":\"gated_deltanet\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32,\"expand_v\":2}"},
    {"46m", "{\"model_type\":\"hola\",\"num_hidden_layers\":3,\"vocab_size\":101,\"initializer_range\":0.04,"
            "\"cache_gate_init\":0.5,\"num_heads\":4,\"expand_v\":1,\"hidden_size\":512,\"head_dim\":128,"
            "\"intermediate_size\":768}"},
    {"340m", "{\"model_type\":\"hola\",\"num_hidden_layers\":2,\"vocab_size\":101,\"initializer_range\":0.04,"
             "\"cache_gate_init\":0.5,\"num_heads\":4,\"expand_v\":1,\"hidden_size\":1024,\"head_dim\":256,"
             "\"intermediate_size\":2816,\"use_gate\":false}"},
};
enum { KINDS = sizeof kinds / sizeof *kinds, VOCAB = 101 };

static hola_model *model_of(int kind) {
    hola_options opt = {.threads = 1, .backend = "cuda"};
    hola_config cfg;
    hola_model *m;
    CHECK_OK(hl_config_parse(&cfg, kinds[kind].json, (int64_t)strlen(kinds[kind].json), kinds[kind].name));
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    return m;
}

/* What happens between two tokens, at random; `now` is the session whose turn it is. */
struct walk {
    hola_model *m;
    hola_session *s[2];
    int now;
    int32_t *ids;
};
static void do_something_else(struct walk *w, uint64_t chance, int64_t i) {
    hola_session *y = w->s[w->now], *copy;
    switch (chance % 8) {
    case 0: w->now ^= 1; break;
    case 1: CHECK_OK(hola_session_feed(w->s[w->now ^ 1], w->ids + i, 5, NULL)); break;
    case 2: CHECK_OK(hola_session_mark(y)); break;
    case 3: /* rolls back to the mark, if there is one */
        if (y->mark && hola_session_position(y) - y->mark->at.pos < 20)
            CHECK_OK(hola_session_rollback(y, hola_session_position(y) - y->mark->at.pos));
        break;
    case 4:
        CHECK_OK(hola_session_clone(&copy, y));
        hola_session_free(y);
        w->s[w->now] = copy;
        break;
    case 5: usleep(400); break; /* longer than the kernel's timeout */
    case 6: CHECK_OK(hola_session_step(&y, 1, w->ids + i, NULL)); break;
    default: CHECK_OK(hola_session_step(w->s, 2, w->ids + i, NULL));
    }
}
/* The logits of n tokens, and the ids that were sampled. breaks: waits for the device after each token, so
 * that no kernel is prelaunched. every: how often something else happens, 0: never. */
static void walk(hola_model *m, int32_t *ids, int64_t n, bool breaks, int every, float *logits, int32_t *next) {
    const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};
    struct walk w = {.m = m, .ids = ids};
    for (int i = 0; i < 2; i++) CHECK_OK(hola_session_new(&w.s[i], m));
    for (int64_t i = 0; i < n; i++) {
        const uint64_t chance = check_mix((uint64_t)i);
        const bool id = i / 20 % 2; /* 20 tokens at a time */
        memset(logits + i * VOCAB, 0, VOCAB * sizeof *logits), next[i] = 0;
        if (id) CHECK_OK(hola_session_step_sample(&w.s[w.now], 1, ids + i, &likeliest, next + i));
        else CHECK_OK(hola_session_step(&w.s[w.now], 1, ids + i, logits + i * VOCAB));
        if (breaks) CHECK_OK(hl_finish(m->backend));
        if (every && chance % (uint64_t)every == 0) do_something_else(&w, chance / (uint64_t)every, i);
    }
    for (int i = 0; i < 2; i++) hola_session_free(w.s[i]);
}
static void same_bits(void **state) {
    static float x[2][400 * VOCAB];
    static int32_t next[2][400];
    bool slow = false;
    (void)state;
    if (!dev_there(&slow)) skip();
    for (int kind = 0; kind < (slow ? 1 : KINDS); kind++) {
        hola_model *m = model_of(kind);
        struct hl_cuda *c = hl_cuda_of(m->backend);
        const int64_t n = dev_least() ? 12 : slow ? 24 : 400;
        int32_t *ids = random_ids(n + 8, VOCAB, 3);
        for (int every = 0; every < 12; every += 4) {
            const int64_t before = hl_prelaunch_submitted(c);
            walk(m, ids, n, true, every, x[0], next[0]);
            assert_int_equal(hl_prelaunch_submitted(c), before);
            walk(m, ids, n, false, every, x[1], next[1]);
            if (getenv("VERBOSE"))
                print_message("%s: %d of %d tokens submitted\n", kinds[kind].name,
                              (int)(hl_prelaunch_submitted(c) - before), (int)n);
            if (!slow) assert_true(hl_prelaunch_submitted(c) > before);
            assert_memory_equal(x[0], x[1], (size_t)(n * VOCAB) * sizeof **x);
            assert_memory_equal(next[0], next[1], (size_t)n * sizeof **next);
        }
        /* a wrong version must be seen: one token differs */
        ids[2] = (ids[2] + 1) % VOCAB;
        walk(m, ids, n, false, 8, x[0], next[0]);
        assert_memory_not_equal(x[0] + 3 * VOCAB, x[1] + 3 * VOCAB, (size_t)((n - 3) * VOCAB) * sizeof **x);
        free(ids);
        hola_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(submitted_once), cmocka_unit_test(kernel_dies),
                                       cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
