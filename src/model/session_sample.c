/* session_sample.c -- the next token of a session. The chance comes from (seed, position), so it needs no state. */
#include "core/rng.h"
#include "model/session.h"
#include <stdlib.h>

enum { STREAM = 0x73616d70 };

void hola_session_seed(hola_session *y, uint64_t seed) { y->now.at.seed = seed; }
uint64_t hola_session_seed_of(const hola_session *y) { return y->now.at.seed; }

double hl_session_uniform(const hola_session *y) {
    return hl_rng_uniform(y->now.at.seed, STREAM, (uint64_t)y->now.at.pos);
}

hola_status hola_session_sample(hola_session *y, const hola_sampling *p, int32_t *id) {
    const hola_sampling standard = hola_sampling_default();
    const int64_t vocab = y->model->cfg.vocab_size;
    int32_t recent[HOLA_RECENT];
    if (!p) p = &standard;
    hola_status s = hl_sampling_check(p);
    if (s != HOLA_OK) return s;
    if (!y->now.at.has_logits)
        return hl_fail(HOLA_EINVAL, "sample: the last token was fed without asking for logits");
    if (!y->work) y->work = malloc((size_t)vocab * sizeof *y->work);
    if (!y->work) return hl_fail(HOLA_ENOMEM, "sample: no memory for %lld candidates", (long long)vocab);
    const int64_t n = hola_session_recent(y, recent, p->repeat_last_n);
    *id = hl_sample(y->now.logits, vocab, p, recent, n, hl_session_uniform(y), y->work);
    return HOLA_OK;
}
