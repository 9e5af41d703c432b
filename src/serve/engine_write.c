/* engine_write.c -- decodes one token for every generating sequence in one pass; ends sequences. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- log-probabilities ---- */

void hl_logprobs(const float *logits, int64_t vocab, int32_t id, int n, double *logprob, struct hl_top *top) {
    double max = (double)logits[0], sum = 0;
    int have = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const double x = (double)logits[i];
        if (x > max) max = x;
        if (n == 0 || (have == n && x <= top[n - 1].logprob)) continue;
        int k = have < n ? have++ : n - 1;
        for (; k > 0 && top[k - 1].logprob < x; k--) top[k] = top[k - 1];
        top[k] = (struct hl_top){(int32_t)i, x};
    }
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    const double log_sum = max + log(sum);
    for (int i = 0; i < n; i++) top[i].logprob -= log_sum;
    *logprob = (double)logits[id] - log_sum;
}

static char *copy_bytes(const char *p, int64_t n) {
    char *copy = malloc((size_t)n + 1);
    if (!copy) return NULL;
    if (n > 0) memcpy(copy, p, (size_t)n);
    copy[n] = 0;
    return copy;
}

/* ---- sampling ---- */

static bool is_plain(const struct hl_serve_request *r) {
    return r->logprobs < 0 && r->n_bias == 0 && r->presence == 0 && r->frequency == 0;
}
static bool counts(const struct hl_serve_request *r) { return r->presence != 0 || r->frequency != 0; }

/* Samples from the session's logits. */
static hola_status choose(struct hl_serve_engine *e, struct hl_serve_stream *st, int32_t *id) {
    const struct hl_serve_request *r = st->r;
    const float *logits = hola_session_logits(st->session);
    int32_t recent[HOLA_RECENT];
    if (r->n_bias == 0 && !counts(r)) return hola_session_sample(st->session, &r->sampling, id);
    memcpy(e->adjusted, logits, (size_t)e->vocab * sizeof *e->adjusted);
    for (int64_t i = 0; i < r->n_bias; i++) e->adjusted[r->bias[i].id] += r->bias[i].add;
    for (int64_t i = 0; counts(r) && i < st->out.n; i++) {
        bool first = true;
        for (int64_t k = 0; k < i && first; k++) first = st->out.data[k] != st->out.data[i];
        e->adjusted[st->out.data[i]] -= (float)(r->frequency + (first ? r->presence : 0));
    }
    const int64_t n = hola_session_recent(st->session, recent, r->sampling.repeat_last_n);
    *id = hl_sample(e->adjusted, e->vocab, &r->sampling, recent, n,
                    hl_session_uniform(st->session, st->session->now.at.pos), e->work);
    return HOLA_OK;
}

/* ---- a turn ended by a stop string ---- */

/* A conversation's text must match the template: tokens of the stop string are removed, and other text in them is fed
 * again. To roll back, a mark is needed before the first token that may be part of a stop string. */
static bool keeps_text(const struct hl_serve_stream *st) { return st->c && st->r->answer_from >= 0; }

/* Called after a token whose text is partly held back. Records the text since the mark, to be fed again. */
static hola_status watch_stop(struct hl_serve_stream *st, const struct hl_event *ev, bool stopped) {
    const int64_t at = hola_session_position(st->session);
    hola_status s = HOLA_OK;
    st->held_back += ev->n_piece - ev->n_text;
    if (st->marked && at - st->mark_position > HOLA_RECENT - 2) st->marked = false; /* too far to roll back */
    if (!st->marked) {
        s = hl_text_clear(&st->since_mark);
        if (s != HOLA_OK || (st->held_back <= 0 && !stopped)) return s;
        st->mark_position = at;
        if (!stopped) s = hola_session_mark(st->session);
        st->marked = true;
    }
    if (s == HOLA_OK) s = hl_text_put(&st->since_mark, ev->text, ev->n_text);
    if (st->held_back <= 0 && !stopped) st->marked = false;
    return s;
}

