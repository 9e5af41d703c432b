/* cache.c -- how the state of a session and the scratch of a worker are laid out. */
#include "ops/cache/cache_cpu.h"

enum { LINE = 64, SCORES = 768 * 1024 }; /* reals of one tile's scores, unless one step of rows needs more */

static int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct hl_cache_layout hl_cache_layout(int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size) {
    const int64_t slots = window + chunk;
    struct hl_cache_layout l = {0};
    l.v = l.k + aligned(slots * K * size);
    l.score = l.v + aligned(slots * V * size);
    l.pos = l.score + aligned(slots * (int64_t)sizeof(real));
    l.bytes = l.pos + aligned(window * (int64_t)sizeof(int64_t));
    return l;
}

int64_t hl_cache_state_bytes(int64_t HV, int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size) {
    return HV * hl_cache_layout(K, V, window, chunk, size).bytes;
}

/* The next n items of `size` bytes; NULL while only counting. */
static void *cut(char *scratch, int64_t *used, int64_t n, int64_t size) {
    void *at = scratch ? scratch + *used : NULL;
    *used += aligned(n * size);
    return at;
}

static struct hl_cache_work carve(void *scratch, int64_t K, int64_t V, int64_t window, int64_t chunk) {
    const int64_t all = window + chunk, wide = K > V ? K : V, size = sizeof(real);
    const int64_t cols = all < CACHE_COLS ? all : CACHE_COLS, ldb = hl_cache_ld(CACHE_BCOLS);
    struct hl_cache_work w = {0};
    int64_t used = 0, forward;
    w.tile = CACHE_TILE;
    while (w.tile > CACHE_STEP && all * hl_cache_ld(w.tile) > SCORES) w.tile -= CACHE_STEP;
    w.pick.id = cut(scratch, &used, all, sizeof *w.pick.id);
    w.pick.score = cut(scratch, &used, all, size);
    w.pick.key = cut(scratch, &used, all, sizeof *w.pick.key);
    w.rows = cut(scratch, &used, CACHE_BCOLS * hl_cache_ld(wide), size);
    w.mm = cut(scratch, &used, HL_SMALL_GEMM_SCRATCH, size);
    forward = used; /* from here on, one or the other */
    w.ldk = hl_cache_ld(cols);
    w.kT = cut(scratch, &used, K * w.ldk, size);
    w.v = cut(scratch, &used, cols * hl_cache_ld(V), size);
    w.qT = cut(scratch, &used, K * hl_cache_ld(w.tile), size);
    w.S = cut(scratch, &used, all * hl_cache_ld(w.tile), size);
    w.O = cut(scratch, &used, w.tile * hl_cache_ld(V), size);
    w.max = cut(scratch, &used, hl_cache_ld(w.tile), size);
    w.sum = cut(scratch, &used, hl_cache_ld(w.tile), size);
    w.bytes = used;
    used = forward;
    w.bqT = cut(scratch, &used, K * hl_cache_ld(CACHE_BACK), size);
    w.bdoT = cut(scratch, &used, V * hl_cache_ld(CACHE_BACK), size);
    w.bk = cut(scratch, &used, CACHE_BCOLS * hl_cache_ld(K), size);
    w.bkT = cut(scratch, &used, K * ldb, size);
    w.bvT = cut(scratch, &used, V * ldb, size);
    w.P = cut(scratch, &used, CACHE_BACK * ldb, size);
    w.dS = cut(scratch, &used, CACHE_BACK * ldb, size);
    w.R = cut(scratch, &used, CACHE_BACK, size);
    if (used > w.bytes) w.bytes = used;
    return w;
}

int64_t hl_cache_scratch(int64_t K, int64_t V, int64_t window, int64_t chunk) {
    return carve(NULL, K, V, window, chunk).bytes;
}

struct hl_cache_work hl_cache_worker(struct hl_pool *pool, int worker, const struct hl_cache *a) {
    void *scratch = hl_pool_scratch(pool, worker, hl_cache_scratch(a->K, a->V, a->window, a->chunk));
    return carve(scratch, a->K, a->V, a->window, a->chunk);
}
