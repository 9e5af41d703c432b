/* rollback.c -- points of a session, and the mark it can go back to.
 *
 * Between two block boundaries tokens change of a layer's state the fast weights and the convolutions' tails;
 * to the exact memory they only add behind what is there, which the position tells apart. So a mark copies the
 * former (a sixth of the state at 46m), and the exact memory only when a block closes behind it. h2o, whose scores
 * move with every token, is copied whole. */
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

/* ---- points ---- */

hola_status hl_restore_point_logits(const hola_model *m, struct hl_restore_point *p) {
    if (p->logits) return HOLA_OK;
    p->logits = malloc((size_t)m->cfg.vocab_size * sizeof *p->logits);
    if (p->logits) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "session: no memory for %lld logits", (long long)m->cfg.vocab_size);
}

hola_status hl_restore_point_new(struct hl_restore_point **out, const hola_model *m) {
    struct hl_restore_point *p = calloc(1, sizeof *p);
    *out = p;
    if (p) p->state = hl_alloc(m->backend, m->state.bytes);
    if (p && p->state) return HOLA_OK;
    free(p);
    *out = NULL;
    return hl_fail(HOLA_ENOMEM, "session: %lld bytes to go back to do not fit in memory",
                   (long long)m->state.bytes);
}

void hl_restore_point_free(const hola_model *m, struct hl_restore_point *p) {
    if (!p) return;
    hl_release(m->backend, p->state);
    free(p->logits);
    free(p);
}

static void copy_part(const hola_model *m, char *to, const char *from, int64_t begin, int64_t end) {
    for (int64_t l = 0; l < m->cfg.num_hidden_layers && end > begin; l++) {
        const int64_t at = l * m->state.layer + begin;
        hl_copy(m->backend, to + at, from + at, end - begin);
    }
}

void hl_restore_point_copy_cache(const hola_model *m, struct hl_restore_point *to,
                                 const struct hl_restore_point *from) {
    copy_part(m, to->state, from->state, m->state.cache, m->state.layer);
    to->cache = true;
}

hola_status hl_restore_point_copy(const hola_model *m, struct hl_restore_point *to,
                                  const struct hl_restore_point *from, bool without) {
    if (from->at.has_logits) {
        hola_status s = hl_restore_point_logits(m, to);
        if (s != HOLA_OK) return s;
        memcpy(to->logits, from->logits, (size_t)m->cfg.vocab_size * sizeof *to->logits);
    }
    pthread_mutex_lock(&((hola_model *)m)->lock);
    to->at = from->at;
    to->cache = false;
    copy_part(m, to->state, from->state, 0, m->state.cache);
    if (!without) hl_restore_point_copy_cache(m, to, from);
    hola_status s = hl_finish(m->backend);
    pthread_mutex_unlock(&((hola_model *)m)->lock);
    return s;
}

/* ---- the mark ---- */

hola_status hola_session_mark(hola_session *y) {
    hola_status s = y->mark ? HOLA_OK : hl_restore_point_new(&y->mark, y->model);
    struct hl_policy policy;
    if (s != HOLA_OK) return s;
    hl_policy_of(&policy, &y->model->cfg);
    return hl_restore_point_copy(y->model, y->mark, &y->now, !policy.moves_with_reads);
}

void hl_session_before(hola_session *y, int64_t len) {
    const hola_model *m = y->model;
    if (!y->mark || y->mark->cache || !hl_dims(&m->cfg).cache) return;
    if ((y->now.at.pos + len) / m->cfg.cache_chunk > y->mark->at.pos / m->cfg.cache_chunk)
        hl_restore_point_copy_cache(m, y->mark, &y->now);
}

/* Back to the mark. What the exact memory got since then lies behind what it held, or it was copied. */
static hola_status to_mark(hola_session *y) {
    struct hl_restore_point *p = y->mark;
    hola_status s = hl_restore_point_copy(y->model, &y->now, p, !p->cache);
    y->now.cache = true;
    y->turns++;
    return s;
}

hola_status hola_session_rollback(hola_session *y, int64_t k) {
    const int64_t pos = y->now.at.pos, to = pos - k;
    if (k < 0 || to < 0)
        return hl_fail(HOLA_EINVAL, "rollback: %lld of %lld tokens", (long long)k, (long long)pos);
    if (k == 0) return HOLA_OK;
    if (!y->mark || y->mark->at.pos > to)
        return hl_fail(HOLA_EINVAL, "rollback: no mark at or before token %lld", (long long)to);
    const int64_t from = y->mark->at.pos;
    if (pos - from > HOLA_RECENT)
        return hl_fail(HOLA_EINVAL, "rollback: the mark is %lld tokens back, at most %d can be",
                       (long long)(pos - from), HOLA_RECENT);
    const struct hl_position old = y->now.at;
    hola_status s = y->now.logits || from == to ? HOLA_OK : hl_restore_point_logits(y->model, &y->now);
    float *logits =
        s == HOLA_OK && to > from ? malloc((size_t)y->model->cfg.vocab_size * sizeof *logits) : NULL;
    if (s == HOLA_OK && to > from && !logits) s = hl_fail(HOLA_ENOMEM, "rollback: no memory for logits");
    if (s == HOLA_OK) s = to_mark(y);
    for (int64_t i = from, end; s == HOLA_OK && i < to; i = end) { /* call by call, as they were */
        int32_t ids[HOLA_RECENT];
        for (end = i; end < to && (end == i || !hl_position_begins(&old, end)); end++)
            ids[end - i] = hl_position_id(&old, end);
        s = hola_session_feed(y, ids, end - i, end == to ? logits : NULL);
    }
    free(logits);
    return s;
}
