/* rollback.c -- restore points of a session, and the mark it can go back to.
 *
 * What a mark copies depends on how the parts of the state change (mixers/mixer.h): replaced parts immediately (a sixth
 * of the state at 46m), ranked parts when a block closes after the mark, growing parts never. */
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

hola_status hl_restore_point_new(struct hl_restore_point **out, hola_model *m) {
    struct hl_restore_point *p = calloc(1, sizeof *p);
    *out = p;
    if (p && hl_state_new(&p->state, &m->state, m->backend, &m->states) == HOLA_OK) return HOLA_OK;
    free(p);
    *out = NULL;
    return hl_fail(HOLA_ENOMEM, "session: no memory for a copy of %lld bytes to go back to", (long long)m->state.bytes);
}

void hl_restore_point_free(hola_model *m, struct hl_restore_point *p) {
    if (!p) return;
    hl_state_free(&p->state, m->backend, &m->states);
    free(p->logits);
    free(p);
}

/* wait: for the copy. Work that is queued after it need not. */
static hola_status copy_point(const hola_model *m, struct hl_restore_point *to, const struct hl_restore_point *from,
                              unsigned changes, bool wait) {
    hola_status s = HOLA_OK;
    if (from->at.has_logits) s = hl_restore_point_logits(m, to);
    if (s == HOLA_OK && changes & HL_GROWS) s = hl_state_reserve(&to->state, &m->state, m->backend, from->at.pos);
    if (s != HOLA_OK) return s;
    if (from->at.has_logits) memcpy(to->logits, from->logits, (size_t)m->cfg.vocab_size * sizeof *to->logits);
    pthread_mutex_lock(&((hola_model *)m)->lock);
    to->at = from->at;
    to->ranked = changes & HL_RANKED;
    hl_state_copy(&to->state, &from->state, &m->state, m->backend, from->at.pos, changes);
    if (wait) s = hl_finish(m->backend);
    pthread_mutex_unlock(&((hola_model *)m)->lock);
    return s;
}
hola_status hl_restore_point_copy(const hola_model *m, struct hl_restore_point *to, const struct hl_restore_point *from,
                                  unsigned changes) {
    return copy_point(m, to, from, changes, true);
}

/* ---- the mark ---- */

static hola_status mark(hola_session *y, struct hl_restore_point **at, bool wait) {
    hola_status s = *at ? HOLA_OK : hl_restore_point_new(at, y->model);
    return s == HOLA_OK ? copy_point(y->model, *at, &y->now, HL_REPLACED, wait) : s;
}
hola_status hola_session_mark(hola_session *y) {
    HL_NEED(y, "the session");
    return mark(y, &y->mark, true);
}
hola_status hl_session_draft_mark(hola_session *y) { return mark(y, &y->draft, false); }

/* Before the state reaches `end`: if a block closes on the way, a mark saves what that overwrites. */
static void keep_ranked(const hola_session *y, struct hl_restore_point *at, int64_t end) {
    const struct hl_state_layout *state = &y->model->state;
    if (!at || at->ranked || !state->ranked || end / state->block <= at->at.pos / state->block) return;
    hl_state_copy(&at->state, &y->now.state, state, y->model->backend, 0, HL_RANKED);
    at->ranked = true;
}

hola_status hl_session_prepare(hola_session *y, int64_t len) {
    const struct hl_state_layout *state = &y->model->state;
    const int64_t end = y->now.at.pos + len;
    hola_status s = hl_state_reserve(&y->now.state, state, y->model->backend, end);
    if (s != HOLA_OK) return s;
    keep_ranked(y, y->mark, end);
    keep_ranked(y, y->draft, end);
    return HOLA_OK;
}

/* Rolls back to a mark. Ranked parts were only appended to since then, or were copied; growing parts still have their
 * rows. */
static hola_status go_to(hola_session *y, const struct hl_restore_point *at, bool wait) {
    const unsigned changes = HL_REPLACED | (at->ranked ? HL_RANKED : 0);
    hola_status s = copy_point(y->model, &y->now, at, changes, wait);
    y->now.ranked = true;
    return s;
}
hola_status hl_session_draft_drop(hola_session *y) { return go_to(y, y->draft, false); }
void hl_session_draft_end(hola_session *y) {
    struct hl_state_pool *pool = &y->model->states;
    pthread_mutex_lock(&pool->lock);
    if (y->draft && !y->model->backend->host && pool->most < 1)
        pool->most = 1; /* releasing memory of a device drops its captured graphs */
    pthread_mutex_unlock(&pool->lock);
    hl_restore_point_free(y->model, y->draft);
    y->draft = NULL;
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
    if (s == HOLA_OK) s = go_to(y, y->mark, true), y->generation++;
    for (int64_t i = from, end; s == HOLA_OK && i < to; i = end) { /* same calls as before */
        int32_t ids[HOLA_RECENT];
        for (end = i; end < to && (end == i || !hl_position_begins(&old, end)); end++)
            ids[end - i] = hl_position_id(&old, end);
        s = hl_session_feed_again(y, ids, end - i, end == to);
    }
    return s;
}
