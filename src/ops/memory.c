/* memory.c -- see memory.h. */
#include "ops/memory.h"
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>

static void *host_alloc(struct hl_pool *pool, int64_t bytes) {
    (void)pool;
    return aligned_alloc(256, (size_t)((bytes + 255) / 256 * 256));
}
static void host_release(struct hl_pool *pool, void *p) {
    (void)pool;
    free(p);
}
static void host_zero(struct hl_pool *pool, void *p, int64_t bytes) {
    (void)pool;
    if (bytes > 0) memset(p, 0, (size_t)bytes);
}
static void host_copy(struct hl_pool *pool, void *to, const void *from, int64_t bytes) {
    (void)pool;
    if (bytes > 0) memcpy(to, from, (size_t)bytes);
}
static hola_status host_rows(struct hl_pool *pool, struct hl_rows *rows, int64_t C) {
    (void)pool, (void)rows, (void)C;
    return HOLA_OK;
}
static hola_status host_finish(struct hl_pool *pool) {
    (void)pool;
    return HOLA_OK;
}

static bool host_replay(struct hl_pool *pool, uint64_t key) {
    (void)pool, (void)key;
    return false;
}
static void host_recorded(struct hl_pool *pool, uint64_t key) { (void)pool, (void)key; }
static void host_room(struct hl_pool *pool, int64_t *free_bytes, int64_t *used) {
    (void)pool;
    *free_bytes = *used = 0;
}

const struct hl_memory hl_host_memory = {.alloc = host_alloc,
                                         .release = host_release,
                                         .zero = host_zero,
                                         .copy = host_copy,
                                         .put = host_copy,
                                         .get = host_copy,
                                         .rows = host_rows,
                                         .finish = host_finish,
                                         .status = host_finish,
                                         .replay = host_replay,
                                         .recorded = host_recorded,
                                         .room = host_room,
                                         .host = true,
                                         .act_size = (int64_t)sizeof(real),
                                         .xent_rows = HL_XENT_ROWS};
