/* engine_sessions.c -- conversations: creating, copying, cutting, viewing; saving, parking and restoring. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void hl_op_reply(struct hl_op *op, enum hl_error error, const char *fmt, ...) {
    va_list ap;
    op->error = error;
    va_start(ap, fmt);
    vsnprintf(op->reason, sizeof op->reason, fmt, ap);
    va_end(ap);
    if (op->claims && hl_shared_settle(op)) return;
    hl_queue_put(op->reply, &op->message);
}

/* ---- the budget ---- */

static bool is_idle(const struct hl_conversation *c) {
    return c->writers == 0 && c->copies == 0 && c->held == 0 && !c->loading && !c->saving;
}
static bool is_saved(const struct hl_conversation *c) { return c->has_file && c->revision == c->saved_revision; }

static void park(struct hl_serve_engine *e, struct hl_conversation *c) {
    e->idle_bytes -= c->counted;
    c->counted = 0;
    hl_conversation_forget(c);
    c->on_disk = true, c->parking = false;
    e->n_on_disk++;
}

bool hl_serve_make_room(struct hl_serve_engine *e, int64_t bytes) {
    if (bytes > e->o.cache_mem) return false;
    while (e->prefixes.bytes + e->idle_bytes + bytes > e->o.cache_mem && hl_prefix_drop_oldest(&e->prefixes)) {}
    for (struct hl_conversation *c = e->conversations.oldest, *next;
         c && e->store && e->prefixes.bytes + e->idle_bytes + bytes > e->o.cache_mem; c = next) {
        next = c->newer;
        if (!c->counted || !is_idle(c)) continue;
        if (is_saved(c)) park(e, c);
        else if (!c->parking) {
            c->parking = true; /* freed once it is written */
            hl_serve_save(e, c);
        }
    }
    return e->prefixes.bytes + e->idle_bytes + bytes <= e->o.cache_mem;
}

void hl_serve_unidle(struct hl_serve_engine *e, struct hl_conversation *c) {
    e->idle_bytes -= c->counted;
    c->counted = 0;
    c->parking = false;
}

void hl_serve_idle(struct hl_serve_engine *e, struct hl_conversation *c) {
    if (c->writers > 0 || c->copies > 0) return;
    if (c->deleted) {
        if (is_idle(c)) hl_serve_unidle(e, c), hl_conversation_free(c);
        return;
    }
    hl_serve_unidle(e, c);
    if (!c->session) return;
    c->counted = hl_session_cost(c->session, e->vocab) + 5 * c->tape.n;
    e->idle_bytes += c->counted;
    hl_serve_make_room(e, 0);
}

/* ---- the disk ---- */

void hl_serve_save(struct hl_serve_engine *e, struct hl_conversation *c) {
    if (!e->store || c->saving || c->on_disk || c->deleted || (e->o.lease > 0 && !c->token[0])) return;
    struct hl_store_job *j = calloc(1, sizeof *j);
    if (!j) return;
    hola_status s = HOLA_OK;
    j->record.about = hl_conversation_about(c);
    if (!j->record.about) s = hl_fail(HOLA_ENOMEM, "no memory for a session's file");
    if (s == HOLA_OK) s = hl_tape_copy(&j->record.tape, &c->tape, c->tape.n);
    j->record.model = e->o.model, j->record.dtype = e->o.session_dtype;
    if (s == HOLA_OK && c->session) s = hl_snapshot_copy(&j->record.state, c->session, c->id);
    if (j->record.state)
        j->record.session_bytes = hl_snapshot_bytes(e->o.model, e->o.session_dtype, j->record.state->at.pos);
    if (s != HOLA_OK) {
        atomic_fetch_add(&e->metrics.save_errors, 1);
        c->save_failed = true;
        hl_stored_free(&j->record);
        free(j);
        return;
    }
    memcpy(j->id, c->id, sizeof j->id);
    j->reply_kind = HL_FROM_DISK;
    j->verb = HL_STORE_SAVE;
    j->revision = c->revision;
    memcpy(j->token, c->token, sizeof j->token);
    j->ctx = c;
    c->saving = true, c->save_failed = false;
    e->disk_jobs++;
    hl_store_ask(e->store, j, &e->inbox);
}

void hl_serve_load(struct hl_serve_engine *e, struct hl_conversation *c) {
    if (c->loading || !c->on_disk) return;
    struct hl_store_job *j = calloc(1, sizeof *j);
    if (!j) return;
    memcpy(j->id, c->id, sizeof j->id);
    j->reply_kind = HL_FROM_DISK;
    j->verb = HL_STORE_LOAD;
    j->record.model = e->o.model;
    j->ctx = c;
    c->loading = true, c->load_failed = false;
    e->disk_jobs++;
    hl_store_ask(e->store, j, &e->inbox);
}

void hl_serve_remove_file(struct hl_serve_engine *e, const char *id) {
    struct hl_store_job *j = calloc(1, sizeof *j);
    if (!j) return;
    snprintf(j->id, sizeof j->id, "%s", id);
    j->reply_kind = HL_FROM_DISK;
    j->verb = HL_STORE_REMOVE;
    e->disk_jobs++;
    hl_store_ask(e->store, j, &e->inbox);
}