static hola_status cut_stop(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    const int64_t back = hola_session_position(st->session) - st->mark_position;
    int32_t *ids = NULL;
    int64_t n = 0;
    st->has_pending = false;
    hola_status s = back > 0 ? hola_session_rollback(st->session, back) : HOLA_OK;
    st->tape->n -= back;
    if (s == HOLA_OK && st->since_mark.n > 0)
        s = hola_tokenizer_encode(e->more, st->since_mark.data, st->since_mark.n, 1, &ids, &n);
    if (s == HOLA_OK && n > 0) s = hl_tape_room(st->tape, n);
    if (s == HOLA_OK && n > 0) s = hola_session_feed(st->session, ids, n, e->logits);
    if (s == HOLA_OK && n > 0) hl_tape_add(st->tape, ids, n, true);
    free(ids);
    return s;
}

/* ---- a token ---- */

static bool ends_answer(const struct hl_serve_engine *e, const struct hl_serve_request *r, int32_t id) {
    bool end = id == e->o.eos;
    for (int i = 0; i < r->n_stop_id; i++) end |= id == r->stop_id[i];
    return end && !r->ignore_eos;
}

/* A copy takes milliseconds: the first token goes out before. */
static void snapshot_prompt(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    if (st->snapshot_due) hl_serve_stream_snapshot(e, st);
    st->snapshot_due = false;
}

/* What follows such a token does not depend on its text. */
static bool text_may_wait(const struct hl_serve_stream *st, const float *logits) {
    const struct hl_serve_request *r = st->r;
    return !logits && !counts(r) && r->n_stop == 0 && !st->snapshot_due && st->written + 1 < r->max_tokens;
}

static void take_token(struct hl_serve_engine *e, struct hl_serve_stream *st, int32_t id, const float *logits,
                       double now) {
    struct hl_serve_request *r = st->r;
    struct hl_event *ev = NULL;
    bool stopped = false;
    if (st->written == 0) hl_histogram_add(&e->metrics.first_token, now - st->came);
    else hl_histogram_add(&e->metrics.between_tokens, now - st->last_token);
    st->last_token = now;
    if (ends_answer(e, r, id)) {
        hl_serve_stream_end(e, st, HL_FINISH_STOP);
        return;
    }
    hola_status s = st->tape ? hl_tape_room(st->tape, 2) : HOLA_OK;
    const bool later = s == HOLA_OK && text_may_wait(st, logits) && hl_serve_later(e, st, id);
    if (s == HOLA_OK && counts(r)) s = hl_ids_room(&st->out, 1);
    if (s == HOLA_OK && counts(r)) st->out.data[st->out.n++] = id;
    if (s == HOLA_OK && !later) s = hola_detokenizer_add(st->text, id, &stopped);
    if (s == HOLA_OK && !later) ev = hl_event_token(e, st, HL_EVENT_TOKEN, id, logits);
    if (s == HOLA_OK && !later && !ev) s = hl_fail(HOLA_ENOMEM, "no memory for a token");
    if (s == HOLA_OK && !later && keeps_text(st) && r->n_stop > 0) s = watch_stop(st, ev, stopped);
    if (s != HOLA_OK) {
        hl_event_free(ev);
        hl_serve_stream_fail(e, st, s);
        return;
    }
    st->written++;
    st->pending = id, st->has_pending = true;
    atomic_fetch_add(&e->metrics.generated_tokens, 1);
    if (later) return;
    hl_serve_emit(e, r, ev);
    snapshot_prompt(e, st);
    if (stopped && keeps_text(st)) {
        s = cut_stop(e, st);
        if (s != HOLA_OK) {
            hl_serve_stream_fail(e, st, s);
            return;
        }
    }
    if (stopped) hl_serve_stream_end(e, st, HL_FINISH_STOP);
    else if (st->written >= r->max_tokens) hl_serve_stream_end(e, st, HL_FINISH_LENGTH);
}

/* The first of several answers: copies its prompt for the others. */
static hola_status share_prompt(struct hl_serve_stream *st) {
    struct hl_serve_request *r = st->r;
    if (r->n == 1 || st->choice % r->n != 0) return HOLA_OK;
    hola_status s = hola_session_clone(&r->lead, st->session);
    if (s == HOLA_OK && st->tape) s = hl_tape_copy(&r->lead_tape, st->tape, st->tape->n);
    r->lead_cached = st->n;
    return s;
}

