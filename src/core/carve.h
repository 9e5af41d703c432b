/* carve.h -- many arrays in one block of memory: count, allocate, place.
 *
 * The same code runs twice. With base NULL it only counts: every array is NULL, and the final `used` is the size of the
 * block. With the block as base it returns the arrays. */
#ifndef HL_CARVE_H
#define HL_CARVE_H
#include <stddef.h>
#include <stdint.h>

struct hl_carve {
    char *base;          /* NULL: only count */
    int64_t used, align; /* bytes; every array starts at a multiple of align from base */
};

/* The next n items of `size` bytes each. */
static inline void *hl_carve(struct hl_carve *c, int64_t n, int64_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += (n * size + c->align - 1) / c->align * c->align;
    return at;
}

#endif