/* Turns a loaded record into its conversation. */
static hola_status take_record(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_stored *r) {
    hola_session *s = NULL;
    hola_status st = HOLA_OK;
    if (r->state) {
        st = hl_snapshot_session(&s, e->o.model, r->state);
        r->state = NULL;
    }
    if (st == HOLA_OK && (!hl_conversation_from(c, r->about, true) || c->position != r->tape.n ||
                          (s ? hola_session_position(s) : 0) != r->tape.n))
        st = hl_fail(HOLA_EFORMAT, "%s: damaged: its parts do not fit together", c->id);
    if (st == HOLA_OK) st = hl_model_check_ids(e->o.model, r->tape.ids, r->tape.n);
    if (st != HOLA_OK) {
        hola_session_free(s);
        return st;
    }
    c->session = s;
    c->saved_position = c->position;
    c->tape = r->tape;
    r->tape = (struct hl_tape){0};
    c->on_disk = false;
    e->n_on_disk--;
    return HOLA_OK;
}

static void loaded(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_store_job *j) {
    hola_status s = j->status;
    char reason[256];
    snprintf(reason, sizeof reason, "%s", j->error);
    if (s == HOLA_OK) {
        s = take_record(e, c, &j->record);
        if (s != HOLA_OK) snprintf(reason, sizeof reason, "%s", hola_last_error());
    }
    if (s == HOLA_OK) {
        c->stamp = j->stamp;
        return;
    }
    c->load_failed = true;
    if (s == HOLA_EFORMAT || s == HOLA_EINVAL) c->damaged = true;
    for (int64_t i = e->streams - 1; i >= 0; i--) {
        struct hl_serve_stream *st = i < e->streams ? e->stream[i] : NULL;
        if (!st || st->stage != HL_STAGE_LOADING || (st->c != c && st->source != c)) continue;
        hl_serve_request_fail(st->r, HL_SESSION_DAMAGED, "%.200s", reason);
        hl_serve_stream_drop(e, st);
    }
}

static void saved(struct hl_serve_engine *e, struct hl_conversation *c, struct hl_store_job *j) {
    const bool ok = j->status == HOLA_OK;
    atomic_fetch_add(ok ? &e->metrics.saves : &e->metrics.save_errors, 1);
    c->save_failed = !ok;
    if (ok) {
        c->has_file = true;
        c->saved_revision = j->revision;
        c->saved_position = j->record.tape.n;
    }
    c->changed = hl_clock(); /* changes made meanwhile, or a failed save, are retried later */
    if (c->ending) {
        hl_shared_committed(e, c, j);
        return;
    }
    if (c->deleted) hl_serve_remove_file(e, c->id);
    else if (c->parking && ok && is_saved(c) && is_idle(c)) park(e, c);
    else c->parking = false;
}

void hl_serve_disk_reply(struct hl_serve_engine *e, struct hl_store_job *j) {
    struct hl_conversation *c = j->ctx;
    e->disk_jobs--;
    if (c && e->o.lease > 0) c->held++; /* still needed here */
    if (c && j->verb == HL_STORE_SAVE) c->saving = false, saved(e, c, j);
    if (c && j->verb == HL_STORE_LOAD) c->loading = false, loaded(e, c, j);
    const bool loading = j->verb == HL_STORE_LOAD;
    hl_stored_free(&j->record);
    free(j);
    struct hl_op *op = e->deferred, *next;
    e->deferred = NULL;
    for (; op; op = next) {
        next = (struct hl_op *)op->message.next;
        hl_serve_run_op(e, op);
    }
    if (c && e->o.lease > 0) c->held--;
    if (c && (c->deleted || loading)) /* It has been used by those waiting for it, so it may be evicted again */
        hl_serve_idle(e, c);
}

double hl_serve_save_due(struct hl_serve_engine *e, bool all) {
    double soonest = -1;
    const double now = hl_clock();
    if (!e->store || (!all && now < e->next_save_look)) return e->store ? e->next_save_look - now : -1;
    for (struct hl_conversation *c = e->conversations.newest; c; c = c->older) {
        if (is_saved(c) || c->saving || c->on_disk) continue;
        const double left = c->changed + e->o.save_after - now;
        if (all) {
            hl_serve_save(e, c);
            continue;
        }
        /* during a turn, wait for its end */
        if (left <= 0 && c->writers == 0) hl_serve_save(e, c);
        else if (soonest < 0 || left < soonest) soonest = left > 0.01 ? left : 0.1;
    }
    while (all && e->disk_jobs > 0) {
        struct hl_message *m = hl_queue_take(&e->inbox, -1), *next;
        for (; m; m = next) {
            next = m->next;
            if (m->kind == HL_FROM_DISK) hl_serve_disk_reply(e, (struct hl_store_job *)m);
            else if (m->kind == HL_FROM_CALLER_OP)
                hl_op_reply((struct hl_op *)m, HL_SHUTTING_DOWN, "the server is shutting down");
            else if (m->kind == HL_FROM_CALLER) {
                struct hl_serve_request *r = (struct hl_serve_request *)m;
                r->conversation = r->source = NULL;
                r->live = 0, e->n_requests++;
                hl_serve_request_fail(r, HL_SHUTTING_DOWN, "the server is shutting down");
                hl_serve_request_maybe_end(e, r);
            } else free(m);
        }
    }
    e->next_save_look = now + (soonest > 0 && soonest < 0.25 * e->o.save_after ? soonest : 0.25 * e->o.save_after);
    return soonest < 0 ? -1 : e->next_save_look - now;
}

