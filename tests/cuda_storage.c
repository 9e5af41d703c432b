/* cuda_storage.c -- a device's memory: what is put there, copied or zeroed comes back, whatever its size. Copies to the
 * host go through a staging buffer of several parts, so sizes are around those of a piece, a part and the whole. Then
 * mapped host memory that kernels write themselves. */
#include "cuda.h"
#include "cuda/device.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { PIECE = 256 << 10, PART = 2 << 20, STAGE = 8 * PART, ROOM = 64 };

static unsigned char *bytes_of(int64_t n, uint64_t seed) {
    unsigned char *p = malloc((size_t)n);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = (unsigned char)(check_mix(seed + (uint64_t)(i / 8)) >> i % 8 * 8);
    return p;
}

/* n bytes from `skip` on, there and back; what lies around them stays. */
static void there_and_back(const struct dev *d, int64_t n, int64_t skip) {
    const int64_t all = n + 2 * ROOM;
    unsigned char *want = bytes_of(all, (uint64_t)n), *got = bytes_of(all, (uint64_t)n + 99),
                  *around = malloc((size_t)all);
    char *x = hl_alloc(d->backend, all), *y = hl_alloc(d->backend, all);
    assert_true(x && y && around);
    memcpy(around, got, (size_t)all);
    hl_put(d->backend, x, want, all);
    hl_zero(d->backend, y, all);
    hl_copy(d->backend, y + skip, x + skip, n);
    hl_get(d->backend, got + skip, y + skip, n);
    CHECK_OK(hl_finish(d->backend));
    assert_memory_equal(got + skip, want + skip, (size_t)n);
    assert_memory_equal(got, around, (size_t)skip);
    assert_memory_equal(got + skip + n, around + skip + n, (size_t)(all - skip - n));
    if (n > 1) assert_memory_not_equal(got + skip, around + skip, (size_t)n);
    hl_get(d->backend, got, y, all); /* zeros around what was copied */
    CHECK_OK(hl_finish(d->backend));
    for (int64_t i = 0; i < all; i++)
        if (i < skip || i >= skip + n) assert_int_equal(got[i], 0);
    assert_memory_equal(got + skip, want + skip, (size_t)n);
    hl_release(d->backend, x), hl_release(d->backend, y);
    free(want), free(got), free(around);
}
static void sizes(void **state) {
    static const int64_t all[] = {1,        PIECE - 1,    PIECE,     PIECE + 1,        PART - 1,         PART,
                                  PART + 1, 3 * PART + 7, STAGE - 1, STAGE + PART + 5, 2 * STAGE + PIECE};
    (void)state;
    struct dev d = dev_open(false);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) there_and_back(&d, all[i], (int64_t)i % ROOM);
    dev_close(&d);
}

/* One failure is told once, with the first one's message; then all goes on. */
static void failures(void **state) {
    (void)state;
    struct dev d = dev_open(false);
    struct hl_cuda *c = hl_cuda_of(d.backend);
    hl_cuda_fail(c, HOLA_ENOMEM, "the %s one", "first");
    hl_cuda_fail(c, HOLA_EIO, "another");
    assert_int_equal(hl_finish(d.backend), HOLA_ENOMEM);
    assert_string_equal(hola_last_error(), "the first one");
    CHECK_OK(hl_finish(d.backend));
    void *less = hl_cuda_scratch(c, 100), *more = hl_cuda_scratch(c, 3 << 20);
    assert_true(less && more);
    assert_ptr_equal(hl_cuda_scratch(c, 1 << 20), more); /* it is kept */
    CHECK_OK(hl_finish(d.backend));
    dev_close(&d);
}

/* mapped_output.c: words as they come; those that never come are an error, not a wait without end. */
enum { WORDS = 2500 };
static uint32_t word_of(uint32_t i, int turn) { return (i * 7 + (uint32_t)turn) << 1; }
static void got_word(void *ctx, int64_t from, int64_t to) { *(int64_t *)ctx += to - from; }
static void answers(void **state) {
    static uint32_t got[WORDS];
    int64_t n = 0;
    uint32_t tag;
    uint64_t few[2];
    (void)state;
    struct dev d = dev_open(false);
    struct hl_cuda *c = hl_cuda_of(d.backend);
    for (int turn = 0; turn < 5; turn++) {
        uint32_t *w = hl_mapped_words(c, WORDS, &tag);
        for (uint32_t i = 0; i < WORDS && turn != 2; i++) w[i] = word_of(i, turn) | tag;
        assert_int_equal(hl_mapped_words_wait(c, got, 0, WORDS, got_word, &n), turn != 2);
        assert_int_equal(d.backend->storage.status(d.backend), turn == 2 ? HOLA_EDEVICE : HOLA_OK);
        for (uint32_t i = 0; i < WORDS && turn != 2; i++) assert_int_equal(got[i], word_of(i, turn));
    }
    assert_int_equal(n, 4 * WORDS);
    for (int turn = 0; turn < 3; turn++) {
        uint64_t *w = hl_mapped_values(c, 2);
        for (int i = 0; i < 2 && turn != 1; i++) w[i] = (uint64_t)(turn * 2 + i);
        assert_int_equal(hl_mapped_values_wait(c, few, 2), turn != 1);
        assert_int_equal(d.backend->storage.status(d.backend), turn == 1 ? HOLA_EDEVICE : HOLA_OK);
        if (turn != 1) assert_int_equal(few[1], (uint64_t)(turn * 2 + 1));
    }
    dev_close(&d);
}

/* The same while they are written: a thread in the place of the emulated device's kernel. What is taken is what was
 * looked at. */
extern atomic_int hl_emu_busy __attribute__((weak)); /* something is under way */
struct writer {
    atomic_int turn; /* that it may write; < 0: the end */
    volatile uint32_t *words;
    uint32_t tag;
};
static void *write_words(void *ctx) {
    struct writer *w = ctx;
    for (int turn = 1;; turn++) {
        int now;
        while ((now = atomic_load(&w->turn)) >= 0 && now < turn) sched_yield();
        if (now < 0) return NULL;
        for (uint32_t i = 0; i < WORDS; i++) w->words[i] = word_of(i, turn) | w->tag;
    }
}
static void meanwhile(void **state) {
    enum { TURNS = 1000 };
    static uint32_t got[WORDS];
    int64_t n = 0;
    struct writer w = {.words = NULL};
    pthread_t thread;
    (void)state;
    if (!&hl_emu_busy) skip();
    struct dev d = dev_open(false);
    struct hl_cuda *c = hl_cuda_of(d.backend);
    assert_int_equal(pthread_create(&thread, NULL, write_words, &w), 0);
    atomic_store(&hl_emu_busy, 1);
    for (int turn = 1; turn <= TURNS; turn++) {
        w.words = hl_mapped_words(c, WORDS, &w.tag);
        atomic_store(&w.turn, turn);
        assert_true(hl_mapped_words_wait(c, got, 0, WORDS, got_word, &n));
        for (uint32_t i = 0; i < WORDS; i++) assert_int_equal(got[i], word_of(i, turn));
    }
    atomic_store(&w.turn, -1);
    pthread_join(thread, NULL);
    atomic_store(&hl_emu_busy, 0);
    assert_int_equal(n, (int64_t)TURNS * WORDS);
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(failures), cmocka_unit_test(answers),
                                       cmocka_unit_test(meanwhile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
