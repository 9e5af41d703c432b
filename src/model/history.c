/* history.c -- the ids of a session, and full copies of it at some points, so that it can roll back.
 *
 * Points are at the ends of calls. To reach a position, the tokens after a point are fed again in the same calls, so
 * the bits are the same as the first time. If there are more than `most` points, the one with the least cost of removal
 * relative to its distance from the present is removed: points are dense near the present and sparse far back. */
#include "model/session.h"
#include <stdlib.h>
#include <string.h>

struct hola_history {
    hola_session *session;
    int64_t every, most, generation; /* generation: last seen value of the session's */
    int64_t n, room;                 /* ids */
    int32_t *ids;
    bool *begins; /* [room]: whether a call began there */
    int64_t points;
    struct hl_restore_point **point; /* [most], by position */
};

hola_status hola_history_new(hola_history **out, hola_session *s, const hola_history_opts *opt) {
    hola_history_opts o;
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(s, "the session");
    hola_status status =
        hl_options_take(&o, sizeof o, opt, HL_SIZE_UP_TO(hola_history_opts, most), "hola_history_opts");
    if (status != HOLA_OK) return status;
    if (s->now.at.pos != 0) return hl_fail(HOLA_EINVAL, "history: the session is not empty");
    if (o.every < 0 || o.most < 0 || o.most > 1 << 20)
        return hl_fail(HOLA_EINVAL, "history: every %lld tokens, %lld points", (long long)o.every, (long long)o.most);
    hola_history *h = calloc(1, sizeof *h);
    if (h) {
        h->session = s;
        h->generation = s->generation;
        h->every = o.every ? o.every : s->model->backend->host ? 512 : 8192;
        h->most = o.most ? o.most : 8;
        h->point = calloc((size_t)h->most, sizeof(struct hl_restore_point *));
    }
    if (!h || !h->point) {
        free(h);
        return hl_fail(HOLA_ENOMEM, "history: no memory");
    }
    *out = h;
    return HOLA_OK;
}

void hola_history_free(hola_history *h) {
    if (!h) return;
    for (int64_t i = 0; i < h->points; i++) hl_restore_point_free(h->session->model, h->point[i]);
    free(h->point);
    free(h->ids);
    free(h->begins);
    free(h);
}

const hola_session *hl_history_session(const hola_history *h) { return h->session; }
static int64_t position(const hola_history *h) { return h->session->now.at.pos; }
int64_t hl_history_room(const hola_history *h) {
    const int64_t grid = h->every - position(h) % h->every - 1, unseen = HOLA_RECENT / 2 - (position(h) - h->n);
    return grid < unseen ? grid : unseen;
}

/* ---- what the session was fed ---- */

static hola_status make_room(hola_history *h, int64_t n) {
    int64_t room = h->room;
    if (n <= room) return HOLA_OK;
    while (room < n) room = room ? 2 * room : 1024;
    int32_t *ids = realloc(h->ids, (size_t)room * sizeof *ids);
    if (ids) h->ids = ids;
    bool *begins = ids ? realloc(h->begins, (size_t)room * sizeof *begins) : NULL;
    if (begins) h->begins = begins;
    if (!ids || !begins) return hl_fail(HOLA_ENOMEM, "history: no memory for %lld ids", (long long)room);
    h->room = room;
    return HOLA_OK;
}

/* Records what was fed to the session directly. */
static hola_status catch_up(hola_history *h) {
    const struct hl_position *w = &h->session->now.at;
    if (h->session->generation != h->generation)
        return hl_fail(HOLA_EINVAL, "history: the session was reset, loaded or rolled back without it");
    if (w->pos - h->n > HOLA_RECENT)
        return hl_fail(HOLA_EINVAL, "history: %lld tokens were fed without it, at most %d can be",
                       (long long)(w->pos - h->n), HOLA_RECENT);
    hola_status s = make_room(h, w->pos);
    for (; s == HOLA_OK && h->n < w->pos; h->n++) {
        h->ids[h->n] = hl_position_id(w, h->n);
        h->begins[h->n] = hl_position_begins(w, h->n);
    }
    return s;
}

/* ---- points ---- */

/* Removes the point whose removal leaves the smallest gap relative to its distance from the present. */
static struct hl_restore_point *take_out(hola_history *h) {
    int64_t which = 0;
    double least = INFINITY;
    for (int64_t i = 0; i < h->points; i++) {
        const int64_t before = i ? h->point[i - 1]->at.pos : 0, here = h->point[i]->at.pos;
        const int64_t after = i + 1 < h->points ? h->point[i + 1]->at.pos : position(h);
        const double cost = (double)(after - before) / (double)(position(h) - here + h->every);
        if (cost < least) least = cost, which = i;
    }
    struct hl_restore_point *p = h->point[which];
    memmove(h->point + which, h->point + which + 1, (size_t)(--h->points - which) * sizeof *h->point);
    return p;
}

