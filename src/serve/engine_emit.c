/* engine_emit.c -- from a sampled id to an event that its caller receives.
 *
 * With 64 streams on a device, a step takes 0.6 ms, and a microsecond for each of its tokens would be a tenth of that. So
 * the tokens of a step share a block of memory and reach the caller's queue as one list; and where a device computes the
 * steps, the text of most tokens is made while the next one runs (hl_serve_pass_on). */
#define _POSIX_C_SOURCE 200809L
#include "serve/engine_internal.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

/* Memory for the events of a step and their text, freed with the last of them, by whichever thread. `left` begins with
 * UNKNOWN, which is replaced by the number of events once that is known: until then only their reader changes it. */
struct hl_event_block {
    _Atomic int64_t left;
    int64_t events, used, room;
    char data[];
};
enum { BLOCK = 64 << 10, ALIGN = 16 };
#define UNKNOWN ((int64_t)1 << 40)

static void leave_block(struct hl_event_block *b, int64_t events) {
    if (atomic_fetch_sub(&b->left, events) == events) free(b);
}
static void close_block(struct hl_serve_engine *e) {
    struct hl_event_block *b = e->block;
    if (b) leave_block(b, UNKNOWN - b->events);
    e->block = NULL;
}
/* A zeroed event with room for n bytes behind it; NULL: no memory. */
static struct hl_event *new_event(struct hl_serve_engine *e, int64_t n) {
    const int64_t size = ((int64_t)sizeof(struct hl_event) + n + ALIGN - 1) / ALIGN * ALIGN;
    if (e->block && e->block->room - e->block->used < size) close_block(e);
    if (!e->block) {
        const int64_t room = size > BLOCK || !e->gathering ? size : BLOCK;
        e->block = malloc(sizeof *e->block + (size_t)room);
        if (!e->block) return NULL;
        *e->block = (struct hl_event_block){.left = UNKNOWN, .room = room};
    }
    struct hl_event *ev = (struct hl_event *)(e->block->data + e->block->used);
    memset(ev, 0, sizeof *ev);
    ev->block = e->block;
    e->block->used += size, e->block->events++;
    if (!e->gathering) close_block(e);
    return ev;
}

/* A reader may be slower than the engine: unread events are bounded, and the reader nudges the engine when it wants
 * more. */
bool hl_serve_held(struct hl_serve_request *r) {
    return atomic_load(&r->held) || atomic_load(&r->unread) >= HL_UNREAD_MOST;
}

void hl_event_free(struct hl_event *ev) {
    if (!ev) return;
    struct hl_serve_request *r = ev->message.kind <= HL_EVENT_TOKEN ? ev->request : NULL; /* END is still to come */
    if (r && atomic_fetch_sub(&r->unread, 1) == HL_UNREAD_MOST / 2) hl_queue_nudge(r->inbox);
    free(ev->top);
    if (ev->block) leave_block(ev->block, 1);
    else free(ev->text), free(ev);
}

/* ---- lists of events ---- */

static void announce(struct hl_serve_engine *e) {
    if (!e->gathered) return;
    hl_queue_put_list(e->gathered_for, e->gathered, e->last_gathered);
    e->gathered = NULL;
}
void hl_serve_emit(struct hl_serve_engine *e, struct hl_serve_request *r, struct hl_event *ev) {
    struct hl_message *m = &ev->message;
    if (!e->passing) hl_serve_pass_on(e); /* what was sampled before */
    ev->request = r;
    if (m->kind <= HL_EVENT_TOKEN) atomic_fetch_add(&r->unread, 1);
    if (!e->gathering) {
        hl_queue_put(r->events, m);
        return;
    }
    if (e->gathered_for != r->events) announce(e);
    e->gathered_for = r->events;
    m->next = NULL;
    if (e->gathered) e->last_gathered->next = m;
    else e->gathered = m;
    e->last_gathered = m;
}

/* A step's events are announced together: a reader that wakes for each of them takes a core from the next step. */
void hl_serve_gather(struct hl_serve_engine *e, bool on) {
    e->gathering = on;
    if (on) return;
    announce(e);
    close_block(e);
}

/* ---- tokens ---- */

struct hl_event *hl_event_token(struct hl_serve_engine *e, const struct hl_serve_stream *st, enum hl_event_kind kind,
                                int32_t id, const float *logits) {
    const int64_t n = st->r->logprobs < e->vocab ? st->r->logprobs : e->vocab;
    const char *piece = NULL, *text = NULL;
    int64_t n_piece = 0, n_text = 0;
    if (kind == HL_EVENT_TOKEN) {
        piece = hola_detokenizer_piece(st->text, &n_piece);
        text = hola_detokenizer_take(st->text, false, &n_text);
    }
    struct hl_event *ev = new_event(e, n_text + n_piece);
    if (!ev) return NULL;
    ev->message.kind = kind;
    ev->choice = st->choice;
    ev->id = id;
    ev->logprob = NAN;
    ev->text = (char *)(ev + 1), ev->n_text = n_text;
    ev->piece = ev->text + n_text, ev->n_piece = n_piece;
    if (n_text > 0) memcpy(ev->text, text, (size_t)n_text);
    if (n_piece > 0) memcpy(ev->piece, piece, (size_t)n_piece);
    if (logits && n >= 0) {
        ev->top = malloc((size_t)(n + 1) * sizeof *ev->top);
        ev->n_top = n;
        if (ev->top) hl_logprobs(logits, e->vocab, id, (int)n, &ev->logprob, ev->top);
    }
    if (logits && n >= 0 && !ev->top) {
        hl_event_free(ev);
        return NULL;
    }
    return ev;
}

/* ---- tokens whose text is made later ---- */

bool hl_serve_later(struct hl_serve_engine *e, struct hl_serve_stream *st, int32_t id) {
    if (!e->gathering || !e->o.overlap || e->n_later == e->room) return false;
    e->later[e->n_later++] = (struct hl_later){st, id};
    return true;
}
void hl_serve_pass_on(struct hl_serve_engine *e) {
    const bool gathering = e->gathering;
    if (e->n_later == 0) return;
    e->passing = e->gathering = true;
    for (int64_t i = 0; i < e->n_later; i++) {
        struct hl_serve_stream *st = e->later[i].st;
        const hola_status s = hola_detokenizer_add(st->text, e->later[i].id, NULL);
        struct hl_event *ev = s == HOLA_OK ? hl_event_token(e, st, HL_EVENT_TOKEN, e->later[i].id, NULL) : NULL;
        if (ev) hl_serve_emit(e, st->r, ev);
        else hl_serve_request_fail(st->r, HL_INTERNAL, "no memory for a token"); /* the next round ends it */
    }
    e->n_later = 0;
    e->passing = false;
    announce(e);
    if (!gathering) hl_serve_gather(e, false);
}
