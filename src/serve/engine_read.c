/* engine_read.c -- prompts, read in pieces between decoding steps.
 *
 * Pieces are multiples of 64 tokens from the prompt's start, and the last one has more than a few (hl_piece): such
 * splits change no bit of the result, so piece sizes can adapt to the load. The last pieces of several prompts share a
 * pass. */
#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"
#include "serve/engine_internal.h"
#include <stdlib.h>
#include <string.h>

void hl_serve_stream_snapshot(struct hl_serve_engine *e, struct hl_serve_stream *st) {
    hola_session *copy;
    if (!st->tape || st->tape->n < 1 || (st->c && st->c->known_from > 0) || (st->r && !st->r->cache_prompt && !st->c))
        return;
    if (!hl_serve_make_room(e, e->session_cost + 5 * st->tape->n + (int64_t)sizeof(struct hl_prefix_point))) return;
    /* out of memory: go without, a snapshot is optional */
    if (hola_session_clone(&copy, st->session) == HOLA_OK) hl_prefix_put(&e->prefixes, st->tape, copy);
}

/* ---- one piece ---- */

/* End of the call that contains the next token. */
static int64_t call_end(const struct hl_serve_stream *st) {
    if (!st->calls) return st->n;
    int64_t end = st->read + 1;
    while (end < st->n && !st->calls[end]) end++;
    return end;
}

/* Length of the next piece; most: a multiple of 64. */
static int64_t piece_of(const struct hl_serve_stream *st, int64_t most) {
    const int64_t n = call_end(st) - st->read;
    const int64_t at = st->read - st->cached, to_snapshot = HL_SNAPSHOT_EVERY - at % HL_SNAPSHOT_EVERY;
    if (most > to_snapshot && !st->calls) most = to_snapshot;
    return hl_piece(n, most);
}
static bool is_last(const struct hl_serve_stream *st, int64_t n) { return st->read + n == st->n; }

bool hl_scores(const struct hl_serve_stream *st) { return st->r && st->r->score_prompt; }
static bool reads(const struct hl_serve_stream *st) {
    return st->stage == HL_STAGE_READING && !(hl_scores(st) && hl_serve_held(st->r));
}

static void piece_was_read(struct hl_serve_engine *e, struct hl_serve_stream *st, int64_t n, hola_status s) {
    if (s != HOLA_OK) {
        hl_serve_stream_fail(e, st, s);
        return;
    }
    if (st->r) {
        if (st->tape) hl_tape_add(st->tape, st->ids + st->read, n, st->fresh);
        atomic_fetch_add(&st->r->prompt_read, n);
        atomic_fetch_add(&e->metrics.prompt_tokens, n);
    }
    st->fresh = false;
    st->read += n;
    if (st->read == st->n) hl_serve_stream_prompt_read(e, st);
    else if ((st->read - st->cached) % HL_SNAPSHOT_EVERY == 0 && !st->calls) hl_serve_stream_snapshot(e, st);
}

/* The prompt's tokens with their log-probabilities: each token is scored by the logits of the one before it. */
static hola_status score_piece(struct hl_serve_engine *e, struct hl_serve_stream *st, int64_t n) {
    float *logits = malloc((size_t)(n * e->vocab) * sizeof *logits);
    if (!logits) return hl_fail(HOLA_ENOMEM, "no memory for %lld logits", (long long)(n * e->vocab));
    hola_status s = HOLA_OK;
    if (st->read == 0) {
        struct hl_event *ev = hl_event_token(e, st, HL_EVENT_PROMPT, st->ids[0], NULL);
        if (ev) hl_serve_emit(e, st->r, ev);
    }
    s = hola_session_feed_each(st->session, st->ids + st->read, n, logits);
    for (int64_t i = 0; s == HOLA_OK && i < n && st->read + i + 1 < st->n; i++) {
        struct hl_event *ev = hl_event_token(e, st, HL_EVENT_PROMPT, st->ids[st->read + i + 1], logits + i * e->vocab);
        if (ev) hl_serve_emit(e, st->r, ev);
        else s = hl_fail(HOLA_ENOMEM, "no memory for a token");
    }
    free(logits);
    return s;
}