hola_status hola_history_keep(hola_history *h) {
    HL_NEED(h, "the history");
    hola_model *m = h->session->model;
    const struct hl_restore_point *now = &h->session->now, *last = h->points ? h->point[h->points - 1] : NULL;
    struct hl_restore_point *p = NULL;
    hola_status s = catch_up(h);
    if (s != HOLA_OK || now->at.pos == 0) return s;
    if (last && last->at.pos == now->at.pos) { /* the same point, possibly without logits */
        if (last->at.has_logits || !now->at.has_logits) return HOLA_OK;
        p = h->point[--h->points];
    } else if (h->points == h->most) p = take_out(h); /* reuse its memory */
    else s = hl_restore_point_new(&p, m);
    if (s == HOLA_OK) s = hl_restore_point_copy(m, p, now, HL_ALL_CHANGES);
    if (s == HOLA_OK) h->point[h->points++] = p;
    else hl_restore_point_free(m, p);
    return s;
}

/* Rolls back to the last point at or before `to`, or to the empty session. Later points and ids are dropped. */
static hola_status go_back(hola_history *h, int64_t to) {
    hola_session *y = h->session;
    hola_status s = HOLA_OK;
    while (h->points > 0 && h->point[h->points - 1]->at.pos > to)
        hl_restore_point_free(y->model, h->point[--h->points]);
    const uint64_t seed = y->now.at.seed;
    hola_session_reset(y);
    if (h->points > 0) s = hl_restore_point_copy(y->model, &y->now, h->point[h->points - 1], HL_ALL_CHANGES);
    y->now.at.seed = seed;
    h->generation = y->generation;
    h->n = y->now.at.pos;
    return s;
}

/* ---- feeding ---- */

hola_status hola_history_feed(hola_history *h, const int32_t *ids, int64_t n, float *logits) {
    HL_NEED(h, "the history");
    HL_NEED(ids, "ids");
    hola_session *y = h->session;
    hola_status s = catch_up(h);
    if (s == HOLA_OK && n < 1) s = hl_fail(HOLA_EINVAL, "feed: %lld tokens", (long long)n);
    if (s == HOLA_OK) s = hl_model_check_ids(h->session->model, ids, n);
    if (s == HOLA_OK) s = make_room(h, h->n + n);
    for (int64_t i = 0, len; s == HOLA_OK && i < n; i += len) {
        len = h->every - position(h) % h->every;
        if (len > n - i) len = n - i;
        memcpy(h->ids + h->n, ids + i, (size_t)len * sizeof *ids);
        memset(h->begins + h->n, 0, (size_t)len * sizeof *h->begins);
        h->begins[h->n] = true;
        y->progress.before = i, y->progress.total = n;
        s = hl_session_feed(y, ids + i, len, i + len == n ? logits : NULL, i + len == n);
        h->n = position(h);
        if (s == HOLA_OK && position(h) % h->every == 0) s = hola_history_keep(h);
        if (s == HOLA_OK && i + len < n) s = hl_session_report(y, i + len, n);
    }
    y->progress.before = y->progress.total = 0;
    return s;
}

hola_status hola_history_prompt(hola_history *h, const int32_t *ids, int64_t n, float *logits, int64_t *reused) {
    HL_NEED(h, "the history");
    HL_NEED(ids, "ids");
    const int64_t vocab = h->session->model->cfg.vocab_size;
    hola_status s = catch_up(h);
    if (reused) *reused = 0;
    if (s == HOLA_OK && n < 1) s = hl_fail(HOLA_EINVAL, "prompt: %lld tokens", (long long)n);
    if (s == HOLA_OK) s = hl_model_check_ids(h->session->model, ids, n);
    if (s != HOLA_OK) return s;
    int64_t same = 0;
    while (same < n && same < h->n && ids[same] == h->ids[same]) same++;
    if (position(h) > same || (position(h) == n && !h->session->now.at.has_logits)) {
        /* a point at the very end is only useful with logits */
        int64_t to = same < n ? same : n;
        for (int64_t i = 0; i < h->points; i++)
            if (h->point[i]->at.pos == n && !h->point[i]->at.has_logits) to = n - 1;
        s = go_back(h, to);
    }
    if (s != HOLA_OK) return s;
    if (reused) *reused = position(h);
    if (position(h) < n) return hola_history_feed(h, ids + position(h), n - position(h), logits);
    if (logits) memcpy(logits, h->session->now.logits, (size_t)vocab * sizeof *logits);
    return HOLA_OK;
}

hola_status hola_history_rollback(hola_history *h, int64_t k) {
    HL_NEED(h, "the history");
    hola_status s = catch_up(h);
    const int64_t to = position(h) - k;
    if (s == HOLA_OK && (k < 0 || to < 0))
        s = hl_fail(HOLA_EINVAL, "rollback: %lld of %lld tokens", (long long)k, (long long)position(h));
    if (s != HOLA_OK || k == 0) return s;
    s = go_back(h, to);
    for (int64_t i = h->n, end; s == HOLA_OK && i < to; i = end) { /* same calls as before */
        for (end = i + 1; end < to && !h->begins[end];) end++;
        s = hl_session_feed_again(h->session, h->ids + i, end - i, end == to);
    }
    if (s == HOLA_OK) h->n = to;
    return s;
}
