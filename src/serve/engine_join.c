/* engine_join.c -- requests arriving, waiting, joining and leaving. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrival and completion ---- */

static bool all_begun(const struct hl_serve_request *r) { return r->begun == r->prompts * r->n; }

static void release(struct hl_serve_engine *e, struct hl_conversation **at) {
    struct hl_conversation *c = *at;
    *at = NULL;
    if (c) hl_serve_idle(e, c);
}

void hl_serve_request_maybe_end(struct hl_serve_engine *e, struct hl_serve_request *r) {
    if (r->live > 0 || (!all_begun(r) && r->error == HL_NO_ERROR && !atomic_load(&r->cancelled))) return;
    struct hl_serve_request **at = &e->waiting;
    while (*at && *at != r) at = &(*at)->next;
    if (*at) { /* some of its sequences are still waiting */
        *at = r->next;
        if (e->last_waiting == &r->next) e->last_waiting = at;
        e->n_waiting--;
    }
    /* shared folder: the client is told once the turn is on disk */
    if (r->conversation && r->conversation->token[0] && hl_shared_commit(e, r->conversation, r, false)) return;
    hl_serve_request_end(e, r);
}

void hl_serve_request_end(struct hl_serve_engine *e, struct hl_serve_request *r) {
    struct hl_event *ev = calloc(1, sizeof *ev);
    HL_ASSERT(ev); /* the client could not be told otherwise */
    ev->message.kind = HL_EVENT_END;
    ev->error = r->error;
    memcpy(ev->reason, r->reason, sizeof ev->reason);
    if (r->conversation) {
        memcpy(ev->session, r->conversation->id, sizeof ev->session);
        ev->position = r->conversation->tape.n;
        r->conversation->writers--;
    }
    if (r->source) {
        r->source->copies -= (int)r->copies, r->copies = 0;
        r->source->held--;
    }
    release(e, &r->conversation);
    release(e, &r->source);
    hola_session_free(r->lead);
    r->lead = NULL;
    e->n_requests--;
    hl_serve_count(e);
    hl_serve_emit(e, r, ev);
}

/* Finds the conversation it continues or copies. */
static void accept_turn(struct hl_serve_engine *e, struct hl_serve_request *r) {
    const bool shared = e->o.lease > 0;
    struct hl_conversation *c =
        shared ? hl_shared_look(e, r->session) : hl_conversation_find(&e->conversations, r->session);
    enum hl_error error = HL_NO_ERROR;
    if (!c) {
        hl_serve_request_fail(r, HL_SESSION_NOT_FOUND, "session: there is no '%s'", r->session);
        return;
    }
    if (c->damaged) {
        hl_serve_request_fail(r, HL_SESSION_DAMAGED, "session: the file of '%s' is damaged", r->session);
        return;
    }
    if (c->writers > 0 || (r->fork == HL_FORK_NONE && c->copies > 0) || c->position != r->position) {
        hl_serve_request_fail(r, HL_SESSION_BUSY, "session: '%s' is busy", r->session);
        return;
    }
    if (shared && (r->fork == HL_FORK_NONE ? !hl_shared_claim(e, c, &error) : hl_store_claimed(e->store, c->id))) {
        if (error == HL_DISK_FULL) hl_serve_request_fail(r, error, "session: no lease of '%s'", r->session);
        else hl_serve_request_fail(r, HL_SESSION_BUSY, "session: '%s' is busy on another server", r->session);
        return;
    }
    hl_conversation_touch(&e->conversations, c);
    if (r->fork == HL_FORK_NONE) {
        c->writers++;
        r->conversation = c;
        hl_serve_unidle(e, c);
        return;
    }
    if (r->fork == HL_FORK_KEPT) {
        r->conversation = hl_conversation_copy(e, NULL, r->fork_id, 0, &error);
        if (!r->conversation) {
            hl_serve_request_fail(r, error, "fork: '%s' cannot be made", r->fork_id);
            return;
        }
        memcpy(r->conversation->parent, c->id, sizeof c->id);
        r->conversation->writers++;
    }
    r->copies = r->prompts * r->n;
    c->copies += (int)r->copies;
    c->held++;
    r->source = c;
    hl_serve_unidle(e, c);
}

