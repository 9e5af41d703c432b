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

/* A device takes 10 to 20 ms for the first pass of a length, to load kernels for its products, and some for the first two
 * steps of a number of sequences, of which the second is captured as a graph. What fails here fails again when it is asked
 * for. */
struct first_use {
    struct hl_serve_engine *e;
    hola_session **s;
    int64_t n;
    int32_t *zero; /* [HL_PACE_MOST] */
    float *logits; /* [n][vocab] */
    double until;
};
/* The lengths of long pieces, each a second time for the estimate of their time. */
static bool use_lengths(const struct first_use *f) {
    for (int64_t len = HL_PACE_UNIT; len <= HL_PACE_MOST && hl_clock() < f->until; len *= 2) {
        if (hola_session_feed(f->s[0], f->zero, len, NULL) != HOLA_OK) return false;
        const double start = hl_clock();
        if (hola_session_feed(f->s[0], f->zero, len, NULL) != HOLA_OK) return false;
        hl_pace_add_power(&f->e->pace, len, false, hl_clock() - start);
    }
    return true;
}
/* Last pieces of any number of prompts in one pass; powers of two again, for the estimate. */
static bool use_passes(const struct first_use *f) {
    struct hl_ids *ids = malloc((size_t)f->n * sizeof *ids);
    bool ok = ids != NULL;
    for (int64_t i = 0; ok && i < f->n; i++) ids[i] = (struct hl_ids){.data = f->zero, .n = HL_PACE_UNIT};
    for (int64_t k = f->n; ok && k > 0 && hl_clock() < f->until; k--) {
        ok = hl_sessions_feed(f->s, ids, k, f->logits) == HOLA_OK;
        if (!ok || k == 1 || (k & (k - 1)) != 0) continue;
        const double start = hl_clock();
        ok = hl_sessions_feed(f->s, ids, k, f->logits) == HOLA_OK;
        hl_pace_add_power(&f->e->pace, k * HL_PACE_UNIT, true, hl_clock() - start);
    }
    free(ids);
    return ok;
}
static void use_steps(const struct first_use *f, const hola_sampling *p) {
    int32_t *next = malloc((size_t)f->n * sizeof *next);
    for (int64_t k = 2 * f->n; next && k > 1 && hl_clock() < f->until; k--)
        if (hola_session_step_sample(f->s, k / 2, f->zero, p, next) != HOLA_OK) break;
    free(next);
}
static void use_device(struct hl_serve_engine *e, double until) {
    const int64_t n = e->o.parallel;
    hola_sampling likeliest = e->o.sampling;
    likeliest.temp = 0;
    struct first_use f = {.e = e, .s = calloc((size_t)n, sizeof(hola_session *)), .until = until};
    f.zero = calloc((size_t)(HL_PACE_MOST > n ? HL_PACE_MOST : n), sizeof *f.zero);
    f.logits = malloc((size_t)(n * e->vocab) * sizeof *f.logits);
    while (f.s && f.zero && f.logits && f.n < n && hola_session_new(&f.s[f.n], e->o.model) == HOLA_OK) f.n++;
    if (f.n > 0 && use_lengths(&f) && use_passes(&f)) {
        use_steps(&f, &e->o.sampling);
        use_steps(&f, &likeliest);
    }
    while (f.n > 0) hola_session_free(f.s[--f.n]);
    free(f.s), free(f.zero), free(f.logits);
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
    use_device(e, hl_clock() + 5);
}
