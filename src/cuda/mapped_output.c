/* mapped_output.c -- what a kernel writes to the host's memory by itself, taken as it comes: that is sooner than the driver
 * says that the kernel has ended.
 *
 * The last bit of a word says whether it is new: it is another one every time. So the host only reads, and the device
 * finds no line that it would have to wait for. */
#include "cuda/device.h"
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE = 1024,       /* words that are taken at a time */
    PATIENCE = 1 << 12, /* looks before the driver is asked whether anything will come */
    FEW = 64            /* bytes for numbers of their own, before the words */
};

static bool need_room(struct hl_cuda *c, int64_t bytes) {
    if (bytes <= c->mapped_bytes) return true;
    hl_cuda_wait(c);
    hl_cuda_free_host(c, c->mapped);
    c->mapped_bytes = c->mapped_words = 0;
    c->mapped = hl_cuda_malloc_host(c, bytes);
    if (c->mapped) c->mapped_bytes = bytes;
    return c->mapped;
}
void *hl_mapped_words(struct hl_cuda *c, int64_t words, uint32_t *tag) {
    if (!need_room(c, FEW + words * 4)) return NULL;
    if (words != c->mapped_words) {
        memset(c->mapped + FEW, 0, (size_t)words * 4);
        c->mapped_words = words;
        c->mapped_tag = 0;
    }
    *tag = c->mapped_tag ^= 1;
    return c->mapped + FEW;
}

/* Whether all of them were new. What is looked at is the copy: a word that is read twice may be another one then, and
 * without the fence between, a compiler may read it twice. */
static bool copy_piece(uint32_t *restrict to, const uint32_t *restrict from, int64_t n, uint32_t tag) {
    uint32_t old = 0;
    atomic_thread_fence(memory_order_acquire); /* what was read before may have changed */
    memcpy(to, from, (size_t)n * sizeof *to);
    atomic_thread_fence(memory_order_acq_rel);
    for (int64_t i = 0; i < n; i++) {
        old |= to[i] ^ tag;
        to[i] &= ~1u;
    }
    return !(old & 1);
}
/* A word that comes late, so as to leave the others to the device until then. */
static bool is_new(const uint32_t *word, uint32_t tag) {
    return !((*(const volatile uint32_t *)word ^ tag) & 1);
}
/* looks: how many there were; false: there is no point in another one. */
static bool patient(struct hl_cuda *c, int64_t looks, bool *over) {
    if (*over) {
        c->mapped_words = 0;
        hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: a kernel ended without its answer");
        return false;
    }
    if (looks % PATIENCE == 0) *over = !hl_cuda_busy(c); /* then a last look */
    return true;
}
bool hl_mapped_words_wait(struct hl_cuda *c, void *to, int64_t first, int64_t words,
                          void (*came)(void *ctx, int64_t from, int64_t to), void *ctx) {
    const uint32_t *answer = (const uint32_t *)(c->mapped + FEW) + first;
    bool over = false;
    for (int64_t i = 0; i < words; i += PIECE) {
        const int64_t n = words - i < PIECE ? words - i : PIECE;
        for (int64_t looks = 1; !is_new(answer + i + n - 1, c->mapped_tag) ||
                                !copy_piece((uint32_t *)to + i, answer + i, n, c->mapped_tag);
             looks++)
            if (!patient(c, looks, &over)) return false;
        came(ctx, i, i + n);
    }
    return true;
}

enum { MOST_FEW = FEW / 8 };
uint64_t *hl_mapped_values(struct hl_cuda *c, int n) {
    HL_ASSERT(n <= MOST_FEW);
    if (!need_room(c, FEW)) return NULL;
    uint64_t *p = (uint64_t *)c->mapped;
    for (int i = 0; i < n; i++) p[i] = UINT64_MAX;
    return p;
}
bool hl_mapped_values_wait(struct hl_cuda *c, uint64_t *to, int n) {
    const volatile uint64_t *p = (const volatile uint64_t *)c->mapped;
    bool over = false;
    for (int i = 0; i < n; i++)
        for (int64_t looks = 1; (to[i] = p[i]) == UINT64_MAX; looks++)
            if (!patient(c, looks, &over)) return false;
    return true;
}