void hl_serve_accept(struct hl_serve_engine *e, struct hl_serve_request *r) {
    r->came = hl_clock();
    r->inbox = &e->inbox;
    atomic_store(&r->unread, 0);
    r->begun = r->live = r->copies = 0;
    r->lead = NULL;
    r->error = HL_NO_ERROR;
    r->next = NULL;
    r->conversation = r->source = NULL;
    const bool full = e->n_requests >= e->o.parallel + e->o.queue;
    int64_t total = 0;
    for (int64_t i = 0; i < r->prompts; i++) total += r->prompt[i].n;
    atomic_store(&r->prompt_total, total);
    e->n_requests++;
    if (e->stopping) hl_serve_request_fail(r, HL_SHUTTING_DOWN, "the server is shutting down");
    else if (full)
        hl_serve_request_fail(r, HL_OVERLOADED, "%" PRId64 " requests are under way or waiting", e->n_requests - 1);
    else if (r->session[0]) accept_turn(e, r);
    if (r->error == HL_NO_ERROR) {
        *e->last_waiting = r;
        e->last_waiting = &r->next;
        e->n_waiting++;
    } else hl_serve_request_maybe_end(e, r);
}

/* ---- a sequence joins ---- */

hola_status hl_serve_make_streams(struct hl_serve_engine *e, int64_t room) {
    struct hl_serve_stream **stream = realloc(e->stream, (size_t)room * sizeof *stream);
    if (stream) e->stream = stream;
    struct hl_serve_stream **who = stream ? realloc(e->who, (size_t)room * sizeof *who) : NULL;
    if (who) e->who = who;
    hola_session **batch = who ? realloc(e->batch, (size_t)room * sizeof *batch) : NULL;
    if (batch) e->batch = batch;
    int32_t *ids = batch ? realloc(e->ids, (size_t)room * sizeof *ids) : NULL;
    if (ids) e->ids = ids;
    hola_sampling *samplings = ids ? realloc(e->samplings, (size_t)room * sizeof *samplings) : NULL;
    if (samplings) e->samplings = samplings;
    struct hl_later *later = samplings ? realloc(e->later, (size_t)room * sizeof *later) : NULL;
    if (later) e->later = later;
    float *logits = later ? realloc(e->logits, (size_t)(room * e->vocab) * sizeof *logits) : NULL;
    if (!logits) return hl_fail(HOLA_ENOMEM, "engine: no memory for %" PRId64 " sequences", room);
    e->logits = logits;
    e->room = room;
    return HOLA_OK;
}
static struct hl_serve_stream *new_stream(struct hl_serve_engine *e) {
    if (e->streams == e->room && hl_serve_make_streams(e, e->room + e->o.parallel) != HOLA_OK) return NULL;
    struct hl_serve_stream *st = calloc(1, sizeof *st);
    if (st) e->stream[e->streams++] = st;
    return st;
}

void hl_serve_stream_leave(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    int64_t i = 0;
    hl_serve_pass_on(e);
    while (e->stream[i] != st) i++;
    memmove(e->stream + i, e->stream + i + 1, (size_t)(--e->streams - i) * sizeof(struct hl_serve_stream *));
    if (e->turn > i) e->turn--;
    if (!st->c || st->c->session != st->session) hola_session_free(st->session);
    hl_tape_free(&st->own);
    hola_detokenizer_free(st->text);
    free(st->out.data);
    hl_text_free(&st->since_mark);
    free(st);
}

