/* recall_curriculum.c -- see recall_curriculum.h. */
#include "data/recall_curriculum.h"
#include "core/rng_stream.h"
#include <stdlib.h>

enum { CLOSE = 4 }; /* largest distance of the sequences that query at once */

/* how many of 2, 4, 8, .. are at most most_facts */
static int64_t levels(const struct hl_recall_curriculum *c) {
    int64_t n = 0;
    while ((int64_t)2 << n <= c->most_facts) n++;
    return n;
}

/* The sequence with this many facts, at its maximum length. */
static struct hl_recall sequence(const struct hl_recall_curriculum *c, int64_t facts, int64_t distance) {
    struct hl_recall r = c->task;
    r.facts = facts;
    r.distance = distance;
    if (r.queries > facts) r.queries = facts;
    r.length = 1 + 3 * facts + distance + 3 * r.queries; /* one filler token per fact */
    if (r.length > c->task.length) r.length = c->task.length;
    return r;
}

hola_status hl_recall_curriculum_check(const struct hl_recall_curriculum *c) {
    if (c->most_facts < 2 || c->most_facts > 1 << 20)
        return hl_fail(HOLA_EINVAL, "recall: up to %lld facts", (long long)c->most_facts);
    if (c->steps < 1) return hl_fail(HOLA_EINVAL, "recall: %lld steps", (long long)c->steps);
    if (c->batch_tokens < c->task.length)
        return hl_fail(HOLA_EINVAL, "recall: a sequence of %lld tokens in a batch of %lld", (long long)c->task.length,
                       (long long)c->batch_tokens);
    const struct hl_recall longest = sequence(c, (int64_t)1 << levels(c), c->task.distance);
    return hl_recall_check(&longest);
}

hola_status hl_recall_batch_new(struct hl_recall_batch *b, const struct hl_recall_curriculum *c) {
    const size_t n = (size_t)c->batch_tokens;
    *b = (struct hl_recall_batch){.ids = malloc(n * sizeof *b->ids),
                                  .mask = malloc(n * sizeof *b->mask),
                                  .starts = malloc(n * sizeof *b->starts)};
    if (b->ids && b->mask && b->starts) return HOLA_OK;
    hl_recall_batch_free(b);
    return hl_fail(HOLA_ENOMEM, "recall: a batch of %zu tokens", n);
}

void hl_recall_batch_free(struct hl_recall_batch *b) {
    free(b->ids);
    free(b->mask);
    free(b->starts);
    *b = (struct hl_recall_batch){0};
}

hola_status hl_recall_batch_make(struct hl_recall_batch *b, const struct hl_recall_curriculum *c, int64_t step) {
    struct hl_rng_stream d = {.seed = c->seed ^ hl_fnv1a("course"), .stream = (uint64_t)step};
    const double part = (double)step / (double)c->steps;
    const int64_t all = levels(c), open = 1 + (int64_t)(1.5 * part * (double)all);
    const int64_t far = part < 0.125 ? (int64_t)(8 * part * (double)c->task.distance) : c->task.distance;
    b->tokens = b->documents = b->answers = 0;
    for (;;) {
        const int64_t facts = (int64_t)2 << hl_rng_stream_below(&d, open < all ? open : all);
        const bool close = hl_rng_stream_below(&d, 2);
        const int64_t distance = hl_rng_stream_below(&d, 1 + (close || far < CLOSE ? CLOSE : far));
        const struct hl_recall r = sequence(c, facts, distance);
        if (b->tokens + r.length > c->batch_tokens) return HOLA_OK;
        /* a batch has fewer sequences than tokens, so no two steps share a sequence */
        hola_status s =
            hl_recall_make(&r, c->seed, step * c->batch_tokens + b->documents, b->ids + b->tokens, b->mask + b->tokens);
        if (s != HOLA_OK) return s;
        b->starts[b->documents++] = b->tokens;
        b->tokens += r.length;
        b->answers += r.queries;
    }
}
