/* cache.c -- layout of a session's state and of a worker's scratch memory. */
#include "core/carve.h"
#include "ops/cache/cache_cpu.h"

enum { LINE = 64, SCORES = 768 * 1024 }; /* reals for one tile's scores, unless one step of rows needs more */

static int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct hl_cache_layout hl_cache_layout(int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size,
                                       bool factors) {
    const int64_t slots = window + chunk;
    struct hl_cache_layout l = {0};
    l.v = l.k + aligned(slots * K * size);
    l.score = l.v + aligned(slots * V * size);
    l.pos = l.score + aligned(slots * (int64_t)sizeof(real));
    l.factor = l.pos + aligned(window * (int64_t)sizeof(int64_t));
    l.bytes = l.factor + (factors ? aligned(slots * (int64_t)sizeof(real)) : 0);
    return l;
}

int64_t hl_cache_state_bytes(int64_t HV, int64_t K, int64_t V, int64_t window, int64_t chunk, int64_t size,
                             bool factors) {
    return HV * hl_cache_layout(K, V, window, chunk, size, factors).bytes;
}

/* scratch NULL: only counts the bytes. */
static struct hl_cache_work place(void *scratch, int64_t K, int64_t V, int64_t window, int64_t chunk) {
    const int64_t all = window + chunk, wide = K > V ? K : V, size = sizeof(real);
    const int64_t cols = all < CACHE_COLS ? all : CACHE_COLS, ldb = hl_cache_ld(CACHE_BCOLS);
    struct hl_cache_work w = {0};
    struct hl_carve c = {scratch, 0, LINE};
    int64_t forward;
    w.tile = CACHE_TILE;
    while (w.tile > CACHE_STEP && all * hl_cache_ld(w.tile) > SCORES) w.tile -= CACHE_STEP;
    w.chosen.id = hl_carve(&c, all, sizeof *w.chosen.id);
    w.chosen.score = hl_carve(&c, all, size);
    w.chosen.key = hl_carve(&c, all, sizeof *w.chosen.key);
    w.chosen.order = hl_carve(&c, 2 * all, sizeof *w.chosen.order);
    w.chosen.norm = hl_carve(&c, window + 1, size);
    w.rows = hl_carve(&c, CACHE_BCOLS * hl_cache_ld(wide), size);
    w.mm = hl_carve(&c, HL_SMALL_GEMM_SCRATCH, size);
    forward = c.used; /* the backward pass reuses the memory from here on */
    w.ldk = hl_cache_ld(cols);
    w.kT = hl_carve(&c, K * w.ldk, size);
    w.v = hl_carve(&c, cols * hl_cache_ld(V), size);
    w.qT = hl_carve(&c, K * hl_cache_ld(w.tile), size);
    w.S = hl_carve(&c, all * hl_cache_ld(w.tile), size);
    w.O = hl_carve(&c, w.tile * hl_cache_ld(V), size);
    w.max = hl_carve(&c, hl_cache_ld(w.tile), size);
    w.sum = hl_carve(&c, hl_cache_ld(w.tile), size);
    w.bytes = c.used;
    c.used = forward;
    w.bqT = hl_carve(&c, K * hl_cache_ld(CACHE_BACK), size);
    w.bdoT = hl_carve(&c, V * hl_cache_ld(CACHE_BACK), size);
    w.bk = hl_carve(&c, CACHE_BCOLS * hl_cache_ld(K), size);
    w.bkT = hl_carve(&c, K * ldb, size);
    w.bvT = hl_carve(&c, V * ldb, size);
    w.P = hl_carve(&c, CACHE_BACK * ldb, size);
    w.dS = hl_carve(&c, CACHE_BACK * ldb, size);
    w.R = hl_carve(&c, CACHE_BACK, size);
    w.lam = hl_carve(&c, CACHE_BACK, size);
    w.bias = hl_carve(&c, CACHE_BCOLS, size);
    if (c.used < w.bytes) c.used = w.bytes;
    w.kept = hl_carve(&c, CACHE_KEPT, size);
    w.bytes = c.used;
    return w;
}

int64_t hl_cache_scratch(int64_t K, int64_t V, int64_t window, int64_t chunk) {
    return place(NULL, K, V, window, chunk).bytes;
}

struct hl_cache_work hl_cache_worker(struct hl_pool *pool, int worker, const struct hl_cache *a) {
    void *scratch = hl_pool_scratch(pool, worker, hl_cache_scratch(a->K, a->V, a->window, a->chunk));
    return place(scratch, a->K, a->V, a->window, a->chunk);
}
