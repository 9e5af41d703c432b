/* prefix.c -- see prefix.h. */
#include "serve/prefix.h"
#include "core/hash.h"
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

static uint64_t add(uint64_t hash, int32_t id) { return hl_hash_mix(hash * 31 + (uint64_t)(uint32_t)id + 1); }
static struct hl_prefix_point **bucket_of(struct hl_prefix_cache *p, uint64_t hash) {
    return &p->bucket[hash % HL_PREFIX_BUCKETS];
}

int64_t hl_session_cost(const hola_session *s, int64_t vocab) {
    return hola_session_bytes(s) + vocab * (int64_t)sizeof(float) + (int64_t)sizeof *s;
}

/* ---- the LRU list ---- */

static void unlink_use(struct hl_prefix_cache *p, struct hl_prefix_point *x) {
    *(x->newer ? &x->newer->older : &p->newest) = x->older;
    *(x->older ? &x->older->newer : &p->oldest) = x->newer;
}
static void link_newest(struct hl_prefix_cache *p, struct hl_prefix_point *x) {
    x->newer = NULL, x->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = x;
    p->newest = x;
}

static void drop(struct hl_prefix_cache *p, struct hl_prefix_point *x) {
    struct hl_prefix_point **at = bucket_of(p, x->hash);
    while (*at != x) at = &(*at)->chain;
    *at = x->chain;
    unlink_use(p, x);
    p->n--, p->bytes -= x->bytes;
    hola_session_free(x->session);
    hl_tape_free(&x->tape);
    free(x);
}
bool hl_prefix_drop_oldest(struct hl_prefix_cache *p) {
    if (p->oldest) drop(p, p->oldest);
    else return false;
    return true;
}
void hl_prefix_free(struct hl_prefix_cache *p) {
    while (hl_prefix_drop_oldest(p)) {}
}

static bool same(const struct hl_prefix_point *x, const int32_t *ids, const uint8_t *begins, int64_t n) {
    return x->tape.n == n && memcmp(x->tape.ids, ids, (size_t)n * sizeof *ids) == 0 &&
           (!begins || memcmp(x->tape.begins, begins, (size_t)n) == 0);
}

const struct hl_prefix_point *hl_prefix_find(struct hl_prefix_cache *p, const int32_t *ids, const uint8_t *begins,
                                             int64_t n) {
    struct hl_prefix_point *best = NULL;
    uint64_t hash = 0;
    for (int64_t i = 0; p->n > 0 && i < n; i++) {
        hash = add(hash, ids[i]);
        for (struct hl_prefix_point *x = *bucket_of(p, hash); x; x = x->chain)
            if (x->hash == hash && same(x, ids, begins, i + 1) && (i + 1 < n || hola_session_logits(x->session)))
                best = x;
    }
    if (best) unlink_use(p, best), link_newest(p, best);
    return best;
}

hola_status hl_prefix_put(struct hl_prefix_cache *p, const struct hl_tape *tape, hola_session *s) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < tape->n; i++) hash = add(hash, tape->ids[i]);
    for (struct hl_prefix_point *x = *bucket_of(p, hash); x; x = x->chain) {
        if (x->hash != hash || !same(x, tape->ids, tape->begins, tape->n)) continue;
        if (hola_session_logits(x->session) || !hola_session_logits(s)) {
            unlink_use(p, x), link_newest(p, x);
            hola_session_free(s);
            return HOLA_OK;
        }
        drop(p, x); /* the new one also has logits */
        break;
    }
    struct hl_prefix_point *x = calloc(1, sizeof *x);
    hola_status st = x ? hl_tape_copy(&x->tape, tape, tape->n) : hl_fail(HOLA_ENOMEM, "no memory for a snapshot");
    if (st != HOLA_OK) {
        if (x) hl_tape_free(&x->tape);
        free(x);
        hola_session_free(s);
        return st;
    }
    free(s->work); /* the sampler's, if this is an answer's own session */
    s->work = NULL;
    x->session = s;
    x->hash = hash;
    x->bytes = hl_session_cost(s, s->model->cfg.vocab_size) + 5 * tape->n + (int64_t)sizeof *x;
    x->chain = *bucket_of(p, hash);
    *bucket_of(p, hash) = x;
    link_newest(p, x);
    p->n++, p->bytes += x->bytes;
    return HOLA_OK;
}