static void rebuilt(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_conversation *c = st->c;
    struct hl_op *op = st->op;
    c->session = st->session;
    c->writers--;
    hl_serve_stream_leave(e, st);
    json_t *json = op && !c->deleted ? hl_conversation_json(c, c->session ? hola_session_bytes(c->session) : 0) : NULL;
    if (json && op->op == HL_OP_ROLLBACK) json_object_set_new(json, "reread", json_integer(op->c));
    const bool deleted = c->deleted;
    hl_serve_idle(e, c);
    if (!op) return;
    op->json = json;
    hl_op_reply(op,
                json      ? HL_NO_ERROR
                : deleted ? HL_SESSION_NOT_FOUND
                          : HL_INTERNAL,
                "the session '%s' is gone", op->id);
}

void hl_serve_stream_prompt_read(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_serve_request *r = st->r;
    int32_t before[8], id;
    if (!r) {
        rebuilt(e, st);
        return;
    }
    st->stage = HL_STAGE_WRITING;
    st->read_at = hl_clock();
    hola_status s = share_prompt(st);
    st->snapshot_due = st->n > 0 && st->cached < st->n;
    if (s == HOLA_OK)
        s = hola_detokenizer_new(&st->text, e->o.tokenizer, (const char *const *)r->stop, r->stop_len, r->n_stop);
    if (s == HOLA_OK) {
        hola_detokenizer_begin(st->text, before, hola_session_recent(st->session, before, 8));
        if (r->max_tokens == 0) {
            hl_serve_stream_end(e, st, HL_FINISH_LENGTH);
            return;
        }
        s = choose(e, st, &id);
    }
    if (s == HOLA_OK) take_token(e, st, id, r->logprobs >= 0 ? hola_session_logits(st->session) : NULL, hl_clock());
    else hl_serve_stream_fail(e, st, s);
}

/* ---- the step ---- */

static void pass_on(void *ctx) {
    struct hl_serve_engine *e = ctx;
    atomic_fetch_add(&e->overlapped, e->n_later);
    hl_serve_pass_on(e);
}

/* Whether the next thing that the engine does is another step. */
static bool goes_on(struct hl_serve_engine *e) {
    const bool joins = e->waiting && e->streams < e->o.parallel;
    bool on = e->streams > 0 && !joins && !e->stopping && hl_queue_empty(&e->inbox);
    for (int64_t i = 0; on && i < e->streams; i++) on = e->stream[i]->stage >= HL_STAGE_WRITING;
    return on;
}

static void step(struct hl_serve_engine *e) {
    const struct hl_meanwhile meanwhile = {pass_on, e};
    int64_t n = 0;
    bool all_logits = false;
    for (int64_t i = 0; i < e->streams; i++) {
        struct hl_serve_stream *st = e->stream[i];
        if (st->stage < HL_STAGE_WRITING || !st->has_pending) continue;
        if (st->stage == HL_STAGE_WRITING && hl_serve_held(st->r)) continue;
        e->who[n] = st;
        e->batch[n] = st->session;
        e->samplings[n] = st->r->sampling;
        e->ids[n++] = st->pending;
        all_logits |= st->stage == HL_STAGE_CLOSING || !is_plain(st->r);
    }
    if (n == 0) return;
    int32_t *fed = malloc((size_t)n * sizeof *fed);
    if (!fed) return; /* the next round may have the memory */
    memcpy(fed, e->ids, (size_t)n * sizeof *fed);
    const int64_t replayed = e->o.model->steps_replayed;
    hola_status s = all_logits ? hola_session_step(e->batch, n, e->ids, e->logits)
                               : hl_step_sample_each(e->batch, n, e->ids, e->samplings, e->ids, &meanwhile);
    hl_serve_pass_on(e); /* if the step failed early or took all logits, it has not been called */
    const double now = hl_clock();
    e->round.stepped = n, e->round.replayed = e->o.model->steps_replayed - replayed;
    atomic_fetch_add(&e->metrics.steps, 1);
    atomic_fetch_add(&e->metrics.step_sessions, n);
    for (int64_t i = 0; i < n; i++) {
        struct hl_serve_stream *st = e->who[i];
        const bool bad = all_logits ? !hola_session_logits(st->session) : e->ids[i] < 0;
        hola_status one = s != HOLA_ENUMERIC || bad ? s : HOLA_OK;
        int32_t id = e->ids[i];
        if (one == HOLA_OK && st->tape) hl_tape_add(st->tape, &fed[i], 1, true);
        st->has_pending = false;
        if (one == HOLA_OK && st->stage == HL_STAGE_CLOSING) {
            hl_serve_stream_end(e, st, st->finish);
            continue;
        }
        if (one == HOLA_OK && all_logits) one = choose(e, st, &id);
        if (one == HOLA_OK) take_token(e, st, id, st->r->logprobs >= 0 ? hola_session_logits(st->session) : NULL, now);
        else hl_serve_stream_fail(e, st, one);
    }
    free(fed);
}
void hl_serve_step(struct hl_serve_engine *e) {
    hl_serve_gather(e, true);
    step(e);
    if (!goes_on(e)) hl_serve_pass_on(e);
    hl_serve_gather(e, false);
}

