/* engine.c -- the engine's thread: main loop, startup and shutdown. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "core/thread.h"
#include "serve/engine_internal.h"
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests and operations ---- */

void hl_serve_request_free(struct hl_serve_request *r) {
    if (!r) return;
    for (int64_t i = 0; r->prompt && i < r->prompts; i++) free(r->prompt[i].ids);
    for (int64_t i = 0; r->stop && i < r->n_stop; i++) free(r->stop[i]);
    free(r->prompt), free(r->stop), free(r->stop_len), free(r->bias), free(r->spans.span);
    hola_session_free(r->lead);
    hl_tape_free(&r->lead_tape);
    free(r);
}

void hl_op_free(struct hl_op *op) {
    if (!op) return;
    json_decref(op->metadata), json_decref(op->json);
    free(op->bytes), free(op->ids), free(op->positions), free(op->spans.span);
    free(op);
}

void hl_serve_request_fail(struct hl_serve_request *r, enum hl_error error, const char *fmt, ...) {
    va_list ap;
    if (r->error != HL_NO_ERROR) return; /* only the first error counts */
    r->error = error;
    va_start(ap, fmt);
    vsnprintf(r->reason, sizeof r->reason, fmt, ap);
    va_end(ap);
}

/* ---- the thread ---- */

/* Ends a request early: an answer is returned as far as it got; a prompt not fully read has none. */
static void cut_short(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    if (st->stage == HL_STAGE_WRITING) {
        hl_serve_stream_end(e, st, HL_FINISH_LENGTH);
        return;
    }
    hl_serve_request_fail(st->r, HL_SHUTTING_DOWN, "the server is shutting down, its prompt was not read to the end");
    hl_serve_stream_drop(e, st);
}

/* Ends requests whose client left, which failed, or which waited too long. */
static void sweep(struct hl_serve_engine *e) {
    const double now = hl_clock();
    for (int64_t i = e->streams - 1; i >= 0; i--) {
        if (i >= e->streams) continue; /* other streams were removed with it */
        struct hl_serve_stream *st = e->stream[i];
        struct hl_serve_request *r = st->r;
        if (r && st->c && st->c->deleted)
            hl_serve_request_fail(r, HL_SESSION_NOT_FOUND, "session: '%s' was deleted", st->c->id);
        else if (r && st->c && hl_shared_lost(e, st->c)) hl_shared_fail(e, st->c, r);
        if (r && (atomic_load(&r->cancelled) || r->error != HL_NO_ERROR)) hl_serve_stream_drop(e, st);
        else if (st->stage == HL_STAGE_LOADING && r) hl_serve_stream_begin(e, st);
    }
    for (struct hl_serve_request *r = e->waiting, *next; r; r = next) {
        next = r->next;
        if (e->stopping && r->begun == 0) hl_serve_request_fail(r, HL_SHUTTING_DOWN, "the server is shutting down");
        if (r->begun == 0 && e->o.timeout_queue > 0 && now - r->came > e->o.timeout_queue)
            hl_serve_request_fail(r, HL_OVERLOADED, "waited for %.1f s without a place", now - r->came);
        if (r->error != HL_NO_ERROR || atomic_load(&r->cancelled)) hl_serve_request_maybe_end(e, r);
    }
    if (e->stopping && now >= e->deadline)
        for (int64_t i = e->streams - 1; i >= 0; i--)
            if (i < e->streams && e->stream[i]->r && e->stream[i]->stage != HL_STAGE_CLOSING)
                cut_short(e, e->stream[i]);
}

static void take_messages(struct hl_serve_engine *e, double wait) {
    struct hl_message *m = hl_queue_take(&e->inbox, wait), *next;
    for (; m; m = next) {
        next = m->next;
        if (m->kind == HL_FROM_CALLER) hl_serve_accept(e, (struct hl_serve_request *)m);
        else if (m->kind == HL_FROM_CALLER_OP) hl_serve_run_op(e, (struct hl_op *)m);
        else if (m->kind == HL_FROM_DISK) hl_serve_disk_reply(e, (struct hl_store_job *)m);
        else {
            double *drain = (double *)(m + 1);
            const double deadline = hl_clock() + *drain;
            if (!e->stopping || deadline < e->deadline) e->deadline = deadline;
            e->stopping = true;
            free(m);
        }
    }
}

