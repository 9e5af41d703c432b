/* engine_start.c -- what an engine does before its first request, so that no request waits for it: memory for sessions
 * and for the threads' own needs and, on a device, the first use of what passes over prompts need.
 *
 * New memory costs page faults, or waits for a device, which in a burst of requests would take as long as reading the
 * prompts. So the model has blocks that were written to: since before the first request, and again whenever the engine is
 * idle and snapshots have taken some. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fill {
    struct hl_serve_engine *e;
    double until;
};
static bool in_time(void *ctx) { return hl_clock() < ((struct fill *)ctx)->until; }
static bool undisturbed(void *ctx) { return hl_queue_empty(&((struct fill *)ctx)->e->inbox); }

/* Snapshots leave an eighth of a device's memory, whatever cache_mem says: passes over long prompts take some later. */
static bool has_room(const struct hl_serve_engine *e) {
    hola_model *m = e->o.model;
    int64_t left = 0, used = 0;
    if (m->backend->host || hl_state_pool_kept(&m->states) < e->o.parallel) return true;
    m->backend->storage.free_memory(m->backend, &left, &used);
    return left == 0 || left >= (left + used) / 8;
}
static bool add_one(struct fill *f, hl_go_on go_on) {
    hola_model *m = f->e->o.model;
    return has_room(f->e) && hl_state_pool_add(&m->states, &m->state, m->backend, go_on, f);
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

/* ---- malloc's memory ---- */

/* Some virtual machines take milliseconds for a megabyte that is written for the first time. Each thread has an arena of
 * malloc, and events are allocated in the engine's and freed by another thread, so one that waits for new memory may keep
 * the other waiting, too. What is counted: text and events, logits of a session and of its snapshot (docs/notes/serve.md
 * has what was measured). */
enum { READY_MOST = 32 << 20 };
int64_t hl_serve_heap(int64_t parallel, int64_t vocab) {
    enum { ALWAYS = 2 << 20, EACH = 64 << 10 };
    const int64_t each = EACH + 2 * vocab * (int64_t)sizeof(float);
    return parallel < (READY_MOST - ALWAYS) / each ? ALWAYS + parallel * each : READY_MOST;
}
void hl_serve_ready_heap(int64_t bytes) {
    enum { SIZE = 64 << 10, STRIDE = 2 << 10 }; /* too small for a mapping of its own; less than a page */
    struct block {
        struct block *next;
    } *last = NULL, *b;
    for (int64_t done = 0; done < bytes && (b = malloc(SIZE)); done += SIZE) {
        volatile char *at = (char *)b; /* a compiler may leave out what is written before free() */
        for (int64_t i = 0; i < SIZE; i += STRIDE) at[i] = 0;
        b->next = last;
        last = b;
    }
    for (; last; last = b) {
        b = last->next;
        free(last);
    }
}
static void ready_logits(struct hl_serve_engine *e) {
    const int64_t bytes = e->room * e->vocab * (int64_t)sizeof *e->logits;
    memset(e->logits, 0, (size_t)(bytes < READY_MOST ? bytes : READY_MOST));
}

/* ---- a device's first uses ---- */

/* A device takes 10 to 20 ms for the first pass of a length, to load kernels for its products, and some for the first two
 * steps of a number of sequences, of which the second is captured as a graph. What fails here fails again when it is asked
 * for.
 *
 * Graphs take memory of the device and of the host, and a device has room for a number of them (cuda/device.h); more than
 * MOST sequences take so long for a step that its first time matters little.
 *
 * All steps are made once, then all are captured: memory that one of them releases would end graphs made before. The
 * third use replays them, and its number is in the log. */
enum { MOST = HL_PACE_MOST / HL_PACE_UNIT, WAYS = 2, USES = 3 };
#define PASSES_SECONDS 3 /* at most, for all passes; STEPS_SECONDS: for all steps */
#define STEPS_SECONDS 3

struct first_use {
    struct hl_serve_engine *e;
    hola_session **s;
    int64_t n;
    int32_t *zero; /* [HL_PACE_MOST] */
    double until;
};
static bool feed_together(const struct first_use *f, int64_t k, int64_t len) {
    struct hl_ids ids[MOST];
    for (int64_t i = 0; i < k; i++) ids[i] = (struct hl_ids){.data = f->zero, .n = len};
    return hl_sessions_feed(f->s, ids, k, f->e->logits) == HOLA_OK;
}
/* The most rows, pieces and logits that a pass may have, so that no later one takes memory: memory that is released for
 * it would make captured graphs worthless. On a slow device less. */
static bool use_most(const struct first_use *f) {
    enum { LAST = HL_READ_PIECE + HL_FEW, SECONDS = 4 };
    double start = 0;
    bool ok = true;
    for (int times = 0; ok && times < 2; times++) start = hl_clock(), ok = feed_together(f, 1, LAST);
    const int64_t most = (int64_t)(SECONDS * LAST / (hl_clock() - start));
    const int64_t n = f->n * LAST <= most ? f->n : most / LAST, len = most < HL_PACE_MOST ? most : HL_PACE_MOST;
    if (ok && len >= HL_PACE_UNIT) ok = hola_session_feed(f->s[0], f->zero, len, NULL) == HOLA_OK;
    for (int times = 0; ok && n > 0 && times < 2; times++) ok = feed_together(f, n, LAST); /* then within a block */
    return ok;
}
/* The lengths of long pieces, each a second time for the estimate of their time. */
static bool use_lengths(const struct first_use *f) {
    for (int64_t len = HL_PACE_UNIT; len <= HL_PACE_MOST && (len == HL_PACE_UNIT || hl_clock() < f->until); len *= 2) {
        if (hola_session_feed(f->s[0], f->zero, len, NULL) != HOLA_OK) return false;
        const double start = hl_clock();
        if (hola_session_feed(f->s[0], f->zero, len, NULL) != HOLA_OK) return false;
        hl_pace_add_power(&f->e->pace, len, false, hl_clock() - start);
    }
    return true;
}
/* What follows the last piece of a prompt: its first token, and a copy of its state. */
static void end_prompts(const struct first_use *f, int64_t k) {
    for (int64_t i = 0; i < k; i++) {
        hola_session *copy;
        int32_t id;
        if (hola_session_sample(f->s[i], &f->e->o.sampling, &id) != HOLA_OK) return;
        if (hola_session_clone(&copy, f->s[i]) != HOLA_OK) return;
        hola_session_free(copy);
    }
}
/* Last pieces of several prompts in one pass: powers of two, again for the estimate. */
static bool use_powers(const struct first_use *f) {
    for (int64_t k = 1; k <= f->n && (k == 1 || hl_clock() < f->until); k *= 2) {
        if (!feed_together(f, k, HL_PACE_UNIT)) return false;
        const double start = hl_clock();
        if (!feed_together(f, k, HL_PACE_UNIT)) return false;
        end_prompts(f, k);
        hl_pace_add_power(&f->e->pace, k * HL_PACE_UNIT, true, hl_clock() - start);
    }
    return true;
}
/* ... and all other numbers; the longest passes are hardly made beside others that write. */
static bool use_passes(const struct first_use *f) {
    for (int64_t k = 1; k <= f->n && hl_clock() < f->until; k++)
        if ((k & (k - 1)) != 0 && !feed_together(f, k, HL_PACE_UNIT)) return false;
    return true;
}
/* One step of every number of sequences. Where a state grows, graphs are of no use for long: pages that are released
 * end them. */
static void use_steps(const struct first_use *f, const hola_sampling *p) {
    const bool grows = f->e->o.model->state.page > 0;
    int32_t *next = malloc((size_t)f->n * sizeof *next);
    for (int64_t k = f->n; next && k >= (grows ? f->n : 1) && hl_clock() < f->until; k--)
        if (hola_session_step_sample(f->s, k, f->zero, p, next) != HOLA_OK) break;
    free(next);
}
static void use_device(struct hl_serve_engine *e) {
    hola_model *m = e->o.model;
    const int64_t n = e->o.parallel < MOST ? e->o.parallel : MOST;
    hola_sampling likeliest = e->o.sampling;
    likeliest.temp = 0;
    struct first_use f = {.e = e, .s = calloc((size_t)n, sizeof(hola_session *))};
    f.zero = calloc(HL_PACE_MOST, sizeof *f.zero);
    while (f.s && f.zero && f.n < n && hola_session_new(&f.s[f.n], m) == HOLA_OK) f.n++;
    f.until = hl_clock() + PASSES_SECONDS;
    const bool ok = f.n > 0 && use_most(&f) && use_powers(&f) && use_lengths(&f) && use_passes(&f);
    f.until = hl_clock() + STEPS_SECONDS;
    for (int i = 0; ok && i < USES * WAYS; i++) {
        if (i % WAYS == 0) m->steps_replayed = 0;
        use_steps(&f, i % WAYS == 0 ? &likeliest : &e->o.sampling);
    }
    while (f.n > 0) hola_session_free(f.s[--f.n]);
    free(f.s), free(f.zero);
}

hola_status hl_serve_prepare(struct hl_serve_engine *e) {
    hola_model *m = e->o.model;
    const double start = hl_clock();
    struct fill f = {e, start + 1};
    const int64_t n = missing(e);
    int64_t left = 0, used = 0, before = 0;
    hola_status s = hl_serve_make_streams(e, e->o.parallel);
    if (s == HOLA_OK) ready_logits(e);
    if (s == HOLA_OK && m->backend->host && n > 0) hl_pool_run(m->backend->pool, n, fill_one, &f);
    if (s != HOLA_OK || m->backend->host) return s;
    while (missing(e) > 0 && in_time(&f) && add_one(&f, in_time)) {}
    m->backend->storage.free_memory(m->backend, &left, &before);
    const double filled = hl_clock();
    use_device(e);
    m->backend->storage.free_memory(m->backend, &left, &used);
    if (e->o.slow_gap > 0)
        fprintf(stderr,
                "engine: %.2f s for memory of %" PRId64 " sessions, %.2f s for first uses, which took %.0f MB of the "
                "device; %" PRId64 " steps are replayed\n",
                filled - start, hl_state_pool_kept(&m->states), hl_clock() - filled, (double)(used - before) * 1e-6,
                m->steps_replayed);
    return HOLA_OK;
}

void hl_serve_note_gap(const struct hl_serve_engine *e, const struct hl_round *last) {
    const struct hl_round *r = &e->round;
    const double gap = r->ended - last->ended, ms = 1e3;
    if (r->ended <= 0 || last->ended <= 0 || gap < e->o.slow_gap) return;
    fprintf(stderr,
            "engine: %.1f ms between steps: %.1f for %" PRId64 " tokens of %" PRId64 " prompts (%.1f of it for first "
            "tokens), %.1f for %" PRId64 " that joined, %.1f for a step of %" PRId64 "%s, %.1f for the rest\n",
            ms * gap, ms * last->read, last->tokens, last->prompts, ms * last->after, ms * r->admit, r->joined,
            ms * r->step, r->stepped, r->replayed ? " (a graph)" : "", ms * (gap - last->read - r->admit - r->step));
}
