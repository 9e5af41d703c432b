/* dist.c -- one rank, and agreement between several. */
#include "train/dist.h"

static void sum_alone(double *x, int n) { (void)x, (void)n; }
static hola_status reduce_alone(real *grads, int64_t part) {
    (void)grads, (void)part;
    return HOLA_OK;
}
static void share_alone(real *block, int64_t part, int64_t total) { (void)block, (void)part, (void)total; }
static void gather_alone(const real *mine, real *block, int64_t part, int64_t total) {
    (void)part;
    for (int64_t i = 0; i < total; i++) block[i] = mine[i];
}
static void broadcast_alone(void *data, int64_t bytes) { (void)data, (void)bytes; }

const struct hl_dist hl_dist_alone = {.size = 1,
                                      .sum = sum_alone,
                                      .reduce = reduce_alone,
                                      .share = share_alone,
                                      .gather = gather_alone,
                                      .broadcast = broadcast_alone};

hola_status hl_dist_agree(const struct hl_dist *d, hola_status s, bool *speaks) {
    enum { MOST_RANKS = 4096 };
    double failed[MOST_RANKS] = {0};
    int first = 0;
    if (d->size == 1) {
        *speaks = true;
        return s;
    }
    HL_ASSERT(d->size <= MOST_RANKS);
    failed[d->rank] = s != HOLA_OK;
    d->sum(failed, d->size);
    while (first < d->size && failed[first] == 0) first++;
    *speaks = first == d->rank;
    if (s == HOLA_OK && first < d->size) return hl_fail(HOLA_EDEVICE, "rank %d failed", first);
    return s;
}