/* Seconds until there is work; 0: now, negative: until woken. */
static double idle_time(struct hl_serve_engine *e, double due) {
    double wait = due;
    for (int64_t i = 0; i < e->streams; i++) {
        const struct hl_serve_stream *st = e->stream[i];
        const bool may_wait = st->stage == HL_STAGE_WRITING || (st->stage == HL_STAGE_READING && hl_scores(st));
        if (st->stage >= HL_STAGE_READING && !(may_wait && hl_serve_held(st->r))) return 0;
    }
    if (e->waiting && e->streams < e->o.parallel) return 0;
    if (e->stopping && e->streams > 0) wait = e->deadline - hl_clock();
    if (e->stopping && e->streams == 0 && e->disk_jobs == 0) return 0;
    if (e->waiting && e->o.timeout_queue > 0) {
        const double until = e->waiting->came + e->o.timeout_queue - hl_clock();
        if (wait < 0 || until < wait) wait = until > 0.001 ? until : 0.001;
    }
    return wait < 0 ? wait : wait > 0.001 ? wait : 0.001;
}

/* ---- the loop ---- */

static void *run(void *ctx) {
    struct hl_serve_engine *e = ctx;
    const bool host = e->o.model->backend->host;
    hl_serve_ready_heap(hl_serve_heap(e->o.parallel, e->vocab));
    for (double due = -1;;) {
        if (e->streams == 0 && !e->waiting && !e->stopping) hl_serve_refill_memory(e);
        const double wait = idle_time(e, due);
        if (wait != 0) hl_serve_pass_on(e);
        take_messages(e, wait);
        const struct hl_round last = e->round;
        const double start = hl_clock();
        const int64_t before = e->streams;
        sweep(e);
        hl_serve_admit(e);
        const double admitted = hl_clock();
        e->round = (struct hl_round){.admit = admitted - start, .joined = e->streams - before};
        hl_serve_step(e);
        const double now = hl_clock(), took = now - admitted;
        e->round.step = took;
        if (e->round.stepped > 0) e->round.ended = now;
        if (e->o.slow_gap > 0) hl_serve_note_gap(e, &last);
        bool writes = false;
        for (int64_t i = 0; i < e->streams; i++) writes |= e->stream[i]->stage >= HL_STAGE_WRITING;
        e->join_for = writes ? took : INFINITY;
        const double left = host ? 0 : HL_GAP_DEVICE - (now - start); /* of a gap */
        /* a device's shortest pass takes milliseconds: a second one would keep those who write waiting */
        hl_serve_read(e, !writes ? 0.2 : took > left ? took : left, writes && !host);
        due = hl_serve_save_due(e, false);
        hl_serve_count(e);
        if (e->stopping && e->streams == 0 && !e->waiting && e->disk_jobs == 0 && !e->deferred) break;
    }
    hl_serve_save_due(e, true); /* and refuses what still comes */
    atomic_store(&e->ended, true);
    return NULL;
}

/* ---- life ---- */

struct listing {
    struct hl_serve_engine *e;
};
static void found(void *ctx, const char *id, json_t *about) {
    struct hl_serve_engine *e = ((struct listing *)ctx)->e;
    if (!hl_id_valid(id)) return;
    struct hl_conversation *c = hl_conversation_add(&e->conversations, id);
    if (!c) return;
    c->on_disk = c->has_file = true;
    e->n_on_disk++;
    c->damaged = !about || !hl_conversation_from(c, about, false);
    c->saved_position = c->position;
}
static int by_use(const void *a, const void *b) {
    const struct hl_conversation *const *x = a, *const *y = b;
    return ((*x)->used > (*y)->used) - ((*x)->used < (*y)->used);
}
static hola_status list_folder(struct hl_serve_engine *e) {
    struct listing l = {e};
    if (e->o.lease > 0) {
        hl_shared_list(e);
        return HOLA_OK;
    }
    hl_store_list(e->store, found, &l);
    const int64_t n = e->conversations.n;
    struct hl_conversation **all = malloc((size_t)(n + 1) * sizeof *all);
    int64_t k = 0;
    if (!all) return hl_fail(HOLA_ENOMEM, "no memory for %" PRId64 " sessions", n);
    for (struct hl_conversation *c = e->conversations.newest; c; c = c->older) all[k++] = c;
    qsort(all, (size_t)n, sizeof *all, by_use);
    for (int64_t i = 0; i < n; i++) {
        const int64_t used = all[i]->used;
        hl_conversation_touch(&e->conversations, all[i]);
        all[i]->used = used;
    }
    free(all);
    return HOLA_OK;
}