/* ---- the end ---- */

static void leave_request(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    struct hl_serve_request *r = st->r;
    if (st->source) { /* it never got to copy it */
        st->source->copies--, r->copies--;
        st->source = NULL;
    }
    hl_serve_stream_leave(e, st);
    r->live--;
    hl_serve_request_maybe_end(e, r);
}

void hl_serve_stream_end(struct hl_serve_engine *e, struct hl_serve_stream *st, enum hl_finish finish) {
    const double now = hl_clock();
    snapshot_prompt(e, st);
    st->finish = finish;
    if (st->c && st->has_pending && st->session) { /* a turn's answer is fed completely */
        st->stage = HL_STAGE_CLOSING;
        return;
    }
    struct hl_event *ev = calloc(1, sizeof *ev);
    HL_ASSERT(ev); /* the client could not be told otherwise */
    ev->message.kind = HL_EVENT_FINISH;
    ev->choice = st->choice;
    ev->finish = finish;
    ev->prompt_n = st->n, ev->cached_n = st->cached, ev->predicted_n = st->written;
    ev->queue_s = st->began - st->came;
    ev->prompt_s = (st->read_at > 0 ? st->read_at : now) - st->began;
    ev->predicted_s = st->read_at > 0 ? now - st->read_at : 0;
    if (st->text) {
        int64_t n;
        const char *p = hola_detokenizer_take(st->text, true, &n);
        ev->text = copy_bytes(p, n);
        ev->n_text = ev->text ? n : 0;
    }
    hl_serve_emit(e, st->r, ev);
    if (st->c && st->session) {
        hl_serve_turn_ended(e, st);
        hl_serve_stream_snapshot(e, st);
    } else if (st->written > 1 && st->tape && st->r->cache_prompt &&
               hl_serve_make_room(e, e->session_cost + 5 * st->tape->n)) {
        hl_prefix_put(&e->prefixes, st->tape, st->session); /* its own session, in its current state */
        st->session = NULL;
    }
    leave_request(e, st);
}

void hl_serve_stream_drop(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    if (st->c && st->session) hl_serve_turn_ended(e, st); /* what was fed is kept */
    leave_request(e, st);
}

void hl_serve_stream_fail(struct hl_serve_engine *e, struct hl_serve_stream *st, hola_status s) {
    struct hl_conversation *c = st->c;
    struct hl_serve_request *r = st->r;
    if (r) hl_serve_request_fail(r, s == HOLA_ENUMERIC ? HL_NOT_FINITE : HL_INTERNAL, "%s", hola_last_error());
    if (!c || !st->session) {
        if (r) leave_request(e, st);
        return;
    }
    /* The state is invalid: go back to the start of the turn, rebuilding from the ids. */
    const int64_t begin = r ? st->turn_begin : 0;
    struct hl_op *op = st->op;
    if (c->session != st->session) hola_session_free(c->session);
    hola_session_free(st->session);
    c->session = st->session = NULL;
    if (!r) {
        c->damaged = true;
        c->writers--;
        hl_serve_stream_leave(e, st);
        hl_serve_idle(e, c);
        if (op) hl_op_reply(op, HL_INTERNAL, "%s", hola_last_error());
        return;
    }
    hl_conversation_cut(&e->conversations, c, begin);
    c->damaged = c->known_from > 0; /* it cannot be rebuilt */
    c->writers++;                   /* keeps others out */
    leave_request(e, st);
    if (e->o.lease > 0) c->damaged = false; /* the disk has the earlier version */
    else if (!c->damaged && !c->deleted && hl_serve_rebuild(e, c, NULL) != HOLA_OK) c->damaged = true;
    c->writers--;
    hl_serve_idle(e, c);
}
