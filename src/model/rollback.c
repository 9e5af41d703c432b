/* rollback.c -- restore points of a session, and the mark it can go back to.
 *
 * What a mark copies follows from how the parts of the state change (mixers/mixer.h): those that are replaced at once
 * (a sixth of the state at 46m), ranked ones when a block closes after the mark, growing ones never. */
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

/* ---- restore points ---- */

hola_status hl_restore_point_logits(const hola_model *m, struct hl_restore_point *p) {
    if (p->logits) return HOLA_OK;
    p->logits = malloc((size_t)m->cfg.vocab_size * sizeof *p->logits);
    if (p->logits) return HOLA_OK;
    return hl_fail(HOLA_ENOMEM, "session: no memory for %lld logits", (long long)m->cfg.vocab_size);
}

hola_status hl_restore_point_new(struct hl_restore_point **out, const hola_model *m) {
    struct hl_restore_point *p = calloc(1, sizeof *p);
    *out = p;
    if (p && hl_state_new(&p->state, &m->state, m->backend) == HOLA_OK) return HOLA_OK;
    free(p);
    *out = NULL;
    return hl_fail(HOLA_ENOMEM, "session: no memory for a copy of %lld bytes to go back to", (long long)m->state.bytes);
}

void hl_restore_point_free(const hola_model *m, struct hl_restore_point *p) {
    if (!p) return;
    hl_state_free(&p->state, m->backend);
    free(p->logits);
    free(p);
}

hola_status hl_restore_point_copy(const hola_model *m, struct hl_restore_point *to, const struct hl_restore_point *from,
                                  unsigned changes) {
    hola_status s = HOLA_OK;
    if (from->at.has_logits) s = hl_restore_point_logits(m, to);
    if (s == HOLA_OK && changes & HL_GROWS) s = hl_state_reserve(&to->state, &m->state, m->backend, from->at.pos);
    if (s != HOLA_OK) return s;
    if (from->at.has_logits) memcpy(to->logits, from->logits, (size_t)m->cfg.vocab_size * sizeof *to->logits);
    pthread_mutex_lock(&((hola_model *)m)->lock);
    to->at = from->at;
    to->ranked = changes & HL_RANKED;
    hl_state_copy(&to->state, &from->state, &m->state, m->backend, from->at.pos, changes);
    s = hl_finish(m->backend);
    pthread_mutex_unlock(&((hola_model *)m)->lock);
    return s;
}

/* ---- the mark ---- */

hola_status hola_session_mark(hola_session *y) {
    HL_NEED(y, "the session");
    hola_status s = y->mark ? HOLA_OK : hl_restore_point_new(&y->mark, y->model);
    return s == HOLA_OK ? hl_restore_point_copy(y->model, y->mark, &y->now, HL_REPLACED) : s;
}

hola_status hl_session_prepare(hola_session *y, int64_t len) {
    const struct hl_state_layout *state = &y->model->state;
    const int64_t end = y->now.at.pos + len;
    hola_status s = hl_state_reserve(&y->now.state, state, y->model->backend, end);
    if (s != HOLA_OK || !y->mark || y->mark->ranked || !state->ranked) return s;
    if (end / state->block > y->mark->at.pos / state->block) {
        hl_state_copy(&y->mark->state, &y->now.state, state, y->model->backend, 0, HL_RANKED);
        y->mark->ranked = true;
    }
    return HOLA_OK;
}

/* Back to the mark. What ranked parts got since then lies after what they held, or they were copied; parts that
 * grow have their rows still. */
static hola_status to_mark(hola_session *y) {
    const unsigned changes = HL_REPLACED | (y->mark->ranked ? HL_RANKED : 0);
    hola_status s = hl_restore_point_copy(y->model, &y->now, y->mark, changes);
    y->now.ranked = true;
    y->generation++;
    return s;
}

hola_status hola_session_rollback(hola_session *y, int64_t k) {
    HL_NEED(y, "the session");
    const int64_t pos = y->now.at.pos, to = pos - k;
    if (k < 0 || to < 0) return hl_fail(HOLA_EINVAL, "rollback: %lld of %lld tokens", (long long)k, (long long)pos);
    if (k == 0) return HOLA_OK;
    if (!y->mark || y->mark->at.pos > to)
        return hl_fail(HOLA_EINVAL, "rollback: no mark at or before token %lld", (long long)to);
    const int64_t from = y->mark->at.pos;
    if (pos - from > HOLA_RECENT)
        return hl_fail(HOLA_EINVAL, "rollback: the mark is %lld tokens back, at most %d can be",
                       (long long)(pos - from), HOLA_RECENT);
    const struct hl_position old = y->now.at;
    hola_status s = from == to ? HOLA_OK : hl_restore_point_logits(y->model, &y->now);
    if (s == HOLA_OK) s = to_mark(y);
    for (int64_t i = from, end; s == HOLA_OK && i < to; i = end) { /* call by call, as they were */
        int32_t ids[HOLA_RECENT];
        for (end = i; end < to && (end == i || !hl_position_begins(&old, end)); end++)
            ids[end - i] = hl_position_id(&old, end);
        s = hl_session_feed_again(y, ids, end - i, end == to);
    }
    return s;
}