hola_status hl_serve_open(struct hl_serve_engine **out, const struct hl_serve_opts *opt) {
    struct hl_serve_engine *e = calloc(1, sizeof *e);
    uint64_t model = 0;
    *out = NULL;
    if (!e) return hl_fail(HOLA_ENOMEM, "engine: no memory");
    e->o = *opt;
    e->o.overlap |= !opt->model->backend->host;
    e->vocab = hola_model_config(opt->model)->vocab_size;
    /* Never more than were in use at once, which is bounded by admission and cache_mem */
    opt->model->states.most = INT64_MAX;
    e->last_waiting = &e->waiting;
    hl_queue_init(&e->inbox, -1);
    hl_conversations_init(&e->conversations);
    e->work = malloc((size_t)e->vocab * sizeof *e->work);
    e->adjusted = malloc((size_t)e->vocab * sizeof *e->adjusted);
    e->more = hl_tokenizer_continuing(opt->tokenizer);
    hola_session *s = NULL;
    hola_status st = hola_session_new(&s, opt->model);
    if (st == HOLA_OK && (!e->work || !e->adjusted || !e->more)) st = hl_fail(HOLA_ENOMEM, "engine: no memory");
    if (st == HOLA_OK) e->session_cost = hl_session_cost(s, e->vocab), e->session_bytes = hola_session_bytes(s);
    hola_session_free(s);
    if (st == HOLA_OK && opt->session_dir) {
        st = hl_model_hash(opt->model, &model);
        if (st == HOLA_OK) st = hl_store_open(&e->store, opt->session_dir, model, opt->lock_wait, opt->lease);
        if (st == HOLA_OK) st = list_folder(e);
    }
    if (st == HOLA_OK) {
        hl_serve_count(e);
        st = hl_serve_prepare(e);
        e->started = st == HOLA_OK && hl_thread_start(&e->thread, run, e);
        if (st == HOLA_OK && !e->started) st = hl_fail(HOLA_ENOMEM, "engine: no thread");
    }
    if (st == HOLA_OK) *out = e;
    else hl_serve_close(e);
    return st;
}

void hl_serve_stop(struct hl_serve_engine *e, double drain) {
    struct hl_message *m = malloc(sizeof *m + sizeof(double));
    HL_ASSERT(m);
    m->kind = HL_FROM_STOP;
    memcpy(m + 1, &drain, sizeof drain);
    hl_queue_put(&e->inbox, m);
}

bool hl_serve_ended(struct hl_serve_engine *e) { return atomic_load(&e->ended); }

/* Refuses messages that arrived after the thread ended. */
static void refuse_rest(struct hl_serve_engine *e) {
    struct hl_message *m = hl_queue_take(&e->inbox, 0), *next;
    for (; m; m = next) {
        next = m->next;
        if (m->kind == HL_FROM_CALLER) hl_serve_accept(e, (struct hl_serve_request *)m);
        else if (m->kind == HL_FROM_CALLER_OP)
            hl_op_reply((struct hl_op *)m, HL_SHUTTING_DOWN, "the server is shutting down");
        else free(m);
    }
}

void hl_serve_close(struct hl_serve_engine *e) {
    if (!e) return;
    if (e->started) {
        hl_serve_stop(e, 1e9);
        pthread_join(e->thread, NULL);
        refuse_rest(e);
    }
    hl_store_close(e->store);
    hl_conversations_free(&e->conversations);
    hl_prefix_free(&e->prefixes);
    hl_queue_free(&e->inbox);
    free(e->more), free(e->stream), free(e->who), free(e->batch), free(e->ids), free(e->samplings);
    free(e->later), free(e->logits);
    free(e->work), free(e->adjusted);
    free(e);
}

void hl_serve_submit(struct hl_serve_engine *e, struct hl_serve_request *r) {
    r->message.kind = HL_FROM_CALLER;
    hl_queue_put(&e->inbox, &r->message);
}
void hl_serve_do(struct hl_serve_engine *e, struct hl_op *op) {
    op->message.kind = HL_FROM_CALLER_OP;
    hl_queue_put(&e->inbox, &op->message);
}
void hl_serve_nudge(struct hl_serve_engine *e) { hl_queue_nudge(&e->inbox); }
bool hl_serve_peek(struct hl_serve_engine *e, const char *id, struct hl_peek *out) {
    return e->o.lease > 0 ? hl_shared_peek(e, id, out) : hl_conversation_peek(&e->conversations, id, out);
}
struct hl_serve_metrics *hl_serve_metrics(struct hl_serve_engine *e) {
    return &e->metrics;
}