/* The initial state of a sequence: empty, or from the deepest snapshot. */
static hola_status from_prefix(struct hl_serve_engine *e, struct hl_serve_stream *st, bool reuse) {
    const struct hl_prefix_point *p = reuse ? hl_prefix_find(&e->prefixes, st->ids, st->calls, st->n) : NULL;
    if (p && st->calls) { /* within a call, a split must not leave only a few of its tokens (hl_piece) */
        int64_t end = p->tape.n;
        while (end < st->n && !st->calls[end]) end++;
        if (end - p->tape.n > 0 && end - p->tape.n <= HL_FEW) p = NULL;
    }
    if (!p) return hola_session_new(&st->session, e->o.model);
    hola_status s = hola_session_clone(&st->session, p->session);
    if (s != HOLA_OK) return s;
    st->read = st->cached = p->tape.n;
    if (st->tape != &st->own) return HOLA_OK; /* a rebuild already has its tape */
    s = hl_tape_room(&st->own, p->tape.n);
    if (s == HOLA_OK) memcpy(st->own.ids, p->tape.ids, (size_t)p->tape.n * sizeof *p->tape.ids);
    if (s == HOLA_OK) memcpy(st->own.begins, p->tape.begins, (size_t)p->tape.n);
    if (s == HOLA_OK) st->own.n = p->tape.n;
    return s;
}

/* Copies st->source, which is in memory. */
static hola_status from_source(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_conversation *c = st->source, *to = st->c;
    hola_status s =
        c->session ? hola_session_clone(&st->session, c->session) : hola_session_new(&st->session, e->o.model);
    if (s == HOLA_OK && to) { /* stays in the table */
        s = hl_tape_copy(&to->tape, &c->tape, c->tape.n);
        for (int64_t i = 0; s == HOLA_OK && i < c->spans.n; i++) s = hl_message_spans_add(&to->spans, c->spans.span[i]);
        to->turns = c->turns;
        to->known_from = c->known_from;
        memcpy(to->turn, c->turn, sizeof c->turn);
        to->session = st->session;
        st->tape = &to->tape;
    } else st->tape = NULL;
    st->source = NULL;
    st->r->copies--;
    c->copies--;
    hl_serve_idle(e, c);
    return s;
}

/* Another server may have changed it before we got the lease; false: it did, and the prompt no longer follows. */
static bool still_there(struct hl_serve_engine *e, struct hl_serve_stream *st, struct hl_conversation *on) {
    if (!on->has_file || on->loading || (on == st->source && on->token[0])) return true;
    if (!hl_shared_refresh(e, on)) {
        hl_serve_request_fail(st->r, HL_SESSION_NOT_FOUND, "session: '%s' was deleted", on->id);
        if (on != st->c && !on->deleted) hl_shared_drop(e, on);
    } else if (on->damaged)
        hl_serve_request_fail(st->r, HL_SESSION_DAMAGED, "session: the file of '%s' is damaged", on->id);
    else if (on->position != st->r->position)
        hl_serve_request_fail(st->r, HL_SESSION_BUSY, "session: '%s' went on elsewhere", on->id);
    return st->r->error == HL_NO_ERROR;
}

/* Starts if the state is in memory; otherwise loads it from disk and is called again. */
void hl_serve_stream_begin(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_serve_request *r = st->r;
    struct hl_conversation *on = st->source ? st->source : st->c;
    hola_status s = HOLA_OK;
    st->stage = HL_STAGE_LOADING;
    if (on && e->o.lease > 0 && !still_there(e, st, on)) {
        hl_serve_stream_drop(e, st);
        return;
    }
    if (on && on->on_disk) {
        hl_serve_load(e, on);
        return;
    }
    if (st->source) s = from_source(e, st);
    else if (st->c) {
        if (!st->c->session) s = hola_session_new(&st->c->session, e->o.model);
        st->session = st->c->session;
        st->tape = &st->c->tape;
    } else {
        st->tape = &st->own;
        s = from_prefix(e, st, r->cache_prompt && !r->score_prompt);
    }
    if (s == HOLA_OK) hola_session_seed(st->session, r->seed + (uint64_t)st->choice);
    st->turn_begin = s == HOLA_OK ? hola_session_position(st->session) - st->cached : 0;
    if (s == HOLA_OK && st->n == 0 && !hola_session_logits(st->session)) {
        hl_serve_request_fail(r, HL_INVALID_VALUE, "prompt: empty, and there is nothing to go on from");
        hl_serve_stream_drop(e, st);
        return;
    }
    if (s == HOLA_OK) s = hl_tape_room(st->tape ? st->tape : &st->own, st->n);
    if (s != HOLA_OK) {
        hl_serve_stream_fail(e, st, s);
        return;
    }
    st->stage = HL_STAGE_READING;
    atomic_fetch_add(&r->prompt_read, st->cached);
    atomic_fetch_add(&e->metrics.cached_tokens, st->cached);
    if (st->read == st->n) hl_serve_stream_prompt_read(e, st);
}