/* ---- a turn's end ---- */

void hl_serve_turn_ended(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_conversation *c = st->c;
    const struct hl_serve_request *r = st->r;
    const int64_t base = st->turn_begin, end = c->tape.n;
    if (end == base) return;
    if (r->closes > 0 && c->spans.n > 0) {
        struct hl_message_span *last = &c->spans.span[c->spans.n - 1];
        last->to = base + r->closes < end ? base + r->closes : end;
        last->closed = base + r->closes <= end;
    }
    for (int64_t i = 0; i < r->spans.n; i++) {
        struct hl_message_span x = r->spans.span[i];
        if (base + x.from >= end) break;
        x.from += base;
        x.to = base + x.to < end ? base + x.to : end;
        hl_message_spans_add(&c->spans, x);
    }
    const int64_t from = base + (r->answer_from >= 0 ? r->answer_from : 0);
    if (from < end)
        hl_message_spans_add(&c->spans, (struct hl_message_span){r->answer_from >= 0 ? HL_ROLE_ASSISTANT : HL_ROLE_TEXT,
                                                                 r->answer_from < 0, from, end});
    hl_conversation_turn(&e->conversations, c);
}

/* ---- creating and copying ---- */

bool hl_new_id(struct hl_serve_engine *e, char id[HL_ID_MOST + 1]) {
    for (int tries = 0; tries < 100; tries++) {
        uint64_t x = 0;
        if (getrandom(&x, sizeof x, 0) != sizeof x) return false;
        snprintf(id, HL_ID_MOST + 1, "sess-%016" PRIx64, x);
        if (!hl_conversation_find(&e->conversations, id)) return true;
    }
    return false;
}

struct hl_conversation *hl_conversation_copy(struct hl_serve_engine *e, const struct hl_conversation *c, const char *id,
                                             int64_t position, enum hl_error *error) {
    char made[HL_ID_MOST + 1];
    *error = HL_NO_ERROR;
    if (!id[0] && !hl_new_id(e, made)) *error = HL_INTERNAL;
    else if (id[0] && e->o.lease > 0 && hl_shared_look(e, id)) *error = HL_SESSION_EXISTS;
    else if (id[0] && hl_conversation_find(&e->conversations, id)) *error = HL_SESSION_EXISTS;
    else if (e->conversations.n >= e->o.sessions ||
             (!e->store && (e->conversations.n + 1) * e->session_cost > e->o.cache_mem))
        *error = HL_TOO_MANY_SESSIONS;
    if (*error != HL_NO_ERROR) return NULL;
    struct hl_conversation *to = hl_conversation_add(&e->conversations, id[0] ? id : made);
    hola_status s = to ? HOLA_OK : HOLA_ENOMEM;
    if (to && c) {
        memcpy(to->parent, c->id, sizeof c->id);
        to->known_from = c->known_from;
        s = hl_tape_copy(&to->tape, &c->tape, c->tape.n);
        for (int64_t i = 0; s == HOLA_OK && i < c->spans.n; i++) s = hl_message_spans_add(&to->spans, c->spans.span[i]);
        to->turns = c->turns;
        memcpy(to->turn, c->turn, sizeof c->turn);
        hl_conversation_cut(&e->conversations, to, position);
    }
    if (to) hl_conversation_changed(to);
    if (s != HOLA_OK) *error = HL_INTERNAL;
    else if (e->o.lease > 0 && hl_shared_claim(e, to, error)) {
        struct hl_peek at;
        if (hl_shared_peek(e, to->id, &at)) *error = HL_SESSION_EXISTS; /* created by another server since we checked */
        else *error = HL_NO_ERROR;
    }
    if (*error == HL_NO_ERROR) return to;
    if (to) hl_serve_unmake(e, to);
    return NULL;
}

void hl_serve_unmake(struct hl_serve_engine *e, struct hl_conversation *c) {
    hl_shared_release(e, c);
    hl_conversation_remove(&e->conversations, c);
    hl_conversation_free(c);
}

void hl_serve_count(struct hl_serve_engine *e) {
    struct hl_serve_metrics *m = &e->metrics;
    atomic_store(&m->waiting, e->n_waiting);
    atomic_store(&m->running, e->n_requests - e->n_waiting);
    atomic_store(&m->session_bytes, e->idle_bytes);
    atomic_store(&m->sessions_disk, e->n_on_disk);
    atomic_store(&m->sessions_memory, e->conversations.n - e->n_on_disk);
    atomic_store(&m->snapshots, e->prefixes.n);
    atomic_store(&m->snapshot_bytes, e->prefixes.bytes);
}
