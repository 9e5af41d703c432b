/* mapped_output.c -- results that a kernel writes directly to host memory. The host reads them as they arrive, before
 * the driver reports the end of the kernel.
 *
 * The lowest bit of every word, the tag, tells new from old. It flips from one kernel to the next:
 *
 *   words allocated, or their number changes:  all bits 0, tag 0
 *   hl_mapped_words:       tag = 1 - tag       every word in memory has the other tag: old
 *   the kernel:            writes value | tag  word by word, in any order
 *   hl_mapped_words_wait:  polls until every word has the tag, returns them with the bit cleared
 *
 * So the host only reads, and never takes a cache line from the device by writing to it. If the stream is idle and a
 * word is still old, it will never arrive: an error, and the next kernel starts again from zeros. */
#include "cuda/device.h"
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE = 1024,     /* words read at a time */
    SPINS = 1 << 12,  /* polls between driver queries whether a kernel still runs */
    VALUE_BYTES = 64, /* for hl_mapped_values, before the words */
    MAX_VALUES = VALUE_BYTES / 8
};

static bool reserve(struct hl_cuda *c, int64_t bytes) {
    if (bytes <= c->mapped_bytes) return true;
    hl_cuda_wait(c);
    hl_cuda_free_host(c, c->mapped);
    c->mapped_bytes = c->mapped_words = 0;
    c->mapped = hl_cuda_malloc_host(c, bytes);
    if (c->mapped) c->mapped_bytes = bytes;
    return c->mapped;
}
void *hl_mapped_words(struct hl_cuda *c, int64_t words, uint32_t *tag) {
    if (!reserve(c, VALUE_BYTES + words * 4)) return NULL;
    if (words != c->mapped_words) {
        memset(c->mapped + VALUE_BYTES, 0, (size_t)words * 4);
        c->mapped_words = words;
        c->mapped_tag = 0;
    }
    *tag = c->mapped_tag ^= 1;
    return c->mapped + VALUE_BYTES;
}

/* Whether all of them were new. Tests the copy, not the source: a word that is read twice may change in between, and
 * without the second fence the compiler could read it twice. */
static bool copy_piece(uint32_t *restrict to, const uint32_t *restrict from, int64_t n, uint32_t tag) {
    uint32_t old = 0;
    atomic_thread_fence(memory_order_acquire); /* reread what an earlier poll has read */
    memcpy(to, from, (size_t)n * sizeof *to);
    atomic_thread_fence(memory_order_acq_rel);
    for (int64_t i = 0; i < n; i++) {
        old |= to[i] ^ tag;
        to[i] &= ~1u;
    }
    return !(old & 1);
}
/* Polls the last word of a piece, which arrives late: polling one word leaves the other cache lines to the device. */
static bool is_new(const uint32_t *word, uint32_t tag) { return !((*(const volatile uint32_t *)word ^ tag) & 1); }
/* Whether to poll again after that many polls. */
static bool may_arrive(struct hl_cuda *c, int64_t polls, bool *idle) {
    if (*idle) {
        c->mapped_words = 0;
        hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: a kernel ended without writing its result");
        return false;
    }
    if (polls % SPINS == 0) *idle = !hl_cuda_busy(c); /* then one last poll */
    return true;
}
bool hl_mapped_words_wait(struct hl_cuda *c, void *to, int64_t first, int64_t words,
                          void (*on_words)(void *ctx, int64_t from, int64_t to), void *ctx) {
    const uint32_t *mapped = (const uint32_t *)(c->mapped + VALUE_BYTES) + first;
    bool idle = false;
    for (int64_t i = 0; i < words; i += PIECE) {
        const int64_t n = words - i < PIECE ? words - i : PIECE;
        for (int64_t polls = 1; !is_new(mapped + i + n - 1, c->mapped_tag) ||
                                !copy_piece((uint32_t *)to + i, mapped + i, n, c->mapped_tag);
             polls++)
            if (!may_arrive(c, polls, &idle)) return false;
        on_words(ctx, i, i + n);
    }
    return true;
}

uint64_t *hl_mapped_values(struct hl_cuda *c, int n) {
    HL_ASSERT(n <= MAX_VALUES);
    if (!reserve(c, VALUE_BYTES)) return NULL;
    uint64_t *p = (uint64_t *)c->mapped;
    for (int i = 0; i < n; i++) p[i] = UINT64_MAX;
    return p;
}
bool hl_mapped_values_wait(struct hl_cuda *c, uint64_t *to, int n) {
    const volatile uint64_t *p = (const volatile uint64_t *)c->mapped;
    bool idle = false;
    for (int i = 0; i < n; i++)
        for (int64_t polls = 1; (to[i] = p[i]) == UINT64_MAX; polls++)
            if (!may_arrive(c, polls, &idle)) return false;
    return true;
}