/* Starts the next sequence of a request; false: it must wait until the first answer has read the prompt. */
static bool begin_next(struct hl_serve_engine *e, struct hl_serve_request *r) {
    const int64_t k = r->begun, i = k / r->n;
    const bool sibling = k % r->n > 0;
    if (sibling && !r->lead) return false;
    struct hl_serve_stream *st = new_stream(e);
    if (!st) {
        hl_serve_request_fail(r, HL_INTERNAL, "no memory for a sequence");
        hl_serve_request_maybe_end(e, r);
        return true;
    }
    st->r = r;
    st->choice = k;
    st->c = r->conversation;
    st->source = r->source;
    st->ids = r->prompt[i].ids, st->n = r->prompt[i].n;
    st->fresh = true;
    st->came = r->came, st->began = hl_clock();
    if (k == 0) hl_histogram_add(&e->metrics.queue, st->began - r->came);
    r->begun++, r->live++;
    if (!sibling) hl_serve_stream_begin(e, st);
    else {
        hola_status s = hola_session_clone(&st->session, r->lead);
        if (st->source) {
            st->source->copies--, r->copies--;
            st->source = NULL;
        } else st->tape = &st->own;
        if (s == HOLA_OK && st->tape) s = hl_tape_copy(&st->own, &r->lead_tape, r->lead_tape.n);
        if (s == HOLA_OK) {
            hola_session_seed(st->session, r->seed + (uint64_t)k);
            st->read = st->n, st->cached = r->lead_cached;
        }
        if (k % r->n == r->n - 1) {
            hola_session_free(r->lead);
            r->lead = NULL;
            hl_tape_free(&r->lead_tape);
        }
        st->stage = HL_STAGE_READING;
        if (s == HOLA_OK) hl_serve_stream_prompt_read(e, st);
        else hl_serve_stream_fail(e, st, s);
    }
    return true;
}

/* First come, first served; but a request waiting for its shared prompt lets the next ones pass. Allocating a session
 * takes milliseconds, so a burst of requests joins over several decoding steps. */
void hl_serve_admit(struct hl_serve_engine *e) {
    const double until = hl_clock() + e->join_for;
    struct hl_serve_request **at = &e->waiting;
    bool sharing = false; /* only one prompt copy for other answers exists at a time */
    for (bool first = true; *at && e->streams < e->o.parallel && (first || hl_clock() < until); first = false) {
        struct hl_serve_request *r = *at;
        if (sharing && r->n > 1) break;
        if (!begin_next(e, r)) {
            sharing = true;
            at = &r->next;
            continue;
        }
        /* it may have ended and left the list */
        struct hl_serve_request **look = &e->waiting;
        while (*look && *look != r) look = &(*look)->next;
        if (!*look) {
            at = &e->waiting;
            sharing = false;
            continue;
        }
        if (!all_begun(r)) continue;
        *look = r->next;
        if (e->last_waiting == &r->next) e->last_waiting = look;
        r->next = NULL;
        e->n_waiting--;
        at = look;
    }
}

hola_status hl_serve_rebuild(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_op *op) {
    struct hl_serve_stream *st = new_stream(e);
    if (!st) return hl_fail(HOLA_ENOMEM, "no memory for a sequence");
    hl_serve_unidle(e, c);
    c->writers++;
    st->c = c, st->op = op;
    st->tape = &c->tape;
    st->ids = c->tape.ids, st->calls = c->tape.begins, st->n = c->tape.n;
    st->stage = HL_STAGE_READING;
    st->began = hl_clock();
    hola_status s = st->n > 0 ? from_prefix(e, st, true) : HOLA_OK;
    if (op) op->c = st->n - st->read; /* tokens to replay */
    if (s != HOLA_OK || st->read == st->n) hl_serve_stream_prompt_read(e, st);
    return HOLA_OK;
}
