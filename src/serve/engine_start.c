/* engine_start.c -- what an engine does before its first request, so that no request waits for it: memory for sessions
 * and, on a device, the first use of what passes over prompts need.
 *
 * New memory costs page faults, or waits for a device, which in a burst of requests would take as long as reading the
 * prompts. So the model has blocks that were written to: since before the first request, and again whenever the engine is
 * idle and snapshots have taken some. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <stdlib.h>

struct fill {
    struct hl_serve_engine *e;
    double until;
};
static bool in_time(void *ctx) { return hl_clock() < ((struct fill *)ctx)->until; }
static bool undisturbed(void *ctx) { return hl_queue_empty(&((struct fill *)ctx)->e->inbox); }

static bool add_one(struct fill *f, hl_go_on go_on) {
    hola_model *m = f->e->o.model;
    return hl_state_pool_add(&m->states, &m->state, m->backend, go_on, f);
}
static void fill_one(void *ctx, int64_t i, int worker) {
    (void)i, (void)worker;
    if (in_time(ctx)) add_one(ctx, in_time);
}
/* Blocks to have ready: one for each sequence; on a device, where memory is never taken quickly, also for what cache_mem
 * has room for: every prompt that was read leaves a snapshot, 56 of them in the round in which 56 streams join. */
static int64_t missing(const struct hl_serve_engine *e) {
    hola_model *m = e->o.model;
    const int64_t room = e->o.cache_mem - e->prefixes.bytes - e->idle_bytes;
    const int64_t snapshots = m->backend->host || room < 0 ? 0 : room / e->session_cost;
    return e->o.parallel + snapshots - hl_state_pool_kept(&m->states);
}

void hl_serve_refill_memory(struct hl_serve_engine *e) {
    struct fill f = {.e = e};
    while (missing(e) > 0 && undisturbed(&f) && add_one(&f, undisturbed)) {}
}

/* A device takes 10 to 20 ms for the first pass of a length, to load kernels for its products. First the lengths of long
 * pieces, each a second time for the estimate of their time; then last pieces of any number of prompts in one pass. What
 * fails here fails again when it is asked for. */
static void use_device(struct hl_serve_engine *e, double until) {
    enum { MOST = 64 };
    const int64_t n = e->o.parallel < MOST ? e->o.parallel : MOST;
    hola_session *s[MOST] = {NULL};
    struct hl_ids ids[MOST];
    int32_t *zero = calloc(HL_PACE_MOST, sizeof *zero);
    float *logits = malloc((size_t)(n * e->vocab) * sizeof *logits);
    int64_t made = 0;
    while (zero && logits && made < n && hola_session_new(&s[made], e->o.model) == HOLA_OK) {
        ids[made] = (struct hl_ids){.data = zero, .n = HL_PACE_UNIT};
        made++;
    }
    for (int64_t len = HL_PACE_UNIT; made > 0 && len <= HL_PACE_MOST && hl_clock() < until; len *= 2) {
        hola_status st = hola_session_feed(s[0], zero, len, NULL);
        const double start = hl_clock();
        if (st == HOLA_OK) st = hola_session_feed(s[0], zero, len, NULL);
        if (st != HOLA_OK) break;
        hl_pace_add(&e->pace, len, hl_clock() - start);
    }
    for (int64_t k = made; k > 0 && hl_clock() < until; k--)
        if (hl_sessions_feed(s, ids, k, logits) != HOLA_OK) break;
    while (made > 0) hola_session_free(s[--made]);
    free(zero), free(logits);
}

void hl_serve_prepare(struct hl_serve_engine *e) {
    hola_model *m = e->o.model;
    struct fill f = {e, hl_clock() + 1};
    const int64_t n = missing(e);
    if (m->backend->host) {
        if (n > 0) hl_pool_run(m->backend->pool, n, fill_one, &f);
        return;
    }
    while (missing(e) > 0 && in_time(&f) && add_one(&f, in_time)) {}
    use_device(e, hl_clock() + 3);
}
