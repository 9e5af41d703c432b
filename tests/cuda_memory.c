/* cuda_memory.c -- a device's memory: what is put there, copied or zeroed comes back, whatever its size. What comes
 * back passes through a stage of several parts, so sizes lie around the pieces, the parts and the whole of it. */
#include "cuda.h"
#include "cuda/device.h"

enum { PIECE = 256 << 10, PART = 2 << 20, STAGE = 8 * PART, ROOM = 64 };

static unsigned char *bytes_of(int64_t n, uint64_t seed) {
    unsigned char *p = malloc((size_t)n);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = (unsigned char)(check_mix(seed + (uint64_t)(i / 8)) >> i % 8 * 8);
    return p;
}

/* n bytes from `skip` on, there and back; what lies around them stays. */
static void there_and_back(const struct dev *d, int64_t n, int64_t skip) {
    const struct hl_memory *mem = d->ops->mem;
    const int64_t all = n + 2 * ROOM;
    unsigned char *want = bytes_of(all, (uint64_t)n), *got = bytes_of(all, (uint64_t)n + 99),
                  *around = malloc((size_t)all);
    char *x = mem->alloc(d->pool, all), *y = mem->alloc(d->pool, all);
    assert_true(x && y && around);
    memcpy(around, got, (size_t)all);
    mem->put(d->pool, x, want, all);
    mem->zero(d->pool, y, all);
    mem->copy(d->pool, y + skip, x + skip, n);
    mem->get(d->pool, got + skip, y + skip, n);
    CHECK_OK(mem->finish(d->pool));
    assert_memory_equal(got + skip, want + skip, (size_t)n);
    assert_memory_equal(got, around, (size_t)skip);
    assert_memory_equal(got + skip + n, around + skip + n, (size_t)(all - skip - n));
    if (n > 1) assert_memory_not_equal(got + skip, around + skip, (size_t)n);
    mem->get(d->pool, got, y, all); /* zeros around what was copied */
    CHECK_OK(mem->finish(d->pool));
    for (int64_t i = 0; i < all; i++)
        if (i < skip || i >= skip + n) assert_int_equal(got[i], 0);
    assert_memory_equal(got + skip, want + skip, (size_t)n);
    mem->release(d->pool, x), mem->release(d->pool, y);
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
    struct hl_cuda *c = hl_cuda_of(d.pool);
    hl_cuda_fail(c, HOLA_ENOMEM, "the %s one", "first");
    hl_cuda_fail(c, HOLA_EIO, "another");
    assert_int_equal(d.ops->mem->finish(d.pool), HOLA_ENOMEM);
    assert_string_equal(hola_last_error(), "the first one");
    CHECK_OK(d.ops->mem->finish(d.pool));
    void *less = hl_cuda_scratch(c, 100), *more = hl_cuda_scratch(c, 3 << 20);
    assert_true(less && more);
    assert_ptr_equal(hl_cuda_scratch(c, 1 << 20), more); /* it is kept */
    CHECK_OK(d.ops->mem->finish(d.pool));
    dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