static void read_one(struct hl_serve_engine *e, struct hl_serve_stream *st, int64_t n) {
    hola_status s;
    if (hl_scores(st)) s = score_piece(e, st, n);
    else s = hola_session_feed(st->session, st->ids + st->read, n, is_last(st, n) ? e->logits : NULL);
    piece_was_read(e, st, n, s);
}

/* ---- several ---- */

/* Gathers last pieces of other prompts that fit, with the first one's n tokens, in a pass of `most`; into e->who. */
static int64_t gather(struct hl_serve_engine *e, struct hl_serve_stream *first, int64_t n, int64_t most) {
    int64_t k = 0, sum = n;
    e->who[k++] = first;
    for (int64_t i = 0; i < e->streams; i++) {
        struct hl_serve_stream *st = e->stream[i];
        if (st == first || !reads(st) || hl_scores(st) || st->calls) continue;
        const int64_t len = st->n - st->read;
        if (len > HL_READ_PIECE + HL_FEW || sum + len > most) continue;
        e->who[k++] = st;
        sum += len;
    }
    return k;
}

static int64_t read_together(struct hl_serve_engine *e, int64_t k) {
    struct hl_ids *ids = calloc((size_t)k, sizeof *ids);
    int64_t sum = 0;
    hola_status s = ids ? HOLA_OK : hl_fail(HOLA_ENOMEM, "no memory for %lld prompts", (long long)k);
    for (int64_t i = 0; s == HOLA_OK && i < k; i++) {
        struct hl_serve_stream *st = e->who[i];
        ids[i] = (struct hl_ids){.data = (int32_t *)st->ids + st->read, .n = st->n - st->read};
        sum += ids[i].n;
        e->batch[i] = st->session;
    }
    if (s == HOLA_OK) s = hl_sessions_feed(e->batch, ids, k, e->logits);
    free(ids);
    const double fed = hl_clock();
    /* streams that leave do not change e->who, the list of those in this pass */
    for (int64_t i = 0; i < k; i++) {
        struct hl_serve_stream *st = e->who[i];
        const bool bad = s == HOLA_ENUMERIC && !hola_session_logits(st->session);
        piece_was_read(e, st, st->n - st->read, s == HOLA_ENUMERIC && !bad ? HOLA_OK : s);
    }
    e->round.after += hl_clock() - fed;
    return sum;
}

/* The next stream with prompt left to read, round robin; NULL: none. */
static struct hl_serve_stream *next_reader(struct hl_serve_engine *e) {
    for (int64_t i = 0; i < e->streams; i++) {
        struct hl_serve_stream *st = e->stream[(e->turn + i) % e->streams];
        if (!reads(st)) continue;
        e->turn = (e->turn + i + 1) % e->streams;
        return st;
    }
    return NULL;
}

void hl_serve_read(struct hl_serve_engine *e, double seconds, bool once) {
    const bool host = e->o.model->backend->host;
    const double start = hl_clock(), until = start + seconds;
    for (double now = start;;) {
        struct hl_serve_stream *st = next_reader(e);
        if (!st) return;
        HL_ASSERT(e->n_later == 0); /* no token waits for a prompt */
        const int64_t most = host ? hl_pace_length(&e->pace, until - now) : hl_pace_power(&e->pace, false, until - now);
        const bool scores = hl_scores(st); /* the logits of every token take longer */
        const int64_t n = piece_of(st, scores ? HL_READ_PIECE : most);
        int64_t done = n, k = 1;
        if (is_last(st, n) && n <= HL_READ_PIECE + HL_FEW && !scores && !st->calls)
            k = gather(e, st, n, host ? most : hl_pace_power(&e->pace, true, until - now));
        if (k > 1) done = read_together(e, k);
        else read_one(e, st, n);
        const double then = now;
        now = hl_clock();
        e->round.prompts += k, e->round.tokens += done;
        e->round.read += now - then;
        if (done > HL_FEW && !scores && host) hl_pace_add(&e->pace, done, now - then);
        if (done > HL_FEW && !scores && !host) hl_pace_add_power(&e->pace, done, k > 1, now - then);
        if (once || now >= until) return;
    }
}
